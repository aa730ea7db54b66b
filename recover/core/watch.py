"""From what single looks say to the state that lasts: k of n, too many missed looks are UNKNOWN, flapping is named.

A look that saw nothing (UNKNOWN) proves neither sickness nor health: `missed` of them within a window change nothing,
more make the state UNKNOWN. What is known of the past is forgotten after a while, so that two looks a day apart are
never taken for one trouble that lasts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recover.core.clean import clean
from recover.core.past import Anchor, Past, advance
from recover.model.watch import Judged, Standing, Status, Transition

if TYPE_CHECKING:
    from recover.core.report.check.verdict import Checked

LATE_S = 600.0  # a look that another process took longer for; what is older comes from a clock that was set
GAP_S = 600.0  # between two looks that are further apart anything may have come and gone
_SAYS = 300  # characters of a sentence that are kept of each look


@dataclass(frozen=True, slots=True)
class Policy:
    """`bad` of the newest `of` looks that saw something make the state worse, `good` in a row make it better.

    `missed` looks among the newest `of` are tolerated. Seconds: looks closer than `apart_s` are one look, looks older
    than `forget_s` count no more. `flaps` changes between CRITICAL and not within `flaps_within_s` are flapping, which
    ends once they are half as many.
    """

    bad: int = 3
    of: int = 4
    good: int = 2
    missed: int = 1
    apart_s: float = 20.0
    forget_s: float = 3600.0
    flaps: int = 6
    flaps_within_s: float = 3600.0


def judged(one: Checked, at: float) -> Judged:
    """What a check said, as it is remembered: the findings' names; of a WARNING those of what may still go away."""
    found = one.findings or (one.ripening if one.status is Status.WARNING else ())
    return Judged(at, one.status, tuple(sorted({f.signal for f in found})), clean(one.why, _SAYS))


def step(standing: Standing, look: Judged, policy: Policy) -> tuple[Standing, Transition | None]:
    """The standing after one more look, and what changed. A look older than the newest one that counts is ignored."""
    recent = _remembered(standing.recent, look, policy)
    if recent is None:
        return standing, None
    changed = _changes(standing, look, policy)
    flapping = len(changed) >= policy.flaps or (standing.flapping and 2 * len(changed) > policy.flaps)
    state = _state(standing.state, recent, policy)
    moved = (standing.state.status if standing.state is not None else None) != (state.status if state else None)
    after = replace(
        standing,
        state=state,
        since=look.at if moved else standing.since,
        recent=recent,
        changed=changed,
        flapping=flapping,
    )
    if not (moved or flapping != standing.flapping or _news(standing.state, state)):
        return after, None
    told = state or Judged(look.at, Status.UNKNOWN, (), "it was never the same for long enough to be called anything")
    return after, Transition(look.at, standing.target, standing.state, told, standing.since, flapping)


def known_before(standing: Standing, now: float) -> Past | None:
    """What a check may know of the one before it: since when symptoms make no progress. None: that is too long ago."""
    if not standing.recent or not 0 <= now - standing.recent[-1].at <= GAP_S:
        return None
    return Past(anchors={key: Anchor(level, min(since, now)) for key, level, since in standing.symptoms})


def remembered(standing: Standing, one: Checked, before: Past | None) -> Standing:
    """The standing with the symptoms of this look; one that saw nothing leaves them as they are."""
    if one.diagnosis is None or one.snapshot is None:
        return standing
    anchors = advance(before.anchors if before is not None else {}, one.diagnosis.symptoms, one.snapshot.at)
    return replace(standing, symptoms=tuple(sorted((key, a.level, a.since) for key, a in anchors.items())))


def soft(standing: Standing) -> Judged | None:
    """The newest look where it says something else than the state: seen, and not lasting yet."""
    if not standing.recent:
        return None
    newest = standing.recent[-1]
    return newest if standing.state is None or newest.status is not standing.state.status else None


