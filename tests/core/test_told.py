"""What destinations are told: nothing twice, OK only after bad, a state that lasts is known to all who were reached.

Properties over random lives of a fleet with destinations that fail at times and restarts in between. Each property was
seen to fail on a bug planted for it: see PLANTED.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recover.core import told
from recover.core.codec import decode, encode
from recover.core.told import RANK, News, Owed, Want, all_owed, delivered, given_up, noted, only, owed, reached, stands
from recover.model.notice import Event, Notebook, Notice, Present, Told
from recover.model.watch import Judged, Status, Transition

REMIND_S = 1000.0
Judge = Callable[[Told | None, Present, Want, float], Owed | None]
Hear = Callable[[str, Owed, float], Told | None]


@dataclass(frozen=True)
class Move:
    """One check round: what changed, whether each destination can be reached, and whether the tool restarted."""

    changes: tuple[tuple[str, Status, tuple[str, ...], bool], ...]  # (target, status, signals, flapping)
    reachable: tuple[bool, bool]
    restart: bool


moves = st.lists(
    st.builds(
        Move,
        st.lists(
            st.tuples(
                st.sampled_from(["a", "b", "c"]),
                st.sampled_from(Status),
                st.sampled_from([(), ("dead-group",), ("gpu-lost",), ("dead-group", "gpu-lost")]),
                st.integers(0, 4).map(lambda n: n == 0),
            ),
            max_size=2,
            unique_by=lambda change: change[0],
        ).map(tuple),
        st.tuples(st.booleans(), st.booleans()),
        st.integers(0, 3).map(lambda n: n == 0),
    ),
    max_size=14,
)
WANTS = {"all": Want(Status.WARNING), "pager": Want(Status.CRITICAL, REMIND_S)}


@dataclass
class Life:
    """What each destination heard, in order, beside how each target stood then."""

    heard: dict[str, list[tuple[float, Owed]]] = field(default_factory=lambda: {name: [] for name in WANTS})
    stood: dict[str, list[Present]] = field(default_factory=dict)
    book: Notebook = field(default_factory=Notebook)
    now: float = 0.0


def live(story: list[Move], judge: Judge = owed, hear: Hear = told.heard) -> Life:
    """The whole life, with a last round in which everybody can be reached."""
    life = Life()
    for move in [*story, Move((), (True, True), False)]:
        life.now += 100.0
        if move.restart:
            life.book = decode(json.loads(json.dumps(encode(life.book))))
        life.book = stands(life.book, [_transition(life, *change) for change in move.changes])
        for present in life.book.present:
            known = life.stood.setdefault(present.target, [])
            if not known or known[-1] != present:
                known.append(present)
        for (name, want), reachable in zip(WANTS.items(), move.reachable, strict=True):
            was = {t.target: t for t in life.book.told if t.to == name}
            due = [o for p in life.book.present if (o := judge(was.get(p.target), p, want, life.now)) is not None]
            if due and reachable:
                life.heard[name] += [(life.now, o) for o in due]
                life.book = _delivered(life.book, name, due, life.now, hear)
    return life


def _transition(life: Life, target: str, status: Status, signals: tuple[str, ...], flapping: bool) -> Transition:
    known = next((p for p in life.book.present if p.target == target), None)
    named = () if status is Status.OK else signals
    before = known.judged if known is not None else None
    return Transition(life.now, target, before, Judged(life.now, status, named, "x"), flapping=flapping)


def _delivered(book: Notebook, name: str, said: list[Owed], now: float, hear: Hear) -> Notebook:
    names = {o.present.target for o in said}
    kept = [t for t in book.told if t.to != name or t.target not in names]
    return replace(book, told=tuple(kept + [t for o in said if (t := hear(name, o, now)) is not None]))


def said_of(life: Life, name: str, target: str) -> list[tuple[float, Owed]]:
    return [(at, o) for at, o in life.heard[name] if o.present.target == target]


# --- properties: each takes a life and fails where the promise is broken


def nothing_twice(life: Life) -> None:
    """Within one incident the same state again is news only with a fault not named in it yet, or as a reminder."""
    for name, want in WANTS.items():
        for target in life.stood:
            named: set[str] = set()
            for (before_at, before), (at, now) in pairwise(said_of(life, name, target)):
                named = set() if before.news is News.RESOLVED else named | set(before.present.judged.signals)
                was, present = before.present, now.present
                same = (was.judged.status, was.flapping) == (present.judged.status, present.flapping)
                new = set(present.judged.signals) - named
                late = want.remind_s is not None and at - before_at >= want.remind_s
                if same and not new and not late and before.news is not News.RESOLVED:
                    raise AssertionError(f"{name} heard twice of {target}: {before.news}, {now.news}")


def ok_only_after_bad(life: Life) -> None:
    for name in WANTS:
        for target in life.stood:
            is_open = False
            for _, line in said_of(life, name, target):
                resolved = line.news is News.RESOLVED
                assert is_open or not resolved, f"{name} heard that {target} is well, and never that it was not"
                assert not resolved or line.present.judged.status is Status.OK, f"{target} is not well"
                is_open = not resolved


def all_know_at_the_end(life: Life) -> None:
    for name, want in WANTS.items():
        for target, stood in life.stood.items():
            last, lines = stood[-1], said_of(life, name, target)
            status = last.judged.status
            if last.flapping:
                continue
            if RANK[status] >= RANK[want.at_least]:
                assert lines and lines[-1][1].present.judged.status is status, f"{name} does not know of {target}"
                told_signals = {s for _, o in lines for s in o.present.judged.signals}
                assert set(last.judged.signals) <= told_signals, f"{name} does not know of all of {target}"
            if status is Status.OK and lines:
                assert lines[-1][1].news is News.RESOLVED, f"{name} was never told that {target} is well"


def nothing_below_the_floor_begins(life: Life) -> None:
    for name, want in WANTS.items():
        for target in life.stood:
            is_open = False
            for _, line in said_of(life, name, target):
                if not is_open:
                    assert RANK[line.present.judged.status] >= RANK[want.at_least]
                is_open = line.news is not News.RESOLVED


PROPERTIES = [nothing_twice, ok_only_after_bad, all_know_at_the_end, nothing_below_the_floor_begins]


@settings(max_examples=400)
@given(moves)
def test_every_life_of_a_fleet_is_told_right(story: list[Move]) -> None:
    life = live(story)
    for holds in PROPERTIES:
        holds(life)


# --- bugs planted: each must break its property


def _resolves_on_unknown(was: Told | None, present: Present, want: Want, now: float) -> Owed | None:
    if was is not None and present.judged.status is Status.UNKNOWN and not present.flapping:
        return Owed(News.RESOLVED, present, was)
    return owed(was, present, want, now)


def _tells_ok_unasked(was: Told | None, present: Present, want: Want, now: float) -> Owed | None:
    if was is None and present.judged.status is Status.OK and not present.flapping and present.before is not None:
        return Owed(News.RESOLVED, present, None)
    return owed(was, present, want, now)


def _forgets_to_resolve(was: Told | None, present: Present, want: Want, now: float) -> Owed | None:
    return None if present.judged.status is Status.OK else owed(was, present, want, now)


def _ignores_the_floor(was: Told | None, present: Present, want: Want, now: float) -> Owed | None:
    return owed(was, present, replace(want, at_least=Status.WARNING), now)


def _never_remembers(to: str, said: Owed, now: float) -> Told | None:
    return None


def _remembers_no_status(to: str, said: Owed, now: float) -> Told | None:
    found = told.heard(to, said, now)
    return replace(found, status=Status.CRITICAL) if found is not None else None


def _remembers_only_the_first_signals(to: str, said: Owed, now: float) -> Told | None:
    found = told.heard(to, said, now)
    return replace(found, signals=said.was.signals) if found is not None and said.was is not None else found


def _ignores_new_faults(was: Told | None, present: Present, want: Want, now: float) -> Owed | None:
    if was is not None:
        was = replace(was, signals=(*was.signals, *present.judged.signals))
    return owed(was, present, want, now)


PLANTED: dict[str, tuple[Callable[[Life], None], Judge, Hear]] = {
    "unknown resolves": (ok_only_after_bad, _resolves_on_unknown, told.heard),
    "OK is told unasked": (ok_only_after_bad, _tells_ok_unasked, told.heard),
    "OK is never told": (all_know_at_the_end, _forgets_to_resolve, told.heard),
    "the floor is ignored": (nothing_below_the_floor_begins, _ignores_the_floor, told.heard),
    "what was told is forgotten": (nothing_twice, owed, _never_remembers),
    "the state that was told is forgotten": (all_know_at_the_end, owed, _remembers_no_status),
    "only the first faults are remembered": (nothing_twice, owed, _remembers_only_the_first_signals),
    "a new fault is no news": (all_know_at_the_end, _ignores_new_faults, told.heard),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_each_property_catches_the_bug_planted_for_it(bug: str) -> None:
    holds, judge, hear = PLANTED[bug]

    @settings(phases=[Phase.generate], max_examples=500, database=None)
    @given(moves)
    def tried(story: list[Move]) -> None:
        holds(live(story, judge, hear))

    with pytest.raises(AssertionError):
        tried()


# --- single rules


def present(status: Status, *signals: str, flapping: bool = False, at: float = 50.0) -> Present:
    return Present("n", at, Judged(at, status, signals, "x"), at, flapping)


def heard_of(status: Status, *signals: str, flapping: bool = False, at: float = 10.0) -> Told:
    return Told("all", "n", status, signals, at, at, flapping)


@pytest.mark.parametrize(
    ("was", "now", "news"),
    [
        (None, present(Status.OK), None),
        (None, present(Status.WARNING), News.BEGAN),
        (None, present(Status.CRITICAL, flapping=True), News.FLAPPING),
        (heard_of(Status.CRITICAL, "a"), present(Status.CRITICAL, "a"), None),
        (heard_of(Status.CRITICAL, "a", "b"), present(Status.CRITICAL, "b"), None),
        (heard_of(Status.CRITICAL, "a"), present(Status.CRITICAL, "b"), News.CHANGED),
        (heard_of(Status.CRITICAL), present(Status.UNKNOWN), News.CHANGED),
        (heard_of(Status.CRITICAL), present(Status.OK), News.RESOLVED),
        (heard_of(Status.CRITICAL), present(Status.OK, flapping=True), News.FLAPPING),
        (heard_of(Status.CRITICAL, flapping=True), present(Status.OK, flapping=True), None),
        (heard_of(Status.OK, flapping=True), present(Status.OK), News.RESOLVED),
        (heard_of(Status.CRITICAL, flapping=True), present(Status.CRITICAL), News.RESTED),
    ],
)
def test_what_is_news(was: Told | None, now: Present, news: News | None) -> None:
    found = owed(was, now, Want(), 60.0)
    assert (found.news if found is not None else None) is news


def test_a_pager_hears_nothing_of_lesser_states_and_its_incident_stays_open_meanwhile() -> None:
    pager = Want(Status.CRITICAL)
    assert owed(None, present(Status.UNKNOWN), pager, 60.0) is None
    assert owed(heard_of(Status.CRITICAL), present(Status.WARNING), pager, 60.0) is None
    assert owed(heard_of(Status.CRITICAL), present(Status.CRITICAL), pager, 60.0) is None
    back = owed(heard_of(Status.CRITICAL), present(Status.OK), pager, 60.0)
    assert back is not None and back.news is News.RESOLVED


def test_a_reminder_comes_only_where_it_was_asked_for_and_begins_its_time_anew() -> None:
    was, now = heard_of(Status.CRITICAL), present(Status.CRITICAL)
    assert owed(was, now, Want(), 1e9) is None and owed(was, now, Want(remind_s=100.0), 109.0) is None
    again = owed(was, now, Want(remind_s=100.0), 110.0)
    assert again is not None and again.news is News.REMINDER
    after = told.heard("all", again, 110.0)
    assert after is not None and after.at == 110.0 and owed(after, now, Want(remind_s=100.0), 209.0) is None


def test_the_worst_is_told_first_and_what_was_delivered_is_not_owed() -> None:
    changes = [Transition(5.0, name, None, Judged(5.0, status)) for name, status in zip("abc", (1, 2, 0), strict=True)]
    book = stands(Notebook(), changes)
    first = all_owed(book, "all", Want(), 10.0)
    assert [o.present.target for o in first] == ["b", "a"]
    book = delivered(book, "all", first, 10.0)
    assert all_owed(book, "all", Want(), 11.0) == () and len(all_owed(book, "pager", Want(), 11.0)) == 2


def test_a_later_word_about_a_target_is_not_undone_by_an_earlier_one() -> None:
    late = Transition(20.0, "n", None, Judged(20.0, Status.OK))
    early = Transition(10.0, "n", None, Judged(10.0, Status.CRITICAL))
    assert stands(stands(Notebook(), [late]), [early]).present[0].judged.status is Status.OK


def test_since_is_when_the_state_began_not_when_flapping_ended() -> None:
    bad = Judged(10.0, Status.CRITICAL, ("a",))
    book = stands(Notebook(), [Transition(10.0, "n", None, bad)])
    book = stands(book, [Transition(30.0, "n", bad, replace(bad, at=30.0), flapping=True)])
    assert (book.present[0].since, book.present[0].flapping) == (10.0, True)


def test_a_notice_is_delivered_once_to_each_and_old_news_is_given_up() -> None:
    one = Notice(0.0, Event.GAVE_UP, "n", "it is broken")
    two = replace(one, at=told.KEPT_S)
    book = noted(noted(Notebook(), ("a", "b"), one), ("a",), two)
    assert [p.to for p in book.pending] == ["a", "b", "a"]
    kept, lost = given_up(book, told.KEPT_S + 1.0)
    assert [p.notice for p in kept.pending] == [two] and [p.to for p in lost] == ["a", "b"]
    assert told.done(kept, kept.pending).pending == ()


def test_that_something_is_over_takes_the_place_of_word_that_nobody_has_got_yet() -> None:
    opened, other = Notice(1.0, Event.BREAKER, "a", "failed"), Notice(1.0, Event.GAVE_UP, "a", "it is not well")
    book = noted(noted(Notebook(), ["x", "y"], opened), ["y"], other)
    closed = replace(opened, at=2.0, over=True)
    book = noted(book, ["x", "y"], closed)
    assert [(p.to, p.notice) for p in book.pending] == [("y", other), ("x", closed), ("y", closed)]
    assert opened in {p.notice for p in noted(book, ["x"], opened).pending}  # it opened again


def test_a_destination_that_is_not_configured_any_more_is_forgotten_but_the_hook_is_not() -> None:
    book = Notebook(told=(heard_of(Status.CRITICAL), replace(heard_of(Status.CRITICAL), to="")))
    assert [t.to for t in only(book, ["other"]).told] == [""]


def test_how_long_a_destination_was_not_reached_is_remembered_until_it_is() -> None:
    book = reached(reached(Notebook(), "a", "HTTP 500", 10.0), "a", "HTTP 403", 20.0)
    assert [(s.to, s.since, s.why, s.tries) for s in book.silent] == [("a", 10.0, "HTTP 403", 2)]
    assert reached(book, "a", "", 30.0).silent == ()
