"""A program on our leash ends with us, however we went: what drains must not go on after a later run gave back."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.edge.test_child import gone, until

OURS = """
import os, signal, sys
from recover.edge import child
from recover.edge.child import run_child
child.GRACE_S = child.LINGER_S = 0.1
code = sys.argv[1]
run_child([sys.executable, "-c", code], b"", float(sys.argv[2]), {"PATH": os.environ["PATH"]}, leashed=True)
"""
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
open({file!r}, "a").write(f"{{os.getpid()}}\\n")
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_when_we_are_gone_it_goes_with_us_whatever_it_does(tmp_path: Path, how: signal.Signals) -> None:
    """Also where we are only stopped and its deadline passes. Seen to fail without the leash, each time.

    Both it and what it started ignore SIGTERM. Its deadline is one by which both have begun.
    """
    assert any(_gone_with_us(tmp_path / s, how, s) for s in (("1", "6", "30") if how is signal.SIGSTOP else ("600",)))


def _gone_with_us(file: Path, how: signal.Signals, seconds: str) -> bool:
    """False: the deadline came too early."""
    words = [sys.executable, "-c", OURS, STUBBORN.format(file=str(file)), seconds]
    ours = subprocess.Popen(words, cwd=Path(__file__).parents[2], start_new_session=True)
    try:
        until(lambda: _pids(file) == 2 or ours.poll() is not None, 60.0)
        if _pids(file) < 2:
            return False
        ours.send_signal(how)
        until(lambda: all(gone(int(pid)) for pid in file.read_text().split()), 60.0)
        return True
    finally:
        ours.kill()
        ours.wait()
        for pid in file.read_text().split() if file.exists() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def _pids(file: Path) -> int:
    return len(file.read_text().split()) if file.exists() else 0
