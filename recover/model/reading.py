"""A reading is what was seen or why it could not be seen; it is never silently false, zero or empty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NoReturn, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Why(StrEnum):
    """Why a reading is not known."""

    TIMEOUT = "timeout"  # asked, and no answer within the deadline: may be evidence of a hang
    UNREACHABLE = "unreachable"  # the channel itself is not there
    DENIED = "denied"  # asked, and told that we may not know: only a gap
    GARBLED = "garbled"  # answered with something that has no meaning
    ABSENT = "absent"  # the thing or the question does not exist there


class _NoTruth:
    """A reading in a boolean context is a bug: `if reading` would take unknown for no."""

    __slots__ = ()

    def __bool__(self) -> NoReturn:
        raise TypeError("a reading has no truth value: match Known(value) or Unknown(why, detail)")


@dataclass(frozen=True, slots=True)
class Known(_NoTruth, Generic[T]):
    """A value that was read."""

    value: T


@dataclass(frozen=True, slots=True)
class Unknown(_NoTruth):
    """A value that could not be read, with the reason."""

    why: Why
    detail: str = ""


Reading = Known[T] | Unknown


def map_known(reading: Known[T] | Unknown, change: Callable[[T], U]) -> Known[U] | Unknown:
    """Apply `change` to a known value; an unknown stays what it is."""
    return Known(change(reading.value)) if isinstance(reading, Known) else reading


def known_or(reading: Known[T] | Unknown, otherwise: U) -> T | U:
    """The value, or `otherwise`. For showing only: a decision must match both cases."""
    return reading.value if isinstance(reading, Known) else otherwise
