"""Processes that start anew as fast as they are ended are ended at once, by process group, where all of it is ours.

One signal to a process group leaves no gap: a fork that is under way when it comes is undone (kernel/fork.c,
`copy_process`). A session has no other members than what its leader started, and nobody can join it; so only groups in
sessions whose leader was itself among those to be ended are ours, and a group with anybody in it who is spared is left.
A control group would do the same (cgroup.kill), and belongs to a manager that was asked before: it isn't taken from it.
"""

import os
import signal
import time

from recover.guest import procs
from recover.guest.wire import read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

    Rows = dict[int, dict[str, Any]]

_TRIES = 20


def leaders(rows: "Rows", members: "Iterable[tuple[int, int]]") -> "dict[int, int]":
    """sid -> start of its leader, of the sessions that one of `members` led and one of them still lives in.

    The kernel gives no number away while a session has it: so the leader may be gone, as a main that SIGTERM ended is.
    """
    starts = dict(members)
    there = [pid for pid, start in starts.items() if pid in rows and rows[pid]["start"] == start]
    return {rows[pid]["sid"]: starts[rows[pid]["sid"]] for pid in there if rows[pid]["sid"] in starts}


def groups(rows: "Rows", led: "dict[int, int]", never: "Iterable[int]", spare: "Iterable[int]") -> "list[int]":
    """Process groups that live in these sessions, with nobody in them who is never signalled, or spared with his own."""
    sessions = {sid for sid, start in led.items() if sid not in rows or rows[sid]["start"] == start}
    kept, others = set(never), set(spare)
    found = {row["pgid"] for row in rows.values() if row["sid"] in sessions}
    spared = {row["pgid"] for pid, row in rows.items() if pid in kept or procs.ancestors(rows, pid) & others}
    strangers = {row["pgid"] for row in rows.values() if row["sid"] not in sessions}
    return sorted(pgid for pgid in found - spared - strangers if pgid > 1 and pgid != os.getpgrp())


def youngest(led: "dict[int, int]") -> "Optional[dict[str, Any]]":
    """The row of the process that was started last, where it is in one of these sessions.

    What forks and ends at once is in no list of processes: by the time that it is read, it is gone. The kernel tells the
    last number that it gave (the last word of /proc/loadavg).
    """
    for turn in range(_TRIES if led else 0):
        time.sleep(0.001 if turn else 0.0)
        last = read_or("/proc/loadavg").split()[-1:]
        row = procs.stat("/proc/" + last[0]) if last and last[0].isdigit() else None
        if row is not None and row["sid"] in led and row["state"] not in "ZX":
            return row
    return None


def goes_on(rows: "Rows", led: "dict[int, int]") -> bool:
    """Whether something runs in these sessions that is in no list of processes."""
    seen = {row["pgid"] for row in rows.values()}
    return any(_exists(pgid) for pgid in led if pgid not in seen) or youngest(led) is not None


def _exists(pgid: int) -> bool:
    try:
        os.killpg(pgid, 0)
    except OSError:
        return False
    return True


def end(rows: "Rows", led: "dict[int, int]", never: "Iterable[int]", spare: "Iterable[int]") -> "list[str]":
    """What was done, in words. Of each group a member is seen right before, so that its number is still its."""
    told = []
    for pgid in groups(rows, led, never, spare):
        if not any(_member(pid, pgid, row) for pid, row in rows.items()) and not _young(pgid, led):
            continue
        try:
            os.killpg(pgid, signal.SIGKILL)
            told.append("process group %d: KILL to all of it at once" % pgid)
        except OSError as error:
            told.append("process group %d: %s" % (pgid, error))
    return told


def _young(pgid: int, led: "dict[int, int]") -> bool:
    row = youngest(led)
    return row is not None and row["pgid"] == pgid


def _member(pid: int, pgid: int, row: "dict[str, Any]") -> bool:
    now = procs.stat("/proc/%d" % pid) if row["pgid"] == pgid else None
    return now is not None and (now["start"], now["pgid"], now["sid"]) == (row["start"], pgid, row["sid"])
