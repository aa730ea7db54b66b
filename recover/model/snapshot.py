"""One look at a target from all sides, and the look it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from recover.model.gpu import NOT_ASKED
from recover.model.guest import Guest, Mute
from recover.model.host import Host
from recover.model.hypervisor import GuestKind, Hypervisor, NoHypervisor
from recover.model.process import Group
from recover.model.reading import Reading


class Channel(StrEnum):
    """The ways to change something."""

    GUEST = "guest"  # SSH to the guest
    HYPERVISOR = "hypervisor"  # Proxmox API
    HOST = "host"  # optional root shell on the Proxmox node


@dataclass(frozen=True, slots=True)
class Target:
    """What the argument resolved to. `address` is where SSH goes, `cluster` is empty where none is configured."""

    name: str
    address: str
    kind: GuestKind = GuestKind.VM
    cluster: str = ""
    vmid: int | None = None
    services: tuple[str, ...] = ()
    health: str = ""
    protect: tuple[str, ...] = ()
    playbook: str = ""
    expect: tuple[tuple[str, int], ...] = ()  # gpus -> count, ram_available -> MiB
    do_not_recover: bool = False


@dataclass(frozen=True, slots=True)
class GpuBaseline:
    uuid: str
    bus_id: str
    used_mib: int
    link_width: int | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the guest looks like when nothing runs on it; saved only from an idle look without gaps. MiB."""

    gpus: tuple[GpuBaseline, ...]
    ram_total_mib: int
    ram_available_mib: int
    shmem_mib: int
    hugepages_free: int
    driver: str
    kernel: str
    dmi_uuid: str
    macs: frozenset[str]
    hostname: str
    agent_answered: bool = False
    firmware: str = ""
    host_kernel: str = ""
    saved_at: float = 0.0  # seconds since the epoch, for showing
    unowned_mib: int = 0  # RAM that nothing accounted for on the idle guest: the driver's own pools


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a decision may use. `at` is the engine's clock in seconds: monotonic within one run."""

    target: Target
    at: float
    guest: Guest | Mute
    hypervisor: Hypervisor | NoHypervisor
    baseline: Baseline | None = None
    groups: tuple[Group, ...] = ()
    host_shell: bool = False
    wall: float = 0.0  # seconds since the epoch, for showing and for the day's counts
    expected_dmi_uuid: str = ""
    unasked_gpus: frozenset[str] = field(default=frozenset())  # hung earlier in this run: not asked again
    assume_hung: bool = False  # a person says that a mute guest is hung: their word is the second witness
    host: Reading[Host] = NOT_ASKED  # the node by its own root shell, where one is configured


class IdentityProof(StrEnum):
    """Whether the guest that answers is the guest behind the vmid."""

    PROVED = "proved"
    WRONG = "wrong"
    UNPROVED = "unproved"
