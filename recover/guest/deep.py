"""What can block on a stuck process (its mm lock, its files) is read in children that may be abandoned.

Processes in D state get a child each, all at once; the others share one, and when that one stalls, the process on which
it stalled is named and the rest goes on in a new child.
"""

import os
import re
import time

from recover.guest import mapped
from recover.guest.child import Child, collect
from recover.guest.handles import Nodes, connect, drm_of_gpus, network, targets
from recover.guest.procs import live_threads, stat, threads
from recover.guest.redact import redact
from recover.guest.wire import Limit, Pattern, emit, gap, small

try:
    import mmap
except ImportError:  # a minimal Python: each process is told at once
    mmap = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Say = Callable[[Any], None]

_QUIET = 4.0  # a child that tells of no further process for so long is stuck on one
_AT_ONCE = 64
_READERS, _A_SHARE = 4, 400
_BATCH, _A_BATCH_S = (100 if mmap else 1), 0.25
_ARGS_CAP = 16384
_WEIGHTY_KIB = 65536  # a smaller one loads no weights


def inspect(pid: int, nodes: Nodes, known: "dict[str, Any]") -> "Optional[dict[str, Any]]":
    """One process in depth; of a dead leader, through its first live thread (its own fd folder is empty).

    `known`: its row in the table. What is empty is not told.
    """
    base = path = "/proc/%d" % pid
    row = {"pid": pid, "start": known["start"]}  # type: dict[str, Any]
    if known["state"] in "ZX" or not _files(row, path, nodes):  # or it has become a zombie; or it has closed all
        seen = stat(base)
        if seen is None:
            return None
        row["start"] = seen["start"]
        if seen["state"] in "ZX":
            alive = live_threads(pid)
            if not alive:
                return row
            path = "%s/task/%d" % (base, alive[0][0])
            _files(row, path, nodes)
    row["argv"] = redact(_argv(path))
    plain = known.get("plain", 0)
    if "holds" in row or "shm" in row or plain == 0 or (plain == 1 and mapped.perhaps(path)):
        _maps(row, path)
    if row.get("holds") or known.get("rss", 0) >= _WEIGHTY_KIB:
        row["io"] = _io(path)
    if row.get("holds"):
        _threads(row, pid)
        if _other_clock(path):
            row["restored"] = True
    if len(row) > 3:
        seen = stat(base)
        if seen is None or seen["start"] != row["start"]:
            return None  # another process by now: nothing of it is believed
    return row


def _other_clock(path: str) -> bool:
    """CRIU puts what it restores into a time name space of its own, so that its clocks go on where they were.

    criu/cr-restore.c, `prepare_timens`, since CRIU 3.14 on Linux 5.6 and later; hardly anything else makes one.
    """
    try:
        return os.readlink(path + "/ns/time") != os.readlink("/proc/self/ns/time")
    except OSError:
        return False


def _threads(row: "dict[str, Any]", pid: int) -> None:
    states = threads(pid)
    row["live"] = sum(1 for thread in states if thread[1] not in "ZX")
    row["wchans"] = [wchan for _, state, wchan in states if state == "D" and wchan][:32]
    row["in_d"] = sum(1 for thread in states if thread[1] == "D")


def _argv(path: str) -> "list[str]":
    text = small(path + "/cmdline")[:_ARGS_CAP].rstrip(b"\0").decode("utf-8", "surrogateescape")
    return text.split("\0") if text else []


def _files(row: "dict[str, Any]", path: str, nodes: Nodes) -> int:
    """What the open files say; gives how many there are. Its sockets are looked up later, for all at once."""
    holds, shm, inodes = set(), set(), []
    files = targets(path + "/fd")
    for name, target in files:
        if target.startswith("socket:["):
            inodes.append(int(target[8:-1]))
        elif target.startswith("/dev/") and target != "/dev/null":
            node = nodes.name(target, "%s/fd/%s" % (path, name))
            if node is not None:
                holds.add(node)
            elif target.startswith("/dev/shm/"):
                shm.add(target)
    if inodes:
        row["sockets"] = inodes
        row["net"] = network(path)
    if holds:
        row["holds"] = holds
    if shm:
        row["shm"] = shm
    return len(files)


