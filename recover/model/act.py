"""Everything that the tool can do to the world, as data. An action that is not here cannot be done.

Actions are *ensure* verbs: whoever performs one checks identity and precondition at that moment and is done at once,
with `changed=False`, when the state already holds. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recover.model.process import ProcessId
from recover.model.snapshot import Channel
from recover.model.verdict import Scope


@dataclass(frozen=True, slots=True)
class StopService:
    """Stop a unit or container through its own manager. Proof: it is inactive."""

    manager: str  # systemd | systemd-user | docker | podman | supervisord
    name: str
    deadline_s: float = 60.0
    monitor: bool = False  # a monitor (DCGM, exporter, persistenced): started again at once, never SIGKILLed
    uid: int | None = None  # whose manager, for a systemd --user unit
    launch: tuple[str, ...] = ()  # the server's own command, without secrets: judged before it is started again


@dataclass(frozen=True, slots=True)
class StartService:
    manager: str
    name: str
    deadline_s: float = 60.0
    monitor: bool = False
    uid: int | None = None
    launch: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Signal:
    """Send one signal to processes whose identity still holds at the moment of sending."""

    group: str  # the group's key
    members: tuple[ProcessId, ...]
    signal: str  # TERM | QUIT | KILL | INT | CONT
    descendants: bool = True  # also what they started since the look, found again at the moment of the act
    spare: tuple[ProcessId, ...] = ()  # descendants that belong to others: neither they nor what they started


@dataclass(frozen=True, slots=True)
class AwaitGone:
    """Wait until none of the members runs. Plain zombies whose parent lives count as gone."""

    group: str
    members: tuple[ProcessId, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class SetPersistence:
    uuid: str
    bus_id: str
    on: bool


@dataclass(frozen=True, slots=True)
class ResetGpu:
    """`nvidia-smi --gpu-reset` on exactly these GPUs: (uuid, bus id) pairs."""

    gpus: tuple[tuple[str, str], ...]
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class PlaceMarker:
    """Say under /run on the guest that this run works here; refused if another's unexpired marker stands."""

    run: str
    who: str
    host: str
    rung: str
    ttl_s: float
    takes_over: str = ""  # the run whose mark stands and that is provably over: only its mark may be replaced


@dataclass(frozen=True, slots=True)
class ClearMarker:
    run: str


@dataclass(frozen=True, slots=True)
class SyncDisks:
    """`sync` in the guest, bounded."""

    deadline_s: float = 20.0


@dataclass(frozen=True, slots=True)
class VmRef:
    """Which guest, and how it is known again: PVE may move it to another node meanwhile.

    A container's StopVm and StartVm are LXC's stop and start.
    """

    cluster: str
    vmid: int
    smbios_uuid: str  # empty where the configuration has none
    name: str = ""
    container: bool = False

    def __str__(self) -> str:
        return f"{'container' if self.container else 'VM'} {self.vmid}"


@dataclass(frozen=True, slots=True)
class ShutdownVm:
    """Ask the guest to power off (agent or ACPI), never forced."""

    vm: VmRef
    deadline_s: float
    start_timeout_s: int = 300  # for the duty that this act opens


@dataclass(frozen=True, slots=True)
class StopVm:
    """End QEMU. Proof: status, the task's log, and the host's memory coming back."""

    vm: VmRef
    deadline_s: float = 180.0  # PVE itself may take 60 + 10 + 1 s, 131 s from 9.2 (qemu-server, _do_vm_stop)
    start_timeout_s: int = 300  # for the duty that this act opens
    memory_mib: int = 0  # what the host must get back


@dataclass(frozen=True, slots=True)
class StartVm:
    """Start QEMU with an explicit time-out (pinning RAM takes long), and read the task's log."""

    vm: VmRef
    timeout_s: int


@dataclass(frozen=True, slots=True)
class ResetVm:
    """QMP system_reset: same QEMU process, no PCI reset by PVE."""

    vm: VmRef
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class AwaitBoot:
    """Wait until the guest answers with another boot id and its GPUs have initialised."""

    not_boot_id: str  # empty: the guest was mute, any fresh boot counts
    gpus: int
    deadline_s: float
    not_before_uptime: bool = False
    not_init_start: int = 0  # of a container's init: its boot id is its host's, another init is its other boot


@dataclass(frozen=True, slots=True)
class RebootGuest:
    """A clean restart asked of the guest's own init, of this boot only. Proof: another boot id within `deadline_s`."""

    boot_id: str
    deadline_s: float


@dataclass(frozen=True, slots=True)
class MemoryObject:
    """One leftover as it was seen: `inode` and `mtime_s` tell it from a later one of the same name."""

    kind: str  # LeftoverKind
    name: str
    folder: str = ""
    inode: int = 0
    size_mib: int = 0
    owner_pid: int | None = None
    mtime_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RemoveLeftovers:
    """Unlink memory objects of dead owners; each is looked at again at that moment and left if anybody has it."""

    objects: tuple[MemoryObject, ...]
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class WakeGpu:
    """Open and close a CUDA context on a GPU on which nothing runs."""

    uuid: str
    bus_id: str
    deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class EndMpsClient:
    """Ask the MPS control daemon to end a client: one that is killed instead can take the others with it."""

    group: str
    server: ProcessId
    client: ProcessId
    deadline_s: float = 20.0


