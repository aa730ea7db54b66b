"""What earlier runs of a target left behind: debts to pay, a climb that was cut, and the day's disruptions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from recover.core.history import History, fold
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import read_entries
from recover.model.record import Began, Ended, Entry
from recover.model.verdict import Scope

RESUME_WITHIN_S = 1800.0  # a climb that was cut longer ago is begun anew; what is owed is owed for ever
DAY_S = 86400.0
_NEWEST = 20  # so many runs tell how long a step takes


@dataclass(frozen=True, slots=True)
class Case:
    """A run folder whose journal the next run goes on with."""

    folder: Path
    run: str
    history: History


def to_resume(state: StateFolder, target: str, now: float) -> Case | None:
    """The newest run that still owes something, or that was cut a short while ago. Raises JournalDamaged."""
    for number, folder in enumerate(reversed(state.runs(target))):
        entries = list(read_entries(folder / "journal.jsonl"))
        history = fold(entries)
        if history.opened is None:
            continue
        cut = history.closed is None and number == 0 and now - last_at(entries) <= RESUME_WITHIN_S
        if history.duties or cut:
            return Case(folder, history.opened.run, history)
    return None


def last_at(entries: list[Entry]) -> float:
    return max((e.at for e in entries), default=0.0)


def disruptions_since(state: StateFolder, target: str, since: float, leave_out: str = "") -> int:
    """How many tries that stopped the guest began after `since`, over all journals but `leave_out`'s own."""
    count = 0
    for folder in state.runs(target):
        if folder.name == leave_out:
            continue
        for entry in read_entries(folder / "journal.jsonl"):
            if isinstance(entry, Began) and entry.scope >= Scope.GUEST and entry.at >= since:
                count += 1
    return count


def minutes_taken(state: StateFolder, target: str, most: int = 5) -> tuple[tuple[str, float, int], ...]:
    """(step, minutes, of so many): the median of the newest tries that went well, by the target's last journals."""
    found: dict[str, list[float]] = {}
    for folder in state.runs(target)[: -_NEWEST - 1 : -1]:
        began: dict[int, Began] = {}
        for entry in read_entries(folder / "journal.jsonl"):
            if isinstance(entry, Began):
                began[entry.index] = entry
            elif isinstance(entry, Ended) and entry.outcome.ok and entry.index in began:
                found.setdefault(entry.step, []).append(entry.at - began.pop(entry.index).at)
    newest = {step: times[:most] for step, times in found.items()}
    return tuple((step, round(median(times) / 60, 1), len(times)) for step, times in sorted(newest.items()))
