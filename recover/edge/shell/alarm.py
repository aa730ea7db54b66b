"""One thread watches all moments at which something must be cut: a thread for each would cost more than a look."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_IDLE_S = 60.0  # then the thread ends; the next alarm starts another


class Alarms:
    """`after` starts what is to be cancelled by its end, else the work is done, in a thread of its own."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._live: set[int] = set()
        self._numbers = itertools.count()
        self._awake = False  # whether the thread is there

    @contextmanager
    def after(self, seconds: float, work: Callable[[], object]) -> Iterator[None]:
        """Do `work` unless the body ends before `seconds` are over."""
        number = self._set(time.monotonic() + seconds, work)
        try:
            yield
        finally:
            with self._wake:
                self._live.discard(number)

    def _set(self, at: float, work: Callable[[], object]) -> int:
        with self._wake:
            number = next(self._numbers)
            self._live.add(number)
            first = not self._due or at < self._due[0][0]
            heapq.heappush(self._due, (at, number, work))
            if not self._awake:
                self._awake = True
                threading.Thread(target=self._watch, daemon=True, name="alarms").start()
            elif first:
                self._wake.notify()
            return number

    def _watch(self) -> None:
        with self._wake:
            while True:
                now = time.monotonic()
                while self._due and (self._due[0][1] not in self._live or self._due[0][0] <= now):
                    _, number, work = heapq.heappop(self._due)
                    if number in self._live:
                        self._live.discard(number)
                        threading.Thread(target=work, daemon=True, name="cutter").start()
                if not self._due and not self._wake.wait(_IDLE_S) and not self._due:
                    self._awake = False
                    return
                if self._due:
                    self._wake.wait(max(0.0, self._due[0][0] - time.monotonic()) + 0.001)


ALARMS = Alarms()
