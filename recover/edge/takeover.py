"""An unattended run yields to a person: it is asked to stop in good order, and the person's run waits for its lock.

The request is the one that `gpu-recover abort` writes: the act under way is finished, what is owed is paid, no more.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

from recover.edge.store.folder import write_atomically
from recover.edge.store.lock import Holder, TargetLock

TAKE_OVER_S = 2700.0  # an act that is under way may be a boot with all of its memory to pin
_POLL_S = 0.25


def taken_over(
    lock: TargetLock, me: Holder, folder_of: Callable[[Holder], Path], told: Callable[[str], None], limit_s: float
) -> Holder | None:
    """None: the lock is ours now. Else who holds it still: a person, or a run that did not yield within `limit_s`."""
    until, asked = time.monotonic() + limit_s, ""
    while (other := lock.take(me)) is not None:
        if not other.unattended or time.monotonic() >= until:
            return other
        if other.run != asked:
            asked = other.run
            told(f"unattended run {other.run} works there: asked to stop after the act that is under way")
        _ask(folder_of(other), me)
        time.sleep(_POLL_S)
    return None


def _ask(folder: Path, me: Holder) -> None:
    """Again and again: a run that just begins takes an old request away."""
    if folder.is_dir() and not (folder / "abort").exists():
        with contextlib.suppress(OSError):
            write_atomically(folder / "abort", json.dumps({"who": f"{me.who}, who takes over"}).encode() + b"\n")
