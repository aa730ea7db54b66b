"""Hooks of a run with real programs: what drains is written down first, declines when it fails, and is made good."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.core.config_notify import Hook
from recover.core.fold import fold
from recover.core.hooks import disrupted
from recover.edge import hooks
from recover.edge.hooks import HookedGate, at_the_end, left_cut, left_open, run_hook
from recover.edge.simulated import FAULTS
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import FileJournal, read_entries
from recover.model.act import Blast, Line
from recover.model.notice import HookEvent
from recover.model.record import Acting, Began, Closed, Consented, Entry, Hooked, Hooking, Opened, Try
from recover.model.snapshot import Target
from recover.model.verdict import Diagnosis, Scope, State
from tests.core.world import CutJournal, Played, Silence, YesGate, play

BEFORE, AFTER, GAVE_UP = HookEvent.BEFORE_DISRUPTION, HookEvent.AFTER_RECOVERY, HookEvent.GAVE_UP
TARGET = Target("node-174", "10.0.0.1", vmid=174)
LINE = Try(2, "reset-gpu", Line(()), 1, Scope.GPU, "it is dead")
SICK = Diagnosis(State.FAULTY, ())
NOBODY = Blast(Scope.GPU, (), 1.0)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "PAUSE_S", 0.0)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """What hooks were given on stdin so far."""
    return lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


@pytest.fixture
def three(tmp_path: Path) -> dict[HookEvent, Hook]:
    """Hooks that write down what they were given, and fail while a file `fail-EVENT` stands there."""
    (tmp_path / "log").touch()
    body = f'cat >> {tmp_path}/log; if [ -e {tmp_path}/fail-$1 ]; then echo "drain: node is busy" >&2; exit 3; fi'
    program = script(tmp_path / "hook", body)
    return {event: Hook(event, (program, "{event}"), 30.0) for event in (BEFORE, AFTER, GAVE_UP)}


def gate(hook: Hook, write: Callable[[Entry], None], inner: YesGate | None = None) -> HookedGate:
    return HookedGate(inner or YesGate(), hook, TARGET, "r1", write, lambda: 1.0, Silence())


# --- one hook


def test_what_it_says_last_is_kept_clean_and_without_secrets(tmp_path: Path) -> None:
    program = script(tmp_path / "h", "echo first >&2; printf '\\033[31mno: --token hunter2abc\\n' >&2; exit 7")
    outcome = run_hook(Hook(GAVE_UP, (program,)), {"target": "n"})
    assert not outcome.ok and outcome.detail == "ended with 7: no: --token ***"


@pytest.mark.parametrize("text", ["exit 2", "echo on stdout; exit 2"])
def test_without_a_word_on_stderr_the_code_and_stdout_speak(tmp_path: Path, text: str) -> None:
    outcome = run_hook(Hook(GAVE_UP, (script(tmp_path / "h", text),)), {})
    assert outcome.detail == "ended with 2" + (": on stdout" if "stdout" in text else "")


def test_a_flood_leaves_one_short_line(tmp_path: Path) -> None:
    code = "import sys; sys.stderr.write('x' * 3_000_000 + '\\n' + 'y' * 500_000); sys.exit(1)"
    outcome = run_hook(Hook(GAVE_UP, (sys.executable, "-c", code)), {})
    assert not outcome.ok and len(outcome.detail) < 300


def test_a_missing_program_and_one_that_hangs_are_said(tmp_path: Path) -> None:
    assert run_hook(Hook(GAVE_UP, (str(tmp_path / "nothing"),)), {}).detail.startswith("cannot be run: No such file")
    hung = run_hook(Hook(GAVE_UP, ("sleep", "600"), 0.3), {})
    assert not hung.ok and hung.detail == "did not end within 0.3 s and was ended"


def test_a_target_that_would_pass_for_an_option_is_not_given(tmp_path: Path) -> None:
    outcome = run_hook(Hook(BEFORE, ("touch", "{target}")), {"target": "--help"})
    assert not outcome.ok and "taken for an option" in outcome.detail and not outcome.changed


def test_no_secret_of_ours_is_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER_URL", "pagerduty://hunter2")
    program = script(tmp_path / "h", f"env > {tmp_path}/env")
    assert run_hook(Hook(BEFORE, (program,)), {}).ok and "hunter2" not in (tmp_path / "env").read_text()


# --- the gate


def test_it_is_written_down_before_it_is_run(three: dict[HookEvent, Hook], tmp_path: Path) -> None:
    seen: list[tuple[Entry, str]] = []
    answer = gate(three[BEFORE], lambda e: seen.append((e, (tmp_path / "log").read_text()))).ask(LINE, NOBODY, SICK)
    assert answer.said == "yes"
    (began, before), (ended, after) = seen
    assert isinstance(began, Hooking) and began.step == "reset-gpu" and before == ""
    assert isinstance(ended, Hooked) and ended.outcome.ok and json.loads(after)["step"] == "reset-gpu"


def test_without_consent_it_is_not_run(three: dict[HookEvent, Hook]) -> None:
    seen: list[Entry] = []
    assert gate(three[BEFORE], seen.append, YesGate(upto=Scope.PROCESS)).ask(LINE, NOBODY, SICK).said == "no"
    assert seen == []


def test_when_it_fails_the_step_is_declined_with_its_words_and_the_way_out(
    three: dict[HookEvent, Hook], tmp_path: Path
) -> None:
    (tmp_path / "fail-before-disruption").touch()
    answer = gate(three[BEFORE], [].append).ask(LINE, NOBODY, SICK)
    assert (answer.said, answer.by) == ("no", "the before-disruption hook")
    assert answer.why.startswith("refused (hook): ") and answer.why.endswith("ended with 3: drain: node is busy")
    assert "required = false" in answer.lift


def test_one_that_is_not_required_fails_without_declining(three: dict[HookEvent, Hook], tmp_path: Path) -> None:
    (tmp_path / "fail-before-disruption").touch()
    seen: list[Entry] = []
    assert gate(replace(three[BEFORE], required=False), seen.append).ask(LINE, NOBODY, SICK).said == "yes"
    assert isinstance(seen[-1], Hooked) and not seen[-1].outcome.ok


def test_it_is_run_once_per_scope_and_not_below_its_own(
    three: dict[HookEvent, Hook], noted: Callable[[], list[dict[str, Any]]]
) -> None:
    asked = gate(replace(three[BEFORE], at_least=Scope.GPU), [].append)
    for scope in (Scope.PROCESS, Scope.GPU, Scope.GPU, Scope.PROCESS, Scope.VM, Scope.GPU):
        assert asked.ask(replace(LINE, scope=scope), NOBODY, SICK).said == "yes"
    assert [line["scope"] for line in noted()] == ["gpu", "vm"]


# --- whole runs against the simulated machine


def whole(
    three: dict[HookEvent, Hook], state: StateFolder, journal: CutJournal, first: Played | None = None,
    fault: str = "dead-rank",
) -> Played:  # fmt: skip
    """One run with its hooks; where the journal kills it, nothing of it goes on."""
    asked = HookedGate(YesGate(), three[BEFORE], TARGET, "test-run", journal.append, lambda: 1.0, Silence())
    machine = first.machine if first is not None else None
    played = play(FAULTS[fault], gate=asked, journal=journal, machine=machine)  # type: ignore[arg-type]
    if played.closed is not None:
        at_the_end(three, state, TARGET, "test-run", journal.entries(), played.closed, journal.append, lambda: 1.0)
    return played


def test_a_run_that_recovers_drains_first_and_gives_back_last(
    three: dict[HookEvent, Hook], tmp_path: Path, noted: Callable[[], list[dict[str, Any]]]
) -> None:
    played = whole(three, StateFolder(tmp_path / "state"), CutJournal())
    assert [line["event"] for line in noted()] == ["before-disruption", "after-recovery"]
    kinds = [type(e).__name__ for e in played.entries if isinstance(e, (Hooking, Hooked, Consented, Began, Closed))]
    assert kinds == ["Hooking", "Hooked", "Consented", "Began", "Closed", "Hooking", "Hooked"]
    assert noted()[-1]["tried"] == ["stop-service"] and noted()[-1]["disrupted"] is True


def test_when_it_fails_nothing_is_done_and_gave_up_follows(
    three: dict[HookEvent, Hook], tmp_path: Path, noted: Callable[[], list[dict[str, Any]]]
) -> None:
    (tmp_path / "fail-before-disruption").touch()
    played = whole(three, StateFolder(tmp_path / "state"), CutJournal())
    assert played.end == "blocked" and not any(isinstance(e, (Began, Acting)) for e in played.entries)
    assert [line["event"] for line in noted()] == ["before-disruption", "gave-up"]
    assert played.closed is not None and "drain: node is busy" in played.closed.end.why


def test_killed_at_any_entry_the_next_run_still_gives_back_what_was_drained(
    three: dict[HookEvent, Hook], tmp_path: Path
) -> None:
    """Without the kill the run has so many entries; a run that was killed at each of them is gone on with."""
    state, log = StateFolder(tmp_path / "state"), tmp_path / "log"
    length = len(whole(three, state, CutJournal()).entries)
    drained = 0
    for cut in range(1, length + 1):
        log.write_text("")
        with_kill = CutJournal(cut=cut)
        try:
            first = whole(three, state, with_kill)
        except BaseException as error:  # the kill came while hooks were run at the end
            assert type(error).__name__ == "Killed"
            continue
        if first.closed is not None:
            continue
        open_then = disrupted(first.entries)
        first.machine.clock.sleep(20.0)
        second = whole(three, state, CutJournal(lines=first.journal.lines), first)
        said = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert disrupted(second.entries) is not True, f"killed at entry {cut}: {said}"
        if open_then:
            drained += 1
            assert said[-1] == "after-recovery", f"killed at entry {cut}: {said}"
    assert drained >= 5


def test_killed_while_hooks_are_run_at_the_end_the_next_run_runs_them(
    three: dict[HookEvent, Hook], tmp_path: Path, noted: Callable[[], list[dict[str, Any]]]
) -> None:
    state = StateFolder(tmp_path / "state")
    first = whole(three, state, CutJournal())
    lines = first.journal.lines[:-1]  # the last is how after-recovery ended
    assert isinstance(lines[-1], Hooking) and fold(lines).closed is not None
    second = whole(three, state, CutJournal(lines=lines), first)
    assert second.end == "healthy" and noted()[-1]["event"] == "after-recovery" and noted()[-1]["end"] == "healthy"


# --- what earlier runs left open


def journal_of(state: StateFolder, run: str, *entries: Entry) -> None:
    file = FileJournal(state.run("node-174", run))
    for entry in (Opened(0.0, run, "node-174", "p", "d", "kim", "ops1", 1, 0.0), *entries):
        file.append(entry)
    file.close()


def test_what_an_older_run_left_open_is_found_behind_runs_that_say_nothing(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    assert left_open(state, "node-174") is False
    journal_of(state, "20261130T010000Z", Hooking(1.0, BEFORE.value, "drain"))
    journal_of(state, "20261130T020000Z")
    assert left_open(state, "node-174") is True
    assert left_open(state, "node-174", "20261130T010000Z") is False
    journal_of(state, "20261130T030000Z", Hooked(2.0, AFTER.value, run_hook(Hook(AFTER, ("true",)), {})))
    assert left_open(state, "node-174") is False


def test_a_hook_that_was_cut_is_told_by_the_next_run_and_by_no_other(tmp_path: Path) -> None:
    """Seen to fail where the run that had told it was gone on with: it told it again."""
    state, first, second = StateFolder(tmp_path), "20261130T010000Z", "20261130T020000Z"
    journal_of(state, first, Hooking(1.0, BEFORE.value, "drain"))
    assert left_cut(state, "node-174", first, read_entries(state.run("node-174", first) / "journal.jsonl")), (
        "gone on with"
    )
    told = left_cut(state, "node-174", second, ())
    assert len(told) == 1 and not told[0].outcome.clear and first in told[0].outcome.detail
    journal_of(state, second, *told)
    entries = list(read_entries(state.run("node-174", second) / "journal.jsonl"))
    assert left_cut(state, "node-174", second, entries) == () == left_cut(state, "node-174", "20261130T030000Z", ())
    assert left_open(state, "node-174") is True, "and it is owed all the same"


def test_a_later_run_that_finds_all_well_gives_back_and_says_so_in_its_own_journal(
    three: dict[HookEvent, Hook], tmp_path: Path, noted: Callable[[], list[dict[str, Any]]]
) -> None:
    state = StateFolder(tmp_path / "state")
    journal_of(state, "20261130T010000Z", Hooking(1.0, BEFORE.value, "drain"))
    played = play(FAULTS["healthy"])
    assert played.closed is not None
    journal_of(state, "20261130T020000Z", *played.entries)
    file = FileJournal(state.run("node-174", "20261130T020000Z"))
    said = at_the_end(three, state, TARGET, "20261130T020000Z", file.entries(), played.closed, file.append, lambda: 1.0)
    file.close()
    assert said == () and [line["event"] for line in noted()] == ["after-recovery"]
    assert isinstance(list(read_entries(file.path))[-1], Hooked) and left_open(state, "node-174") is False


def test_one_that_fails_at_the_end_is_tried_again_said_and_owed(
    three: dict[HookEvent, Hook], tmp_path: Path, noted: Callable[[], list[dict[str, Any]]]
) -> None:
    state, journal = StateFolder(tmp_path / "state"), CutJournal()
    (tmp_path / "fail-after-recovery").touch()
    asked = HookedGate(YesGate(), three[BEFORE], TARGET, "r", journal.append, lambda: 1.0, Silence())
    played = play(FAULTS["dead-rank"], gate=asked, journal=journal)  # type: ignore[arg-type]
    assert played.closed is not None
    (said,) = at_the_end(three, state, TARGET, "r", journal.lines, played.closed, journal.append, lambda: 1.0)
    assert [line["event"] for line in noted()] == ["before-disruption", "after-recovery", "after-recovery"]
    assert (
        "after-recovery failed" in said and "drain: node is busy" in said and "the next run's end tries again" in said
    )
    assert disrupted(journal.lines) is True


def test_without_hooks_nothing_is_read_and_nothing_run(tmp_path: Path) -> None:
    played = play(FAULTS["dead-rank"])
    assert played.closed is not None
    nowhere = StateFolder(tmp_path / "nowhere")
    assert at_the_end({}, nowhere, TARGET, "r", played.entries, played.closed, [].append, lambda: 1.0) == ()
    assert not nowhere.root.exists()
