"""Who is hit by a line, in words: what is not named here was not weighed by the person who said yes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from recover.core.engines import legitimate_holder
from recover.core.owners import container_of
from recover.model import act
from recover.model.guest import Guest
from recover.model.hypervisor import Hypervisor
from recover.model.memory import LeftoverKind
from recover.model.process import Group, Health, OwnerKind, Process, ProcessId
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope
from recover.steps.common import called, processes
from recover.steps.services import key_of

_SICK = frozenset({Health.DEAD, Health.HUNG})
_SHELLS = frozenset({"bash", "zsh", "sh", "fish", "dash", "ksh", "tcsh"})
_JOBS = ("slurmstepd", "jupyter-lab", "jupyter-noteboo")

# Minutes to be shown: a guess. Unpinning takes about 0.1 s per GB (sglang PR 32829: 243 GB in 25.9 s).
_BOOT_MIN = 2.0
_LINK = "both have {models}: if an NVLink joins them, which can't be seen from here, it goes down with the reset"
_SHOWN = 4  # devices that are named one by one
_PER_GPU_MIN = 0.25
_UNPIN_MIN_PER_GIB = 0.1 / 60
_PIN_MIN_PER_GIB = 0.25 / 60


def blast(snapshot: Snapshot, scope: Scope, line: act.Line) -> act.Blast:
    """Everything that `line` stops or disturbs. From GUEST scope up that is all that runs in the guest."""
    hits: dict[tuple[str, str], act.Hit] = {}
    for one in line.acts:
        for hit in _hits(snapshot, one.do):
            hits.setdefault((hit.kind, hit.name), hit)
    return act.Blast(scope, tuple(hits.values()), round(_minutes(snapshot, line), 1))


def _hits(snapshot: Snapshot, action: act.Action) -> Iterable[act.Hit]:
    match action:
        case act.StopService(name=name, monitor=True):
            return [act.Hit("service", name, "stopped, and started again at once")]
        case act.StopService(name=name):
            stopped = (action.manager, name, action.uid)
            return [
                act.Hit("service", name, "stopped"),
                *(_ended(g) for g in snapshot.groups if _of(snapshot, g, stopped)),
            ]
        case act.Signal(group=key):
            return [_ended(g) for g in snapshot.groups if g.key == key]
        case act.ResetGpu(gpus=gpus):
            return [act.Hit("device", f"GPU {uuid} ({bus_id})", "reset") for uuid, bus_id in gpus]
        case act.StopVm() | act.ResetVm():
            how = "stopped and started" if isinstance(action, act.StopVm) else "reset"
            guest = act.Hit("guest", f"{action.vm.name} ({action.vm.vmid})", how)
            reset = _devices(snapshot) if isinstance(action, act.StopVm) else []
            return [guest, *reset, *in_guest(snapshot), *beside(snapshot)]
        case (
            act.ShutdownVm()
            | act.StartVm()
            | act.AwaitBoot()
            | act.SyncDisks()
            | act.StartService()
            | act.SetPersistence()
        ):
            return []
        case act.ResetPci(node=node, addresses=addresses):
            return [act.Hit("device", address, f"reset by root on {node}") for address in addresses]
        case act.RescanPci(node=node, addresses=addresses):
            return [act.Hit("device", address, f"looked for on the bus of {node}") for address in addresses]
        case act.OnHost(do=inner):
            return _hits(snapshot, inner)
        case act.RestoreResetMethod():
            return []
        case act.AwaitGone() | act.PlaceMarker() | act.ClearMarker() | act.RestoreAutostart() | act.LoadDriver():
            return []
        case act.RebootGuest():
            return [act.Hit("guest", _guest_name(snapshot), "rebooted from inside"), *in_guest(snapshot)]
        case act.RemoveLeftovers(objects=objects):
            return _removed(objects)
        case act.WakeGpu(uuid=uuid, bus_id=bus_id):
            return [act.Hit("device", f"GPU {uuid} ({bus_id})", "opened and closed")]
        case act.EndMpsClient(group=key):
            return [_ended(g) for g in snapshot.groups if g.key == key]
        case act.EndZombieParent(parent=parent):
            return [act.Hit("process", _called(snapshot, parent), "ended if it does not reap its dead children")]
        case act.AskServer():
            return []
        case act.SuspendAutostart(name=name):
            return [act.Hit("service", name, "does not start at boot until the end of this run")]
        case act.UnloadDriver():
            return [act.Hit("device", "the NVIDIA driver", "unloaded and loaded again")]
        case _:
            assert_never(action)


def _removed(objects: tuple[act.MemoryObject, ...]) -> list[act.Hit]:
    """Sockets hold nothing: a few are named one by one, of many only the first."""
    sockets = [f"{o.folder}/{o.name}" for o in objects if o.kind == LeftoverKind.SOCKET]
    memory = [o for o in objects if o.kind != LeftoverKind.SOCKET]
    hits = [act.Hit("memory", o.name, f"removed ({o.size_mib} MiB of a dead owner)") for o in memory]
    if len(sockets) > _SHOWN:
        rest = f"{', '.join(sockets[:_SHOWN])} and {len(sockets) - _SHOWN} more sockets"
        return [*hits, act.Hit("memory", rest, "removed (nobody listens on them)")]
    return [*hits, *(act.Hit("memory", name, "removed (a socket that nobody listens on)") for name in sockets)]


def _called(snapshot: Snapshot, who: ProcessId) -> str:
    found = processes(snapshot).get(who)
    return f"{found.title[:60] or found.comm} (pid {who.pid})" if found is not None else f"pid {who.pid}"


def _guest_name(snapshot: Snapshot) -> str:
    return snapshot.guest.identity.hostname if isinstance(snapshot.guest, Guest) else snapshot.target.name


def _of(snapshot: Snapshot, group: Group, service: tuple[str, str, int | None]) -> bool:
    return group.owner.name == service[1] or key_of(snapshot, group) == service


def _ended(group: Group) -> act.Hit:
    return act.Hit("group", called(group), f"ended ({group.health})")


def in_guest(snapshot: Snapshot) -> list[act.Hit]:
    """All groups, sessions and foreign containers that a restart of the guest ends."""
    groups = [_ended(g) for g in snapshot.groups if not g.protected]
    return [*_served(snapshot), *groups, *sessions(snapshot)]


def _served(snapshot: Snapshot) -> list[act.Hit]:
    """The services that are configured for this guest, where they run."""
    guest = snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.services, Known):
        return []
    up = {s.name: s.state for s in guest.services.value if s.state in ("active", "running", "activating")}
    return [
        act.Hit("service", name, f"ended with the guest ({up[name]})")
        for name in snapshot.target.services
        if name in up
    ]


def _devices(snapshot: Snapshot) -> list[act.Hit]:
    """What is passed through to the VM: a stop and start resets all of it, one line for all."""
    seen = snapshot.hypervisor
    config = seen.config.value if isinstance(seen, Hypervisor) and isinstance(seen.config, Known) else None
    names = [", ".join(d.addresses) or d.mapping or d.raw for d in config.hostpci] if config is not None else []
    if not names:
        return []
    shown = names if len(names) <= _SHOWN else [names[0], "…", names[-1]]
    what = "passed-through device" if len(names) == 1 else f"{len(names)} passed-through devices"
    return [act.Hit("device", f"{what} ({', '.join(shown)})", "reset by the stop and the start")]


def beside(snapshot: Snapshot) -> list[act.Hit]:
    """Other guests on the same node that a stop of this one may touch, and the ones that can't be seen."""
    hypervisor = snapshot.hypervisor
    if not isinstance(hypervisor, Hypervisor):
        return []
    near = hypervisor.neighbours.value if isinstance(hypervisor.neighbours, Known) else ()
    hits = [
        act.Hit("neighbour", f"{n.name} ({n.vmid})", f"shares {', '.join(n.shares)}; it is {n.status}")
        for n in near
        if n.shares
    ]
    hits += [
        act.Hit("link", f"to {n.name} ({n.vmid})", _LINK.format(models=" and ".join(n.may_be_joined)))
        for n in near
        if n.may_be_joined and n.status != "stopped"
    ]
    if hypervisor.invisible_guests:
        hits.append(act.Hit("neighbour", f"guests on {hypervisor.node} that the token may not see", "not known"))
    return hits


