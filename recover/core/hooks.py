"""Which hook a run owes at its end, from journals alone, and what each is told: words for argv and JSON for stdin."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from recover.core.clean import clean
from recover.core.fold import fold
from recover.core.report.result import exit_code, opened_at
from recover.model.act import Blast, Outcome
from recover.model.notice import HookEvent, Present
from recover.model.record import Closed, Consented, Declined, EndKind, Entry, Hooked, Hooking, Opened, Try
from recover.model.snapshot import Target
from recover.model.verdict import Diagnosis, Finding
from recover.model.watch import Judged

SCHEMA = 1
MOST = 20  # findings, hits and tries in one object: a pipe takes it without anybody reading
LONGEST = 500
WELL = frozenset({EndKind.HEALTHY, EndKind.RECOVERED})
LEFT_UNWELL = frozenset({EndKind.EXHAUSTED, EndKind.BLOCKED, EndKind.NEEDS_HUMAN, EndKind.OUT_OF_TIME,
                         EndKind.CANNOT_TELL})  # fmt: skip
_SETTLES = frozenset({HookEvent.AFTER_RECOVERY, HookEvent.GAVE_UP})
_WORD = re.compile(r"\{(target|event|run|vmid|step|end|state)\}")

Json = dict[str, Any]


def disrupted(entries: Iterable[Entry]) -> bool | None:
    """Whether a before-disruption hook was begun and none that settles it has ended well; None: these say nothing."""
    found: bool | None = None
    for entry in entries:
        if isinstance(entry, Hooking) and entry.event == HookEvent.BEFORE_DISRUPTION:
            found = True
        elif isinstance(entry, Hooked) and entry.event in _SETTLES and entry.outcome.ok:
            found = False
    return found


@dataclass(frozen=True, slots=True)
class HookRun:
    """One hook that was run. `outcome` None: its end is not in the journal."""

    event: str
    began: float
    command: str = ""
    step: str = ""
    outcome: Outcome | None = None


def hook_runs(entries: Iterable[Entry]) -> tuple[HookRun, ...]:
    """All that a journal tells of, in the order in which they began."""
    found: list[HookRun] = []
    for entry in entries:
        hear(found, entry)
    return tuple(found)


def hear(found: list[HookRun], entry: Entry) -> None:
    """`found` with this entry of the same journal. An end without a beginning is told of another run's hook."""
    if isinstance(entry, Hooking):
        found.append(HookRun(entry.event, entry.at, entry.command, entry.step))
    elif isinstance(entry, Hooked):
        if found and found[-1].outcome is None and found[-1].event == entry.event:
            found[-1] = replace(found[-1], outcome=entry.outcome)
        else:
            found.append(HookRun(entry.event, entry.at, outcome=entry.outcome))


def prompted(entries: Iterable[Entry]) -> float:
    """Seconds at a prompt: what was waited for a consent, without the hooks that were run in that time."""
    total = hooked = 0.0
    for entry in entries:
        if isinstance(entry, Hooked) and entry.event == HookEvent.BEFORE_DISRUPTION:
            hooked += entry.outcome.seconds
        elif isinstance(entry, (Consented, Declined)):
            total += max(0.0, entry.waited_s - hooked)
            hooked = 0.0
    return total


def cut(entries: Iterable[Entry], run: str = "") -> tuple[Hooked, ...]:
    """What the run after it writes first of a hook whose tool was killed while it ran. `run`: whose, if not its own.

    It was ended with the tool, and nobody knows how far it had come.
    """
    runs = hook_runs(entries)
    if not runs or runs[-1].outcome is not None:
        return ()
    whose = f" of run {run}" if run else ""
    why = f"the tool was killed while this hook{whose} ran, and the hook ended with it: how far it came is not known"
    return (Hooked(runs[-1].began, runs[-1].event, Outcome(False, clean(why, LONGEST), clear=False)),)


def of_this_run(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """What was written since the run was last opened: a crash and a resumption share one journal."""
    found: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Opened):
            found.clear()
        found.append(entry)
    return tuple(found)


