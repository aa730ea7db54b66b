"""A socket file goes only where the kernel itself says that nobody is bound to that very inode, and nobody names it.

Servers talk through socket files (ZeroMQ's ipc://), and what is killed leaves them; one to which no socket is bound can
never be bound again. Connecting a datagram socket tells: the kernel looks the inode up for all network name spaces, and
refuses a socket of another type (EPROTOTYPE) before its owner hears of it; ECONNREFUSED is "nobody" (net/unix/af_unix.c,
`unix_find_bsd`).
"""

import errno
import os
import re

from recover.guest import procs
from recover.guest.wire import at, emit, listdir, read, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

KIND = "ipc-socket"
# tempfile.gettempdir() of Python, and what LMCache and vllm-omni take where nothing is configured.
FOLDERS = ("/tmp", "/var/tmp", "/tmp/vllm_rpc")
# Only the shape; which of them may go, and when, is told in steps/leftovers.
SHAPE = re.compile(r"^(?:tmp[a-z0-9_]{8}|(?:rpc_test_)?[0-9a-f-]{36}|sglang_[\w.-]+\.sock|(?:engine_[\w.-]+_)?lmcache_rpc_\w+)$")
_TEMP = re.compile(r"(?:^|[\s\"])(?:TMPDIR|TEMP|TMP|VLLM_RPC_BASE_PATH)=(/[^\s\"\\]+)")
# A socket file of another machine's process looks dead here: only file systems of this kernel's own.
_LOCAL = ("tmpfs", "ramfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "f2fs", "bcachefs")
_ENTRIES, _MOST = 20000, 500


def temp_folders(environment: str) -> "list[str]":
    """The folders for temporary files in a unit's environment; nothing else of it is looked at."""
    return sorted(set(_TEMP.findall(environment)))[:8]


def look(more: "Iterable[str]" = ()) -> None:
    """Socket files of known shapes, each with whether anybody is bound to it (None: not known)."""
    found = []  # type: list[dict[str, Any]]
    for folder in sorted({os.path.realpath(at(name)) for name in FOLDERS} | {os.path.realpath(name) for name in more}):
        if not _local(folder):
            continue
        for name in _names(folder):
            info = _lstat(os.path.join(folder, name))
            if info is not None and len(found) < _MOST:
                item = {"kind": KIND, "name": name, "folder": folder, "inode": info.st_ino, "mtime": info.st_mtime}
                item.update(uid=info.st_uid, kib=0, bound=_bound(folder, name, (info.st_dev, info.st_ino)))
                found.append(item)
    if found:
        emit("sockets", list=found)


def _names(folder: str) -> "list[str]":
    return sorted(name for name in listdir(folder)[:_ENTRIES] if SHAPE.match(name))


def _lstat(path: str) -> "Optional[os.stat_result]":
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info if info.st_mode & 0o170000 == 0o140000 else None


def _local(folder: str) -> bool:
    best = kind = ""
    for line in read_or("/proc/mounts").splitlines():
        words = [word.replace("\\040", " ") for word in line.split(" ")[1:3]]
        path, system = words if len(words) == 2 else ("", "")
        if (folder + "/").startswith(path.rstrip("/") + "/") and len(path) >= len(best):
            best, kind = path, system
    return kind in _LOCAL


def _bound(folder: str, name: str, key: "tuple[int, int]") -> "Optional[bool]":
    """Whether a socket of any name space is bound to this inode; None where the kernel does not say."""
    import _socket  # the C part alone: most looks find no such file

    try:
        fd = os.open(os.path.join(folder, name), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    asking = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) != key or info.st_mode & 0o170000 != 0o140000:
            return None
        asking.connect("/proc/self/fd/%d" % fd)  # this very inode, whatever has its name by now
    except OSError as error:
        return {errno.ECONNREFUSED: False, errno.EPROTOTYPE: True}.get(error.errno or 0)
    finally:
        asking.close()
        os.close(fd)
    return True


def named() -> "tuple[set[str], list[str]]":
    """(last parts of all names of bound and connected sockets in every network name space, who could not be read)."""
    spaces, names, blind = set(), set(), []  # type: set[str], set[str], list[str]
    for pid in procs.pids():
        try:
            space = os.readlink("/proc/%d/ns/net" % pid)
            if space in spaces:
                continue
            text = read("/proc/%d/net/unix" % pid, 64 << 20)
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended, or a zombie, which has no network any more
        except OSError as error:
            if not procs.status("/proc/%d" % pid).get("VmSize"):
                continue
            blind.append("pid %d (%s)" % (pid, error))
            continue
        spaces.add(space)
        for line in text.splitlines()[1:]:
            fields = line.split(None, 7)
            if len(fields) == 8:
                names.add(fields[7].rsplit("/", 1)[-1])
    return names, blind


def remove(items: "list[dict[str, Any]]", owned: "Any", log: "list[str]") -> "tuple[list[str], int]":
    """(names of those removed, how many were gone). `owned(pid, mtime)`: whether the owner that a name tells lives."""
    removed, gone = [], 0  # type: list[str], int
    names, blind = named() if items else (set(), [])  # type: tuple[set[str], list[str]]
    for item in items:
        name, folder = str(item.get("name")), str(item.get("folder"))
        if blind:
            log.append("%s: left, whether anybody uses it can't be told: %s" % (name, ", ".join(blind[:3])))
            continue
        why = _remove(folder, name, item, name in names, owned)
        if why is None:
            gone += 1
        elif why:
            log.append("%s: %s" % (name, why))
        else:
            removed.append(name)
    return removed, gone


def _remove(folder: str, name: str, item: "dict[str, Any]", in_use: bool, owned: "Any") -> "Optional[str]":
    """Empty: removed. None: it was gone. Else why it stays. The folder is opened once, so that it can't be exchanged."""
    if not SHAPE.match(name) or os.path.realpath(folder) != folder or not _local(folder):
        return "left, not a place or a name of a server's socket"
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return None if error.errno == errno.ENOENT else "left, %s" % error
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if info.st_ino != item.get("inode") or info.st_mode & 0o170000 != 0o140000:
            return "left, it is another object now"
        if abs(info.st_mtime - float(item.get("mtime") or 0.0)) > 0.001:
            return "left, it was made anew since"
        if owned(item.get("pid"), info.st_mtime):
            return "left, its owner %s lives" % item["pid"]
        bound = _bound("/proc/self/fd/%d" % fd, name, (info.st_dev, info.st_ino))
        if bound is not False or in_use:
            return "left, somebody listens on it" if bound or in_use else "left, the kernel does not say whether it is used"
        now = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if (now.st_dev, now.st_ino, now.st_mtime) != (info.st_dev, info.st_ino, info.st_mtime):
            return "left, it is another object now"
        os.unlink(name, dir_fd=fd)
        return ""
    except FileNotFoundError:
        return None
    except OSError as error:
        return "left, %s" % error
    finally:
        os.close(fd)
