"""The fault matrix of single acts: every fault of the API at every call has its one expected end, and no act is blind.

Each row is one act against the real HTTPS API of the lab, on a clock on which waiting takes a 250th. Whatever the row
says, the invariants of `matrix.Row.check` hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recover.model.act import Action, Outcome, ResetVm, ShutdownVm, StartVm, StopVm
from recover.steps.bounds import worst_case_s
from tests.cli.test_doctor import grants
from tests.edge.actuator.matrix import Call, Meddled, Row, call, row
from tests.edge.actuator.vm_bench import DOWN, REF
from tests.edge.proxmox.conftest import GPU, VM

LONG = 3000.0
ACTS: dict[str, Action] = {
    "stop": StopVm(REF, LONG, memory_mib=65536), "shutdown": ShutdownVm(REF, LONG), "start": StartVm(REF, int(LONG)),
    "reset": ResetVm(REF, LONG),
}  # fmt: skip
# For rows that wait until the end: the shortest deadlines that there are, on a slower clock.
SHORT: dict[str, Action] = {
    "stop": StopVm(REF, 180.0, memory_mib=65536), "shutdown": ShutdownVm(REF, 60.0), "start": StartVm(REF, 60),
    "reset": ResetVm(REF, 60.0),
}  # fmt: skip
ALL = ("stop", "shutdown", "start", "reset")
DOWNWARD, HA_AWARE = ("stop", "shutdown"), ("stop", "shutdown", "start")
TWO_NODES = {"nodes": [{"name": "pve1", "pci": [GPU]}, {"name": "pve2", "pci": [GPU]}]}


def _done(o: Outcome) -> bool:
    return o.ok and o.changed and o.clear


def _already(o: Outcome) -> bool:
    return o.ok and not o.changed


def _no(o: Outcome) -> bool:
    """Proved that nothing was done."""
    return not o.ok and not o.changed and o.clear and not o.busy


def _unclear(o: Outcome) -> bool:
    """It may or may not have been done: to be looked up, never repeated blindly."""
    return not o.ok and not o.clear


def _unclear_but_undone(o: Outcome) -> bool:
    """A guest that was asked to go down and has not: it may still."""
    return _unclear(o) and not o.changed and not o.busy


def _busy(o: Outcome) -> bool:
    """As above, with the name of our own task."""
    return _unclear(o) and o.busy.startswith("UPID:pve1:")


def _leftover(o: Outcome) -> bool:
    return not o.ok and o.changed and o.detail.startswith("leftover QEMU suspected")


@dataclass(frozen=True)
class Case:
    """`posts`: how many power calls leave. `says`: in the detail or the log."""

    name: str
    end: Callable[[Outcome], bool]
    says: str = ""
    posts: int = 1
    verbs: tuple[str, ...] = ALL
    faults: tuple[dict[str, Any], ...] = ()
    world: tuple[Call, ...] = ()  # before the act
    before: tuple[Call, ...] = ()  # while our POST leaves
    after: tuple[Call, ...] = ()  # when its answer came
    vm: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    change: Mapping[str, Any] = field(default_factory=dict)  # of the row's client
    short: bool = False  # it waits until the act's deadline
    second: float = 0.004


def post(kind: str = "http", **more: Any) -> tuple[dict[str, Any], ...]:
    return ({"kind": kind, "method": "POST", "path": "/nodes/*/status/*", **more},)


def task(kind: str, **more: Any) -> tuple[dict[str, Any], ...]:
    return ({"kind": kind, **more},)


SLOWLY: dict[str, Any] = {"change": {"timeout": 1.0}, "second": 0.025}
GONE = "Configuration file 'nodes/pve1/qemu-server/174.conf' does not exist"
PROXY = (502, 595, 596, 597, 599)  # answers of something in between
# --- the POST's answer

ANSWERS = [
    Case("400", _no, "bad-request", faults=post(status=400, message="Parameter verification failed.")),
    Case("401", _no, "auth", faults=post(status=401, message="authentication failure")),
    Case("403", _no, "denied", faults=post(status=403, message="Permission check failed")),
    Case("403-token", _no, "proper ticket",
         faults=post(status=403, message="not available with API token, need proper ticket.")),
    Case("501-moved-away", _no, "not-there", 2, faults=post(status=501, message="not implemented", times=None)),
    Case("302", _no, "garbled", faults=post(status=302, message="Found")),
    *[Case(f"{status}-before", _unclear, "was lost", faults=post(status=status)) for status in PROXY],
    *[Case(f"{status}-after", _done, faults=post(status=status, when="after")) for status in PROXY],
    Case("cut-before", _unclear, "was lost", faults=post("cut")),
    Case("cut-after", _done, faults=post("cut", when="after")),
    Case("page-before", _unclear, "was lost", faults=post("page")),
    Case("page-after", _done, faults=post("page", when="after")),
    Case("200-without-task", _unclear, "expected a task", faults=post(status=200, message="OK")),
    Case("200-without-task-after", _done, faults=post(status=200, message="OK", when="after")),
    Case("tls", _no, "fingerprint", 0, change={"untrusted": True}),
    Case("tls-from-the-first-question-on", _no, "fingerprint", 0, verbs=("stop", "start"), change={"distrusts": True}),
    # 35 s of the 40 s after which we give a call up, and an answer that comes too late, where a second takes 0.025
    Case("slow-35-s", _done, faults=post("slow", seconds=0.875), **SLOWLY),
    Case("slow-45-s", _done, faults=post("slow", seconds=1.25), verbs=("stop", "start"), **SLOWLY),
    Case("lost-and-settled-down", _done, "seen by its state", verbs=DOWNWARD, faults=post(),
         after=(call("vm", vmid=174, set={"status": "stopped"}),)),
    Case("lost-and-settled-up", _done, "seen by its state", verbs=("start",), faults=post(),
         after=(call("vm", vmid=174, set={"status": "running"}),)),
    Case("lost-and-the-list-too", _unclear, "was lost",
         faults=(*post(), {"kind": "http", "method": "GET", "path": "/nodes/*/tasks", "skip": 2, "times": None})),
]  # fmt: skip

# --- HTTP 500 and its messages: `die` before the worker; nothing was done

HTTP_500 = [
    ("VM 174 not running", "failed"), ("VM 174 already running", "failed"),
    ("cluster not ready - no quorum?", "failed"),
    ("hostname lookup 'pve1' failed - failed to get address info", "failed"), ("VM is locked (backup)", "failed"),
    ("VM is paused - cannot shutdown", "failed"),
    ("can't lock file '/var/lock/qemu-server/lock-174.conf' - got timeout", "failed"),
    ("unable to open file - No space left on device", "failed"), ("got no worker upid - start worker failed", "failed"),
    ("service 'vm:174' in error state, must be disabled and fixed first", "failed"),
    ("\u202ehostile\u2028message", "hostile"),
]  # fmt: skip
MESSAGES_500 = [
    *[Case(f"500: {text[:30]!r}", _no, says, faults=post(status=500, message=text)) for text, says in HTTP_500],
    Case("500-gone-once", _done, "", 2, faults=post(status=500, message=GONE)),
    Case("500-gone", _no, "not-there", 2, faults=post(status=500, message=GONE, times=None)),
]

# --- how the task ends: (message, what it means, verbs, POSTs)

S, D, U, R = ("stop",), ("shutdown",), ("start",), ("reset",)
BDF = "0000:41:00.0"
TASK_ENDS = [
    ("VM is locked (backup)", "locked", ALL, 1),
    ("can't lock file '/var/lock/qemu-server/lock-174.conf' - got timeout", "flock-timeout", ALL, 2),
    ("cluster not ready - no quorum?", "no-quorum", ALL, 1),
    ("Permission check failed (/vms/174, VM.PowerMgmt)", "denied", ALL, 1),
    ("service 'vm:174' in error state, must be disabled and fixed first", "ha-error", ALL, 1),
    ("something that nobody knows", "not known", ALL, 1),
    ("VM quit/powerdown failed - got timeout", "did not power off", D, 1),
    ("VM quit/powerdown failed", "shutdown-timeout", S, 1),
    ("VM is paused - cannot shutdown", "paused", D, 1),
    ("VM 174 not running", "VM 174 not running", R, 1),
    ("start failed: command '/usr/bin/kvm -id 174' failed: got timeout", "start-timeout", U, 2),
    ("start failed: QEMU exited with code 1", "start-failed", U, 1),
    ("start failed: hugepage allocation failed", "no-host-memory", U, 1),
    ("timeout waiting on systemd", "leftover-qemu", U, 1),
    (f"PCI device '{BDF}' already in use by VMID '101'", "in-use-by-vmid", U, 1),
    (f"PCI device '{BDF}' is currently reserved for use by VMID '101'", "reserved-by-vmid", U, 1),
    ("no PCI device found for '0000:41:00'", "no-such-device", U, 1),
    (f"no pci device info for device '{BDF}'", "no-such-device", U, 1),
    ("PCI device mapping not found for 'gpu0'", "mapping-invalid", U, 1),
    ("PCI device mapping invalid (hardware probably changed): pci device not found", "mapping-invalid", U, 1),
    ("could not find a free device for 'hostpci0'", "no-free-device", U, 1),
    (f"device '{BDF}' assigned more than once", "config", U, 1),
    ("q35 machine model is not enabled", "config", U, 1),
    ("cannot prepare PCI pass-through, IOMMU not present", "no-iommu", U, 1),
    ("Cannot find vfio-pci module!", "no-iommu", U, 1),
    ("Cannot open iommu_group: No such file", "bind-failed", U, 1),
    (f"Cannot bind {BDF} to vfio", "bind-failed", U, 1),
    (f"can't unbind/bind PCI group to VFIO '{BDF}'", "bind-failed", U, 1),
    (f"can't reset PCI device '{BDF}'", "reset-failed", U, 1),
    (f"start failed: vfio {BDF}: group 1 is not viable", "group-not-viable", U, 1),
    ("start failed: failed to open /dev/vfio/12: Device or resource busy", "device-busy", U, 1),
    (f"vfio-pci {BDF}: not ready 65535ms after FLR; giving up", "reset-gave-up", U, 1),
    (f"vfio-pci {BDF}: Unable to change power state from D3cold to D0, device inaccessible", "stuck-d3", U, 1),
    ("pci_irq_handler: Assertion `0 <= irq_num && irq_num < PCI_NUM_PINS' failed", "device-dead", U, 1),
    ("storage 'ceph' is not online", "storage", U, 1),
    ("hookscript error for 174 on pre-start", "hookscript", U, 1),
    ("you can't start a vm if it's a template", "config", U, 1),
]  # fmt: skip
MID_WAY = [
    "received interrupt",
    "unexpected status",
    "unable to get last line from task log - no",
    "unable to read tail (got 0 bytes)",
]
# The guest was asked to go down, or may have been: it may still do so.
ASKED_DOWN = {("shutdown", text) for text in ("VM quit/powerdown failed - got timeout", "something that nobody knows")}
TASKS = [
    *[Case(f"task: {text[:44]!r}", _unclear_but_undone if (verb, text) in ASKED_DOWN else _no, says, posts, (verb,),
           faults=task("task-error", message=text, times=None))
      for text, says, verbs, posts in TASK_ENDS for verb in verbs],
    *[Case(f"task: {text[:30]!r}", _unclear, "", faults=task("task-error", message=text)) for text in MID_WAY],
    *[Case(f"done, then: {text[:30]!r}", _done, "although the", verbs=HA_AWARE,
           faults=task("task-error", message=text, when="after")) for text in MID_WAY],
    Case("flock-once", _done, "", 2, faults=task("flock")),
    Case("kvm-timeout-once", _done, "", 2, U, faults=task("kvm-timeout")),
    Case("kvm-timeout-and-up", _done, "although the start task ended", 1, U, faults=task("kvm-timeout", comes_up=True)),
    Case("hang", _busy, "still runs", faults=task("hang"), short=True),
    Case("killed", _unclear, "worker-died", faults=task("killed")),
    Case("warnings-2", _done, "the task ended with warnings", faults=task("warnings", count=2)),
    Case("ok-with-a-failed-reset", _done, "could not reset the device", verbs=U, faults=task("reset-warning")),
    Case("ok-after-sigterm", _done, "QEMU did not quit when asked", verbs=S, vm={"stop_how": "sigterm"}),
    Case("ok-after-sigkill", _done, "QEMU was killed", verbs=S, vm={"stop_how": "sigkill"}),
    Case("ok-and-qemu-left", _leftover, "memory", verbs=S, vm={"stop_how": "zombie"}),
    Case("ok-and-nothing-changed", _no, "ended OK and the VM still runs", verbs=S, faults=task("nothing")),
    Case("ok-and-nothing-changed", _unclear_but_undone, "ended OK and the VM still runs", 1, D, task("nothing")),
    Case("ok-and-nothing-changed", _no, "ended OK and the VM does not run", verbs=U, faults=task("nothing")),
    # a reset that was none shows only in the guest's boot id: see AwaitBoot
    Case("ok-and-nothing-changed", _done, "", verbs=R, faults=task("nothing")),
]  # fmt: skip

# --- privileges, also ones that are taken away in mid-run

PRIVILEGES = [
    Case("no-VM.PowerMgmt", _no, "needs VM.PowerMgmt on /vms/174", world=(call("deny", priv="VM.PowerMgmt"),)),
    Case("no-VM.Audit", _no, "VM.Audit", 0, world=(call("deny", priv="VM.Audit"),)),
    Case("no-Sys.Audit-on-the-node", _done, world=(call("deny", priv="Sys.Audit", path="/nodes"),)),
    Case("no-Sys.Audit-on-/", _done, config={"grants": grants("Sys.Audit on /")}),
    Case("revoked-before", _no, "auth", 0, world=(call("token", revoke=True),)),
    Case("revoked-at-the-POST", _no, "auth", before=(call("token", revoke=True),)),
    Case("expired-in-mid-run", _busy, "auth|not accepted", after=(call("token", revoke=True),)),
    Case("VM.PowerMgmt-lost-at-the-POST", _no, "VM.PowerMgmt", before=(call("deny", priv="VM.PowerMgmt"),)),
    Case("VM.Audit-lost-in-mid-run", _unclear, "VM.Audit", after=(call("deny", priv="VM.Audit"),)),
]

# --- the world around: HA, nodes, quorum, others

OTHERS = {"type": "qmstop", "vmid": 174, "user": "kim@pam", "status": "running"}
WORLD = [
    Case("ha", _done, verbs=HA_AWARE, vm={"ha": "started"}),
    Case("ha-elsewhere", _done, "on pve2 is running", verbs=U, vm={"ha": "stopped", "ha_node": "pve2"},
         config=TWO_NODES),
    Case("ha-takes-the-wish-only", _unclear, "HA took the", verbs=S, vm={"ha": "started", "stop_how": "still-runs"},
         short=True),
    Case("ha-gave-up", _no, "ha-error", verbs=U, vm={"ha": "error"}),
    Case("ha-answer-lost", _done, verbs=HA_AWARE, vm={"ha": "started"}, faults=post(when="after")),
    Case("node-offline", _no, "unclear", 0, world=(call("node", name="pve1", set={"online": False}),)),
    Case("node-offline-in-mid-run", _busy, "could not be followed", verbs=("stop", "start"), short=True,
         after=(call("node", name="pve1", set={"online": False}),)),
    Case("api-away", _no, "unreachable", 0, world=(call("listener", index=0, up=False),)),
    Case("api-away-at-the-POST", _no, "unreachable", 0, before=(call("listener", index=0, up=False),)),
    Case("api-away-in-mid-run", _busy, "could not be followed", verbs=("shutdown", "reset"), short=True,
         after=(call("listener", index=0, up=False),)),
    Case("no-quorum", _no, "quorum", verbs=U, config={"quorate": False}),
    Case("quorum-lost-at-the-POST", _no, "quorum", verbs=U, before=(call("quorum", value=False),)),
    Case("migrated-at-the-POST", _done, "", 2, before=(call("vm", vmid=174, set={"node": "pve2"}),), config=TWO_NODES),
    Case("migrated-in-mid-run", _done, "on pve2", verbs=HA_AWARE, after=(call("vm", vmid=174, set={"node": "pve2"}),),
         config=TWO_NODES),
    Case("deleted-before", _no, "not there", 0, world=(call("destroy", vmid=174),)),
    Case("deleted-at-the-POST", _no, "not there", before=(call("destroy", vmid=174),)),
    Case("deleted-in-mid-run", _unclear, "not there", after=(call("destroy", vmid=174),)),
    Case("locked-at-the-POST", _no, "locked", before=(call("vm", vmid=174, set={"lock": "backup"}),)),
    Case("others-work-on-it", _no, "qmstop by kim@pam", 0, world=(call("task", **OTHERS),)),
    Case("others-keep-the-lock-file", _no, "flock-timeout", 2, world=(call("hold-flock", vmid=174),)),
    Case("others-give-the-lock-file-back", _done, "trying to acquire lock", before=(call("hold-flock", vmid=174),),
         after=(call("release-flock", vmid=174),), second=0.1),
    Case("others-were-faster-down", _done, verbs=DOWNWARD, before=(call("vm", vmid=174, set={"status": "stopped"}),)),
    Case("others-were-faster-up", _already, verbs=U, before=(call("vm", vmid=174, set={"status": "running"}),)),
]  # fmt: skip

POSTED = [*ANSWERS, *MESSAGES_500, *TASKS, *PRIVILEGES, *WORLD]

# --- each question: (path, how many come before the one that is struck, which phase it is in)

QUESTIONS = {
    "where-first": ("/cluster/resources", 0, "early"), "where-again": ("/cluster/resources", 1, "early"),
    "where-after": ("/cluster/resources", 2, "late"), "state-first": ("*/status/current", 0, "early"),
    "state-again": ("*/status/current", 1, "early"), "state-after": ("*/status/current", 2, "late"),
    "config": ("*/config", 0, "early"), "who-works": ("/nodes/*/tasks", 0, "early"),
    "marker-list": ("/nodes/*/tasks", 1, "early"), "follow": ("/nodes/*/tasks/*/status", 0, "follow"),
    "log": ("/nodes/*/tasks/*/log", 0, "beside"), "host-memory": ("/nodes/pve1/status", 0, "beside"),
}  # fmt: skip
# fault -> (as it is, whether asking again helps when it strikes once)
STRIKES: dict[str, tuple[dict[str, Any], bool]] = {
    "400": ({"status": 400, "message": "Parameter verification failed."}, False),
    "401": ({"status": 401, "message": "authentication failure"}, False),
    "403": ({"status": 403, "message": "Permission check failed (/x, Sys.Audit)"}, False),
    "500": ({"status": 500, "message": "got timeout"}, False),
    "595": ({"status": 595}, True), "596": ({"status": 596}, True), "599": ({"status": 599}, True),
    "cut": ({"kind": "cut"}, True), "page": ({"kind": "page"}, False),
    "slow": ({"kind": "slow", "seconds": 0.875}, True),
    "late": ({"kind": "slow", "seconds": 1.25}, True),
}  # fmt: skip


SLOW = ("slow", "late")
NO_ANSWER = ("596", "cut", "page")


def asked(question: str, strike: str, ever: bool) -> Case:
    """What a fault at a question comes to: before the POST nothing is sent, after it the state decides."""
    path, skip, phase = QUESTIONS[question]
    shape, passes = STRIKES[strike]
    fault = {"kind": "http", "method": "GET", "path": path, "skip": skip, "times": None if ever else 1, **shape}
    verbs = S if question == "host-memory" or strike in SLOW else ("stop", "start")
    name = f"{question}-{strike}{'-for-ever' if ever else ''}"
    more: dict[str, Any] = SLOWLY if shape.get("kind") == "slow" else {}
    fails = not passes or (ever and strike != "slow")
    if phase == "follow" and ever and strike in NO_ANSWER:  # asked until the act's deadline; then the state decides
        return Case(name, _done, "could not be followed", 1, U, (fault,), short=True)
    if phase == "early" and fails:
        return Case(name, _no, "", 0, verbs, (fault,), **more)
    if phase == "late" and fails and ever:
        return Case(name, _unclear, "", 1, verbs, (fault,), **more)
    return Case(name, _done, "", 1, verbs, (fault,), **more)


FINAL = ("400", "401", "403", "500", "page")
ASKED = [
    *[asked(q, strike, False) for q in QUESTIONS for strike in (*FINAL, "596", "cut")],
    *[asked(q, strike, True) for q in QUESTIONS for strike in NO_ANSWER],
    *[asked(q, strike, True) for q in QUESTIONS for strike in ("401", "403", "500") if QUESTIONS[q][2] != "early"],
    *[asked(q, strike, False) for q in ("where-first", "follow") for strike in ("595", "599")],
    *[asked(q, strike, False) for q in ("where-first", "state-after", "follow", "who-works") for strike in SLOW],
]


def rows(cases: list[Case]) -> list[Any]:
    return [pytest.param(case, verb, id=f"{verb}-{case.name}") for case in cases for verb in case.verbs]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Row]]:
    with ExitStack() as stack:
        yield lambda *vms, **config: stack.enter_context(row(tmp_path, *vms, **config))


def run(lab: Callable[..., Row], case: Case, verb: str) -> None:
    second = 0.012 if case.short else case.second
    server = lab({**(DOWN if verb == "start" else VM), **case.vm}, second=second, **case.config)
    for name, value in case.change.items():
        setattr(server, name, value)
    for fault in case.faults:
        server.inject(**fault)
    for op, arguments in case.world:
        server.call(op, **arguments)
    server.meddled = Meddled({verb: case.before}, {verb: case.after})
    outcome = server.act((SHORT if case.short else ACTS)[verb])
    said = "\n".join((outcome.detail, *outcome.log))
    assert case.end(outcome), (case.end.__name__, outcome)
    assert re.search(case.says, said), (case.says, outcome)
    assert server.sent() == [verb] * case.posts, outcome
    assert outcome.seconds <= worst_case_s((SHORT if case.short else ACTS)[verb]), outcome
    server.check()


@pytest.mark.parametrize(("case", "verb"), rows(POSTED))
def test_a_power_call(lab: Callable[..., Row], case: Case, verb: str) -> None:
    run(lab, case, verb)


@pytest.mark.parametrize(("case", "verb"), rows(ASKED))
def test_a_question(lab: Callable[..., Row], case: Case, verb: str) -> None:
    run(lab, case, verb)
