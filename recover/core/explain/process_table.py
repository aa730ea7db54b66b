"""Any printed process table as rows: by its header, whatever the columns, or the shapes of `ps aux` and `ps -ef`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from recover.core.explain.lines import Line
from recover.model.process import Process, ProcessId

_COMM = 15
_LAST = frozenset({"CMD", "COMMAND", "ARGS", "CMDLINE"})
_WORDS = (
    "USER UID RUSER EUSER PID PPID PGID PGRP SID SESS SPID TID LWP NLWP C NI PRI PR CLS RTPRIO F S STAT STATE "
    "%CPU %MEM VSZ RSS SZ VIRT RES SHR ADDR WCHAN TTY TT STIME START STARTED ELAPSED TIME TIME+ PSR UNIT CGROUP"
)
_NAMES = frozenset(_WORDS.split())
_DAY = re.compile(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)$")
_MONTH = re.compile(r"^(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)$")
_STATE = re.compile(r"^[DRSTtZIXWP][<NLsl+]{0,6}$")
_AUX = re.compile(
    r"^\S{1,40}\s+(?P<pid>\d{1,10})\s+\d{1,6}(?:\.\d)?\s+\d{1,3}\.\d\s+\d+\s+\d+\s+(?:\?|pts/\d+|tty\S*|hvc\d|console)\s+"
    r"(?P<state>[DRSTtZIXWP][<NLsl+]{0,6})\s+\S+(?: \d\d)?\s+\d+:\d\d(?::\d\d)?\s+(?P<args>\S.*)$"
)
_EF = re.compile(
    r"^\S{1,40}\s+(?P<pid>\d{1,10})\s+(?P<ppid>\d{1,10})\s+\d{1,3}\s+\S+(?: \d\d)?\s+"
    r"(?:\?|pts/\d+|tty\S*|hvc\d|console)\s+(?:\d+-)?\d\d:\d\d:\d\d\s+(?P<args>\S.*)$"
)


# /proc/PID/stat, up to its number of threads
_STAT = re.compile(
    r"^(?P<pid>\d{1,10}) \((?P<comm>.{1,64})\) (?P<state>[DRSTtZIXWP]) (?P<ppid>\d{1,10}) \d{1,10} (?P<sid>\d{1,10})"
    r"(?: -?\d{1,20}){13} (?P<threads>\d{1,7}) "
)
_STATUS = re.compile(r"^(Name|State|Pid|PPid|Threads|NSsid|SigPnd|ShdPnd):\s*(\S.*)$")


@dataclass(frozen=True, slots=True)
class Row:
    """`ppid` and `state` are None and "" where the table has no such column. `table` counts the tables of a text."""

    line: Line
    table: int
    process: Process
    ppid: int | None
    state: str
    wchan: str = ""

    @property
    def zombie(self) -> bool:
        return self.state.startswith(("Z", "X"))

    @property
    def threads_live(self) -> bool:
        """Defunct, yet "l": its other threads live on and hold everything."""
        return self.state.startswith("Z") and "l" in self.state


def rows(lines: tuple[Line, ...]) -> Iterator[Row]:
    columns: tuple[str, ...] = ()
    table = 0
    for line in lines:
        if line.typed:
            columns, table = (), table + 1
            continue
        head = _columns(line.text)
        if head:
            columns, table = head, table + 1
            continue
        row = _by_columns(line, columns, table) if columns else None
        row = row or _plain(line, table)
        if row is not None:
            yield row
        elif line.text:
            columns = ()


def _columns(text: str) -> tuple[str, ...]:
    words = text.split()
    if len(words) < 3 or "PID" not in words or words[-1] not in _LAST:
        return ()
    return tuple(words) if all(word in _NAMES for word in words[:-1]) else ()


def _by_columns(line: Line, columns: tuple[str, ...], table: int) -> Row | None:
    rest, cells = line.text, {}
    for name in columns[:-1]:
        word, _, rest = rest.partition(" ")
        rest = rest.lstrip()
        if name in ("STARTED", "START", "STIME"):
            word, rest = _start(word, rest)
        cells[name] = word
    pid, state = cells["PID"], cells.get("STAT") or cells.get("S") or cells.get("STATE") or ""
    ppid = cells.get("PPID", "")
    if not rest or not _number(pid) or ("PPID" in cells and not _number(ppid)) or (state and not _STATE.match(state)):
        return None
    wchan = cells.get("WCHAN", "")
    return _row(line, table, pid, ppid, state, rest, "" if wchan in ("-", "?") else wchan)


def _start(word: str, rest: str) -> tuple[str, str]:
    """`lstart` is five words, a month and day may be two."""
    take = 4 if _DAY.match(word) else 1 if _MONTH.match(word) and re.match(r"\d{1,2} ", rest) else 0
    for _ in range(take):
        more, _, rest = rest.partition(" ")
        word, rest = f"{word} {more}", rest.lstrip()
    return word, rest


def _plain(line: Line, table: int) -> Row | None:
    stat = _STAT.match(line.text) if ") " in line.text[:80] else None
    if stat is not None:
        return _of_one(line, table, stat.groupdict())
    match = _AUX.match(line.text) or _EF.match(line.text)
    if match is None:
        return None
    found = match.groupdict()
    return _row(line, table, match["pid"], found.get("ppid") or "", found.get("state") or "", match["args"], "")


def _of_one(line: Line, table: int, one: Mapping[str, str]) -> Row:
    """A process by itself. That pid 1 is its parent says something only if its session is another's: the init of a

    container leads the session of all that is in it.
    """
    state = one["state"] + ("l" if one["state"] == "Z" and int(one["threads"]) > 1 else "")
    known = one["ppid"] if one["ppid"] != "1" or one["sid"] not in ("0", "1", one["pid"]) else ""
    return _row(line, table, one["pid"], known, state, one["comm"], "")


def status_fields(lines: Iterable[Line]) -> Iterator[tuple[Line, str, str]]:
    """The fields of /proc/PID/status that say something here; `Name` is the first of each process."""
    for line in lines:
        match = _STATUS.match(line.text) if ":" in line.text and not line.typed else None
        if match is not None:
            yield line, match[1], match[2]


def statuses(lines: Iterable[Line]) -> Iterator[Row]:
    """/proc/PID/status as rows."""
    seen: dict[str, str] = {}
    head: Line | None = None
    for line, name, value in status_fields(lines):
        if name == "Name":
            yield from _status(head, seen)
            seen, head = {}, line
        seen[name] = value
    yield from _status(head, seen)


def _status(head: Line | None, seen: dict[str, str]) -> Iterator[Row]:
    pid, ppid, threads = seen.get("Pid", ""), seen.get("PPid", ""), seen.get("Threads", "1")
    if head is None or not all(_number(word) for word in (pid, ppid, threads)) or not seen.get("State"):
        return
    sid = seen.get("NSsid", "1").split()[-1]
    one = {"pid": pid, "ppid": ppid, "sid": sid, "state": seen["State"][0], "threads": threads}
    yield _of_one(head, 0, {**one, "comm": seen["Name"][:64]})


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


def _row(line: Line, table: int, pid: str, ppid: str, state: str, args: str, wchan: str) -> Row:
    args = re.sub(r"^(?:[|`\\_─└├ ]|\bL_ )+(?=\S)", "", args)  # ps f, pstree-like
    comm, title = args.split(" ", maxsplit=1)[0].rsplit("/", 1)[-1].lstrip("-"), args
    dead = re.match(r"^\[?([^\]]{1,64}?)\]? <defunct>", args)
    kernel = re.match(r"^\[([^\]]{1,64})\]$", args)
    if dead or kernel:
        comm, title = (dead or kernel or ["", ""])[1], ""
    elif " " not in args and len(args) == _COMM:
        title = ""  # `ps -o comm` and top print what the kernel cuts
    number = int(ppid) if ppid else None
    process = Process(ProcessId("", int(pid), 0), number or 0, 0, 0, state[:1] or "S", comm[:64], title, wchan=wchan)
    return Row(line, table, process, number, ("Z" if dead and not state else state) or ("K" if kernel else ""), wchan)
