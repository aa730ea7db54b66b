"""`reload-driver`: the driver's modules go out and come in again where nobody holds them; only where a playbook asks.

An unload can hang for ever on a dead GPU. So no GPU may be lost or silent, and one that hangs all the same is a finding
that only the VM cures (core/signals/modules). What was unloaded is owed at once.
"""

from __future__ import annotations

from recover.model.act import (
    Act,
    LoadDriver,
    Pass,
    Plan,
    Refuse,
    SetPersistence,
    StartService,
    StopService,
    UnloadDriver,
)
from recover.model.gpu import Condition, Gpu
from recover.model.guest import Guest, Module
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.process import Process
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import SICK, called, line, number
from recover.steps.gpu import monitors_of

# What uses another stands before it; what is not loaded is left out.
ORDER = (
    "gdrdrv",
    "nvidia_fs",
    "nvidia_peermem",
    "nvidia_vgpu_vfio",
    "nvidia_uvm",
    "nvidia_drm",
    "nvidia_modeset",
    "nvidia",
)
_FRESH = ("nvidia", "nvidia_modeset", "nvidia_uvm")  # where nothing is loaded
_SILENT = frozenset({Condition.HANGS, Condition.NOT_ASKED, Condition.LOST})


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    guest = snapshot.guest
    asked = any(f.cure in (Scope.GPU, Scope.DRIVER) for f in findings)
    if not asked or not isinstance(guest, Guest):
        return Pass("the guest does not answer" if asked else "no finding is of a GPU or the driver")
    if not guest.root or not isinstance(guest.modules, Known):
        return Pass("the driver's modules are not known" if guest.root else "a reload needs root on the guest")
    deadline = number(params, "deadline")
    loaded = {m.name: m for m in guest.modules.value}
    if "nvidia" not in loaded:
        return line([Act(LoadDriver(_FRESH, guest.identity.boot_id, deadline))], ["the NVIDIA driver is loaded"])
    obstacle = _silent(guest) or _tangled(loaded) or _held(snapshot, guest)
    if obstacle is not None:
        return obstacle
    return _line(guest, tuple(name for name in ORDER if name in loaded), deadline)


def _line(guest: Guest, names: tuple[str, ...], deadline: float) -> Plan:
    gpus = guest.gpus.value if isinstance(guest.gpus, Known) else ()
    kept = [(g.uuid.value, g.bus_id) for g in gpus if isinstance(g.uuid, Known) and g.persistence == Known(True)]
    monitors = list(monitors_of(guest))
    boot = guest.identity.boot_id
    acts = [Act(StopService(manager, name, monitor=True)) for manager, name in monitors]
    acts += [Act(SetPersistence(uuid, bus, on=False)) for uuid, bus in kept]
    acts.append(Act(UnloadDriver(names, boot, deadline)))
    acts.append(Act(LoadDriver(tuple(reversed(names)), boot, deadline)))
    acts += [Act(SetPersistence(uuid, bus, on=True)) for uuid, bus in kept]
    acts += [Act(StartService(manager, name, monitor=True)) for manager, name in reversed(monitors)]
    words = [f"{', '.join(names)} are unloaded and loaded again: no GPU can be used meanwhile"]
    words += [f"{name} is stopped for it and started again" for _, name in monitors]
    return line(acts, words)


def _silent(guest: Guest) -> Pass | None:
    if isinstance(guest.driver, Known) and guest.driver.value.condition is Condition.HANGS:
        return Pass("the driver hangs: its unload would hang as well")
    gpus: tuple[Gpu, ...] = guest.gpus.value if isinstance(guest.gpus, Known) else ()
    bad = [g for g in gpus if g.condition in _SILENT]
    if bad:
        return Pass(f"GPU {', '.join(str(g.index) for g in bad)} is lost or silent: an unload can hang on it for ever")
    listed = guest.pci_gpus.value if isinstance(guest.pci_gpus, Known) else ()
    if isinstance(guest.gpus, Known) and len(gpus) < len(listed):
        return Pass("the driver lists fewer GPUs than the bus has: one may be lost")
    return None


def _tangled(loaded: dict[str, Module]) -> Pass | None:
    """Modules that move, that hold each other in a way we don't know, or that something without a process holds."""
    for module in loaded.values():
        if module.state != "Live":
            return Pass(f"{module.name} is {module.state}")
        strange = [name for name in module.used_by if name not in ORDER]
        if strange:
            return Pass(f"{module.name} is used by {', '.join(strange)}, which is not the driver's")
    drm = loaded.get("nvidia_drm")
    if drm is not None and drm.refcount > len(drm.used_by):
        return Pass("nvidia_drm is in use, by a display or the console: no process shows that")
    return None


def _held(snapshot: Snapshot, guest: Guest) -> Pass | Refuse | None:
    if not isinstance(guest.processes, Known):
        return Pass("who holds the driver is not known")
    services = set(monitors_of(guest).values())
    holders = [p for p in guest.processes.value if _holds(p) and p.comm not in services]
    unseen = [p for p in guest.processes.value if not p.holds_known and not p.plain_zombie and not p.ours]
    if unseen:
        return Pass(f"whether pid {unseen[0].pid} ({unseen[0].comm}) holds the driver can't be told")
    sick = {m for g in snapshot.groups if g.health in SICK and not g.protected for m in g.members}
    well = [p for p in holders if p.id not in sick]
    if well:
        named = ", ".join(_name(snapshot, p) for p in well[:5])
        return Refuse("bystanders", f"the driver is also used by {named}", "stop them, then run gpu-recover again")
    if holders:
        return Pass(f"the driver is still held by {_name(snapshot, holders[0])}")
    return None


def _holds(process: Process) -> bool:
    return bool(process.holds) and not process.ours and not process.plain_zombie


def _name(snapshot: Snapshot, process: Process) -> str:
    group = next((g for g in snapshot.groups if process.id in g.members), None)
    return called(group) if group is not None else f"{process.comm} (pid {process.pid})"


STEPS = (
    Step(
        name="reload-driver",
        scope=Scope.DRIVER,
        reach=Scope.DRIVER,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM}),
        plan=_plan,
        params=(
            Param("deadline", 120.0, "how long the unload, and then the load, may take", unit="s", least=10, most=900),
        ),
        doc="Unloads the driver's modules where nobody holds them, in their order, and loads them again at once.",
    ),
)
