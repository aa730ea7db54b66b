"""A look at a Proxmox node: files of sysfs and /run, open files by their names; it wakes and changes no device.

What may ask the hardware itself (configuration space, link) is read in children that can be abandoned, and not at all
of a device that sleeps: reading would wake it, and a dead one never comes back from that.
"""

import os
import re

from recover.guest import numa, procs, sysfs
from recover.guest.child import Child, collect
from recover.guest.system import parse_kmsg, ring_buffer
from recover.guest.wire import Limit, at, emit, gap, guarded, listdir, read_or, uptime, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

NVIDIA = "0x10de"
RESERVATIONS = "/run/qemu-server/pci-id-reservations"
_CHILD_S = 8.0
_CONTAINER = re.compile(r"/lxc(?:\.payload\.|/|\.monitor\.)(\d+)(?:/|$)")
_QEMU = re.compile(r"/qemu\.slice/(\d+)\.scope")
_UNIT = re.compile(r"([^/]+\.service)(?:/|$)")
# The kernel's last words on a device (drivers/pci/pci.c): after the first kind it is gone, after the second it is back.
GAVE_UP = re.compile(r"not ready \d+ms after .*; giving up|Unable to change power state from D3|stuck in D3")
BACK = re.compile(r"ready \d+ms after ")


def _hardware(address: str, wake: bool) -> "Callable[[Callable[[Any], None]], None]":
    def job(say: "Callable[[Any], None]") -> None:
        answers = sysfs.config_answers(address, wake)
        said = {"answers": answers}  # type: dict[str, Any]
        if answers:
            path = sysfs.folder(address) + "/"
            said.update(width=read_or(path + "current_link_width").strip(),
                        width_max=read_or(path + "max_link_width").strip(),
                        speed=read_or(path + "current_link_speed").strip())  # fmt: skip
        say(said)

    return job


def hardware(addresses: "list[str]", limit: Limit, wake: bool = False) -> "dict[str, dict[str, Any]]":
    """What the devices themselves say; `late` where a question did not come back. A look wakes nothing, a reset may."""
    children = {address: Child("config of " + address, _hardware(address, wake)) for address in addresses}
    late = collect(list(children.values()), limit)
    found = {}
    for address, child in children.items():
        said = {}  # type: dict[str, Any]
        for value in child.values:
            said.update(value)
        if child in late:
            said["late"] = True
        found[address] = said
    return found


