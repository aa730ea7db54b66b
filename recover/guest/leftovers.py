"""A leftover goes only if it is the very object that was seen, its owner is dead and nobody has it, now.

Who has it is told by device and inode of the mappings, and by the name of open files, of every process of the machine;
where one of them can't be looked at, nothing is removed. Sockets: see ipc. FUSE mounts are looked at and never touched.
"""

import os
import re

from recover.guest import ipc, procs
from recover.guest.child import Child, collect, run
from recover.guest.system import segment
from recover.guest.wire import Limit, at, emit, listdir, read, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Say = Callable[[Any], None]
    Key = tuple[int, int]

_QUIET = 4.0
_SLACK_S = 2.0  # mtime and start time are of different clocks


def folders() -> "list[str]":
    """The only places where files are removed: shared memory, and mounted hugetlbfs."""
    found = [at("/dev/shm")]
    for text in read_or("/proc/mounts").splitlines():
        fields = text.split(" ")
        if len(fields) > 2 and fields[2] == "hugetlbfs":
            found.append(fields[1].replace("\\040", " "))
    return found


def remove(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 60.0)))
    log = []  # type: list[str]
    objects = list(request.get("objects") or ())
    files, sysv, gone = _still_there([item for item in objects if item.get("kind") != ipc.KIND], log)
    wanted = {key: name for key, name, _, _ in files}
    users, blind = in_use(wanted, limit.within(limit.left * 0.7)) if wanted else ({}, [])
    if blind:
        who = ", ".join(blind[:3])
        return {
            "ok": False,
            "changed": False,
            "detail": "who has them can't be told: %s did not let itself be read" % who,
        }
    freed = count = 0
    for key, name, folder, size in files:
        if key in users:
            log.append("%s: left, %s has it" % (name, users[key]))
        elif _unlink(folder, name, key, log):
            count, freed = count + 1, freed + size
    for item in sysv:
        if _remove_segment(item, limit, log):
            count, freed = count + 1, freed + int(item.get("mib", 0)) * 1048576
    mine = [item for item in objects if item.get("kind") == ipc.KIND]
    alive = living() if mine else {}
    sockets, away = ipc.remove(mine, lambda pid, mtime: _owned(pid, mtime, alive), log)
    detail = _words(count, freed, sockets, gone + away, log)
    return {"ok": not log, "changed": count > 0 or bool(sockets), "detail": detail, "log": log[:200]}


def _words(count: int, freed: int, sockets: "list[str]", gone: int, log: "list[str]") -> str:
    text = "%d removed, %.0f MiB freed" % (count, freed / 1048576.0)
    if sockets:
        text += ", %d socket%s too: %s" % (len(sockets), "s"[: len(sockets) > 1], ", ".join(sockets[:5]))
    text += ", %d were gone" % gone if gone else ""
    return text + (", %d left: %s" % (len(log), "; ".join(log[:3])) if log else "")


def _still_there(objects: "list[dict[str, Any]]", log: "list[str]") -> "tuple[list[Any], list[Any], int]":
    """(files as (device and inode, name, folder, bytes), segments, how many are gone); what is another by now is left."""
    files, sysv, gone = [], [], 0
    allowed = {os.path.realpath(folder): folder for folder in folders()}
    alive = living()
    for item in objects:
        name = str(item.get("name"))
        if item.get("kind") == "sysv":
            sysv.append(item)
            continue
        folder = os.path.realpath(str(item.get("folder") or at("/dev/shm")))
        if folder not in allowed or "/" in name or name in ("", ".", ".."):
            log.append("%s: left, not a place of shared memory" % name)
            continue
        try:
            info = os.lstat(os.path.join(folder, name))
        except FileNotFoundError:
            gone += 1
            continue
        if info.st_ino != item.get("inode") or info.st_mode & 0o170000 != 0o100000:
            log.append("%s: left, it is another object now" % name)
        elif info.st_mtime > float(item.get("mtime") or info.st_mtime) + 0.001:
            log.append("%s: left, somebody wrote to it since" % name)
        elif _owned(item.get("pid"), info.st_mtime, alive):
            log.append("%s: left, its owner %s lives" % (name, item["pid"]))
        else:
            freed = info.st_blocks * 512 if info.st_nlink == 1 else 0  # under another name it stays
            files.append(((info.st_dev, info.st_ino), name, folder, freed))
    return files, sysv, gone


def living() -> "dict[int, float]":
    """pid -> when it began by the wall clock, for every pid of every pid name space that is seen from here."""
    match = re.search(r"^btime (\d{1,19})\b", read_or("/proc/stat"), re.M)
    btime, ticks = float(match.group(1)) if match else 0.0, float(os.sysconf("SC_CLK_TCK"))
    found = {}  # type: dict[int, float]
    for pid in procs.pids():
        seen = procs.stat("/proc/%d" % pid)
        if seen is None or (seen["state"] in "ZX" and not procs.live_threads(pid)):
            continue
        began = btime + seen["start"] / ticks
        names = procs.status("/proc/%d" % pid).get("NSpid", str(pid)).split()
        for number in [whole(name, None) for name in names]:
            if number is not None:
                found[number] = min(began, found.get(number, began))
    return found


def _owned(pid: "Any", mtime: float, alive: "dict[int, float]") -> bool:
    """A process that began after the object was last written is another one behind the same pid."""
    return isinstance(pid, int) and pid in alive and alive[pid] <= mtime + _SLACK_S


