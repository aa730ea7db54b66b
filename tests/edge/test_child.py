"""An operator's program always comes to an end, whatever it does, and nothing of it stays behind."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from recover.edge import child
from recover.edge.child import Ended, minimal, run_child  # the tests run the one that `_leashed` puts here

ENV = {"PATH": os.environ["PATH"]}
LONG_S = 30.0


@pytest.fixture(autouse=True, params=[False, True], ids=["alone", "leashed"])
def _leashed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is ended with us when we are killed must make no other difference."""
    monkeypatch.setitem(globals(), "run_child", partial(child.run_child, leashed=request.param))


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 0.3)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def until(what: Callable[[], bool], seconds: float = 20.0) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it did not come true in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Ended; a zombie that its reaper has not fetched yet counts."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


def out_of_time(code: str) -> Ended:
    """A program that says "begun" and does not end by itself; its deadline is one by which it has said so."""
    for deadline_s in (0.3, 1.0, 4.0, 16.0):
        ended = run_child(python(code), b"", deadline_s, ENV)
        if ended.stdout.endswith(b"begun\n"):
            assert ended.code is None and ended.why == f"did not end within {deadline_s:g} s and was ended"
            return ended
    raise AssertionError("it never began")


def test_it_gets_its_stdin_and_its_answer_and_code_are_had() -> None:
    ended = run_child(python("import sys; d = sys.stdin.read(); print(d[::-1]); sys.exit(len(d))"), b"abc", LONG_S, ENV)
    assert (ended.code, ended.stdout, ended.why) == (3, b"cba\n", "")


def test_one_that_never_reads_its_stdin_is_not_waited_for() -> None:
    assert run_child(["true"], b"x" * 1_000_000, LONG_S, ENV).code == 0


def test_it_has_only_what_it_needs_of_the_environment() -> None:
    given = minimal({"PATH": ENV["PATH"], "HOME": "/h", "SECRET_TOKEN": "hunter2", "GPU_RECOVER_CONFIG": "x"})
    ended = run_child(["env"], b"", LONG_S, given)
    assert {line.partition(b"=")[0] for line in ended.stdout.splitlines()} == {b"PATH", b"HOME"}
    assert b"hunter2" not in ended.stdout and b"HOME=/h" in ended.stdout
    assert set(given) == {"PATH", "HOME"} and "/usr/bin" in minimal({})["PATH"]


def test_it_runs_in_the_root_folder_and_in_a_session_of_its_own() -> None:
    ended = run_child(python("import os; print(os.getcwd(), os.getsid(0), os.getpgrp())"), b"", LONG_S, ENV)
    folder, session, group = ended.stdout.split()
    assert folder == b"/" and session == group != str(os.getsid(0)).encode()


def test_one_that_hangs_is_ended_and_what_it_said_is_kept() -> None:
    assert out_of_time("import time; print('begun', flush=True); time.sleep(600)").stderr == b""


def test_one_that_ignores_sigterm_is_ended_all_the_same() -> None:
    ended = out_of_time("""
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), "begun", flush=True)
time.sleep(600)""")
    assert gone(int(ended.stdout.split()[0]))


def test_one_that_heeds_sigterm_can_put_things_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "GRACE_S", 20.0)
    out_of_time(f"""
import signal, sys, time
def stop(*_):
    open({str(tmp_path / "right")!r}, "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("begun", flush=True)
time.sleep(600)""")
    assert (tmp_path / "right").exists()


GRANDCHILD = """
import os, signal, sys, time
pid = os.fork()
if pid == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
print(pid, "begun", flush=True)
{then}"""


def test_grandchildren_are_ended_with_it_at_its_deadline() -> None:
    ended = out_of_time(GRANDCHILD.format(then="time.sleep(600)"))
    until(lambda: gone(int(ended.stdout.split()[0])))


def test_a_grandchild_that_holds_its_output_is_not_waited_for_and_does_not_stay() -> None:
    ended = run_child(python(GRANDCHILD.format(then="sys.exit(0)")), b"", LONG_S, ENV)
    assert ended.code == 0 and ended.seconds < LONG_S
    until(lambda: gone(int(ended.stdout.split()[0])))


def test_a_flood_is_cut_at_the_cap_and_does_not_stop_it() -> None:
    code = "import sys\nfor _ in range(200): sys.stderr.write('x' * 99_999 + '\\n')\nsys.exit(4)"
    ended = run_child(python(code), b"", LONG_S, ENV, cap=10_000)
    assert ended.code == 4 and len(ended.stderr) == 10_000


def test_a_flood_without_end_is_ended() -> None:
    ended = run_child(["yes"], b"", 0.5, ENV, cap=100)
    assert ended.code is None and len(ended.stdout) <= 100


@pytest.mark.parametrize("mode", [0o644, None])
def test_one_that_is_missing_or_not_executable_is_said(tmp_path: Path, mode: int | None) -> None:
    program = tmp_path / "hook"
    if mode is not None:
        program.write_text("#!/bin/sh\nexit 0\n")
        program.chmod(mode)
        assert not program.stat().st_mode & stat.S_IXUSR
    ended = run_child([str(program)], b"", LONG_S, ENV)
    assert ended.code is None
    assert ended.why == "cannot be run: " + ("No such file or directory" if mode is None else "Permission denied")


def test_arguments_that_no_program_can_have_are_said() -> None:
    assert run_child(["echo", "a\0b"], b"", LONG_S, ENV).why.startswith("cannot be run: ")


def test_one_that_a_signal_ended_is_told_from_one_that_failed() -> None:
    assert run_child(["sh", "-c", "kill -9 $$"], b"", LONG_S, ENV).code == -9


def test_one_that_is_to_be_ended_now_is_ended_like_one_that_is_late() -> None:
    asked: list[float] = []

    def stop(seconds: float) -> bool:
        asked.append(seconds)
        return len(asked) > 2

    ended = run_child(python("import time; time.sleep(600)"), b"", LONG_S, ENV, stop=stop)
    assert ended.code is None and ended.why == "was ended: the run was asked to stop again"
    assert asked == sorted(asked) and ended.seconds < LONG_S
