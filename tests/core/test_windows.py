"""Windows by the wall clock: overnight, by weekday, over both changes of daylight saving; never shorter than said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recover.core.config import parse_config
from recover.core.windows import Hours, Window, first, hours, within

BERLIN = ZoneInfo("Europe/Berlin")


def wall(text: str) -> datetime:
    """A time that no zone is said for."""
    return datetime.fromisoformat(text)


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()


def spoken(text: str) -> Hours:
    found = hours(text)
    assert isinstance(found, Hours), found
    return found


@pytest.mark.parametrize(
    ("said", "moment", "inside"),
    [
        ("22:00-07:00", "2026-12-01T21:59:59", False),
        ("22:00-07:00", "2026-12-01T22:00:00", True),
        ("22:00-07:00", "2026-12-02T06:59:59", True),
        ("22:00-07:00", "2026-12-02T07:00:00", False),
        ("fri 22:00-07:00", "2026-12-05T03:00:00", True),  # Saturday morning, of Friday's window
        ("sat 22:00-07:00", "2026-12-05T03:00:00", False),
        ("sat,sun 00:00-24:00", "2026-12-06T23:59:59", True),
        ("sat,sun 00:00-24:00", "2026-12-07T00:00:00", False),
        ("fri-mon 12:00-13:00", "2026-12-07T12:30:00", True),  # over the end of the week
        ("fri-mon 12:00-13:00", "2026-12-08T12:30:00", False),
        ("mon-fri 12:00-13:30", "2026-12-04T13:29:00", True),
    ],
)
def test_hours_by_the_wall_clock(said: str, moment: str, inside: bool) -> None:
    assert within(spoken(said), at(moment), BERLIN) is inside


def test_the_hour_that_is_left_out_in_spring_shortens_nothing() -> None:
    """On 2026-03-29 Berlin goes from 01:59 to 03:00: a window within that hour is kept around it."""
    window = spoken("02:15-02:45")
    covered = [m for m in range(180) if within(window, at("2026-03-29T01:00:00") + 60 * m, BERLIN)]
    assert len(covered) >= 30 and covered == list(range(covered[0], covered[-1] + 1))
    assert within(spoken("22:00-03:00"), at("2026-03-29T01:59:00"), BERLIN)


def test_the_hour_that_comes_twice_in_autumn_counts_twice() -> None:
    window = spoken("02:15-02:45")
    assert within(window, at("2026-10-25T02:30:00", fold=0), BERLIN)
    assert within(window, at("2026-10-25T02:30:00", fold=1), BERLIN)


@pytest.mark.parametrize(
    "text", ["", "22-7", "25:00-26:00", "02:60-03:00", "foo 02:00-03:00", "02:00-02:00", "24:00-02:00"]
)
def test_hours_that_cannot_be_are_told(text: str) -> None:
    assert isinstance(hours(text), str)


def never_shorter(span: Hours, day: int, zone: ZoneInfo, inside: Callable[..., bool]) -> None:
    """Every moment whose wall time lies in a window is in it, whichever of two such moments it is."""
    start = wall("2026-01-01") + timedelta(days=day, minutes=span.start)
    length = (span.end - span.start) % 1440 or 1440
    if start.weekday() in span.days:
        for minute in (0, length // 2, length - 1):
            shown = start + timedelta(minutes=minute)
            for fold in (0, 1):
                moment = shown.replace(tzinfo=zone, fold=fold).timestamp()
                there = datetime.fromtimestamp(moment, zone).replace(tzinfo=None) == shown
                assert not there or inside(span, moment, zone), f"{shown} ({zone.key}) is not within {span.text}"


spans = st.builds(
    lambda days, start, length: Hours(frozenset(days), start, (start + length) % 1440 or 1440),
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(0, 1439),
    st.integers(1, 1439),
)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
days = st.integers(0, 364)
# the days of 2026 before and on which a clock is changed
changes = st.sampled_from(
    [
        *((day, "America/New_York") for day in (65, 66, 303, 304)),
        *((day, "Europe/Berlin") for day in (86, 87, 296, 297)),
        *((day, "Australia/Lord_Howe") for day in (93, 94, 275, 276)),
    ]
)


def holds(inside: Callable[..., bool], examples: int = 150, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    @settings(max_examples=examples, deadline=None, derandomize=True, phases=phases)
    @given(spans, st.one_of(st.tuples(days, zones), changes))
    def check(span: Hours, when: tuple[int, str]) -> None:
        never_shorter(span, when[0], ZoneInfo(when[1]), inside)

    check()


def test_a_window_is_never_shorter_than_it_says() -> None:
    holds(within)


def _by_length(span: Hours, moment: float, zone: ZoneInfo) -> bool:
    """Planted: a window's seconds are counted from its beginning, as if no clock ever changed."""
    today = datetime.fromtimestamp(moment, zone).date()
    for day in (today - timedelta(days=1), today):
        begun = wall(day.isoformat()) + timedelta(minutes=span.start)
        begins = begun.replace(tzinfo=zone).timestamp()
        length = 60.0 * ((span.end - span.start) % 1440 or 1440)
        if day.weekday() in span.days and begins <= moment < begins + length:
            return True
    return False


