"""One GPU as the guest's driver and the PCI bus show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from recover.model.reading import Known, Reading, Unknown, Why

NOT_ASKED = Unknown(Why.ABSENT, "not asked")


class RecoveryAction(IntEnum):
    """What the driver says is needed: nvmlGpuRecoveryAction, nvml.h 13.5. Other numbers are carried as OTHER."""

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7
    OTHER = 99


class Condition(StrEnum):
    """Whether the driver can speak with the GPU at all."""

    ANSWERS = "answers"
    LOST = "lost"  # NVML 15, or the device is gone from its bus
    RESET_REQUIRED = "reset-required"  # NVML 16
    HANGS = "hangs"  # a call did not come back while the guest answered
    FAILS = "fails"  # another NVML error: see detail
    NOT_ASKED = "not-asked"  # we chose not to ask again before something was done about it


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A row of the driver's process table. `used_mib` is None where the driver does not say."""

    pid: int
    used_mib: int | None
    kind: str  # compute | graphics | mps


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPU identity is UUID + PCI address; index and minor can change with a reboot. Sizes are MiB."""

    index: int
    bus_id: str  # domain:bus:device.function, 8-digit domain, lower case: "00000000:01:00.0"
    uuid: Reading[str]
    condition: Condition
    detail: str = ""
    minor: Reading[int] = NOT_ASKED
    name: Reading[str] = NOT_ASKED
    total_mib: Reading[int] = NOT_ASKED
    reserved_mib: Reading[int] = NOT_ASKED
    used_mib: Reading[int] = NOT_ASKED  # v2 `used` (excludes reserved); v1 only before R510, where it is the same
    processes: Reading[tuple[GpuProcess, ...]] = NOT_ASKED
    utilisation_pct: Reading[int] = NOT_ASKED
    recovery_action: Reading[RecoveryAction] = NOT_ASKED
    persistence: Reading[bool] = NOT_ASKED
    link_width: Reading[int] = NOT_ASKED
    link_width_max: Reading[int] = NOT_ASKED
    mig: Reading[bool] = NOT_ASKED
    remap_pending: Reading[bool] = NOT_ASKED
    remap_failed: Reading[bool] = NOT_ASKED
    ecc_uncorrected: Reading[int] = NOT_ASKED
    virtualisation: Reading[str] = NOT_ASKED  # none | passthrough | vgpu | host-vgpu | host-vsga
    fabric: Reading[str] = NOT_ASKED  # NVLink fabric: none | not started | in progress | completed | failed (words)
    pages_pending: Reading[bool] = NOT_ASKED  # before Ampere: pages that the next reset retires
    shares_system_memory: bool = False  # Grace: freed pages stay with the OS, `used` proves nothing
    pci_ids: str = ""  # vendor:device from sysfs, e.g. "10de:2bb1"
    extra: tuple[tuple[str, str], ...] = field(default=())  # what else was read, for the evidence


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver in the guest. `condition` FAILS with `detail` for mismatch, not loaded, no library."""

    condition: Condition
    detail: str = ""
    nvml_code: int | None = None  # nvmlReturn_t of nvmlInit where it failed
    version: Reading[str] = NOT_ASKED  # of the loaded kernel module
    library_version: Reading[str] = NOT_ASKED
    modules: tuple[str, ...] = ()
    source: str = "nvml"  # nvml | nvidia-smi: who gave the GPU figures


def uuid_of(gpu: Gpu) -> str:
    """How a GPU is named in findings: its UUID, or its bus id where the driver does not say."""
    return gpu.uuid.value if isinstance(gpu.uuid, Known) else gpu.bus_id
