"""What earlier runs left behind: debts to pay, a climb that was cut, the day's disruptions, and what they tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from recover.core.fold import fold
from recover.core.history import History
from recover.core.lookback import Glimpse, Told, tell, unreadable
from recover.core.moments import run_moment
from recover.edge.store.folder import StateFolder, plain_name
from recover.edge.store.journal import JournalDamaged, entry_of, read_entries
from recover.model.record import Began, Ended, Entry, Opened
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


# -- looking back

_TOLD = frozenset((b"Opened", b"Consented", b"Declined", b"Began", b"Ended", b"Hooking", b"Hooked", b"Closed"))
_ENTRY = b'{"$":"'  # the tag stands first in every line that the journal writes


def glances(path: Path) -> Iterator[Entry | Glimpse]:
    """A journal as looking back needs it: what a look saw in full, and single acts, are not even parsed.

    Decoding every look is nine tenths of the time, and a figure over a thousand runs asks of a look only whether it
    found something. A torn last line is left out. Raises JournalDamaged for a line that is no entry, OSError.
    """
    sick = False
    last: bytes | None = None  # nothing but the time of the last entry counts of what is passed over
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            kind = line[len(_ENTRY) : line.find(b'"', len(_ENTRY))] if line.startswith(_ENTRY) else b""
            if kind in _TOLD or not kind or not line.endswith(b"}\n"):
                entry = entry_of(path, number, line)
                sick = sick and not isinstance(entry, Opened)
                last = None
                yield entry
            elif kind == b"Saw" and not sick:
                glimpse = _glimpse(path, number, line)
                sick = sick or glimpse.sick
                last = None
                yield glimpse
            else:
                last = line
    if last is not None:
        yield Glimpse(_at(path, number, last), sick=False)


def _glimpse(path: Path, number: int, line: bytes) -> Glimpse:
    try:
        look = json.loads(line)
        return Glimpse(float(look["at"]), bool(look["diagnosis"]["findings"]))
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamaged(f"{path}:{number}: cannot be read: {error}") from None


def _at(path: Path, number: int, line: bytes) -> float:
    try:
        return float(json.loads(line)["at"])
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamaged(f"{path}:{number}: cannot be read: {error}") from None


def told_run(folder: Path, *, alive: bool) -> Told | None:
    """One run as its journal tells it, in little memory; a journal that can't be read is told as that."""
    run = plain_name(folder.name)
    try:
        return tell(glances(folder / "journal.jsonl"), alive=alive)
    except FileNotFoundError:
        return None
    except (JournalDamaged, OSError) as error:
        return unreadable(plain_name(folder.parent.parent.name), run, run_moment(run) or 0.0, str(error))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal up to where it can be read. `damage`: what stands in the way of the rest, empty where it is whole."""

    entries: tuple[Entry, ...]
    damage: str = ""


def recorded(folder: Path) -> Recorded:
    """For a report: what is there is shown, and what is not is said. Raises OSError."""
    path = folder / "journal.jsonl"
    found: list[Entry] = []
    try:
        for entry in read_entries(path):
            found.append(entry)
    except JournalDamaged as error:
        return Recorded(tuple(found), str(error))
    with open(path, "rb") as file:
        whole = file.seek(0, 2) == 0 or (file.seek(-1, 2) >= 0 and file.read(1) == b"\n")
    return Recorded(tuple(found), "" if whole else f"{path}: the last line was cut while it was written")


def kept_files(folder: Path) -> tuple[tuple[str, int], ...]:
    """(name, bytes) of what evidence holds: plain files only, for links. Empty where there is no such folder."""
    if not folder.is_dir():
        return ()
    return tuple(sorted((p.name, p.stat().st_size) for p in folder.iterdir() if p.is_file() and not p.is_symlink()))
