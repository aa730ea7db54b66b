"""The guest as Proxmox VE sees it. Every field that a privilege can hide is a Reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from recover.model.gpu import NOT_ASKED
from recover.model.reading import Reading


class GuestKind(StrEnum):
    VM = "vm"
    CONTAINER = "container"


class AgentState(StrEnum):
    OFF = "off"  # not configured
    ANSWERS = "answers"
    SILENT = "silent"  # configured, does not answer its ping


@dataclass(frozen=True, slots=True)
class HostPci:
    """One hostpciN entry, resolved. `addresses` empty where it could not be resolved; `choices` > 1: ambiguous."""

    key: str
    raw: str
    addresses: tuple[str, ...] = ()  # "0000:41:00.0"
    mapping: str = ""
    choices: int = 1
    mdev: str = ""
    driver: str = "vfio"
    device_ids: tuple[str, ...] = ()  # "10de:2bb1"
    iommu_groups: tuple[int, ...] = ()
    present: Reading[bool] = NOT_ASKED
    gpus: Reading[int] = NOT_ASKED  # how many NVIDIA GPUs it puts on the guest's bus


@dataclass(frozen=True, slots=True)
class Task:
    upid: str
    node: str
    type: str  # qmstart, qmstop, qmshutdown, vzdump, ...
    vmid: int | None
    user: str
    starttime: int  # the node's clock, seconds
    running: bool
    status: str = ""  # exit status of an ended task
    endtime: int = 0
    ours: bool = False  # by our own token


@dataclass(frozen=True, slots=True)
class HostMemory:
    total_mib: int
    used_mib: int
    free_mib: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another guest on the same node."""

    vmid: int
    name: str
    kind: GuestKind
    status: str
    shares: tuple[str, ...] = ()  # what it shares with the target: device address, "iommu group 12", mapping name
    may_be_joined: tuple[str, ...] = ()  # models of which both have a GPU, and that direct NVLinks can join


@dataclass(frozen=True, slots=True)
class NumaNode:
    """One numaN entry. `host_node` None: not one, or not said. `bound`: its memory lies there and nowhere else."""

    memory_mib: int
    host_node: int | None = None
    bound: bool = False


@dataclass(frozen=True, slots=True)
class VmConfig:
    """The configuration that the running QEMU has (config?current=1)."""

    name: str
    memory_mib: int
    smbios_uuid: str = ""
    macs: frozenset[str] = frozenset()
    hostpci: tuple[HostPci, ...] = ()
    agent: bool = False
    balloon_mib: int | None = None
    hugepages: str = ""  # any | 2 | 1024
    keeps_hugepages: bool = False  # a stop does not give them back to the node
    args: str = ""
    onboot: bool = False
    protection: bool = False
    template: bool = False
    bios: str = ""
    digest: str = ""
    storages: tuple[str, ...] = ()
    cores: int = 1
    hookscript: str = ""
    nics: int = 0
    numa: bool = False
    numa_nodes: tuple[NumaNode, ...] = ()
    sockets: int = 1
    plugs_memory: bool = False
    device_files: tuple[str, ...] = ()  # a container's devN entries: without them it does not start


@dataclass(frozen=True, slots=True)
class Pending:
    key: str
    now: str
    then: str
    delete: bool = False


@dataclass(frozen=True, slots=True)
class Hypervisor:
    """A look through the API that reached the guest's record. `gaps` name each privilege that was missing."""

    cluster: str
    node: str
    vmid: int
    kind: GuestKind
    status: str  # running | stopped
    qmpstatus: Reading[str] = NOT_ASKED
    config: Reading[VmConfig] = NOT_ASKED
    pending: Reading[tuple[Pending, ...]] = NOT_ASKED
    lock: str = ""
    ha_state: Reading[str] = NOT_ASKED  # "" = not managed
    quorate: Reading[bool] = NOT_ASKED
    tasks: Reading[tuple[Task, ...]] = NOT_ASKED  # of this vmid, newest first
    agent: Reading[AgentState] = NOT_ASKED
    host_memory: Reading[HostMemory] = NOT_ASKED
    storages: Reading[tuple[tuple[str, bool], ...]] = NOT_ASKED  # (name, active) of the storages the guest uses
    neighbours: Reading[tuple[Neighbour, ...]] = NOT_ASKED
    uptime_s: int = 0
    pid: int = 0
    tags: tuple[str, ...] = ()
    name: str = ""
    version: str = ""
    backup_due: Reading[bool] = NOT_ASKED
    invisible_guests: bool = False  # the token cannot see all guests of the node
    host_uptime_s: Reading[int] = NOT_ASKED
    clock_s: int = 0  # the node's clock at this look
    agent_addresses: tuple[str, ...] = ()
    gaps: tuple[str, ...] = field(default=())
    near_mappings: tuple[str, ...] = ()  # PCI mappings that running guests of the node use, where this one has devices


@dataclass(frozen=True, slots=True)
class NoHypervisor:
    """The API could not be asked: no cluster configured, no secret, no contact, wrong token."""

    why: str  # not-configured | no-secret | unreachable | tls | auth | not-found | garbled
    detail: str
