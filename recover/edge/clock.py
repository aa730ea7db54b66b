"""The controller's clock: the wall's seconds, but never back within one process; and what ends a sleep early."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ABORT_POLL_S = 1.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SystemClock:
    """`woken` is asked while sleeping, so that an interruption doesn't wait for the sleep's end."""

    def __init__(self, woken: Callable[[], bool] = lambda: False) -> None:
        self._wall, self._base = time.time(), time.monotonic()
        self._woken = woken

    def woken_by(self, woken: Callable[[], bool]) -> None:
        """From now on `woken` is asked while sleeping."""
        self._woken = woken

    def now(self) -> float:
        return self._wall + (time.monotonic() - self._base)

    def sleep(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and not self._woken():
            time.sleep(min(left, ABORT_POLL_S / 4))


class SignalInterrupts:
    """SIGINT, SIGTERM and SIGHUP, an abort file, and a full state folder: all ask the run to stop in good order.

    A signal never cuts an act: the engine looks here between acts, and pays what it owes before it ends.
    """

    def __init__(
        self,
        abort_file: Path | None = None,
        also: Callable[[], str] = lambda: "",
        above: SignalInterrupts | None = None,
    ) -> None:
        """`above` has the signals, of several runs at the same time; without it they are taken by this one itself."""
        self._abort_file, self._also, self._above = abort_file, also, above
        self._who = ""
        self._signals = 0
        self._asked_at = 0.0
        self._lock = threading.Lock()
        self._before: dict[int, Any] = {}
        self.told: Callable[[str], None] = lambda who: None

    def install(self) -> None:
        """Take the signals of this process (main thread only)."""
        if self._above is not None:
            return
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up is to be ignored
                self._before[number] = signal.signal(number, self._on_signal)

    def uninstall(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        who = signal.Signals(number).name
        self._signals += 1
        self._who = self._who or who
        self.told(who)

    @property
    def asked(self) -> int:
        """Signals so far: who asks again wants more than a good end."""
        return self._signals + (self._above.asked if self._above is not None else 0)

    def pending(self) -> str:
        above = self._above.pending() if self._above is not None else ""
        return self._who or above or self._also() or self._aborted()

    def _aborted(self) -> str:
        if self._abort_file is None:
            return ""
        with self._lock:
            if time.monotonic() - self._asked_at < ABORT_POLL_S and not self._who:
                return ""
            self._asked_at = time.monotonic()
        try:
            note = json.loads(self._abort_file.read_bytes())
            who = str(note.get("who", "somebody")) if isinstance(note, dict) else "somebody"
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            who = "somebody"
        self._who = f"abort by {who}"
        return self._who
