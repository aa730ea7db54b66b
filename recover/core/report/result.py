"""The result as data: schema 1, made from the journal's entries alone; what was not seen is null, never 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from shlex import quote
from typing import Any

from recover.core.aftercare import HEALTHY
from recover.core.clean import clean
from recover.core.fold import fold
from recover.core.history import Attempt, History
from recover.core.report.by_hand import by_hand
from recover.model.act import StartService
from recover.model.record import (
    Acting,
    Began,
    Closed,
    Decided,
    EndKind,
    Entry,
    GpuVital,
    Hooked,
    Kept,
    Opened,
    Saw,
    Stop,
    Vitals,
)
from recover.model.verdict import Finding

SCHEMA = 1
SERVICE_NOT_BACK = 15
EXIT_CODES = {
    EndKind.HEALTHY: 0,
    EndKind.RECOVERED: 0,
    EndKind.PLANNED: 1,
    EndKind.EXHAUSTED: 10,
    EndKind.BLOCKED: 11,
    EndKind.NEEDS_HUMAN: 12,
    EndKind.OUT_OF_TIME: 13,
    EndKind.CANNOT_TELL: 14,
    EndKind.HELD: 20,
    EndKind.INTERRUPTED: 130,
}

Json = dict[str, Any]


def exit_code(closed: Closed) -> int:
    """The process's exit code for an end; a recovery whose service didn't come back is not a success."""
    if closed.end.kind is EndKind.RECOVERED and closed.service not in (None, HEALTHY):
        return SERVICE_NOT_BACK
    return EXIT_CODES[closed.end.kind]


def result(entries: Iterable[Entry], journal: str) -> Json:
    """The JSON object of a run. A run that is not closed yet has `end` null and `exit_code` null."""
    entries = tuple(entries)
    history = fold(entries)
    seen = looks(entries)
    before = seen.before.vitals if seen.before is not None else None
    verdict = seen.verdict.vitals if seen.verdict is not None else None
    closed = history.closed
    opened = history.opened
    told = {"cause": [clean(line) for line in notes(entries)], "hooks": [_hook(e) for e in hooks(entries)]}
    told["by_hand"] = by_hand(entries)
    return {
        "schema": SCHEMA,
        "target": opened.target if opened is not None else None,
        "run": opened.run if opened is not None else None,
        "end": closed.end.kind.value if closed is not None else None,
        "exit_code": exit_code(closed) if closed is not None else None,
        "why": clean(closed.end.why) if closed is not None else None,
        "findings_before": [_finding(f) for f in _findings(seen.before)],
        "findings_after": [_finding(f) for f in _findings(seen.last)],
        "tries": [_try(a) for a in history.attempts],
        "gpus": gpus(before, verdict),
        "ram": ram(before, verdict),
        "service": clean(closed.service) if closed is not None and closed.service is not None else None,
        "duties": list(closed.carried if closed is not None else (d.duty.key for d in history.duties)),
        "gaps": [clean(g) for g in seen.last.diagnosis.gaps] if seen.last is not None else [],
        "next": what_next(entries, history) or None,
        "journal": journal or None,
        "evidence": history.evidence or None,
        **{key: lines for key, lines in told.items() if lines},
    }


_LOGS = {
    "systemd": "journalctl -n 200 -u",
    "systemd-user": "journalctl --user -n 200 -u",
    "docker": "docker logs --tail 200",
    "podman": "podman logs --tail 200",
    "supervisord": "supervisorctl tail",
}


def what_next(entries: Iterable[Entry], history: History) -> str:
    """What a person types after the run; of a service that did not come back its own log knows why."""
    closed = history.closed
    if closed is None or closed.end.next or closed.service in (None, HEALTHY):
        return closed.end.next if closed is not None else ""
    started = (e.action for e in entries if isinstance(e, Acting) and isinstance(e.action, StartService))
    names = [(a.manager, a.name) for a in started if not a.monitor]
    names += [(m, name) for m, _, name in (k.removeprefix("service:").partition("/") for k in closed.carried) if name]
    logs = [f"{_LOGS[manager]} {quote(name)}" for manager, name in dict.fromkeys(names) if manager in _LOGS]
    if not logs:
        return f"gpu-recover plan {history.target}"
    return f"on {history.target}: {'; '.join(logs)}    # why it does not serve"


def notes(entries: Iterable[Entry]) -> tuple[str, ...]:
    """What the evidence told of the cause, in this run or the one that it goes on with."""
    return next((e.notes for e in entries if isinstance(e, Kept) and e.notes), ())


def hooks(entries: Iterable[Entry]) -> tuple[Hooked, ...]:
    """The operator's programs that were run, and how each ended."""
    return tuple(e for e in entries if isinstance(e, Hooked))


