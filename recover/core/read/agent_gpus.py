"""GPU lines of the agent: NVML answers by number, so that an error is never a figure and a hang is never a zero."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from recover.core.clean import clean
from recover.core.read import procfs, smi_xml
from recover.core.read.report import Report
from recover.core.read.rows import Row, whole_number
from recover.model.gpu import Condition, Driver, Gpu, GpuProcess, RecoveryAction
from recover.model.reading import Known, Reading, Unknown, Why, known_or, map_known

T = TypeVar("T")

LOST, RESET_REQUIRED = 15, 16
_CAPABILITY = (3, 4, 13, 25, 26)  # not supported, no permission, not in this library, other version, deprecated
# nvmlReturn_t of nvml.h 13.5
CODES = {
    -1: "no NVML code",
    1: "uninitialized",
    2: "invalid argument",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "insufficient size",
    8: "insufficient external power",
    9: "driver not loaded",
    10: "timeout",
    11: "interrupt problem",
    12: "NVML library not found",
    13: "function not found",
    14: "corrupted infoROM",
    15: "GPU is lost",
    16: "GPU requires reset",
    17: "operating system blocked the request",
    18: "driver/library version mismatch",
    19: "in use",
    20: "out of memory",
    21: "no data",
    23: "insufficient resources",
    25: "argument version mismatch",
    26: "deprecated",
    27: "not ready",
    28: "GPU not found",
    29: "invalid state",
    30: "reset type not supported",
    999: "unknown error",
}
_WHY = {3: Why.ABSENT, 4: Why.DENIED, 12: Why.ABSENT, 13: Why.ABSENT, 25: Why.ABSENT, 26: Why.ABSENT, 10: Why.TIMEOUT,
        15: Why.UNREACHABLE, 16: Why.UNREACHABLE}  # fmt: skip
_VIRTUALISATION = {0: "none", 1: "passthrough", 2: "vgpu", 3: "host-vgpu", 4: "host-vsga"}
_SHARED = re.compile(r"\bG[HB](?:10|200|300)\b|GRACE|\bThor\b|\bOrin\b", re.I)
_EXTRA = ("bar1", "power", "temperature", "retired_pending", "serial", "vbios")


def words(code: int) -> str:
    return f"NVML {code}: {CODES.get(code, 'unlisted error')}"


def answer(row: Row, key: str, take: Callable[[object], T | None]) -> Reading[T]:
    """One guarded NVML answer."""
    if key not in row:
        if row.flag("hangs"):
            return Unknown(Why.TIMEOUT, f"{row.text('at')} did not come back")
        return Unknown(Why.ABSENT, "not asked")
    said = row.row(key)
    if "e" in said:
        code = said.number("e", -1)
        return Unknown(_WHY.get(code, Why.GARBLED), words(code))
    value = take(said.raw.get("v"))
    return Unknown(Why.GARBLED, f"{key} has no meaning") if value is None else Known(value)


def _text(value: object) -> str | None:
    return clean(value, 200) if isinstance(value, str) and value else None


def _on(value: object) -> bool | None:
    number = whole_number(value)
    return None if number is None else number != 0


def _first_on(value: object) -> bool | None:
    return _on(value[0]) if isinstance(value, list) and value else None


def gpus(report: Report) -> tuple[Reading[tuple[Gpu, ...]], Reading[Driver], list[str]]:
    """The GPUs, the driver, and gaps that are seen only here."""
    driver = _driver(report)
    rows = report.all("gpu")
    gaps: list[str] = []
    said = report.one("driver")
    if said is not None and isinstance(driver, Known) and driver.value.condition is Condition.ANSWERS:
        found, gaps = _asked(report, said, rows)
        return found, driver, gaps
    smi = report.one("smi")
    if smi is not None:
        return _from_smi(report, smi, driver)
    return _nothing(report, driver), driver, gaps


def _nothing(report: Report, driver: Reading[Driver]) -> Unknown:
    if isinstance(driver, Unknown):
        return report.missing("gpus")
    why = Why.TIMEOUT if driver.value.condition is Condition.HANGS else Why.ABSENT
    return Unknown(why, driver.value.detail)


def _asked(report: Report, driver: Row, rows: list[Row]) -> tuple[Reading[tuple[Gpu, ...]], list[str]]:
    count = driver.row("count").maybe("v")
    if count is None:
        return Unknown(Why.GARBLED, "the driver does not tell how many GPUs there are"), []
    pci = {procfs.bus_id(item.text("bus")): item for item in report.table("pci")}
    others_hang = any(row.flag("hangs") and row.text("at") != "init" for row in rows)
    found = [_gpu(row, pci, others_hang) for row in rows]
    gaps = [f"gpu {gpu.index}: timeout: {gpu.detail}" for gpu in found if gpu.condition is Condition.HANGS]
    if len(found) < min(count, 64):
        seen = {gpu.index for gpu in found}
        missing = [i for i in range(min(count, 64)) if i not in seen]
        gaps.append(f"gpus: timeout: the report broke off before GPUs {missing}")
        found += [_unsaid(i) for i in missing]
    return Known(tuple(sorted(found, key=lambda gpu: gpu.index))), gaps


def _unsaid(index: int) -> Gpu:
    gone = Unknown(Why.TIMEOUT, "the report broke off")
    return Gpu(index, f"index:{index}", gone, Condition.NOT_ASKED, "the report broke off before it")


def _gpu(row: Row, pci: dict[str, Row], others_hang: bool) -> Gpu:
    index = row.number("index", -1)
    hint = row.text("bus")
    bus = procfs.bus_id(known_or(answer(row, "nvml_bus", _text), "") or hint) or f"index:{index}"
    uuid = answer(row, "uuid", _text)
    if isinstance(uuid, Unknown) and row.text("uuid_hint"):
        uuid = Known(row.text("uuid_hint"))
    condition, detail = _condition(row, others_hang)
    slot = pci.get(bus, Row(None))
    name = answer(row, "name", _text)
    memory = row.row("memory").row("v")
    return Gpu(
        index=index,
        bus_id=bus,
        uuid=uuid,
        condition=condition,
        detail=detail,
        minor=answer(row, "minor", whole_number),
        name=name,
        total_mib=_mib(row, memory, "total"),
        reserved_mib=_mib(row, memory, "reserved"),
        used_mib=_mib(row, memory, "used"),
        processes=_processes(row),
        utilisation_pct=answer(row, "util", whole_number),
        recovery_action=map_known(answer(row, "action", whole_number), action),
        persistence=answer(row, "persistence", _on),
        link_width=_width(row, slot, "width"),
        link_width_max=_width(row, slot, "width_max"),
        mig=answer(row, "mig", _first_on),
        remap_pending=answer(row, "remap", lambda v: _on(v[2]) if isinstance(v, list) and len(v) > 3 else None),
        remap_failed=answer(row, "remap", lambda v: _on(v[3]) if isinstance(v, list) and len(v) > 3 else None),
        ecc_uncorrected=answer(row, "ecc", whole_number),
        fabric=answer(row, "fabric", fabric),
        pages_pending=answer(row, "retired_pending", _on),
        virtualisation=map_known(answer(row, "virt", whole_number), lambda n: _VIRTUALISATION.get(n, f"mode {n}")),
        shares_system_memory=_SHARED.search(known_or(name, "")) is not None,
        pci_ids="10de:" + slot.text("device").removeprefix("0x") if slot.text("device") else "",
        extra=_extra(row),
    )


def action(number: int) -> RecoveryAction:
    try:
        return RecoveryAction(number)
    except ValueError:
        return RecoveryAction.OTHER


_FABRIC = {0: "none", 1: "not started", 2: "in progress", 3: "completed"}


def fabric(value: object) -> str | None:
    """The state of the GPU's NVLink fabric; a completed one that did not succeed has failed."""
    numbers = [whole_number(item) for item in value] if isinstance(value, list) else []
    if len(numbers) != 2 or numbers[0] not in _FABRIC or numbers[1] is None:
        return None
    if numbers[0] == 3 and numbers[1] != 0:
        return f"failed ({words(numbers[1])})"
    return _FABRIC[numbers[0]]


