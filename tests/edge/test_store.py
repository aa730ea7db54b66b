"""State on disk: whole or not there, found again after a crash, and refused before anything is done if it can't be."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from recover.core.fold import fold
from recover.edge.store.baselines import load_baseline, save_baseline
from recover.edge.store.cases import RESUME_WITHIN_S, disruptions_since, minutes_taken, to_resume
from recover.edge.store.folder import StateFolder, StateProblem, safe_name, state_folder, write_atomically
from recover.edge.store.journal import FileJournal, JournalDamaged, follow_entries, read_entries
from recover.edge.store.lock import Holder, TargetLock
from recover.model.act import Outcome, StartVm, StopVm, VmRef
from recover.model.record import Acted, Acting, Began, Closed, End, Ended, EndKind, Entry, Opened
from recover.model.snapshot import Baseline
from recover.model.verdict import Scope

VM = VmRef("pve", 174, "")


def opened(at: float = 1000.0, run: str = "r1") -> Opened:
    return Opened(at, run, "node-174", "hung-server", "", "kim", "here", 1, 0.0)


def closed(at: float = 1100.0) -> Closed:
    return Closed(at, End(EndKind.RECOVERED, "fine"))


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FileJournal]:
    journal = FileJournal(tmp_path / "run")
    yield journal
    journal.close()


def test_entries_come_back(journal: FileJournal) -> None:
    journal.append(opened())
    journal.append(closed())
    assert list(journal.entries()) == [opened(), closed()]


def test_a_torn_last_line_is_tolerated_and_cut_off_by_the_next_run(journal: FileJournal) -> None:
    journal.append(opened())
    with open(journal.path, "ab") as file:
        file.write(b'{"$":"Closed","at":1')
    assert list(read_entries(journal.path)) == [opened()]
    again = FileJournal(journal.path.parent)
    again.append(closed())
    again.close()
    assert list(read_entries(journal.path)) == [opened(), closed()]


def test_damage_before_the_last_line_is_never_skipped(journal: FileJournal) -> None:
    journal.append(opened())
    with open(journal.path, "ab") as file:
        file.write(b"garbage\n")
    journal.append(closed())
    with pytest.raises(JournalDamaged, match=":2"):
        list(read_entries(journal.path))


def test_following_gives_whole_entries_only(journal: FileJournal) -> None:
    journal.append(opened())
    found, position = follow_entries(journal.path, 0)
    assert found == [opened()]
    with open(journal.path, "ab") as file:
        file.write(b'{"$":"Clo')
    assert follow_entries(journal.path, position) == ([], position)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of our own."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "gpu-recover-test", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.lab
def test_a_disk_that_fills_up_leaves_room_for_what_we_owe(tiny: Path) -> None:
    journal = FileJournal(tiny / "run")
    journal.append(opened())
    with open(tiny / "filler", "wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 4096)
        except OSError:
            pass
    while not journal.full:
        journal.append(Acting(1.0, 0, StopVm(VM)))
    journal.append(Acted(2.0, 0, Outcome(True)))
    count = len(list(journal.entries()))
    with pytest.raises(OSError, match="No space left"):
        for _ in range(100_000):
            journal.append(Acting(3.0, 1, StartVm(VM, 60)))
            count += 1
    assert len(list(journal.entries())) == count, "nothing half-written"
    journal.close()


@pytest.mark.lab
def test_a_full_state_folder_is_refused_before_anything_is_done(tiny: Path) -> None:
    (tiny / "filler").write_bytes(b"\0" * (1024 * 1024 - 8192))
    with pytest.raises(StateProblem, match=r"(?s)No space left.*--state-dir"):
        StateFolder(tiny).ready()


@pytest.mark.lab
def test_a_read_only_state_folder_is_refused(tiny: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(tiny)], check=True)
    with pytest.raises(StateProblem, match="Read-only"):
        StateFolder(tiny).ready()


def test_where_state_lives() -> None:
    assert state_folder("/x", {}, root=True) == Path("/x")
    assert state_folder(None, {"GPU_RECOVER_STATE": "/y"}, root=True) == Path("/y")
    assert state_folder(None, {}, root=True) == Path("/var/lib/gpu-recover")
    assert state_folder(None, {"XDG_STATE_HOME": "/z"}, root=False) == Path("/z/gpu-recover")
    assert state_folder(None, {"HOME": "/h"}, root=False) == Path("/h/.local/state/gpu-recover")


def test_a_user_without_a_home_is_told_nothing_of_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`DynamicUser=` in a unit, `docker run --user 12345`: no HOME, no row in passwd."""
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert state_folder(None, {}, root=False) == Path("/.local/state/gpu-recover")


@pytest.mark.parametrize("name", ["../etc", "a/b", "", ".", "%61", "a b", "é"])
def test_a_target_name_is_never_a_path(name: str, tmp_path: Path) -> None:
    folder = StateFolder(tmp_path).target(name)
    assert folder.parent == tmp_path / "targets"
    assert safe_name(name) != safe_name("a")


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    write_atomically(tmp_path / "f", b"one")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "f", "not bytes")  # type: ignore[arg-type]
    assert (tmp_path / "f").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["f"]


