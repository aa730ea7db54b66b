"""One run per target on this machine: a kernel-held lock that a crash releases, with a note of who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Holder:
    """Who works on the target: all for showing."""

    run: str
    who: str
    host: str
    pid: int
    since: float


class TargetLock:
    """flock on `folder`/lock. The file is never deleted: deleting a lock file lets two holders in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / "lock"
        self._fd = -1

    def take(self, holder: Holder) -> Holder | None:
        """None: it is ours now. Else who holds it. Raises OSError where the folder can't be written."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = _read(fd)
            os.close(fd)
            return other
        note = json.dumps(
            {"run": holder.run, "who": holder.who, "host": holder.host, "pid": holder.pid, "since": holder.since}
        ).encode()
        os.ftruncate(fd, 0)
        os.pwrite(fd, note, 0)
        self._fd = fd
        return None

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def is_held(folder: Path) -> bool:
    """Whether somebody works on the target, as far as a note tells; the lock is not touched, so nobody is kept out."""
    try:
        note = json.loads((folder / "lock").read_bytes() or b"null")
        if not isinstance(note, dict) or note.get("host") != socket.gethostname():
            return isinstance(note, dict)
        os.kill(int(note["pid"]), 0)
    except PermissionError:
        return True
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return False
    return True


def _read(fd: int) -> Holder:
    try:
        note = json.loads(os.pread(fd, 4096, 0) or b"{}")
        return Holder(str(note["run"]), str(note["who"]), str(note["host"]), int(note["pid"]), float(note["since"]))
    except (ValueError, KeyError, TypeError):
        return Holder("?", "?", "?", 0, 0.0)
