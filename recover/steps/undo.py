"""What we change we owe: for each act the duty that it opens, the act that pays it, and when it is void. Nowhere else.

A duty opens when its act is *begun*, since an act with an unclear end may have happened. So a duty is void only on
evidence that somebody else brought the state back; where the state merely looks right, the duty is paid: its act is an
ensure verb and costs nothing then.
"""

from __future__ import annotations

from typing import assert_never

from recover.model import act
from recover.model.guest import Guest
from recover.model.hypervisor import Hypervisor, Task
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot

FABRIC_MANAGER = "nvidia-fabricmanager"
_DRIVER = "driver"  # there is one in a guest
_STOPS = frozenset({"qmstop", "qmshutdown", "hastop", "vzstop", "vzshutdown"})
_STARTS = frozenset({"qmstart", "hastart", "vzstart"})


def vm_key(vm: act.VmRef) -> str:
    return f"vm:{vm.cluster}/{vm.vmid}"


def service_key(manager: str, name: str, uid: int | None = None) -> str:
    return f"service:{manager}/{name}" if uid is None else f"service:{manager}/{uid}/{name}"


def autostart_key(manager: str, name: str, uid: int | None = None) -> str:
    return service_key(manager, name, uid).replace("service:", "autostart:", 1)


def method_key(node: str, addresses: tuple[str, ...]) -> str:
    return f"reset-method:{node}/{addresses[0]}" + (f"+{len(addresses) - 1}" if len(addresses) > 1 else "")


def duty(action: act.Action) -> act.Duty | None:
    """What beginning `action` makes us owe."""
    match action:
        case act.StopService(manager, name, monitor=monitor, uid=uid, launch=launch):
            start = act.StartService(manager, name, monitor=monitor, uid=uid, launch=launch)
            due = act.Due.AT_ONCE if monitor else act.Due.AT_RECOVERY
            return act.Duty(service_key(manager, name, uid), start, due, Channel.GUEST)
        case act.SuspendAutostart(manager, name, was, uid):
            back = act.RestoreAutostart(manager, name, was, uid)
            return act.Duty(autostart_key(manager, name, uid), back, act.Due.AT_END, Channel.GUEST)
        case act.UnloadDriver(modules, boot_id):
            return act.Duty(_DRIVER, act.LoadDriver(tuple(reversed(modules)), boot_id), act.Due.AT_ONCE, Channel.GUEST)
        case act.SetPersistence(uuid, bus_id, on=False):
            return act.Duty(
                f"persistence:{uuid}", act.SetPersistence(uuid, bus_id, on=True), act.Due.AT_ONCE, Channel.GUEST
            )
        case act.PlaceMarker(run):
            return act.Duty(f"marker:{run}", act.ClearMarker(run), act.Due.AT_END, Channel.GUEST)
        case act.ShutdownVm(vm, start_timeout_s=timeout) | act.StopVm(vm, start_timeout_s=timeout):
            return act.Duty(vm_key(vm), act.StartVm(vm, timeout), act.Due.AT_ONCE, Channel.HYPERVISOR)
        case act.ResetPci(_, node, addresses, how, boot_id, own=own) if how != "rescan":
            methods = act.RestoreResetMethod(node, own or addresses, boot_id)
            return act.Duty(method_key(node, own or addresses), methods, act.Due.AT_ONCE, Channel.HOST)
        case act.OnHost(node, boot_id, inner):
            return _on_host(node, boot_id, duty(inner))
        case act.AskServer() | act.EndZombieParent():
            return None
        case (
            act.StartService()
            | act.Signal()
            | act.AwaitGone()
            | act.SetPersistence()
            | act.ResetGpu()
            | act.ClearMarker()
        ):
            return None
        case (
            act.SyncDisks()
            | act.StartVm()
            | act.ResetVm()
            | act.AwaitBoot()
            | act.RebootGuest()
            | act.RestoreAutostart()
            | act.LoadDriver()
        ):
            return None
        case (
            act.RemoveLeftovers()
            | act.WakeGpu()
            | act.EndMpsClient()
            | act.ResetPci()
            | act.RescanPci()
            | act.RestoreResetMethod()
        ):
            return None
        case _:
            assert_never(action)


def _on_host(node: str, boot_id: str, inside: act.Duty | None) -> act.Duty | None:
    if inside is None or not isinstance(inside.do, act.StartService | act.SetPersistence):
        return None
    return act.Duty(f"host:{node}/{inside.key}", act.OnHost(node, boot_id, inside.do), inside.due, Channel.HOST)


def settles(action: act.Action) -> str | None:
    """The key of the duty that `action` closes once it is done well."""
    match action:
        case act.StartService(manager, name, uid=uid):
            return service_key(manager, name, uid)
        case act.RestoreAutostart(manager, name, uid=uid):
            return autostart_key(manager, name, uid)
        case act.LoadDriver():
            return _DRIVER
        case act.SetPersistence(uuid, on=True):
            return f"persistence:{uuid}"
        case act.ClearMarker(run):
            return f"marker:{run}"
        case act.StartVm(vm):
            return vm_key(vm)
        case act.RestoreResetMethod(node, addresses):
            return method_key(node, addresses)
        case act.OnHost(node, _, inner):
            key = settles(inner)
            return f"host:{node}/{key}" if key is not None else None
        case act.AskServer() | act.EndZombieParent():
            return None
        case (
            act.StopService()
            | act.Signal()
            | act.AwaitGone()
            | act.SetPersistence()
            | act.ResetGpu()
            | act.PlaceMarker()
        ):
            return None
        case (
            act.SyncDisks()
            | act.ShutdownVm()
            | act.StopVm()
            | act.ResetVm()
            | act.AwaitBoot()
            | act.RebootGuest()
            | act.SuspendAutostart()
        ):
            return None
        case (
            act.RemoveLeftovers()
            | act.WakeGpu()
            | act.EndMpsClient()
            | act.UnloadDriver()
            | act.ResetPci()
            | act.RescanPci()
        ):
            return None
        case _:
            assert_never(action)


def waits_for_reset(owed: act.Duty) -> bool:
    """A fabric manager is not started onto GPUs whose reset failed: it would take them into a broken fabric."""
    do = owed.do.do if isinstance(owed.do, act.OnHost) else owed.do
    return isinstance(do, act.StartService) and do.name.removesuffix(".service") == FABRIC_MANAGER


def settled_by_others(owed: act.Duty, snapshot: Snapshot, opened_at: float | None = None) -> str | None:
    """Why `owed`, open since `opened_at` by our clock, is void by what was just seen, or None while it stands."""
    match owed.do:
        case act.StartVm(vm):
            return _vm_started(vm, snapshot, opened_at)
        case act.StartService(manager, name, uid=uid):
            return _service_active(manager, name, uid, snapshot)
        case act.LoadDriver(boot_id=boot_id):
            return _booted_since(boot_id, snapshot)
        case act.SetPersistence(uuid):
            return _persistence_on(uuid, snapshot)
        case act.ClearMarker(run):
            return _marker_gone(run, snapshot)
        case _:
            return None


def _vm_started(vm: act.VmRef, snapshot: Snapshot, opened_at: float | None) -> str | None:
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
