"""A verdict that a person can check with pen and paper: formulas are written out, every amount in GB and in GiB."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any

from recover.core.budget.model import Demand, Fit, Safe, Semantics, Unit, Verdict
from recover.core.budget.sizes import both, gb, gib
from recover.core.clean import clean
from recover.core.redact import redact_text

_SAYS = {
    Fit.FITS: "fits",
    Fit.TIGHT: "tight",
    Fit.NOT: "does not fit",
    Fit.CANNOT_TELL: "cannot tell",
}


def exit_code(verdict: Verdict) -> int:
    """0: it may be started. What can't be told is not 0."""
    return 0 if verdict.fit in {Fit.FITS, Fit.TIGHT} else 1


def headline(verdict: Verdict) -> str:
    """One line: what is asked of what there is."""
    word = _SAYS[verdict.fit]
    if not verdict.demands:
        return f"{word}: {verdict.reasons[0] if verdict.reasons else ''}".rstrip(": ")
    asked = both(verdict.total_low)
    if verdict.total_high is None:
        asked = f"at least {asked}"
    elif verdict.total_high != verdict.total_low:
        asked = f"{asked} to {both(verdict.total_high)}"
    of = f"of {both(verdict.available)} available" if verdict.available is not None else "of an unknown amount"
    return f"{word}: {asked} of host memory asked, {of}"


def verdict_lines(verdict: Verdict) -> tuple[str, ...]:
    """The whole report, cleaned and without secrets."""
    lines = [
        headline(verdict),
        *_asked(verdict),
        *_section("why", verdict.reasons),
        *_section("the engine's own check", [line for c in verdict.checks for line in c.formula]),
        *_there(verdict),
        *_section("largest safe values", [safe_words(s) for s in verdict.safe]),
        *_section("what the sizes mean", [meaning_words(s) for s in verdict.semantics]),
        *_section("not resolved", [f"{u.word}: {u.why}" for u in verdict.unresolved if not u.matters]),
        *_section("note", verdict.notes),
    ]
    corrected = [f"  {line}" for line in verdict.corrected.splitlines() if line.strip()]
    if corrected:
        lines += ["corrected command:", *corrected]
    return tuple(_shown(line) for line in lines)


def _shown(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip(" "))]
    return indent + clean(redact_text(line))


def _section(title: str, lines: Any) -> list[str]:
    found = [f"  {line}" for line in lines if line]
    return [f"{title}:", *found] if found else []


def _asked(verdict: Verdict) -> Iterator[str]:
    for demand in verdict.demands:
        yield f"{demand.what}{_flag(demand)}:"
        yield from (f"  {line}" for line in demand.formula)
        if demand.needs:
            yield f"  to be exact it needs: {demand.needs}"


def _flag(demand: Demand) -> str:
    return f" (--{demand.flag})" if demand.flag else ""


def _there(verdict: Verdict) -> Iterator[str]:
    """The sum that a person does first: what each rank may have."""
    if verdict.available is None or verdict.ranks < 1:
        return
    rest = verdict.available - verdict.loading - verdict.margin
    each = max(0, rest) // verdict.ranks
    yield "room:"
    yield (
        f"  ({gib(verdict.available)} available - {gib(verdict.loading)} loading - {gib(verdict.margin)} margin)"
        f" / {verdict.ranks} ranks = {gib(each)} = {gb(each)} per rank"
    )


def safe_words(safe: Safe) -> str:
    name = f"--{safe.flag}"
    if safe.value is None:
        return f"{name}: none; {safe.why}"
    unit = safe.unit.value
    words = f"{name} {safe.value}: {safe.value} {unit} {safe.scope.value}, {both(safe.per_share)} taken each"
    if safe.unit is Unit.BYTES:
        words = f"{name} {safe.value}: bytes {safe.scope.value}"
    words += f", {both(safe.total)} on the host"
    if safe.tokens is not None:
        words += f"; {safe.tokens} tokens per rank"
    return words + (f"; {safe.why}" if safe.why else "")


def meaning_words(meaning: Semantics) -> str:
    unit = {Unit.GB: "GB (10^9)", Unit.GIB: "GiB (2^30)", Unit.MIB: "MiB (2^20)"}.get(meaning.unit, meaning.unit.value)
    what = f"--{meaning.flag}: {unit} {meaning.scope.value}"
    if meaning.proved_by:
        return f"proved: {what}, {meaning.proved_by}"
    if meaning.assumed:
        return f"not proved: {what}; {meaning.assumed}"
    return f"by the table: {what}, {meaning.source}"


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Plain values; amounts in bytes."""
    found = _plain(verdict)
    assert isinstance(found, dict)
    found["totals"] = {"low": verdict.total_low, "high": verdict.total_high}
    found["corrected"] = redact_text(verdict.corrected)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return clean(redact_text(value)) if isinstance(value, str) else value
