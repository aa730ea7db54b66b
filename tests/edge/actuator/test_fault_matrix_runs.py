"""The fault matrix of whole runs: whatever strikes between looks, stop, start and boot, no VM is left down unnamed.

The real engine, the real hands and the real HTTPS API of the lab; only the guest's inside is simulated. It is sick
until its VM was started anew, so that a run which ends recovered has really been through stop and start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recover.core.fold import fold
from recover.core.guards import Context
from recover.core.history import History
from recover.edge.actuator import CombinedActuator
from recover.edge.boot import BootWatch
from recover.edge.evidence import NoEvidence
from recover.edge.observer import CombinedObserver
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.reads import look
from recover.edge.simulated import FAULTS, HELD_MIB, MAC, UUID, Fault, SimulatedMachine
from recover.engine import Run, World
from recover.model.act import Action, Outcome, StartVm, StopVm
from recover.model.contact import Failure
from recover.model.guest import Guest, Mute
from recover.model.ladder import Limits, Playbook, Rung
from recover.model.record import Acted, Acting, Closed, EndKind
from recover.model.snapshot import Target
from recover.model.verdict import Scope
from recover.ports import GateAnswer
from tests.cli.test_doctor import grants
from tests.edge.actuator.matrix import Call, Meddled, Nobody, Row, call, row

SICK = Fault("held", "GPU memory that only a power cycle frees.", workers="none", vram=HELD_MIB, vram_cure=Scope.VM)
H100 = {"bdf": "0000:41:00.0", "vendor": "10de", "device": "2330", "class": "0302", "iommugroup": 14}
NODE = {
    "name": "node-174",
    "vmid": 174,
    "memory_mib": 32768,
    "smbios_uuid": UUID,
    "mac": MAC.upper(),
    "hostpci": [H100],
}
TWO_NODES = [{"name": "pve1", "pci": [H100]}, {"name": "pve2", "pci": [H100]}]
LIMITS = Limits(ripens_s=10.0, patience_s=20.0, confirm_every_s=30.0, disruptions_per_day=9)
PARAMS = (("shutdown_first", 0.0), ("boot_deadline", 60.0))
CYCLE = Playbook("matrix", "", LIMITS, (Rung("power-cycle-vm", settle_s=0.0, params=PARAMS),))
ASKING = Playbook(
    "matrix", "", LIMITS, (Rung("power-cycle-vm", settle_s=0.0, params=(("shutdown_first", 60.0), PARAMS[1])),)
)
BOUND_S = 7200.0  # deadlines of this VM's acts, three tries of what is owed, and the looks
STOPPED = call("vm", vmid=174, set={"status": "stopped"})


class Inside:
    """The guest as SSH sees it: up while its VM runs, well once that was started anew."""

    def __init__(self, server: Row, boots: list[int]) -> None:
        self._server = server
        self._sick = SimulatedMachine(SICK, server.fast)  # type: ignore[arg-type]
        self._well = SimulatedMachine(FAULTS["idle"], server.fast)  # type: ignore[arg-type]
        self.baseline = self._sick.look().baseline
        self._boots = boots

    @property
    def _machine(self) -> SimulatedMachine | None:
        vm = self._server.vm
        if vm is None or vm["status"] != "running" or vm["qmpstatus"] != "running":
            return None
        if vm["pid"] not in self._boots:
            self._boots.append(vm["pid"])
        machine = self._well if len(self._boots) > 1 else self._sick
        machine.vm.boot, machine.vm.booted_at = len(self._boots), self._server.fast.now() - 600.0
        return machine

    def look(self, skip: Iterable[str] = (), *, deadline: float = 60.0) -> Guest | Mute:
        machine = self._machine
        return machine.look().guest if machine is not None else Mute(Failure.NO_ROUTE, "no route to host")

    def perform(self, action: Action) -> Outcome:
        machine = self._machine
        return machine.perform(action) if machine is not None else Outcome(False, "not reached", changed=False)


class Person:
    """Says yes to everything, and asks the run to stop once an act of the given kind ended."""

    def __init__(self, server: Row, stops_after: type[Action] | None) -> None:
        self._server, self._stops_after = server, stops_after

    def ask(self, *_: Any) -> GateAnswer:
        return GateAnswer("yes", "the row")

    def pending(self) -> str:
        acts = {e.n: e.action for e in self._server.journal.entries() if isinstance(e, Acting)}
        ended = [acts[e.n] for e in self._server.journal.entries() if isinstance(e, Acted)]
        return "SIGINT" if any(type(a) is self._stops_after for a in ended) else ""

    def entry(self, entry: Any) -> None: ...
    def asking(self, asking: bool) -> None: ...


@dataclass(frozen=True)
class Case:
    """`left`: the VM's status in the end, None: it is gone. `next`: in the command for a person, `why`: in the end."""

    name: str
    end: EndKind
    left: str | None = "running"
    sent: tuple[str, ...] = ("stop", "start")
    why: str = ""
    next: str = ""
    faults: tuple[dict[str, Any], ...] = ()
    before: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    after: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    vm: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    world: tuple[Call, ...] = ()
    later: tuple[Call, ...] = ()  # once the boot is awaited
    stops_after: type[Action] | None = None
    without: tuple[str, ...] = ()  # privileges that the recipe has
    playbook: Playbook = CYCLE