def lasting(standing: Standing, policy: Policy) -> frozenset[str]:
    """Findings that came in `bad` of the newest `of` looks that saw something, where the state is CRITICAL."""
    if standing.state is None or standing.state.status is not Status.CRITICAL:
        return frozenset()
    return frozenset(_often(_seen(standing.recent, policy), policy))


def _remembered(recent: tuple[Judged, ...], look: Judged, policy: Policy) -> tuple[Judged, ...] | None:
    """The looks that count, with this one. None: it is older than what is known already.

    A clock that was set back leaves looks in the future behind: those are forgotten, or nothing would count any more.
    Of two looks of one moment the newer counts, unless it saw nothing.
    """
    if recent and 0 < recent[-1].at - look.at <= LATE_S:
        return None
    kept = tuple(r for r in recent if look.at - policy.forget_s <= r.at <= look.at)
    if kept and look.at - kept[-1].at < policy.apart_s:
        look = kept[-1] if look.status is Status.UNKNOWN else replace(look, at=kept[-1].at)
        kept = kept[:-1]
    return (*kept, look)[-(policy.of + policy.missed) :]


def _state(before: Judged | None, recent: tuple[Judged, ...], policy: Policy) -> Judged | None:
    """The state that these looks add up to; `before` where they don't suffice to change it."""
    newest = recent[-policy.of :]
    missed = [r for r in newest if r.status is Status.UNKNOWN]
    if len(missed) > policy.missed:
        return missed[-1]
    seen = _seen(recent, policy)
    status = _status(before, seen, policy)
    if status is None:
        return before
    if status is Status.UNKNOWN:  # it was so before, and too little was seen since
        return before
    last = next((r for r in reversed(seen) if r.status is status), None)
    if last is None:
        return before
    names = set(_often(seen, policy))
    if before is not None and before.status is status:
        names |= set(before.signals)  # what comes and goes is not news each time
    return replace(last, signals=tuple(sorted(names)))


def _seen(recent: tuple[Judged, ...], policy: Policy) -> tuple[Judged, ...]:
    return tuple(r for r in recent if r.status is not Status.UNKNOWN)[-policy.of :]


def _status(before: Judged | None, seen: tuple[Judged, ...], policy: Policy) -> Status | None:
    """Worse once `bad` looks are at least so bad; better once the newest `good` all are."""
    worse = next((s for s in (Status.CRITICAL, Status.WARNING) if _at_least(seen, s) >= policy.bad), None)
    last = seen[-policy.good :]
    better = max((r.status for r in last), default=None) if len(last) == policy.good else None
    if before is None or before.status is Status.UNKNOWN:
        return worse or (Status.OK if better is Status.OK else before.status if before is not None else None)
    if worse is not None and worse > before.status:
        return worse
    return better if better is not None and better < before.status else before.status


def _at_least(seen: Iterable[Judged], status: Status) -> int:
    return sum(1 for r in seen if r.status >= status)


def _often(seen: tuple[Judged, ...], policy: Policy) -> tuple[str, ...]:
    return tuple(
        name
        for name in sorted({name for r in seen for name in r.signals})
        if sum(name in r.signals for r in seen) >= policy.bad
    )


def _news(before: Judged | None, after: Judged | None) -> bool:
    """It stays CRITICAL, and something more is wrong for good now."""
    if before is None or after is None or not before.status is after.status is Status.CRITICAL:
        return False
    return bool(set(after.signals) - set(before.signals))


def _changes(standing: Standing, look: Judged, policy: Policy) -> tuple[float, ...]:
    """When looks turned between CRITICAL and not. A missed look is no turn: it says nothing."""
    kept = tuple(at for at in standing.changed if look.at - policy.flaps_within_s < at <= look.at)
    last = next((r for r in reversed(standing.recent) if r.status is not Status.UNKNOWN), None)
    if last is None or look.status is Status.UNKNOWN:
        return kept
    turned = (last.status is Status.CRITICAL) != (look.status is Status.CRITICAL)
    return (*kept, look.at)[-4 * policy.flaps :] if turned else kept
