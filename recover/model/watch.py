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
    """

    target: str
    state: Judged | None = None
    since: float = 0.0
    recent: tuple[Judged, ...] = ()
    changed: tuple[float, ...] = ()
    flapping: bool = False


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