def kernel_lines(since_usec: int = 0) -> "list[list[Any]]":
    """The node's kernel log as [microseconds, text]."""
    try:
        fd = os.open(at("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return []
    return [line for line in parse_kmsg(ring_buffer(fd)) if line[0] > since_usec]


def gave_up(address: str, lines: "list[list[Any]]") -> str:
    """The kernel's word that it gave this device up, unless it said later that it is back."""
    last = ""
    for _, text in lines:
        if address not in text:
            continue
        if GAVE_UP.search(text):
            last = text
        elif BACK.search(text) and "waiting" not in text and "not ready" not in text:
            last = ""
    return last


def _function(address: str, hw: "dict[str, Any]", lines: "list[list[Any]]") -> "dict[str, Any]":
    path = sysfs.folder(address) + "/"

    def text(name: str) -> str:
        return read_or(path + name).strip()

    d3cold = text("d3cold_allowed")
    return {
        "address": address,
        "ids": "%s:%s" % (text("vendor")[2:], text("device")[2:]),
        "class": text("class")[2:],
        "driver": sysfs.driver_of(address),
        "group": sysfs.group_of(address),
        "bridge": sysfs.bridge_of(address),
        "physfn": sysfs.physical_of(address),
        "virtfns": sysfs.virtual_of(address),
        "methods": text("reset_method").split(),
        "has_method": os.path.exists(path + "reset_method"),
        "can_reset": os.path.exists(path + "reset"),
        "power": text("power_state"),
        "runtime": text("power/runtime_status"),
        "d3cold": None if d3cold not in ("0", "1") else d3cold == "1",
        "hw": hw,
        "gave_up": gave_up(address, lines),
    }


def wanted(asked: "list[str]") -> "list[str]":
    """Of what is there: the functions asked for, their IOMMU groups, all below their ports, and NVIDIA's devices."""
    there = set(listdir(at(sysfs.PCI)))
    found = {a for a in asked if a in there}
    for address in sorted(found):
        found.update(sysfs.group_members(address))
        if sysfs.bridge_of(address):
            found.update(sysfs.below(sysfs.bridge_of(address)))
    found.update(a for a in there if read_or(sysfs.folder(a) + "/vendor").strip() == NVIDIA and not sysfs.is_port(a))
    return sorted(found & there)


def guest_of(cgroup: str) -> str:
    for word, pattern in (("vm", _QEMU), ("ct", _CONTAINER)):
        match = pattern.search(cgroup)
        if match:
            return "%s %s" % (word, match.group(1))
    return ""


def holders(files: "Optional[set[str]]" = None) -> "list[dict[str, Any]]":
    """Processes with a vfio or NVIDIA device file open. Names are read, never followed: that can't block."""
    found = []
    prefixes = (at("/dev/vfio/"), at("/dev/nvidia"))
    for pid in procs.pids():
        seen = None  # type: Optional[dict[str, Any]]
        for name in sorted(_open_files(pid)):
            if not name.startswith(prefixes) or (files is not None and name not in files):
                continue
            seen = seen or procs.stat("/proc/%d" % pid)
            if seen is None:
                break
            cgroup = procs._cgroup("/proc/%d" % pid)
            unit = _UNIT.search(cgroup)
            found.append({"pid": pid, "start": seen["start"], "comm": seen["comm"], "file": name[len(at("")):],
                          "guest": guest_of(cgroup), "unit": unit.group(1) if unit else ""})  # fmt: skip
    return found


def _open_files(pid: int) -> "set[str]":
    """Of a defunct leader the threads that live on have them (its own folder is empty)."""
    names = set()
    folders = ["/proc/%d/fd" % pid]
    if not listdir(folders[0]):
        folders = ["/proc/%d/task/%d/fd" % (pid, tid) for tid, state, _ in procs.threads(pid) if state not in "ZX"]
    for where in folders:
        for fd in listdir(where):
            try:
                names.add(os.readlink("%s/%s" % (where, fd)))
            except OSError:
                pass
    return names


def qemu_pids(vmid: int) -> "list[int]":
    """The guest's QEMU by its scope and by its pid file; PVE unlinks the file also of one that it could not kill."""
    found = set()
    for tree in ("", "/systemd"):
        path = "/sys/fs/cgroup%s/qemu.slice/%d.scope/cgroup.procs" % (tree, vmid)
        found.update(filter(None, map(whole, read_or(at(path)).split())))
    noted = read_or(at("/run/qemu-server/%d.pid" % vmid)).strip()
    if whole(noted) and (procs.stat("/proc/" + noted) or {}).get("comm", "").startswith(("kvm", "qemu")):
        found.add(int(noted))
    return sorted(pid for pid in found if procs.stat("/proc/%d" % pid) is not None)


def reservations() -> "list[dict[str, Any]]":
    found = []
    for line in read_or(at(RESERVATIONS)).splitlines():
        words = line.split()
        if len(words) >= 2 and sysfs.ADDRESS.match(words[0]) and whole(words[1]):
            found.append({"address": words[0], "vmid": int(words[1]), "what": words[2] if len(words) > 2 else ""})
    return found


def _container(vmid: int, init: int) -> None:
    """The container's processes with their numbers on both sides."""
    rows = []
    for pid in procs.pids():
        path = "/proc/%d" % pid
        if guest_of(procs._cgroup(path)) != "ct %d" % vmid:
            continue
        seen, spaces = procs.stat(path), procs.status(path).get("NSpid", "").split()
        if seen is not None and len(spaces) > 1:
            rows.append({"pid": pid, "start": seen["start"], "ns_pid": whole(spaces[-1]), "comm": seen["comm"],
                         "state": seen["state"]})  # fmt: skip
    emit("container", list=rows, init_start=procs.start_of(init) or 0 if init else 0)


def _gpus() -> None:
    base = at("/proc/driver/nvidia/gpus")
    rows = []
    for name in listdir(base):
        row = {"bus": name, "uuid": "", "minor": None}  # type: dict[str, Any]
        for line in read_or("%s/%s/information" % (base, name)).splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "GPU UUID":
                row["uuid"] = value.strip()
            elif key.strip() == "Device Minor":
                row["minor"] = whole(value.strip(), None)
        rows.append(row)
    files = ["/dev/" + name for name in listdir(at("/dev")) if name.startswith("nvidia")]
    emit("host-gpus", list=rows, files=files)


def _devices(asked: "list[str]", limit: Limit) -> None:
    if not os.path.isdir(at(sysfs.PCI)):
        gap("host-pci", "absent", "no " + at(sysfs.PCI))
        return
    addresses = wanted(asked)
    lines = kernel_lines()
    hw = hardware(addresses, limit.within(_CHILD_S))
    emit("functions", list=[_function(a, hw.get(a, {}), lines) for a in addresses])
    bridges = sorted({sysfs.bridge_of(a) for a in addresses} - {""})
    emit("bridges", list=[{"address": b, "below": sysfs.below(b), "resets": os.path.exists(sysfs.folder(b) + "/reset_subordinate")}
                          for b in bridges])  # fmt: skip
    groups = {sysfs.group_of(a): sysfs.group_members(a) for a in addresses}
    emit("groups", list=[{"group": g, "members": m} for g, m in sorted(groups.items(), key=str) if g is not None])


def look(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline") or 30.0))
    emit("host", hostname=os.uname()[1], kernel=os.uname()[2], root=os.geteuid() == 0, uptime=uptime(),
         boot_id=read_or("/proc/sys/kernel/random/boot_id").strip())  # fmt: skip
    asked = [str(a) for a in request.get("addresses") or () if sysfs.ADDRESS.match(str(a))]
    vmid = int(request.get("vmid") or 0)
    guarded("holders", lambda: emit("holders", list=holders()))
    guarded("reservations", lambda: emit("reservations", list=reservations()))
    guarded("qemu", lambda: emit("qemu", pids=qemu_pids(vmid)))
    guarded("hugepages", numa.tell)
    guarded("host-gpus", _gpus)
    if request.get("container"):
        guarded("container", _container, vmid, int(request.get("init_pid") or 0))
    guarded("host-pci", _devices, asked, limit)
    return {"ok": True, "changed": False, "detail": "looked"}
