"""One total limit is carried through every wait of a call; nothing in this package waits without one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from recover.edge.shell.failures import ShellError
from recover.model.contact import Failure

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limit:
    """A moment of the monotonic clock after which the caller wants its answer."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Limit:
        return cls(time.monotonic() + seconds)

    @property
    def left(self) -> float:
        return max(0.0, self.at - time.monotonic())

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.at

    def within(self, seconds: float) -> Limit:
        """The nearer of this limit and `seconds` from now."""
        return Limit(min(self.at, time.monotonic() + seconds))


def bounded(work: Callable[[], T], limit: Limit, late: Callable[[], ShellError]) -> T:
    """Do what knows no time-out of its own (getaddrinfo, an ssh-agent) in a thread that can be abandoned."""
    box: dict[str, Any] = {}

    def body() -> None:
        try:
            box["value"] = work()
        except BaseException as error:  # carried to the caller's thread
            box["error"] = error

    thread = threading.Thread(target=body, daemon=True, name="bounded")
    thread.start()
    thread.join(limit.left)
    if "error" in box:
        raise box["error"]
    if "value" not in box:
        raise late()
    value: T = box["value"]
    return value


def out_of_time(where: str, doing: str, *, started: bool = False) -> ShellError:
    return ShellError(Failure.TIMEOUT, f"{where}: the total deadline passed while {doing}", started=started)