def _extra(row: Row) -> tuple[tuple[str, str], ...]:
    found = [(key, clean(str(row.row(key).raw["v"]), 200)) for key in _EXTRA if "v" in row.row(key)]
    number = row.row("action").maybe("v")
    if number is not None and action(number) is RecoveryAction.OTHER:
        found.append(("recovery_action", str(number)))
    return tuple(found)


def _mib(row: Row, memory: Row, key: str) -> Reading[int]:
    whole = answer(row, "memory", lambda v: v if isinstance(v, dict) else None)
    if isinstance(whole, Unknown):
        return whole
    size = memory.maybe(key)
    return Unknown(Why.ABSENT, f"this driver does not tell {key}") if size is None else Known(size >> 20)


def _width(row: Row, slot: Row, key: str) -> Reading[int]:
    """The bus knows it also when the driver does not answer. An endpoint that is gone reads 0, 63 or 255."""
    width = slot.maybe(key)
    if width is not None and 0 < width <= 32:
        return Known(width)
    return answer(row, key, whole_number)


def _processes(row: Row) -> Reading[tuple[GpuProcess, ...]]:
    """All kinds together. Compute must be told; graphics and MPS may be unknown to a library."""
    found: list[GpuProcess] = []
    for kind in ("compute", "graphics", "mps"):
        said = answer(row, kind, lambda v: v if isinstance(v, list) else None)
        if isinstance(said, Unknown):
            if kind == "compute" or said.why is not Why.ABSENT or row.flag("hangs"):
                return said
            continue
        for item in said.value:
            if isinstance(item, list) and len(item) == 2 and (pid := whole_number(item[0])) is not None:
                found.append(GpuProcess(pid, whole_number(item[1]), kind))
    return Known(tuple(found))


