"""What `nvidia-smi` sees of one GPU; every value goes through `ask`, which blocks or fails where the library does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from .layout import held_mib

ERROR_TEXT = {
    3: "N/A",
    4: "Insufficient Permissions",
    15: "GPU is lost",
    16: "GPU requires reset",
    26: "Requested functionality has been deprecated",
}
RECOVERY_TEXT = {0: "None", 1: "Reset", 2: "Reboot", 3: "Drain P2P", 4: "Drain and Reset", 5: "Recover IMEX Domain"}
VIRTUALISATION_TEXT = {0: "None", 1: "Pass-Through", 2: "VGPU", 3: "Host VGPU", 4: "Host VSGA"}
FABRIC_TEXT = {0: "N/A", 1: "Not Started", 2: "In Progress", 3: "Completed"}
KIND_LETTER = {0: "C", 1: "G", 2: "M+C"}


class Failed(Exception):
    """An NVML return code in the place of a value."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code
        self.text = ERROR_TEXT.get(code, "Unknown Error")


def nap() -> None:
    time.sleep(0.05)


def planted(table: Any, *calls: str) -> int | None:
    """The code the state file holds for a call, by its name, its name without the version, or for all calls ("*")."""
    names = {call.encode() for call in calls} | {call.rsplit("_v", 1)[0].encode() for call in calls}
    for wanted in (names, {b"*"}):
        for entry in table:
            if entry.call in wanted and entry.call:
                if entry.left:
                    entry.left -= 1
                    if not entry.left:
                        entry.call = b""
                return int(entry.code)
    return None


class Device:
    """One GPU of the state file as nvidia-smi meets it."""

    def __init__(self, number: int, slot: Any, branch: int) -> None:
        self.number, self.slot, self.branch = number, slot, branch

    def text(self, field: str) -> str:
        return str(getattr(self.slot, field).decode("utf-8", "replace"))

    @property
    def bus_id(self) -> str:
        return self.text("bus_id")

    def attach(self) -> None:
        while self.slot.hang >= 2:
            nap()
        code = planted(self.slot.errors, "handle", "nvmlDeviceGetHandleByIndex_v2")
        if code is None and self.slot.lost:
            code = 15
        if code:
            raise Failed(code)

    def resetting(self) -> bool:
        pid = self.slot.resetting_pid
        if not pid or pid == os.getpid():
            return False
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    def ask(self, call: str, survives_reset_required: bool = False) -> None:
        while self.slot.hang:
            nap()
        code = planted(self.slot.errors, call)
        if code is None:
            if self.slot.lost:
                code = 15
            elif self.resetting():
                code = 999
            elif self.slot.reset_required and not survives_reset_required:
                code = 16
        if code:
            raise Failed(code)

    def persistence(self) -> str:
        self.ask("nvmlDeviceGetPersistenceMode", survives_reset_required=True)
        return _enabled(self.slot.persistence)

    def recovery_action(self) -> str:
        self.ask("nvmlDeviceGetFieldValues", survives_reset_required=True)
        code = planted(self.slot.errors, "field:230")
        if code:
            raise Failed(code)
        action = self.slot.recovery_action
        return RECOVERY_TEXT.get(action, f"Unknown ({action})")

    def reset_required_field(self, action: int) -> str:
        self.ask("nvmlDeviceGetFieldValues", survives_reset_required=True)
        if self.branch >= 570:
            raise Failed(26)
        return "Yes" if self.slot.recovery_action == action else "No"

    def memory(self, part: str) -> str:
        self.ask("nvmlDeviceGetMemoryInfo_v2")
        used = held_mib(self.slot)
        total, reserved = self.slot.total_mib, self.slot.reserved_mib
        values = {"total": total, "reserved": reserved, "used": used, "free": total - reserved - used}
        return f"{values[part]} MiB"

    def bar1(self, part: str) -> str:
        self.ask("nvmlDeviceGetBAR1MemoryInfo")
        total, used = self.slot.bar1_total_mib, self.slot.bar1_used_mib
        values = {"total": total, "used": used, "free": total - used}
        return f"{values[part]} MiB"

    def utilisation(self, part: str) -> str:
        self.ask("nvmlDeviceGetUtilizationRates")
        if self.slot.mig_current:
            raise Failed(3)
        gpu = 100 if self.slot.ghost else self.slot.util_gpu
        return f"{gpu if part == 'gpu' else self.slot.util_mem} %"

    def mig(self, part: str) -> str:
        self.ask("nvmlDeviceGetMigMode")
        if not self.slot.mig_supported:
            raise Failed(3)
        return _enabled(self.slot.mig_current if part == "current" else self.slot.mig_pending)

    def ecc(self, field: str) -> str:
        self.ask("nvmlDeviceGetEccMode" if field == "ecc_enabled" else "nvmlDeviceGetTotalEccErrors")
        if not self.slot.ecc_supported or (field != "ecc_enabled" and not self.slot.ecc_enabled):
            raise Failed(3)
        value = getattr(self.slot, field)
        return _enabled(value) if field == "ecc_enabled" else str(value)

    def retired(self, field: str) -> str:
        self.ask("nvmlDeviceGetRetiredPages_v2")
        if not self.slot.retired_supported:
            raise Failed(3)
        return _yes(self.slot.retired_pending) if field == "retired_pending" else str(getattr(self.slot, field))

    def remapped(self, field: str) -> str:
        self.ask("nvmlDeviceGetRemappedRows")
        if not self.slot.remap_supported:
            raise Failed(3)
        value = getattr(self.slot, field)
        return str(value) if field in ("remap_corr", "remap_unc") else _yes(value)

    def link(self, field: str) -> str:
        self.ask("nvmlDeviceGetCurrPcieLinkWidth" if "width" in field else "nvmlDeviceGetCurrPcieLinkGeneration")
        return str(getattr(self.slot, field))

    def virtualisation(self) -> str:
        self.ask("nvmlDeviceGetVirtualizationMode")
        return VIRTUALISATION_TEXT.get(self.slot.virt_mode, "Unknown Error")

    def fabric(self) -> str:
        self.ask("nvmlDeviceGetGpuFabricInfoV")
        return FABRIC_TEXT.get(self.slot.fabric_state, "Unknown Error")

    def processes(self) -> list[tuple[int, str, str, int]]:
        """pid, type, name, MiB of each row; the name is the kernel's, else what the row was given."""
        self.ask("nvmlDeviceGetComputeRunningProcesses_v3")
        rows = [row for row in self.slot.rows if row.pid]
        return [(row.pid, KIND_LETTER.get(row.kind, "C"), _name(row), row.mib) for row in rows]


