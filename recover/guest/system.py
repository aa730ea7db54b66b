"""The harmless part of a look: nothing here takes a driver lock or can block on a stuck process."""

import os
import re

from recover.guest.wire import Pattern, at, emit, gap, listdir, read, read_or, uptime, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# A coarse filter: the reader decides what a line means; here only noise is dropped. Words, because a search for one of
# many costs a regular expression five times as much, and a kernel log has thousands of lines.
_INTEREST = (
    "nvrm", "xid", "nvidia", "nvswitch", "oom", "out of memory", "killed process", "hung", "blocked for more",
    "soft lockup", "hard lockup", "rcu:", "rcu_", "rcu ", "vfio", "pcie", "aer", "not ready", "d3cold", "mce:",
    "hardware error", "nfs:", "lustre", "ceph", "fuse", "i/o error", "uvm", "balloon", "segfault", "iommu", "dmar",
    " state:d", " state:r", "pci i/o region",
)  # fmt: skip
_POD = Pattern(r"^([a-z0-9-]+)_([a-z0-9.-]+)_([0-9a-f-]{32,36})$")
_KERNEL_CAP = 3000  # newest lines kept


def hello() -> None:
    """Who answers, before anything else is asked."""
    emit(
        "hello",
        hostname=os.uname().nodename,
        boot_id=read_or("/proc/sys/kernel/random/boot_id").strip(),
        uptime=uptime(),
        dmi_uuid=_dmi(),
        macs=_macs(),
        kernel=os.uname().release,
        machine_id=read_or(at("/etc/machine-id")).strip(),
        init_start=_init_start(),
        container=_container(),
        root=os.geteuid() == 0,
        python=".".join(str(n) for n in __import__("sys").version_info[:3]),
        btime=_btime(),
        pid=os.getpid(),
    )


def _dmi() -> "dict[str, str]":
    try:
        return {"v": read(at("/sys/class/dmi/id/product_uuid")).strip().lower()}
    except PermissionError as error:
        return {"why": "denied", "detail": str(error)}
    except OSError as error:
        return {"why": "absent", "detail": str(error)}


def _macs() -> "list[str]":
    found = []
    for name in listdir(at("/sys/class/net")):
        if os.path.exists(at("/sys/class/net/%s/device" % name)) or name.startswith(("eth", "en")):
            mac = read_or(at("/sys/class/net/%s/address" % name)).strip().lower()
            if mac.strip("0:"):
                found.append(mac)
    return sorted(set(found))


