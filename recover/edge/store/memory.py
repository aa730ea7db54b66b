"""A journal that nothing outlives: for runs that change nothing, rehearsals and tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from recover.model.record import Entry


class MemoryJournal:
    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._entries = list(entries)

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def entries(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))