def due(
    entries: Iterable[Entry], open_before: bool, configured: Collection[HookEvent], closed: Closed
) -> HookEvent | None:
    """The hook that a run's end calls for. `open_before`: an earlier journal of this target left one open.

    Where a before-disruption is configured, only what was disrupted is told to be over.
    """
    entries = tuple(entries)
    said = disrupted(entries)
    is_open = open_before if said is None else said
    event: HookEvent | None = None
    if closed.end.kind in WELL:
        alone = HookEvent.BEFORE_DISRUPTION not in configured and closed.end.kind is EndKind.RECOVERED
        event = HookEvent.AFTER_RECOVERY if is_open or alone else None
    elif closed.end.kind in LEFT_UNWELL or (closed.end.kind is EndKind.INTERRUPTED and is_open):
        event = HookEvent.GAVE_UP
    elif closed.end.kind is EndKind.HELD and disrupted(of_this_run(entries)):
        event = HookEvent.GAVE_UP  # what an earlier run left open is settled by who holds the target now
    return event if event in configured else None


def words(argv: tuple[str, ...], data: Json) -> tuple[str, ...] | str:
    """`argv` with {target} and the like replaced, or why it can't be: a value may not pass for an option."""
    values = {
        "target": data.get("target"), "event": data.get("event"), "run": data.get("run"), "vmid": data.get("vmid"),
        "step": data.get("step"), "end": data.get("end"), "state": (data.get("after") or {}).get("state"),
    }  # fmt: skip
    text = {key: "" if value is None else clean(str(value), LONGEST) for key, value in values.items()}
    found = tuple(_WORD.sub(lambda m: text[m[1]], word) for word in argv)
    for given, made in zip(argv[1:], found[1:], strict=True):
        if made.startswith("-") and not given.startswith("-"):
            return f"{given} would become {clean(made, 80)!r}, which is taken for an option"
    return found


def before(target: Target, run: str, at: float, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> Json:
    """What the before-disruption hook is told."""
    return {
        **_head(HookEvent.BEFORE_DISRUPTION, target, run, at),
        "step": attempt.step,
        "scope": attempt.scope.word,
        "attempt": attempt.attempt,
        "why": _text(attempt.why),
        "minutes": blast.minutes,
        "hits": [{"kind": h.kind, "name": _text(h.name), "how": _text(h.how)} for h in blast.hits[:MOST]],
        "findings": [_finding(f) for f in diagnosis.findings[:MOST]],
    }


def after(event: HookEvent, target: Target, run: str, at: float, entries: Iterable[Entry], *, opened: bool) -> Json:
    """What after-recovery and gave-up are told. `opened`: a before-disruption is open."""
    entries = tuple(entries)
    history = fold(entries)
    closed = history.closed
    assert closed is not None
    began = opened_at(entries)
    return {
        **_head(event, target, run, at),
        "end": closed.end.kind.value,
        "exit_code": exit_code(closed),
        "why": _text(closed.end.why),
        "next": _text(closed.end.next) or None,
        "service": _text(closed.service) if closed.service is not None else None,
        "tried": [a.step for a in history.attempts[:MOST]],
        "seconds": round(closed.at - began, 1) if began is not None else None,
        "disrupted": opened,
    }


def change(target: Target, now: Present) -> Json:
    """What the state-change hook is told."""
    return {
        **_head(HookEvent.STATE_CHANGE, target, "", now.at),
        "run": None,
        "before": _judged(now.before, now.before_since) if now.before is not None else None,
        "after": _judged(now.judged, now.since),
        "flapping": now.flapping,
    }


def _head(event: HookEvent, target: Target, run: str, at: float) -> Json:
    return {
        "schema": SCHEMA, "event": event.value, "at": round(at, 3), "target": target.name, "run": run,
        "cluster": target.cluster or None, "vmid": target.vmid, "address": target.address or None,
    }  # fmt: skip


def _finding(finding: Finding) -> Json:
    where = _text(finding.where) if finding.where is not None else None
    return {"signal": finding.signal, "says": _text(finding.says), "where": where}


def _judged(judged: Judged, since: float) -> Json:
    return {
        "state": judged.status.name,
        "signals": list(judged.signals[:MOST]),
        "says": _text(judged.says),
        "since": round(since, 3),
    }


def _text(text: str) -> str:
    return clean(text, LONGEST)
