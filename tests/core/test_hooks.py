"""Which hook a run's end owes, from journals alone: what was drained is given back or handed on, nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core import hooks
from recover.core.hooks import LONGEST, MOST, cut, disrupted, due, hook_runs, words
from recover.model.act import Blast, Hit, Line, Outcome
from recover.model.notice import HookEvent, Present
from recover.model.record import (
    Began,
    Closed,
    Consented,
    End,
    EndKind,
    Entry,
    Hooked,
    Hooking,
    Opened,
    Saw,
    Try,
    Vitals,
)
from recover.model.snapshot import Target
from recover.model.verdict import Diagnosis, Finding, Scope, State
from recover.model.watch import Judged, Status

BEFORE, AFTER, GAVE_UP = HookEvent.BEFORE_DISRUPTION, HookEvent.AFTER_RECOVERY, HookEvent.GAVE_UP
ALL = frozenset(HookEvent)
OPENED = Opened(0.0, "r1", "node-174", "hung-server", "d", "kim", "ops1", 1, 0.0)
TARGET = Target("node-174", "10.0.0.1", cluster="pve", vmid=174)


def closed(kind: EndKind) -> Closed:
    return Closed(9.0, End(kind, "because", "gpu-recover x"))


def begun(event: HookEvent = BEFORE) -> Hooking:
    return Hooking(1.0, event.value, "drain")


def done(event: HookEvent, ok: bool = True) -> Hooked:
    return Hooked(2.0, event.value, Outcome(ok))


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([], None),
        ([OPENED, done(AFTER)], False),
        ([begun()], True),  # killed in the middle of it: what it did is not known, so it is owed
        ([begun(), done(BEFORE, ok=False)], True),
        ([begun(), done(BEFORE), begun(AFTER)], True),
        ([begun(), done(BEFORE), begun(AFTER), done(AFTER, ok=False)], True),
        ([begun(), done(BEFORE), begun(AFTER), done(AFTER)], False),
        ([begun(), done(BEFORE), begun(GAVE_UP), done(GAVE_UP)], False),
        ([begun(), done(BEFORE), done(GAVE_UP), OPENED, begun()], True),
    ],
)
def test_what_is_open(entries: list[Entry], says: bool | None) -> None:
    assert disrupted(entries) is says


STEPS = st.sampled_from([begun(e) for e in (BEFORE, AFTER, GAVE_UP)] + [OPENED, *(done(e) for e in ALL)])


@given(st.lists(STEPS, max_size=8))
def test_a_hook_that_was_cut_is_told_of_once_and_settles_nothing(entries: list[Entry]) -> None:
    """Whether the run after it goes on in the same journal, or has its own. Seen to fail where the word counted."""
    told = cut(entries)
    last = next((e for e in reversed(entries) if isinstance(e, (Hooking, Hooked))), None)
    assert bool(told) is isinstance(last, Hooking)
    for entry in told:
        assert entry.event == last.event and not entry.outcome.ok and not entry.outcome.clear  # type: ignore[union-attr]
    assert cut([*entries, OPENED, *told]) == () and cut([OPENED, *told], "r0") == ()
    assert disrupted([*entries, OPENED, *told]) is disrupted(entries) and disrupted([OPENED, *told]) is None
    begun_then = sum(isinstance(e, Hooking) for e in entries)
    assert sum(run.outcome is None for run in hook_runs([*entries, *told])) <= max(0, begun_then - len(told))


WELL = [EndKind.HEALTHY, EndKind.RECOVERED]
UNWELL = [EndKind.EXHAUSTED, EndKind.BLOCKED, EndKind.NEEDS_HUMAN, EndKind.OUT_OF_TIME, EndKind.CANNOT_TELL]


@pytest.mark.parametrize("kind", EndKind)
def test_a_drained_target_never_stays_drained_in_silence(kind: EndKind) -> None:
    """Whatever the end is: if this run, or one that was killed before, drained it, somebody is told or it is undone."""
    run = [OPENED, begun(), done(BEFORE), closed(kind)]
    if kind is not EndKind.PLANNED:  # a plan runs no hook
        assert due(run, False, ALL, closed(kind)) is (AFTER if kind in WELL else GAVE_UP)
    later = [OPENED, closed(kind)]
    if kind not in (EndKind.PLANNED, EndKind.HELD):  # held: the run that holds it now ends some time
        assert due(later, True, ALL, closed(kind)) is (AFTER if kind in WELL else GAVE_UP)


@pytest.mark.parametrize("kind", EndKind)
def test_what_was_never_drained_is_not_undrained(kind: EndKind) -> None:
    found = due([OPENED, closed(kind)], False, ALL, closed(kind))
    assert found is (GAVE_UP if kind in UNWELL else None)


def test_after_gave_up_the_target_is_a_persons() -> None:
    run = [OPENED, begun(), done(BEFORE), closed(EndKind.EXHAUSTED), begun(GAVE_UP), done(GAVE_UP)]
    assert due([*run, OPENED, closed(EndKind.HEALTHY)], False, ALL, closed(EndKind.HEALTHY)) is None
    again = [*run, OPENED, begun(), done(BEFORE), closed(EndKind.RECOVERED)]
    assert due(again, False, ALL, closed(EndKind.RECOVERED)) is AFTER


def test_without_a_before_disruption_hook_every_recovery_is_told_and_only_those() -> None:
    configured = frozenset({AFTER})
    assert due([OPENED], False, configured, closed(EndKind.RECOVERED)) is AFTER
    assert due([OPENED], False, configured, closed(EndKind.HEALTHY)) is None
    assert due([OPENED], False, configured, closed(EndKind.EXHAUSTED)) is None


def test_an_interrupted_run_that_drained_nothing_tells_nobody() -> None:
    assert due([OPENED], False, ALL, closed(EndKind.INTERRUPTED)) is None


# --- words for argv


def test_known_words_are_replaced_and_no_others() -> None:
    data = {"target": "node-174", "run": "r1", "event": "gave-up", "vmid": None, "end": "exhausted", "step": None}
    argv = ("scontrol", "NodeName={target}", "{vmid}", "{end}-{event}", '{"spec": {"x": 1}}', "{unknown}")
    assert words(argv, data) == (
        "scontrol", "NodeName=node-174", "", "exhausted-gave-up", '{"spec": {"x": 1}}', "{unknown}",
    )  # fmt: skip
    assert words(("tell", "{state}"), {"after": {"state": "CRITICAL"}}) == ("tell", "CRITICAL")


def test_a_value_never_passes_for_an_option() -> None:
    refused = words(("kubectl", "cordon", "{target}"), {"target": "--all"})
    assert isinstance(refused, str) and "--all" in refused
    assert words(("kubectl", "--node={target}"), {"target": "--all"}) == ("kubectl", "--node=--all")


def test_a_value_is_one_word_and_clean() -> None:
    found = words(("echo", "{target}"), {"target": "a\x1b[31m b;rm -rf /\n"})
    assert found == ("echo", "a b;rm -rf /")


# --- what is told on stdin


def test_before_a_disruption_who_is_hit_and_why_is_told_and_the_whole_stays_small() -> None:
    long = "x" * 5000
    hits = tuple(Hit("group", long, long) for _ in range(100))
    findings = tuple(Finding("dead-group", long, Scope.PROCESS, long) for _ in range(100))
    attempt = Try(2, "reset-gpu", Line(()), 1, Scope.GPU, "\x1b[1mit is dead")
    made = hooks.before(TARGET, "r1", 5.0, attempt, Blast(Scope.GPU, hits, 2.0), Diagnosis(State.FAULTY, findings))
    assert {k: made[k] for k in ("schema", "event", "target", "run", "vmid", "cluster", "step", "scope", "why")} == {
        "schema": 1, "event": "before-disruption", "target": "node-174", "run": "r1", "vmid": 174, "cluster": "pve",
        "step": "reset-gpu", "scope": "gpu", "why": "it is dead",
    }  # fmt: skip
    assert len(made["hits"]) == len(made["findings"]) == MOST and len(made["hits"][0]["name"]) == LONGEST
    assert len(json.dumps(made)) < 60_000


def test_at_the_end_how_it_ended_and_what_was_tried_is_told() -> None:
    saw = Saw(1.0, None, Vitals(), Diagnosis(State.FAULTY, ()))
    entries = [OPENED, saw, Began(2.0, 0, "end-workers", 1, Scope.PROCESS), closed(EndKind.EXHAUSTED)]
    made = hooks.after(GAVE_UP, TARGET, "r1", 9.5, entries, opened=True)
    assert made["end"] == "exhausted" and made["exit_code"] == 10 and made["next"] == "gpu-recover x"
    assert made["tried"] == ["end-workers"] and made["seconds"] == 9.0 and made["disrupted"] is True
    recovered = hooks.after(AFTER, TARGET, "r1", 9.5, [OPENED, replace(closed(EndKind.RECOVERED), service="failed")],
                            opened=True)  # fmt: skip
    assert recovered["service"] == "failed" and recovered["exit_code"] == 15


def test_a_change_of_state_is_told_with_both_states() -> None:
    bad = Judged(5.0, Status.CRITICAL, ("dead-group",), "it is dead")
    made = hooks.change(TARGET, Present("node-174", 5.0, bad, 5.0, False, Judged(1.0, Status.OK), 1.0))
    assert made["event"] == "state-change" and made["run"] is None and made["before"]["state"] == "OK"
    assert made["after"] == {"state": "CRITICAL", "signals": ["dead-group"], "says": "it is dead", "since": 5.0}
    assert hooks.change(TARGET, Present("node-174", 5.0, bad, 5.0))["before"] is None


def test_a_hook_is_no_prompt() -> None:
    """An unattended run was told to have waited for a person: its consent came after the hook that it ran."""
    hook = Hooked(3.0, BEFORE.value, Outcome(True, seconds=2.0))
    consent = Consented(3.0, "end-workers", "watch", waited_s=2.1)
    assert hooks.prompted([begun(), hook, consent]) == pytest.approx(0.1)
    assert hooks.prompted([begun(), hook, consent, replace(consent, waited_s=30.0)]) == pytest.approx(30.1)
    assert hooks.prompted([begun(AFTER), replace(hook, event=AFTER.value), consent]) == pytest.approx(2.1)
