"""An operator's program, run without a shell, fed once, heard up to a cap, and ended as a group by its deadline."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from recover.edge.shell.output import Kept

GRACE_S = 2.0  # between SIGTERM and SIGKILL of a group that is out of time
ABANDON_S = 1.0  # what SIGKILL does not end (state D) is left behind
LINGER_S = 0.5  # for the last words of a program that has ended, while others hold its pipe
LEASH = Path(__file__).with_name("leash.py")
_CHUNK = 65536
_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `code` None: it could not be run (`why`) or was out of time; negative: a signal's number."""

    code: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0
    why: str = ""


def minimal(environ: Mapping[str, str]) -> dict[str, str]:
    """What an operator's program needs to find its things, and nothing in which a secret of ours may stand."""
    kept = {name: environ[name] for name in _NAMES if name in environ}
    return {"PATH": _PATH, **kept}


def runnable(program: str) -> str:
    """Why `program` can't be run, found as it would be run; an empty string if it can."""
    path = minimal(os.environ)["PATH"]
    if shutil.which(program, path=path) is not None:
        return ""
    if "/" not in program:
        return f"not found in {path}"
    return "may not be executed" if os.path.isfile(program) else "no such file"


def run_child(
    argv: Sequence[str],
    stdin: bytes,
    deadline_s: float,
    environ: Mapping[str, str],
    cap: int = _CHUNK,
    *,
    leashed: bool = False,
    stop: Callable[[float], bool] = lambda seconds: False,
) -> Ended:
    """Run it to its end or its deadline, and end all that is left of its process group then. Never raises OSError.

    `leashed`: should we be killed, it is ended too. `stop` is asked while it runs, with the seconds so far, whether a
    person wants it ended now.
    """
    began = time.monotonic()
    line, theirs = socket.socketpair() if leashed else (None, None)
    stopped = _Stop(stop, began)
    try:
        child = _start(argv, stdin, environ, theirs)
        if line is not None and theirs is not None:
            theirs.close()
            _order(line, argv, environ, deadline_s)
        return _waited(child, line, deadline_s, stopped, Kept(cap))
    except (OSError, ValueError) as error:  # missing, not executable, no memory; a NUL in an argument
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Ended(None, seconds=time.monotonic() - began, why=f"cannot be run: {said}")
    finally:
        for end in (line, theirs):
            if end is not None:
                end.close()


def _waited(
    child: subprocess.Popen[bytes], line: socket.socket | None, deadline_s: float, stop: _Stop, kept: Kept
) -> Ended:
    try:
        in_time = _listen(child, kept, stop.began + deadline_s, stop)
        if not in_time:
            _signal(child, signal.SIGTERM)
            _listen(child, kept, time.monotonic() + GRACE_S)
    finally:
        _end(child)
    seconds = time.monotonic() - stop.began
    refused = _refused(line) if line is not None else ""
    if refused:
        return Ended(None, seconds=seconds, why=f"cannot be run: {refused}")
    if in_time:
        return Ended(child.returncode, kept.stdout, kept.stderr, seconds)
    how = "was ended" if child.returncode is not None else "can't be ended: it is left behind"
    why = f"{how}: the run was asked to stop again" if stop.asked else f"did not end within {deadline_s:g} s and {how}"
    return Ended(None, kept.stdout, kept.stderr, seconds, why)


@dataclass(slots=True)
class _Stop:
    """Whether a program is to be ended before its deadline."""

    stop: Callable[[float], bool]
    began: float
    asked: bool = False

    def __call__(self, now: float) -> bool:
        self.asked = self.asked or self.stop(now - self.began)
        return self.asked


def _start(
    argv: Sequence[str], stdin: bytes, environ: Mapping[str, str], line: socket.socket | None
) -> subprocess.Popen[bytes]:
    """A file in memory as its stdin: it can be read at any time or never, and nobody waits for that."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC)
    words = [sys.executable, "-I", "-S", str(LEASH), str(line.fileno())] if line is not None else list(argv)
    try:
        done = 0
        while done < len(stdin):
            done += os.write(handle, stdin[done:])
        os.lseek(handle, 0, os.SEEK_SET)
        return subprocess.Popen(
            words, stdin=handle, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd="/",
            env=dict(environ), bufsize=0, pass_fds=(line.fileno(),) if line is not None else (),
        )  # fmt: skip
    finally:
        os.close(handle)


def _order(line: socket.socket, argv: Sequence[str], environ: Mapping[str, str], deadline_s: float) -> None:
    """Its own deadline is for the case that we are stopped or hang: else we are the first."""
    order = {"argv": list(argv), "env": dict(environ), "seconds": deadline_s + 2 * GRACE_S + LINGER_S}
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has ended already: its code says how
        line.sendall(json.dumps(order).encode() + b"\n")


def _refused(line: socket.socket) -> str:
    """Why it could not be run, as the leash has said."""
    with contextlib.suppress(OSError):
        return line.recv(1000, socket.MSG_DONTWAIT).decode("utf-8", "replace")
    return ""


def _listen(
    child: subprocess.Popen[bytes], kept: Kept, until: float, stop: Callable[[float], bool] = lambda now: False
) -> bool:
    """Read what it says until it has ended or `stop` says so. True: it has, and is not reaped, so that its group
    keeps its number.
    """
    assert child.stdout and child.stderr
    with selectors.DefaultSelector() as selector:
        for stream, take in ((child.stdout, kept.out), (child.stderr, kept.err)):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, take)
        ended_at: float | None = None
        while (now := time.monotonic()) < until and not stop(now):
            _hear(selector, min(0.05, until - now))
            if ended_at is None and _has_ended(child.pid):
                ended_at = now
            if ended_at is not None and (not selector.get_map() or now - ended_at > LINGER_S):
                return True
        return ended_at is not None


def _hear(selector: selectors.BaseSelector, seconds: float) -> None:
    if not selector.get_map():
        time.sleep(seconds)
        return
    for key, _ in selector.select(seconds):
        with contextlib.suppress(BlockingIOError):
            data = os.read(key.fd, _CHUNK)
            if data:
                key.data(data)
            else:
                selector.unregister(key.fileobj)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """To the whole group. Its number is safe: the child is ours and not reaped."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def _end(child: subprocess.Popen[bytes]) -> None:
    _signal(child, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(ABANDON_S)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()