def held(target: str, why: str, command: str) -> Json:
    """The JSON object where another run holds the target: nothing was looked at, so nothing is known."""
    return {
        "schema": SCHEMA, "target": target, "run": None, "end": EndKind.HELD.value, "exit_code": 20, "why": clean(why),
        "findings_before": [], "findings_after": [], "tries": [], "gpus": [], "ram": ram(None, None), "service": None,
        "duties": [], "gaps": [], "next": command, "journal": None, "evidence": None,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Looks:
    """The looks that a report compares.

    `before`: the one before the first try (without a try: the first). `verdict`: the one that the end was decided on,
    when nothing of ours ran yet: its figures are compared with `before`. `last`: how things stand now.
    """

    before: Saw | None = None
    verdict: Saw | None = None
    last: Saw | None = None


def looks(entries: Iterable[Entry]) -> Looks:
    first: Saw | None = None
    before: Saw | None = None
    verdict: Saw | None = None
    last: Saw | None = None
    tried = False
    for entry in entries:
        match entry:
            case Saw():
                first, last = first or entry, entry
                before = before if tried else entry
            case Began():
                tried = True
            case Opened():
                verdict = None
            case Decided(decision=Stop()):
                verdict = last
            case _:
                pass
    return Looks(before if tried else first, verdict or last, last)


def opened_at(entries: Iterable[Entry]) -> float | None:
    """When the run began: its first opening, not that of a resumption."""
    return next((e.at for e in entries if isinstance(e, Opened)), None)


def gpus(before: Vitals | None, after: Vitals | None) -> list[Json]:
    """One row per GPU of either look, matched by UUID, else by address: both may change with a boot."""
    then = {_key(g): g for g in before.gpus} if before is not None else {}
    now = {_key(g): g for g in after.gpus} if after is not None else {}
    rows = []
    for key in sorted({**then, **now}, key=lambda k: ((now.get(k) or then[k]).index, k)):
        shown = now.get(key) or then[key]
        rows.append(
            {
                "index": shown.index,
                "uuid": clean(shown.uuid) or None,
                "bus_id": clean(shown.bus_id) or None,
                "used_mib_before": then[key].used_mib if key in then else None,
                "used_mib_after": now[key].used_mib if key in now else None,
            }
        )
    return rows


def ram(before: Vitals | None, after: Vitals | None) -> Json:
    base = next((v for v in (after, before) if v is not None and v.ram_baseline_mib is not None), None)
    totals = [v.ram_total_mib for v in (after, before) if v is not None and v.ram_total_mib is not None]
    return {
        "total_mib": totals[0] if totals else None,
        "available_mib_before": before.ram_available_mib if before is not None else None,
        "available_mib_after": after.ram_available_mib if after is not None else None,
        "baseline_mib": base.ram_baseline_mib if base is not None else None,
    }


def _key(gpu: GpuVital) -> str:
    return gpu.uuid or gpu.bus_id


def _findings(saw: Saw | None) -> tuple[Finding, ...]:
    return saw.diagnosis.findings if saw is not None else ()


def _finding(finding: Finding) -> Json:
    return {
        "signal": finding.signal,
        "says": clean(finding.says),
        "cure": finding.cure.word if finding.cure is not None else None,
        "where": clean(finding.where) if finding.where is not None else None,
    }


def _hook(entry: Hooked) -> Json:
    outcome = entry.outcome
    return {
        "event": entry.event,
        "ok": outcome.ok,
        "detail": clean(outcome.detail),
        "seconds": round(outcome.seconds, 1),
    }


def _try(attempt: Attempt) -> Json:
    outcome = attempt.outcome
    seconds = outcome.seconds if outcome is not None else 0.0
    if not seconds and attempt.ended_at is not None:
        seconds = attempt.ended_at - attempt.began_at
    return {
        "step": attempt.step,
        "attempt": attempt.attempt,
        "scope": attempt.scope.word,
        "ok": outcome.ok if outcome is not None else False,
        "detail": clean(outcome.detail) if outcome is not None else "it has not ended",
        "seconds": round(seconds, 1),
    }