def _codes(row: Row) -> dict[str, int]:
    return {key: Row(value).number("e") for key, value in row.raw.items() if isinstance(value, dict) and "e" in value}


def _condition(row: Row, others_hang: bool) -> tuple[Condition, str]:
    """By the numbers: 15 anywhere is lost, 16 anywhere needs a reset, whatever the header documents per call."""
    if row.flag("skipped"):
        return Condition.NOT_ASKED, "it hung before, and nothing was done about it since"
    codes = _codes(row)
    if row.flag("hangs"):
        if row.text("at") == "init" and others_hang:
            return Condition.NOT_ASKED, "the driver was blocked by another GPU"
        return Condition.HANGS, f"{row.text('at')} did not come back in {row.real('seconds'):g} s"
    for code, condition in ((LOST, Condition.LOST), (RESET_REQUIRED, Condition.RESET_REQUIRED)):
        calls = sorted(key for key, seen in codes.items() if seen == code)
        if calls:
            return condition, f"{words(code)} ({', '.join(calls[:4])})"
    for call in ("init", "handle", "memory", "compute"):
        if call in codes and (codes[call] not in _CAPABILITY or call in ("init", "handle")):
            return Condition.FAILS, f"{words(codes[call])} ({call})"
    if row.text("crash") or not row.flag("complete"):
        return Condition.FAILS, row.text("crash", "the child that asked it ended early", 200)
    return Condition.ANSWERS, ""


def _driver(report: Report) -> Reading[Driver]:
    row = report.one("driver")
    files = report.one("driver-files") or Row(None)
    version = procfs.module_version(files.whole("version"))
    if row is None:
        return report.missing("gpus")
    told = answer(row, "driver", _text)
    library = map_known(answer(row, "nvml", _text), lambda v: v.split(".", 1)[1] if v.count(".") > 1 else v)
    condition, detail, code = _driver_condition(row, report.all("gpu"))
    return Known(
        Driver(
            condition=condition,
            detail=detail,
            nvml_code=code,
            version=Known(version) if version else told,
            library_version=library,
            modules=files.texts("modules"),
        )
    )


def _driver_condition(row: Row, gpu_rows: list[Row]) -> tuple[Condition, str, int | None]:
    init = row.row("init")
    if row.flag("hangs"):
        return Condition.HANGS, f"nvmlInit did not come back in {row.real('seconds'):g} s", None
    if "e" in init:
        code = init.number("e", -1)
        condition = {LOST: Condition.LOST, RESET_REQUIRED: Condition.RESET_REQUIRED}.get(code, Condition.FAILS)
        return condition, f"{words(code)} ({init.text('t', limit=200)})", code
    asked = [r for r in gpu_rows if not r.flag("skipped")]
    if asked and all(r.flag("hangs") and r.text("at") == "init" for r in asked):
        return Condition.HANGS, "nvmlInit came back once and then no more", None
    return Condition.ANSWERS, "", None


def _from_smi(
    report: Report, row: Row, driver: Reading[Driver]
) -> tuple[Reading[tuple[Gpu, ...]], Reading[Driver], list[str]]:
    """The library can't be used: what nvidia-smi said counts, and the driver record says who spoke."""
    if row.flag("hangs"):
        return Unknown(Why.TIMEOUT, "nvidia-smi did not come back"), driver, ["gpus: timeout: nvidia-smi"]
    parsed = smi_xml.parse(row.whole("out"))
    if isinstance(parsed, Unknown):
        detail = clean(row.whole("err") or row.whole("out"), 300)
        return Unknown(parsed.why, detail or parsed.detail), driver, []
    if isinstance(driver, Known) and driver.value.nvml_code in (None, -1, 12):
        version = driver.value.version if isinstance(driver.value.version, Known) else parsed.value.driver_version
        driver = Known(Driver(Condition.ANSWERS, version=version, modules=driver.value.modules, source="nvidia-smi"))
    return Known(parsed.value.gpus), driver, []


def pci_gpus(report: Report) -> Reading[tuple[str, ...]]:
    if report.one("pci") is None:
        return report.missing("pci")
    return Known(tuple(sorted(procfs.bus_id(item.text("bus")) for item in report.table("pci"))))
