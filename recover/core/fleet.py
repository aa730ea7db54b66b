"""Who may be acted on by itself, counted before anything is done: permits, a fleet that is sick as one, the breaker.

All is read from the ledger and from what was seen; nothing here acts. A permit whose process is gone is never ignored:
it counts for a whole window more, and since nobody knows how its run ended, it opens the breaker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from recover.model.record import EndKind
from recover.model.watch import Breaker, Controller, Ledger, Permit, Status

DAY_S = 86400.0
KEPT_S = 7 * DAY_S  # the longest window that a configuration can name
FAR_S = DAY_S  # a permit of another machine, whose processes can't be looked at, is believed for so long
CUT = "cut"  # how a run ended whose process is gone and that left no end
BUG = "bug"
_KEPT = 20  # breakers


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """`max_nodes` and `max_percent` of the fleet: both hold, at once and within `window_s`. Percents are rounded down.

    `at_least`: so many nodes although the percentage gives fewer; 0 where nobody said so. `sick_percent`: more of the
    fleet CRITICAL than that, and at least two, is most likely not the nodes.
    """

    max_nodes: int = 1
    max_percent: int = 10
    at_least: int = 0
    window_s: float = 3600.0
    sick_percent: int = 30


class Explained(StrEnum):
    """Whether an end of an unattended run says by itself what happened."""

    YES = "yes"
    IF_UNTRIED = "if nothing was tried"
    NO = "no"


# What each end of an unattended run does to the breaker. `service not back` and `bug` are ends as well.
ENDS: dict[str, Explained] = {
    EndKind.HEALTHY.value: Explained.YES,  # it went away by itself
    EndKind.RECOVERED.value: Explained.YES,
    EndKind.BLOCKED.value: Explained.IF_UNTRIED,  # a guard or a limit said no; but what was tried before did not help
    EndKind.HELD.value: Explained.YES,  # somebody else works there
    EndKind.INTERRUPTED.value: Explained.YES,  # a person took over, or the machine shuts down
    EndKind.PLANNED.value: Explained.YES,
    EndKind.EXHAUSTED.value: Explained.NO,
    EndKind.NEEDS_HUMAN.value: Explained.NO,
    EndKind.OUT_OF_TIME.value: Explained.NO,
    EndKind.CANNOT_TELL.value: Explained.NO,
    "service-not-back": Explained.NO,
    BUG: Explained.NO,
    CUT: Explained.NO,
}


@dataclass(frozen=True, slots=True)
class Room:
    """How many nodes may be acted on, and how that was counted."""

    nodes: int
    says: str


def room(limits: FleetLimits, fleet: int) -> Room:
    """At once and within a window: the smaller of both limits; of 3 nodes 20 % are none."""
    share = fleet * limits.max_percent // 100
    nodes = min(limits.max_nodes, max(share, limits.at_least))
    says = f"{limits.max_percent} % of {fleet} are {share}"
    if limits.at_least > share:
        says += f", at_least {limits.at_least}"
    return Room(nodes, f"{says}, max_nodes {limits.max_nodes}")


@dataclass(frozen=True, slots=True)
class Picture:
    """How the fleet was seen last: `seen` names by status, only what is fresh; `size`: targets of the configuration."""

    size: int
    seen: dict[str, Status]

    def sick(self, limits: FleetLimits) -> str:
        """Why the fleet as a whole forbids to act, or an empty string. Who wasn't judged is not counted as well."""
        judged = [s for s in self.seen.values() if s is not Status.UNKNOWN]
        critical = sum(s is Status.CRITICAL for s in judged)
        if 2 * len(judged) < self.size:
            return (
                f"only {len(judged)} of {self.size} targets were judged lately, so it can't be told what ails the fleet"
            )
        if critical >= 2 and 100 * critical > limits.sick_percent * len(judged):
            return (
                f"{critical} of {len(judged)} targets are CRITICAL at once, more than {limits.sick_percent} %: "
                "most likely it is not the nodes"
            )
        return ""


def open_breaker(ledger: Ledger) -> Breaker | None:
    return ledger.breakers[-1] if ledger.breakers and not ledger.breakers[-1].closed_at else None