def _name(row: Any) -> str:
    try:
        with open(f"/proc/{row.pid}/cmdline", "rb") as source:
            title = source.read(1023).split(b"\0", 1)[0]
    except OSError:
        title = b""
    return (title or row.name).decode("utf-8", "replace") or "[Not Found]"


def _enabled(value: int) -> str:
    return "Enabled" if value else "Disabled"


def _yes(value: int) -> str:
    return "Yes" if value else "No"


def shown(read: Callable[[], str], brackets: bool = False) -> str:
    """The value, or the words that nvidia-smi puts in its place."""
    try:
        return read()
    except Failed as failed:
        return f"[{failed.text}]" if brackets else failed.text


# field -> (header, first driver branch that knows it, reader); a header ending in [unit] marks values that carry one.
QUERY: dict[str, tuple[str, int, Callable[[Device], str]]] = {
    "index": ("index", 0, lambda d: str(d.number)),
    "name": ("name", 0, lambda d: d.text("name")),
    "uuid": ("uuid", 0, lambda d: d.text("uuid")),
    "serial": ("serial", 0, lambda d: d.text("serial") or "[N/A]"),
    "vbios_version": ("vbios_version", 0, lambda d: d.text("vbios")),
    "pci.bus_id": ("pci.bus_id", 0, lambda d: d.bus_id),
    "persistence_mode": ("persistence_mode", 0, Device.persistence),
    "memory.total": ("memory.total [MiB]", 0, lambda d: d.memory("total")),
    "memory.reserved": ("memory.reserved [MiB]", 510, lambda d: d.memory("reserved")),
    "memory.used": ("memory.used [MiB]", 0, lambda d: d.memory("used")),
    "memory.free": ("memory.free [MiB]", 0, lambda d: d.memory("free")),
    "utilization.gpu": ("utilization.gpu [%]", 0, lambda d: d.utilisation("gpu")),
    "utilization.memory": ("utilization.memory [%]", 0, lambda d: d.utilisation("memory")),
    "mig.mode.current": ("mig.mode.current", 450, lambda d: d.mig("current")),
    "mig.mode.pending": ("mig.mode.pending", 450, lambda d: d.mig("pending")),
    "ecc.mode.current": ("ecc.mode.current", 0, lambda d: d.ecc("ecc_enabled")),
    "retired_pages.pending": ("retired_pages.pending", 0, lambda d: d.retired("retired_pending")),
    "remapped_rows.correctable": ("remapped_rows.correctable", 450, lambda d: d.remapped("remap_corr")),
    "remapped_rows.uncorrectable": ("remapped_rows.uncorrectable", 450, lambda d: d.remapped("remap_unc")),
    "remapped_rows.pending": ("remapped_rows.pending", 450, lambda d: d.remapped("remap_pending")),
    "remapped_rows.failure": ("remapped_rows.failure", 450, lambda d: d.remapped("remap_failed")),
    "pcie.link.gen.current": ("pcie.link.gen.current", 0, lambda d: d.link("link_gen")),
    "pcie.link.gen.max": ("pcie.link.gen.max", 0, lambda d: d.link("link_gen_max")),
    "pcie.link.width.current": ("pcie.link.width.current", 0, lambda d: d.link("link_width")),
    "pcie.link.width.max": ("pcie.link.width.max", 0, lambda d: d.link("link_width_max")),
    "fabric.state": ("fabric.state", 530, Device.fabric),
    "gpu_recovery_action": ("gpu_recovery_action", 565, Device.recovery_action),
}
ECC_FIELDS = {
    "corrected.volatile": "ecc_vol_corr",
    "uncorrected.volatile": "ecc_vol_unc",
    "corrected.aggregate": "ecc_agg_corr",
    "uncorrected.aggregate": "ecc_agg_unc",
}
for _part, _field in ECC_FIELDS.items():
    QUERY[f"ecc.errors.{_part}.total"] = (f"ecc.errors.{_part}.total", 0, partial(Device.ecc, field=_field))
ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_serial": "serial", "gpu_bus_id": "pci.bus_id"}
APPS = {
    "gpu_uuid": "gpu_uuid",
    "gpu_name": "gpu_name",
    "gpu_bus_id": "gpu_bus_id",
    "gpu_serial": "gpu_serial",
    "pid": "pid",
    "process_name": "process_name",
    "name": "process_name",
    "used_memory": "used_gpu_memory [MiB]",
    "used_gpu_memory": "used_gpu_memory [MiB]",
}


