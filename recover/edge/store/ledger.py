"""The ledger of what was done unattended, on disk: whole or lost, never a part of it, and never taken for empty.

One file, so that a permit's end and the breaker that it opens are one write. Who holds a permit is known by number,
start and boot of its process: a number alone is soon somebody else's.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from recover.core.codec import Garbled, decode, encode
from recover.edge.store.folder import StateFolder, write_atomically
from recover.edge.store.standings import LOCK_S, locked
from recover.model.watch import Breaker, Controller, Ledger, Permit
from recover.ports import Lost

T = TypeVar("T")


class FileLedger:
    """STATE/watch/ledger.json."""

    def __init__(self, state: StateFolder) -> None:
        self.path = state.root / "watch" / "ledger.json"

    def change(self, do: Callable[[Ledger], tuple[Ledger, T]]) -> T | Lost:
        try:
            with locked(self.path.with_suffix(".lock"), LOCK_S):
                before = self.read()
                if isinstance(before, Lost):
                    return before
                after, answer = do(before)
                if after != before:
                    write_atomically(self.path, json.dumps(encode(after), ensure_ascii=True).encode() + b"\n")
                return answer
        except (OSError, TimeoutError) as error:
            return Lost(f"the ledger {self.path} can't be kept: {getattr(error, 'strerror', None) or error}")

    def read(self) -> Ledger | Lost:
        try:
            found = decode(json.loads(self.path.read_bytes()), str(self.path))
        except FileNotFoundError:
            return Ledger()
        except OSError as error:
            return Lost(f"the ledger {self.path} can't be read: {error.strerror or error}")
        except (ValueError, TypeError, RecursionError, Garbled) as error:
            return self._damaged(type(error).__name__)
        return found if _whole(found) else self._damaged("no ledger stands in it")

    def _damaged(self, why: str) -> Lost:
        return Lost(
            f"the ledger {self.path} is damaged ({why}): nobody can tell who is worked on, or whether the breaker is "
            "open. Make sure that no unattended run goes on, then move the file away"
        )


class LocalControllers:
    """Processes of this machine, by /proc."""

    def me(self) -> Controller:
        return Controller(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()) or 0)

    def lives(self, controller: Controller) -> bool | None:
        if controller.host != socket.gethostname():
            return None
        if controller.boot and (boot := _boot()) and controller.boot != boot:
            return False
        try:
            os.kill(controller.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass
        started = _started(controller.pid)
        return None if started is None else started == controller.started


def _boot() -> str:
    """Empty in a unit with ProcSubset=pid, whose /proc has no /proc/sys: then number and start have to do."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """Clock ticks since boot at which `pid` began; 0 for one that only waits to be reaped; None: not to be seen.

    Field 22 of /proc/PID/stat (proc(5)). The name in brackets before it may hold blanks and brackets.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return 0 if fields[0] in "ZX" else int(fields[19])


def _whole(found: object) -> bool:
    return (
        isinstance(found, Ledger)
        and isinstance(found.permits, tuple)
        and isinstance(found.breakers, tuple)
        and all(_permit(p) for p in found.permits)
        and all(_breaker(b) for b in found.breakers)
    )


def _permit(found: object) -> bool:
    return (
        isinstance(found, Permit)
        and isinstance(found.target, str)
        and isinstance(found.holder, Controller)
        and isinstance(found.holder.pid, int)
        and isinstance(found.began, (int, float))
        and isinstance(found.ended, (int, float))
        and isinstance(found.end, str)
        and isinstance(found.tried, bool)
    )


def _breaker(found: object) -> bool:
    return (
        isinstance(found, Breaker)
        and isinstance(found.opened_at, (int, float))
        and isinstance(found.closed_at, (int, float))
        and all(isinstance(text, str) for text in (found.target, found.why, found.closed_by, found.closed_why))
    )
