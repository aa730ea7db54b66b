"""What would be done now, why and to whom; then the rungs that may follow: from one look, as words and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, assert_never

from recover.core.clean import clean
from recover.core.report.result import EXIT_CODES
from recover.core.report.words import about, base_words, columns, gpu_sum, hit_lines, size, span
from recover.core.sentences import grouped
from recover.model.act import Hit, Pass, Refuse
from recover.model.ladder import Ready, RungOption
from recover.model.record import Decided, Decision, EndKind, Entry, Opened, Restore, Saw, Stop, Try, Wait


@dataclass(frozen=True, slots=True)
class Planned:
    """`first`: what is waited for before `decision` would be taken, if nothing changes; empty: it is taken now."""

    target: str
    playbook: str
    saw: Saw
    decision: Decision
    first: str = ""


def planned(entries: Iterable[Entry]) -> Planned:
    """The plan that a run without an actuator came to. Raises ValueError where it never looked."""
    opened: Opened | None = None
    saw: Saw | None = None
    first: Wait | None = None
    decision: Decision | None = None
    for entry in entries:
        if isinstance(entry, Opened):
            opened = entry
        elif isinstance(entry, Saw):
            saw = entry
        elif isinstance(entry, Decided):
            decision = entry.decision
            if isinstance(decision, Wait) and decision.seconds > 0:
                first = decision
    if opened is None or saw is None or decision is None:
        raise ValueError("no look, no plan")
    began = opened.at
    acts = not isinstance(decision, Stop)
    waits = f"{first.why} (up to {span(saw.at - began)})" if first is not None and acts else ""
    return Planned(opened.target, opened.playbook, saw, decision, waits)


def exit_code(plan: Planned) -> int:
    """0: nothing to do; 1: it would act; else how a run would end."""
    match plan.decision:
        case Try() | Restore():
            return 1
        case Stop(end):
            return EXIT_CODES[end.kind]
        case Wait():
            return 1
        case _:
            assert_never(plan.decision)


def headline(plan: Planned) -> str:
    """One line: what would be done."""
    name = clean(plan.target)
    match plan.decision:
        case Try() as attempt:
            option = _option(plan.saw, attempt.index)
            took = f", {about(option.offer.blast.minutes)}" if option and isinstance(option.offer, Ready) else ""
            return f"{name}: would try {attempt.step} (scope {attempt.scope.word}{took})"
        case Restore(duty=duty):
            return f"{name}: would first put back what an earlier run changed: {clean(duty.key)}"
        case Stop(end) if end.kind is EndKind.HEALTHY:
            return f"{name}: nothing to do: it is healthy"
        case Stop(end):
            return f"{name}: would do nothing and end {end.kind}: {clean(end.why)}"
        case Wait(why=why):
            return f"{name}: would wait: {clean(why)}"
        case _:
            assert_never(plan.decision)


def plan_text(plan: Planned) -> str:
    """The plan for a person."""
    vitals = plan.saw.vitals
    lines = [headline(plan)]
    if plan.first:
        lines.append(f"  but first it would wait, and look again: {clean(plan.first)}")
    if isinstance(plan.decision, Try):
        lines += _attempt(plan.decision, plan.saw)
    if isinstance(plan.decision, Stop) and plan.decision.end.next:
        lines.append(f"  next: {clean(plan.decision.end.next)}")
    base = base_words(vitals, vitals.ram_baseline_mib)
    ram = f"RAM available {size(vitals.ram_available_mib)} of {size(vitals.ram_total_mib)} ({base})"
    lines.append(f"Seen: {plan.saw.diagnosis.state}; {gpu_sum(vitals)}; {ram}")
    lines += [f"  {clean(says)}" for says in grouped(f.says for f in plan.saw.diagnosis.findings)]
    lines += [
        f"  may go away by itself: {clean(says)}"
        for says in grouped(s.finding.says for s in plan.saw.diagnosis.ripening)
    ]
    lines += [f"  not seen: {clean(g)}" for g in plan.saw.diagnosis.gaps]
    return "\n".join([*lines, *_ladder(plan)])


def _attempt(attempt: Try, saw: Saw) -> list[str]:
    option = _option(saw, attempt.index)
    lines = [f"  why: {clean(attempt.why)}"]
    lines += [f"  it would: {clean(word)}" for word in grouped(attempt.line.words)]
    if option is not None and isinstance(option.offer, Ready):
        hits = option.offer.blast.hits
        lines += [f"  hits {clean(line)}" for line in hit_lines(hits)]
        lines += [] if hits else ["  hits nobody else"]
    return lines


def _ladder(plan: Planned) -> list[str]:
    now = plan.decision.index if isinstance(plan.decision, Try) else -1
    rows = [[f"{o.step}", o.scope.word, _offer(o)] for o in plan.saw.options if o.index > now]
    if not rows:
        return []
    healthy = isinstance(plan.decision, Stop) and plan.decision.end.kind is EndKind.HEALTHY
    if healthy:
        return []
    title = "If that does not help" if now >= 0 else f"The ladder of playbook {clean(plan.playbook)}"
    return [f"{title} (each is planned anew from a new look):", *columns(rows)]


def _offer(option: RungOption) -> str:
    match option.offer:
        case Ready(blast=blast):
            return f"{about(blast.minutes, blast.past_runs)}: could be tried"
        case Pass(why):
            return f"of no use now: {why}"
        case Refuse(guard, why, lift):
            return f"refused ({guard}): {why}" + (f"; to lift: {lift}" if lift else "")
        case _:
            assert_never(option.offer)


def plan_json(plan: Planned) -> dict[str, Any]:
    """The plan as data."""
    tried = plan.decision if isinstance(plan.decision, Try) else None
    option = _option(plan.saw, tried.index) if tried is not None else None
    ready = option.offer if option is not None and isinstance(option.offer, Ready) else None
    return {
        "schema": 1,
        "target": plan.target,
        "playbook": plan.playbook,
        "exit_code": exit_code(plan),
        "says": headline(plan),
        "waits_for": plan.first or None,
        "step": tried.step if tried is not None else None,
        "why": clean(tried.why) if tried is not None else None,
        "words": [clean(w) for w in tried.line.words] if tried is not None else [],
        "hits": [_hit(h) for h in ready.blast.hits] if ready else [],
        "state": plan.saw.diagnosis.state.value,
        "findings": [
            {"signal": f.signal, "says": clean(f.says), "cure": f.cure.word if f.cure else None, "where": f.where}
            for f in plan.saw.diagnosis.findings
        ],
        "gaps": [clean(g) for g in plan.saw.diagnosis.gaps],
        "next": clean(plan.decision.end.next) or None if isinstance(plan.decision, Stop) else None,
        "ladder": [
            {"step": o.step, "scope": o.scope.word, "offer": type(o.offer).__name__.lower(), "says": clean(_offer(o)),
             "minutes": round(o.offer.blast.minutes, 1) if isinstance(o.offer, Ready) else None}
            for o in plan.saw.options
        ],
    }  # fmt: skip


def _hit(hit: Hit) -> dict[str, str]:
    return {"kind": hit.kind, "name": clean(hit.name), "how": clean(hit.how)}


def _option(saw: Saw, index: int) -> RungOption | None:
    return next((o for o in saw.options if o.index == index), None)
