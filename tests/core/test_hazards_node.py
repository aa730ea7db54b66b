"""The hazards of the rungs on the node and of containers: nobody else is hit, and nothing is reset under who uses it.

Each property of this file is seen to catch a planted bug: a decision with another line than the planner's, or a
machine that does what it should refuse or says done what it did not do (PLANTED).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.decide import RULES, decide, pay_at_once
from recover.core.history import History
from recover.edge.simulated import (
    FAULTS,
    Fault,
    SimulatedClock,
    SimulatedContainer,
    SimulatedMachine,
    simulate,
)
from recover.model.act import (
    Act,
    Action,
    AwaitGone,
    OnHost,
    Outcome,
    RescanPci,
    ResetGpu,
    ResetPci,
    RestoreResetMethod,
    ShutdownVm,
    Signal,
    StartVm,
    StopVm,
)
from recover.model.hypervisor import Hypervisor
from recover.model.ladder import Playbook
from recover.model.process import ProcessId
from recover.model.reading import Known
from recover.model.record import Acted, Acting, Decision, Entry, Try, Wait
from recover.model.verdict import Scope
from tests.core.test_hazards import (
    QUICK,
    debts_are_paid,
    ends,
    height_never_falls,
    journal_reproduces,
    limits_hold,
    no_try_while_ripening,
    nothing_twice_after_unclear,
    recovered_means_cured,
)
from tests.core.world import CONTAINER, HOST, CutJournal, Played, play

GENERAL = (ends, height_never_falls, no_try_while_ripening, debts_are_paid, nothing_twice_after_unclear,
           recovered_means_cured)  # fmt: skip
ON_NODE = 100_000  # a container's process has a number above this on the node, see edge/simulated/container.py

on_the_node = st.builds(
    Fault,
    name=st.just("on-the-node"),
    about=st.just(""),
    workers=st.just("none"),
    vram=st.just(80123),
    vram_cure=st.sampled_from([Scope.VM, Scope.HOST_DEVICE, None]),
    start_fails=st.integers(0, 2),
    stop_unclear=st.integers(0, 1),
    host=st.booleans(),
    pci_cure=st.sampled_from(["flr", "bus", "rescan"]),
    pci_gives_up=st.booleans(),
    pci_hangs=st.sampled_from(["", "", "flr", "bus", "rescan"]),
    pci_holder=st.sampled_from(["", "", "python3"]),
    pci_off=st.sampled_from(["", "", "", "found", "gone"]),
)
in_a_container = st.builds(
    Fault,
    name=st.just("in-a-container"),
    about=st.just(""),
    workers=st.sampled_from(["dead", "orphaned", "dead-leader", "none"]),
    ignores_term=st.booleans(),
    release_s=st.sampled_from([0.0, 30.0]),
    vram=st.sampled_from([0, 80123]),
    vram_cure=st.sampled_from([Scope.GPU, None]),
    host=st.booleans(),
    container=st.just(True),
    container_lost=st.booleans(),
    neighbour=st.sampled_from(["", "", "ct-201"]),
    stop_lies=st.sampled_from([0, 0, 1]),
    stop_unclear=st.integers(0, 1),
)


def whole_or_resumed(fault: Fault, cut: int, written: bool, playbook: Playbook) -> Played:
    """The run, and where it is killed before its end the two together."""
    first = play(fault, journal=CutJournal(cut=cut, written=written), playbook=playbook)
    if first.closed is not None:
        return first
    first.machine.clock.sleep(20.0)
    return play(fault, machine=first.machine, journal=CutJournal(lines=first.journal.lines), playbook=playbook)


def journalled(p: Played) -> Iterable[tuple[Entry, Action | None, Outcome | None]]:
    """Each entry, with the act that it begins or ends."""
    acting: dict[int, Action] = {}
    for entry in p.entries:
        if isinstance(entry, Acting):
            acting[entry.n] = entry.action
            yield entry, entry.action, None
        elif isinstance(entry, Acted):
            yield entry, acting.pop(entry.n), entry.outcome


def never_reset_under_a_running_vm(p: Played) -> None:
    """Between a reset on the node and the start before it a stop went well."""
    stopped = False
    for _, action, outcome in journalled(p):
        if outcome is None:
            assert stopped or not isinstance(action, ResetPci), "a device of a running VM is reset"
        elif isinstance(action, StopVm | ShutdownVm | StartVm):
            stopped = outcome.ok and not isinstance(action, StartVm)


def what_was_given_up_is_left_alone(p: Played) -> None:
    lost = False
    for _, action, outcome in journalled(p):
        if isinstance(action, ResetPci) and outcome is not None:
            assert not (lost and outcome.changed), "reset again although the kernel gave it up"
            lost = lost or "giving up" in outcome.detail


def nothing_is_stopped_that_would_not_start(p: Played) -> None:
    """A device that is off the bus is found again before its VM is stopped."""
    missing = bool(p.machine.fault.pci_off)
    for _, action, outcome in journalled(p):
        if isinstance(action, RescanPci) and outcome is not None and outcome.ok:
            missing = False
        assert not (missing and isinstance(action, StopVm | ShutdownVm)), "stopped, and its device is not on the bus"


def reset_methods_are_the_kernels_again(p: Played) -> None:
    assert p.closed is not None
    owed = any(key.startswith("reset-method:") for key in p.closed.carried)
    assert owed or {*p.machine.methods} == {"default"}, "a reset method is left chosen, and nobody is told"


@settings(QUICK, max_examples=60)
@given(on_the_node, st.integers(1, 130), st.booleans())
def test_resets_on_the_node_keep_every_promise_also_when_killed(fault: Fault, cut: int, written: bool) -> None:
    played = whole_or_resumed(fault, cut, written, HOST)
    for prop in (*GENERAL, never_reset_under_a_running_vm, what_was_given_up_is_left_alone,
                 nothing_is_stopped_that_would_not_start, reset_methods_are_the_kernels_again):  # fmt: skip
        prop(played)
    limits_hold(played, HOST)
    journal_reproduces(played, HOST)


def a_neighbour_is_never_hit(p: Played) -> None:
    resets = [a for a in p.machine.acts if isinstance(a, OnHost) and isinstance(a.do, ResetGpu)]
    assert not (p.machine.fault.neighbour and resets), "a GPU that another container is given was reset"


def nobody_of_the_node_is_signalled(p: Played) -> None:
    """Through the node's shell only the container's own processes are ended, by their numbers there."""
    for act in p.machine.acts:
        if isinstance(act, OnHost) and isinstance(act.do, Signal | AwaitGone):
            assert all(m.pid > ON_NODE for m in act.do.members), f"a process of the node is signalled: {act.do.members}"


@settings(QUICK, max_examples=60)
@given(in_a_container, st.integers(1, 110), st.booleans())
def test_containers_keep_every_promise_also_when_killed(fault: Fault, cut: int, written: bool) -> None:
    played = whole_or_resumed(fault, cut, written, CONTAINER)
    for prop in (*GENERAL, a_neighbour_is_never_hit, nobody_of_the_node_is_signalled):
        prop(played)
    limits_hold(played, CONTAINER)
    journal_reproduces(played, CONTAINER)


# the planted bugs


def _in_line(change: Callable[[tuple[Act, ...]], Iterable[Act]]) -> Callable[[Playbook, History, float], Decision]:
    """Each try does other acts than its planner said."""

    def sabotaged(playbook: Playbook, history: History, now: float) -> Decision:
        decision = decide(playbook, history, now)
        if not isinstance(decision, Try):
            return decision
        return replace(decision, line=replace(decision.line, acts=tuple(change(decision.line.acts))))

    return sabotaged


def _twice(act: Act) -> tuple[Act, ...]:
    return (replace(act, must=False), act) if isinstance(act.do, StopVm | ShutdownVm) else (act,)


def _with_the_containers_numbers(act: Act) -> Act:
    do = act.do
    if not isinstance(do, OnHost) or not isinstance(do.do, Signal | AwaitGone):
        return act
    inside = tuple(ProcessId(m.boot_id, m.pid - ON_NODE, m.start) for m in do.do.members)
    return replace(act, do=replace(do, do=replace(do.do, members=inside)))


def _never_pays(playbook: Playbook, history: History, now: float) -> Decision:
    if history.last is None or history.stale:
        return Wait(0.0, "looking")
    left = (rule(playbook, history, history.last, now) for rule in RULES if rule is not pay_at_once)
    return next(d for d in left if d is not None)


class Careless(SimulatedMachine):
    """A node whose agent resets what the kernel gave up."""

    def _reset_pci(self, action: ResetPci) -> Outcome:
        self.pci_lost = False
        return super()._reset_pci(action)


class Shortsighted(SimulatedContainer):
    """A look that leaves the other containers of the node out."""

    def _hypervisor(self) -> Hypervisor:
        return replace(super()._hypervisor(), neighbours=Known(()))


class Lying(SimulatedMachine):
    """A node whose agent says that it put the reset methods back, and did not: neither after a reset nor when asked."""

    def _reset_pci(self, action: ResetPci) -> Outcome:
        outcome = super()._reset_pci(action)
        self.methods = ["bus"] * self.gpus
        return outcome

    def _perform(self, action: Action) -> Outcome:
        return Outcome(True, "sure") if isinstance(action, RestoreResetMethod) else super()._perform(action)


@dataclass(frozen=True)
class Bug:
    caught_by: Callable[[Played], None]
    fault: Fault
    decide: Callable[[Playbook, History, float], Decision] = decide
    machine: type[SimulatedMachine] | None = None
    cut_after: type[Action] | None = None  # killed once this act has ended, and gone on with


PLANTED = {
    "the stop is left out of the line": Bug(
        never_reset_under_a_running_vm,
        FAULTS["needs-bus-reset"],
        _in_line(lambda acts: (a for a in acts if not isinstance(a.do, StopVm | ShutdownVm))),
    ),
    "a device that was given up is reset on": Bug(
        what_was_given_up_is_left_alone, FAULTS["reset-gives-up"], machine=Careless
    ),
    "the device is looked for after the stop": Bug(
        nothing_is_stopped_that_would_not_start,
        FAULTS["device-off-the-bus"],
        _in_line(lambda acts: (*acts[1:3], acts[0], *acts[3:])),
    ),
    "the device is not looked for": Bug(
        nothing_is_stopped_that_would_not_start,
        FAULTS["device-off-the-bus-for-good"],
        _in_line(lambda acts: (a for a in acts if not isinstance(a.do, RescanPci))),
    ),
    "the methods are not put back": Bug(reset_methods_are_the_kernels_again, FAULTS["needs-bus-reset"], machine=Lying),
    "who else has the GPU is not looked at": Bug(
        a_neighbour_is_never_hit, FAULTS["container-neighbour"], machine=Shortsighted
    ),
    "the container's own numbers are used on the node": Bug(
        nobody_of_the_node_is_signalled,
        FAULTS["container-dead-rank"],
        _in_line(lambda acts: map(_with_the_containers_numbers, acts)),
    ),
    "an unclear stop is sent again": Bug(
        nothing_twice_after_unclear,
        FAULTS["stop-unclear"],
        _in_line(lambda acts: (a for act in acts for a in _twice(act))),
    ),
    "a container that was stopped is forgotten": Bug(
        debts_are_paid, FAULTS["container-lost-gpus"], _never_pays, cut_after=StopVm
    ),
    "a VM that was stopped for a reset is forgotten": Bug(
        debts_are_paid, FAULTS["needs-bus-reset"], _never_pays, cut_after=StopVm
    ),
}


def _played(bug: Bug, how: Callable[[Playbook, History, float], Decision]) -> Played:
    playbook = CONTAINER if bug.fault.container else HOST
    clock = SimulatedClock()
    machine = bug.machine(bug.fault, clock) if bug.machine is not None else simulate(bug.fault, clock)
    if bug.cut_after is None:
        return play(bug.fault, playbook=playbook, machine=machine, decide=how)
    whole = play(bug.fault, playbook=playbook)
    cut = next(n for n, (_, action, outcome) in _numbered(whole) if outcome and type(action) is bug.cut_after)
    first = play(bug.fault, playbook=playbook, machine=machine, journal=CutJournal(cut=cut))
    assert first.closed is None and machine.vm.status == "stopped"
    again = CutJournal(lines=first.journal.lines)
    return play(bug.fault, playbook=playbook, machine=machine, journal=again, decide=how)


def _numbered(p: Played) -> Iterable[tuple[int, tuple[Entry, Action | None, Outcome | None]]]:
    numbers = {id(entry): n for n, entry in enumerate(p.entries, 1)}
    return ((numbers[id(found[0])], found) for found in journalled(p))


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_is_caught(name: str) -> None:
    bug = PLANTED[name]
    played = _played(bug, bug.decide)
    with pytest.raises(AssertionError):
        bug.caught_by(played)


@pytest.mark.parametrize("name", PLANTED)
def test_without_the_bug_the_same_run_holds(name: str) -> None:
    """So that it is the bug that is caught, and nothing else."""
    bug = replace(PLANTED[name], machine=None)
    bug.caught_by(_played(bug, decide))
