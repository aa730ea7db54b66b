"""The result in words: one verdict line first, then only what a person needs to believe it or to go on."""

from __future__ import annotations

from collections.abc import Iterable

from recover.core.clean import clean
from recover.core.fold import fold
from recover.core.history import History
from recover.core.report.by_hand import by_hand
from recover.core.report.lines import figures, line
from recover.core.report.result import Json, gpus, hooks, looks, notes, opened_at, ram, what_next
from recover.core.report.words import UNKNOWN, base_words, brief, columns, count, hit_lines, size, span
from recover.core.sentences import START_AS, grouped
from recover.model.act import Hit
from recover.model.ladder import Ready
from recover.model.record import Began, Closed, EndKind, Entry, Saw, Vitals

_SAYS = {
    EndKind.HEALTHY: "healthy",
    EndKind.RECOVERED: "RECOVERED",
    EndKind.PLANNED: "planned, nothing was done",
    EndKind.CANNOT_TELL: "CANNOT TELL",
    EndKind.INTERRUPTED: "INTERRUPTED",
    EndKind.HELD: "HELD by another run",
}  # all others are not recovered, and say their own word


def text(entries: Iterable[Entry], journal: str = "") -> str:
    """The final report. Without `Closed` in the journal it says that the run has not ended."""
    entries = tuple(entries)
    history = fold(entries)
    lines = [verdict(entries, history)]
    lines += _figures(entries, history)
    lines += _tries(history)
    lines += _section("Stopped or disturbed", hit_lines(hits(entries)))
    lines += _after(history)
    lines += _section("Not started again: no manager owns it, somebody started it as", _by_hand(entries))
    lines += _section("Hooks", [line(e) for e in hooks(entries)])
    lines += _section("Why it happened", notes(entries))
    lines += _section("Why no other rung", passed_over(history))
    lines += _section("Still wrong", _still(history))
    lines += _section("Not seen", history.last.diagnosis.gaps if history.last is not None else ())
    if following := what_next(entries, history):
        lines.append(f"Next: {clean(following)}")
    lines += [f"Evidence: {clean(history.evidence)}"] if history.evidence else []
    lines += [f"Journal: {clean(journal)}"] if journal else []
    return "\n".join(lines)


def _by_hand(entries: tuple[Entry, ...]) -> list[str]:
    """The commands of servers that were ended; where a launch did not fit, also the one that does."""
    commands = by_hand(entries)
    fits = [note.removeprefix(START_AS) for note in notes(entries) if note.startswith(START_AS)]
    return [*commands, *(f"it did not fit; corrected: {clean(one, 4000)}" for one in fits)] if commands else []


def verdict(entries: tuple[Entry, ...], history: History) -> str:
    """One line that can stand alone."""
    target = clean(history.opened.target) if history.opened is not None else UNKNOWN
    closed, began = history.closed, opened_at(entries)
    if closed is None or began is None:
        return f"{target}: this run has not ended"
    kind, took = closed.end.kind, span(closed.at - began)
    says = f"{end_word(kind)} ({took})" if kind in _SAYS else f"{end_word(kind)} ({kind}, {took})"
    service = ""
    if kind is EndKind.RECOVERED and closed.service not in (None, "healthy"):
        service = f"; BUT THE SERVICE IS NOT BACK: {clean(closed.service or '')}"
    return f"{target}: {says}: {clean(closed.end.why)}{service}"


def end_word(kind: EndKind) -> str:
    """An end in the word that a headline shouts."""
    return _SAYS.get(kind, "NOT RECOVERED")


def hits(entries: Iterable[Entry]) -> tuple[Hit, ...]:
    """Who was hit by the rungs that began, as it was weighed when they did."""
    found: dict[tuple[str, str], Hit] = {}
    saw: Saw | None = None
    for entry in entries:
        if isinstance(entry, Saw):
            saw = entry
        elif isinstance(entry, Began) and saw is not None:
            option = next((o for o in saw.options if o.index == entry.index), None)
            if option is not None and isinstance(option.offer, Ready):
                found.update({(h.kind, h.name): h for h in option.offer.blast.hits})
    return tuple(found.values())