def unknown_field(fields: list[str], driver: str, apps: bool) -> str | None:
    branch = int(driver.split(".", 1)[0])
    for field in fields:
        if apps and field in APPS:
            continue
        name = ALIASES.get(field, field)
        if not apps and (name in ("driver_version", "count") or (name in QUERY and QUERY[name][1] <= branch)):
            continue
        return field
    return None


def gpu_row(device: Device, fields: list[str], driver: str, count: int) -> list[str]:
    constants = {"driver_version": driver, "count": str(count)}
    names = [ALIASES.get(field, field) for field in fields]
    return [constants.get(n) or shown(lambda n=n: QUERY[n][2](device), brackets=True) for n in names]  # type: ignore[misc]


def gpu_header(fields: list[str]) -> list[str]:
    return [QUERY[ALIASES.get(f, f)][0] if ALIASES.get(f, f) in QUERY else f for f in fields]


def app_rows(device: Device, fields: list[str]) -> list[list[str]]:
    rows = []
    for pid, kind, name, mib in device.processes():
        if kind == "G":
            continue
        values = {"pid": str(pid), "process_name": name, "used_gpu_memory [MiB]": f"{mib} MiB"}
        values |= {field: QUERY[target][2](device) for field, target in ALIASES.items()}
        rows.append([values[APPS[field]] for field in fields])
    return rows
