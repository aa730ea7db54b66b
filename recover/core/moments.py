"""Moments as people write them: "7d" (so long ago), "2026-11-30", "2026-11-30T12:21" or with a zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(m|h|d|w)")
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_RUN = re.compile(r"(\d{8}T\d{6}Z)-")
FORMS = "7d, 24h, 90m, 2w, 2026-11-30 or 2026-11-30T12:21"


def moment(text: str, now: float) -> float | None:
    """Seconds since the epoch; what names no zone is local time. None for what is no moment."""
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago:
            return now - float(ago[1]) * _SECONDS[ago[2]]
        return datetime.fromisoformat(text.strip()).astimezone().timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def run_moment(run: str) -> float | None:
    """When a run began, by its id, which opens with that; None for an id of another form."""
    found = _RUN.match(run)
    try:
        return datetime.strptime(found[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() if found else None
    except ValueError:
        return None
