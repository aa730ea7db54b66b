"""A value of the Proxmox API is read in every spelling that PVE writes it in; what is none of these is not guessed.

Perl has one kind of scalar: the same field comes as 1, "1" or true, and an undefined one as null (pve-common,
JSONSchema.pm, parse_boolean). Which side is the cautious one depends on the question, so the reader of a flag says it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_ON, _OFF = frozenset({"1", "on", "yes", "true"}), frozenset({"", "0", "off", "no", "false"})


def flag(value: object, doubt: bool = False) -> bool:
    """A PVE boolean, in any case, as number or text; null is off. `doubt`: what anything else is taken for."""
    word = ("" if value is None else str(value)).strip().lower()
    return True if word in _ON else False if word in _OFF else doubt


def given(row: Mapping[str, Any], key: str, default: object) -> Any:
    """A field, or its default where it is missing or null, as Perl's `//` has it."""
    value = row.get(key)
    return default if value is None else value


def whole(value: object) -> int | None:
    """A number, also one that came as text; None where it is none."""
    try:
        found = float(str(value))
    except ValueError:
        return None
    return int(found) if math.isfinite(found) else None


def number(value: object, otherwise: int = 0) -> int:
    found = whole(value)
    return otherwise if found is None else found


def text(value: object, otherwise: str = "") -> str:
    """A word: text, or a number. Null, lists and objects are none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return otherwise
    return str(value)


def rows_of(value: object) -> list[Mapping[str, Any]]:
    """The rows of a list of objects; anything else in it is left out."""
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, Sequence) else []


def properties(text: str, default: str = "") -> dict[str, str]:
    """A property string ("0000:41:00,pcie=1") as a dict; a part without a key belongs to `default`."""
    found: dict[str, str] = {}
    for part in str(text).split(","):
        key, mark, value = part.partition("=")
        if mark:
            found[key.strip()] = value.strip()
        elif part.strip():
            found.setdefault(default, part.strip())
    return found
