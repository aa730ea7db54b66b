"""What we change we owe: for each act the duty that it opens, the act that pays it, and when it is void. Nowhere else.

A duty opens when its act is *begun*, since an act with an unclear end may have happened. So a duty is void only on
evidence that somebody else brought the state back; where the state merely looks right, the duty is paid: its act is an
ensure verb and costs nothing then.
"""

from __future__ import annotations

from typing import assert_never

from recover.model.act import (
    Action,
    AskServer,
    AwaitBoot,
    AwaitGone,
    ClearMarker,
    Due,
    Duty,
    EndMpsClient,
    EndZombieParent,
    LoadDriver,
    OnHost,
    PlaceMarker,
    RebootGuest,
    RemoveLeftovers,
    RescanPci,
    ResetGpu,
    ResetPci,
    ResetVm,
    RestoreAutostart,
    RestoreResetMethod,
    SetPersistence,
    ShutdownVm,
    Signal,
    StartService,
    StartVm,
    StopService,
    StopVm,
    SuspendAutostart,
    SyncDisks,
    UnloadDriver,
    VmRef,
    WakeGpu,
)
from recover.model.guest import Guest
from recover.model.hypervisor import Hypervisor, Task
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot

FABRIC_MANAGER = "nvidia-fabricmanager"
_DRIVER = "driver"  # there is one in a guest
_STOPS = frozenset({"qmstop", "qmshutdown", "hastop", "vzstop", "vzshutdown"})
_STARTS = frozenset({"qmstart", "hastart", "vzstart"})


def vm_key(vm: VmRef) -> str:
    return f"vm:{vm.cluster}/{vm.vmid}"


def service_key(manager: str, name: str, uid: int | None = None) -> str:
    return f"service:{manager}/{name}" if uid is None else f"service:{manager}/{uid}/{name}"


def autostart_key(manager: str, name: str, uid: int | None = None) -> str:
    return service_key(manager, name, uid).replace("service:", "autostart:", 1)


def method_key(node: str, addresses: tuple[str, ...]) -> str:
    return f"reset-method:{node}/{addresses[0]}" + (f"+{len(addresses) - 1}" if len(addresses) > 1 else "")


def duty(action: Action) -> Duty | None:
    """What beginning `action` makes us owe."""
    match action:
        case StopService(manager, name, monitor=monitor, uid=uid, launch=launch):
            start = StartService(manager, name, monitor=monitor, uid=uid, launch=launch)
            due = Due.AT_ONCE if monitor else Due.AT_RECOVERY
            return Duty(service_key(manager, name, uid), start, due, Channel.GUEST)
        case SuspendAutostart(manager, name, was, uid):
            back = RestoreAutostart(manager, name, was, uid)
            return Duty(autostart_key(manager, name, uid), back, Due.AT_END, Channel.GUEST)
        case UnloadDriver(modules, boot_id):
            return Duty(_DRIVER, LoadDriver(tuple(reversed(modules)), boot_id), Due.AT_ONCE, Channel.GUEST)
        case SetPersistence(uuid, bus_id, on=False):
            return Duty(f"persistence:{uuid}", SetPersistence(uuid, bus_id, on=True), Due.AT_ONCE, Channel.GUEST)
        case PlaceMarker(run):
            return Duty(f"marker:{run}", ClearMarker(run), Due.AT_END, Channel.GUEST)
        case ShutdownVm(vm, start_timeout_s=timeout) | StopVm(vm, start_timeout_s=timeout):
            return Duty(vm_key(vm), StartVm(vm, timeout), Due.AT_ONCE, Channel.HYPERVISOR)
        case ResetPci(_, node, addresses, how, boot_id, own=own) if how != "rescan":
            methods = RestoreResetMethod(node, own or addresses, boot_id)
            return Duty(method_key(node, own or addresses), methods, Due.AT_ONCE, Channel.HOST)
        case OnHost(node, boot_id, inner):
            return _on_host(node, boot_id, duty(inner))
        case AskServer() | EndZombieParent():
            return None
        case StartService() | Signal() | AwaitGone() | SetPersistence() | ResetGpu() | ClearMarker():
            return None
        case SyncDisks() | StartVm() | ResetVm() | AwaitBoot() | RebootGuest() | RestoreAutostart() | LoadDriver():
            return None
        case RemoveLeftovers() | WakeGpu() | EndMpsClient() | ResetPci() | RescanPci() | RestoreResetMethod():
            return None
        case _:
            assert_never(action)


def _on_host(node: str, boot_id: str, inside: Duty | None) -> Duty | None:
    if inside is None or not isinstance(inside.do, StartService | SetPersistence):
        return None
    return Duty(f"host:{node}/{inside.key}", OnHost(node, boot_id, inside.do), inside.due, Channel.HOST)


