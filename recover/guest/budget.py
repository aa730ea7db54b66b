"""What a launch would meet on this machine: memory and its limits, GPUs, other servers, the engine's source, the model.

Everything is read, nothing is changed. What may block (a stuck process, a network file system, the driver) is read in
children with deadlines; what could not be read is a gap with its reason.
"""

import errno
import os
import re

from recover.guest import child
from recover.guest.budget_engine import find_engine
from recover.guest.budget_model import find_model
from recover.guest.budget_servers import others
from recover.guest.child import Child, collect
from recover.guest.redact import redact_text
from recover.guest.wire import Limit, at, emit, gap, guarded, listdir, read, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

BUDGET_S = 90.0
_TEXT_CAP = 256 << 10
_SETTINGS = (".yaml", ".yml", ".json", ".toml")  # what redaction would break
_GPU_FIELDS = "index,memory.total,memory.free,uuid,pci.bus_id"

# Where an engine's package speaks of host memory, and by which words a file that does is known.
WHERE = {
    "sglang": r"sglang/srt/",
    "vllm": r"vllm/(?:config[/.]|engine/|v1/(?:kv_offload|simple_kv_offload|core)/|distributed/kv_transfer/)",
}
MENTIONS = {
    "sglang": r"hicache_size|host_size|host_memory_budget|cudaHostRegister|available_host_memory|ranks_per_host"
    r"|def get_size_per_token|mla_host_dedup",
    "vllm": r"kv_offloading_size|cpu_bytes_to_use|kv_bytes_per_rank",
}


def look(request: "dict[str, Any]") -> None:
    limit = Limit(float(request.get("deadline") or BUDGET_S))
    guarded("budget-memory", memory)
    guarded("budget-cgroup", cgroup)
    guarded("budget-numa", numa)
    guarded("budget-shm", shm)
    guarded("budget-hugepages", hugepages)
    emit("budget-numactl", path=child.which("numactl") or "")
    guarded("budget-others", others, limit.within(15.0))
    guarded("budget-text", texts, request.get("texts") or (), limit.within(10.0))
    guarded("budget-model", find_model, request, limit.within(20.0))
    engine = str(request.get("engine") or "")
    guarded("budget-engine", find_engine, request, WHERE.get(engine), MENTIONS.get(engine), limit.within(40.0))
    guarded("budget-gpus", gpus, limit.within(20.0))  # last: the driver is what hangs


# --- memory -------------------------------------------------------------------------------------------------------


def memory() -> None:
    rows = _rows(read(at("/proc/meminfo")))
    emit("budget-memory", total=rows.get("MemTotal"), available=rows.get("MemAvailable"), free=rows.get("MemFree"),
         shmem=rows.get("Shmem"), balloon="virtio_balloon" in read_or(at("/proc/modules")))  # fmt: skip


def _rows(text: str) -> "dict[str, int]":
    """meminfo's lines in bytes, also those of a NUMA node."""
    found = re.findall(r"^(?:Node\s+\d+\s+)?([\w()]+):\s+(\d{1,19}) kB", text, re.M)
    return {name: int(value) * 1024 for name, value in found}


def numa() -> None:
    base = at("/sys/devices/system/node")
    nodes = []
    for name in listdir(base):
        if re.match(r"node\d+$", name):
            rows = _rows(read_or("%s/%s/meminfo" % (base, name)))
            if rows.get("MemTotal"):
                # What a bound rank can get: free pages, and what the kernel drops for it.
                drop = rows.get("Active(file)", 0) + rows.get("Inactive(file)", 0) + rows.get("SReclaimable", 0)
                nodes.append({"node": int(name[4:]), "total": rows["MemTotal"], "free": rows.get("MemFree", 0) + drop})
    emit("budget-numa", nodes=nodes)


def shm() -> None:
    info = os.statvfs(at("/dev/shm"))
    emit("budget-shm", total=info.f_blocks * info.f_frsize, free=info.f_bavail * info.f_frsize)


def hugepages() -> None:
    base = at("/sys/kernel/mm/hugepages")
    sizes = []
    for name in listdir(base):
        match = re.match(r"hugepages-(\d+)kB$", name)
        if match:
            counts = [_number(read_or("%s/%s/%s" % (base, name, kind))) for kind in ("nr_hugepages", "free_hugepages")]
            if None not in counts:
                sizes.append({"size": int(match.group(1)) * 1024, "total": counts[0], "free": counts[1]})
    emit("budget-hugepages", sizes=sizes)


def cgroup() -> None:
    """The least room that a limit leaves, over all levels from our own cgroup up: limit - used + droppable cache."""
    emit("budget-cgroup", levels=list(_unified()) + list(_legacy()), own=read_or(at("/proc/self/cgroup"))[:2000])


