"""Each target is looked at once a period, at a moment of its own; one that hangs costs no other target anything.

Of one target never more than one look goes on. A look past its deadline is told as `Late`, gives its place to others
and is waited for no longer; the target is looked at again only after it has come back. Threads are daemons.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from recover.edge.fleet import Failed, Late, at_once

T = TypeVar("T")

FIRST_S = 10.0  # the first looks are spread over so long, for nobody wants to wait a whole period for them
_TICK_S = 1.0  # the longest sleep: who asks whether the patrol is alive hears of it
_STALLED_S = 30.0


@dataclass(frozen=True, slots=True)
class Post(Generic[T]):
    """One target. `look` is given the seconds that it may take; `close` ends its connections, a look's too."""

    name: str
    look: Callable[[float], T]
    close: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """The patrol about itself. `missed`: looks that were due and not begun. `last_period_s` None: nobody seen twice."""

    targets: int
    in_flight: int
    hanging: int
    looks: int
    missed: int
    last_period_s: float | None
    alive: bool


class _Beat(Generic[T]):
    """One target's turn: when it is due, and the look that goes on. Guarded by the patrol's lock."""

    def __init__(self, post: Post[T], due: float) -> None:
        self.post, self.due = post, due
        self.began: float | None = None  # of the look that goes on
        self.told = False  # that look's answer, or that it is late
        self.gone = False  # the target is no longer one of ours
        self.last: float | None = None
        self.gap: float | None = None


