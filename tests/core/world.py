"""A whole run against the simulated machine, with ways to cut it: shared by the hazard tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from recover.core.decide import decide
from recover.core.fold import fold
from recover.core.options import Context
from recover.edge.evidence import NoEvidence
from recover.edge.simulated import Fault, SimulatedClock, SimulatedMachine, simulate
from recover.engine import Decide, Run, World
from recover.model.act import Action, Blast, Outcome
from recover.model.ladder import Limits, Playbook, Rung
from recover.model.record import Closed, Entry, Opened, Try
from recover.model.verdict import Diagnosis, Scope
from recover.ports import GateAnswer, Interrupts

LIMITS = Limits(max_scope=Scope.VM, patience_s=60.0, confirm=2, confirm_every_s=5.0, disruptions_per_day=3)
PLAYBOOK = Playbook(
    name="hung-server",
    about="for tests",
    limits=LIMITS,
    rungs=(
        Rung("stop-service"),
        Rung("end-workers", attempts=2),
        Rung("reset-gpu"),
        Rung("power-cycle-vm"),
    ),
)
FULL = replace(
    PLAYBOOK,
    name="every-rung",
    rungs=(
        Rung("stop-service"),
        Rung("end-workers", attempts=2),
        Rung("release-leftovers"),
        Rung("wake-gpu"),
        Rung("reset-gpu"),
        Rung("reload-driver"),
        Rung("reboot-guest"),
        Rung("power-cycle-vm"),
    ),
)
HOST = replace(
    PLAYBOOK,
    name="lost-gpu",
    limits=replace(LIMITS, max_scope=Scope.HOST_DEVICE),
    rungs=(*PLAYBOOK.rungs, Rung("power-cycle-reset-pci")),
)
CONTAINER = replace(
    PLAYBOOK,
    name="container",
    limits=replace(LIMITS, max_scope=Scope.HOST_DEVICE),
    rungs=(
        Rung("stop-service"),
        Rung("end-workers", attempts=2),
        Rung("restart-container"),
        Rung("reset-host-gpu"),
    ),
)
MOST_ENTRIES = 4000


class Killed(BaseException):
    """kill -9: nothing of ours runs any more."""


@dataclass
class CutJournal:
    """Dies at entry number `cut`: before it is written (`written` False) or right after."""

    cut: int | None = None
    written: bool = True
    lines: list[Entry] = field(default_factory=list)
    count: int = 0

    def append(self, entry: Entry) -> None:
        self.count += 1
        if len(self.lines) > MOST_ENTRIES:
            raise AssertionError("the run does not end")
        if self.cut is not None and self.count == self.cut and not self.written:
            raise Killed
        self.lines.append(entry)
        if self.cut is not None and self.count == self.cut:
            raise Killed

    def entries(self) -> list[Entry]:
        return list(self.lines)


@dataclass
class YesGate:
    upto: Scope = Scope.HOST_DEVICE
    asked: int = 0

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        self.asked += 1
        if attempt.scope > self.upto:
            return GateAnswer("no", "test", "not consented", "--approve")
        return GateAnswer("yes", "test")


class Silence:
    def entry(self, entry: Entry) -> None: ...
    def asking(self, asking: bool) -> None: ...


@dataclass
class Asked:
    """Interrupts from the `after`-th question on."""

    after: int | None = None
    count: int = 0

    def pending(self) -> str:
        self.count += 1
        return "SIGINT" if self.after is not None and self.count >= self.after else ""


@dataclass
class Played:
    machine: SimulatedMachine
    journal: CutJournal
    closed: Closed | None
    playbook: Playbook = PLAYBOOK

    @property
    def entries(self) -> list[Entry]:
        return self.journal.lines

    @property
    def end(self) -> str:
        assert self.closed is not None
        return self.closed.end.kind.value


CONTEXT = Context(run="test-run", approved=Scope.HOST_DEVICE)


def play(
    fault: Fault,
    *,
    playbook: Playbook = PLAYBOOK,
    context: Context = CONTEXT,
    decide: Decide = decide,
    machine: SimulatedMachine | None = None,
    journal: CutJournal | None = None,
    gate: YesGate | None = None,
    interrupts: Interrupts | None = None,
    disruptions_today: int = 0,
    deadline_s: float = 0.0,
    baseline: bool = True,
) -> Played:
    """One run to its end (or its cut). With a journal that has entries: the run that goes on with it."""
    clock = machine.clock if machine is not None else SimulatedClock()
    machine = machine or simulate(fault, clock, baseline=baseline)
    journal = journal or CutJournal()
    history = fold(journal.lines)
    world = World(
        observer=machine,
        actuator=machine,
        gate=gate or YesGate(),
        clock=clock,
        journal=journal,
        evidence=NoEvidence(),
        view=Silence(),
        interrupts=interrupts or Asked(),
    )
    opened = Opened(
        at=clock.now(),
        run="test-run",
        target="node-174",
        playbook=playbook.name,
        playbook_digest="",
        who="test",
        host="here",
        pid=1,
        deadline_s=deadline_s,
        disruptions_today=disruptions_today,
        resumed=bool(journal.lines),
    )
    closed: Closed | None = None
    before = len(journal.lines)
    with contextlib.suppress(Killed):
        closed = Run(world, playbook, context, history, decide).run(opened)
    if closed is None:  # killed right after its last entry: it is over, and a later run begins a climb of its own
        closed = next((entry for entry in journal.lines[before:] if isinstance(entry, Closed)), None)
    return Played(machine, journal, closed, playbook)


def cut_and_resume(fault: Fault, cut: int, written: bool, **kw: object) -> tuple[Played, Played]:
    """A run that dies at entry `cut`, and the next one over the same machine and journal."""
    first = play(fault, journal=CutJournal(cut=cut, written=written), **kw)  # type: ignore[arg-type]
    first.machine.clock.sleep(20.0)
    again = CutJournal(lines=first.journal.lines)
    second = play(fault, machine=first.machine, journal=again, **kw)  # type: ignore[arg-type]
    return first, second


def with_limits(**changes: object) -> Playbook:
    return replace(PLAYBOOK, limits=replace(LIMITS, **changes))  # type: ignore[arg-type]


Perform = Callable[[Action], Outcome]
