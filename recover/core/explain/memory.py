"""RAM that did not come back, from /proc/meminfo or from `free` before and after; one `free` alone tells nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from recover.core.explain.lines import Line
from recover.core.explain.told import Told
from recover.core.ram import blind_tolerance_mib, unowned, unowned_limit
from recover.core.read import procfs
from recover.model.reading import Known
from recover.model.verdict import Scope

_FIELD = re.compile(
    r"^(Mem|Swap|Huge|Cached|Buffers|Active|Inactive|Anon|Mapped|Shmem|Slab|[A-Z][\w()]{1,30}):?\w*:\s+\d+(?: kB)?$"
)
# Without these the sum of what is accounted for would be short, and the rest would look like a leak.
_NEEDED = frozenset({"MemTotal", "MemFree", "MemAvailable", "Buffers", "Cached", "AnonPages", "Slab", "PageTables"})
_MEM = re.compile(r"^Mem:\s+" + r"\s+".join([r"([\d.,]+)([KMGT]i?|B)?B?"] * 6) + r"$")
_HEAD = re.compile(r"^total\s+used\s+free\s+shared\s+buff/cache\s+available$")
_ENDED = re.compile(
    r"\bafter\b.*(?:exit|kill|stop|end|quit|crash|shut|terminat|death|died)|\bnach\b.*(?:beenden|ende)", re.I
)
_ENDS = re.compile(r"\b(?:p?kill|killall)\b|\bsystemctl stop\b|\b(?:docker|podman) (?:stop|kill|rm)\b")
_UNITS = {"": 1 / 1024, "B": 1 / 1048576, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1048576}


def memory_told(lines: tuple[Line, ...]) -> tuple[list[Told], frozenset[int]]:
    """Findings, and the lines that were read here."""
    blocks = list(_meminfos(lines))
    frees = list(_frees(lines))
    mine = {line.number for block in blocks for line in block} | {free.line.number for free in frees}
    return [*_unowned(blocks), *_lost(lines, frees)], frozenset(mine)


def _meminfos(lines: tuple[Line, ...]) -> Iterator[list[Line]]:
    block: list[Line] = []
    for line in lines:
        starts = line.text.startswith("MemTotal:")
        if block and (starts or not _FIELD.match(line.text)):
            yield block
            block = []
        if starts or (block and _FIELD.match(line.text)):
            block.append(line)
    if block:
        yield block


def _unowned(blocks: list[list[Line]]) -> Iterator[Told]:
    for block in blocks:
        text = "\n".join(line.text for line in block)
        kib = procfs.meminfo(text)
        ram = procfs.ram(text, kib.get("AnonPages", 0))
        if not kib.keys() >= _NEEDED or not isinstance(ram, Known):
            continue
        gone, limit = unowned(ram.value), unowned_limit(ram.value, None)
        if gone > limit:
            says = (
                f"{gone / 1024:.0f} GiB of RAM belong to no process, file or kernel pool; if no server lives that pins"
                " them, they are lost until the guest is restarted"
            )
            fact = "memory that the driver pinned for a dead process; ZFS and a balloon on this machine look alike"
            yield Told("ram-unowned", says, Scope.GUEST, fact, block[0].number, block[0].shown)


@dataclass(frozen=True, slots=True)
class _Free:
    line: Line
    at: int
    total: float
    shared: float
    available: float


def _frees(lines: tuple[Line, ...]) -> Iterator[_Free]:
    head = False
    for at, line in enumerate(lines):
        match = _MEM.match(line.text) if head and line.text.startswith("Mem:") else None
        if match is not None:
            unit = _unit(match[1])
            values = [_mib(match[i], match[i + 1] or unit) for i in range(1, 13, 2)]
            yield _Free(line, at, values[0], values[3], values[5])
        head = _HEAD.match(line.text) is not None


def _unit(total: str) -> str:
    """Of `free` without units: KiB, or what -m and -g made of it; no machine with GPUs has less than 2 GiB."""
    size = int(total) if total.isascii() and total.isdigit() and len(total) < 16 else 0
    return "K" if size >= 2_000_000 else "M" if size >= 2_000 else "G"


def _mib(number: str, unit: str) -> float:
    try:
        return float(number.replace(",", ".")) * _UNITS[unit[:1]]
    except (ValueError, OverflowError):
        return 0.0


def _lost(lines: tuple[Line, ...], frees: list[_Free]) -> Iterator[Told]:
    """Two prints between which, as somebody wrote there, a process ended: what is missing has no owner."""
    for before, after in pairwise(frees):
        between = lines[before.at + 1 : after.at]
        ended = any(_ENDED.search(line.whole) or (line.typed and _ENDS.search(line.whole)) for line in between)
        missing = before.available - after.available
        tmpfs = max(0.0, after.shared - before.shared)
        if ended and before.total and missing - tmpfs > blind_tolerance_mib(int(before.total)):
            says = f"{missing / 1024:.0f} GiB of RAM did not come back after the process ended"
            fact = (
                "the driver's pinned memory outlived its process; only a new kernel gave it back (llama.cpp issue 9988)"
            )
            yield Told("ram-unowned", says, Scope.GUEST, fact, after.line.number, after.line.shown)
