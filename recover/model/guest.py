"""What one look from inside the guest brought home."""

from __future__ import annotations

from dataclasses import dataclass, field

from recover.model.contact import Failure
from recover.model.gpu import NOT_ASKED, Driver, Gpu
from recover.model.memory import KernelLine, Leftover, MemoryLimit, Ram
from recover.model.process import Process, ServerAnswer
from recover.model.reading import Reading


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment in the guest's own time; uptimes of different boots do not compare."""

    boot_id: str
    uptime_s: float

    def after(self, other: Mark) -> bool:
        """Whether this moment is in a later state of the machine: another boot, or later in the same."""
        return self.boot_id != other.boot_id or self.uptime_s > other.uptime_s


@dataclass(frozen=True, slots=True)
class GuestIdentity:
    hostname: str
    boot_id: str
    dmi_uuid: Reading[str] = NOT_ASKED  # lower case
    macs: frozenset[str] = frozenset()  # lower case
    kernel: str = ""
    machine_id: str = ""
    init_start: int = 0  # start time of pid 1: a container's own "boot"
    container: bool = False
    btime_s: int = 0


@dataclass(frozen=True, slots=True)
class Marker:
    """Our mark under /run on the guest: who works here. `expires_uptime_s` in the guest's own uptime."""

    run: str
    who: str
    host: str
    rung: str
    expires_uptime_s: float


@dataclass(frozen=True, slots=True)
class Inhibitor:
    """Somebody asked logind not to shut the guest down now."""

    who: str
    why: str
    mode: str  # block | block-weak | delay


@dataclass(frozen=True, slots=True)
class BootFacts:
    """What a clean restart from inside depends on."""

    init: str  # systemd | comm of pid 1
    inhibitors: tuple[Inhibitor, ...] = ()
    kexec_loaded: bool = False
    state: str = ""  # systemd's own word for the machine: running, degraded, stopping, ...; empty: not known


@dataclass(frozen=True, slots=True)
class Service:
    """A unit or container that (may) own GPU workers. Time is the manager's own word."""

    manager: str  # systemd | systemd-user | docker | podman | supervisord
    name: str
    state: str  # active | inactive | failed | activating | deactivating | running | exited | ...
    main_pid: int = 0
    restart: str = ""  # no | always | on-failure | unless-stopped ...
    enabled: str = ""  # enabled | disabled | static | ...
    restarts: int = 0
    uid: int | None = None  # whose manager, for systemd-user
    within: str = ""  # the configured slice that it stands in
    unit: str = ""  # the systemd unit that runs this container
    id: str = ""  # a container's full id


@dataclass(frozen=True, slots=True)
class MpsClient:
    """A process whose GPU work goes through an MPS server; pids as the guest's own pid name space has them."""

    server_pid: int
    client_pid: int


@dataclass(frozen=True, slots=True)
class FuseMount:
    """A FUSE mount with requests that its server does not answer."""

    path: str
    connection: str  # under /sys/fs/fuse/connections
    waiting: int


@dataclass(frozen=True, slots=True)
class Module:
    """A kernel module of the driver, with what /proc/modules says of its users."""

    name: str
    refcount: int
    used_by: tuple[str, ...] = ()
    state: str = "Live"  # Live | Loading | Unloading


@dataclass(frozen=True, slots=True)
class Guest:
    """A look that reached the guest. A part that could not be read is Unknown with its reason and named in `gaps`."""

    identity: GuestIdentity
    mark: Mark
    ram: Reading[Ram]
    driver: Reading[Driver]
    gpus: Reading[tuple[Gpu, ...]]
    processes: Reading[tuple[Process, ...]]
    kernel: Reading[tuple[KernelLine, ...]] = NOT_ASKED
    leftovers: Reading[tuple[Leftover, ...]] = NOT_ASKED
    services: Reading[tuple[Service, ...]] = NOT_ASKED
    servers: tuple[ServerAnswer, ...] = ()
    pci_gpus: Reading[tuple[str, ...]] = NOT_ASKED  # bus ids of NVIDIA GPUs in sysfs
    marker: Reading[Marker | None] = NOT_ASKED
    root: bool = True
    complete: bool = True  # the agent reached its end; False: its report broke off
    gaps: tuple[str, ...] = ()
    raw: tuple[str, ...] = field(default=(), repr=False, compare=False)  # the agent's lines, for the evidence
    boot: Reading[BootFacts] = NOT_ASKED
    mps: tuple[MpsClient, ...] = ()
    stuck_fuse: tuple[FuseMount, ...] = ()
    modules: Reading[tuple[Module, ...]] = NOT_ASKED
    memory_limits: tuple[MemoryLimit, ...] = ()  # of the control groups that hold a GPU
    pods: tuple[tuple[str, str], ...] = ()  # (uid, "namespace/name") of Kubernetes pods that hold a GPU
    through: str = ""  # the node that a container was looked at through, and why; empty: it answered by itself


@dataclass(frozen=True, slots=True)
class Mute:
    """A look that did not reach the guest: with what it failed, and whether TCP was accepted."""

    failure: Failure
    detail: str
    since_s: float = 0.0