def settles(action: Action) -> str | None:
    """The key of the duty that `action` closes once it is done well."""
    match action:
        case StartService(manager, name, uid=uid):
            return service_key(manager, name, uid)
        case RestoreAutostart(manager, name, uid=uid):
            return autostart_key(manager, name, uid)
        case LoadDriver():
            return _DRIVER
        case SetPersistence(uuid, on=True):
            return f"persistence:{uuid}"
        case ClearMarker(run):
            return f"marker:{run}"
        case StartVm(vm):
            return vm_key(vm)
        case RestoreResetMethod(node, addresses):
            return method_key(node, addresses)
        case OnHost(node, _, inner):
            key = settles(inner)
            return f"host:{node}/{key}" if key is not None else None
        case AskServer() | EndZombieParent():
            return None
        case StopService() | Signal() | AwaitGone() | SetPersistence() | ResetGpu() | PlaceMarker():
            return None
        case SyncDisks() | ShutdownVm() | StopVm() | ResetVm() | AwaitBoot() | RebootGuest() | SuspendAutostart():
            return None
        case RemoveLeftovers() | WakeGpu() | EndMpsClient() | UnloadDriver() | ResetPci() | RescanPci():
            return None
        case _:
            assert_never(action)


def waits_for_reset(owed: Duty) -> bool:
    """A fabric manager is not started onto GPUs whose reset failed: it would take them into a broken fabric."""
    do = owed.do.do if isinstance(owed.do, OnHost) else owed.do
    return isinstance(do, StartService) and do.name.removesuffix(".service") == FABRIC_MANAGER


def settled_by_others(owed: Duty, snapshot: Snapshot, opened_at: float | None = None) -> str | None:
    """Why `owed`, open since `opened_at` by our clock, is void by what was just seen, or None while it stands."""
    match owed.do:
        case StartVm(vm):
            return _vm_started(vm, snapshot, opened_at)
        case StartService(manager, name, uid=uid):
            return _service_active(manager, name, uid, snapshot)
        case LoadDriver(boot_id=boot_id):
            return _booted_since(boot_id, snapshot)
        case SetPersistence(uuid):
            return _persistence_on(uuid, snapshot)
        case ClearMarker(run):
            return _marker_gone(run, snapshot)
        case _:
            return None


def _vm_started(vm: VmRef, snapshot: Snapshot, opened_at: float | None) -> str | None:
    hypervisor = snapshot.hypervisor
    if not isinstance(hypervisor, Hypervisor) or hypervisor.vmid != vm.vmid or hypervisor.status != "running":
        return None
    if not isinstance(hypervisor.tasks, Known):
        return None
    # A VM that runs may still be on its way down from our own shutdown: only a newer start by another settles it.
    stops = [t.starttime for t in hypervisor.tasks.value if t.ours and t.type in _STOPS]
    if not stops and opened_at is not None and hypervisor.clock_s and snapshot.wall:
        stops = [int(opened_at + hypervisor.clock_s - snapshot.wall)]  # by the node's clock
    for task in hypervisor.tasks.value:
        if stops and _good_start(task) and not task.ours and task.starttime > max(stops):
            return f"{task.user} started VM {vm.vmid} after we had stopped it"
    return None


def _good_start(task: Task) -> bool:
    return task.type in _STARTS and not task.running and (task.status == "OK" or task.status.startswith("WARNINGS"))


def _booted_since(boot_id: str, snapshot: Snapshot) -> str | None:
    """Whoever restarted the guest, its boot decides what is loaded."""
    if not isinstance(snapshot.guest, Guest) or snapshot.guest.mark.boot_id == boot_id:
        return None
    return "the guest booted since then"


def _service_active(manager: str, name: str, uid: int | None, snapshot: Snapshot) -> str | None:
    # Docker shows `running` until its stop is through, systemd says `deactivating`: only systemd's word is evidence.
    if not manager.startswith("systemd") or not isinstance(snapshot.guest, Guest):
        return None
    if not isinstance(snapshot.guest.services, Known):
        return None
    for service in snapshot.guest.services.value:
        if (service.manager, service.name, service.uid) == (manager, name, uid) and service.state == "active":
            return f"{name} is active again"
    return None


def _persistence_on(uuid: str, snapshot: Snapshot) -> str | None:
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.gpus, Known):
        return None
    for gpu in snapshot.guest.gpus.value:
        if gpu.uuid == Known(uuid) and gpu.persistence == Known(True):
            return f"persistence mode of {uuid} is on"
    return None


def _marker_gone(run: str, snapshot: Snapshot) -> str | None:
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.marker, Known):
        return None
    marker = snapshot.guest.marker.value
    if marker is None:
        return "the marker is gone"
    return None if marker.run == run else f"the marker is another run's now: {marker.run}"
