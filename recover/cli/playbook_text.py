"""A playbook for a person: what each rung does and with which parameters, defaults included."""

from __future__ import annotations

from recover.core.clean import clean
from recover.core.report.words import columns, count, span
from recover.model.ladder import Param, Playbook, Rung, Value
from recover.steps.table import ALL_STEPS


def playbook_text(playbook: Playbook) -> str:
    limits, after = playbook.limits, playbook.after
    deadline = span(limits.deadline_s) if limits.deadline_s is not None else "derived from the target"
    scope, confirm = limits.max_scope.word, count(limits.confirm, "healthy look")
    lines = [
        f"{playbook.name}: {clean(playbook.about)}",
        f"  up to scope {scope}; deadline {deadline}; at most {limits.disruptions_per_day} restarts a day",
        f"  recovered after {confirm} in a row; unsure for {span(limits.patience_s)} at most",
        f"  nothing is tried while memory still falls; stuck is {span(limits.ripens_s)} without progress",
        f"  afterwards: start {after.start}, healthy within {span(after.healthy_within_s)}",
    ]
    if playbook.unattended is not None:
        alone = playbook.unattended
        scopes = ", ".join(scope.word for scope in alone.scopes)
        lines.append(f"  unattended: scope {scopes}, at most {count(alone.runs_per_day, 'run')} a day and target,")
        lines.append(f"    for {', '.join(alone.signals)} and nothing else")
    lines.append("")
    for number, rung in enumerate(playbook.rungs, 1):
        lines += _rung(number, rung)
    return "\n".join(lines).rstrip()


def _rung(number: int, rung: Rung) -> list[str]:
    step = ALL_STEPS[rung.step]
    given = dict(rung.params)
    tries = f", {rung.attempts} tries" if rung.attempts > 1 else ""
    head = f"{number}. {step.name} (scope {step.scope.word}, cures up to {step.reach.word}{tries}): {step.doc}"
    rows = [
        [p.name, _value(p, given.get(p.name, p.default)) + ("" if p.name in given else " (default)"), p.doc]
        for p in step.params
    ]
    return [head, *columns(rows, "     ")]


def _value(param: Param, value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return span(float(value)) if param.unit == "s" and isinstance(value, (int, float)) else str(value)
