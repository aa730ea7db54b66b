"""What a report of a run tells, gathered once from its journal: page and Markdown differ only in how they write it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recover.core.aftercare import HEALTHY
from recover.core.fold import after, fold
from recover.core.history import Attempt, History
from recover.core.hooks import hook_runs
from recover.core.report.curves import Curve, Curves, curves
from recover.core.report.headline import File, Record, facts, headline, next_step, notices, why
from recover.core.report.ledger import Debt, ledger
from recover.core.report.result import gpus, looks, notes, opened_at, ram
from recover.core.report.text import hits, passed_over
from recover.core.report.timeline import Chapter, outcome_words, timeline
from recover.core.report.words import UNKNOWN, base_words, brief, hit_lines
from recover.core.sentences import grouped
from recover.model.record import Entry, Kept, Opened, Saw


@dataclass(frozen=True, slots=True)
class Rung:
    number: int
    step: str
    attempt: int
    scope: str
    began: float
    took_s: float | None
    said: str
    tone: str
    detail: str


@dataclass(frozen=True, slots=True)
class HookRow:
    """One of the operator's programs. `program` and `step` are empty where this journal does not tell them."""

    name: str
    program: str
    step: str
    began: float
    took_s: float | None
    said: str
    tone: str
    detail: str


@dataclass(frozen=True, slots=True)
class Row:
    """Figures of one GPU, or of the RAM, in MiB. `extreme`: the most of GPU memory, the least of available RAM."""

    label: str
    where: str
    before: int | None
    extreme: int | None
    verdict: int | None
    now: int | None
    baseline: str


@dataclass(frozen=True, slots=True)
class Story:
    """`word` and `tone` are the headline; `code` None: the run has no end. `notices`: what to know before the rest."""

    target: str
    run: str
    word: str
    tone: str
    code: int | None
    end: str
    why: str
    next: str
    began: float
    ended: float
    facts: tuple[tuple[str, str], ...]
    notices: tuple[str, ...]
    findings_before: tuple[str, ...]
    findings_after: tuple[str, ...]
    ripening: tuple[str, ...]
    gaps: tuple[str, ...]
    rungs: tuple[Rung, ...]
    passed_over: tuple[str, ...]
    hits: tuple[str, ...]
    service: str
    service_tone: str
    hooks: tuple[HookRow, ...]
    duties: tuple[Debt, ...]
    cause: tuple[str, ...]
    chapters: tuple[Chapter, ...]
    curves: Curves | None
    figures: tuple[Row, ...]
    evidence: str
    files: tuple[File, ...]
    missing: tuple[str, ...]
    journal: File | None


def story(entries: Iterable[Entry], record: Record) -> Story:
    """Raises ValueError where no run was opened: there is nothing to tell."""
    entries = tuple(entries)
    history = fold(entries)
    began, opened = opened_at(entries), history.opened
    if opened is None or began is None:
        raise ValueError("the journal holds no run")
    seen = looks(entries)
    ended = history.closed.at if history.closed is not None else entries[-1].at  # hooks come after the end
    drawn = curves(entries, record.gpu_baseline)
    word, how, code, end = headline(history, record)
    kept = [e for e in entries if isinstance(e, Kept)]
    done = history.closed is not None
    return Story(
        target=opened.target,
        run=opened.run,
        word=word,
        tone=how,
        code=code,
        end=end,
        why=why(history, record),
        next=next_step(entries, history, record, opened),
        began=began,
        ended=ended,
        facts=facts(entries, opened, began, ended, done, record.zone),
        notices=notices(entries, history, record),
        findings_before=_findings(seen.before),
        findings_after=_findings(seen.last),
        ripening=grouped(s.finding.says for s in seen.last.diagnosis.ripening) if seen.last is not None else (),
        gaps=seen.last.diagnosis.gaps if seen.last is not None else (),
        rungs=_rungs(entries, record),
        passed_over=tuple(passed_over(history)),
        hits=tuple(hit_lines(hits(entries))),
        service=_service(history)[0],
        service_tone=_service(history)[1],
        hooks=_hooks(entries, record),
        duties=ledger(entries),
        cause=notes(entries),
        chapters=timeline(entries),
        curves=drawn,
        figures=_rows(drawn, entries),
        evidence=record.evidence or history.evidence,
        files=record.files,
        missing=tuple(dict.fromkeys(m for k in kept for m in k.missing)),
        journal=record.journal,
    )


