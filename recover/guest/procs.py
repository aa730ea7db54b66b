"""Processes by the files of /proc that never block: stat, status, wchan, cgroup, and the threads of dead leaders."""

import os

from recover.guest.child import NAME, STARTED
from recover.guest.wire import emit, read_or, small

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_NAME = NAME.decode("ascii")
_KTHREAD = 0x00200000  # PF_KTHREAD
_KILL = 1 << 8  # SIGKILL in SigPnd and ShdPnd
_BATCH, _PART = 200, 1400


def pids() -> "list[int]":
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


def stat(path: str) -> "Optional[dict[str, Any]]":
    """The numbers of a stat file that we use; None if the task is gone. comm may hold blanks and brackets."""
    try:
        text = small(path + "/stat")
    except OSError:
        return None
    head, _, tail = text.rpartition(b")")
    f = tail.split(None, 20)
    if len(f) < 21:
        return None
    try:
        return {
            "comm": head.partition(b"(")[2].decode("utf-8", "surrogateescape"),
            "state": f[0].decode("ascii", "replace"),
            "ppid": int(f[1]),
            "pgid": int(f[2]),
            "sid": int(f[3]),
            "tty": int(f[4]),
            "flags": int(f[6]),
            "ticks": int(f[11]) + int(f[12]),
            "threads": int(f[17]),
            "start": int(f[19]),
        }
    except ValueError:
        return None  # not the kernel's words


def start_of(pid: int) -> "Optional[int]":
    """Start time of a living or dead process; with the boot id and the pid this is its identity."""
    seen = stat("/proc/%d" % pid)
    return seen["start"] if seen else None


def status(path: str) -> "dict[str, str]":
    found = {}
    for line in read_or(path + "/status").splitlines():
        name, _, value = line.partition(":")
        found[name] = value.strip()
    return found


def threads(pid: int) -> "list[tuple[int, str, str]]":
    """(tid, state, wchan) of each thread; wchan only of those that do not run."""
    found = []
    try:
        tids = sorted(os.listdir("/proc/%d/task" % pid), key=int)
    except OSError:
        return []
    for tid in tids[:4096]:
        path = "/proc/%d/task/%s" % (pid, tid)
        seen = stat(path)
        if seen is not None:
            wchan = read_or(path + "/wchan") if seen["state"] in "DZtT" else ""
            found.append((int(tid), seen["state"], wchan))
    return found


def live_threads(pid: int) -> "list[tuple[int, str, str]]":
    return [thread for thread in threads(pid) if thread[1] not in "ZX"]


def describe(pid: int) -> "Optional[dict[str, Any]]":
    """One row; None for a process that ended meanwhile and for kernel threads that sleep as they should."""
    path = "/proc/%d" % pid
    row = stat(path)
    if row is None or (row["flags"] & _KTHREAD and row["state"] not in "DR"):
        return None
    row["pid"] = pid
    row["kernel"] = bool(row.pop("flags") & _KTHREAD)
    memory = known = _small_or(path + "/status")
    if row["state"] != "S":  # where an ordinary sleeper sleeps says nothing
        row["wchan"] = _wchan(path)
    if row["state"] in "ZX":
        alive = live_threads(pid)
        row["live"] = len(alive)
        row["wchans"] = [wchan for _, _, wchan in alive if wchan.strip("0")]
        if alive:
            memory = _small_or("%s/task/%d/status" % (path, alive[0][0]))
            row["thread_states"] = "".join(sorted({state for _, state, _ in alive}))
    row["plain"] = _sizes(row, memory)
    row["uid"] = _number((_field(known, b"\nUid:") or [b"0"])[0])
    row["kill_pending"] = not (known is memory and _NOTHING_PENDING in known) and _kill_pending(memory, known)
    row["ns_pids"] = [pid] if b"\nNSpid:\t%d\n" % pid in known else [_number(w) for w in _field(known, b"\nNSpid:")]
    row["cgroup"] = _cgroup(path)
    return row


# A process that has loaded libcuda.so.1 (20 MB and more on disk, hundreds of GB reserved) has a larger address space.
_NO_CUDA_KIB = 8192
# In the order of the file: each is looked for behind the one before.
_SIZES = (("", b"\nVmSize:"), ("rss", b"\nVmRSS:"), ("anon", b"\nRssAnon:"), ("shmem", b"\nRssShmem:"), ("", b"\nVmSwap:"),
          ("", b"\nHugetlbPages:"))  # fmt: skip


