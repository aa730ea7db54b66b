"""Many looks at once under one total deadline: none waits for one that hangs, and what comes too late is left behind.

Their threads are daemons, because a look that hangs must not keep the process alive either. Runs are another matter.
"""

from __future__ import annotations

import contextlib
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Late:
    """No answer came within the total deadline. `began` False: it was not even asked."""

    seconds: float
    began: bool


@dataclass(frozen=True, slots=True)
class Failed:
    """The job itself broke: a bug of ours in one of many must not hide what the others found."""

    error: Exception
    seconds: float


@dataclass(frozen=True, slots=True)
class Room:
    """What this process's file descriptors suffice for. `keeps`: connections to all targets may stand at once."""

    jobs: int
    keeps: bool
    says: str = ""


_EACH = 8  # a look: socket, channel's pipe, API, and those of a jump host or ProxyCommand
_OURS = 64


def descriptors(targets: int, jobs: int) -> Room:
    """Raise the soft limit of open files as far as it is needed and may be; the hard limit stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OURS + _EACH * targets
    if soft != resource.RLIM_INFINITY and soft < wanted:
        more = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if more > soft:
            with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid even this
                resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
                soft = more
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return Room(jobs, True)
    fits = max(1, (soft - _OURS) // _EACH)
    says = (
        f"{targets} targets need up to {wanted} open files and the limit is {soft}: no connection is kept, and at most "
        f"{min(jobs, fits)} looks are made at a time (raise it with ulimit -n, or LimitNOFILE= in a systemd unit)"
    )
    return Room(min(jobs, fits), False, says)


@dataclass(slots=True)
class _Task(Generic[T]):
    job: Callable[[float], T]
    began: float | None = None
    answer: T | Failed | None = None
    over: bool = False

    def told(self, started: float) -> T | Failed | Late:
        if self.over:
            assert self.answer is not None
            return self.answer
        return Late(time.monotonic() - (self.began or started), self.began is not None)


def at_once(
    jobs: Sequence[Callable[[float], T]], width: int, limit_s: float, patience_s: float
) -> list[T | Failed | Late]:
    """The answers in the order of the jobs. Each job is given the seconds that are left for it.

    At most `width` run at a time, but one that runs longer than `patience_s` counts no more: it has hung, most likely,
    and would take the place of others for nothing.
    """
    started, wake = time.monotonic(), threading.Condition()
    tasks: list[_Task[T]] = [_Task(job) for job in jobs]

    def body(task: _Task[T], left: float) -> None:
        try:
            answer: T | Failed = task.job(left)
        except Exception as error:  # handed over as a value: see Failed
            answer = Failed(error, time.monotonic() - (task.began or started))
        with wake:
            task.answer, task.over = answer, True
            wake.notify()

    with wake:
        while not all(task.over for task in tasks):
            now = time.monotonic()
            left = started + limit_s - now
            if left <= 0:
                break
            running = [t.began for t in tasks if t.began is not None and not t.over and now - t.began < patience_s]
            waiting = [t for t in tasks if t.began is None]
            for task in waiting[: max(0, width - len(running))]:
                task.began = now
                threading.Thread(target=body, args=(task, left), daemon=True, name="look").start()
                running.append(now)
            ripe = min((began + patience_s - now for began in running), default=left) if waiting else left
            wake.wait(max(0.0, min(left, ripe)) + 0.001)
        return [task.told(started) for task in tasks]


def side_by_side(jobs: Sequence[Callable[[], None]]) -> None:
    """Each in a thread of its own, waited for to its end however long it takes; what one of them raises is raised.

    Not daemons: what they do must come to its end also where the waiting is broken off.
    """
    wrong: list[BaseException] = []

    def body(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            wrong.append(error)

    threads = []
    for job in jobs:
        thread = threading.Thread(target=body, args=(job,), name="run")
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread to give
            body(job)
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