def _unified() -> "list[dict[str, Any]]":
    match = re.search(r"^0::(/.*)$", read_or(at("/proc/self/cgroup")), re.M)
    found = []
    for folder in _up(at("/sys/fs/cgroup"), match.group(1)) if match else []:
        limits = [_number(read_or(folder + "/" + name)) for name in ("memory.max", "memory.high")]
        limits = [value for value in limits if value is not None]
        used = _number(read_or(folder + "/memory.current"))
        if limits and used is not None:
            found.append(_level(folder, min(limits), used, ("active_file", "inactive_file")))
    return found


def _legacy() -> "list[dict[str, Any]]":
    match = re.search(r"^\d+:(?:[^:]*,)?memory(?:,[^:]*)?:(/.*)$", read_or(at("/proc/self/cgroup")), re.M)
    found = []
    for folder in _up(at("/sys/fs/cgroup/memory"), match.group(1)) if match else []:
        limit = _number(read_or(folder + "/memory.limit_in_bytes"))
        used = _number(read_or(folder + "/memory.usage_in_bytes"))
        if limit is not None and used is not None and limit < 1 << 60:  # above that: no limit
            found.append(_level(folder, limit, used, ("total_active_file", "total_inactive_file")))
    return found


def _up(mount: str, path: str) -> "list[str]":
    """The folders of a cgroup and of those around it. A container sees its own as the mount's root."""
    folders = []
    while True:
        folder = mount + ("" if path == "/" else path)
        if os.path.isdir(folder):
            folders.append(folder)
        if path in ("/", ""):
            return folders
        path = os.path.dirname(path)


def _level(folder: str, limit: int, used: int, names: "tuple[str, str]") -> "dict[str, Any]":
    rows = dict(re.findall(r"^(\w+) (\d{1,19})$", read_or(folder + "/memory.stat"), re.M))
    cache = sum(int(rows.get(name, 0)) for name in names)
    return {"path": folder, "limit": limit, "room": max(0, limit - max(0, used - cache))}


def _number(text: str) -> "Optional[int]":
    found = whole(text.strip(), None)  # type: Optional[int]
    return found


# --- GPUs and files ----------------------------------------------------------------------------------------------


def gpus(limit: Limit) -> None:
    """Count and memory. Where nvidia-smi does not answer, the driver's files still tell the count."""
    names = listdir(at("/proc/driver/nvidia/gpus"))
    asked = ["nvidia-smi", "--query-gpu=" + _GPU_FIELDS, "--format=csv,noheader,nounits"]
    ended = child.run(asked, limit, "nvidia-smi")
    if ended.code is None:
        gap("budget-gpus", "timeout", "nvidia-smi did not answer")
    elif ended.code != 0:
        gap("budget-gpus", "absent", (ended.err or ended.out).strip()[-200:])
    rows = []
    for line in ended.out.splitlines() if ended.code == 0 else []:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and whole(cells[0], None) is not None:
            rows.append({"index": whole(cells[0]), "total": _mib(cells[1]), "free": _mib(cells[2]), "uuid": cells[3],
                         "numa": _node_of(cells[4])})  # fmt: skip
    emit("budget-gpus", gpus=rows, count=len(rows) or len(names))


def _mib(text: str) -> "Optional[int]":
    value = _number(text)
    return None if value is None else value << 20


def _node_of(bus: str) -> "Optional[int]":
    """nvidia-smi writes the domain with eight digits, sysfs with four."""
    return _number(read_or(at("/sys/bus/pci/devices/%s/numa_node" % bus.lower()[-12:])))


def _redacted(text: str) -> str:
    """An environment file without its secrets; a quote at the end of a line stays where it closes what opened."""
    found = []
    for line in text.splitlines():
        clean = redact_text(line)
        found.append(clean + line[-1] if line[-1:] in ("'", '"') and clean[-1:] != line[-1] else clean)
    return "".join(line + "\n" for line in found)


def texts(names: "list[str]", limit: Limit) -> None:
    """Configuration and environment files that the launch names. Secrets of an environment file stay here."""

    def job(say: "Callable[[Any], None]") -> None:
        for name in names:
            try:
                text = read(name, _TEXT_CAP)
                say({"name": name, "text": text if name.endswith(_SETTINGS) else _redacted(text)})
            except OSError as error:
                say({"name": name, "why": error.strerror})
                if error.errno == errno.ENOENT and not name.endswith(_SETTINGS):
                    say({"name": name, "text": ""})  # `EnvironmentFile=-FILE`: no such file sets nothing

    reader = Child("files", job)
    late = collect([reader], limit)
    for value in reader.values:
        if "text" in value:
            emit("budget-text", **value)
        else:
            gap("budget-text", "absent", "%s: %s" % (value.get("name"), value.get("why") or value.get("crash")))
    if late:
        gap("budget-text", "timeout", "%s could not be read in time" % ", ".join(names))
