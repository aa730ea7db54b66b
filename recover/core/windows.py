"""When nothing may be done by itself: maintenance windows and quiet hours, never shorter for a clock that was changed.

Time zones are those of `zoneinfo`. Where a window's beginning or end falls into the hour that daylight saving leaves
out or repeats, its earliest beginning and its latest end count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from zoneinfo import ZoneInfo

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS = re.compile(r"(?:([a-z,-]+)\s+)?(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})", re.IGNORECASE)
FORM = '"22:00-07:00", "sat,sun 00:00-24:00" or "mon-fri 12:00-13:30"'


@dataclass(frozen=True, slots=True)
class Hours:
    """From `start` to `end`, minutes since midnight, on these weekdays (0 is Monday); `end` <= `start`: overnight."""

    days: frozenset[int]
    start: int
    end: int

    @property
    def text(self) -> str:
        days = "" if len(self.days) == 7 else ",".join(DAYS[d] for d in sorted(self.days)) + " "
        return f"{days}{_clock(self.start)}-{_clock(self.end)}"


@dataclass(frozen=True, slots=True)
class Window:
    """One span of time (`begins` to `ends`, seconds since the epoch) or hours that come again, for some targets.

    `targets`: names, or patterns like "node-1*"; empty: all.
    """

    targets: tuple[str, ...] = ()
    begins: float = 0.0
    ends: float = 0.0
    hours: tuple[Hours, ...] = ()
    zone: str = "UTC"
    why: str = ""

    def covers(self, target: str, at: float) -> bool:
        """Whether nothing may be done by itself to `target` at this moment."""
        if self.targets and not any(fnmatchcase(target, pattern) for pattern in self.targets):
            return False
        if self.begins <= at < self.ends:
            return True
        return any(within(hours, at, ZoneInfo(self.zone)) for hours in self.hours)


def first(windows: Iterable[Window], target: str, at: float) -> Window | None:
    """A window that covers `target` now."""
    return next((w for w in windows if w.covers(target, at)), None)


def hours(text: str) -> Hours | str:
    """Hours as people write them, or what is wrong with them."""
    found = _HOURS.fullmatch(text.strip())
    if found is None:
        return f"expected hours like {FORM}, got {text!r}"
    days = _days(found[1] or "mon-sun")
    if isinstance(days, str):
        return days
    start, end = int(found[2]) * 60 + int(found[3]), int(found[4]) * 60 + int(found[5])
    if int(found[3]) > 59 or int(found[5]) > 59 or start >= 1440 or end > 1440:
        return f"{text!r}: hours go from 00:00 to 24:00"
    if start == end:
        return f'{text!r}: begins when it ends; the whole day is "00:00-24:00"'
    return Hours(days, start, end)


def within(span: Hours, at: float, zone: tzinfo) -> bool:
    """Whether these hours, by the wall clock of `zone`, cover the moment `at`."""
    today = datetime.fromtimestamp(at, zone).date()
    return any(
        begins <= at < ends
        for day in (today - timedelta(days=1), today)
        if day.weekday() in span.days
        for begins, ends in (_moments(span, day, zone),)
    )


def _moments(span: Hours, day: date, zone: tzinfo) -> tuple[float, float]:
    """The widest span that these wall times can mean. PEP 495: `fold` chooses between the two that a change leaves."""
    last = day if span.end > span.start else day + timedelta(days=1)
    return min(_both(day, span.start, zone)), max(_both(last, span.end, zone))


def _both(day: date, minute: int, zone: tzinfo) -> tuple[float, float]:
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minute)  # noqa: DTZ001  # its zone comes next
    one, other = (wall.replace(tzinfo=zone, fold=fold).timestamp() for fold in (0, 1))
    return one, other


def _days(text: str) -> frozenset[int] | str:
    chosen: set[int] = set()
    for part in text.lower().split(","):
        begin, _, end = part.partition("-")
        if begin not in DAYS or (end or begin) not in DAYS:
            return f"{part!r}: days are {', '.join(DAYS)}"
        first_day, last_day = DAYS.index(begin), DAYS.index(end or begin)
        chosen |= {(first_day + n) % 7 for n in range((last_day - first_day) % 7 + 1)}
    return frozenset(chosen)


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
