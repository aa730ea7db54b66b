"""`make demo` ends right and leaves nothing, also when it is cut; what it calls right is the lab's word alone.

Seen to fail on: a demo that trusts the tool's exit code, one that leaves its lab after Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import demo, judge

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]


def start(tmp: Path) -> subprocess.Popen[str]:
    """As a terminal would: it and all that it starts are one process group of their own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.lab.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ours(tmp: Path) -> list[str]:
    """Command lines of whatever still runs for a lab in `tmp`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if str(tmp) in line:
            found.append(line)
    return found


def within(seconds: float, true: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def test_the_incident_is_recovered_and_nothing_is_left(tmp_path: Path) -> None:
    with start(tmp_path) as child:
        out, _ = child.communicate(timeout=170)
    assert child.returncode == 0, out
    assert "The lab says: it ended right." in out and "RECOVERED" in out
    assert list(tmp_path.iterdir()) == [] and ours(tmp_path) == []


def test_ctrl_c_in_the_middle_takes_the_lab_down(tmp_path: Path) -> None:
    with start(tmp_path) as child:
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if "end-workers begins" in line:
                    break
            os.killpg(child.pid, signal.SIGINT)
            out, _ = child.communicate(timeout=120)
        finally:
            if child.poll() is None:
                child.kill()
    assert child.returncode == 130, out
    assert "INTERRUPTED" in out and "the lab is down" in out
    assert within(10, lambda: list(tmp_path.iterdir()) == [] and ours(tmp_path) == [])


def test_a_good_exit_code_is_not_taken_for_a_good_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: Callable[..., list[str]] = lambda *_: ["GPU 3: 900 MiB used"]  # noqa: E731
    monkeypatch.setattr(judge, "problems", said)
    nothing: dict[str, Any] = {}
    assert demo._wrong(0, nothing, nothing) == ["GPU 3: 900 MiB used"]
    assert demo._wrong(11, nothing, nothing)[0] == "gpu-recover ended with 11, not 0"
    assert demo._verdict(["x"]) == 1 and demo._verdict([]) == 0
