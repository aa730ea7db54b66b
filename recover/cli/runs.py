"""Runs as their journals tell them: which one goes on, which ended how; read only, and never in the way of a run."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from recover.core.lookback import Told
from recover.core.moments import run_moment
from recover.edge.store.cases import told_run
from recover.edge.store.folder import plain_name

SLACK_S = 3600.0  # a run's id is made before it begins: a lock is taken and an earlier journal read in between


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
    return note is not None and note.get("run") == plain_name(folder.name)


def past_runs(folders: Iterable[Path], since: float | None = None, until: float | None = None) -> Iterator[Told]:
    """These runs in the order given, one journal at a time; those that began outside of the span are left out.

    A run's id opens with its time: what lies outside by that is not even read.
    """
    for folder in folders:
        named = run_moment(plain_name(folder.name))
        if named is not None and (
            (since is not None and named < since - SLACK_S) or (until is not None and named > until)
        ):
            continue
        found = told_run(folder, alive=goes_on(folder))
        if found is not None and _within(found, since, until):
            yield found


def _within(run: Told, since: float | None, until: float | None) -> bool:
    """A run whose time nobody knows is damaged, and is always told."""
    return not run.began or ((since is None or run.began >= since) and (until is None or run.began <= until))


def newest_first(folders: Iterable[Path]) -> list[Path]:
    """By the time that opens a run's id; ids of another form first, since nobody knows how new they are."""
    return sorted(folders, key=lambda f: (run_moment(plain_name(f.name)) or float("inf"), f.name), reverse=True)