_MAPPED = Pattern(
    r"^\S+ \S+ \S+ \S+ (\d{1,19}) +(/dev/nvidia\S*|/dev/shm/.*|/dev/hugepages/.*|/anon_hugepage.*|/SYSV\S*)", re.M
)
_SIGNS = re.compile(rb" /(?:dev/[nsh]|anon_h|SYSV)")  # one search: a fifth of five, of what is read most


def _maps(row: "dict[str, Any]", path: str) -> None:
    """A mapping outlives the descriptor that made it."""
    holds, shm, inodes = row.pop("holds", set()), row.pop("shm", set()), set()
    data = _whole(path + "/maps", 64 << 20)
    text = data.decode("utf-8", "surrogateescape") if _SIGNS.search(data) else ""
    for inode, target in _MAPPED.findall(text):
        if target.startswith("/dev/nvidia"):
            holds.add(target[len("/dev/") :].replace(" (deleted)", ""))
        else:
            shm.add(target)
            inodes.add(int(inode))
    for name, found, most in (("holds", holds, 1000), ("shm", shm, 500), ("inodes", inodes, 500)):
        if found:
            row[name] = sorted(found)[:most]


def _whole(path: str, cap: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = [os.read(fd, 65536)]
        while parts[-1] and cap > 0:
            parts.append(os.read(fd, 65536))
            cap -= len(parts[-1])
    finally:
        os.close(fd)
    return b"".join(parts)


_IO = re.compile(rb"^(?:rchar|read_bytes): (\d{1,19})\b", re.M)


def _io(path: str) -> "Optional[int]":
    """Bytes read, from a device or through read(): movement tells loading from waiting."""
    try:
        numbers = _IO.findall(small(path + "/io"))
    except OSError:
        return None
    return max(map(int, numbers)) if numbers else None


class Share:
    """Processes that one child reads. It tells them in batches; on which one it is, stands in memory that we share."""

    def __init__(self, pids: "list[int]", rows: "dict[int, dict[str, Any]]", nodes: Nodes) -> None:
        self.pids, self._rows, self._nodes = pids, rows, nodes
        self._now = mmap.mmap(-1, 4) if mmap else bytearray(4)
        self.child = Child("read /proc/PID of %d processes" % len(pids), self._job)
        self.child.widen()

    def take(self, found: "dict[int, dict[str, Any]]") -> "list[int]":
        """What it told, into `found`; gives what it did not tell, the one that stopped it first."""
        for batch in self.child.values:
            if isinstance(batch, list):
                found.update((row["pid"], row) for row in batch)
        left = [pid for pid in self.pids if pid not in found]
        last = int.from_bytes(self._now[:4], "little")
        return [pid for pid in left if pid == last] + [pid for pid in left if pid != last]

    def _job(self, say: "Say") -> None:
        batch, told = [], time.monotonic()
        for pid in self.pids:
            self._now[:4] = pid.to_bytes(4, "little")
            batch.append(self._read(pid))
            now = time.monotonic()
            if len(batch) == _BATCH or now - told > _A_BATCH_S:
                say(batch)
                batch, told = [], now
        say(batch)

    def _read(self, pid: int) -> "dict[str, Any]":
        try:
            row = inspect(pid, self._nodes, self._rows[pid])
            return row or {"pid": pid, "why": "absent", "detail": "ended meanwhile"}
        except PermissionError as error:
            return {"pid": pid, "why": "denied", "detail": str(error)}
        except (ProcessLookupError, FileNotFoundError):
            return {"pid": pid, "why": "absent", "detail": "ended meanwhile"}
        except Exception as error:
            return {"pid": pid, "why": "garbled", "detail": "%s: %s" % (type(error).__name__, error)}


class Early:
    """Begins to read while other things are done, where a processor is free: parts of a long table, then what is left."""

    def __init__(self) -> None:
        self.shares = []  # type: list[Share]
        self._nodes = None  # type: Optional[Nodes]
        self._left = {}  # type: dict[int, dict[str, Any]]

    def begin(self, rows: "dict[int, dict[str, Any]]", last: bool = False) -> None:
        processors = len(os.sched_getaffinity(0))
        self._left.update(rows)
        if processors < 2 or (len(self.shares) >= min(_READERS, processors) and not last):
            return
        self._nodes = self._nodes or Nodes([{"drm": drm_of_gpus()}])
        rows, self._left = self._left, {}
        pids = [pid for pid, row in rows.items() if not row["kernel"] and not row.get("ours") and not _stuck(row)]
        for some in _shares(pids) if last else [pids]:
            self.shares.append(Share(some, rows, self._nodes))


def _stuck(row: "dict[str, Any]") -> bool:
    return row["state"] == "D" or "D" in row.get("thread_states", "")


def scan(
    rows: "dict[int, dict[str, Any]]", nodes: Nodes, limit: Limit, begun: "Optional[list[Share]]" = None
) -> "dict[int, dict[str, Any]]":
    """All processes in depth. Tells each; what did not come back is a gap that names the process."""
    shares = list(begun or ())
    taken = {pid for share in shares for pid in share.pids}
    user = [pid for pid, row in sorted(rows.items()) if not row["kernel"] and not row.get("ours") and pid not in taken]
    found = {}  # type: dict[int, dict[str, Any]]
    _alone([pid for pid in user if _stuck(rows[pid])], rows, nodes, limit.within(limit.left / 2.0), found)
    rest = [pid for pid in user if pid not in found]
    while (rest or shares) and limit.left > 0:
        shares += [Share(pids, rows, nodes) for pids in _shares(rest)]
        late = collect([share.child for share in shares], limit, _QUIET)
        rest = []
        for share in shares:
            left = share.take(found)
            if left:
                why = "timeout" if share.child in late else "garbled"
                found[left[0]] = {"pid": left[0], "why": why, "detail": "its files in /proc did not come back"}
                rest += left[1:]
        shares = []
    for pid in rest:
        found[pid] = {"pid": pid, "why": "timeout", "detail": "no time was left for it"}
    found = {pid: row for pid, row in found.items() if not rows.get(pid, {}).get("ours")}
    connect(found)
    _tell(found)
    return found


def _shares(pids: "list[int]") -> "list[list[int]]":
    """One child, or a few where there are many processes and processors."""
    if not pids:
        return []
    count = max(1, min(len(os.sched_getaffinity(0)), _READERS, len(pids) // _A_SHARE))
    return [pids[at::count] for at in range(count)]


def _alone(
    pids: "list[int]", rows: "dict[int, dict[str, Any]]", nodes: Nodes, limit: Limit, found: "dict[int, dict[str, Any]]"
) -> None:
    shares = [Share([pid], rows, nodes) for pid in pids[:_AT_ONCE]]
    collect([share.child for share in shares], limit, _QUIET)
    for share in shares:
        share.take(found)
    for pid in pids:
        found.setdefault(pid, {"pid": pid, "why": "timeout", "detail": "its files in /proc did not come back"})


def _tell(found: "dict[int, dict[str, Any]]") -> None:
    told = sorted(found.items())
    for at in range(0, len(told), 200):
        emit("deep", list=[row for _, row in told[at : at + 200]])
    failed = [pid for pid, row in told if row.get("why") in ("timeout", "denied", "garbled")]
    if failed:
        whys = sorted({found[pid]["why"] for pid in failed})
        gap("process-files", "timeout" if "timeout" in whys else whys[0], "pids %s" % failed[:50])
    emit("deep-end", failed=failed)


def holders(found: "dict[int, dict[str, Any]]") -> "dict[int, list[str]]":
    return {pid: row["holds"] for pid, row in found.items() if row.get("holds")}
