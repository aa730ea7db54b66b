"""What people and other programs are told, and what each was told already: the notebook that survives restarts.

Times are seconds since the epoch by the controller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recover.model.watch import Judged, Status


class Event(StrEnum):
    """What a destination can ask to hear of."""

    STATE = "state"  # a target's state changed, or lasts (a reminder), or is well again
    RECOVERED = "recovered"  # a run brought a target back
    GAVE_UP = "gave-up"  # a run ended and the target is not well
    BREAKER = "breaker"  # nothing is recovered unattended any more, or a person has said that it may be again


class HookEvent(StrEnum):
    """When a program of the operator's is run."""

    BEFORE_DISRUPTION = "before-disruption"
    AFTER_RECOVERY = "after-recovery"
    GAVE_UP = "gave-up"
    STATE_CHANGE = "state-change"


@dataclass(frozen=True, slots=True)
class Present:
    """How a target stands, as the change of `at` said. `since`: when this state began; `before`: the one before it."""

    target: str
    at: float
    judged: Judged
    since: float
    flapping: bool = False
    before: Judged | None = None
    before_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Told:
    """What a destination heard last of a target and was not told to be over yet. `to` "": the state-change hook.

    `signals`: all that were named since it was first told; `since`: when what was told began.
    """

    to: str
    target: str
    status: Status
    signals: tuple[str, ...]
    at: float
    since: float
    flapping: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that happened once, in words. `next`: the command or act that follows; may be empty.

    `over`: what an earlier notice of the same event told of has ended. `title`: instead of the event's own.
    """

    at: float
    event: Event
    target: str
    what: str
    tried: str = ""
    next: str = ""
    run: str = ""
    over: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """A notice that a destination has not got yet."""

    to: str
    notice: Notice
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Silence:
    """A destination that could not be reached, since when, and why in words without secrets."""

    to: str
    since: float
    why: str
    tries: int = 1


@dataclass(frozen=True, slots=True)
class Notebook:
    """All that the herald knows between two checks."""

    present: tuple[Present, ...] = ()
    told: tuple[Told, ...] = ()
    pending: tuple[Pending, ...] = ()
    silent: tuple[Silence, ...] = ()