def _init_start() -> int:
    try:
        return int(read("/proc/1/stat").rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _container() -> bool:
    """Whether pid 1 was started as a container's (LXC): then boot id and DMI are those of the host."""
    if "container=" in read_or("/proc/1/environ").split("\0", 1)[0] or "\0container=" in read_or("/proc/1/environ"):
        return True
    return bool(read_or("/run/systemd/container").strip()) or "/lxc/" in read_or("/proc/1/cgroup")


def _btime() -> int:
    word = read_or("/proc/stat").partition("\nbtime ")[2].partition("\n")[0]
    return int(whole(word))


def kernel_log() -> "list[list[Any]]":
    """Lines of interest as [microseconds since boot, text], the newest `_KERNEL_CAP` of them."""
    lines, source, why = _kmsg()
    if lines is None:
        lines, source = _dmesg()
    if lines is None:
        gap("kernel-log", why, "neither /dev/kmsg nor dmesg can be read")
        return []
    wanted = [line for line in lines if of_interest(line[1])]
    emit("kernel", lines=wanted[-_KERNEL_CAP:], source=source, cut=len(wanted) > _KERNEL_CAP)
    return wanted


def of_interest(message: str) -> bool:
    text = message.lower()
    for word in _INTEREST:
        if word in text:
            return True
    return False


def _kmsg() -> "tuple[Optional[list[list[Any]]], str, str]":
    """A read of the device gives one record and skips lost ones with EPIPE; a plain file gives many at once."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return None, "", "denied"
    except OSError:
        return None, "", "absent"
    text = ring_buffer(fd)
    return parse_kmsg(text), "kmsg", ""


def ring_buffer(fd: int) -> str:
    """All of /dev/kmsg, which is closed then."""
    parts = []
    try:
        for _ in range(200000):  # a bound, not a count: the ring buffer holds far less
            try:
                data = os.read(fd, 65536)
            except BrokenPipeError:
                continue
            except OSError:
                break
            if not data:
                break
            parts.append(data)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "backslashreplace")


def parse_kmsg(text: str) -> "list[list[Any]]":
    """`level,seq,usec,flags[,…];text` records; lines that begin with a blank are properties of the record."""
    found = []
    for line in text.split("\n"):
        if not line or line[0] == " ":
            continue
        head, semicolon, message = line.partition(";")
        fields = head.split(",")
        usec = whole(fields[2], None) if semicolon and len(fields) >= 3 else None
        if usec is not None:
            found.append([usec, message[:2000]])
    return found


def _dmesg() -> "tuple[Optional[list[list[Any]]], str]":
    from recover.guest.child import run
    from recover.guest.wire import Limit

    ended = run(["dmesg", "-r"], Limit(5.0))
    if ended.code != 0:
        ended = run(["dmesg"], Limit(5.0))
    if ended.code != 0:
        return None, ""
    found = []
    for line in ended.out.split("\n"):
        match = re.match(r"(?:<\d+>)?\[\s*(\d+)\.(\d{6})\]\s?(.*)", line)
        if match:
            found.append([int(match.group(1)) * 1000000 + int(match.group(2)), match.group(3)[:2000]])
    return found, "dmesg"


def ram() -> None:
    emit("ram", text=read("/proc/meminfo"), balloon=_balloon(), cache=_caches())


def _caches() -> int:
    """KiB of RAM that the kernel holds as a cache, or as swap in RAM, and does not name in meminfo: ZFS ARC and zram."""
    text = read_or(at("/proc/spl/kstat/zfs/arcstats"))
    arc = re.search(r"^size\s+\d+\s+(\d{1,19})\b", text, re.M) if text else None
    size = int(arc.group(1)) if arc else 0
    for name in listdir(at("/sys/block")):
        fields = read_or(at("/sys/block/%s/mm_stat" % name)).split() if name.startswith("zram") else []
        size += whole(fields[2]) if len(fields) > 2 else 0  # mem_used_total
    return size // 1024


def _balloon() -> bool:
    return "virtio_balloon" in read_or("/proc/modules")


def driver_files() -> None:
    """Only files that take no driver lock: never .../power or .../unbindLock."""
    base = at("/proc/driver/nvidia")
    gpus = {name: read_or("%s/gpus/%s/information" % (base, name)) for name in listdir(base + "/gpus")}
    modules = [line.split(" ", 1)[0] for line in read_or("/proc/modules").splitlines()]
    wanted = [name for name in modules if name.startswith(("nvidia", "nouveau", "gdrdrv", "vfio"))]
    version = read_or(base + "/version").strip() or read_or(at("/sys/module/nvidia/version")).strip()
    emit("driver-files", version=version, gpus=gpus, modules=wanted)


def pci_gpus() -> "list[dict[str, Any]]":
    """NVIDIA display and 3D controllers by sysfs: what is on the bus, whether the driver lists it or not."""
    base = at("/sys/bus/pci/devices")
    found = []
    for name in listdir(base):
        folder = "%s/%s/" % (base, name)
        if read_or(folder + "vendor").strip() != "0x10de" or not read_or(folder + "class").startswith("0x03"):
            continue
        bound = os.path.basename(_link(folder + "driver"))
        found.append(
            {
                "bus": name,
                "device": read_or(folder + "device").strip(),
                "width": _number(read_or(folder + "current_link_width")),
                "width_max": _number(read_or(folder + "max_link_width")),
                "driver": bound,
                "drm": listdir(folder + "drm"),
            }
        )
    if os.path.isdir(base):
        emit("pci", list=found)
    else:
        gap("pci", "absent", "no " + base)
    return found


def pods(cgroups: "list[str]") -> None:
    """Namespace and name of the pods that these control groups belong to: kubelet names a pod's log folder by them."""
    found = []
    for entry in listdir(at("/var/log/pods")):
        match = _POD.match(entry)
        uid = match.group(3) if match else ""
        if match and any("pod" + form in cgroup for cgroup in cgroups for form in (uid, uid.replace("-", "_"))):
            found.append([uid, match.group(1), match.group(2)])
    if found:
        emit("pods", list=found[:500])


def memory_limits(cgroups: "list[str]") -> None:
    """For each control group the tightest limit above it, what is used there, and how often the OOM killer came."""
    found = []
    for cgroup in cgroups[:64]:
        path, best = cgroup.rstrip("/"), None  # type: str, Optional[dict[str, Any]]
        while path.strip("/"):
            row = _limit_of(path)
            if row is not None and (best is None or row["limit"] < best["limit"]):
                best = row
            path = path.rpartition("/")[0]
        if best is not None:
            found.append(dict(best, of=cgroup))
    if found:
        emit("memory-limits", list=found)


def _limit_of(path: str) -> "Optional[dict[str, Any]]":
    """MiB. Version 2 first, then the memory controller of version 1, whose "no limit" is a huge number."""
    for root, limit, used, events in (
        ("", "memory.max", "memory.current", "memory.events"),
        ("/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    ):
        folder = at("/sys/fs/cgroup%s%s/" % (root, path))
        size = whole(read_or(folder + limit).strip(), 1 << 60)
        if size < 1 << 60:
            kills = re.search(r"^oom_kill (\d{1,19})$", read_or(folder + events), re.M)
            now = whole(read_or(folder + used).strip())
            return {"path": path, "limit": size >> 20, "used": now >> 20,
                    "oom_kills": int(kills.group(1)) if kills else 0}  # fmt: skip
    return None


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _number(text: str) -> "Optional[int]":
    found = whole(text.strip(), None)  # type: Optional[int]
    return found


def leftovers() -> None:
    """Names, sizes and inodes of shared memory in this name space; who maps them is told with the processes."""
    found = _files(at("/dev/shm"), "shm-file", 2000)
    for line in read_or("/proc/mounts").splitlines():
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] == "hugetlbfs":
            found.extend(_files(fields[1].replace("\\040", " "), "hugetlb-file", 500))
    for line in read_or("/proc/sysvipc/shm").splitlines()[1:]:
        name, size, pid, last, attached = segment(line)
        if attached is not None:
            item = {"kind": "sysv", "name": name, "kib": size // 1024, "pid": pid}
            item.update(attached=attached, last=last, inode=0, mtime=0.0)
            found.append(item)
    emit("leftovers", list=found)


def segment(line: str) -> "tuple[Any, Any, Any, Any, Any]":
    """Id, bytes, who made it, who used it last and how many have it, of a line of /proc/sysvipc/shm; None for each where
    one can't be told."""
    field = line.split()
    numbers = [whole(word, None) for word in (field[1], *field[3:7])] if len(field) >= 14 else [None]
    return (field[1], *numbers[1:]) if None not in numbers else (None,) * 5


def _files(folder: str, kind: str, cap: int) -> "list[dict[str, Any]]":
    found = []  # type: list[dict[str, Any]]
    for name in listdir(folder)[:cap]:
        try:
            info = os.lstat(os.path.join(folder, name))
        except OSError:
            continue
        if info.st_mode & 0o170000 == 0o100000:
            item = {"kind": kind, "name": name, "kib": info.st_blocks // 2, "inode": info.st_ino}
            item.update(mtime=info.st_mtime, uid=info.st_uid, folder=folder)
            found.append(item)
    return found
