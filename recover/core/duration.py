"""Durations as people write them in files and on command lines: "30s", "2m", "1.5h"."""

from __future__ import annotations

import re

_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: object) -> float | None:
    """Seconds, or None for anything that isn't a number with its unit."""
    found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
    return float(found[1]) * _SECONDS[found[2]] if found else None