def _today_only(span: Hours, moment: float, zone: ZoneInfo) -> bool:
    """Planted: the night belongs to nobody."""
    now = datetime.fromtimestamp(moment, zone)
    return now.weekday() in span.days and span.start <= now.hour * 60 + now.minute < span.end


@pytest.mark.parametrize("bug", [_by_length, _today_only])
def test_planted_bug_is_caught(bug: Callable[..., bool]) -> None:
    with pytest.raises(AssertionError):
        holds(bug, 2000, (Phase.generate,))


def test_targets_by_name_and_pattern() -> None:
    window = Window(targets=("node-1*", "spare"), begins=10.0, ends=20.0)
    assert window.covers("node-174", 10.0) and window.covers("spare", 19.9)
    assert not window.covers("node-274", 15.0) and not window.covers("node-174", 20.0)
    assert first((replace(window, targets=("x",)), window), "spare", 15.0) is window


BASE: dict[str, Any] = {"targets": {"node-174": {}}}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({}, "expected either from and to, or hours"),
        ({"from": wall("2026-01-01"), "to": wall("2026-01-02"), "hours": ["02:00-03:00"]}, "expected either"),
        ({"from": wall("2026-01-01"), "zone": "UTC"}, "maintenance[0].to: missing"),
        ({"from": wall("2026-01-02"), "to": wall("2026-01-01"), "zone": "UTC"}, "to: lies before from"),
        ({"from": wall("2026-01-01"), "to": wall("2026-01-02")}, "zone is missing"),
        ({"from": "tomorrow", "to": wall("2026-01-02"), "zone": "UTC"}, "expected a date and time"),
        ({"hours": ["02:00-03:00"]}, "zone: missing"),
        ({"hours": ["2-3"], "zone": "UTC"}, "maintenance[0].hours[0]: expected hours like"),
        ({"hours": ["02:00-03:00"], "zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"hours": ["02:00-03:00"], "zone": "../../etc/passwd"}, "no time zone"),
        ({"hours": ["02:00-03:00"], "zone": "UTC", "targets": ["nod-174"]}, "no target is called 'nod-174'"),
        ({"hours": ["02:00-03:00"], "zone": "UTC", "target": ["node-174"]}, "did you mean 'targets'"),
    ],
)
def test_a_wrong_window_is_told_with_its_place(row: dict[str, Any], says: str) -> None:
    config, problems = parse_config({**BASE, "maintenance": [row]})
    assert config is None and any(says in p for p in problems), problems


def test_a_span_without_an_offset_is_by_its_zone_and_the_wider_one() -> None:
    row = {"from": wall("2026-10-25T02:30"), "to": wall("2026-10-25T02:45"), "zone": "Europe/Berlin"}
    config, problems = parse_config({**BASE, "maintenance": [row]})
    assert config is not None, problems
    (window,) = config.maintenance
    assert (window.begins, window.ends) == (at("2026-10-25T02:30:00"), at("2026-10-25T02:45:00", fold=1))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"watch": {"bad": 5}}, "watch.bad: bad = 5 does not fit of = 4 looks"),
        ({"watch": {"of": 2}}, "watch.of: bad = 3 does not fit of = 2 looks"),
        ({"watch": {"missed": 4}}, "watch.missed: missed = 4 does not fit of = 4 looks"),
        ({"watch": {"apart": 20}}, "watch.apart: expected a duration"),
        ({"watch": {"quiet": ["22:00-07:00"]}}, "watch.zone: missing"),
        ({"fleet": {"max_percent": 101}}, "fleet.max_percent: expected 0 to 100"),
        ({"fleet": {"max_node": 1}}, "did you mean 'max_nodes'"),
        ({"maintenance": {}}, "maintenance: expected tables [[maintenance]]"),
        ({"targets": {"a": {"do_not_recover": "yes"}}}, "expected true or false"),
    ],
)
def test_a_wrong_key_is_told_with_its_place(table: dict[str, Any], says: str) -> None:
    config, problems = parse_config({**BASE, **table})
    assert config is None and any(says in p for p in problems), problems
