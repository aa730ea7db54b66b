"""`gpu-recover TARGET` from words to exit code, over a machine that isn't there; locks, journals, signals are real."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.edge.store.journal import read_entries
from recover.edge.store.lock import Holder, TargetLock
from recover.model.record import Closed, Interrupted
from tests.cli.conftest import Cli
from tests.cli.simulated import SimulatedApp

Machines = Callable[..., SimulatedApp]
SOON = 60.0


@pytest.mark.parametrize(
    ("fault", "words", "code", "end"),
    [
        ("healthy", [], 0, "healthy"),
        ("orphaned", ["--yes"], 0, "recovered"),
        ("orphaned", [], 11, "blocked"),
        ("vram-held", ["--approve", "process"], 11, "blocked"),
        ("vram-held-until-power-cycle", ["--yes"], 11, "blocked"),
        ("incident", ["--approve", "vm"], 0, "recovered"),
        ("incident", ["--approve", "vm", "--max-scope", "gpu"], 11, "blocked"),
        ("vm-stopped", ["--approve", "vm"], 12, "needs-human"),
        ("route-down", ["--approve", "vm"], 14, "cannot-tell"),
        ("unkillable", ["--yes", "--only", "end-workers"], 10, "exhausted"),
        ("slow-release", ["--yes", "--deadline", "20s"], 13, "out-of-time"),
        ("orphaned", ["--dry-run"], 1, "planned"),
        ("supervised", ["--yes"], 0, "recovered"),
        ("crash-loop", ["--yes"], 15, "recovered"),
    ],
)
def test_ends_and_exit_codes(cli: Cli, machines: Machines, fault: str, words: list[str], code: int, end: str) -> None:
    app = machines(**{"node-174": fault})
    ran = cli("node-174", *words, "--json", app=app)
    found = json.loads(ran.out)
    assert (ran.code, found["end"], found["exit_code"]) == (code, end, code), ran.err
    if end in ("healthy", "planned", "cannot-tell") or (code == 11 and not found["tries"]):
        assert not app.machines["node-174"].acts


def test_no_restart_leaves_stopped_what_was_stopped(cli: Cli, machines: Machines) -> None:
    for words, state, code in ((["--yes"], "active", 0), (["--yes", "--no-restart"], "inactive", 0)):
        app = machines(**{"node-174": "supervised"})
        ran = cli("node-174", *words, "--json", app=app)
        assert (ran.code, app.machines["node-174"].service) == (code, state), ran.err
        assert json.loads(ran.out)["service"] == ("healthy" if state == "active" else None)
    app = machines(**{"node-174": "crash-loop"})
    assert cli("node-174", "--yes", "--no-restart", "--json", app=app).code == 0, "nothing was to start"


def test_a_service_that_does_not_come_back_undoes_no_verdict(cli: Cli, machines: Machines) -> None:
    ran = cli("node-174", "--yes", app=machines(**{"node-174": "crash-loop"}))
    assert ran.code == 15 and "RECOVERED" in ran.out and "BUT THE SERVICE IS NOT BACK" in ran.out


def test_no_consent_says_which_option_gives_it(cli: Cli, machines: Machines) -> None:
    ran = cli("node-174", app=machines(**{"node-174": "orphaned"}))
    assert ran.code == 11 and "Next: gpu-recover node-174 --yes" in ran.out
    ran = cli("node-174", "--yes", app=machines(**{"node-174": "vram-held-until-power-cycle"}))
    assert ran.code == 11 and "Next: gpu-recover node-174 --approve guest" in ran.out


def test_a_dry_run_shows_the_line_and_leaves_nothing(cli: Cli, machines: Machines, tmp_path: Path) -> None:
    ran = cli("node-174", "--dry-run", "-q", app=machines(**{"node-174": "orphaned"}))
    assert ran.code == 1 and "would try end-workers" in ran.out and "hits group" in ran.out and ran.err == ""
    assert not (tmp_path / "state").exists()


def test_several_targets_stop_at_the_first_that_fails(cli: Cli, machines: Machines) -> None:
    app = machines(a="orphaned", b="vm-stopped", c="orphaned")
    ran = cli("a", "b", "c", "--yes", "--json", app=app)
    ends = [json.loads(line)["end"] for line in ran.out.splitlines()]
    assert ran.code == 12 and ends == ["recovered", "needs-human"] and "c" not in app.machines
    assert "not begun" in ran.err and "c" in ran.err


def test_all_names_resolve_before_any_look(cli: Cli, machines: Machines) -> None:
    app = machines(a="orphaned")
    assert cli("a", "nope", "--yes", app=app).code == 2 and not app.machines


def test_held_by_another_run(cli: Cli, machines: Machines) -> None:
    app = machines(a="orphaned")
    lock = TargetLock(app.state.target("a"))
    assert lock.take(Holder("other-run", "kim", "desk", os.getpid(), 0.0)) is None
    try:
        ran = cli("a", "--yes", app=app)
        assert ran.code == 20 and not app.machines["a"].acts
        assert all(word in ran.out for word in ("other-run", "kim", "desk", "gpu-recover follow a"))
        found = json.loads(cli("a", "--yes", "--json", app=app).out)
        assert (found["end"], found["exit_code"], found["tries"]) == ("held", 20, [])
    finally:
        lock.release()


def test_the_record_of_a_run(cli: Cli, machines: Machines) -> None:
    app = machines(**{"node-174": "orphaned"})
    found = json.loads(cli("node-174", "--yes", "--json", app=app).out)
    assert Path(found["journal"]).is_file() and Path(found["evidence"]).is_dir()
    (row,) = [json.loads(line) for line in cli("history", "--json").out.splitlines()]
    assert (row["run"], row["end"], row["tried"], row["goes_on"]) == (found["run"], "recovered", ["end-workers"], False)
    table = cli("history", "node-174").out
    assert "recovered" in table and "end-workers" in table and found["run"] in table
    again = cli("follow", "node-174")
    assert again.code == 0 and "no run goes on" in again.err and "end-workers begins" in again.err
    assert again.out.startswith("node-174: RECOVERED")
    ended = cli("abort", found["run"])
    assert ended.code == 2 and "does not go on" in ended.err


def test_plan_does_nothing_and_says_what_it_would(cli: Cli, machines: Machines) -> None:
    for fault, code, says in (
        ("healthy", 0, "nothing to do"),
        ("orphaned", 1, "would try end-workers"),
        ("vram-held", 1, "but first it would wait"),
        ("wrong-vm", 11, "blocked"),
        ("route-down", 14, "cannot-tell"),
    ):
        app = machines(**{"node-174": fault})
        ran = cli("plan", "node-174", app=app)
        assert (ran.code, says in ran.out) == (code, True), ran.out
        assert not app.machines["node-174"].acts
        assert json.loads(cli("plan", "node-174", "--json", app=app).out)["exit_code"] == code


def test_probe_is_the_snapshot(cli: Cli, machines: Machines) -> None:
    from recover.core.codec import decode
    from recover.model.snapshot import Snapshot

    ran = cli("probe", "node-174", app=machines(**{"node-174": "dead-rank"}))
    found = decode(json.loads(ran.out))
    assert ran.code == 0 and isinstance(found, Snapshot) and found.groups[0].health == "dead"


def test_a_baseline_needs_an_idle_guest(cli: Cli, machines: Machines) -> None:
    busy = cli("baseline", "save", "node-174", app=machines(**{"node-174": "healthy"}))
    assert busy.code == 1 and "not saved" in busy.out and "sglang" in busy.out
    app = machines(**{"node-174": "idle"})
    assert cli("baseline", "show", "node-174", app=app).code == 1
    assert "Next: gpu-recover baseline save" in cli("baseline", "propose", "node-174", app=app).out
    assert cli("baseline", "save", "node-174", app=app).code == 0
    shown = cli("baseline", "show", "node-174", app=app)
    assert shown.code == 0 and "8 GPUs" in shown.out


def _begin(state: Path, fault: str, speed: str, *words: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "tests.cli.simulated", fault, str(state), speed, "node-174", *words]
    return subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _journal_says(state: Path, words: str) -> Path:
    """The run folder, once its journal holds `words`."""
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        for journal in state.glob("targets/*/runs/*/journal.jsonl"):
            if words in journal.read_text():
                return journal.parent
        time.sleep(0.05)
    raise AssertionError(f"no {words} in any journal")


def test_abort_is_heard_and_the_run_ends_in_good_order(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run = _begin(state, "slow-release", "1", "--yes", "--json")
    try:
        folder = _journal_says(state, '"Ended"')
        ran = cli("abort", folder.name)
        assert ran.code == 0 and "heard" in ran.out
        out, _ = run.communicate(timeout=SOON)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 130 and json.loads(out)["end"] == "interrupted"
    entries = list(read_entries(folder / "journal.jsonl"))
    assert any(isinstance(e, Interrupted) and e.by.startswith("abort by") for e in entries)
    assert isinstance(entries[-1], Closed)


def test_follow_sees_what_the_run_does_and_ends_with_its_code(cli: Cli, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run = _begin(state, "slow-release", "20", "--yes")
    try:
        _journal_says(state, '"Began"')
        ran = cli("follow", "node-174")
        run.communicate(timeout=SOON)
    finally:
        run.kill()
        run.wait()
    assert ran.code == 0 == run.returncode
    assert "no run goes on" not in ran.err and "end-workers ended" in ran.err and "RECOVERED" in ran.out


def test_progress_that_nobody_reads_stops_nothing(tmp_path: Path) -> None:
    call = [sys.executable, "-m", "tests.cli.simulated", "orphaned", str(tmp_path), "100", "node-174", "--yes"]
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run(
        call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=writer, timeout=SOON, check=False
    )
    os.close(writer)
    assert run.returncode == 0 and run.stdout.startswith(b"node-174: RECOVERED")


def test_a_terminal_that_goes_away_is_a_no(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    from recover.edge.gate import FlagGate, TerminalGate
    from recover.model.act import Blast, Line
    from recover.model.record import Try
    from recover.model.verdict import Diagnosis, Scope, State

    attempt = Try(0, "end-workers", Line(()), 1, Scope.PROCESS, "dead")
    answer = TerminalGate(FlagGate("x"), Gone()).ask(attempt, Blast(Scope.PROCESS, (), 1.0), Diagnosis(State.FAULTY))
    assert answer.said == "no" and "terminal is gone" in answer.why


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_good_order(tmp_path: Path, number: signal.Signals) -> None:
    run = _begin(tmp_path / "state", "slow-release", "1", "--yes")
    try:
        _journal_says(tmp_path / "state", '"Ended"')
        run.send_signal(number)
        out, err = run.communicate(timeout=SOON)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 130 and out.startswith("node-174: INTERRUPTED") and "Traceback" not in err


def test_a_run_that_was_killed_is_gone_on_with(cli: Cli, machines: Machines, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run = _begin(state, "slow-release", "1", "--yes")
    try:
        folder = _journal_says(state, '"Ended"')
    finally:
        run.kill()
        run.communicate()
    assert "cut" in cli("history").out
    cut = cli("follow", "node-174")
    assert cut.code == 12 and "nobody works on it" in cut.out
    ran = cli("node-174", "--yes", app=machines(**{"node-174": "idle"}))
    assert ran.code == 0 and f"run {folder.name} on node-174 goes on after a crash" in ran.err


def _at_terminal(words: list[str], answers: Callable[[str], str], **env: str) -> tuple[int, str]:
    """What a person at a terminal sees; `answers` gives what is typed for what is on the screen."""
    pid, handle = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", "COLUMNS": "110", "LINES": "50", **env})
        os.execv(sys.executable, [sys.executable, "-m", "tests.cli.simulated", *words])
    shown, answered, ended = "", 0, None
    threading.Timer(SOON, lambda: ended is None and os.kill(pid, signal.SIGKILL)).start()
    while True:
        try:
            ready = select.select([handle], [], [], 0.2)[0]
            data = os.read(handle, 65536).decode("utf-8", "replace") if ready else None
        except OSError:
            data = ""
        if data == "":
            break
        shown += data or ""
        if shown.count("etails: ") > answered:
            answered += 1
            os.write(handle, answers(shown).encode())
    _, status = os.waitpid(pid, 0)
    ended = os.waitstatus_to_exitcode(status)
    os.close(handle)
    return ended, shown


def test_a_person_is_told_all_and_asked(tmp_path: Path) -> None:
    code, shown = _at_terminal(
        ["orphaned", str(tmp_path), "200", "node-174"], lambda seen: "d\n" if "pids" not in seen else "y\n"
    )
    assert code == 0 and "RECOVERED" in shown and "█" in shown
    for words in ("scope process", "Why: sglang server", "It will:", "Hits group", "pids 4002", "at the terminal"):
        assert words in shown


@pytest.mark.parametrize(("typed", "code"), [("n\n", 11), ("\x04", 11), ("\x03", 130), ("what\n", 11)])
def test_only_yes_does_anything(tmp_path: Path, typed: str, code: int) -> None:
    answers = iter([typed, "n\n"])
    ended, shown = _at_terminal(["orphaned", str(tmp_path), "200", "node-174"], lambda seen: next(answers))
    assert ended == code and "begins (try" not in shown


def test_skip_goes_one_rung_up(tmp_path: Path) -> None:
    answers = iter(["s\n", "n\n"])
    code, shown = _at_terminal(["orphaned", str(tmp_path), "200", "node-174"], lambda seen: next(answers))
    assert code == 11 and "skips end-workers" in shown and "reboot-guest (scope guest" in shown


def test_no_color_means_none(tmp_path: Path) -> None:
    import re

    words = ["orphaned", str(tmp_path), "200", "node-174", "--yes"]
    colour = re.compile(r"\x1b\[[0-9;]*3[0-7][0-9;]*m")
    _, shown = _at_terminal(words, str, NO_COLOR="1")
    assert "RECOVERED" in shown and not colour.search(shown)
    _, plain = _at_terminal(words, str, TERM="dumb")
    assert "RECOVERED" in plain and "\x1b" not in plain
    _, shown = _at_terminal(words, str)
    assert colour.search(shown)


@pytest.mark.lab
def test_a_full_state_folder_is_said_before_anything_is_done(tmp_path: Path) -> None:
    state = tmp_path / "small"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(state)], check=True)
    try:
        (state / "filler").write_bytes(b"\0" * 60000)
        run = _begin(state, "orphaned", "100", "--yes")
        out, err = run.communicate(timeout=SOON)
        left = sorted(p.name for p in state.iterdir())
    finally:
        subprocess.run(["umount", str(state)], check=True)
    assert run.returncode == 2 and "No space left" in err and "--state-dir" in err and out == ""
    assert left == ["filler"] and "Traceback" not in err


@pytest.mark.lab
def test_a_folder_that_fills_up_on_the_way_ends_in_good_order(tmp_path: Path) -> None:
    state = tmp_path / "small"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(state)], check=True)
    try:
        run = _begin(state, "slow-release", "1", "--yes")
        _journal_says(state, '"Ended"')
        with pytest.raises(OSError, match="No space"), open(state / "filler", "wb", buffering=0) as filler:
            while True:
                filler.write(b"\0" * 4096)
        out, err = run.communicate(timeout=SOON)
    finally:
        subprocess.run(["umount", str(state)], check=True)
    assert run.returncode == 130 and "a full state folder" in out and "Traceback" not in err