def _findings(saw: Saw | None) -> tuple[str, ...]:
    if saw is None:
        return ()
    return grouped(
        f.says + (f" (cured at scope {f.cure.word})" if f.cure is not None else " (no step here cures it)")
        for f in saw.diagnosis.findings
    )


def attempts(entries: Iterable[Entry]) -> tuple[Attempt, ...]:
    """All tries of a journal: also those before an end that left debts, which a later climb does not call its own."""
    found: list[Attempt] = []
    history = History()
    for entry in entries:
        if isinstance(entry, Opened) and history.closed is not None:
            found += history.attempts
        history = after(history, entry)
    return (*found, *history.attempts)


def _rungs(entries: Iterable[Entry], record: Record) -> tuple[Rung, ...]:
    found = []
    for number, a in enumerate(attempts(entries), 1):
        if a.outcome is None:
            said, how, detail = ("runs now", "warn", "") if record.alive else ("cut", "bad", "it has no end")
        else:
            (said, how), detail = outcome_words(a.outcome), brief(a.outcome.detail)
        took = a.ended_at - a.began_at if a.ended_at is not None else None
        found.append(Rung(number, a.step, a.attempt, a.scope.word, a.began_at, took, said, how, detail))
    return tuple(found)


def _hooks(entries: Iterable[Entry], record: Record) -> tuple[HookRow, ...]:
    found = []
    runs = hook_runs(entries)
    for number, run in enumerate(runs, 1):
        if run.outcome is None:
            goes_on = record.alive and number == len(runs)
            said, how, detail = ("runs now", "warn", "") if goes_on else ("cut", "bad", "it has no end")
        else:
            (said, how), detail = outcome_words(run.outcome), brief(run.outcome.detail)
            said = said if run.outcome.clear else "cut"
        took = run.outcome.seconds if run.outcome is not None and run.outcome.clear else None
        found.append(HookRow(run.event, run.command, run.step, run.began, took, said, how, detail))
    return tuple(found)


def _service(history: History) -> tuple[str, str]:
    closed = history.closed
    if closed is None:
        return "not known: the run has no end", "warn"
    if closed.service is None:
        return "nothing was to be started", "plain"
    return (
        ("started again and healthy", "good") if closed.service == HEALTHY else (f"NOT back: {closed.service}", "bad")
    )


def _rows(drawn: Curves | None, entries: Sequence[Entry]) -> tuple[Row, ...]:
    """Before the first try, the extreme over the run, at the verdict, and now where something was started since."""
    seen = looks(entries)
    if drawn is None or seen.before is None or seen.verdict is None or seen.last is None:
        return ()
    now = {r["uuid"] or r["bus_id"]: r["used_mib_after"] for r in gpus(None, seen.last.vitals)}
    paired = gpus(seen.before.vitals, seen.verdict.vitals)
    by_where = {c.where: c for c in drawn.gpus}
    rows = []
    for row in paired:
        curve = by_where.get(row["bus_id"] or row["uuid"] or "")
        base = curve.baseline if curve is not None else None
        rows.append(
            Row(f"GPU {row['index']}", row["bus_id"] or row["uuid"] or UNKNOWN, row["used_mib_before"],
                _most(curve), row["used_mib_after"], now.get(row["uuid"] or row["bus_id"]),
                f"{base} MiB" if base is not None else "")
        )  # fmt: skip
    memory = ram(seen.before.vitals, seen.verdict.vitals)
    if drawn.ram is not None:
        least = min(drawn.ram.known, default=None)
        rows.append(
            Row("RAM available", "", memory["available_mib_before"], least, memory["available_mib_after"],
                seen.last.vitals.ram_available_mib,
                base_words(seen.verdict.vitals, memory["baseline_mib"]).removeprefix("baseline "))
        )  # fmt: skip
    return tuple(rows)


def _most(curve: Curve | None) -> int | None:
    return max(curve.known, default=None) if curve is not None else None
