"""How a target stands over many checks: what the last looks said, the state that lasted, and what people hear of.

A look's word is soft until it has come `bad` times within the last `of` looks; only then does the state change, and
only a change is told. Times are seconds since the epoch by the controller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Status(IntEnum):
    """The monitoring-plugin convention, and its exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Judged:
    """What one check said of one target. `signals`: names of its findings, sorted; `says`: its one sentence."""

    at: float
    status: Status
    signals: tuple[str, ...] = ()
    says: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """One target between two checks. `state` is the hard one, since `since`; None: not judged often enough yet.

    `recent` are the newest looks, the oldest first; `changed` the times of the newest changes, for flapping.
    `symptoms`: (key, level, since) of what may still go away by itself, so that it ripens also between two checks.
    """

    target: str
    state: Judged | None = None
    since: float = 0.0
    recent: tuple[Judged, ...] = ()
    changed: tuple[float, ...] = ()
    flapping: bool = False
    symptoms: tuple[tuple[str, int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Transition:
    """The hard state changed (or flapping began or ended): what is journaled, and what messages and hooks fire on.

    `before` is None at the first state ever. `before_since`: when the state before it began.
    """

    at: float
    target: str
    before: Judged | None
    after: Judged
    before_since: float = 0.0
    flapping: bool = False


@dataclass(frozen=True, slots=True)
class Controller:
    """One process of one boot of one machine: a number alone is given to others again."""

    host: str
    boot: str
    pid: int
    started: int  # clock ticks since boot, field 22 of /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Permit:
    """That `target` is acted on by itself. On disk before anything is done; `ended` 0: it goes on."""

    target: str
    holder: Controller
    began: float
    ended: float = 0.0
    end: str = ""  # how the run ended, in a word
    tried: bool = False  # something was done to the target, or nobody knows


@dataclass(frozen=True, slots=True)
class Breaker:
    """Opened by a failure that nothing explains, closed by a person. `closed_at` 0: it is open."""

    opened_at: float
    target: str
    why: str
    closed_at: float = 0.0
    closed_by: str = ""
    closed_why: str = ""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What has been done unattended by all processes of this state folder: who may still act is read from it alone."""

    permits: tuple[Permit, ...] = ()
    breakers: tuple[Breaker, ...] = ()  # the newest last
