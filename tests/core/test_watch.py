"""From looks to a state: k of n, one missed look, flapping; and properties over any row of looks.

Each property was seen to fail on a planted bug: see PLANTED at the end, which plants each again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from recover.core.watch import Policy, lasting, soft, step
from recover.model.watch import Judged, Standing, Status, Transition

OK, WARNING, CRITICAL, UNKNOWN = Status
LETTER = {"o": OK, "w": WARNING, "c": CRITICAL, "u": UNKNOWN}
POLICY = Policy()


def looks(letters: str, every: float = 60.0, begin: float = 1000.0) -> list[Judged]:
    return [
        Judged(begin + i * every, LETTER[c], ("dead-group",) if c == "c" else (), f"look {i}")
        for i, c in enumerate(letters)
    ]


def run(row: list[Judged], policy: Policy = POLICY) -> tuple[Standing, list[Transition]]:
    standing, changes = Standing("node"), []
    for look in row:
        standing, change = step(standing, look, policy)
        changes += [change] if change is not None else []
    return standing, changes


def told(letters: str, policy: Policy = POLICY) -> str:
    """The states in the order in which they came to last."""
    return "".join(c.after.status.name[0].lower() for c in run(looks(letters), policy)[1])


@pytest.mark.parametrize(
    ("letters", "states"),
    [
        ("o", ""),
        ("oo", "o"),
        ("oocc", "o"),
        ("ooccc", "oc"),
        ("oococ", "o"),
        ("oococc", "oc"),  # 3 of 4
        ("oocucc", "oc"),  # one missed look is tolerated
        ("oouo", "o"),
        ("oouu", "ou"),  # two are not
        ("ouououou", "ou"),  # every other look sees nothing: nobody knows how it is
        ("oouuoo", "ou"),
        ("oouuooo", "ouo"),
        ("ooccco", "oc"),
        ("oocccoo", "oco"),
        ("ooccccuo", "oc"),
        ("oocccouo", "oco"),
        ("oocccwo", "ocw"),
        ("oowww", "ow"),
        ("oowwc", "ow"),
        ("oowccc", "owc"),
        ("ooccuu", "ou"),
        ("oocccuu", "ocu"),  # nobody knows any more: that is no recovery
        ("ccc", "c"),
        ("ucucc", "uc"),
        ("uu", "u"),
        ("www", "w"),
    ],
)
def test_which_looks_change_the_state(letters: str, states: str) -> None:
    assert told(letters) == states


def test_a_look_alone_is_soft() -> None:
    standing, _ = run(looks("ooc"))
    assert standing.state is not None and standing.state.status is OK
    found = soft(standing)
    assert found is not None and found.status is CRITICAL
    assert soft(run(looks("oo"))[0]) is None and lasting(standing, POLICY) == frozenset()


def test_only_findings_that_lasted_are_in_the_state() -> None:
    row = looks("ccc")
    row[2] = replace(row[2], signals=("dead-group", "gpu-lost"))
    standing, _ = run(row)
    assert lasting(standing, POLICY) == {"dead-group"}


def test_another_finding_that_lasts_is_told_though_the_state_stays() -> None:
    row = looks("cccccc")
    row[3:] = [replace(r, signals=("dead-group", "gpu-lost")) for r in row[3:]]
    _, changes = run(row)
    assert [c.after.signals for c in changes] == [("dead-group",), ("dead-group", "gpu-lost")]


def test_looks_of_one_moment_are_one_look() -> None:
    assert run(looks("cccccc", every=1.0))[1] == []
    _, changes = run(looks("cc" * 8, every=10.0))
    assert [c.after.status for c in changes] == [CRITICAL]


def test_looks_a_day_apart_do_not_last() -> None:
    assert run(looks("ccccc", every=86400.0))[1] == []


def test_a_clock_set_back_makes_nobody_deaf() -> None:
    standing, _ = run(looks("oo", begin=1e9))
    for look in looks("ccc", begin=1e6):
        standing, _ = step(standing, look, POLICY)
    assert standing.state is not None and standing.state.status is CRITICAL


def test_a_look_that_comes_too_late_changes_nothing() -> None:
    standing, _ = run(looks("ooo"))
    assert step(standing, Judged(1010.0, CRITICAL), POLICY) == (standing, None)


def test_flapping_is_named_and_ends() -> None:
    standing, changes = run(looks("oc" * 6))
    assert standing.flapping and changes[-1].flapping
    calm, after = standing, []
    for look in looks("o" * 80, begin=3000.0):
        calm, change = step(calm, look, POLICY)
        after += [change] if change else []
    assert not calm.flapping and [c.flapping for c in after if c.after.status is OK][-1] is False
    assert not run(looks("oo" + "ou" * 20))[0].flapping  # what was not seen did not turn


row = st.lists(
    st.tuples(st.sampled_from("oowcccu"), st.sampled_from([0.0, 1.0, 19.0, 20.0, 61.0, 300.0, 3500.0])), max_size=30
)
policies = st.builds(
    Policy,
    bad=st.integers(1, 4),
    of=st.just(4),
    good=st.integers(1, 4),
    missed=st.integers(0, 3),
    flaps=st.integers(2, 9),
)
Step = Callable[[Standing, Judged, Policy], tuple[Standing, Transition | None]]


def timed(drawn: list[tuple[str, float]]) -> list[Judged]:
    at, found = 1000.0, []
    for letter, gap in drawn:
        at += gap
        found.append(Judged(at, LETTER[letter], ("dead-group",) if letter == "c" else ()))
    return found


def became(change: Transition | None, status: Status) -> bool:
    if change is None or change.after.status is not status:
        return False
    return change.before is None or change.before.status is not status


def never_worse_without_enough_looks(drawn: list[Judged], policy: Policy, step: Step) -> None:
    """CRITICAL needs `bad` moments that said so, none of them forgotten."""
    standing = Standing("node")
    for n, look in enumerate(drawn):
        standing, change = step(standing, look, policy)
        if became(change, CRITICAL):
            since = look.at - policy.forget_s - policy.apart_s
            said = {r.at for r in drawn[: n + 1] if r.status is CRITICAL and r.at > since}
            assert len(said) >= policy.bad
            counted = [r.at for r in standing.recent if r.status is CRITICAL]
            assert all(b - a >= 20.0 for a, b in pairwise(counted))


def never_well_without_sight(drawn: list[Judged], policy: Policy, step: Step) -> None:
    """OK is said only after `good` looks that saw it well, and never while too many looks saw nothing."""
    standing = Standing("node")
    for look in drawn:
        standing, change = step(standing, look, policy)
        if became(change, OK):
            assert [r.status for r in standing.recent if r.status is not UNKNOWN][-policy.good :] == [OK] * policy.good
        if sum(r.status is UNKNOWN for r in standing.recent[-policy.of :]) > policy.missed:
            assert standing.state is not None and standing.state.status is UNKNOWN


def changes_are_told_once(drawn: list[Judged], policy: Policy, step: Step) -> None:
    """Each change begins with the state in which the one before it ended, and says something new."""
    status: Status | None = None
    standing, flapping = Standing("node"), False
    for look in drawn:
        standing, change = step(standing, look, policy)
        if change is not None and standing.state is not None:
            assert (change.before.status if change.before else None) == status
            assert change.after.status is not status or change.flapping is not flapping
            status, flapping = change.after.status, change.flapping


def what_is_kept_is_bounded(drawn: list[Judged], policy: Policy, step: Step) -> None:
    standing = Standing("node")
    for look in timed([(r.status.name[0].lower(), 61.0) for r in drawn] * 5):
        standing, _ = step(standing, look, policy)
    assert len(standing.recent) <= policy.of + policy.missed and len(standing.changed) <= 4 * policy.flaps


Property = Callable[[list[Judged], Policy, Step], None]
PROPERTIES: tuple[Property, ...] = (
    never_worse_without_enough_looks,
    never_well_without_sight,
    changes_are_told_once,
    what_is_kept_is_bounded,
)


def hold(holds: Property, step: Step = step, phases: tuple[Phase, ...] = tuple(Phase)) -> None:
    @settings(max_examples=120, deadline=None, derandomize=True, phases=phases)
    @given(row, policies)
    def check(drawn: list[tuple[str, float]], policy: Policy) -> None:
        holds(timed(drawn), policy, step)

    check()


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda f: f.__name__)
def test_property(holds: Property) -> None:
    hold(holds)


def _soft_is_hard(standing: Standing, look: Judged, policy: Policy) -> tuple[Standing, Transition | None]:
    return step(standing, look, replace(policy, bad=max(1, policy.bad - 1)))


def _moments_are_many(standing: Standing, look: Judged, policy: Policy) -> tuple[Standing, Transition | None]:
    return step(standing, look, replace(policy, apart_s=0.0))


def _misses_never_end(standing: Standing, look: Judged, policy: Policy) -> tuple[Standing, Transition | None]:
    return step(standing, look, replace(policy, missed=policy.of))


def _told_again(standing: Standing, look: Judged, policy: Policy) -> tuple[Standing, Transition | None]:
    after, change = step(standing, look, policy)
    if change is None and after.state is not None and after.state.status is CRITICAL:
        change = Transition(look.at, "node", standing.state, after.state)
    return after, change


def _nothing_forgotten(standing: Standing, look: Judged, policy: Policy) -> tuple[Standing, Transition | None]:
    after, change = step(standing, look, policy)
    return replace(after, recent=(*standing.recent, look)), change


PLANTED: tuple[tuple[Property, Step], ...] = (
    (never_worse_without_enough_looks, _soft_is_hard),
    (never_worse_without_enough_looks, _moments_are_many),
    (never_well_without_sight, _misses_never_end),
    (changes_are_told_once, _told_again),
    (what_is_kept_is_bounded, _nothing_forgotten),
)


@pytest.mark.parametrize(("holds", "bug"), PLANTED, ids=lambda f: f.__name__)
def test_planted_bug_is_caught(holds: Property, bug: Step) -> None:
    with pytest.raises(AssertionError):
        hold(holds, bug, (Phase.generate,))
