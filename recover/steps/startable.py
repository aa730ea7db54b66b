"""A VM that can't be proved to start again is not stopped: each question that stays open refuses, and says the lift."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from recover.model.act import Refuse
from recover.model.hypervisor import GuestKind, Hypervisor, VmConfig
from recover.model.reading import Known, Unknown, Why

_CLOUD_INIT = ("ci", "ipconfig", "sshkeys", "nameserver", "searchdomain")

# Which privilege lets a token read what a guard asks (pve-manager, qemu-server: `permissions` of each call).
PRIVILEGES: Mapping[str, str] = {
    "config": "VM.Audit on /vms/{vmid}",
    "pending": "VM.Audit on /vms/{vmid}",
    "quorum": "Sys.Audit on /",
    "tasks": "Sys.Audit on /nodes/{node}",
    "host-memory": "Sys.Audit on /nodes/{node}",
    "device": "Sys.Audit on / (for mappings also Mapping.Audit on /mapping/pci)",
    "storage": "Datastore.Audit on its storages",
    "backup-due": "Sys.Audit on /",
    "ha": "Sys.Audit on /",
    "qmpstatus": "VM.Audit on /vms/{vmid}",
    "shared-device": "VM.Audit on the guests of {node}, and Mapping.Audit on the PCI mappings that they use",
}


def startable(
    hypervisor: Hypervisor, apply_pending: bool = False, sought: frozenset[str] = frozenset()
) -> Refuse | None:
    """Why VM `hypervisor.vmid` might not come up again after a stop, or None where all is proved.

    `sought`: functions that are off the bus and must have been found again before the stop comes.
    """
    config = hypervisor.config
    if isinstance(config, Unknown):
        return open_question("config", "its configuration", config, hypervisor)
    for check in _CHECKS:
        refusal = check(hypervisor, _without(config.value, sought))
        if refusal is not None:
            return refusal
    return _new_identity(hypervisor) if apply_pending else _pending(hypervisor)


def _without(config: VmConfig, sought: frozenset[str]) -> VmConfig:
    devices = (replace(d, present=Known(True)) if sought & set(d.addresses) else d for d in config.hostpci)
    return replace(config, hostpci=tuple(devices)) if sought else config


def open_question(guard: str, what: str, reading: Unknown, hypervisor: Hypervisor) -> Refuse:
    """A guard that can't be answered refuses; where a privilege is missing it is named."""
    privilege = PRIVILEGES[guard].format(vmid=hypervisor.vmid, node=hypervisor.node)
    if reading.why is Why.DENIED:
        why = f"the token may not read {what}" + (f": {reading.detail}" if reading.detail else "")
        return Refuse(guard, why, f"give the token {privilege}")
    why = f"{what} could not be read: {reading.detail or reading.why}"
    return Refuse(guard, why, f"see that the API answers it (it needs {privilege}), then run again")


def _template(hypervisor: Hypervisor, config: VmConfig) -> Refuse | None:
    if config.template:
        return Refuse("template", f"{hypervisor.vmid} is a template: it never starts", "name the VM, not its template")
    return None


def _quorum(hypervisor: Hypervisor, _: VmConfig) -> Refuse | None:
    if isinstance(hypervisor.quorate, Unknown):
        return open_question("quorum", "whether the cluster has quorum", hypervisor.quorate, hypervisor)
    if not hypervisor.quorate.value:
        why = "the cluster has no quorum: Proxmox would refuse the start"
        return Refuse("quorum", why, "bring the cluster's nodes back (pvecm status), then run again")
    return None


def _storages(hypervisor: Hypervisor, _: VmConfig) -> Refuse | None:
    if isinstance(hypervisor.storages, Unknown):
        return open_question("storage", "whether its storages are active", hypervisor.storages, hypervisor)
    down = [name for name, active in hypervisor.storages.value if not active]
    if down:
        why = f"storage {', '.join(down)} isn't active: the VM would not start"
        return Refuse("storage", why, f"activate it on {hypervisor.node} (pvesm status), then run again")
    return None


