"""What a line of a task log, of QEMU or of the node's kernel means stands in one table; other lines say nothing.

A task that ends OK can carry the line that matters (a reset that failed is only a warning since qemu-server 8.2.6), so
logs are read whether or not the task was a success.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Meaning(StrEnum):
    """What the line says about doing the same again."""

    TERMINAL = "terminal"  # it will fail again: another rung or a person
    RETRY_ONCE = "retry-once"  # seen to pass the second time
    WAIT = "wait"  # somebody or something is still at work: look again first
    NOTE = "note"  # the act goes on; worth telling, and worth a second look at the device


class TaskClass(StrEnum):
    RESET_FAILED_WARN = "reset-failed-warn"
    RESET_FAILED = "reset-failed"
    RESET_WAITING = "reset-waiting"
    RESET_GAVE_UP = "reset-gave-up"
    RESET_NEEDS_GROUP = "reset-needs-group"
    STUCK_D3 = "stuck-d3"
    DEVICE_DEAD = "device-dead"
    DEVICE_BUSY = "device-busy"
    NO_SUCH_DEVICE = "no-such-device"
    NO_FREE_DEVICE = "no-free-device"
    MAPPING_INVALID = "mapping-invalid"
    GROUP_NOT_VIABLE = "group-not-viable"
    BIND_FAILED = "bind-failed"
    UNBIND_BLOCKED = "unbind-blocked"
    NO_IOMMU = "no-iommu"
    IN_USE_BY_VMID = "in-use-by-vmid"
    RESERVED_BY_VMID = "reserved-by-vmid"
    LEFTOVER_RESERVATION = "leftover-reservation"
    LEFTOVER_QEMU = "leftover-qemu"
    LOCKED = "locked"
    FLOCK_TIMEOUT = "flock-timeout"
    FLOCK_WAIT = "flock-wait"
    NO_QUORUM = "no-quorum"
    DENIED = "denied"
    HA_QUEUED = "ha-queued"
    HA_ERROR = "ha-error"
    HA_FAILED = "ha-failed"
    SIGTERMED = "sigtermed"
    SIGKILLED = "sigkilled"
    SHUTDOWN_TIMEOUT = "shutdown-timeout"
    PAUSED = "paused"
    CONTAINER_STUCK = "container-stuck"
    START_TIMEOUT = "start-timeout"
    START_FAILED = "start-failed"
    NO_HOST_MEMORY = "no-host-memory"
    STORAGE = "storage"
    HOOKSCRIPT = "hookscript"
    CONFIG = "config"
    DMA_MAP_NOISE = "dma-map-noise"
    ALREADY_RUNNING = "already-running"
    NOT_RUNNING = "not-running"
    WARNINGS = "warnings"
    INTERRUPTED = "interrupted"
    WORKER_DIED = "worker-died"


# What a start says that fails the next time as well. Each start resets the devices again, and a dead one takes 65 s.
FINAL = frozenset({
    TaskClass.RESET_FAILED, TaskClass.RESET_GAVE_UP, TaskClass.STUCK_D3, TaskClass.DEVICE_DEAD,
    TaskClass.NO_SUCH_DEVICE, TaskClass.MAPPING_INVALID, TaskClass.GROUP_NOT_VIABLE, TaskClass.BIND_FAILED,
    TaskClass.NO_IOMMU, TaskClass.IN_USE_BY_VMID, TaskClass.CONFIG, TaskClass.HA_ERROR,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class TaskNote:
    """One thing that a log says. `device` and `vmid` are what the line names; `lock` is the kind of a config lock."""

    kind: TaskClass
    meaning: Meaning
    says: str
    line: str
    device: str = ""
    vmid: int | None = None
    lock: str = ""


_T, _R, _W, _N = Meaning.TERMINAL, Meaning.RETRY_ONCE, Meaning.WAIT, Meaning.NOTE
_K = TaskClass

# (all of these substrings, class, meaning, in words). The first row that fits a line wins: special before general.
# Texts: qemu-server src/PVE/QemuServer.pm, QemuServer/PCI.pm; pve-common src/PVE/SysFSTools.pm; pve-ha-manager
# src/PVE/HA; pve-container src/PVE/LXC.pm; QEMU hw/vfio; Linux drivers/pci/pci.c, drivers/vfio.
MESSAGES: tuple[tuple[tuple[str, ...], TaskClass, Meaning, str], ...] = (
    # the device's reset
    (("failed to reset PCI device", "trying to continue"), _K.RESET_FAILED_WARN, _N,
     "the node could not reset the device before the start and went on"),
    (("error writing '1' to '/sys/bus/pci/devices/", "/reset'"), _K.RESET_FAILED_WARN, _N,
     "the node could not reset the device before the start and went on"),
    (("can't reset PCI device",), _K.RESET_FAILED, _T, "the node could not reset the device"),
    (("after FLR; waiting",), _K.RESET_WAITING, _W, "the device has not come back from its reset yet"),
    (("after bus reset; waiting",), _K.RESET_WAITING, _W, "the device has not come back from its bus reset yet"),
    (("after resume; waiting",), _K.RESET_WAITING, _W, "the device has not woken up yet"),
    (("not ready", "ms after ", "giving up"), _K.RESET_GAVE_UP, _T, "the device did not come back from its reset"),
    (("timed out waiting for pending transaction",), _K.RESET_WAITING, _N, "the device was reset under traffic"),
    (("Cannot reset device", "depends on group"), _K.RESET_NEEDS_GROUP, _N,
     "QEMU cannot reset the device's bus, since another group on it is not its own"),
    (("stuck in D3",), _K.STUCK_D3, _T, "the device does not wake up from its sleep state"),
    (("Unable to change power state from D3",), _K.STUCK_D3, _T, "the device does not wake up from its sleep state"),
    (("pci_irq_handler: Assertion",), _K.DEVICE_DEAD, _T, "QEMU aborted over a device that does not answer"),
    # finding, binding and sharing it
    (("PCI device mapping invalid",), _K.MAPPING_INVALID, _T, "the hardware is not what the PCI mapping says"),
    (("PCI device mapping not found",), _K.MAPPING_INVALID, _T, "the PCI mapping does not exist"),
    (("no PCI device found for",), _K.NO_SUCH_DEVICE, _T, "the device is not on the bus"),
    (("no pci device info for device",), _K.NO_SUCH_DEVICE, _T, "the device is not on the bus"),
    (("could not find a free device for",), _K.NO_FREE_DEVICE, _T, "no device of the PCI mapping is free"),
    (("already in use by VMID",), _K.IN_USE_BY_VMID, _T, "another guest has the device"),
    (("is currently reserved for use by VMID",), _K.RESERVED_BY_VMID, _W, "another guest is starting with it"),
    (("leftover PCI reservation found",), _K.LEFTOVER_RESERVATION, _N, "a stale reservation was taken over"),
    (("is not viable",), _K.GROUP_NOT_VIABLE, _T, "not every device of the IOMMU group is bound to vfio"),
    (("Verify all devices in group",), _K.GROUP_NOT_VIABLE, _T, "not every device of the IOMMU group is bound to vfio"),
    (("devices within the iommu_group are bound",), _K.GROUP_NOT_VIABLE, _T,
     "not every device of the IOMMU group is bound to vfio"),
    (("/dev/vfio/", "Device or resource busy"), _K.DEVICE_BUSY, _T, "something on the node still holds the device"),
    (("can't unbind/bind PCI group to VFIO",), _K.BIND_FAILED, _T, "the device could not be handed to vfio"),
    (("Cannot bind", "to vfio"), _K.BIND_FAILED, _T, "the device could not be handed to vfio"),
    (("Cannot open iommu_group",), _K.BIND_FAILED, _T, "the device could not be handed to vfio"),
    (("No device request channel registered",), _K.UNBIND_BLOCKED, _T, "the device cannot be unbound while it is held"),
    (("IOMMU not present",), _K.NO_IOMMU, _T, "the node has no IOMMU turned on"),
    (("Cannot find vfio-pci module",), _K.NO_IOMMU, _T, "the node has no vfio-pci module"),
    # what an earlier QEMU left
    (("timeout waiting on systemd",), _K.LEFTOVER_QEMU, _T, "an earlier QEMU of this guest has not ended"),
    # locks, votes, rights
    (("is locked (",), _K.LOCKED, _T, "somebody else works on the guest"),
    (("can't lock file", "got timeout"), _K.FLOCK_TIMEOUT, _R, "another task of this guest was at work"),
    (("trying to acquire lock",), _K.FLOCK_WAIT, _N, "the task waited for another task of this guest"),
    (("no quorum",), _K.NO_QUORUM, _T, "the cluster has no quorum"),
    (("ermission check failed",), _K.DENIED, _T, "a privilege is missing"),
    # high availability
    (("in error state, must be disabled and fixed first",), _K.HA_ERROR, _T, "HA has given up on the guest"),
    (("is in an error state and needs manual intervention",), _K.HA_ERROR, _T, "HA has given up on the guest"),
    (("Requesting HA ",), _K.HA_QUEUED, _W, "HA was asked; nothing has happened yet"),
    (("unable to start service ",), _K.HA_FAILED, _T, "HA could not start the guest"),
    (("unable to stop service ",), _K.HA_FAILED, _T, "HA could not stop the guest"),
    # ending
    (("terminating now with SIGTERM",), _K.SIGTERMED, _N, "QEMU did not quit when asked"),
    (("terminating now with SIGKILL",), _K.SIGKILLED, _N, "QEMU was killed; it may still hold memory and devices"),
    (("VM quit/powerdown failed",), _K.SHUTDOWN_TIMEOUT, _T, "the guest did not power off"),
    (("VM is paused - cannot shutdown",), _K.PAUSED, _T, "a paused guest cannot power off"),
    (("container did not stop",), _K.CONTAINER_STUCK, _T, "the container's processes do not end"),
    # starting
    (("hugepage allocation failed",), _K.NO_HOST_MEMORY, _W, "the node has not enough free huge pages"),
    (("Cannot allocate memory",), _K.NO_HOST_MEMORY, _W, "the node has not enough free memory"),
    (("VFIO_MAP_DMA failed: Invalid argument",), _K.DMA_MAP_NOISE, _N, "harmless: seen on guests that start fine"),
    (("vfio_dma_map(", "= -22"), _K.DMA_MAP_NOISE, _N, "harmless: seen on guests that start fine"),
    (("start failed", "got timeout"), _K.START_TIMEOUT, _R, "QEMU took longer than the start's time-out"),
    (("QEMU exited with code",), _K.START_FAILED, _T, "QEMU ended at once; the lines before say why"),
    (("start failed:",), _K.START_FAILED, _T, "the start failed"),
    (("storage '", "is not online"), _K.STORAGE, _T, "a storage that the guest needs is not online"),
    (("unable to activate storage",), _K.STORAGE, _T, "a storage that the guest needs cannot be activated"),
    (("hookscript error",), _K.HOOKSCRIPT, _T, "the guest's hook script failed"),
    (("q35 machine model is not enabled",), _K.CONFIG, _T, "the configuration needs the q35 machine type"),
    (("assigned more than once",), _K.CONFIG, _T, "a device stands twice in the configuration"),
    (("if it's a template",), _K.CONFIG, _T, "a template cannot be started"),
    (("Device /dev/nvidia", "does not exist"), _K.NO_SUCH_DEVICE, _T, "the node's driver has not made the device file"),
    (("VM ", " already running"), _K.ALREADY_RUNNING, _N, "the guest runs already"),
    (("CT ", " already running"), _K.ALREADY_RUNNING, _N, "the guest runs already"),
    (("VM ", " not running"), _K.NOT_RUNNING, _N, "the guest does not run"),
    (("CT ", " not running"), _K.NOT_RUNNING, _N, "the guest does not run"),
    # the task itself
    (("WARNINGS: ",), _K.WARNINGS, _N, "the task ended with warnings"),
    (("received interrupt",), _K.INTERRUPTED, _T, "somebody cancelled the task"),
    (("interrupted by signal",), _K.INTERRUPTED, _T, "somebody cancelled the task"),
    (("unexpected status",), _K.WORKER_DIED, _W, "the task's process died; what it did is not known"),
    (("unable to get last line from task log",), _K.WORKER_DIED, _W, "the task's end is not known"),
    (("unable to read tail",), _K.WORKER_DIED, _W, "the task's end is not known"),
)  # fmt: skip

_DEVICE = re.compile(
    r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?(?![0-9a-f:])|/dev/nvidia\d+|(?<=/dev/vfio/)\d+"
)
_VMID = re.compile(r"VMID '(\d+)'|\b(?:VM|CT) (\d+)\b|\b(?:vm|ct):(\d+)|/lock-(\d+)\.conf|/pve-config-(\d+)\.lock")
_LOCK = re.compile(r"is locked \(([a-z-]+)\)")
_BY_WEIGHT = (_T, _W, _R, _N)


def classify_line(line: str) -> TaskNote | None:
    for parts, kind, meaning, says in MESSAGES:
        if all(part in line for part in parts):
            device, vmid, lock = _DEVICE.search(line), _VMID.search(line), _LOCK.search(line)
            number = next((int(g) for g in vmid.groups() if g), None) if vmid else None
            return TaskNote(
                kind, meaning, says, line.strip(), device[0] if device else "", number, lock[1] if lock else ""
            )
    return None


def classify(lines: Iterable[str]) -> tuple[TaskNote, ...]:
    """What the lines say, in their order; the same thing about the same device or guest once."""
    found: dict[tuple[TaskClass, str, int | None], TaskNote] = {}
    for line in lines:
        note = classify_line(line)
        if note is not None:
            found.setdefault((note.kind, note.device, note.vmid), note)
    return tuple(found.values())


def gravest(notes: Iterable[TaskNote]) -> TaskNote | None:
    """The note that decides: a terminal one before one to wait for, and that before one to retry."""
    return min(notes, key=lambda note: _BY_WEIGHT.index(note.meaning), default=None)
