"""What each destination is owed, from how targets stand and what it heard last: nothing twice, OK only after bad.

It looks at states, not at events: what could not be delivered is owed still, what is over by then is owed no more, and
a restart changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from recover.model.notice import Notebook, Notice, Pending, Present, Silence, Told
from recover.model.watch import Status, Transition

RANK = {Status.OK: 0, Status.WARNING: 1, Status.UNKNOWN: 2, Status.CRITICAL: 3}  # as `check` ranks several targets
KEPT_S = 86400.0  # a notice that nobody could be told within a day is old news
MOST_PENDING = 100


class News(StrEnum):
    BEGAN = "began"  # bad, and not told yet
    CHANGED = "changed"  # another state, or a fault that was not named yet
    FLAPPING = "flapping"
    RESTED = "rested"  # it does not flap any more, and is bad
    RESOLVED = "resolved"
    REMINDER = "reminder"


@dataclass(frozen=True, slots=True)
class Want:
    """From which state on a destination hears of a target, and how often again."""

    at_least: Status = Status.WARNING
    remind_s: float | None = None


@dataclass(frozen=True, slots=True)
class Owed:
    """One thing that one destination is to hear now. `was`: what it heard of it last."""

    news: News
    present: Present
    was: Told | None = None


def owed(was: Told | None, present: Present, want: Want, now: float) -> Owed | None:
    """What is to be told of one target, if anything."""
    news = _first(present, want) if was is None else _next(was, present, want, now)
    return Owed(news, present, was) if news is not None else None


def _first(present: Present, want: Want) -> News | None:
    if RANK[present.judged.status] < RANK[want.at_least]:
        return None
    return News.FLAPPING if present.flapping else News.BEGAN


def _next(was: Told, present: Present, want: Want, now: float) -> News | None:
    status = present.judged.status
    tells = RANK[status] >= RANK[want.at_least]
    reminds = want.remind_s is not None and now - was.at >= want.remind_s
    if present.flapping:
        return News.FLAPPING if not was.flapping else News.REMINDER if reminds else None
    if status is Status.OK:
        return News.RESOLVED
    if not tells:
        return None  # better, and not well: it stays open without a word
    if was.flapping:
        return News.RESTED
    if status is not was.status or set(present.judged.signals) - set(was.signals):
        return News.CHANGED
    return News.REMINDER if reminds else None


def heard(to: str, said: Owed, now: float) -> Told | None:
    """What `to` has heard of the target once this is delivered; None: nothing is open any more."""
    present, was = said.present, said.was
    if said.news is News.RESOLVED:
        return None
    if said.news is News.REMINDER and was is not None:
        return replace(was, at=now)
    judged = present.judged
    begun = was.since if was is not None else present.since
    named = {*judged.signals, *(was.signals if was is not None else ())}
    return Told(to, present.target, judged.status, tuple(sorted(named)), now, begun, present.flapping)


# --- the notebook


def stands(book: Notebook, changes: Iterable[Transition]) -> Notebook:
    """The notebook with how these targets stand now."""
    found = {p.target: p for p in book.present}
    for change in changes:
        known = found.get(change.target)
        if known is not None and change.at < known.at:
            continue  # somebody else's newer word stands already
        same = known is not None and known.judged.status is change.after.status
        since = known.since if same and known is not None else change.at
        before_since = change.before_since if change.before is not None else since
        found[change.target] = Present(
            change.target, change.at, change.after, since, change.flapping, change.before, before_since
        )
    return replace(book, present=tuple(found[name] for name in sorted(found)))


def all_owed(book: Notebook, to: str, want: Want, now: float) -> tuple[Owed, ...]:
    """What one destination is owed of all targets, the worst first."""
    was = {t.target: t for t in book.told if t.to == to}
    found = [o for p in book.present if (o := owed(was.get(p.target), p, want, now)) is not None]
    return tuple(sorted(found, key=lambda o: (-RANK[o.present.judged.status], o.present.target)))


def delivered(book: Notebook, to: str, said: Iterable[Owed], now: float) -> Notebook:
    """The notebook once `to` has heard all of `said`."""
    said = tuple(said)
    names = {o.present.target for o in said}
    kept = [t for t in book.told if t.to != to or t.target not in names]
    kept += [t for o in said if (t := heard(to, o, now)) is not None]
    return replace(book, told=tuple(sorted(kept, key=lambda t: (t.to, t.target))))


# --- what happened once


def noted(book: Notebook, to: Iterable[str], notice: Notice) -> Notebook:
    """The notice is to be delivered to each of `to`. That something is over takes the place of word that it began."""
    pending = tuple(p for p in book.pending if not (notice.over and p.notice.event is notice.event))
    return replace(book, pending=(*pending, *(Pending(name, notice) for name in to)))


def done(book: Notebook, gone: Iterable[Pending]) -> Notebook:
    """Without what was delivered."""
    got = {(p.to, p.notice) for p in gone}
    return replace(book, pending=tuple(p for p in book.pending if (p.to, p.notice) not in got))


def given_up(book: Notebook, now: float) -> tuple[Notebook, tuple[Pending, ...]]:
    """Without notices that are old news, and those: they are said to be lost, once."""
    fresh = [p for p in book.pending if now - p.notice.at <= KEPT_S][-MOST_PENDING:]
    lost = tuple(p for p in book.pending if p not in fresh)
    return replace(book, pending=tuple(fresh)), lost


def only(book: Notebook, names: Iterable[str]) -> Notebook:
    """Without destinations that are not configured any more: nobody can be told there that it is over."""
    known = {*names, ""}
    return replace(
        book,
        told=tuple(t for t in book.told if t.to in known),
        pending=tuple(p for p in book.pending if p.to in known),
        silent=tuple(s for s in book.silent if s.to in known),
    )


def reached(book: Notebook, to: str, why: str, now: float) -> Notebook:
    """`why` "": `to` was reached; else it was not, and since when is remembered."""
    known = next((s for s in book.silent if s.to == to), None)
    others = tuple(s for s in book.silent if s.to != to)
    if not why:
        return replace(book, silent=others)
    one = Silence(to, now, why) if known is None else replace(known, why=why, tries=known.tries + 1)
    return replace(book, silent=(*others, one))
