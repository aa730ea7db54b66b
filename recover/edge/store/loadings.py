"""What loading took when a server ran, kept for a preflight when it does not: one small file per machine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recover.core.budget.preflight_report import Loading
from recover.edge.store.folder import StateFolder, write_atomically

_LARGEST = 1 << 20
_MOST = 100  # models


def place(state: StateFolder, target: str | None) -> Path:
    """`target` None: the machine that this runs on."""
    return (state.target(target) if target is not None else state.root) / "loading.json"


def load_loadings(path: Path) -> tuple[Loading, ...]:
    """Nothing where there is no file. Raises ValueError for one that is none of ours, OSError."""
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError("too large")
        rows = json.loads(path.read_bytes())
    except FileNotFoundError:
        return ()
    if not isinstance(rows, list):
        raise ValueError("not a list")
    return tuple(_loading(row) for row in rows)


def _loading(row: Any) -> Loading:
    match row:
        case {"engine": str(engine), "model": str(model), "bytes": int(amount), "day": str(day)} if amount > 0:
            return Loading(engine, model, amount, day)
    raise ValueError("a record is garbled")


def keep_loadings(path: Path, new: Iterable[Loading]) -> None:
    """The newest of each model stays. Raises OSError."""
    new = tuple(new)
    if not new:
        return
    try:
        known = load_loadings(path)
    except ValueError:
        known = ()  # what nobody can read is no loss
    kept = {(one.engine, one.model): one for one in (*known, *new)}
    if kept and tuple(kept.values()) != known:
        rows = [{"engine": o.engine, "model": o.model, "bytes": o.amount, "day": o.day} for o in kept.values()]
        write_atomically(path, json.dumps(rows[-_MOST:], indent=1).encode("ascii") + b"\n")
