"""Progress as plain lines on stderr, each with its time; the same thing is not said twice within half a minute."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from recover.core.report.lines import line
from recover.core.report.words import span
from recover.model.record import Acted, Decided, Entry, Opened, Saw, Wait

REPEAT_S = 30.0
SILENCE_S = 15.0
_FIGURES = re.compile(r"\d+(?:[.:]\d+)*")


class PlainView:
    """`stamp`: how a moment is written, from the entry's time and the run's first. `beat`: say that we still live."""

    def __init__(
        self,
        write: Callable[[str], None] | None = None,
        stamp: Callable[[float, float], str] | None = None,
        *,
        verbose: bool = False,
        beat: bool = True,
        about: str = "",
    ) -> None:
        """`about`: what each line begins with, where several runs share a terminal."""
        self._about = f"{about}: " if about else ""
        self._write = write if write is not None else _stderr
        self._stamp = stamp if stamp is not None else wall_stamp
        self._verbose, self._beat = verbose, beat
        self._said: dict[str, tuple[str, float]] = {}  # kind -> what was said last of it, and when
        self._began: float | None = None
        self._last = ("", time.monotonic())
        self._asking = False
        self._closed = threading.Event()
        self.run = ""

    def __enter__(self) -> PlainView:
        if self._beat:
            threading.Thread(target=self._keep_beating, name="progress", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closed.set()

    def entry(self, entry: Entry) -> None:
        if isinstance(entry, Opened):
            self.run = entry.run
        if self._began is None:
            self._began = entry.at
        text = line(entry)
        if text and (self._verbose or self._is_news(entry, text)):
            self._write(f"{self._stamp(entry.at, self._began)} {self._about}{text}\n")
        if text:
            self._last = (text, time.monotonic())

    def _is_news(self, entry: Entry, text: str) -> bool:
        """Looks and waits repeat themselves: figures that change are worth a line now and then."""
        if isinstance(entry, Saw):
            kind = "saw"
        elif isinstance(entry, Decided) and isinstance(entry.decision, Wait):
            kind = "wait"
        else:
            self._said.clear()
            return not isinstance(entry, Acted) or not entry.outcome.ok or entry.outcome.seconds >= 1
        key = _FIGURES.sub("#", text)
        before = self._said.get(kind)
        if before is not None and before[0] == key and entry.at - before[1] < REPEAT_S:
            return False
        self._said[kind] = (key, entry.at)
        return True

    def asking(self, asking: bool) -> None:
        self._asking = asking

    def told(self, who: str) -> None:
        """A signal came while something is being done: say at once that it was heard."""
        self._write(f"{self._about}{who} heard: what is going on is finished and put back first, then it ends\n")

    def waiting(self, what: str) -> None:
        self._write(f"{self._about}{what}\n")
        self._last = (what, time.monotonic())

    def _keep_beating(self) -> None:
        while not self._closed.wait(SILENCE_S):
            text, since = self._last
            quiet = time.monotonic() - since
            if quiet >= SILENCE_S and not self._asking:
                with contextlib.suppress(OSError):
                    self._write(f"{' ' * 8} {self._about}still ({span(quiet)}): {text}\n")


class SilentView:
    """For -q: nothing."""

    run = ""

    def __enter__(self) -> SilentView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def entry(self, entry: Entry) -> None:
        if isinstance(entry, Opened):
            self.run = entry.run

    def asking(self, asking: bool) -> None:
        pass

    def told(self, who: str) -> None:
        pass

    def waiting(self, what: str) -> None:
        pass


def wall_stamp(at: float, began: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at)) + f" {elapsed(at - began)}"


def elapsed_stamp(at: float, began: float) -> str:
    """For a rehearsal, whose time is not ours."""
    return elapsed(at - began)


def elapsed(seconds: float) -> str:
    whole = max(0, int(seconds))
    return f"+{whole // 60:02}:{whole % 60:02}"


def _stderr(text: str) -> None:
    """Unbuffered: it may be called from a signal handler, where a buffered stream may be in use already."""
    data = text.encode(sys.stderr.encoding or "utf-8", "backslashreplace")
    try:
        handle = sys.stderr.fileno()
    except (OSError, ValueError):  # no file behind it: another program's stream
        sys.stderr.write(text)
        return
    os.write(handle, data)
