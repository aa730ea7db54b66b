"""A size without its unit is refused, never guessed: GB is 10^9 and GiB is 2^30, and both are shown."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation

from recover.core.budget.model import GB, GIB, MIB, Problem
from recover.core.clean import clean

_UNITS = {
    "b": 1,
    "kb": 1000,
    "kib": 1024,
    "mb": 1000**2,
    "mib": MIB,
    "gb": GB,
    "gib": GIB,
    "tb": 1000**4,
    "tib": 1 << 40,
}
_FORM = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([a-zA-Z]*)", re.ASCII)
LARGEST = 1 << 50  # 1 PiB: no machine has it, so that it is a slip of the unit or of the finger
_BINARY = {"b": 1, "k": 1024, "m": MIB, "g": GIB, "t": 1 << 40}


def size(text: str, place: str) -> int:
    """Whole bytes, rounded down. Raises Problem with `place` in it."""
    shown = repr(clean(text, 60))
    found = _FORM.fullmatch(text.strip()) if len(text) < 200 else None
    if found is None:
        raise Problem(f"{place}: {shown} is no size: a number and its unit, as 445GiB or 51GB")
    number, unit = Decimal(found[1]), found[2].lower()
    if not unit:
        raise Problem(f"{place}: {shown} has no unit: {found[1]}GB (10^9 bytes) or {found[1]}GiB (2^30 bytes)?")
    if unit not in _UNITS:
        raise Problem(f"{place}: {shown} has an unclear unit: GB (10^9 bytes) or GiB (2^30 bytes)?")
    return _sane(number * _UNITS[unit], shown, place)


def _sane(amount: Decimal, shown: str, place: str) -> int:
    if amount < 0:
        raise Problem(f"{place}: {shown} is negative")
    if amount < 1:
        raise Problem(f"{place}: {shown} is nothing")
    if amount > LARGEST:
        raise Problem(f"{place}: {shown} is more than 1 PiB, more than any machine has")
    return int(amount)


def count(text: str, place: str, *, least: int = 1, most: int = 65536) -> int:
    """A whole number of things, as ranks. Raises Problem."""
    word = text.strip()
    if not re.fullmatch(r"[+-]?\d{1,18}", word, re.ASCII):
        raise Problem(f"{place}: {clean(text, 60)!r} is no whole number")
    number = int(word)
    if not least <= number <= most:
        raise Problem(f"{place}: {number} is not between {least} and {most}")
    return number


def decimal(text: str, place: str) -> Decimal:
    """A number that an engine reads as a float: positive or zero, finite. Raises Problem."""
    try:
        number = Decimal(text.strip()) if len(text) < 200 else Decimal("nan")
    except InvalidOperation:
        raise Problem(f"{place}: {clean(text, 60)!r} is no number") from None
    if not number.is_finite() or abs(number.adjusted()) > 40:
        raise Problem(f"{place}: {clean(text, 60)!r} is no finite number")
    if number < 0:
        raise Problem(f"{place}: {clean(text, 60)!r} is negative")
    return number


def container_size(text: str) -> int | None:
    """A limit as Docker and systemd write it ("16g", "512M", bytes): binary units. None for what is no such thing."""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d{1,6})?)\s*([bkmgt]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if found is None:
        return None
    amount = int(Decimal(found[1]) * _BINARY[found[2] or "b"])
    return amount if 0 < amount <= LARGEST else None


def gb(amount: int) -> str:
    return f"{_short(amount / GB)} GB"


def gib(amount: int) -> str:
    return f"{_short(amount / GIB)} GiB"


def both(amount: int) -> str:
    """The same amount in both units; small ones in the MB and MiB that make them readable."""
    if 0 < amount < GB:
        return f"{_short(amount / 1_000_000)} MB ({_short(amount / MIB)} MiB)"
    return f"{gb(amount)} ({gib(amount)})"


def _short(number: float) -> str:
    """One decimal below a thousand; whole above, where a decimal says nothing."""
    if math.fabs(number) >= 1000:
        return f"{number:.0f}"
    return f"{number:.1f}"