def at(verb: str, kind: str = "http", **more: Any) -> dict[str, Any]:
    return {"kind": kind, "action": verb, "vmid": 174, **more}


def stop(*calls: Call) -> dict[str, tuple[Call, ...]]:
    return {"stop": calls}


def start(*calls: Call) -> dict[str, tuple[Call, ...]]:
    return {"start": calls}


R, N = EndKind.RECOVERED, EndKind.NEEDS_HUMAN
START = "qm start 174"
THREE = ("stop", "start", "start", "start", "start")  # the line's own start, and three tries to pay what is owed
OWED = {"end": N, "left": "stopped", "next": START}
GONE_BDF = call("device", node="pve1", bdf=H100["bdf"], set={"gone": True})
CASES = [
    Case("nothing", R),
    Case("shutdown-obeyed", R, sent=("shutdown", "start"), playbook=ASKING),
    Case("shutdown-not-obeyed", R, sent=("shutdown", "stop", "start"), vm={"obeys_shutdown": False}, playbook=ASKING),
    # answers that are lost
    *[Case(f"{verb}-{name}-after", R, faults=(at(verb, kind, when="after", **more),))
      for verb in ("stop", "start")
      for name, kind, more in (("596", "http", {}), ("cut", "cut", {}), ("page", "page", {}))],
    Case("stop-596-before", EndKind.EXHAUSTED, sent=("stop",), faults=(at("stop"),)),
    Case("start-596-before", R, sent=("stop", "start", "start"), faults=(at("start"),)),
    Case("every-POST-cut-after", R, faults=(at("stop", "cut", when="after"), at("start", "cut", when="after"))),
    Case("every-third-GET-596", R,
         faults=tuple({"kind": "http", "method": "GET", "path": "/nodes/*", "skip": n} for n in range(3, 60, 3))),
    # refused
    Case("stop-400", EndKind.EXHAUSTED, sent=("stop",), faults=(at("stop", status=400, message="Parameter"),)),
    Case("start-400-once", R, sent=("stop", "start", "start"), faults=(at("start", status=400, message="Parameter"),)),
    Case("start-500-for-ever", sent=THREE, why="could not be started in 3 tries",
         faults=(at("start", status=500, message="got no worker upid", times=None),), **OWED),
    # tasks
    Case("stop-killed", EndKind.EXHAUSTED, sent=("stop",), faults=(at("stop", "killed"),)),
    Case("stop-ok-and-runs-on", EndKind.EXHAUSTED, sent=("stop",), vm={"stop_how": "still-runs"}),
    Case("stop-warnings", R, faults=(at("stop", "warnings", count=3),)),
    Case("stop-sigkilled", R, vm={"stop_how": "sigkill"}),
    Case("stop-leaves-qemu", sent=("stop", "start", "start", "start"), vm={"stop_how": "zombie"}, why="leftover-qemu",
         **OWED),
    Case("start-killed-once", R, sent=("stop", "start", "start"), faults=(at("start", "killed"),)),
    Case("start-timeout-once", R, sent=("stop", "start", "start"), faults=(at("start", "kvm-timeout"),)),
    Case("start-timeout-and-up", R, faults=(at("start", "kvm-timeout", comes_up=True),)),
    Case("start-reset-warning", R, faults=(at("start", "reset-warning"),)),
    Case("start-does-nothing-once", R, sent=("stop", "start", "start"), faults=(at("start", "nothing"),)),
    Case("flock-at-both", R, sent=("stop", "stop", "start", "start"),
         faults=(at("stop", "flock"), at("start", "flock"))),
    Case("device-gone", sent=("stop", "start"), why="would end the same way: the start failed: no-such-device",
         after=stop(GONE_BDF), **OWED),
    # the cluster
    Case("quorum-lost", sent=THREE, why="quorum", after=stop(call("quorum", value=False)), **OWED),
    Case("quorum-lost-and-back", R, sent=("stop", "start", "start"), after=stop(call("quorum", value=False)) |
         start(call("quorum", value=True))),
    Case("migrated-between", R, after=stop(call("vm", vmid=174, set={"node": "pve2"})), config={"nodes": TWO_NODES}),
    Case("ha-elsewhere", R, vm={"ha": "started", "ha_node": "pve2"}, config={"nodes": TWO_NODES}),
    Case("ha-gives-up", sent=("stop", "start", "start"), why="ha-error", vm={"ha": "started"},
         faults=(at("start", "kvm-timeout"),), **OWED),
    Case("node-offline-between", sent=("stop",),
         after=stop(call("node", name="pve1", set={"online": False})), **OWED),
    Case("deleted-between", N, None, ("stop",), next=START, after=stop(call("destroy", vmid=174))),
    # rights
    Case("no-power", EndKind.EXHAUSTED, sent=("stop",), world=(call("deny", priv="VM.PowerMgmt"),)),
    *[Case(f"no-{lacks}", EndKind.BLOCKED, sent=(), why=f"({guard})", without=(lacks,))
      for lacks, guard in (("Sys.Audit on /", "quorum"), ("Sys.Audit on /nodes/pve1", "tasks"),
                           ("Datastore.Audit on /storage/local-lvm", "storage"))],
    Case("no-VM.Audit", EndKind.EXHAUSTED, sent=(), next="gpu-recover doctor", world=(call("deny", priv="VM.Audit"),)),
    Case("power-lost-between", sent=THREE, why="VM.PowerMgmt", after=stop(call("deny", priv="VM.PowerMgmt")), **OWED),
    Case("audit-lost-between", sent=("stop",), after=stop(call("deny", priv="VM.Audit")), **OWED),
    Case("token-expired-between", sent=("stop",), after=stop(call("token", revoke=True)), **OWED),
    Case("api-away-between", sent=("stop",), after=stop(call("listener", index=0, up=False)), **OWED),
    # others
    Case("locked-between", why="locked", before=start(call("vm", vmid=174, set={"lock": "backup"})), **OWED),
    Case("others-work-between", sent=("stop",), why="vzdump by kim@pam",
         after=stop(call("task", type="vzdump", vmid=174, user="kim@pam", status="running")), **OWED),
    Case("others-were-faster-up", R, before=start(call("vm", vmid=174, set={"status": "running"}))),
    Case("others-stop-it-after", N, "stopped", why="stopped",
         later=(STOPPED, call("task", type="qmstop", vmid=174, user="kim@pam", status="OK"))),
    # people
    Case("interrupted-between", EndKind.INTERRUPTED, stops_after=StopVm),
    Case("interrupted-after-the-start", EndKind.INTERRUPTED, stops_after=StartVm),
]  # fmt: skip


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Callable[..., Row]]:
    with ExitStack() as stack:
        yield lambda *vms, **config: stack.enter_context(row(tmp_path, *vms, second=0.0015, **config))


