"""`reset-gpu`: `nvidia-smi --gpu-reset` on GPUs that nobody uses; persistence mode and monitors are put back at once.

Which GPUs hang together over NVLink can't be read here: a single one is reset alone, which from Ampere on is allowed
for direct links; where it isn't, the driver refuses and names the missing ones. Where a fabric manager runs, it is
stopped, all GPUs are reset together, and it is started again.
"""

from __future__ import annotations

from recover.model.act import Act, Line, Pass, Plan, Refuse, ResetGpu, SetPersistence, StartService, StopService
from recover.model.gpu import Condition, Gpu, uuid_of
from recover.model.guest import Guest
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.process import Group
from recover.model.reading import Known, known_or
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import FRAGILE, MAY_DIE, SICK, called, flag, indices, line, number
from recover.steps.services import services_of, stops
from recover.steps.undo import FABRIC_MANAGER
from recover.steps.workers import end_groups

# Services that keep GPUs open without working on them, and their processes' names (15 bytes of comm).
_MONITORS = {
    "nvidia-persistenced": "nvidia-persiste",
    "nvidia-dcgm": "nv-hostengine",
    "dcgm": "nv-hostengine",
    "dcgm-exporter": "dcgm-exporter",
    "nvidia-dcgm-exporter": "dcgm-exporter",
    "nvidia_gpu_exporter": "nvidia_gpu_expo",
    "nvsm": "nvsm",
    FABRIC_MANAGER: "nv-fabricmanage",
}
_STOP_S, _TERM_S, _KILL_S = 120.0, 30.0, 60.0  # as stop-service and end-workers have it
_RUNS = frozenset({"active", "running", "activating", "reloading"})


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    guest = snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.gpus, Known):
        return Pass("the driver doesn't list the GPUs")
    chosen = _chosen(guest.gpus.value, findings)
    if not chosen:
        return Pass("no finding asks for the reset of a GPU")
    monitors = list(monitors_of(guest))
    if any(_base(name) == FABRIC_MANAGER for _, name in monitors):
        chosen = guest.gpus.value
    obstacle = _no_use(guest, chosen) or _forbidden(chosen)
    if obstacle is not None:
        return obstacle
    cleared = _clear(snapshot, guest, chosen, flag(params, "evict"))
    if not isinstance(cleared, Line):
        return cleared
    reset = _line(chosen, monitors, number(params, "deadline"))
    return line((*cleared.acts, *reset.acts), (*cleared.words, *reset.words))


def _line(chosen: tuple[Gpu, ...], monitors: list[tuple[str, str]], deadline_s: float) -> Line:
    pairs = tuple((uuid_of(g), g.bus_id) for g in chosen)
    kept = tuple((uuid_of(g), g.bus_id) for g in chosen if g.persistence == Known(True))
    acts = [Act(StopService(manager, name, monitor=True)) for manager, name in monitors]
    # Off only for the reset: without it a PRO 6000 can become unrecoverable (NVSentinel #1690: it counts as a client).
    acts += [Act(SetPersistence(uuid, bus_id, on=False)) for uuid, bus_id in kept]
    acts.append(Act(ResetGpu(pairs, deadline_s)))
    acts += [Act(SetPersistence(uuid, bus_id, on=True)) for uuid, bus_id in kept]
    acts += [Act(StartService(manager, name, monitor=True)) for manager, name in reversed(monitors)]
    words = [f"GPU {g.index} ({g.bus_id}) is reset" for g in chosen]
    models = sorted({FRAGILE[g.pci_ids.lower()] for g in chosen if g.pci_ids.lower() in FRAGILE})
    words += [f"{model}: {MAY_DIE}" for model in models]
    words += [f"{name} is stopped for it and started again" for _, name in monitors]
    return line(acts, words)


def _chosen(gpus: tuple[Gpu, ...], findings: tuple[Finding, ...]) -> tuple[Gpu, ...]:
    named = {f.where for f in findings}
    if any(f.where is None and f.cure is Scope.GPU for f in findings):
        return gpus
    return tuple(g for g in gpus if uuid_of(g) in named or g.bus_id in named)


def _no_use(guest: Guest, chosen: tuple[Gpu, ...]) -> Pass | None:
    if not guest.root:
        return Pass("a reset needs root on the guest")
    if isinstance(guest.driver, Known) and guest.driver.value.condition in (Condition.FAILS, Condition.HANGS):
        return Pass(f"the driver itself fails: {guest.driver.value.detail or guest.driver.value.condition}")
    gpus = guest.gpus.value if isinstance(guest.gpus, Known) else ()
    hung = [g for g in gpus if g.condition in (Condition.HANGS, Condition.NOT_ASKED)]
    if hung:
        # nvidia-smi asks every GPU first, so one that hangs would hang it before any reset.
        return Pass(f"GPU {indices(hung)} doesn't answer the driver, and nvidia-smi would hang with it")
    drm = next((m for m in known_or(guest.modules, ()) if m.name == "nvidia_drm"), None)
    if drm is not None and drm.refcount > len(drm.used_by):
        # No process shows it, and the driver says "in use": a display or the console (magic_castle issue 387).
        return Pass("nvidia_drm is used by a display or the console: the driver would refuse (modprobe -r nvidia_drm)")
    lost = [g for g in chosen if g.condition is Condition.LOST]
    if lost:
        return Pass(f"GPU {indices(lost)} is lost: nothing in the guest reaches it any more")
    return None


