"""The journal on disk: one JSON line per entry, on disk before `append` returns; a torn last line is tolerated."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

from recover.core.codec import Garbled, decode, encode
from recover.edge.store.folder import sync_folder
from recover.model.record import Entry

BALLAST = 256 * 1024  # freed when the disk fills up, so that what we owe can still be written and paid


class JournalDamaged(Exception):
    """A line before the last cannot be read; the text names file and line."""


class FileJournal:
    """Appends to `folder`/journal.jsonl. Raises OSError from `append` when an entry is not on disk."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"
        self.full = False  # the disk was full: the ballast is spent
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._ballast = folder / ".ballast"
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._drop_torn_line()
            self._fill_ballast()
        except BaseException:
            self.close()
            raise
        sync_folder(folder)
        sync_folder(folder.parent)

    def _drop_torn_line(self) -> None:
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            os.ftruncate(self._fd, data.rfind(b"\n") + 1)
            os.fsync(self._fd)

    def _fill_ballast(self) -> None:
        if self._ballast.exists() and self._ballast.stat().st_size == BALLAST:
            return
        with open(self._ballast, "wb") as file:
            file.write(b"\0" * BALLAST)
            file.flush()
            os.fsync(file.fileno())

    def append(self, entry: Entry) -> None:
        line = json.dumps(encode(entry), ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
        try:
            self._write(line)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not self._ballast.exists():
                raise
            self._ballast.unlink()
            self.full = True
            self._write(line)

    def _write(self, line: bytes) -> None:
        """Whole or not at all: a line that was written in part is cut off again."""
        before = os.fstat(self._fd).st_size
        try:
            done = 0
            while done < len(line):
                done += os.write(self._fd, line[done:])
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, before)
            raise

    def entries(self) -> Iterator[Entry]:
        return read_entries(self.path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._ballast.unlink(missing_ok=True)


def read_entries(path: Path) -> Iterator[Entry]:
    """The entries of a journal. A torn last line (a crash while writing) is left out; other damage raises."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    lines = data.split(b"\n")
    whole, torn = lines[:-1], lines[-1]
    for number, line in enumerate(whole, 1):
        yield entry_of(path, number, line)
    if torn:
        return


def entry_of(path: Path, number: int, line: bytes) -> Entry:
    """One line of a journal. Raises JournalDamaged, naming file and line."""
    try:
        entry = decode(json.loads(line), f"{path}:{number}")
    except (ValueError, Garbled) as error:
        raise JournalDamaged(f"{path}:{number}: cannot be read: {error}") from None
    if not isinstance(entry, Entry):
        raise JournalDamaged(f"{path}:{number}: {type(entry).__name__} is no journal entry")
    return entry


def follow_entries(path: Path, position: int) -> tuple[list[Entry], int]:
    """Whole new entries from byte `position` on, and where the next read begins."""
    try:
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read()
    except FileNotFoundError:
        return [], position
    whole = data[: data.rfind(b"\n") + 1]
    entries = [entry_of(path, 0, line) for line in whole.splitlines()]
    return entries, position + len(whole)
