"""Lines of an earlier boot are old news: a log that goes on past a start of its kernel tells which they are.

Only what is written in one go counts: the same form of date, the same host, line upon line. A paste of two machines'
logs has something between them, or other hosts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from recover.core.explain.lines import Line

_STARTED = "Linux version "
_KERNEL = re.compile(r"Linux version \d+\.\d+")
_BETWEEN = re.compile(r"^-- (?:Boot [0-9a-f]{32}|Reboot) --$")  # journalctl of several boots
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)\S* +([\w.-]+) ")
_SYSLOG = re.compile(r"([A-Z][a-z]{2}) ([ \d]\d) (\d\d:\d\d:\d\d)\S* ([\w.-]+) ")
_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: i for i, name in enumerate(_NAMES)}

Clock = tuple[str, str]  # who wrote it and in which form, the time as text that sorts


def clock(line: Line) -> Clock | None:
    """None for a line that does not begin with a date and a host, or with seconds since the boot."""
    iso = _ISO.match(line.whole)
    if iso is not None:
        return f"iso {iso[3]}", f"{iso[1]} {iso[2]}"
    syslog = _SYSLOG.match(line.whole)
    if syslog is not None and syslog[1] in _MONTHS:
        return f"syslog {syslog[4]}", f"{_MONTHS[syslog[1]]:02} {syslog[2]} {syslog[3]}"
    return ("boot", f"{line.usec:020}") if line.usec else None


def without_earlier_boots(lines: tuple[Line, ...]) -> tuple[Line, ...]:
    """The same lines, those of earlier boots empty."""
    old: set[int] = set()
    for at in range(len(lines) - 1, -1, -1):  # the last start first: what it makes old is not asked again
        line = lines[at]
        if at in old or line.typed:
            continue
        if _STARTED in line.text and _KERNEL.match(line.text):
            old.update(_before_a_start(lines, at))
        elif line.text.startswith("-- ") and _BETWEEN.match(line.text):
            old.update(_in_one_go(lines, at, None))
    if not old:
        return lines
    return tuple(replace(line, after="", text="") if at in old else line for at, line in enumerate(lines))


def _before_a_start(lines: tuple[Line, ...], at: int) -> list[int]:
    own = clock(lines[at])
    if own is None:  # "[    0.000000]": what stands just before it and counts on is of the boot before
        bare = lines[at].text != lines[at].after
        return _in_one_go(lines, at, "boot") if bare else []
    return [i for i in _in_one_go(lines, at, own[0]) if own[0] == "boot" or _time(lines[i]) <= own[1]]


def _time(line: Line) -> str:
    found = clock(line)
    return found[1] if found else ""


def _in_one_go(lines: tuple[Line, ...], at: int, who: str | None) -> list[int]:
    """The lines before `at` up to one that somebody else wrote, or that has no date. `who` None: whoever is first."""
    run = []
    for i in range(at - 1, -1, -1):
        if lines[i].text.startswith("-- ") and _BETWEEN.match(lines[i].text):
            run.append(i)
            continue
        found = clock(lines[i])
        if found is None or lines[i].typed or (who is not None and found[0] != who):
            break
        who = found[0]
        run.append(i)
    return run