def _sizes(row: "dict[str, Any]", text: bytes) -> int:
    """Memory in KiB, into its row; gives what its mappings can say.

    0: anything. 1: it has no page of shared memory or of huge ones, in RAM or swapped. 2: nothing: it is too small for
    CUDA besides.
    """
    at, found = 0, []
    for short, name in _SIZES:
        there = text.find(name, at)
        if there < 0:
            found.append(-1)
            continue
        at = there + len(name)
        kib = _number(text[at : text.find(b" kB", at)].strip())
        found.append(kib)
        if short:
            row[short] = kib
    size, _, _, shmem, swap, huge = found  # RssShmem: since Linux 4.5
    if size < 0 or shmem != 0 or swap > 0 or huge > 0:
        return 0
    return 2 if size < _NO_CUDA_KIB else 1


_NOTHING_PENDING = b"\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n"


def _kill_pending(memory: bytes, known: bytes) -> bool:
    pending = [_field(memory, b"\nSigPnd:"), _field(known, b"\nShdPnd:")]
    return any(_hex(words[0]) & _KILL for words in pending if words)


def _small_or(path: str) -> bytes:
    try:
        return small(path)
    except OSError:
        return b""


def _field(text: bytes, name: bytes) -> "list[bytes]":
    """The words of one line of a status file. `name` begins with the end of the line before, so no comm forges it."""
    at = text.find(name)
    if at < 0:
        return []
    at += len(name)
    return text[at : text.find(b"\n", at)].split()


def _number(text: bytes) -> int:
    return int(text) if len(text) < 20 and text.isdigit() else 0


def _hex(text: bytes) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _wchan(path: str) -> str:
    return _small_or(path + "/wchan").strip(b"0\n").decode("ascii", "replace")


_CGROUPS = {}  # type: dict[bytes, str]


def _cgroup(path: str) -> str:
    """The unified path, else systemd's own hierarchy, else the deepest of the others. Many processes share one file."""
    data = _small_or(path + "/cgroup")
    found = _CGROUPS.get(data)
    if found is None:
        found = _CGROUPS[data] = _deepest(data.decode("utf-8", "surrogateescape"))
    return found


def _deepest(text: str) -> str:
    best = ""
    for line in text.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            if parts[1] in ("", "name=systemd") and len(parts[2]) > 1:
                return parts[2]
            best = parts[2] if len(parts[2]) > len(best) else best
    return best


def ancestors(rows: "dict[int, dict[str, Any]]", pid: int) -> "set[int]":
    """The process and all above it, pid 1 included."""
    found = set()
    while pid and pid not in found:
        found.add(pid)
        row = rows.get(pid) or stat("/proc/%d" % pid)
        pid = row["ppid"] if row else 0
    return found


def ours(rows: "dict[int, dict[str, Any]]") -> "set[int]":
    """The probe, what is above it (its sshd), its children, and children that earlier looks had to abandon."""
    found = ancestors(rows, os.getpid()) | set(STARTED)
    return found | {pid for pid, row in rows.items() if _left_by_us(row)}


def _left_by_us(row: "dict[str, Any]") -> bool:
    return row["comm"] == _NAME and row["uid"] == os.geteuid()


# What a reader takes for granted is not told.
_USUAL = {"kernel": False, "kill_pending": False, "ours": False, "threads": 1, "tty": 0, "uid": 0, "shmem": 0, "ticks": 0}


def _told(row: "dict[str, Any]") -> "dict[str, Any]":
    told = {key: value for key, value in row.items() if _USUAL.get(key, _told) != value and key != "plain"}
    if len(row["ns_pids"]) <= 1:
        del told["ns_pids"]
    return told


def table(ready: "Optional[Callable[[dict[int, dict[str, Any]], bool], None]]" = None) -> "dict[int, dict[str, Any]]":
    """All processes, told in batches. `ready` gets the rows of each large part as soon as they are read and told, then
    those of the rest, with True."""
    rows, part = {}, {}  # type: dict[int, dict[str, Any]], dict[int, dict[str, Any]]
    mine = ours({})
    told = []
    for pid in pids():
        row = describe(pid)
        if row is None:
            continue
        if pid in mine or _left_by_us(row):
            row["ours"] = True
        rows[pid] = part[pid] = row
        told.append(_told(row))
        if len(told) == _BATCH:
            emit("procs", list=told)
            told = []
            if len(part) >= _PART and ready is not None:
                ready(part, False)
                part = {}
    emit("procs", list=told, last=True)
    if ready is not None:
        ready(part, True)
    return rows
