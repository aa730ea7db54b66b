"""For a person: one line per target, and below it what is wrong, what is not proved and what was not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from recover.core.clean import clean
from recover.core.report.check.verdict import Checked, worst
from recover.core.report.words import UNKNOWN, columns, count, size
from recover.model.record import Vitals
from recover.model.watch import Status

Paint = Callable[[str, Status], str]
_HEAD = ["target", "status", "GPUs", "VRAM used", "RAM available", "took", "what"]
_GAPS_SHOWN = 5


def plain(text: str, status: Status) -> str:
    return text


def table(found: Sequence[Checked], paint: Paint = plain) -> str:
    """The whole report. `paint` colours a status word."""
    lines = columns([_HEAD, *(_row(one) for one in found)], "")
    at = max((len(clean(one.target)) for one in found), default=0)
    at = max(at, len(_HEAD[0])) + 2
    shown = [lines[0]]
    for one, line in zip(found, lines[1:], strict=True):
        word = one.status.name
        shown.append(line[:at] + paint(word, one.status) + line[at + len(word) :])
        shown += [f"    {text}" for text in details(one)]
    if len(found) > 1:
        shown.append(summary(found))
    return "\n".join(shown)


def summary(found: Sequence[Checked]) -> str:
    """How many are how, the worst first."""
    order = (Status.CRITICAL, Status.UNKNOWN, Status.WARNING, Status.OK)
    parts = [f"{number} {status.name}" for status in order if (number := sum(o.status is status for o in found))]
    return f"{worst(o.status for o in found).name}: {count(len(found), 'target')}, {', '.join(parts)}"


def details(one: Checked) -> list[str]:
    """What a person needs beyond the one sentence; nothing for a healthy guest with a good baseline."""
    alone = len(one.findings) == 1  # then the line above has said it
    lines = [cure_words(f.cure) if alone else clean(f"{f.says} ({cure_words(f.cure)})", 600) for f in one.findings]
    if one.status is not Status.OK:
        lines += [clean(f"not ripe: {f.says}", 600) for f in one.ripening if f.says not in one.why]
        gaps = [gap for gap in one.gaps if clean(gap) not in one.why]
        lines += [clean(f"not seen: {gap}", 600) for gap in gaps[:_GAPS_SHOWN]]
        lines += [f"not seen: {len(gaps) - _GAPS_SHOWN} more"] if len(gaps) > _GAPS_SHOWN else []
    if one.baseline == "stale":
        lines.append("its baseline is stale: defaults were used")
    if one.proposes:
        lines.append(f"idle now: gpu-recover baseline save {clean(one.target)}")
    return lines


def cure_words(cure: object) -> str:
    word = getattr(cure, "word", None)
    return f"cured at scope {word}" if word is not None else "no step cures it"


def _row(one: Checked) -> list[str]:
    vitals = one.vitals
    figures = [_gpus(vitals), _vram(vitals), _ram(vitals)] if vitals is not None else [UNKNOWN] * 3
    return [one.target, one.status.name, *figures, f"{one.seconds:.1f} s", clean(one.why, 200)]


def _gpus(vitals: Vitals) -> str:
    """How many answer, of how many were seen."""
    if not vitals.reached:
        return UNKNOWN
    answer = sum(gpu.condition == "answers" for gpu in vitals.gpus)
    return str(answer) if answer == len(vitals.gpus) else f"{answer} of {len(vitals.gpus)}"


def _vram(vitals: Vitals) -> str:
    used = [gpu.used_mib for gpu in vitals.gpus]
    known = [mib for mib in used if mib is not None]
    if not known:
        return UNKNOWN
    return size(sum(known)) + ("" if len(known) == len(used) else f" + {UNKNOWN}")


def _ram(vitals: Vitals) -> str:
    if vitals.ram_available_mib is None:
        return UNKNOWN
    return f"{size(vitals.ram_available_mib)} of {size(vitals.ram_total_mib)}"