def bystanders(snapshot: Snapshot) -> list[act.Hit]:
    """What runs in the guest and isn't the trouble. Nothing is known of a guest that doesn't answer."""
    well = [act.Hit("group", called(g), g.health) for g in snapshot.groups if not g.protected and g.health not in _SICK]
    return [*well, *sessions(snapshot)]


def sessions(snapshot: Snapshot) -> list[act.Hit]:
    """Logins, terminals that live on, notebooks, jobs and containers that aren't among the groups that are ill."""
    guest = snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.processes, Known):
        return []
    members = {m for g in snapshot.groups for m in g.members}
    alive = [p for p in guest.processes.value if not (p.ours or p.plain_zombie or p.id in members)]
    sick = {g.owner.name for g in snapshot.groups if g.health in _SICK and g.owner.kind is not OwnerKind.NONE}
    found: dict[str, act.Hit] = {}
    for process in alive:
        hit = _session(process)
        if hit is not None and not any(name and name in process.cgroup for name in sick):
            found.setdefault(hit.name, hit)
    return list(found.values())


def _session(process: Process) -> act.Hit | None:
    if process.comm.startswith(("tmux: server", "screen", "SCREEN")):
        return act.Hit("session", f"{process.comm.split(':')[0].lower()} (pid {process.pid})", "ended")
    if "ipykernel" in process.title or process.comm.startswith(_JOBS):
        return act.Hit("session", f"{process.comm} (pid {process.pid})", "ended")
    if process.tty and process.sid == process.pid and process.comm.lstrip("-") in _SHELLS:
        return act.Hit("session", f"login on a terminal (pid {process.pid}, uid {process.uid})", "ended")
    container = container_of(process.cgroup) if not legitimate_holder(process) else ""
    return act.Hit("session", container, "ended") if container else None


def _minutes(snapshot: Snapshot, line: act.Line) -> float:
    """What is to be expected, not the worst case."""
    kinds = {type(one.do) for one in line.acts}
    if not kinds & {act.StopVm, act.ResetVm, act.RebootGuest}:
        return min(line.worst_case_s / 60, 0.2 * len(line.acts) + _held_gib(snapshot) * _UNPIN_MIN_PER_GIB)
    gpus = max((one.do.gpus for one in line.acts if isinstance(one.do, act.AwaitBoot)), default=0)
    minutes = _BOOT_MIN + gpus * _PER_GPU_MIN
    for one in line.acts:
        if isinstance(one.do, act.StopVm):
            minutes += one.do.memory_mib / 1024 * (_UNPIN_MIN_PER_GIB + _PIN_MIN_PER_GIB)
        if isinstance(one.do, act.ShutdownVm):
            minutes += min(1.0, one.do.deadline_s / 60)
    return minutes


def _held_gib(snapshot: Snapshot) -> float:
    guest = snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.ram, Known):
        return 0.0
    return max(0, guest.ram.value.total_mib - guest.ram.value.available_mib) / 1024