def _devices(hypervisor: Hypervisor, config: VmConfig) -> Refuse | None:
    for device in config.hostpci:
        if isinstance(device.present, Unknown):
            return open_question("device", f"whether {device.key} is there", device.present, hypervisor)
        if not device.present.value or not device.addresses:
            named = device.mapping or ", ".join(device.addresses) or device.raw
            why = f"{device.key} ({named}) isn't on the bus of {hypervisor.node}: the VM would not start again"
            return Refuse("device", why, f"as root on {hypervisor.node}: {rescan(device.addresses)}")
    return None


def _memory(hypervisor: Hypervisor, config: VmConfig) -> Refuse | None:
    """What the host has free, with what the stop gives back (all of it: VFIO pins it), must be what the start pins."""
    if hypervisor.kind is GuestKind.CONTAINER:
        return None  # a container's memory is not pinned, nor taken before it is used
    if isinstance(hypervisor.host_memory, Unknown):
        return open_question("host-memory", "the host's memory", hypervisor.host_memory, hypervisor)
    host = hypervisor.host_memory.value
    comes_back = min(config.memory_mib, host.used_mib) if hypervisor.status == "running" else 0
    if host.free_mib + comes_back < config.memory_mib or config.memory_mib > host.total_mib:
        why = f"the VM needs {config.memory_mib} MiB and the host would have {host.free_mib + comes_back} MiB free"
        return Refuse("host-memory", why, f"free memory on {hypervisor.node} (ZFS ARC, other guests), then run again")
    return None


def _backup(hypervisor: Hypervisor, _: VmConfig) -> Refuse | None:
    if isinstance(hypervisor.tasks, Unknown):
        return open_question("tasks", "whether a backup runs", hypervisor.tasks, hypervisor)
    for task in hypervisor.tasks.value:
        if task.running and task.type == "vzdump":
            return Refuse("backup", f"a backup by {task.user} runs", "wait until it has ended, then run again")
    if isinstance(hypervisor.backup_due, Unknown):
        return open_question("backup-due", "whether a backup is due", hypervisor.backup_due, hypervisor)
    if hypervisor.backup_due.value:
        why = "a backup job that includes it begins within half an hour"
        return Refuse("backup-due", why, "wait for the backup, or disable the job for now")
    return None


def _new_identity(hypervisor: Hypervisor) -> Refuse | None:
    """A stop applies what is pending: with another SMBIOS UUID the VM that we owe a start would not be known again."""
    if isinstance(hypervisor.pending, Unknown):
        return open_question("pending", "its pending changes", hypervisor.pending, hypervisor)
    if any(change.key == "smbios1" for change in hypervisor.pending.value):
        return Refuse("pending", "its SMBIOS UUID is to change at the stop", "apply or revert that by hand first")
    return None


def _pending(hypervisor: Hypervisor) -> Refuse | None:
    if isinstance(hypervisor.pending, Unknown):
        return open_question("pending", "its pending changes", hypervisor.pending, hypervisor)
    changes = hypervisor.pending.value
    if not changes:
        return None
    named = ", ".join(f"{p.key} (removed)" if p.delete else p.key for p in changes)
    kind = "cloud-init changes" if all(p.key.startswith(_CLOUD_INIT) for p in changes) else "pending changes"
    why = f"stopping it would apply {kind} that somebody made: {named}"
    return Refuse("pending", why, "see to them (qm pending), or allow them with --apply-pending")


def rescan(addresses: tuple[str, ...]) -> str:
    """How a person looks for a device that is off the bus; nothing that is on it is touched by that."""
    shown = " && ".join(f"lspci -nns {a}" for a in addresses) or "lspci -nnd 10de:"
    return (
        f"echo 1 > /sys/bus/pci/rescan; {shown}    # not listed: power the node off for 30 s and on, or take the "
        "device out of the configuration"
    )


_CHECKS: tuple[Callable[[Hypervisor, VmConfig], Refuse | None], ...] = (
    _template,
    _quorum,
    _storages,
    _devices,
    _memory,
    _backup,
)