def _forbidden(chosen: tuple[Gpu, ...]) -> Refuse | None:
    mig = [g for g in chosen if g.mig == Known(True)]
    if mig:
        why = f"GPU {indices(mig)} is split by MIG; a reset would end every instance"
        return Refuse("mig", why, "end what uses the instances and reset it by hand, or turn MIG off first")
    virtual = [g for g in chosen if isinstance(g.virtualisation, Known) and "vg" in g.virtualisation.value]
    if virtual:
        why = f"GPU {indices(virtual)} is a virtual GPU: a reset belongs to its host"
        return Refuse("vgpu", why, "ask whoever runs the host's vGPU manager")
    return None


def _clear(snapshot: Snapshot, guest: Guest, chosen: tuple[Gpu, ...], evict: bool) -> Plan:
    """What must end before the reset: an empty line where nobody uses the GPUs."""
    names = {uuid_of(g) for g in chosen} | {g.bus_id for g in chosen}
    holders = tuple(g for g in snapshot.groups if g.gpus & names and not _is_monitor(guest, g))
    well = [g for g in holders if g.protected or g.health not in SICK]
    others = [*(called(g) for g in well if g.protected or not evict), *_strangers(snapshot, guest, chosen)]
    if others:
        why = f"GPU {indices(chosen)} is also used by {', '.join(others)}"
        return Refuse("bystanders", why, "stop them, or allow their end with --evict where nothing protects them")
    if well:
        return _evict(snapshot, holders)
    if holders:
        named = ", ".join(called(g) for g in holders)
        return Pass(f"GPU {indices(chosen)} is still held by {named}: the driver would refuse")
    return Line(())


def _evict(snapshot: Snapshot, holders: tuple[Group, ...]) -> Plan:
    now, kept, _ = services_of(snapshot, holders)
    if kept:
        (_, name, _), other = next(iter(kept.items()))
        return Refuse("bystanders", f"{name} also serves {called(other)} on other GPUs", f"stop {name} yourself")
    ends = end_groups(snapshot, holders, _TERM_S, _KILL_S)
    if not isinstance(ends, Line):
        return ends
    words = [f"{manager} stops {name}" for manager, name, _ in now]
    return line((*stops(now, _STOP_S), *ends.acts), (*words, *ends.words))


def _is_monitor(guest: Guest, group: Group) -> bool:
    """Stopped with its service, which runs; one without a service stays a holder, for a person."""
    if group.owner.name in {name for _, name in monitors_of(guest)}:
        return True
    seen = {p.id: p.comm for p in guest.processes.value} if isinstance(guest.processes, Known) else {}
    return all(seen.get(m) in set(monitors_of(guest).values()) for m in group.members)


def _strangers(snapshot: Snapshot, guest: Guest, chosen: tuple[Gpu, ...]) -> list[str]:
    """Processes that hold one of the GPUs, or that the driver lists there, and that belong to no group."""
    if not isinstance(guest.processes, Known):
        return []
    grouped = {m for g in snapshot.groups for m in g.members}
    nodes = {f"nvidia{g.minor.value}" for g in chosen if isinstance(g.minor, Known)}
    listed = {row.pid for g in chosen if isinstance(g.processes, Known) for row in g.processes.value}
    monitors = set(monitors_of(guest).values())
    return [
        f"{p.comm} (pid {p.pid})"
        for p in guest.processes.value
        if p.id not in grouped
        and (p.holds & nodes or p.pid in listed)
        and not (p.ours or p.plain_zombie or p.comm in monitors)
    ]


def _base(name: str) -> str:
    return name.removesuffix(".service")


def monitors_of(guest: Guest) -> dict[tuple[str, str], str]:
    """(manager, name) -> comm of the monitors that run, by their manager or by their process's control group."""
    listed = guest.services.value if isinstance(guest.services, Known) else ()
    running = (s for s in listed if _base(s.name) in _MONITORS and s.state in _RUNS)
    found = {(s.manager, s.name): _MONITORS[_base(s.name)] for s in running}
    for process in guest.processes.value if isinstance(guest.processes, Known) else ():
        unit = process.cgroup.rpartition("/")[2]
        if unit.endswith(".service") and process.comm in _MONITORS.values() and not process.plain_zombie:
            found[("systemd", unit)] = process.comm
    return found


STEPS = (
    Step(
        name="reset-gpu",
        scope=Scope.GPU,
        reach=Scope.GPU,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM}),
        plan=_plan,
        params=(
            Param("deadline", 120.0, "how long nvidia-smi may take", unit="s", least=10, most=900),
            Param("evict", False, "end first whoever uses these GPUs, also what is healthy"),
        ),
        doc="Resets GPUs that nobody uses from inside the guest; monitors and persistence mode are put back at once.",
    ),
)
