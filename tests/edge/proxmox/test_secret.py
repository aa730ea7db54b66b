from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from recover.edge.proxmox.secret import NoSecret, Secret, from_command, from_env, from_file

VALUE = "6f0f0c9e-1111-4222-8333-5ec4e75ec4e7"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    file = tmp_path / "pve.secret"
    file.write_text(VALUE + "\n")
    file.chmod(0o600)
    return file


def no(answer: Secret | NoSecret) -> str:
    assert isinstance(answer, NoSecret), "a secret was had"
    assert VALUE not in repr(answer)
    return answer.reason


def test_from_a_file(kept):
    assert from_file(str(kept)) == Secret(VALUE)
    assert VALUE not in repr(from_file(str(kept)))


@pytest.mark.parametrize(
    ("mode", "who"), [(0o640, "its group"), (0o604, "everybody"), (0o666, "its group and everybody")]
)
def test_a_file_that_others_can_read_is_said(kept, mode, who):
    kept.chmod(mode)
    found = from_file(str(kept))
    assert isinstance(found, Secret) and found.value == VALUE
    assert f"open to {who}: chmod 600" in found.warnings[0]


def test_files_that_hold_no_secret(kept, tmp_path):
    assert "cannot be read: No such file" in no(from_file(str(tmp_path / "absent")))
    assert "is not a file" in no(from_file(str(tmp_path)))
    os.mkfifo(tmp_path / "fifo")
    assert "is not a file" in no(from_file(str(tmp_path / "fifo")))
    kept.write_text(" \n")
    assert "is empty" in no(from_file(str(kept)))
    kept.write_text(f"token {VALUE}\n")
    assert "plain characters" in no(from_file(str(kept)))


def test_from_the_environment(monkeypatch):
    monkeypatch.setenv("PVE_SECRET", VALUE)
    assert from_env("PVE_SECRET") == Secret(VALUE)
    monkeypatch.delenv("PVE_SECRET")
    assert no(from_env("PVE_SECRET")) == "$PVE_SECRET is not set"


def test_from_a_command_its_first_line():
    assert from_command(["printf", f"{VALUE}\\nuser: rec\\n"]) == Secret(VALUE)


def test_commands_that_give_nothing():
    assert "cannot be run" in no(from_command(["/nowhere/pass", "show"]))
    assert "ended with 3" in no(from_command(["sh", "-c", f"echo {VALUE} >&2; exit 3"]))
    assert "is empty" in no(from_command(["true"]))
    assert "the command is empty" in no(from_command([]))


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path):
    pids = tmp_path / "pids"
    answer = from_command(["sh", "-c", f"sleep 600 & echo $! > {pids}; wait"], seconds=1.0)
    assert "did not answer within 1 s" in no(answer)
    child = int(pids.read_text())
    for _ in range(100):
        if not alive(child):
            return
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the command's child was left running")


def alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
