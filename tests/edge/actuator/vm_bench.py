"""The lab's API on a fast clock, and the hands that act through it; what was sent is read from the API's own log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from recover.edge.actuator.hypervisor import HypervisorActuator
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.tasks import Tasks
from recover.model.act import Outcome, ResetVm, ShutdownVm, StartVm, StopVm, VmRef
from tests.edge.proxmox.conftest import VM, Lab

SECOND = 0.01  # one second of ours; PVE's are half as long, so that its own time-outs come first
UUID = "00000000-0000-4000-8000-000000000174"
REF = VmRef("pve", 174, UUID, "node-174")
LONG = 3000.0
STOP = StopVm(REF, LONG, memory_mib=65536)
SHUTDOWN = ShutdownVm(REF, 60.0)
START = StartVm(REF, 300)
RESET = ResetVm(REF, LONG)
DOWN = {**VM, "status": "stopped"}
HA = {**VM, "ha": "started"}
FOUR = [(STOP, VM), (SHUTDOWN, VM), (START, DOWN), (RESET, VM)]
VERBS = ["stop", "shutdown", "start", "reset"]
four = pytest.mark.parametrize(("action", "vm"), FOUR, ids=VERBS)


class SleptClock:
    """Time that passes only by sleeping, and then `second` real seconds for one: no busy machine makes us late."""

    def __init__(self, second: float) -> None:
        self.second, self._began, self._at = second, time.time(), 0.0

    def passed(self) -> float:
        self._at += 0.001  # whoever only looks at the clock sees it move
        return self._at

    def now(self) -> float:
        return self._began + self.passed()

    def sleep(self, seconds: float) -> None:
        self._at += max(0.0, seconds)
        time.sleep(max(0.0, seconds) * self.second)


class Bench(Lab):
    """The lab's API and the hands that act through it."""

    def act(self, action: Any, kind: type[Client] = Client, tasks_kind: type[Tasks] = Tasks) -> Outcome:
        fast = SleptClock(SECOND)
        client = self.client(kind)
        tasks = tasks_kind(client, sleep=fast.sleep, clock=fast.passed)
        hands = HypervisorActuator(
            client, tasks, "pve", clock=fast.passed, sleep=fast.sleep,
            await_boot=lambda a: Outcome(True, f"{a.gpus} GPUs"),
        )  # fmt: skip
        outcome = hands.perform(action)
        assert outcome.seconds >= 0 and outcome.detail.isprintable()
        return outcome

    @property
    def vm(self) -> dict[str, Any]:
        found: dict[str, Any] = self.state()["vms"]["174"]
        return found

    def sent(self) -> list[str]:
        """The power calls, in their order."""
        return [r["path"].rpartition("/")[2] for r in self._posts()]

    def params(self) -> dict[str, str]:
        return {key: str(value) for key, value in self._posts()[-1]["params"].items()}

    def _posts(self) -> list[dict[str, Any]]:
        return [r for r in self.requests() if r["method"] == "POST" and "/status/" in r["path"]]


@contextmanager
def bench(folder: Path, *vms: dict[str, Any], **config: Any) -> Iterator[Bench]:
    with Bench({"vms": list(vms) or [VM], "time_scale": SECOND / 2} | config, folder / "pve") as server:
        yield server


def after_post(server: Bench, *calls: tuple[str, dict[str, Any]]) -> type[Client]:
    """A client during whose POST something else happens in the world."""

    class Meanwhile(Client):
        def post(self, where: str, **params: Any) -> Any:
            answer = super().post(where, **params)
            for op, arguments in calls:
                server.call(op, **arguments)
            return answer

    return Meanwhile