def settled(ledger: Ledger, now: float, window_s: float, lives: Callable[[Controller], bool | None]) -> Ledger:
    """The ledger without what no longer counts; runs whose process is gone are ended now, and open the breaker.

    `lives`: None where it can't be told, as of another machine.
    """
    for permit in ledger.permits:
        if permit.ended:
            continue
        alive = lives(permit.holder)
        if alive or (alive is None and now - permit.began < FAR_S):
            continue
        ledger = released(ledger, permit, now, CUT, tried=True)
    keep = max(window_s, DAY_S)
    permits = (_not_later(p, now) for p in ledger.permits)
    return replace(ledger, permits=tuple(p for p in permits if not p.ended or now - p.ended < keep))


def refusal(ledger: Ledger, target: str, now: float, limits: FleetLimits, size: int, runs_per_day: int) -> str:
    """Why `target` gets no permit by this ledger, or an empty string. The ledger is settled already."""
    breaker = open_breaker(ledger)
    if breaker is not None:
        return f"the breaker is open: {breaker.target}: {breaker.why} (gpu-recover breaker close)"
    if any(p.target == target and not p.ended for p in ledger.permits):
        return "another unattended run works on it"
    last = next((p for p in reversed(ledger.permits) if p.target == target), None)
    if last is not None and now - last.ended < limits.window_s:
        ago = f"{(now - last.ended) / 60:.0f} min ago"
        return f"its last unattended run ended {ago} ({last.end}), and there is one within {limits.window_s / 60:g} min"
    today = sum(p.target == target and p.tried and now - p.began < DAY_S for p in ledger.permits)
    if today >= runs_per_day:
        return f"{today} unattended runs within a day, and runs_per_day is {runs_per_day}"
    space = room(limits, size)
    counted = sorted({p.target for p in ledger.permits if counts(p, now, limits.window_s)} - {target})
    if len(counted) >= space.nodes:
        if not counted:
            return f"nobody may be acted on: {space.says} (raise the limits, or say at_least in [fleet])"
        return f"{', '.join(counted)}: as many as may be acted on within {limits.window_s / 60:g} min ({space.says})"
    return ""


def counts(permit: Permit, now: float, window_s: float) -> bool:
    """Whether a permit still takes the place of another: it goes on, or it ended less than a window ago."""
    return not permit.ended or (permit.tried and now - permit.ended < window_s)


def granted(ledger: Ledger, target: str, holder: Controller, now: float) -> tuple[Ledger, Permit]:
    permit = Permit(target, holder, now)
    return replace(ledger, permits=(*ledger.permits, permit)), permit


def released(ledger: Ledger, permit: Permit, now: float, end: str, *, tried: bool, why: str = "") -> Ledger:
    """The run of `permit` ended so. An end that explains nothing opens the breaker, in the same stroke."""
    done = replace(permit, began=min(permit.began, now), ended=now, end=end, tried=tried)
    permits = tuple(done if same(p, permit) else p for p in ledger.permits)
    ledger = replace(ledger, permits=permits)
    if explained(end, tried) or open_breaker(ledger) is not None:
        return ledger
    says = why or "its run ended without an end: the process is gone"
    return replace(ledger, breakers=(*ledger.breakers, Breaker(now, permit.target, f"{end}: {says}"))[-_KEPT:])


def withdrawn(ledger: Ledger, permit: Permit) -> Ledger:
    """Without a permit of which no use was made: it counts for nothing."""
    return replace(ledger, permits=tuple(p for p in ledger.permits if not same(p, permit)))


def explained(end: str, tried: bool) -> bool:
    match ENDS.get(end, Explained.NO):
        case Explained.YES:
            return True
        case Explained.IF_UNTRIED:
            return not tried
        case _:
            return False


def closed(ledger: Ledger, now: float, who: str, why: str) -> Ledger:
    """The ledger with its breaker closed by a person; without an open one it stays as it is."""
    breaker = open_breaker(ledger)
    if breaker is None:
        return ledger
    shut = replace(breaker, closed_at=now, closed_by=who, closed_why=why)
    return replace(ledger, breakers=(*ledger.breakers[:-1], shut))


def same(one: Permit, open_one: Permit) -> bool:
    """Whether `one` is this permit, and open. Not by its time: a clock that was set back changes that on disk."""
    return not one.ended and (one.target, one.holder) == (open_one.target, open_one.holder)


def _not_later(permit: Permit, now: float) -> Permit:
    """A clock that was set back must neither keep a permit for ever nor drop it: what lies ahead was just now."""
    return replace(permit, began=min(permit.began, now), ended=min(permit.ended, now))