def climb(server: Row, case: Case, boots: list[int], history: History | None = None) -> Closed:
    """One run, as wiring puts it together, with the row's own client. `boots`: the pids of the VM's QEMUs so far."""
    inside, person = Inside(server, boots), Person(server, case.stops_after)
    nobody: Any = Nobody()
    target = Target("node-174", "192.0.2.1", cluster="pve", vmid=174)
    looking = server.client(Client)
    observer = CombinedObserver(target, server.fast, inside, lambda: look(looking, "pve", 174, 60.0), inside.baseline)
    left = list(case.later)

    def forget() -> None:
        while left:
            op, arguments = left.pop(0)
            server.call(op, **arguments)

    boot = BootWatch(lambda s: inside.look(deadline=s), forget, clock=server.fast.passed, sleep=server.fast.sleep)
    hands = CombinedActuator(inside, server.hands(server.meddling(), boot))
    world = World(observer, hands, person, server.fast, server.journal, NoEvidence(), nobody, person)
    context = Context(run="m", approved=Scope.VM)
    return Run(world, case.playbook, context, history).run(server.opened())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_whole_run(lab: Callable[..., Row], case: Case) -> None:
    server = lab(
        {**NODE, **case.vm}, grants=grants(*case.without), **{"nodes": [{"name": "pve1", "pci": [H100]}], **case.config}
    )
    for fault in case.faults:
        server.inject(**fault)
    for op, arguments in case.world:
        server.call(op, **arguments)
    server.meddled = Meddled(case.before, case.after)
    began = server.fast.now()
    closed = climb(server, case, [])
    said = (closed.end, server.sent(), [e for e in server.journal.entries() if isinstance(e, Acted)])
    assert closed.end.kind is case.end, said
    assert case.why in closed.end.why and case.next in closed.end.next, said
    assert tuple(server.sent()) == case.sent, said
    vm = server.vm
    assert (vm and vm["status"]) == case.left, said
    assert server.fast.now() - began < BOUND_S, said
    server.check()
    named(server, closed)


