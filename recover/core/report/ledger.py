"""What a run owed and how each debt was settled, folded from the journal; nothing that was owed is left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from recover.core.fold import after
from recover.core.history import History
from recover.core.report.lines import action_words
from recover.core.report.timeline import FIGURES
from recover.model.record import Acted, Acting, Closed, Entry, Saw


@dataclass(frozen=True, slots=True)
class Debt:
    """`settled_at` None: it is still owed. `how` says what became of it."""

    key: str
    what: str
    opened_at: float
    settled_at: float | None = None
    how: str = "still owed: the next run pays it first"


def ledger(entries: Iterable[Entry]) -> tuple[Debt, ...]:
    """In the order in which they were made. A debt that is made again after it was settled is another one."""
    history = History()
    found: list[Debt] = []
    restores: dict[int, str] = {}
    for entry in entries:
        if isinstance(entry, Acting):
            restores[entry.n] = entry.restores
        before = {d.duty.key for d in history.duties}
        history = after(history, entry)
        now = {d.duty.key: d for d in history.duties}
        found += [Debt(k, action_words(d.duty.do), d.opened_at) for k, d in now.items() if k not in before]
        for key in before - now.keys():
            place = max(i for i, debt in enumerate(found) if debt.key == key)
            found[place] = replace(found[place], settled_at=entry.at, how=_how(entry, key, restores))
    return tuple(found)


def _how(entry: Entry, key: str, restores: dict[int, str]) -> str:
    match entry:
        case Acted(n=n, outcome=outcome):
            if outcome.ok and (outcome.changed or restores.get(n) == key):
                return "put back" + ("" if restores.get(n) == key else " within the rung")
            return "nothing had been changed"
        case Saw(settled=settled):
            return f"no longer owed: {dict(settled).get(key, 'somebody else settled it')}"
        case Closed():
            return "let go at the end of the run"
        case _:
            return "settled"


def alike(debts: Iterable[Debt]) -> tuple[Debt, ...]:
    """Debts in a row that differ only in the device that they name, and were settled alike, as one."""
    found: list[tuple[Debt, list[str]]] = []
    for debt in debts:
        if found and _likeness(found[-1][0]) == _likeness(debt):
            found[-1][1].append(debt.what)
        else:
            found.append((debt, [debt.what]))
    return tuple(
        debt if len(names) == 1 else replace(debt, what=f"{debt.what} and {len(names) - 1} more like it")
        for debt, names in found
    )


def _likeness(debt: Debt) -> tuple[str, bool, str]:
    return FIGURES.sub("#", debt.what), debt.settled_at is None, debt.how
