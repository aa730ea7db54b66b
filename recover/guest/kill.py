"""A signal goes only to the process that was meant: boot id, pid and start time are checked at the moment of sending.

Where the kernel has pidfds (5.3) the check is made on an open pidfd, so that a pid that is used again can't be hit.
"""

import errno
import os
import signal
import time

from recover.guest import procs
from recover.guest.wire import Limit, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SIGNALS = {"TERM": signal.SIGTERM, "QUIT": signal.SIGQUIT, "KILL": signal.SIGKILL, "INT": signal.SIGINT,
           "CONT": signal.SIGCONT}  # fmt: skip
_PIDFD_OPEN, _PIDFD_SEND = 434, 424  # the same numbers on every architecture that NVIDIA's driver runs on
_NEVER = ("sshd", "sshd-session", "sshd-auth", "systemd", "init", "dbus-daemon", "systemd-logind")


class Gone(Exception):
    pass


def boot_id() -> str:
    return read_or("/proc/sys/kernel/random/boot_id").strip()


def _syscall(number: int, *args: "Any") -> int:
    try:
        import ctypes
    except ImportError:
        raise OSError(errno.ENOSYS, "no ctypes in this Python") from None
    libc = ctypes.CDLL(None, use_errno=True)
    words = [None if arg is None else ctypes.c_long(arg) for arg in args]
    result = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return int(result)


def pidfd_open(pid: int) -> int:
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    fd = _syscall(_PIDFD_OPEN, pid, 0)
    os.set_inheritable(fd, False)
    return fd


def pidfd_send(fd: int, number: int) -> None:
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(fd, number)
        return
    _syscall(_PIDFD_SEND, fd, int(number), None, 0)


def signal_one(pid: int, start: int, number: int) -> str:
    """Send to exactly this process; gives how it was sent. Gone if it is not there any more; OSError otherwise."""
    try:
        fd = pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise Gone() from None
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EINVAL):
            raise
        return _check_then_kill(pid, start, number)
    try:
        if procs.start_of(pid) != start:
            raise Gone()
        pidfd_send(fd, number)
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise Gone() from None
        if error.errno == errno.ENOSYS:
            return _check_then_kill(pid, start, number)
        raise
    finally:
        os.close(fd)
    return "pidfd"


def _check_then_kill(pid: int, start: int, number: int) -> str:
    if procs.start_of(pid) != start:
        raise Gone()
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        raise Gone() from None
    return "kill"


def is_gone(pid: int, start: int) -> bool:
    """No such process any more, or a plain zombie: it holds nothing, only its parent must reap it."""
    seen = procs.stat("/proc/%d" % pid)
    if seen is None or seen["start"] != start:
        return True
    return seen["state"] in "ZX" and not procs.live_threads(pid)


def members_of(request: "dict[str, Any]") -> "tuple[list[tuple[int, int]], list[tuple[int, int]]]":
    """(those of this boot, those of another). A member is [boot id, pid, start]."""
    here = boot_id()
    mine = []  # type: list[tuple[int, int]]
    other = []  # type: list[tuple[int, int]]
    for boot, pid, start in request.get("members") or ():
        (mine if boot == here else other).append((int(pid), int(start)))
    return mine, other


def table() -> "dict[int, dict[str, Any]]":
    found = {}
    for pid in procs.pids():
        seen = procs.stat("/proc/%d" % pid)
        if seen is not None:
            found[pid] = seen
    return found


def descendants(rows: "dict[int, dict[str, Any]]", roots: "list[tuple[int, int]]") -> "list[tuple[int, int]]":
    """What the verified roots started, found again now; children of a pid that is another process are not theirs."""
    kids = {}  # type: dict[int, list[int]]
    for pid, row in rows.items():
        kids.setdefault(row["ppid"], []).append(pid)
    found, todo = [], [pid for pid, start in roots if pid in rows and rows[pid]["start"] == start]
    seen = set(todo)
    while todo:
        for kid in sorted(kids.get(todo.pop(0), ())):
            if kid not in seen:
                seen.add(kid)
                todo.append(kid)
                found.append((kid, rows[kid]["start"]))
    return found