def passed_over(history: History) -> list[str]:
    """Why each rung was not tried; without the rungs that were tried: they stand above."""
    if history.closed is None:
        return []
    tried = {a.step for a in history.attempts}
    return [line for line in history.closed.end.passed_over if line.split(":")[0] not in tried]


def _figures(entries: tuple[Entry, ...], history: History) -> list[str]:
    seen = looks(entries)
    before, verdict, last = seen.before, seen.verdict, seen.last
    if before is None or verdict is None or last is None:
        return []
    changed = bool(history.attempts)
    rows = gpus(before.vitals, verdict.vitals)
    memory = ram(before.vitals, verdict.vitals)
    lines = columns(_gpu_rows(rows, changed), "") if rows else ["No GPU was seen."]
    if memory["total_mib"] is not None:
        lines.append(_ram(memory, verdict.vitals, changed))
    if not verdict.vitals.reached:
        lines.append("The guest was not reached at the last look: how it is there now is not known.")
    if last is not verdict and history.closed is not None and history.closed.service is not None:
        lines.append(f"Now, with the service started: {figures(last)}")
    return lines


def _gpu_rows(rows: list[Json], changed: bool) -> list[list[str]]:
    head = ["GPU", "address", "used before", "used after"] if changed else ["GPU", "address", "used"]
    table = [head]
    for row in rows:
        figures = [size(row["used_mib_before"])] if changed else []
        table.append([str(row["index"]), row["bus_id"] or UNKNOWN, *figures, size(row["used_mib_after"])])
    return table


def _ram(memory: Json, vitals: Vitals, changed: bool) -> str:
    now, total = size(memory["available_mib_after"]), size(memory["total_mib"])
    shown = f"{size(memory['available_mib_before'])} -> {now}" if changed else now
    return f"RAM available {shown} of {total} ({base_words(vitals, memory['baseline_mib'])})"


def _tries(history: History) -> list[str]:
    rows = []
    for attempt in history.attempts:
        outcome = attempt.outcome
        ended = "not ended" if outcome is None else "done" if outcome.ok else "failed" if outcome.clear else "unclear"
        took = span((attempt.ended_at or attempt.began_at) - attempt.began_at)
        detail = outcome.detail if outcome is not None else ""
        name = attempt.step + (f" (try {attempt.attempt})" if attempt.attempt > 1 else "")
        rows.append([name, ended, took, brief(detail)[:200]])
    return ["Tried", *columns(rows)] if rows else ["Nothing was tried." if history.closed is not None else ""][:1]


def _after(history: History) -> list[str]:
    lines: list[str] = []
    closed: Closed | None = history.closed
    if closed is not None and closed.service == "healthy":
        lines.append("Service: started again and healthy")
    elif closed is not None and closed.service is not None:
        lines.append(f"Service: NOT back: {clean(closed.service)}")
    owed = closed.carried if closed is not None else tuple(d.duty.key for d in history.duties)
    if owed:
        waits = {
            d.duty.key: f"{_owed(d.duty.key)} (not before its GPUs are well: {clean(d.held.why)})"
            for d in history.duties
            if d.held
        }
        lines += _section(
            f"Still owed ({count(len(owed), 'duty').replace('dutys', 'duties')}), the next run pays",
            [waits.get(key, _owed(key)) for key in owed],
        )
    lines += _section("No longer owed", dict.fromkeys(f"{_owed(key)}: {why}" for key, why in history.voided))
    return lines


def _owed(key: str) -> str:
    """A duty's key says what it is; only our marker's holds nothing but a run's id."""
    return "our marker in the guest" if key.startswith("marker:") else key


def _still(history: History) -> list[str]:
    closed = history.closed
    if history.last is None or (closed is not None and closed.end.kind in (EndKind.HEALTHY, EndKind.RECOVERED)):
        return []
    return list(
        grouped(
            f.says + (f" (cured at scope {f.cure.word})" if f.cure is not None else " (no step here cures it)")
            for f in history.last.diagnosis.findings
        )
    )


def _section(title: str, lines: Iterable[str]) -> list[str]:
    shown = [f"  {clean(line)}" for line in lines]
    return [title, *shown] if shown else []
