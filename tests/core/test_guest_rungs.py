"""Every rung inside the guest: it works, is refused, hangs, half works, is cut off, interrupted, or killed in it.

Struck at each act of its line in turn, alone in its ladder (nothing above may repair it) and in the whole ladder. The
table is complete: a rung that is not in it fails the first test. Seen to catch: the duty of a monitor, of the fabric
manager, of persistence mode, of the driver or of an autostart left out of the undo table; an act that is unclear taken
for done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import pytest

from recover.core.fold import fold
from recover.edge.simulated import FAULTS, Fault, SimulatedClock, SimulatedMachine
from recover.edge.simulated.inside import FABRIC
from recover.model.act import (
    Action,
    ClearMarker,
    Due,
    EndZombieParent,
    LoadDriver,
    Outcome,
    PlaceMarker,
    RestoreAutostart,
    Signal,
    StartService,
    StopService,
    SuspendAutostart,
    UnloadDriver,
)
from recover.model.contact import Failure
from recover.model.guest import Guest, Mute
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Playbook, Rung, Value
from recover.model.record import Acted, Acting, Began, Entry, Opened, Saw
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Scope
from recover.steps.bounds import worst_case_s
from recover.steps.table import ALL_STEPS
from tests.core.test_hazards import debts_are_paid, ends, recovered_means_cured
from tests.core.test_hazards_guest import nobody_else_is_signalled, what_was_stopped_is_back_or_named
from tests.core.world import FULL, CutJournal, Killed, Played, play

AWAY_S = 45.0  # so long a connection that was lost is not had again
HANGS_S = 3600.0


@dataclass(frozen=True)
class Case:
    """A guest on which the rung is what helps."""

    fault: Fault
    params: tuple[tuple[str, Value], ...] = ()
    gpus: int = 2
    serves: bool = False  # what serves here is to be held back at a boot


CASES = {
    "stop-service": Case(FAULTS["supervised"]),
    "end-workers": Case(replace(FAULTS["kept-dead"]), (("end_zombie_parents", True),)),
    "release-leftovers": Case(FAULTS["leftovers"]),
    "wake-gpu": Case(FAULTS["ghost-utilisation"]),
    "reset-gpu": Case(replace(FAULTS["vram-held"], fabric=True)),
    "reload-driver": Case(replace(FAULTS["driver-fails"], fabric=True)),
    "reboot-guest": Case(FAULTS["ram-held-until-reboot"], (("suspend_autostart", True),), serves=True),
}
LOST = (Failure.DIED, "the connection ended")


def test_the_table_has_every_rung_inside_the_guest() -> None:
    inside = {s.name for s in ALL_STEPS.values() if s.via == {Channel.GUEST} and GuestKind.VM in s.kinds}
    assert set(CASES) == inside


class Struck(SimulatedMachine):
    """The machine of a case; `strike` happens to the `at`-th act of a line, counted over the run; duties are let be."""

    def __init__(self, case: Case, strike: str = "", at: int = -1) -> None:
        super().__init__(case.fault, SimulatedClock(), gpus=case.gpus)
        self.strike, self.at = strike, at
        self.line: list[str] = []
        self.back_at = 0.0
        self.before = self.mute
        if case.serves:
            self.service = "active"

    def look(self) -> Snapshot:
        self._maybe_back()
        return super().look()

    def _guest(self) -> Guest | Mute:
        if self.clock.now() < self.back_at:
            return Mute(*LOST)
        return super()._guest()

    def _maybe_back(self) -> None:
        if self.back_at and self.clock.now() >= self.back_at:
            self.back_at = 0.0

    def perform(self, action: Action) -> Outcome:
        self._maybe_back()
        if isinstance(action, PlaceMarker | ClearMarker) or not self.in_line:
            return super().perform(action)
        self.line.append(type(action).__name__)
        return self._struck(action) if len(self.line) - 1 == self.at else super().perform(action)

    in_line = True
    interrupted = False

    def pending(self) -> str:
        """As a run's interrupts: from the act on in which somebody pressed Ctrl-C."""
        return "SIGINT" if self.interrupted else ""

    def _struck(self, action: Action) -> Outcome:
        match self.strike:
            case "refused":
                return Outcome(False, "refused", changed=False)
            case "hangs":
                self.clock.sleep(worst_case_s(action))
                return Outcome(False, "it did not come back", clear=False)
            case "half":
                super().perform(action)
                return Outcome(False, "done in part")
            case "lost-before":
                self.back_at = self.clock.now() + AWAY_S
                return Outcome(False, "not reached", changed=False)
            case "lost-during":
                self.back_at = self.clock.now() + AWAY_S
                return Outcome(False, "the connection ended", clear=False)
            case "lost-after":
                super().perform(action)
                self.back_at = self.clock.now() + AWAY_S
                return Outcome(False, "the connection ended", clear=False)
            case "ctrl-c":
                self.interrupted = True
                return super().perform(action)
            case "killed-before":
                raise Killed
            case "killed-after":
                super().perform(action)
                raise Killed
        raise AssertionError(self.strike)


