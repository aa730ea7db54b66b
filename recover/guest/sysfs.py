"""PCI devices as a node's sysfs has them: files are read and links followed by their names; no device is woken by it."""

import os
import re

from recover.guest.wire import at, listdir, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Optional

PCI = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def folder(address: str) -> str:
    return "%s/%s" % (at(PCI), address)


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def bridge_of(address: str) -> str:
    """The port right above: sysfs nests devices as the buses are nested."""
    above = os.path.basename(os.path.dirname(os.path.realpath(folder(address))))
    return above if ADDRESS.match(above) else ""


def below(bridge: str) -> "list[str]":
    """All functions below a port that are no ports themselves."""
    top = os.path.realpath(folder(bridge)) + "/"
    found = [name for name in listdir(at(PCI)) if os.path.realpath(folder(name)).startswith(top)]
    return [name for name in found if not is_port(name)]


def is_port(address: str) -> bool:
    return read_or(folder(address) + "/class").startswith("0x0604")


def group_of(address: str) -> "Optional[int]":
    name = _link(folder(address) + "/iommu_group")
    found = whole(name, None)  # type: Optional[int]
    return found


def group_members(address: str) -> "list[str]":
    names = listdir(folder(address) + "/iommu_group/devices")
    return [name for name in names if ADDRESS.match(name) and not is_port(name)]


def physical_of(address: str) -> str:
    """The function whose virtual one this is (Documentation/ABI/testing/sysfs-bus-pci, physfn), or empty."""
    return _link(folder(address) + "/physfn")


def virtual_of(address: str) -> "list[str]":
    """Its virtual functions: a reset of this one ends them (SR-IOV specification, 2.2.2)."""
    names = [_link("%s/%s" % (folder(address), name)) for name in listdir(folder(address)) if name.startswith("virtfn")]
    return sorted(name for name in names if ADDRESS.match(name))


def driver_of(address: str) -> str:
    return _link(folder(address) + "/driver")


def nodes_of(address: str) -> "list[str]":
    """The device files through which somebody can have this function open."""
    found = []
    group = group_of(address)
    if group is not None:
        found.append(at("/dev/vfio/%d" % group))
    found += [at("/dev/vfio/devices/" + name) for name in listdir(folder(address) + "/vfio-dev")]
    for line in read_or(at("/proc/driver/nvidia/gpus/%s/information" % address)).splitlines():
        if line.startswith("Device Minor"):
            found.append(at("/dev/nvidia" + line.partition(":")[2].strip()))
    return found


def config_answers(address: str, wake: bool = False) -> "Optional[bool]":
    """None where it can't be asked without waking it, or where all ones are no sign (virtual functions)."""
    path = folder(address)
    sleeps = not wake and read_or(path + "/power/runtime_status").strip() == "suspended"
    cold = not wake and read_or(path + "/power_state").strip() == "D3cold"
    if sleeps or cold or os.path.islink(path + "/physfn"):
        return None
    fd = os.open(path + "/config", os.O_RDONLY)
    try:
        return os.pread(fd, 4, 0) not in (b"\xff\xff\xff\xff", b"")
    finally:
        os.close(fd)