def named(server: Row, closed: Closed) -> None:
    """A VM that we stopped runs again, or the end names it with the command, and the next run inherits the debt."""
    vm = server.vm
    owes = [key for d in fold(server.journal.entries()).duties if (key := d.duty.key).startswith("vm:")]
    if vm is not None and vm["status"] == "running":
        return
    if not owes:  # it was started again, and then somebody else stopped it
        assert "(174 on pve1) is stopped" in closed.end.why, closed
        return
    assert START in closed.end.next and "vm:pve/174" in closed.carried, (closed, owes)


@pytest.mark.parametrize("name", ["token-expired-between", "api-away-between", "quorum-lost", "audit-lost-between"])
def test_what_one_run_could_not_start_the_next_one_does(lab: Callable[..., Row], name: str) -> None:
    case = next(c for c in CASES if c.name == name)
    server = lab(NODE, grants=grants(), nodes=[{"name": "pve1", "pci": [H100]}])
    server.meddled = Meddled({}, case.after)
    boots: list[int] = []
    first = climb(server, case, boots)
    assert START in first.end.next
    for op, arguments in (call("token", revoke=False), call("quorum", value=True), call("listener", index=0, up=True),
                          call("allow", priv="VM.Audit")):  # fmt: skip
        server.call(op, **arguments)
    server.meddled = Meddled()
    second = climb(server, case, boots, fold(server.journal.entries()))
    assert second.end.kind is EndKind.RECOVERED and not second.carried, second
    vm = server.vm
    assert vm is not None and vm["status"] == "running" and vm["starts"] == 1
    server.check()
