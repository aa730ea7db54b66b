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

CAP_S = 60.0
# What was found, as (file name, content), and what could not be had.
Found = tuple[Iterable[tuple[str, bytes]], Iterable[str]]
Collector = Callable[[Snapshot, float], Found]


class EvidenceFolder:
    """Writes below `folder`. `collectors`: (what it is, how to get it within so many seconds); asked side by side."""

    def __init__(self, folder: Path, collectors: Iterable[tuple[str, Collector]] = ()) -> None:
        self._folder, self._collectors = folder, tuple(collectors)

    def keep(self, snapshot: Snapshot) -> tuple[str, tuple[str, ...]]:
        missing: list[str] = []
        began = time.monotonic()
        self._write("snapshot.json", json.dumps(encode(snapshot), indent=1).encode(), missing)
        if isinstance(snapshot.guest, Guest):
            self._write("guest-report.jsonl", "\n".join(snapshot.guest.raw).encode(), missing)
        else:
            missing.append(f"everything in the guest: {snapshot.guest.failure}: {snapshot.guest.detail}")
        left = CAP_S - (time.monotonic() - began)
        with ThreadPoolExecutor(max(1, len(self._collectors)), thread_name_prefix="evidence") as pool:
            asked = [(what, pool.submit(collect, snapshot, left)) for what, collect in self._collectors]
        for what, answer in asked:
            try:
                files, absent = answer.result()
                for name, data in files:
                    self._write(name, data, missing)
                missing += absent
            except Exception as error:  # evidence must never stop a recovery, whatever breaks in collecting it
                missing.append(f"{what}: {type(error).__name__}: {error}")
        return str(self._folder), tuple(missing)

    def _write(self, name: str, data: bytes, missing: list[str]) -> None:
        try:
            write_atomically(self._folder / Path(name).name, data)
        except OSError as error:
            missing.append(f"{name}: {error.strerror or error}")


class NoEvidence:
    """For runs that change nothing."""

    def keep(self, snapshot: Snapshot) -> tuple[str, tuple[str, ...]]:
        return "", ()
