"""Progress goes to stderr: live on a terminal, plain lines elsewhere, nothing with -q; the result never goes there."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from recover.core.report.words import span
from recover.model.record import Opened

if TYPE_CHECKING:
    from recover.cli.live import LiveView
    from recover.cli.plain import PlainView, SilentView
    from recover.model.ladder import Playbook
    from recover.model.record import Entry


class SteadyView:
    """A view that fails or whose terminal is gone goes silent: what is shown must never decide what is done."""

    def __init__(self, inner: LiveView | PlainView | SilentView) -> None:
        self._inner = inner
        self._silent = False
        self.run = ""

    def __enter__(self) -> SteadyView:
        self._try(self._inner.__enter__)
        return self

    def __exit__(self, *_: object) -> None:
        self._try(lambda: self._inner.__exit__(None, None, None))

    def entry(self, entry: Entry) -> None:
        self.run = entry.run if isinstance(entry, Opened) else self.run
        self._try(lambda: self._inner.entry(entry))

    def asking(self, asking: bool) -> None:
        self._try(lambda: self._inner.asking(asking))

    def told(self, who: str) -> None:
        self._try(lambda: self._inner.told(who))

    def waiting(self, what: str) -> None:
        """Before the run's first entry: what it waits for."""
        self._try(lambda: self._inner.waiting(what))

    def _try(self, show: Callable[[], object]) -> None:
        if self._silent:
            return
        try:
            show()
        except Exception:
            self._silent = True


def at_terminal() -> bool:
    """Whether stderr is a terminal that can be redrawn."""
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def view_for(
    playbook: Playbook, *, quiet: bool, verbose: bool, now: Callable[[], float] = time.time, about: str = ""
) -> SteadyView:
    """The view that fits. Verbose is plain: lines can be kept, a live view can't. `about` stands before each line."""
    from recover.cli.plain import PlainView, SilentView

    if quiet:
        return SteadyView(SilentView())
    if verbose or not at_terminal():
        return SteadyView(PlainView(verbose=verbose, about=about))
    from rich.console import Console

    from recover.cli.live import LiveView

    return SteadyView(LiveView(Console(stderr=True, highlight=False), playbook, now))


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Say what takes so long, with the elapsed time, from the first second on."""
    over = threading.Event()
    redraw = at_terminal()

    def tell() -> None:
        began, every = time.monotonic(), 1.0 if redraw else 15.0
        wait = 1.0
        while not over.wait(wait):
            took = span(time.monotonic() - began)
            sys.stderr.write(f"\r\x1b[K{what} … {took}" if redraw else f"{what} … {took}\n")
            sys.stderr.flush()
            wait = every

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    if not quiet:
        teller.start()
    try:
        yield
    finally:
        over.set()
        if not quiet:
            teller.join()
            if redraw:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
