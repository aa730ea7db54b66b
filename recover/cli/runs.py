"""Runs as their journals tell them: which one goes on, which ended how; read only, and never in the way of a run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recover.core.clean import clean
from recover.core.history import History, fold
from recover.core.report.result import exit_code, opened_at
from recover.edge.store.journal import JournalDamaged, read_entries

if TYPE_CHECKING:
    from recover.edge.store.folder import StateFolder


@dataclass(frozen=True, slots=True)
class Past:
    """One run of one target. `broken`: why its journal can't be read."""

    target: str
    run: str
    began: float
    ended: float | None
    end: str
    code: int | None
    tried: tuple[str, ...]
    who: str
    goes_on: bool
    broken: str = ""


def journal_of(folder: Path) -> Path:
    return folder / "journal.jsonl"


def holder(folder: Path) -> dict[str, Any] | None:
    """Who holds the target of this folder: the note in its lock, if that process lives. Other hosts are believed."""
    try:
        note = json.loads((folder / "lock").read_bytes() or b"null")
    except (OSError, ValueError):
        return None
    if not isinstance(note, dict) or not isinstance(note.get("pid"), int):
        return None
    return note if note.get("host") != socket.gethostname() or _lives(note["pid"]) else None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def goes_on(folder: Path) -> bool:
    """Whether the run of this run folder goes on now."""
    note = holder(folder.parent.parent)
    return note is not None and note.get("run") == folder.name


def past_runs(state: StateFolder, targets: list[str]) -> Iterator[Past]:
    """All runs of these targets, the newest first within each."""
    for target in targets:
        for folder in reversed(state.runs(target)):
            found = _past(folder, target)
            if found is not None:
                yield found


def _past(folder: Path, target: str) -> Past | None:
    try:
        entries = tuple(read_entries(journal_of(folder)))
    except (JournalDamaged, OSError) as error:
        return Past(target, folder.name, 0.0, None, "unreadable", None, (), "", False, clean(str(error)))
    history: History = fold(entries)
    if history.opened is None:
        return None
    closed = history.closed
    alive = goes_on(folder)
    return Past(
        target=history.opened.target,
        run=history.opened.run,
        began=opened_at(entries) or history.opened.at,
        ended=closed.at if closed is not None else None,
        end=closed.end.kind.value if closed is not None else "goes on" if alive else "cut",
        code=exit_code(closed) if closed is not None else None,
        tried=tuple(dict.fromkeys(a.step for a in history.attempts)),
        who=f"{history.opened.who}@{history.opened.host}",
        goes_on=alive,
    )
