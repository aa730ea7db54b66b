"""A pager's message: a title of at most 60 characters, a body of at most 300: what, where, since when, tried, next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from recover.core.aftercare import HEALTHY
from recover.core.clean import clean
from recover.core.fold import fold
from recover.core.redact import redact_text
from recover.core.report.result import what_next
from recover.core.report.words import count, span
from recover.core.told import RANK, News, Owed
from recover.model.notice import Event, Notice
from recover.model.record import Closed, EndKind, Entry
from recover.model.watch import Status

TITLE, BODY = 60, 300
NAMES = 5  # so many targets are named, the others counted
_ALL = "gpu-recover check --all"
_KINDS = {Status.OK: "success", Status.WARNING: "warning", Status.UNKNOWN: "warning", Status.CRITICAL: "failure"}


@dataclass(frozen=True, slots=True)
class Message:
    """`kind`: success, warning, failure or info, as apprise has them."""

    title: str
    body: str
    kind: str


@dataclass(frozen=True, slots=True)
class Story:
    """What was done about a target lately. `tried` "": nothing."""

    tried: str = ""
    next: str = ""


def story(entries: Iterable[Entry], *, goes_on: bool) -> Story:
    """The story of one run."""
    entries = tuple(entries)
    history = fold(entries)
    steps = ", ".join(dict.fromkeys(a.step for a in history.attempts))
    target = history.target
    closed = history.closed
    if closed is not None:
        end = closed.end.kind.value
        said = f"{steps}; {end}" if steps else f"nothing; {end}"
        return Story(said, what_next(entries, history))
    if goes_on:
        return Story(f"{steps}; a run goes on" if steps else "a run goes on", f"gpu-recover follow {target}")
    return Story(f"{steps}; the run was cut" if steps else "a run was cut", f"gpu-recover {target}")


def ended(entries: Iterable[Entry]) -> Notice | None:
    """The notice of a run's end, None where there is nothing to tell: nothing was wrong, or nobody could begin."""
    entries = tuple(entries)
    history = fold(entries)
    closed, opened = history.closed, history.opened
    if closed is None or opened is None:
        return None
    event = _event(closed, tried=bool(history.attempts) or history.paid > 0)
    if event is None:
        return None
    what, following, title = closed.end.why, what_next(entries, history), ""
    if closed.end.kind is EndKind.RECOVERED and event is Event.GAVE_UP:
        what = f"Its service is not back: {closed.service}. The rest is well: {what}"
        title = f"SERVICE NOT BACK {opened.target}"
    first = next((f.says for f in history.first.diagnosis.findings), "") if history.first is not None else ""
    what = f"{what}. It was: {first}" if first and first not in what else what
    steps = ", ".join(dict.fromkeys(a.step for a in history.attempts)) or "nothing"
    by = f"{steps} (by {opened.who}@{opened.host})"
    return Notice(closed.at, event, opened.target, clean(what), clean(by), clean(following), opened.run, title=title)


def _event(closed: Closed, *, tried: bool) -> Event | None:
    match closed.end.kind:
        case EndKind.RECOVERED if closed.service not in (None, HEALTHY):
            return Event.GAVE_UP  # who is paged for what is not well must not take this for well
        case EndKind.RECOVERED:
            return Event.RECOVERED
        case EndKind.HEALTHY | EndKind.PLANNED | EndKind.HELD:
            return None
        case EndKind.INTERRUPTED:
            return Event.GAVE_UP if tried else None
        case _:
            return Event.GAVE_UP


def message(
    states: Sequence[Owed], notices: Sequence[Notice], now: float, stories: Mapping[str, Story] | None = None
) -> Message:
    """One message for all that a destination is owed now. At least one thing."""
    stories = stories if stories is not None else {}
    if len(states) == 1 and not notices:
        return state_message(states[0], now, stories.get(states[0].present.target, Story()))
    if len(notices) == 1 and not states:
        return notice_message(notices[0], now)
    if not notices:
        return fleet_message(states)
    return _mixed(states, notices)


def state_message(owed: Owed, now: float, known: Story) -> Message:
    """One target's state."""
    present, name = owed.present, owed.present.target
    judged = present.judged
    signals = ", ".join(judged.signals)
    if owed.news is News.RESOLVED and owed.was is not None:
        was = owed.was
        word = "was flapping" if was.flapping else f"was {was.status.name}"
        named = f" ({', '.join(was.signals)})" if was.signals else ""
        since = f"since {_clock(was.since, now)}, for {span(present.since - was.since)}"
        what = f"{word[0].upper()}{word[1:]}{named} {since}"
        return _made(f"OK {name}: well again", what, "", known.tried or "nothing", "nothing to do", "success")
    title = f"{judged.status.name} {name}: {signals or 'see below'}"
    if owed.news is News.FLAPPING:
        title = f"FLAPPING {name}: {judged.status.name} now"
    elif owed.news is News.REMINDER:
        title = f"STILL {title}"
    began = owed.was.since if owed.was is not None and owed.news is News.REMINDER else present.since
    since = f"Since {_clock(began, now)} ({span(now - began)})"
    following = known.next or _next(owed)
    return _made(title, judged.says or signals, since, known.tried or "nothing", following, _KINDS[judged.status])


