"""What a restart would do to the guest's devices, and who shares them."""

from __future__ import annotations

from recover.core.guards.case import Case, hypervisor_of
from recover.model.act import Refuse
from recover.model.hypervisor import GuestKind, VmConfig
from recover.model.reading import Known, Unknown
from recover.steps.common import FRAGILE
from recover.steps.hugepages import short, wanted
from recover.steps.startable import open_question


def config(case: Case) -> Refuse | None:
    hypervisor = hypervisor_of(case)
    if isinstance(hypervisor.config, Unknown):
        return open_question("config", "its configuration", hypervisor.config, hypervisor)
    return None


def devices(case: Case) -> Refuse | None:
    """Devices that a stop and start would not simply reset and give back."""
    hypervisor = hypervisor_of(case)
    assert isinstance(hypervisor.config, Known)  # config comes first
    config: VmConfig = hypervisor.config.value
    for device in config.hostpci:
        if device.choices > 1:
            why = f"{device.key}: mapping {device.mapping} has {device.choices} entries for {hypervisor.node}"
            return Refuse("mapping-choices", why, "give the mapping one entry per node, so that it is the same device")
        if device.driver == "keep":
            why = f"{device.key} has driver=keep: Proxmox doesn't reset it at a start"
            return Refuse("driver-keep", why, "reset it by hand on the host, or take driver=keep out")
        if device.mdev:
            why = f"{device.key} is a virtual GPU ({device.mdev}): its memory belongs to the host's driver"
            return Refuse("vgpu", why, "ask whoever runs the host's vGPU manager")
    if "vfio-pci" in config.args:
        return Refuse("args", "its `args` pass a device through behind Proxmox's back", "use hostpci for that device")
    return None


def shared(case: Case) -> Refuse | None:
    hypervisor = hypervisor_of(case)
    if hypervisor.kind is GuestKind.CONTAINER:
        return None  # a GPU of the node may serve many; what resets one looks at all of them (steps/container)
    if isinstance(hypervisor.neighbours, Unknown):
        what = "which other guests share its devices"
        return open_question("shared-device", what, hypervisor.neighbours, hypervisor)
    for near in hypervisor.neighbours.value:
        # The cluster's list has QEMU's own word ("paused") where it runs, "unknown" where nobody said lately
        # (pve-manager, pvestatd.pm and API2Tools.pm): only what is stopped has let go of its devices.
        if near.status != "stopped" and near.shares:
            how = "runs" if near.status == "running" else f"is {near.status}"
            why = f"{near.name} ({near.vmid}) {how} and shares {', '.join(near.shares)}"
            return Refuse("shared-device", why, f"stop {near.vmid} first, or give each guest its own devices")
    return None


def fragile(case: Case) -> Refuse | None:
    hypervisor, approved = hypervisor_of(case), case.context.approved
    if approved is not None and approved >= case.step.scope:
        return None
    assert isinstance(hypervisor.config, Known)  # config comes first
    for device in hypervisor.config.value.hostpci:
        for ids in device.device_ids:
            if ids.lower() in FRAGILE:
                why = f"{device.key} is an {FRAGILE[ids.lower()]}: a reset can leave it dead until the host reboots"
                return Refuse("fragile-device", why, f"accept that with --approve {case.step.scope.word}")
    return None


def protection(case: Case) -> Refuse | None:
    """Proxmox only keeps such a guest from being removed; who set it wants to be asked before more is done to it."""
    hypervisor, approved = hypervisor_of(case), case.context.approved
    assert isinstance(hypervisor.config, Known)  # config comes first
    if not hypervisor.config.value.protection or (approved is not None and approved >= case.step.scope):
        return None
    why = f"guest {hypervisor.vmid} has the protection flag"
    return Refuse("protection", why, f"ask who set it, and say --approve {case.step.scope.word}")


def hugepages(case: Case) -> Refuse | None:
    """A stop lets huge pages go and a start must find them again, of the same size on the same NUMA nodes.

    Only the node's root shell shows its pools (/sys/devices/system/node): what is in them is sure, the rest is not.
    """
    hypervisor, approved = hypervisor_of(case), case.context.approved
    assert isinstance(hypervisor.config, Known)  # config comes first
    seen = hypervisor.config.value
    stops = case.step.name != "reset-vm"  # that one keeps QEMU and its memory
    if not seen.hugepages or seen.keeps_hugepages or not stops:
        return None
    if approved is not None and approved >= case.step.scope:
        return None
    needs, host = wanted(seen), case.snapshot.host
    why = f"its {seen.memory_mib // 1024} GiB are in huge pages: the stop frees them, and the start may not find them"
    if needs is not None:
        missing = short(needs, host.value.hugepages) if isinstance(host, Known) else needs
        if not missing:
            return None
        why += f" ({', '.join(map(str, missing))})"
    return Refuse(
        "hugepages", why, f"set keephugepages: 1 for it, or accept that with --approve {case.step.scope.word}"
    )
