"""An operator's program, run without a shell, fed once, heard up to a cap, and ended as a group by its deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recover.edge.shell.output import Kept

GRACE_S = 2.0  # between SIGTERM and SIGKILL of a group that is out of time
ABANDON_S = 1.0  # what SIGKILL does not end (state D) is left behind
LINGER_S = 0.5  # for the last words of a program that has ended, while others hold its pipe
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
    argv: Sequence[str], stdin: bytes, deadline_s: float, environ: Mapping[str, str], cap: int = _CHUNK
) -> Ended:
    """Run it to its end or its deadline, and end all that is left of its process group then. Never raises OSError."""
    began = time.monotonic()
    try:
        child = _start(argv, stdin, environ)
    except (OSError, ValueError) as error:  # missing, not executable, no memory; a NUL in an argument
        said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Ended(None, seconds=time.monotonic() - began, why=f"cannot be run: {said}")
    kept = Kept(cap)
    try:
        in_time = _listen(child, kept, began + deadline_s)
        if not in_time:
            _signal(child, signal.SIGTERM)
            _listen(child, kept, time.monotonic() + GRACE_S)
    finally:
        _end(child)
    seconds = time.monotonic() - began
    if not in_time:
        how = "was ended" if child.returncode is not None else "can't be ended: it is left behind"
        return Ended(None, kept.stdout, kept.stderr, seconds, f"did not end within {deadline_s:g} s and {how}")
    return Ended(child.returncode, kept.stdout, kept.stderr, seconds)


def _start(argv: Sequence[str], stdin: bytes, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A file in memory as its stdin: it can be read at any time or never, and nobody waits for that."""
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        done = 0
        while done < len(stdin):
            done += os.write(handle, stdin[done:])
        os.lseek(handle, 0, os.SEEK_SET)
        return subprocess.Popen(
            list(argv), stdin=handle, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, cwd="/",
            env=dict(environ), bufsize=0,
        )  # fmt: skip
    finally:
        os.close(handle)


def _listen(child: subprocess.Popen[bytes], kept: Kept, until: float) -> bool:
    """Read what it says until it has ended. True if it did; it is not reaped, so that its group keeps its number."""
    assert child.stdout and child.stderr
    with selectors.DefaultSelector() as selector:
        for stream, take in ((child.stdout, kept.out), (child.stderr, kept.err)):
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, take)
        ended_at: float | None = None
        while (now := time.monotonic()) < until:
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
