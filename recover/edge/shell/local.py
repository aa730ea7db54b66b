"""The same door on this machine: a child in its own session, ended by its identity, never waited for without end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence

from recover.edge.shell.clock import Limit
from recover.edge.shell.failures import clean
from recover.edge.shell.output import LINGER, Kept
from recover.edge.shell.port import CAP
from recover.model.contact import Broken, Failure, Ran

_CHUNK = 65536


class LocalShell:
    """Runs commands as children of this process."""

    where = "local"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline: float, cap: int = CAP) -> Ran | Broken:
        began = time.monotonic()
        limit = Limit.after(deadline)
        try:
            child = subprocess.Popen(
                list(argv), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True, bufsize=0,
            )  # fmt: skip
        except FileNotFoundError:
            return Ran(127, b"", f"{argv[0]}: not found\n".encode(), time.monotonic() - began)
        except PermissionError:
            return Ran(126, b"", f"{argv[0]}: permission denied\n".encode(), time.monotonic() - began)
        except (OSError, ValueError) as error:  # no memory, no descriptors, a NUL in an argument
            return Broken(Failure.CONFIG, clean(f"{argv[0]}: can't be started: {error}"))
        kept = Kept(cap)
        try:
            ended = _pump(child, stdin, kept, limit)
        finally:
            _end(child)
        if not ended:
            return Broken(
                Failure.TIMEOUT, clean(f"local: {argv[0]} did not end within {deadline:g} s"),
                kept.stdout, kept.stderr, started=True,
            )  # fmt: skip
        return Ran(child.returncode, kept.stdout, kept.stderr, time.monotonic() - began, kept.truncated)

    def connect(self, deadline: float, *, patient: bool = False) -> Broken | None:
        return None

    def forget(self) -> None:
        return None

    def close(self) -> None:
        return None


def _pump(child: subprocess.Popen[bytes], stdin: bytes, kept: Kept, limit: Limit) -> bool:
    """Feed and drain until the child has ended. True if it did."""
    assert child.stdin and child.stdout and child.stderr
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdin, child.stdout, child.stderr):
            os.set_blocking(stream.fileno(), False)
        selector.register(child.stdout, selectors.EVENT_READ, kept.out)
        selector.register(child.stderr, selectors.EVENT_READ, kept.err)
        rest = memoryview(stdin)
        if rest:
            selector.register(child.stdin, selectors.EVENT_WRITE)
        else:
            child.stdin.close()
        quiet_since: float | None = None
        while not limit.over:
            heard = False
            for key, _ in selector.select(min(0.05, limit.left)):
                if key.fileobj is child.stdin:
                    rest = _feed(child, selector, rest)
                else:
                    heard |= _drain(key, selector)
            if child.poll() is None:
                quiet_since = None
            elif not _outputs(selector, child) or _lingered(quiet_since, heard):
                return True
            elif heard or quiet_since is None:
                quiet_since = time.monotonic()
    return child.poll() is not None


def _outputs(selector: selectors.BaseSelector, child: subprocess.Popen[bytes]) -> bool:
    return any(key.fileobj is not child.stdin for key in selector.get_map().values())


def _lingered(quiet_since: float | None, heard: bool) -> bool:
    """A grandchild that inherited the output may hold it open for ever: the command itself has ended."""
    return not heard and quiet_since is not None and time.monotonic() - quiet_since > LINGER


def _feed(child: subprocess.Popen[bytes], selector: selectors.BaseSelector, rest: memoryview) -> memoryview:
    assert child.stdin
    with contextlib.suppress(BlockingIOError):
        try:
            rest = rest[os.write(child.stdin.fileno(), rest[:_CHUNK]) :]
        except BrokenPipeError:
            rest = rest[:0]
    if not rest:
        selector.unregister(child.stdin)
        child.stdin.close()
    return rest


def _drain(key: selectors.SelectorKey, selector: selectors.BaseSelector) -> bool:
    try:
        data = os.read(key.fd, _CHUNK)
    except BlockingIOError:
        return False
    if data:
        key.data(data)
    else:
        selector.unregister(key.fileobj)
    return bool(data)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the session that we started if it still runs. A child that can't die (state D) is abandoned."""
    if child.returncode is None:
        # The number is safe: the child is ours and not reaped, so neither its pid nor its group can be another's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
