"""A parent that doesn't reap its dead children is ended only while nothing else of it lives, and is known again first.

A zombie holds nothing but its entry in the process table; once its parent is gone, init inherits and reaps it.
"""

import os
import signal
import time

from recover.guest import kill, procs
from recover.guest.wire import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_REAPS_S = 2.0  # a sound parent reaps within milliseconds; a busy machine takes longer


def end_zombie_parent(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 20.0)))
    parents, _ = kill.members_of({"members": [request.get("parent")]})
    children, _ = kill.members_of(request)
    grace = float(request.get("grace", _REAPS_S))
    if not parents or not _await_reaped(parents[0], children, limit.within(grace)):
        return {"ok": True, "changed": False, "detail": "nobody keeps a dead child"}
    pid, start = parents[0]
    why = _not_this_one(pid, start, children, request)
    if why:
        return {"ok": False, "changed": False, "detail": "pid %d is not ended: %s" % (pid, why)}
    for number, seconds in ((signal.SIGTERM, limit.left / 2), (signal.SIGKILL, limit.left)):
        try:
            kill.signal_one(pid, start, number)
        except kill.Gone:
            break
        except OSError as error:
            return {"ok": False, "changed": False, "detail": "pid %d: %s" % (pid, error)}
        if _await(lambda: kill.is_gone(pid, start), limit.within(seconds)):
            break
    left = _await_reaped(parents[0], children, limit.within(_REAPS_S))
    if not kill.is_gone(pid, start):
        return {"ok": False, "changed": True, "detail": kill.survivor(pid, start)}
    still = ", ".join("%d" % child for child, _ in left)
    return {
        "ok": not left,
        "changed": True,
        "detail": "pid %d ended%s" % (pid, "; still there: " + still if left else ""),
    }


def _await(true: "Any", limit: Limit) -> bool:
    while not true():
        if limit.left <= 0:
            return False
        time.sleep(0.05)
    return True


def _kept(parent: "tuple[int, int]", children: "list[tuple[int, int]]") -> "list[tuple[int, int]]":
    """The children that are plain zombies of exactly this parent now."""
    if procs.start_of(parent[0]) != parent[1]:
        return []
    found = []
    for pid, start in children:
        row = procs.stat("/proc/%d" % pid)
        if row is not None and row["start"] == start and row["ppid"] == parent[0] and row["state"] in "ZX":
            if not procs.live_threads(pid):
                found.append((pid, start))
    return found


def _await_reaped(
    parent: "tuple[int, int]", children: "list[tuple[int, int]]", limit: Limit
) -> "list[tuple[int, int]]":
    """Those that nobody has reaped when the time is over."""
    _await(lambda: not _kept(parent, children), limit)
    return _kept(parent, children)


def _not_this_one(pid: int, start: int, children: "list[tuple[int, int]]", request: "dict[str, Any]") -> str:
    """Why it may not be ended, empty if it may."""
    rows = kill.table()
    never = kill.protected(rows, request)
    if pid in never:
        return never[pid]
    if rows.get(pid, {}).get("start") != start:
        return "it is another process now"
    inside = procs.status("/proc/%d" % pid).get("NSpid", "").split()
    if len(inside) > 1 and inside[-1] == "1":
        return "it is the init of a container"
    mine = {child for child, _ in children}
    others = [p for p, row in rows.items() if row["ppid"] == pid and p not in mine and row["state"] not in "ZX"]
    if others:
        return "it has other children that live: %s" % ", ".join(str(p) for p in sorted(others)[:8])
    if rows[pid]["ppid"] != 1 and rows[pid]["tty"] and rows[pid]["sid"] == pid:
        return "it is a login on a terminal"
    return "" if pid != os.getppid() else "the probe or above it"