def test_the_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    mine, other = TargetLock(tmp_path), TargetLock(tmp_path)
    me = Holder("r1", "kim", "here", 42, 1000.0)
    assert mine.take(me) is None
    assert other.take(Holder("r2", "lou", "there", 43, 1001.0)) == me
    mine.release()
    assert other.take(Holder("r2", "lou", "there", 43, 1001.0)) is None
    other.release()


def test_who_is_just_given_it_back_is_waited_for_and_never_called_nobody(tmp_path: Path) -> None:
    """A holder says that it is gone before it is. Seen to fail where that moment was told as a run of nobody."""
    mine, wanted = TargetLock(tmp_path), TargetLock(tmp_path)
    assert mine.take(Holder("r1", "kim", "here", 42, 1000.0)) is None
    (tmp_path / "lock").write_bytes(b"")  # what release does first
    later = threading.Timer(0.1, mine.release)
    later.start()
    assert wanted.take(Holder("r2", "lou", "here", 43, 1001.0)) is None
    later.join()
    wanted.release()


def test_a_crash_releases_the_lock(tmp_path: Path) -> None:
    code = (
        "import os,sys;from pathlib import Path;from recover.edge.store.lock import *;"
        "TargetLock(Path(sys.argv[1])).take(Holder('r','w','h',1,1.0)) is None or sys.exit(3);os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    assert TargetLock(tmp_path).take(Holder("r2", "lou", "there", 43, 1001.0)) is None


def _baseline() -> Baseline:
    return Baseline((), 1, 2, 3, 4, "580", "6.8", "uuid", frozenset({"m"}), "node-174")


def test_baseline_comes_back_and_damage_is_not_ignored(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    assert load_baseline(state, "node-174") is None
    path = save_baseline(state, "node-174", _baseline())
    assert load_baseline(state, "node-174") == _baseline()
    Path(path).write_text("{")
    with pytest.raises(StateProblem, match=r"baseline save node-174"):
        load_baseline(state, "node-174")


def _run(state: StateFolder, run: str, entries: list[Entry]) -> None:
    journal = FileJournal(state.run("node-174", run))
    for entry in entries:
        journal.append(entry)
    journal.close()


def test_a_run_that_owes_is_gone_on_with_however_old(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    owing = Closed(1100.0, End(EndKind.NEEDS_HUMAN, "no API"), None, ("vm:pve/174",))
    _run(state, "a", [opened(run="a"), Acting(1001.0, 0, StopVm(VM)), Acted(1002.0, 0, Outcome(True)), owing])
    _run(state, "b", [opened(2000.0, run="b"), closed(2001.0)])
    case = to_resume(state, "node-174", 9e9)
    assert case is not None
    assert case.run == "a"
    assert [d.duty.key for d in case.history.duties] == ["vm:pve/174"]


def test_a_run_that_was_cut_is_gone_on_with_for_a_while(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    _run(state, "a", [opened(run="a")])
    assert to_resume(state, "node-174", 1000.0 + RESUME_WITHIN_S) is not None
    assert to_resume(state, "node-174", 1001.0 + RESUME_WITHIN_S) is None


def test_a_closed_run_is_over(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    _run(state, "a", [opened(run="a"), closed()])
    assert to_resume(state, "node-174", 1101.0) is None


def test_past_runs_tell_how_long_a_step_takes(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for i, seconds in enumerate((600.0, 60.0, 120.0)):
        tried = Began(1001.0, 3, "power-cycle-vm", 1, Scope.VM)
        ended = Ended(1001.0 + seconds, 3, "power-cycle-vm", 1, Outcome(True))
        _run(state, f"{i}", [opened(run=f"{i}"), tried, ended, closed()])
    failed = Ended(9000.0, 3, "power-cycle-vm", 1, Outcome(False, "no"))
    _run(state, "x", [opened(run="x"), Began(1001.0, 3, "power-cycle-vm", 1, Scope.VM), failed, closed()])
    assert minutes_taken(state, "node-174") == (("power-cycle-vm", 2.0, 3),)
    assert minutes_taken(state, "another") == ()


def test_disruptions_are_counted_over_runs(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    _run(state, "a", [opened(run="a"), Began(1001.0, 3, "power-cycle-vm", 1, Scope.VM), closed()])
    _run(state, "b", [opened(run="b"), Began(5000.0, 1, "end-workers", 1, Scope.PROCESS), closed()])
    assert disruptions_since(state, "node-174", 0.0) == 1
    assert disruptions_since(state, "node-174", 1002.0) == 0


def test_a_run_after_a_closed_one_inherits_debts_and_no_climb() -> None:
    owing = Closed(1100.0, End(EndKind.NEEDS_HUMAN, "no API"), None, ("vm:pve/174",))
    history = fold(
        [opened(), Began(1.0, 3, "power-cycle-vm", 1, Scope.VM), Acting(2.0, 0, StopVm(VM)), owing, opened()]
    )
    assert history.attempts == ()
    assert [d.duty.key for d in history.duties] == ["vm:pve/174"]
