"""Lines of real reports, as they were published; see the first line of each file for its source."""

from __future__ import annotations

import re
from pathlib import Path

from recover.core.read.kernel_log import lines_of
from recover.model.memory import KernelLine
from recover.model.reading import Known
from tests.core import builders as b

DATA = Path(__file__).parent.parent / "data"
_STARTED = re.compile(r"\d\d:\d\d:\d\d 20\d\d ")


def text(name: str) -> str:
    path = next(DATA.glob(f"*/{name}"))
    return "".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("# "))


def ps(name: str) -> list[tuple[int, int, str]]:
    """(pid, ppid, title) of a printed process table, whatever its columns."""
    rows = []
    for line in text(name).splitlines():
        words = line.split()
        numbers = [i for i, word in enumerate(words[:4]) if word.isdigit()]
        if len(numbers) < 2:
            continue
        pid, ppid = (int(words[i]) for i in numbers[:2])
        title = _STARTED.split(line, maxsplit=1)[-1] if _STARTED.search(line) else _command(words, numbers[1])
        rows.append((pid, ppid, title))
    return rows


def _command(words: list[str], ppid_at: int) -> str:
    return " ".join(words[7:]) if len(words) > 7 else " ".join(words[ppid_at + 1 :])


def meminfo(name: str) -> dict[str, int]:
    """Name -> MiB; counts of pages stay counts."""
    found = {}
    for line in text(name).splitlines():
        key, _, value = line.partition(":")
        number = int(value.split()[0])
        found[key] = number // 1024 if value.endswith("kB") else number
    return found


def kernel(name: str, uptime_s: float = b.UPTIME_S - 60) -> Known[tuple[KernelLine, ...]]:
    """A printed kernel log as if it had been written at `uptime_s`."""
    return b.kernel(*(line.text for line in lines_of(text(name))), uptime_s=uptime_s)
