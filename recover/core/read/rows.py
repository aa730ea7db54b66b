"""Access to JSON that a machine sent: a wrong type is a missing value, never an exception."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recover.core.clean import clean

_BIG = 1 << 63


class Row:
    """One JSON object of unknown contents."""

    __slots__ = ("raw",)

    def __init__(self, raw: object) -> None:
        self.raw: Mapping[str, Any] = raw if isinstance(raw, dict) else {}

    def __contains__(self, key: str) -> bool:
        return key in self.raw

    def text(self, key: str, otherwise: str = "", limit: int = 4000) -> str:
        value = self.raw.get(key)
        return clean(value, limit) if isinstance(value, str) else otherwise

    def whole(self, key: str, otherwise: str = "") -> str:
        """Text of several lines as it was sent: for parsers, never for showing."""
        value = self.raw.get(key)
        return value if isinstance(value, str) else otherwise

    def number(self, key: str, otherwise: int = 0) -> int:
        value = whole_number(self.raw.get(key))
        return otherwise if value is None else value

    def maybe(self, key: str) -> int | None:
        return whole_number(self.raw.get(key))

    def real(self, key: str, otherwise: float = 0.0) -> float:
        value = self.raw.get(key)
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _BIG
        return float(value) if good and value is not None else otherwise

    def flag(self, key: str) -> bool:
        return self.raw.get(key) is True

    def row(self, key: str) -> Row:
        return Row(self.raw.get(key))

    def items(self, key: str) -> list[Any]:
        value = self.raw.get(key)
        return value if isinstance(value, list) else []

    def rows(self, key: str) -> list[Row]:
        return [Row(item) for item in self.items(key) if isinstance(item, dict)]

    def texts(self, key: str) -> tuple[str, ...]:
        items = self.items(key)
        return tuple([clean(item) for item in items if isinstance(item, str)]) if items else ()

    def numbers(self, key: str) -> tuple[int, ...]:
        items = self.items(key)
        return tuple([n for n in map(whole_number, items) if n is not None]) if items else ()


def whole_number(value: object) -> int | None:
    """An integer that is one; true and false, text, NaN and absurd sizes are not."""
    if type(value) is int:  # nearly always: a look has ten thousand of them
        return value if -_BIG < value < _BIG else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < _BIG:
        return None
    return int(value)
