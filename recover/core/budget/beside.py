"""Servers that start side by side on one machine: each is judged in what all the others leave of it.

Prefill and decode servers, replicas, a cache server: every one alone may fit where all of them do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recover.core.budget.model import NOT_READ, Facts, Fit, Launch, Place, Shm, Verdict
from recover.core.budget.preflight_report import Gathered
from recover.core.budget.sizes import both
from recover.model.reading import Known, Reading


@dataclass(frozen=True, slots=True)
class Rest:
    """The machine without what other servers take. `unsure`: they may take more."""

    facts: Facts
    taken: int
    unsure: bool


def rest(facts: Facts, others: Sequence[tuple[Launch, Verdict]]) -> Rest:
    """What is left: at the most that the others are known to take, else at least that."""
    unsure = any(v.total_high is None for _, v in others)
    taken = sum((v.total_low if v.total_high is None else v.total_high) + v.loading for _, v in others)
    room = facts.cgroup_room
    if isinstance(room, Known) and room.value is not None:
        room = Known(max(0, room.value - taken))
    shm = facts.shm
    if isinstance(shm, Known):
        shared = [v for launch, v in others if launch.shm_size is None]
        there = sum(d.total_low for v in shared for d in v.demands if d.place is Place.SHM)
        shm = Known(Shm(shm.value.total, max(0, shm.value.free - there)))
    left: Reading[int] = facts.available
    if isinstance(left, Known):
        left = Known(max(0, left.value - taken))
    return Rest(replace(facts, available=left, cgroup_room=room, shm=shm), taken, unsure)


def neighbours(launches: Sequence[Launch], at: int) -> list[int]:
    """Which others run while this one does: those that stay, and that are no other arm of the same alternative."""
    arms = dict(launches[at].arms)
    found = []
    for i, other in enumerate(launches):
        earlier = launches[min(i, at)]
        apart = any(arms.get(block, arm) != arm for block, arm in other.arms)
        if i != at and earlier.stays and not apart:
            found.append(i)
    return found


def doubted(verdict: Verdict, others: Rest) -> Verdict:
    """What fits beside others of which nobody knows what they take is no permission."""
    if not others.unsure or verdict.fit not in (Fit.FITS, Fit.TIGHT):
        return verdict
    why = "what the other servers of this text take is not known: they may leave too little"
    return replace(verdict, fit=Fit.CANNOT_TELL, reasons=(why, *verdict.reasons))


def note(others: Rest) -> str:
    much = "at least " if others.unsure else ""
    return f"{much}{both(others.taken)} of what is available are left to the other servers of this text"


def together(
    launches: Sequence[Launch], facts: Facts, judged: Callable[[Launch, Facts], Verdict]
) -> tuple[Verdict, ...]:
    """The verdicts of servers that share these facts."""
    if len(launches) == 1:
        return (judged(launches[0], facts),)
    alone = [(launch, judged(launch, facts)) for launch in launches]
    found = []
    for at, launch in enumerate(launches):
        others = [alone[i] for i in neighbours(launches, at)]
        if not others:
            found.append(alone[at][1])
            continue
        left = rest(facts, others)
        verdict = doubted(judged(launch, left.facts), left)
        found.append(replace(verdict, notes=(*verdict.notes, note(left))))
    return tuple(found)


def own(found: Gathered, launch: Launch, first: Launch) -> Gathered:
    """What was read for the first server of a text, as far as it holds for another of them."""
    missing = []
    if (launch.engine, launch.interpreter, launch.image) != (first.engine, first.interpreter, first.image):
        found = replace(found, installed=None, proofs=())
        missing.append("its engine")
    if launch.model != first.model:
        found = replace(found, config=None, facts=replace(found.facts, weights=NOT_READ))
        missing.append("its model")
    if not missing:
        return found
    said = f"{' and '.join(missing)} were not read: judge this server by itself for that"
    return replace(found, gaps=(*found.gaps, said))