def _next(owed: Owed) -> str:
    name = owed.present.target
    if owed.news is News.FLAPPING:
        return f"gpu-recover history {name}"
    return f"gpu-recover {'doctor' if owed.present.judged.status is Status.UNKNOWN else 'plan'} {name}"


def notice_message(notice: Notice, now: float) -> Message:
    """A run's end, or a breaker that opened or was closed."""
    words = {
        Event.RECOVERED: (f"RECOVERED {notice.target}", "success"),
        Event.GAVE_UP: (f"NOT RECOVERED {notice.target}", "failure"),
        Event.BREAKER: (f"BREAKER OPEN at {notice.target}: nothing acts by itself", "failure"),
        Event.STATE: (notice.target, "info"),
    }
    title, kind = words[notice.event]
    title = notice.title or title
    if notice.event is Event.BREAKER and notice.over:
        title, kind = "BREAKER CLOSED: recoveries may begin by themselves again", "success"
    tried = notice.tried if notice.event is not Event.BREAKER or notice.tried else ""
    well = notice.event is Event.RECOVERED or notice.over
    following = notice.next or ("nothing to do" if well else f"gpu-recover {notice.target}")
    return _made(title, notice.what, f"At {_clock(notice.at, now)}", tried, following, kind)


def fleet_message(states: Sequence[Owed]) -> Message:
    """Many targets at once: how many are how, and the first names."""
    by: dict[Status, list[Owed]] = {}
    for owed in states:
        by.setdefault(owed.present.judged.status, []).append(owed)
    order = sorted(by, key=lambda s: -RANK[s])
    title = "GPU targets: " + ", ".join(f"{len(by[s])} {s.name}" for s in order)
    bad = [o.present for o in states if o.present.judged.status is not Status.OK]
    signals = Counter(s for p in bad for s in p.judged.signals)
    faults = ", ".join(name for name, _ in signals.most_common(3))
    begun = min((p.since for p in bad), default=0.0)
    what = ". ".join(f"{s.name}: {_names([o.present.target for o in by[s]])}" for s in order)
    since = f"Since {_clock(begun, begun)}" if bad else ""
    following = _ALL if bad else "nothing to do"
    return _made(title, f"{what}{f'. Faults: {faults}' if faults else ''}", since, "", following, _KINDS[order[0]])


def _mixed(states: Sequence[Owed], notices: Sequence[Notice]) -> Message:
    """Ends of runs and states together: the counts in the title, the names in the body."""
    lines: dict[str, list[str]] = {}
    for notice in notices:
        word = f"{notice.event.value} closed" if notice.over else notice.event.value.replace("-", " ")
        lines.setdefault(word.upper(), []).append(notice.target)
    for owed in states:
        lines.setdefault(owed.present.judged.status.name, []).append(owed.present.target)
    title = "GPU targets: " + ", ".join(f"{len(names)} {word}" for word, names in lines.items())
    what = ". ".join(f"{word}: {_names(names)}" for word, names in lines.items())
    bad = any(n.event is not Event.RECOVERED and not n.over for n in notices)
    worst = max((RANK[o.present.judged.status] for o in states), default=0)
    kind = "failure" if bad or worst == RANK[Status.CRITICAL] else "warning" if worst else "success"
    return _made(title, what, "", "", _ALL, kind)


def trial(to: str, host: str, at: float) -> Message:
    """What `notify test` sends."""
    what = f"This is a test from {host} to {to}, nothing is wrong"
    return _made("TEST gpu-recover: you would be told here", what, f"At {_clock(at, at)}", "", "nothing to do", "info")


def _names(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    more = len(names) - NAMES
    return ", ".join(clean(n, 40) for n in names[:NAMES]) + (f" and {count(more, 'other')}" if more > 0 else "")


def _made(title: str, what: str, since: str, tried: str, following: str, kind: str) -> Message:
    """What is shortened is what was seen: when, what was tried and what is next stay whole as long as they can."""
    tail = [since] if since else []
    tail += [f"Tried: {_text(tried, 90)}"] if tried else []
    tail += [f"Next: {_text(following, 110)}"]
    rest = ". ".join(tail)
    room = BODY - len(rest) - 2
    said = _text(what, max(room, 0)).rstrip(".") if room > 3 else ""
    body = f"{said}. {rest}" if said else rest
    return Message(_text(title, TITLE), _text(body, BODY), kind)


def _text(text: str, limit: int) -> str:
    return clean(redact_text(text), limit)


def _clock(at: float, now: float) -> str:
    """An hour that is the same for who is paged anywhere; with its day where that is not today's."""
    moment = datetime.fromtimestamp(at, UTC)
    return moment.strftime("%H:%M UTC" if now - at < 72000 else "%d %b %H:%M UTC")
