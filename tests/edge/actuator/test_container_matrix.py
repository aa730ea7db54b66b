"""The fault matrix of containers: LXC's own calls under the same faults, and a stop that has no end of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from recover.model.act import Action, Outcome, ShutdownVm, StartVm, StopVm, VmRef
from tests.edge.actuator.matrix import Meddled, Row, call, row
from tests.edge.actuator.test_fault_matrix import Case, _already, _busy, _done, _no, _unclear, post, rows, task

REF = VmRef("pve", 200, "", "ct-200", container=True)
CT = {"vmid": 200, "name": "ct-200", "config": {"dev0": "/dev/nvidia0"}}
ACTS: dict[str, Action] = {
    "stop": StopVm(REF, 180.0), "shutdown": ShutdownVm(REF, 60.0), "start": StartVm(REF, 120)
}  # fmt: skip
ALL, DOWN, UP = ("stop", "shutdown", "start"), ("stop", "shutdown"), ("start",)
S = ("stop",)
GONE = "Configuration file 'nodes/pve1/lxc/200.conf' does not exist"
CASES = [
    Case("well", _done, verbs=ALL),
    Case("400", _no, "bad-request", verbs=ALL, faults=post(status=400, message="Parameter verification failed.")),
    Case("401", _no, "auth", verbs=ALL, faults=post(status=401, message="authentication failure")),
    Case("403", _no, "needs VM.PowerMgmt on /vms/200", verbs=ALL, world=(call("deny", priv="VM.PowerMgmt"),)),
    Case("596-before", _unclear, "was lost", verbs=ALL, faults=post(status=596)),
    Case("596-after", _done, verbs=ALL, faults=post(status=596, when="after")),
    Case("cut-after", _done, verbs=ALL, faults=post("cut", when="after")),
    Case("page-before", _unclear, verbs=ALL, faults=post("page")),
    Case("500-gone", _no, "not-there", 2, ALL, post(status=500, message=GONE, times=None)),
    Case("locked", _no, "locked", 1, ALL, task("task-error", message="CT is locked (backup)")),
    Case("flock-once", _done, "", 2, ALL, task("flock")),
    Case("killed", _unclear, "worker-died", 1, ALL, task("killed")),
    Case("warnings", _done, "the task ended with warnings", 1, ALL, task("warnings", count=2)),
    Case("ok-and-nothing-changed", _no, "ended OK", 1, S, task("nothing")),
    Case("ok-and-nothing-changed", _no, "ended OK", 1, UP, task("nothing")),
    Case("device-file-missing", _no, "no-such-device", 1, UP,
         task("task-error", message="Device /dev/nvidia0 does not exist")),
    Case("no-quorum", _no, "quorum", 1, UP, config={"quorate": False}),
    Case("ha", _done, verbs=DOWN, world=(call("ct", vmid=200, set={"ha": "started"}),)),
    # LXC answers these before a worker is forked: somebody was faster, and the goal holds
    Case("others-were-faster-down", _already, verbs=DOWN, before=(call("ct", vmid=200, set={"status": "stopped"}),)),
    Case("others-were-faster-up", _already, verbs=UP, before=(call("ct", vmid=200, set={"status": "running"}),)),
    Case("shutdown-not-obeyed", _unclear, "may still do so|container did not stop|does not run", 1, ("shutdown",),
         world=(call("ct", vmid=200, set={"hangs": True}),)),
    Case("stop-hangs", _busy, "no time-out of its own", 1, S, world=(call("ct", vmid=200, set={"hangs": True}),)),
]  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Row]]:
    with ExitStack() as stack:

        def made(ct: dict[str, Any], **config: Any) -> Row:
            return stack.enter_context(row(tmp_path, cts=[{**CT, **ct}], second=0.002, **config))

        yield made


def ct(server: Row) -> dict[str, Any]:
    found: dict[str, Any] = server.state()["cts"]["200"]
    return found


@pytest.mark.parametrize(("case", "verb"), rows(CASES))
def test_a_power_call_to_a_container(lab: Callable[..., Row], case: Case, verb: str) -> None:
    server = lab(ct={"status": "stopped" if verb == "start" else "running"}, **case.config)
    for fault in case.faults:
        server.inject(**fault)
    for op, arguments in case.world:
        server.call(op, **arguments)
    server.meddled = Meddled({verb: case.before}, {verb: case.after})
    outcome = server.act(ACTS[verb])
    assert case.end(outcome), (case.end.__name__, outcome)
    assert re.search(case.says, "\n".join((outcome.detail, *outcome.log))), outcome
    assert server.sent() == [verb] * case.posts, outcome
    assert all("/lxc/200/" in note["path"] for note in server.power())
    server.check()


def test_a_stop_that_hangs_is_waited_for_and_the_container_comes_back(lab: Callable[..., Row]) -> None:
    """The process in the kernel ends at last. Meanwhile nothing is sent beside its task, and no task is killed."""
    server = lab(ct={"hangs": True})
    stop = server.act(ACTS["stop"])
    assert _busy(stop) and ":vzstop:200:" in stop.busy and ct(server)["status"] == "running"
    start = server.act(ACTS["start"])
    assert _stands_by(start) and start.busy == stop.busy, start
    again = server.act(ACTS["stop"])
    assert _stands_by(again) and server.sent() == ["stop"], "one stop, and nothing beside it"
    server.call("ct", vmid=200, set={"hangs": False})
    back = server.act(ACTS["start"])
    assert back.ok and back.changed and ct(server)["status"] == "running", back
    assert server.sent() == ["stop", "start"]
    assert not [n for n in server.requests() if n["method"] == "DELETE"], "a task is never killed"
    server.check()


def _stands_by(outcome: Outcome) -> bool:
    return not outcome.ok and not outcome.clear and "our own vzstop of container 200 still runs" in outcome.detail
