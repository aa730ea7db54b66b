"""A signal goes only to the process that was meant: boot id, pid and start time are checked at the moment of sending.

Where the kernel has pidfds (5.3) the check is made on an open pidfd, so that a pid that is used again can't be hit.
"""

import errno
import os
import signal
import time

from recover.guest import bomb, procs
from recover.guest.wire import Limit, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable

SIGNALS = {"TERM": signal.SIGTERM, "QUIT": signal.SIGQUIT, "KILL": signal.SIGKILL, "INT": signal.SIGINT,
           "CONT": signal.SIGCONT}  # fmt: skip
_PIDFD_OPEN, _PIDFD_SEND = 434, 424  # the same numbers on every architecture that NVIDIA's driver runs on
_ROUNDS = 4  # of a SIGKILL: what forks while it is ended is met again, and an endless one is said
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


def descendants(
    rows: "dict[int, dict[str, Any]]", roots: "list[tuple[int, int]]", spare: "Iterable[int]" = (),
    sessions: "Iterable[int]" = (),
) -> "list[tuple[int, int]]":  # fmt: skip
    """What the verified roots started, found again now; children of a pid that is another process are not theirs.

    A session has no other members than what its leader started: what lost its parent is still known by it. `sessions`
    are leaders that were verified a moment ago; the kernel gives no such number away while a session has it. Whoever
    is spared is neither among them nor gone through.
    """
    kids = {}  # type: dict[int, list[int]]
    for pid, row in rows.items():
        kids.setdefault(row["ppid"], []).append(pid)
    verified = {pid for pid, start in roots if pid in rows and rows[pid]["start"] == start}
    left = set(spare)
    leaders = verified | set(sessions)
    inside = [pid for pid, row in rows.items() if row["sid"] in leaders and not _below(pid, left, rows)]
    found, todo = [], sorted(verified)
    seen = verified | left
    for pid in sorted(inside):
        if pid not in seen:
            seen.add(pid)
            todo.append(pid)
            found.append((pid, rows[pid]["start"]))
    while todo:
        for kid in sorted(kids.get(todo.pop(0), ())):
            if kid not in seen:
                seen.add(kid)
                todo.append(kid)
                found.append((kid, rows[kid]["start"]))
    return found


def _below(pid: int, spare: "set[int]", rows: "dict[int, dict[str, Any]]") -> bool:
    return bool(spare) and bool(procs.ancestors(rows, pid) & set(spare))


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
    """One round; a SIGKILL looks again for what its targets started meanwhile, a few times, and at last by groups."""
    number = SIGNALS.get(str(request.get("signal")))
    if number is None:
        return {"ok": False, "changed": False, "detail": "no such signal: %r" % request.get("signal")}
    members, elsewhere = members_of(request)
    told = _Told(len(elsewhere))
    known = list(members)
    rounds = _ROUNDS if number == signal.SIGKILL and request.get("descendants") else 1
    fresh = known
    sessions = set()  # type: set[int]
    led = {}  # type: dict[int, int]
    for turn in range(rounds):
        rows = table()
        spare = _spared(rows, request)
        led.update(bomb.leaders(rows, known))
        sessions |= {pid for pid, start in known if pid in rows and rows[pid]["start"] == start} | set(led)
        if request.get("descendants"):
            below = descendants(rows, known, spare, sessions)
            fresh = fresh + [one for one in below if one not in known and one not in fresh]
        if not fresh:
            break
        _round(fresh, number, rows, spare, request, told)
        known += [one for one in fresh if one not in known]
        fresh = []
        if turn + 1 < rounds:
            time.sleep(0.05)
    else:
        told.endless = rounds > 1 and _left(known, request, sessions, 0.0)
    if told.endless or (rounds > 1 and bomb.goes_on(rows, led)):
        rows = table()
        whole = bomb.end(rows, led, protected(rows, request), _spared(rows, request))
        told.log += whole
        told.sent += len(whole)
        told.endless = _left(known, request, sessions, 1.0) or bomb.youngest(led) is not None
        told.log += ["new ones come as fast as they are ended"] if told.endless else []
    return told.answer(str(request["signal"]))


def _left(known: "list[tuple[int, int]]", request: "dict[str, Any]", sessions: "set[int]", within: float) -> bool:
    """Whether something new that they started still runs, after so many seconds at most."""
    limit = Limit(within)
    while True:
        rows = table()
        below = [pid for pid, _ in descendants(rows, known, _spared(rows, request), sessions)]
        runs = any(pid not in rows or rows[pid]["state"] not in "ZX" or procs.live_threads(pid) for pid in below)
        if not runs or limit.left <= 0:
            return runs
        time.sleep(0.05)


class _Told:
    def __init__(self, gone: int) -> None:
        self.sent, self.gone, self.refused, self.failed = 0, gone, 0, 0
        self.endless = False
        self.log = []  # type: list[str]

    def answer(self, name: str) -> "dict[str, Any]":
        detail = "%s sent to %d, %d already gone" % (name, self.sent, self.gone)
        if self.refused or self.failed:
            detail += ", %d refused, %d failed" % (self.refused, self.failed)
        if self.endless:
            detail += "; new ones come as fast as they are ended"
        ok = not self.refused and not self.failed and not self.endless
        return {"ok": ok, "changed": self.sent > 0, "detail": detail, "log": self.log[:200]}


def _spared(rows: "dict[int, dict[str, Any]]", request: "dict[str, Any]") -> "set[int]":
    theirs, _ = members_of({"members": request.get("spare")})
    return {pid for pid, start in theirs if pid in rows and rows[pid]["start"] == start}


def _round(
    targets: "list[tuple[int, int]]", number: int, rows: "dict[int, dict[str, Any]]", spare: "set[int]",
    request: "dict[str, Any]", told: _Told,
) -> None:  # fmt: skip
    never = protected(rows, request)
    never.update({pid: "it belongs to others" for pid in spare})
    for pid, start in targets:
        if rows.get(pid, {}).get("start") == start and pid in never:
            told.refused += 1
            told.log.append("%d: not signalled: %s" % (pid, never[pid]))
            continue
        try:
            if is_gone(pid, start):
                raise Gone()
            how = signal_one(pid, start, number)
            told.log.append("%d@%d: %s by %s" % (pid, start, request["signal"], how))
            told.sent += 1
        except Gone:
            told.gone += 1
        except OSError as error:
            told.failed += 1
            told.log.append("%d@%d: %s" % (pid, start, error))


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


