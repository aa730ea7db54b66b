"""The bytes of the state file: this mirrors fakestate.h field by field, and a test lays the two beside each other."""

from __future__ import annotations

import ctypes
import uuid as uuids
from typing import Any

MAGIC = b"FAKENVML"
LAYOUT_VERSION = 1
GPUS, ROWS, ERRORS, EVENTS = 16, 64, 24, 16

# One bit per remedy; a *_cleared_by mask says which remedies end that trouble.
REMEDIES = {"gpu-reset": 1, "driver-reload": 2, "guest-reboot": 4, "vm-reset": 8, "vm-restart": 16, "host-reset": 32}
ANY_REMEDY = sum(REMEDIES.values())
RESET_MODES = {"ok": 0, "unsupported": 1, "fail": 2, "hang": 3, "in-use": 4}
KINDS = {"compute": 0, "graphics": 1, "mps": 2}

NO_INSTANCE = 0xFFFFFFFF  # what NVML puts in the instance ids of a process on a GPU without MIG

u32, i32, u64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64


def _text(size: int) -> Any:
    return ctypes.c_char * size


class Error(ctypes.Structure):
    _fields_ = [("call", _text(56)), ("code", i32), ("left", u32)]


class Row(ctypes.Structure):
    _fields_ = [("pid", u32), ("kind", u32), ("mib", u64), ("gi", u32), ("ci", u32), ("name", _text(104))]


class Event(ctypes.Structure):
    _fields_ = [("seq", u64), ("type", u64), ("data", u64), ("gpu", u32), ("spare", u32)]


def _words(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


GPU_FIELDS = [
    *_words(u32, "present minor"),
    ("uuid", _text(80)),
    ("bus_id", _text(32)),
    ("name", _text(96)),
    ("serial", _text(32)),
    ("vbios", _text(32)),
    *_words(u32, "pci_device_id pci_subsystem_id"),
    *_words(u64, "total_mib reserved_mib idle_mib leak_mib bar1_total_mib bar1_used_mib"),
    *_words(u32, "leak_cleared_by lost_cleared_by hang_cleared_by needs_reset_cleared_by link_cleared_by"),
    *_words(u32, "ghost_cleared_by util_gpu util_mem ghost persistence recovery_action"),
    *_words(u32, "link_width link_width_max link_gen link_gen_max mig_supported mig_current mig_pending"),
    *_words(u32, "remap_supported remap_corr remap_unc remap_pending remap_failed"),
    *_words(u32, "ecc_supported ecc_enabled retired_supported retired_sbe retired_dbe retired_pending"),
    *_words(u64, "ecc_vol_corr ecc_vol_unc ecc_agg_corr ecc_agg_unc"),
    *_words(u32, "nvlinks nvlink_down fabric_state fabric_status virt_mode lost reset_required hang"),
    *_words(u32, "reset_mode reset_ms resetting_pid resets wedges_on_restart"),
]


class Gpu(ctypes.Structure):
    _fields_ = [*GPU_FIELDS, ("errors", Error * ERRORS), ("rows", Row * ROWS)]


class Layout(ctypes.Structure):
    _fields_ = [
        ("magic", _text(8)),
        *_words(u32, "layout size"),
        ("generation", u64),
        *_words(u32, "driver_loaded init_hang"),
        *_words(i32, "init_error cuda_version"),
        ("driver_version", _text(80)),
        ("nvml_version", _text(80)),
        ("event_seq", u64),
        ("events", Event * EVENTS),
        ("errors", Error * ERRORS),
        ("gpus", Gpu * GPUS),
    ]


GPU_NAMES = frozenset(name for name, _ in GPU_FIELDS)
DRIVER_NAMES = frozenset("driver_version nvml_version driver_loaded init_error init_hang cuda_version".split())  # noqa: SIM905


def layout_lines() -> list[str]:
    """`struct.field offset size` of every field, in order: compared with what the C library exports."""
    lines = []
    for name, struct in (("error", Error), ("row", Row), ("event", Event), ("gpu", Gpu), ("state", Layout)):
        for field in struct._fields_:
            place = getattr(struct, field[0])
            lines.append(f"{name}.{field[0]} {place.offset} {place.size}")
        lines.append(f"{name} 0 {ctypes.sizeof(struct)}")
    return lines


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    """The fields of a healthy, idle RTX PRO 6000 Blackwell in a passthrough guest; `changes` override any of them."""
    fields: dict[str, Any] = {
        "present": 1,
        "minor": index,
        "uuid": "GPU-" + str(uuids.uuid5(uuids.NAMESPACE_OID, f"fake-gpu-{index}")),
        "bus_id": f"00000000:{index + 1:02X}:00.0",
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "serial": f"17922{index:08d}",
        "vbios": "98.02.55.00.01",
        "pci_device_id": 0x2BB510DE,
        "pci_subsystem_id": 0x204E10DE,
        "total_mib": 97887,
        "reserved_mib": 636,
        "bar1_total_mib": 131072,
        "bar1_used_mib": 1,
        "leak_cleared_by": REMEDIES["gpu-reset"] | REMEDIES["vm-restart"] | REMEDIES["host-reset"],
        "lost_cleared_by": REMEDIES["vm-restart"] | REMEDIES["host-reset"],
        "hang_cleared_by": REMEDIES["vm-restart"] | REMEDIES["host-reset"],
        "needs_reset_cleared_by": ANY_REMEDY & ~REMEDIES["driver-reload"],
        "link_cleared_by": REMEDIES["host-reset"],
        "ghost_cleared_by": ANY_REMEDY,
        "link_width": 16,
        "link_width_max": 16,
        "link_gen": 5,
        "link_gen_max": 5,
        "mig_supported": 1,
        "remap_supported": 1,
        "ecc_supported": 1,
        "ecc_enabled": 1,
        "virt_mode": 1,
        "reset_ms": 200,
    }
    unknown = set(changes) - GPU_NAMES
    if unknown:
        raise ValueError(f"no such GPU field: {', '.join(sorted(unknown))}")
    return {**fields, **changes}


def mask(*remedies: str) -> int:
    """The *_cleared_by mask of the named remedies."""
    return sum(REMEDIES[name] for name in set(remedies))


def held_mib(slot: Any) -> int:
    held = slot.idle_mib + slot.leak_mib + sum(row.mib for row in slot.rows if row.pid)
    return int(min(slot.total_mib - slot.reserved_mib, held))
