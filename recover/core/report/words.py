"""Small words that every report shares: sizes, spans of time and tables, the same everywhere; unknown is "?"."""

from __future__ import annotations

from collections.abc import Sequence

from recover.core.clean import clean
from recover.model.act import Hit
from recover.model.record import GpuVital, Vitals

UNKNOWN = "?"


def size(mib: int | None) -> str:
    """A size for a person: MiB below 10 GiB, else GiB; "?" where it is not known."""
    if mib is None:
        return UNKNOWN
    return f"{mib / 1024:.1f} GiB" if abs(mib) >= 10240 else f"{mib} MiB"


def span(seconds: float) -> str:
    """A span of time: "4 s", "1:42 min", "1:02:03 h"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02}:{whole % 60:02} h"


def about(minutes: float, runs: int = 0) -> str:
    """An estimate for a person: "under 1 min", "about 7 min"; `runs`: of so many runs before."""
    said = "under 1 min" if minutes < 1 else f"about {minutes:.0f} min"
    return said + (f" as in {count(runs, 'past run')}" if runs else "")


def count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    """Rows as aligned lines of plain text; each cell is cleaned."""
    cells = [[clean(cell) for cell in row] for row in rows]
    width = [max(len(row[i]) for row in cells if i < len(row)) for i in range(max((len(r) for r in cells), default=0))]
    return [(indent + "  ".join(cell.ljust(width[i]) for i, cell in enumerate(row))).rstrip() for row in cells]


def gpu_sum(vitals: Vitals) -> str:
    """All GPUs of a look in a few words: "8 GPUs, 640.0 GiB used", and those that do not answer."""
    if not vitals.gpus:
        return "no GPU seen"
    known = [g.used_mib for g in vitals.gpus if g.used_mib is not None]
    silent = [g for g in vitals.gpus if g.used_mib is None]
    said = f"{count(len(vitals.gpus), 'GPU')}, {size(sum(known)) if known else UNKNOWN} used"
    return said + (f", unknown on {', '.join(gpu_word(g) for g in silent)}" if silent else "")


def gpu_word(gpu: GpuVital) -> str:
    return f"GPU {gpu.index}" + (f" ({clean(gpu.condition)})" if gpu.condition != "answers" else "")


def base_words(vitals: Vitals, mib: int | None) -> str:
    """What the figures are measured against, and that it is only defaults where it is."""
    if not vitals.baseline_is_default:
        return f"baseline {size(mib)}"
    if mib is not None:
        return f"{size(mib)} expected by the configuration"
    if vitals.baseline_stale:
        return f"defaults: the baseline is stale, {vitals.baseline_stale}"
    return "defaults, no baseline saved"


def brief(detail: str) -> str:
    """What several acts said, with what was said again and again said once."""
    said: list[tuple[str, int]] = []
    for part in detail.split("; "):
        if said and said[-1][0] == part:
            said[-1] = (part, said[-1][1] + 1)
        else:
            said.append((part, 1))
    return "; ".join(part if times == 1 else f"{part} ({times} times)" for part, times in said)


def hit_lines(found: Sequence[Hit]) -> list[str]:
    """Each hit on a line of its own; devices, which may be many, together."""
    lines = [f"{h.kind} {h.name}: {h.how}" for h in found if h.kind != "device"]
    for how in dict.fromkeys(h.how for h in found if h.kind == "device"):
        names = [h.name for h in found if h.kind == "device" and h.how == how]
        if len(names) == 1:  # which may be several in one: 8 passed-through devices (...)
            lines.append(f"{names[0] if 'device' in names[0] else f'device {names[0]}'}: {how}")
        elif len(names) == 2:
            lines.append(f"2 devices: {how}: {', '.join(names)}")
        else:
            lines.append(f"{len(names)} devices: {how}")
    return lines
