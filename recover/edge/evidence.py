"""What an act may destroy is saved first: bounded in time, secrets redacted, and what is missing is said."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recover.core.codec import encode
from recover.edge.store.folder import write_atomically
from recover.model.guest import Guest
from recover.model.snapshot import Snapshot
from recover.ports import Saved

CAP_S = 60.0
# What was found, as (file name, content), and what could not be had.
Found = tuple[Iterable[tuple[str, bytes]], Iterable[str]]
Collector = Callable[[Snapshot, float], Found]
Notes = Callable[[Snapshot, float], Iterable[str]]


def no_notes(snapshot: Snapshot, seconds: float) -> Iterable[str]:
    return ()


class EvidenceFolder:
    """Writes below `folder`. `collectors`: (what it is, how to get it within so many seconds); asked side by side.

    `notes` says what can already be told of the cause.
    """

    def __init__(self, folder: Path, collectors: Iterable[tuple[str, Collector]] = (), notes: Notes = no_notes) -> None:
        self._folder, self._collectors, self._notes = folder, tuple(collectors), notes

    def keep(self, snapshot: Snapshot) -> Saved:
        missing: list[str] = []
        began = time.monotonic()
        self._write("snapshot.json", json.dumps(encode(snapshot), indent=1).encode(), missing)
        if isinstance(snapshot.guest, Guest):
            self._write("guest-report.jsonl", "\n".join(snapshot.guest.raw).encode(), missing)
        else:
            missing.append(f"everything in the guest: {snapshot.guest.failure}: {snapshot.guest.detail}")
        left = CAP_S - (time.monotonic() - began)
        with ThreadPoolExecutor(len(self._collectors) + 1, thread_name_prefix="evidence") as pool:
            asked = [(what, pool.submit(collect, snapshot, left)) for what, collect in self._collectors]
            told = pool.submit(self._notes, snapshot, left)
        for what, answer in asked:
            try:
                files, absent = answer.result()
                for name, data in files:
                    self._write(name, data, missing)
                missing += absent
            except Exception as error:  # evidence must never stop a recovery, whatever breaks in collecting it
                missing.append(f"{what}: {type(error).__name__}: {error}")
        try:
            notes = tuple(told.result())
        except Exception as error:  # as above
            notes = ()
            missing.append(f"the cause: {type(error).__name__}: {error}")
        return Saved(str(self._folder), tuple(missing), notes)

    def _write(self, name: str, data: bytes, missing: list[str]) -> None:
        try:
            write_atomically(self._folder / Path(name).name, data)
        except OSError as error:
            missing.append(f"{name}: {error.strerror or error}")


class NoEvidence:
    """For runs that change nothing."""

    def keep(self, snapshot: Snapshot) -> Saved:
        return Saved()
