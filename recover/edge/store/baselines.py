"""Baselines on disk, one file per target, written whole or not at all."""

from __future__ import annotations

import json

from recover.core.codec import Garbled, decode, encode
from recover.edge.store.folder import StateFolder, StateProblem, write_atomically
from recover.model.snapshot import Baseline


def load_baseline(state: StateFolder, target: str) -> Baseline | None:
    """The saved baseline, None if there is none. Raises StateProblem for a damaged file: it is not ignored."""
    path = state.target(target) / "baseline.json"
    try:
        found = decode(json.loads(path.read_bytes()), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, Garbled) as error:
        raise StateProblem(f"baseline {path}: {error}. Save it anew: gpu-recover baseline save {target}") from None
    if not isinstance(found, Baseline):
        raise StateProblem(f"baseline {path}: not a baseline. Save it anew: gpu-recover baseline save {target}")
    return found


def save_baseline(state: StateFolder, target: str, baseline: Baseline) -> str:
    """Write it; gives the path. Raises StateProblem."""
    path = state.target(target) / "baseline.json"
    try:
        write_atomically(path, json.dumps(encode(baseline), indent=1, ensure_ascii=True).encode() + b"\n")
    except OSError as error:
        raise StateProblem(f"baseline {path}: cannot be written: {error.strerror or error}") from error
    return str(path)
