"""Servers that the run ended and that no manager starts: their commands, so that a person can start them again."""

from __future__ import annotations

from collections.abc import Iterable

from recover.core.clean import clean
from recover.model.act import Action, EndMpsClient, OnHost, Signal
from recover.model.record import Acting, Began, Entry, Saw
from recover.model.verdict import Scope

_LONGEST = 4000


def by_hand(entries: Iterable[Entry]) -> list[str]:
    """Each command once, without its secrets; what runs again by now, or runs on, is left out."""
    ended: dict[str, str] = {}  # group key -> command
    seen: dict[str, str] = {}
    for entry in entries:
        match entry:
            case Saw() if entry.vitals.reached:
                seen = dict(entry.vitals.by_hand)
            case Began() if entry.scope >= Scope.GUEST:
                ended |= seen
            case Acting(action=action) if (key := _group(action)) in seen:
                ended[key] = seen[key]
            case _:
                pass
    running = set(seen.values())
    return [clean(c, _LONGEST) for c in dict.fromkeys(ended.values()) if c not in running]


def _group(action: Action) -> str:
    inner = action.do if isinstance(action, OnHost) else action
    return inner.group if isinstance(inner, Signal | EndMpsClient) else ""
