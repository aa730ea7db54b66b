"""What a reader needs first: how the run ended, what to type next, and what keeps the record from being all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import pairwise

from recover.core.history import History
from recover.core.hooks import disrupted, prompted
from recover.core.report.lookback import tone
from recover.core.report.result import SERVICE_NOT_BACK, exit_code, what_next
from recover.core.report.text import end_word
from recover.core.report.words import UNKNOWN, span
from recover.model.record import Closed, EndKind, Entry, Opened


@dataclass(frozen=True, slots=True)
class File:
    """Something that was kept. `path`: from the page to it; empty where no link can lead there."""

    name: str
    size: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What lies on disk of a run, beside its entries. `alive`: somebody works on it now. `now`: when this is asked.

    `damage`: why the journal can't be read to its end. `journal`, `evidence`: where they lie, empty where nowhere.
    """

    now: float
    zone: tzinfo
    alive: bool = False
    damage: str = ""
    journal: File | None = None
    evidence: str = ""
    files: tuple[File, ...] = ()
    gpu_baseline: Mapping[str, int] | None = None
    rehearsal: bool = False


def headline(history: History, record: Record) -> tuple[str, str, int | None, str]:
    """(word, tone, exit code, end): `cut` and `goes on` are ends without a code."""
    closed = history.closed
    if closed is None:
        return ("STILL GOING ON", "warn", None, "goes on") if record.alive else ("CUT", "bad", None, "cut")
    code = exit_code(closed)
    word = end_word(closed.end.kind)
    if closed.end.kind is EndKind.RECOVERED and code:
        word = "RECOVERED, BUT THE SERVICE IS NOT BACK"
    return word.upper(), tone(closed.end.kind.value, code), code, closed.end.kind.value


def why(history: History, record: Record) -> str:
    """Why it ended so; of a run without an end, how far it came."""
    closed = history.closed
    if closed is not None:
        missing = exit_code(closed) == SERVICE_NOT_BACK
        return closed.end.why + (f"; the service is not back: {closed.service}" if missing else "")
    doing = f"rung {history.running.step} had begun" if history.running is not None else "no rung was under way"
    if record.alive:
        return f"this is how far it had come when the report was made: {doing}"
    return f"the journal ends without an end, and nobody works on this run: {doing}"


def next_step(entries: Sequence[Entry], history: History, record: Record, opened: Opened) -> str:
    """What a person types next; empty where nothing is left to do."""
    if history.closed is not None:
        return what_next(entries, history)
    if record.rehearsal:
        return ""
    return f"gpu-recover follow {opened.target}" if record.alive else f"gpu-recover {opened.target}"


def stamp(at: float, zone: tzinfo) -> str:
    """A moment with its zone, which a ticket that crosses one needs."""
    return datetime.fromtimestamp(at, zone).strftime("%Y-%m-%d %H:%M:%S %Z").strip()


def clock(at: float, zone: tzinfo) -> str:
    return datetime.fromtimestamp(at, zone).strftime("%H:%M:%S")


def facts(
    entries: Sequence[Entry], opened: Opened, began: float, ended: float, done: bool, zone: tzinfo
) -> tuple[tuple[str, str], ...]:
    """(what, value), of the run's first opening."""
    first = next(e for e in entries if isinstance(e, Opened))
    people = tuple(dict.fromkeys(f"{e.who}@{e.host}" for e in entries if isinstance(e, Opened)))
    prompt = prompted(entries)
    only = (("Only rung", opened.only),) if opened.only else ()
    start = (("Began at rung", opened.start_at),) if opened.start_at else ()
    return (
        ("Began", stamp(began, zone)),
        ("Ended" if done else "Last entry", stamp(ended, zone)),
        ("Took", span(ended - began) + (f", of which {span(prompt)} at a prompt" if prompt >= 1 else "")),
        ("Playbook", first.playbook),
        *only,
        *start,
        ("By", ", then ".join(people)),
        ("Disruptions in the day before", str(first.disruptions_today)),
        ("Run", opened.run),
        ("Version", f"gpu-recover {first.version}" if first.version else UNKNOWN),
    )


def notices(entries: Sequence[Entry], history: History, record: Record) -> tuple[str, ...]:
    """What a reader must know before believing the rest."""
    ends = [e for e in entries if isinstance(e, (Opened, Closed))]
    again = [isinstance(before, Closed) for before, e in pairwise(ends) if isinstance(e, Opened)]
    resumed, reopened = again.count(False), again.count(True)
    acted = any(type(e).__name__ == "Acting" for e in entries)
    found = []
    if record.damage:
        found.append(f"The journal can be read only in part; what follows the damage is not in here: {record.damage}")
    if record.rehearsal:
        found.append("A rehearsal against a simulated machine: nothing real was touched, nothing was kept.")
    if history.closed is None and record.alive:
        found.append("The run goes on: all figures are those of its last look so far.")
    if history.closed is None and not record.alive:
        found.append("The run was cut: what it owes is paid by the next run, before anything else.")
    if resumed:
        found.append(f"The run was cut and gone on with {_times(resumed)}; consent was asked anew.")
    if reopened:
        found.append(f"The run had an end and was opened again {_times(reopened)}, to pay what it owed.")
    if history.closed is not None and history.closed.end.kind is EndKind.PLANNED:
        found.append("A dry run: it ended where the first act would have begun.")
    elif not acted:
        found.append("Nothing was done in this run: it only looked.")
    if history.closed is not None and disrupted(entries):
        found.append(
            "What the hook before-disruption did is still in place; a run gives it back at its end: "
            f"gpu-recover {history.target}"
        )
    if not record.files and not record.rehearsal:
        found.append("No evidence is there: " + _why_no_evidence(history, acted))
    return tuple(found)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _why_no_evidence(history: History, acted: bool) -> str:
    if history.evidence:
        return f"it was kept in {history.evidence}, and is not there any more."
    return "none could be kept." if acted else "it is kept before the first act, and there was none."