def in_use(wanted: "dict[Key, str]", limit: Limit) -> "tuple[dict[Key, str], list[str]]":
    """(object -> who has it, processes that could not be looked at)."""
    users = {}  # type: dict[Key, str]
    blind = []  # type: list[str]
    mine = os.getpid()
    rest = [pid for pid in procs.pids() if pid != mine]
    stuck = [pid for pid in rest if _in_d(pid)]
    for group in [[pid] for pid in stuck] + [[pid for pid in rest if pid not in stuck]]:
        if not group:
            continue
        child = Child("who has %d memory objects" % len(wanted), _job(group, wanted))
        late = collect([child], limit, _QUIET)
        told = [value for value in child.values if "pid" in value]
        for value in told:
            if value.get("why"):
                blind.append("pid %d (%s)" % (value["pid"], value["why"]))
            for key in value.get("has", ()):
                users[(key[0], key[1])] = "pid %d" % value["pid"]
        if late or len(told) < len(group):
            blind.append("pid %d (timeout)" % group[min(len(told), len(group) - 1)])
    return users, blind


def _in_d(pid: int) -> bool:
    return any(state == "D" for _, state, _ in procs.threads(pid))


def _job(pids: "list[int]", wanted: "dict[Key, str]") -> "Callable[[Say], None]":
    names = {}  # type: dict[str, list[Key]]
    for key, name in wanted.items():
        names.setdefault(name, []).append(key)

    def job(say: "Say") -> None:
        for pid in pids:
            try:
                say({"pid": pid, "has": sorted(_has(pid, wanted, names))})
            except (ProcessLookupError, FileNotFoundError):
                say({"pid": pid})
            except OSError as error:
                # A kernel thread has no files, and what is on its way out has none any more.
                gone = not procs.status("/proc/%d" % pid).get("VmSize") and not isinstance(error, PermissionError)
                say({"pid": pid} if gone else {"pid": pid, "why": str(error)})

    return job


_LINE = re.compile(r"^\S+ \S+ \S+ ([0-9a-f]{1,8}):([0-9a-f]{1,8}) (\d{1,19})\b", re.M)


def _has(pid: int, wanted: "dict[Key, str]", names: "dict[str, list[Key]]") -> "set[Key]":
    path = "/proc/%d" % pid
    seen = procs.stat(path)
    if seen is None or seen["flags"] & 0x00200000:  # PF_KTHREAD
        return set()
    if seen["state"] in "ZX":
        alive = procs.live_threads(pid)
        if not alive:
            return set()
        path = "%s/task/%d" % (path, alive[0][0])
    found = set()
    for name in os.listdir(path + "/fd"):
        try:
            target = os.readlink("%s/fd/%s" % (path, name))
        except OSError:
            continue
        base = target.rsplit("/", 1)[-1].replace(" (deleted)", "")
        found.update(names.get(base, ()))  # by its name: another mount name space shows it under another path
    for major, minor, inode in _LINE.findall(read(path + "/maps", 64 << 20)):
        key = (os.makedev(int(major, 16), int(minor, 16)), int(inode))
        if key in wanted:
            found.add(key)
    return found


def _unlink(folder: str, name: str, key: "Key", log: "list[str]") -> bool:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if (info.st_dev, info.st_ino) != key:
            log.append("%s: left, it is another object now" % name)
            return False
        os.unlink(name, dir_fd=fd)
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        log.append("%s: %s" % (name, error))
        return False
    finally:
        os.close(fd)


def segments() -> "dict[str, dict[str, int]]":
    found = {}
    for text in read_or("/proc/sysvipc/shm").splitlines()[1:]:
        name, size, cpid, lpid, count = segment(text)
        if name is not None:
            found[name] = {"size": size, "cpid": cpid, "lpid": lpid, "n": count}
    return found


def _remove_segment(item: "dict[str, Any]", limit: Limit, log: "list[str]") -> bool:
    name = str(item.get("name"))
    now = segments().get(name)
    if now is None:
        return False
    alive = living()
    if now["n"] or now["cpid"] != item.get("pid") or now["cpid"] in alive or now["lpid"] in alive:
        log.append("segment %s: left, somebody may use it" % name)
        return False
    ended = run(["ipcrm", "-m", name], limit.within(10.0))
    if ended.code != 0:
        log.append("segment %s: %s" % (name, (ended.err or ended.out).strip()[:200]))
    return ended.code == 0


def stuck_fuse() -> None:
    """FUSE mounts with requests that wait: read from the control file system, which never asks the mount's server."""
    base = at("/sys/fs/fuse/connections")
    waiting = {name: _number(read_or("%s/%s/waiting" % (base, name))) for name in listdir(base)}
    paths = {}
    for text in read_or("/proc/self/mountinfo").splitlines():
        fields = text.split(" ")
        kind = fields[fields.index("-") + 1 :] if "-" in fields else []
        if len(fields) > 8 and kind and kind[0].startswith("fuse"):
            paths[fields[2].partition(":")[2]] = fields[4].replace("\\040", " ")
    found = [{"path": paths.get(n, "?"), "connection": n, "waiting": w} for n, w in sorted(waiting.items()) if w]
    if found:
        emit("fuse", list=found)


def _number(text: str) -> int:
    return int(whole(text.strip()))
