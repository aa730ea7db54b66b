"""history over real journals on disk: the list, the figures, the span, and what can't be read is named."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.cli.history import hook_cell
from recover.cli.runs import past_runs
from recover.core.lookback import HookTold, look_back, tell
from recover.edge.store.cases import glances, recorded, told_run
from recover.edge.store.folder import StateFolder, plain_name, safe_name
from recover.edge.store.journal import FileJournal, read_entries
from tests.cli.conftest import Cli
from tests.cli.simulated import SimulatedApp
from tests.scenarios.play import folders, run

Machines = Callable[..., SimulatedApp]


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path / "state")


def keep(state: StateFolder, target: str, name: str, scenario: str, most: int | None = None) -> Path:
    """A run of a scenario, as it would lie on disk."""
    folder = state.run(target, name)
    journal = FileJournal(folder)
    for entry in run(scenario)[0].entries[:most]:
        journal.append(entry)
    journal.close()
    return folder


@pytest.mark.parametrize("scenario", [f for f in folders() if f != "container-stop-hangs"][::9])
def test_a_glance_tells_the_same_as_the_whole_journal(state: StateFolder, scenario: str) -> None:
    for most in (None, 7, 20):
        path = keep(state, "node-174", f"r{most}", scenario, most) / "journal.jsonl"
        assert tell(glances(path), alive=False) == tell(read_entries(path), alive=False)


def test_a_torn_line_is_left_out_and_damage_is_named(state: StateFolder) -> None:
    folder = keep(state, "node-174", "20261130T122103Z-node-174-ea10", "incident")
    path = folder / "journal.jsonl"
    whole, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-30])
    torn = told_run(folder, alive=False)
    assert torn is not None and torn.end == "cut" and recorded(folder).damage.endswith("cut while it was written")
    for bad in (b"{}\n", b"\n", b'{"$":"Opened"}\n', b'{"$":"Closed"}\n', b'{"$":"Acting","at\n', b"\xff\x00\n"):
        path.write_bytes(b"".join(lines[:3]) + bad + b"".join(lines[3:]))
        found = told_run(folder, alive=False)
        assert found is not None and found.end == "unreadable" and "journal.jsonl:4" in found.broken, bad
        assert found.began > 1.7e9, "its id tells when it was"
        part = recorded(folder)
        assert len(part.entries) == 3 and "journal.jsonl:4" in part.damage
    path.write_bytes(whole)
    assert recorded(folder).damage == "" and len(recorded(folder).entries) == len(lines)
    path.write_bytes(b"")
    assert told_run(folder, alive=False) is None and recorded(folder) == type(recorded(folder))(())


def test_a_name_that_is_no_file_name_is_found_again(state: StateFolder, cli: Cli) -> None:
    for name in ("2001:db8::1", "%41", "a/b", "node-174", "ü"):
        assert plain_name(safe_name(name)) == name
    keep(state, "2001:db8::1", "20261130T122103Z-2001:db8::1-ea10", "healthy")
    assert state.target_names() == ["2001:db8::1"] and len(state.all_runs()) == 1
    assert "healthy" in cli("history").out and "healthy" in cli("history", "2001:db8::1").out


def test_the_figures_of_several_targets(state: StateFolder, cli: Cli) -> None:
    keep(state, "node-174", "a", "incident")
    keep(state, "node-174", "b", "healthy")
    keep(state, "node-175", "c", "orphaned", 4)
    bad = keep(state, "node-175", "d", "healthy")
    (bad / "journal.jsonl").write_text('{"$":"Opened"}\nnonsense\n')
    ran = cli("history", "--summary")
    assert ran.code == 0 and ran.out.startswith("4 runs on 2 targets, ")
    assert "recovered 1" in ran.out and "power-cycle-vm" in ran.out and "too few for a p50" in ran.out
    assert "d is not counted" in ran.err and "journal.jsonl:1" in ran.err
    found = json.loads(cli("history", "--summary", "--json").out)
    assert found["fleet"]["ends"] == {"cut": 1, "healthy": 1, "recovered": 1, "unreadable": 1}
    assert found["unreadable"][0]["run"] == "d"
    one = json.loads(cli("history", "--summary", "--json", "node-174").out)
    assert one["fleet"]["runs"] == 2
    lines = [json.loads(line) for line in cli("history", "--json").out.splitlines()]
    assert len(lines) == 4 and {"target", "run", "began", "ended", "end", "code", "tried", "who", "goes_on",
                                "broken", "cured_by", "lost_s", "fault_at"} <= set(lines[0])  # fmt: skip


def test_the_span_that_was_asked_for(state: StateFolder, cli: Cli) -> None:
    keep(state, "node-174", "20270115T080000Z-node-174-ea10", "healthy")
    assert "no runs in that time" in cli("history", "--since", "2027-02-01").out
    assert "no runs in that time" in cli("history", "--until", "2027-01-15T07:59:59Z").out
    for since in ("2027-01-15T08:00Z", "2026-12-01"):
        assert "healthy" in cli("history", "--since", since, "--until", "2027-02-01").out
    assert cli("history", "--summary", "--until", "2026-01-01").out.startswith("0 runs on 0 targets")
    wrong = cli("history", "--since", "last week")
    assert wrong.code == 2 and "--since last week" in wrong.err and "7d" in wrong.err


def test_the_list_is_limited_and_the_figures_are_not(state: StateFolder, cli: Cli) -> None:
    for n in range(4):
        keep(state, "node-174", f"20261130T12210{n}Z-node-174-ea1{n}", "healthy")
    assert len(cli("history", "--limit", "2").out.splitlines()) == 3
    assert cli("history", "--summary", "--limit", "2").out.startswith("4 runs")


def test_nothing_there_yet(cli: Cli) -> None:
    assert cli("history").out.startswith("no runs in ")
    assert cli("history", "--summary").out.startswith("0 runs on 0 targets")
    assert cli("history", "--json").out == ""


def test_one_journal_at_a_time_is_in_memory(state: StateFolder) -> None:
    """Peak memory does not grow with the number of journals; a figure is a few hundred bytes per run."""
    whole = (keep(state, "node-174", "20261130T122100Z-node-174-0000", "incident") / "journal.jsonl").read_bytes()
    folders = []
    for n in range(80):
        folder = state.run("node-175", f"20261130T122100Z-node-175-{n:04}")
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_bytes(whole)
        folders.append(folder)

    def peak(some: list[Path]) -> int:
        tracemalloc.start()
        try:
            look_back(past_runs(some), None, None, 2e9)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(folders[:1])  # what is loaded once
    few, many = peak(folders[:10]), peak(folders)
    assert many - few < 70 * 4096 < 70 * len(whole) / 10, (few, many)


def test_hooks_of_one_run_are_told_in_few_words() -> None:
    def hook(event: str, ok: bool | None, seconds: float | None = 0.4) -> HookTold:
        return HookTold(event, 1.0, ok, seconds)

    drain, back = hook("before-disruption", True), hook("after-recovery", False, 61.0)
    assert hook_cell([]) == ("none", "plain") and hook_cell([drain]) == ("before-disruption", "plain")
    assert hook_cell([drain, drain, drain, back]) == (
        "before-disruption 3 times (1 s), after-recovery FAILED (1:01 min)", "bad",
    )  # fmt: skip
    assert hook_cell([hook("gave-up", None, None)]) == ("gave-up has no end", "bad")
