"""One run per target on this machine: a kernel-held lock that a crash releases, with a note of who holds it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

NOTED_WITHIN_S = 1.0  # who has just taken it has not said so yet, and who gives it back says so first


@dataclass(frozen=True, slots=True)
class Holder:
    """Who works on the target: all for showing."""

    run: str
    who: str
    host: str
    pid: int
    since: float
    unattended: bool = False  # nobody is there: it yields to a person


class TargetLock:
    """flock on `folder`/lock. The file is never deleted: deleting a lock file lets two holders in."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = folder / "lock"
        self._fd = -1

    def take(self, holder: Holder) -> Holder | None:
        """None: it is ours now. Else who holds it. Raises OSError where the folder can't be written."""
        until = time.monotonic() + NOTED_WITHIN_S
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = _read(os.pread(fd, 4096, 0))
                os.close(fd)
                if other is None and time.monotonic() < until:
                    time.sleep(0.01)
                    continue
                return other or Holder("?", "?", "?", 0, 0.0)
            self._fd = fd
            self.note(holder)
            return None

    def note(self, holder: Holder) -> None:
        """Say who holds it, while it is ours: all that others can know of us."""
        note = json.dumps(asdict(holder)).encode()
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, note, 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def is_held(folder: Path) -> bool:
    """Whether somebody works on the target, as far as a note tells; the lock is not touched, so nobody is kept out."""
    return noted(folder) is not None


def noted(folder: Path) -> Holder | None:
    """Who has noted to hold the lock in `folder`, and lives as far as can be told. The lock itself is not touched:
    trying it would look like a holder to whoever wants it at that moment.
    """
    try:
        holder = _read((folder / "lock").read_bytes())
    except OSError:
        return None
    if holder is None or holder.host != socket.gethostname():
        return holder
    try:
        os.kill(holder.pid, 0)
    except (ProcessLookupError, OverflowError):
        return None
    except PermissionError:
        pass
    return holder


def _read(data: bytes) -> Holder | None:
    try:
        note = json.loads(data or b"{}")
        return Holder(
            str(note["run"]),
            str(note["who"]),
            str(note["host"]),
            int(note["pid"]),
            float(note["since"]),
            note.get("unattended") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
