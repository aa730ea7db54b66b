"""The Proxmox node as its own root shell sees it: devices, who holds them, and what the kernel said of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from recover.model.gpu import NOT_ASKED
from recover.model.reading import Reading


@dataclass(frozen=True, slots=True)
class Holder:
    """A process of the node that has a device file open. `guest`: "vm 174", "ct 200", or empty: the node's own."""

    pid: int
    start: int
    comm: str
    file: str  # "/dev/vfio/20", "/dev/nvidia0"
    guest: str = ""
    unit: str = ""  # its systemd unit


@dataclass(frozen=True, slots=True)
class PciFunction:
    """One function as sysfs shows it. `answers` False: its configuration space reads all ones (`rev ff`)."""

    address: str  # "0000:41:00.0"
    ids: str = ""  # "10de:2bb1"
    pci_class: str = ""  # "030200"
    driver: str = ""
    iommu_group: int | None = None
    bridge: str = ""  # the port right above it; empty: it stands on the root bus
    resets: tuple[str, ...] = ()  # reset_method's words, in the kernel's order
    can_reset: bool = False  # the file `reset` is there
    has_method: bool = False  # the file `reset_method` is there (Linux 5.15)
    power_state: str = ""  # D0 | D3hot | D3cold | unknown | error
    runtime: str = ""  # active | suspended
    d3cold_allowed: bool | None = None
    link_width: int | None = None
    link_speed: str = ""
    link_width_max: int | None = None
    answers: Reading[bool] = NOT_ASKED
    physfn: str = ""  # whose virtual function it is
    virtfns: tuple[str, ...] = ()
    gave_up: str = ""  # the kernel's last word on it, where that is that it does not come back

    @property
    def dead(self) -> bool:
        """The kernel gave it up, and it does not answer."""
        return bool(self.gave_up) and getattr(self.answers, "value", False) is not True


@dataclass(frozen=True, slots=True)
class Bridge:
    """A port and all functions below it, at any depth."""

    address: str
    below: tuple[str, ...]
    resets: bool = False  # the file `reset_subordinate` is there


@dataclass(frozen=True, slots=True)
class Reservation:
    """A line of Proxmox's list of devices that are in use or about to be."""

    address: str
    vmid: int
    what: str  # "pid:1234" or "time:1700000000"


@dataclass(frozen=True, slots=True)
class HostGpu:
    """A GPU of the node's own NVIDIA driver."""

    bus_id: str
    uuid: str
    minor: int | None


@dataclass(frozen=True, slots=True)
class HugePages:
    """One size on one NUMA node. `surplus`: of those in use, how many leave the pool when they are let go."""

    node: int
    kib: int
    all: int
    free: int
    surplus: int = 0


@dataclass(frozen=True, slots=True)
class CtProcess:
    """A process of the container, by its number on the node and its number inside."""

    pid: int
    start: int
    ns_pid: int
    comm: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """A look that reached the node. `qemu`: processes that belong to the guest's QEMU, whatever the API says."""

    node: str
    hostname: str
    boot_id: str
    kernel: str
    uptime_s: float
    root: bool = True
    functions: tuple[PciFunction, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    groups: tuple[tuple[int, tuple[str, ...]], ...] = ()  # IOMMU group -> its functions, ports left out
    holders: tuple[Holder, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    qemu: tuple[int, ...] = ()
    gpus: tuple[HostGpu, ...] = ()
    device_files: tuple[str, ...] | None = None  # /dev/nvidia* as they are; None: not told
    container: tuple[CtProcess, ...] = ()
    hugepages: tuple[HugePages, ...] = ()
    init_start: int = 0  # of the container's init
    complete: bool = True
    gaps: tuple[str, ...] = field(default=())

    def function(self, address: str) -> PciFunction | None:
        return next((f for f in self.functions if f.address == address), None)