@dataclass(frozen=True, slots=True)
class EndZombieParent:
    """End a process that keeps its dead `children` in the process table; done at once where it reaped them.

    Only while nothing else of it lives: a child of another's would be orphaned.
    """

    group: str
    parent: ProcessId
    children: tuple[ProcessId, ...]
    deadline_s: float = 20.0


@dataclass(frozen=True, slots=True)
class AskServer:
    """One real request, of one token, to servers that were started again; what can't be asked for one is left.

    `who`: for each URL the processes that were seen to listen there. One of them must still do so, and it is asked in
    its own network; nobody where that is not known.
    """

    urls: tuple[str, ...]
    deadline_s: float = 60.0
    who: tuple[tuple[ProcessId, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SuspendAutostart:
    """What starts at boot by itself doesn't until it is restored. `was`: what to restore: enabled, always, ..."""

    manager: str
    name: str
    was: str
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class RestoreAutostart:
    manager: str
    name: str
    was: str
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class UnloadDriver:
    """Take the driver's modules out, in this order, in a process that may be abandoned."""

    modules: tuple[str, ...]
    boot_id: str
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class LoadDriver:
    """Load the driver's modules, in this order. Proof: they are listed. `boot_id`: of the boot that unloaded them."""

    modules: tuple[str, ...]
    boot_id: str = ""
    deadline_s: float = 120.0


@dataclass(frozen=True, slots=True)
class ResetPci:
    """Reset functions of a stopped VM on its node. `how`: flr, bus (by the ports above), rescan (off the bus and on).

    Refused while anybody holds one of them, where others would be hit, or where the node booted anew (`boot_id`).
    """

    vm: VmRef
    node: str
    addresses: tuple[str, ...]
    how: str
    boot_id: str
    deadline_s: float = 300.0
    own: tuple[str, ...] = ()  # all functions that are passed through to this VM


@dataclass(frozen=True, slots=True)
class RescanPci:
    """Look for functions that are off the node's bus; what is on it is not touched. Proof: they are back and answer."""

    node: str
    addresses: tuple[str, ...]
    boot_id: str
    deadline_s: float = 90.0


@dataclass(frozen=True, slots=True)
class RestoreResetMethod:
    """The kernel's own order of reset methods, for functions of which we may have chosen one."""

    node: str
    addresses: tuple[str, ...]
    boot_id: str
    deadline_s: float = 60.0


GpuAction = StopService | StartService | Signal | AwaitGone | SetPersistence | ResetGpu


@dataclass(frozen=True, slots=True)
class OnHost:
    """The same act through the node's root shell: containers share its kernel, its processes and its driver."""

    node: str
    boot_id: str
    do: GpuAction


Action = (
    StopService
    | StartService
    | Signal
    | AwaitGone
    | SetPersistence
    | ResetGpu
    | PlaceMarker
    | ClearMarker
    | SyncDisks
    | ShutdownVm
    | StopVm
    | StartVm
    | ResetVm
    | AwaitBoot
    | RebootGuest
    | RemoveLeftovers
    | WakeGpu
    | EndMpsClient
    | EndZombieParent
    | AskServer
    | SuspendAutostart
    | RestoreAutostart
    | UnloadDriver
    | LoadDriver
    | ResetPci
    | RescanPci
    | RestoreResetMethod
    | OnHost
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an act ended. `clear` False: it may or may not have happened; it is looked up, never repeated blindly."""

    ok: bool
    detail: str = ""
    changed: bool = True
    clear: bool = True
    seconds: float = 0.0
    log: tuple[str, ...] = ()  # cleaned lines that tell more: task log, survivors
    busy: str = ""  # UPID of our own task that still runs
    final: bool = False  # the same again would end the same way, and may do harm: a device that was given up


@dataclass(frozen=True, slots=True)
class Act:
    """`must=False`: a failure is noted and the line goes on (SIGTERM's wait before SIGKILL)."""

    do: Action
    must: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """What a step would do now, in order; a straight line without a branch."""

    acts: tuple[Act, ...]
    worst_case_s: float = 0.0
    words: tuple[str, ...] = ()  # one plain sentence per thing done, for the gate


@dataclass(frozen=True, slots=True)
class Pass:
    """This rung is of no use here: go higher."""

    why: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Neither this rung nor anything above it may be done now. `lift` tells a person how to lift it."""

    guard: str
    why: str
    lift: str


Plan = Line | Pass | Refuse


class Due(StrEnum):
    AT_ONCE = "at-once"
    AT_RECOVERY = "at-recovery"
    AT_END = "at-end"


@dataclass(frozen=True, slots=True)
class Duty:
    """What we owe since we changed something. `key` is what settles it: see steps/undo."""

    key: str
    do: Action
    due: Due
    via: Channel


@dataclass(frozen=True, slots=True)
class Hit:
    """Something that a line stops or disturbs."""

    kind: str  # guest | service | group | process | session | device | memory | neighbour | link
    name: str
    how: str


@dataclass(frozen=True, slots=True)
class Blast:
    """Who is hit by a line, in words and for JSON."""

    scope: Scope
    hits: tuple[Hit, ...]
    minutes: float
    past_runs: int = 0  # how many runs of this target say so; 0: an estimate from its size