class Patrol(Generic[T]):
    """`said` hears each answer, in a thread of that target: what it does delays nobody but the target itself."""

    def __init__(
        self,
        period_s: float,
        limit_s: float,
        width: int,
        said: Callable[[str, T | Failed | Late], None],
        patience_s: float = 20.0,
        grace_s: float = 5.0,
    ) -> None:
        """A look is given `limit_s`, is late `grace_s` after them, and takes one of `width` places for `patience_s`."""
        self._period, self._limit, self._width, self._said = period_s, limit_s, width, said
        self._patience, self._late = patience_s, limit_s + grace_s
        self._wake = threading.Condition()
        self._beats: dict[str, _Beat[T]] = {}
        self._retired: set[_Beat[T]] = set()  # looks of targets that are gone
        self._began = time.monotonic()
        self._stopping = False
        self._looks = self._missed = 0
        self._ticked = self._began

    def post(self, posts: Iterable[Post[T]]) -> None:
        """These and no others from now on. A target that stays keeps its turn; its old connections are closed."""
        wanted = {post.name: post for post in posts}
        with self._wake:
            now, old = time.monotonic(), self._beats
            dropped = [beat.post for name, beat in old.items() if wanted.get(name) is not beat.post]
            for name, beat in old.items():
                beat.gone = name not in wanted
                if beat.gone and beat.began is not None:
                    self._retired.add(beat)
            still = {beat.post.name: beat for beat in self._retired} | old
            self._beats = {name: self._turn(post, still.get(name), now) for name, post in wanted.items()}
            self._retired -= set(self._beats.values())
            self._wake.notify()
        _close(dropped, 10.0)

    def _turn(self, post: Post[T], beat: _Beat[T] | None, now: float) -> _Beat[T]:
        if beat is None:
            return _Beat(post, now + share(post.name) * min(self._period, FIRST_S))
        beat.post, beat.gone = post, False
        return beat

    def run(self) -> None:
        """Until `stop` is called."""
        with self._wake:
            while not self._stopping:
                now = self._ticked = time.monotonic()
                self._give_up(now)
                self._begin(now)
                self._wake.wait(max(0.0, min(self._next(now) - now, _TICK_S)) + 0.001)

    def stop(self, seconds: float = 10.0) -> int:
        """Begin no more, close all connections, wait for the looks. How many did not come back in time."""
        ends = time.monotonic() + seconds
        with self._wake:
            self._stopping = True
            posts = [beat.post for beat in self._beats.values()]
            self._wake.notify()
        _close(posts, seconds / 2)
        with self._wake:
            while self._running() and (left := ends - time.monotonic()) > 0:
                self._wake.wait(left)
            return len(self._running())

    def figures(self) -> Figures:
        with self._wake:
            running = self._running()
            gaps = [beat.gap for beat in self._beats.values() if beat.gap is not None]
            return Figures(
                targets=len(self._beats),
                in_flight=len(running),
                hanging=sum(beat.told for beat in running),
                looks=self._looks,
                missed=self._missed,
                last_period_s=max(gaps, default=None),
                alive=not self._stopping and time.monotonic() - self._ticked < _STALLED_S,
            )

    def _running(self) -> list[_Beat[T]]:
        return [beat for beat in (*self._beats.values(), *self._retired) if beat.began is not None]

    def _give_up(self, now: float) -> None:
        for beat in self._beats.values():
            if beat.began is not None and not beat.told and now - beat.began > self._late:
                # Not in this thread: whoever is told may take its time.
                beat.told = _spawn(self._said, beat.post.name, Late(now - beat.began, began=True))

    def _begin(self, now: float) -> None:
        busy = sum(1 for b in self._running() if b.began is not None and not b.told and now - b.began < self._patience)
        for beat in sorted(self._beats.values(), key=lambda beat: beat.due):
            if beat.due > now:
                break
            while beat.due + self._period <= now:  # a whole period has gone by in which it could not begin
                self._missed += 1
                beat.due += self._period
            if beat.began is not None or busy >= self._width:
                continue
            self._start(beat, now)
            busy += 1

    def _start(self, beat: _Beat[T], now: float) -> None:
        slot = _slot_after(now, self._began, share(beat.post.name), self._period)
        if beat.last is not None:
            beat.gap = now - beat.last
            self._missed += max(0, round((slot - beat.due) / self._period) - 1)
        beat.due = slot
        if not _spawn(self._body, beat, beat.post):
            self._missed += 1
            return
        beat.last = beat.began = now
        beat.told = False
        self._looks += 1

    def _body(self, beat: _Beat[T], post: Post[T]) -> None:
        began = time.monotonic()
        try:
            answer: T | Failed = post.look(self._limit)
        except Exception as error:  # handed over as a value, as `at_once` does
            answer = Failed(error, time.monotonic() - began)
        with self._wake:
            ours = beat.post is post and not beat.gone  # else it ended because its connections were closed
            unheard = ours and not (beat.told or self._stopping)
            beat.told = True  # from now on it takes no place, whatever the hearer does
            beat.due = beat.due if ours else time.monotonic()
            self._wake.notify()
        try:
            if unheard:
                self._said(post.name, answer)
        finally:
            with self._wake:
                beat.began = None
                self._retired.discard(beat)
                self._wake.notify_all()

    def _next(self, now: float) -> float:
        """When something may have to be done next."""
        running = [b for b in self._beats.values() if b.began is not None and not b.told]
        times = [b.due for b in self._beats.values() if b.began is None and b.due > now]
        times += [(b.began or now) + self._late for b in running]
        times += [at for b in running if (at := (b.began or now) + self._patience) > now]
        return min(times, default=now + _TICK_S)


def _spawn(work: Callable[..., None], *args: object) -> bool:
    """False where the machine has no thread to give."""
    try:
        threading.Thread(target=work, args=args, daemon=True, name="patrol").start()
    except RuntimeError:
        return False
    return True


def share(name: str) -> float:
    """Where in a period a target has its turn, 0 to 1: by its name alone, so that it is the same after a restart."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big") / (1 << 48)


def _slot_after(now: float, began: float, at: float, period: float) -> float:
    """The target's next moment, at least half a period away."""
    earliest = now + period / 2
    rounds = (earliest - began) / period - at
    return began + (max(0, -int(-rounds // 1)) + at) * period


def _close(posts: Iterable[Post[T]], seconds: float) -> None:
    """All at once: one that can't be closed keeps no other open."""
    jobs = [_closing(post) for post in posts]
    if jobs:
        at_once(jobs, 32, seconds, seconds / 4)


def _closing(post: Post[T]) -> Callable[[float], bool]:
    def close(left: float) -> bool:
        post.close()
        return True

    return close
