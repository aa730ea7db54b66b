"""The hazards of the rungs inside the guest: what is stopped there comes back or is named, also after a kill.

Seen to catch: the duty of an unloaded driver, or of a suspended autostart, left out of the undo table; a fabric manager
started after a reset that failed; a script ended whose group was not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recover.core.decide import decide
from recover.core.fold import fold
from recover.core.history import History
from recover.edge.simulated import FAULTS, Fault, SimulatedClock, SimulatedMachine
from recover.edge.simulated.inside import FABRIC, SCRIPT_PID
from recover.edge.simulated.state import HELD_MIB
from recover.model.act import (
    Act,
    Action,
    EndZombieParent,
    LoadDriver,
    Outcome,
    RestoreAutostart,
    Signal,
    StartService,
    StopService,
    SuspendAutostart,
    UnloadDriver,
)
from recover.model.guest import Service
from recover.model.ladder import Playbook
from recover.model.process import ProcessId
from recover.model.record import Began, Decision, Saw, Try
from recover.model.verdict import Scope
from tests.core.test_hazards import (
    debts_are_paid,
    ends,
    height_never_falls,
    journal_reproduces,
    limits_hold,
    no_try_while_ripening,
    nothing_twice_after_unclear,
    recovered_means_cured,
)
from tests.core.world import FULL, CutJournal, Played, YesGate, cut_and_resume, play

QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
SUSPENDING = replace(
    FULL,
    rungs=tuple(
        replace(r, params=(("suspend_autostart", True),)) if r.step in ("reboot-guest", "power-cycle-vm") else r
        for r in FULL.rungs
    ),
)
REAPING = replace(
    FULL,
    rungs=tuple(
        replace(r, params=(("end_zombie_parents", True),)) if r.step == "end-workers" else r for r in FULL.rungs
    ),
)
inside = st.builds(
    Fault,
    name=st.just("drawn"),
    about=st.just(""),
    workers=st.sampled_from(["dead", "orphaned", "none", "none"]),
    unkillable=st.booleans(),
    ram=st.sampled_from([0, 318 * 1024]),
    ram_cure=st.sampled_from([Scope.GUEST, Scope.VM]),
    supervised=st.booleans(),
    reboot_hangs=st.booleans(),
    new_host_key=st.booleans(),
    inhibitor=st.sampled_from(["", "", "apt"]),
    leftovers=st.sampled_from([0, 64 * 1024]),
    leftovers_open=st.booleans(),
    ghost=st.booleans(),
    ghost_cure=st.sampled_from([Scope.GPU, Scope.GUEST, Scope.VM]),
    driver_fails=st.booleans(),
    driver_cure=st.sampled_from([Scope.DRIVER, Scope.GUEST, Scope.VM]),
    unload_stuck=st.booleans(),
    mps=st.booleans(),
    criu=st.booleans(),
    respawns=st.booleans(),
    kept_dead=st.booleans(),
    fabric=st.booleans(),
    reset_fails=st.sampled_from([0, 0, 1, 2]),
    vram=st.sampled_from([0, 0, HELD_MIB]),
    vram_cure=st.sampled_from([Scope.GPU, Scope.GUEST, Scope.VM]),
).map(lambda fault: replace(fault, vram=0) if fault.supervised else fault)  # a working server's GPUs hide what leaks
PROMISES = (
    ends, height_never_falls, no_try_while_ripening, debts_are_paid, nothing_twice_after_unclear, recovered_means_cured,
)  # fmt: skip


def what_was_stopped_is_back_or_named(p: Played) -> None:
    """Services, autostart, the driver: as they were, or owed by name at the end."""
    assert p.closed is not None
    machine, open_ = p.machine, {d.duty.key for d in fold(p.entries).duties} | set(p.closed.carried)
    done = [type(a) for a in machine.acts]
    served = any(isinstance(a, StopService) and a.name == "sglang.service" for a in machine.acts)
    if served and machine.service == "inactive":
        named = p.closed.service not in (None, "healthy")
        assert named or any(key.startswith("service:") for key in open_), "a stopped service is forgotten"
    if SuspendAutostart in done and machine.autostart != "enabled":
        assert any(key.startswith("autostart:") for key in open_), "an autostart stays suspended"
    if UnloadDriver in done and not machine.loaded:
        assert "driver" in open_, "the driver stays out"
    assert not machine.fabric_on_failed, "a fabric manager was started onto GPUs whose reset had failed"
    if machine.fabric == "inactive":
        assert any(FABRIC in key for key in open_), "the fabric manager is forgotten"


def nobody_else_is_signalled(p: Played) -> None:
    """Only members of groups that the last look before found dead or hung, and never a healthy server."""
    assert not p.machine.touched_healthy
    sick: set[str] = set()
    for entry in p.entries:
        if isinstance(entry, Saw):
            sick = {key for key, health, _ in entry.vitals.groups if health in ("dead", "hung")}
        if isinstance(entry, Began) and entry.step == "end-workers":
            assert sick, "ended without a sick group"
    for act in p.machine.acts:
        if isinstance(act, Signal):
            loop = {SCRIPT_PID} if p.machine.fault.respawns else set()  # a script under which it came back ends with it
            assert all(m.pid > 4000 or m.pid in loop for m in act.members), act  # the ranks and their main
        if isinstance(act, EndZombieParent):
            assert act.parent.pid == SCRIPT_PID and "end_zombie_parents" in str(p.playbook.rungs), act


@settings(QUICK, max_examples=40)
@given(inside, st.sampled_from([FULL, SUSPENDING, REAPING]))
def test_every_promise_holds_with_the_rungs_inside_the_guest(fault: Fault, playbook: Playbook) -> None:
    played = play(fault, playbook=playbook)
    for prop in (*PROMISES, what_was_stopped_is_back_or_named, nobody_else_is_signalled):
        prop(played)
    limits_hold(played, playbook)
    journal_reproduces(played, playbook)


@settings(QUICK, max_examples=60)
@given(inside, st.integers(1, 110), st.booleans(), st.sampled_from([FULL, SUSPENDING, REAPING]))
def test_killed_at_any_entry_all_of_it_holds(fault: Fault, cut: int, written: bool, playbook: Playbook) -> None:
    first, second = cut_and_resume(fault, cut, written, playbook=playbook)
    if first.closed is not None:
        return
    for prop in (*PROMISES, what_was_stopped_is_back_or_named, nobody_else_is_signalled):
        prop(second)


@QUICK
@given(inside, st.integers(0, 3))
def test_a_limit_to_the_gpu_restarts_nothing(fault: Fault, today: int) -> None:
    playbook = replace(FULL, limits=replace(FULL.limits, max_scope=Scope.GPU))
    played = play(fault, playbook=playbook, disruptions_today=today, gate=YesGate(upto=Scope.GPU))
    assert played.machine.vm.boot == 1 and played.machine.loaded
    limits_hold(played, playbook, today)


@given(st.none() | st.integers(1, 60), st.booleans())
@QUICK
def test_autostart_is_suspended_for_the_reboot_and_back_at_the_end(cut: int | None, written: bool) -> None:
    machine = SimulatedMachine(FAULTS["ram-held-until-reboot"], SimulatedClock())
    machine.service = "active"
    played = play(machine.fault, playbook=SUSPENDING, machine=machine, journal=CutJournal(cut=cut, written=written))
    if played.closed is None:
        machine.clock.sleep(20.0)
        played = play(
            machine.fault, playbook=SUSPENDING, machine=machine, journal=CutJournal(lines=played.journal.lines)
        )
    what_was_stopped_is_back_or_named(played)
    kinds = [type(a) for a in machine.acts]
    assert cut is not None or {SuspendAutostart, RestoreAutostart} <= set(kinds)
    assert machine.autostart == "enabled"


@given(st.none() | st.integers(1, 60), st.booleans())
@QUICK
def test_autostart_is_suspended_for_the_power_cycle_and_back_at_the_end(cut: int | None, written: bool) -> None:
    playbook = replace(SUSPENDING, rungs=tuple(r for r in SUSPENDING.rungs if r.step != "reboot-guest"))
    fault = replace(FAULTS["vram-held-until-power-cycle"], workers="dead")
    played = play(fault, playbook=playbook, journal=CutJournal(cut=cut, written=written))
    if played.closed is None:
        played.machine.clock.sleep(20.0)
        again = CutJournal(lines=played.journal.lines)
        played = play(fault, playbook=playbook, machine=played.machine, journal=again)
    what_was_stopped_is_back_or_named(played)
    assert played.machine.vm.boot == 2 and played.machine.autostart == "enabled"
    assert cut is not None or SuspendAutostart in {type(a) for a in played.machine.acts}


@QUICK
@given(st.none() | st.integers(1, 45), st.booleans())
def test_what_was_unloaded_is_loaded_by_this_run_or_the_next(cut: int | None, written: bool) -> None:
    """Nothing above may do it: what a restart would load anyway is no proof that the debt is kept."""
    playbook = replace(FULL, limits=replace(FULL.limits, max_scope=Scope.DRIVER))
    fault = FAULTS["driver-fails"]
    played = play(fault, playbook=playbook, journal=CutJournal(cut=cut, written=written))
    if played.closed is None:
        again = CutJournal(lines=played.journal.lines)
        played = play(fault, playbook=playbook, machine=played.machine, journal=again)
    kinds = [type(a) for a in played.machine.acts]
    assert played.machine.loaded and (UnloadDriver not in kinds or LoadDriver in kinds)


# the planted bugs


class Lying(SimulatedMachine):
    """A guest whose agent says that it put something back, and did not."""

    lies: type[Action] = LoadDriver

    def _perform(self, action: Action) -> Outcome:
        return Outcome(True, "sure") if isinstance(action, self.lies) else super()._perform(action)


class LyingOfAutostart(Lying):
    lies = RestoreAutostart


class Rosy(SimulatedMachine):
    """A look that calls every service active, over a server that somebody else started in its place.

    The word alone is found out by now: what came back by itself has to serve, too.
    """

    def _services(self) -> tuple[Service, ...]:
        return tuple(replace(service, state="active") for service in super()._services())

    def _service(self, action: StopService | StartService) -> Outcome:
        done = super()._service(action)
        if isinstance(action, StopService) and not self.ranks:
            self._launch("healthy")
        return done


def _kills_init(playbook: Playbook, history: History, now: float) -> Decision:
    decision = decide(playbook, history, now)
    if not isinstance(decision, Try):
        return decision
    kill = Act(Signal("sglang", (ProcessId("boot-1", 1, 1),), "KILL"))
    return replace(decision, line=replace(decision.line, acts=(kill,)))


TO_DRIVER = replace(FULL, limits=replace(FULL.limits, max_scope=Scope.DRIVER))
PLANTED = {
    "the driver is not loaded again": (what_was_stopped_is_back_or_named, FAULTS["driver-fails"], Lying, TO_DRIVER),
    "autostart is not restored": (
        what_was_stopped_is_back_or_named,
        FAULTS["ram-held-until-reboot"],
        LyingOfAutostart,
        SUSPENDING,
    ),
    "a service that was stopped is called active": (
        what_was_stopped_is_back_or_named,
        FAULTS["supervised"],
        Rosy,
        FULL,
    ),
    "another process is signalled": (nobody_else_is_signalled, FAULTS["orphaned"], _kills_init, FULL),
}


@pytest.mark.parametrize("planted", [True, False])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_caught(name: str, planted: bool) -> None:
    prop, fault, bug, playbook = PLANTED[name]
    made = bug if planted and isinstance(bug, type) else SimulatedMachine
    machine = made(fault, SimulatedClock())
    if fault.name == "ram-held-until-reboot":
        machine.service = "active"
    how = bug if planted and not isinstance(bug, type) else decide
    played = play(fault, machine=machine, playbook=playbook, decide=how)
    if planted:
        with pytest.raises(AssertionError):
            prop(played)
    else:
        prop(played)