def protected(rows: "dict[int, dict[str, Any]]", request: "dict[str, Any]") -> "dict[int, str]":
    """pid -> why it is never signalled, whoever asks."""
    why = {pid: "the probe or above it" for pid in procs.ancestors(rows, os.getpid())}
    why.update({int(pid): "protected by configuration" for pid in request.get("protect_pids") or ()})
    why.update({1: "pid 1"})
    for pid, row in rows.items():
        if row["comm"] in _NEVER:
            why[pid] = row["comm"]
        elif row["flags"] & procs._KTHREAD:
            why[pid] = "a kernel thread"
    return why


def send(request: "dict[str, Any]") -> "dict[str, Any]":
    number = SIGNALS.get(str(request.get("signal")))
    if number is None:
        return {"ok": False, "changed": False, "detail": "no such signal: %r" % request.get("signal")}
    members, elsewhere = members_of(request)
    rows = table()
    targets = list(members)
    if request.get("descendants"):
        targets += [one for one in descendants(rows, members) if one not in targets]
    never = protected(rows, request)
    sent, gone, log = 0, len(elsewhere), []
    failed = refused = 0
    for pid, start in targets:
        if rows.get(pid, {}).get("start") == start and pid in never:
            refused += 1
            log.append("%d: not signalled: %s" % (pid, never[pid]))
            continue
        try:
            if is_gone(pid, start):
                raise Gone()
            log.append("%d@%d: %s by %s" % (pid, start, request["signal"], signal_one(pid, start, number)))
            sent += 1
        except Gone:
            gone += 1
        except OSError as error:
            failed += 1
            log.append("%d@%d: %s" % (pid, start, error))
    detail = "%s sent to %d, %d already gone" % (request["signal"], sent, gone)
    if refused or failed:
        detail += ", %d refused, %d failed" % (refused, failed)
    return {"ok": not refused and not failed, "changed": sent > 0, "detail": detail, "log": log[:200]}


def await_gone(request: "dict[str, Any]") -> "dict[str, Any]":
    """One total deadline; survivors are named with what they wait for."""
    limit = Limit(float(request.get("deadline", 30.0)))
    members, _ = members_of(request)
    left = [one for one in members if not is_gone(*one)]
    changed = bool(left)
    pause = 0.05
    while left and limit.left > 0:
        time.sleep(min(pause, max(0.01, limit.left)))
        pause = min(0.5, pause * 1.3)
        left = [one for one in left if not is_gone(*one)]
    if not left:
        return {"ok": True, "changed": changed, "detail": "all %d are gone" % len(members)}
    words = [survivor(pid, start) for pid, start in left]
    return {"ok": False, "changed": True, "detail": "%d of %d still run" % (len(left), len(members)), "log": words}


def survivor(pid: int, start: int) -> str:
    row = procs.stat("/proc/%d" % pid)
    if row is None:
        return "%d@%d: gone by now" % (pid, start)
    threads = procs.live_threads(pid)
    waits = sorted({wchan for _, _, wchan in threads if wchan.strip("0")})
    states = "".join(sorted({state for _, state, _ in threads}))
    word = "%d@%d %s: state %s, threads %s, waits in %s" % (
        pid, start, row["comm"], row["state"], states or "none", ", ".join(waits[:4]) or "?",
    )  # fmt: skip
    tid = next((tid for tid, state, _ in threads if state == "D"), threads[0][0] if threads else pid)
    stack = [line.split(" ", 1)[-1].split("+")[0] for line in stack_of(pid, tid).splitlines()]
    return word + (", stack " + " < ".join(stack[:8]) if stack else "")


def stack_of(pid: int, tid: int) -> str:
    return read_or("/proc/%d/task/%d/stack" % (pid, tid))