STRIKES = (
    "refused", "hangs", "half", "lost-before", "lost-during", "lost-after", "killed-before", "killed-after", "ctrl-c",
)  # fmt: skip


def alone(name: str, case: Case) -> Playbook:
    return replace(FULL, name="alone", rungs=(Rung(name, params=case.params),))


def whole(name: str, case: Case) -> Playbook:
    return replace(FULL, rungs=tuple(replace(r, params=case.params) if r.step == name else r for r in FULL.rungs))


LADDERS: dict[str, Callable[[str, Case], Playbook]] = {"alone": alone, "whole-ladder": whole}


class Journal(CutJournal):
    """Tells the machine whether an act belongs to a rung's line: what is owed is paid without a strike."""

    machine: Struck | None = None

    def append(self, entry: Entry) -> None:
        if isinstance(entry, Acting) and self.machine is not None:
            self.machine.in_line = not entry.restores
        super().append(entry)


def run(machine: Struck, playbook: Playbook) -> Played:
    """To its end, by a second run where the first was killed."""
    journal = Journal()
    journal.machine = machine
    played = play(machine.fault, playbook=playbook, machine=machine, journal=journal, interrupts=machine)
    if played.closed is None:
        machine.clock.sleep(20.0)
        again = Journal(lines=played.journal.lines)
        again.machine = machine
        played = play(machine.fault, playbook=playbook, machine=machine, journal=again)
    return played


@pytest.mark.parametrize("name", CASES)
def test_it_works(name: str) -> None:
    case = CASES[name]
    played = run(Struck(case), alone(name, case))
    assert played.end == "recovered", played.closed
    kept(played)
    assert not fold(played.entries).duties, "nothing is owed any more"


@pytest.mark.parametrize(
    ("ladder", "strike"),
    [
        *(("alone", s) for s in STRIKES),
        *(("whole-ladder", s) for s in ("hangs", "lost-after", "killed-after", "ctrl-c")),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_struck_at_each_act(name: str, strike: str, ladder: str) -> None:
    case = CASES[name]
    playbook = LADDERS[ladder](name, case)
    for at in count():
        machine = Struck(case, strike, at)
        played = run(machine, playbook)
        if len(machine.line) <= at:
            assert at > 0, "the rung was never tried"
            return
        assert strike != "ctrl-c" or played.end in ("interrupted", "recovered"), played.closed
        try:
            kept(played)
            tried_once_after_unclear(played)
        except AssertionError as error:
            raise AssertionError(f"{strike} at act {at} ({machine.line[at]}): {error}\n{played.closed}") from error


def kept(p: Played) -> None:
    """What holds whatever strikes: it ends, owes by name what is not back, and says nothing that is not so."""
    for prop in (ends, debts_are_paid, recovered_means_cured, what_was_stopped_is_back_or_named,
                 nobody_else_is_signalled):  # fmt: skip
        prop(p)
    assert p.closed is not None
    history, machine = fold(p.entries), p.machine
    keys = {d.duty.key for d in history.duties}
    assert keys <= set(p.closed.carried), "what is owed stands in the report"
    for i, on in enumerate(machine.persistence):
        assert on or any(k.startswith("persistence:") for k in keys), f"persistence of GPU {i} is off and forgotten"
    assert machine.fabric != "inactive" or any(FABRIC in k for k in keys), "the fabric manager is down and forgotten"
    assert machine.marker is None or any(k.startswith("marker:") for k in keys), "our marker stands and is forgotten"
    at_once = {d.duty.key for d in history.duties if d.duty.due is Due.AT_ONCE and d.held is None}
    assert not at_once or isinstance(machine._guest(), Mute) or p.end == "needs-human", at_once


def tried_once_after_unclear(p: Played) -> None:
    """An act whose end was not heard is not sent again before a look; waits and other signals may follow."""
    unclear: Action | None = None
    acting: dict[int, Acting] = {}
    for entry in p.entries:
        match entry:
            case Acting():
                assert entry.action != unclear or entry.restores, f"{entry.action} again without a look"
                acting[entry.n] = entry
            case Acted():
                unclear = unclear if entry.outcome.clear else acting[entry.n].action
            case Opened() | Saw() | Began():
                unclear = None
            case _:
                pass


def test_every_kind_of_act_inside_the_guest_is_struck() -> None:
    """The lines of the table hold every action of these rungs, so a new one needs a case."""
    seen: set[str] = set()
    for name, case in CASES.items():
        machine = Struck(case)
        run(machine, alone(name, case))
        seen |= set(machine.line)
    wanted = {Signal, EndZombieParent, StopService, StartService, SuspendAutostart, UnloadDriver, LoadDriver}
    assert {a.__name__ for a in wanted} <= seen, seen
    assert RestoreAutostart.__name__ not in seen, "what is owed is no part of a line"
    assert max(ALL_STEPS[name].scope for name in CASES) <= Scope.GUEST
