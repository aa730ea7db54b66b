"""NVML questions about one GPU, each guarded alone: an error is data by its number, whatever the header documents.

Runs only in children that may be abandoned. `nv` is the pynvml module that travelled with the agent.
"""

import ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

FUNCTION_NOT_FOUND, INSUFFICIENT_SIZE, VERSION_MISMATCH = 13, 7, 25
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE
_SENTINEL = 0xA5
_CAPACITY = 256
_WIDE, _NARROW, _OLD = 32, 24, 16  # bytes per entry: drivers 535.43-535.86 · _v2 and _v3 · the first form


class Refused(Exception):
    def __init__(self, code: int) -> None:
        Exception.__init__(self, "NVML error %d" % code)
        self.value = code


def text(value: "Any") -> "Any":
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def ask(job: "Callable[[], Any]") -> "dict[str, Any]":
    """{"v": value} or {"e": nvmlReturn_t, "t": text}."""
    try:
        return {"v": text(job())}
    except Exception as error:
        code = getattr(error, "value", None)
        return {"e": code if isinstance(code, int) else -1, "t": str(error)[:200]}


def start(nv: "Any") -> "dict[str, Any]":
    """nvmlInit. A missing library is 12, as pynvml itself numbers it."""
    return ask(lambda: nv.nvmlInitWithFlags(0))


def system(nv: "Any") -> "dict[str, Any]":
    return {
        "driver": ask(nv.nvmlSystemGetDriverVersion),
        "nvml": ask(nv.nvmlSystemGetNVMLVersion),
        "cuda": ask(nv.nvmlSystemGetCudaDriverVersion),
        "count": ask(nv.nvmlDeviceGetCount),
    }


def memory(nv: "Any", handle: "Any", major: "Optional[int]") -> "dict[str, int]":
    """v2: `used` without what the driver reserves. v1 counts that in since R510, and only before R510 it is right."""
    try:
        info = nv.nvmlDeviceGetMemoryInfo(handle, nv.nvmlMemory_v2)
        return {"total": info.total, "reserved": info.reserved, "used": info.used, "free": info.free, "api": 2}
    except Exception as error:
        code = getattr(error, "value", None)
        if code not in (FUNCTION_NOT_FOUND, VERSION_MISMATCH) or major is None or major >= 510:
            raise
    info = nv.nvmlDeviceGetMemoryInfo(handle)
    return {"total": info.total, "used": info.used, "free": info.free, "api": 1}


def processes(nv: "Any", handle: "Any", kind: str) -> "list[list[Any]]":
    """[pid, MiB or None, kind]. The width of an entry is measured, not believed: 535.43-535.86 changed it."""
    name = "nvmlDeviceGet%sRunningProcesses" % kind
    for suffix, narrow in (("_v3", _NARROW), ("_v2", _NARROW), ("", _OLD)):
        try:
            call = nv._nvmlGetFunctionPointer(name + suffix)
        except Exception as error:
            if getattr(error, "value", None) != FUNCTION_NOT_FOUND:
                raise
            continue
        raw, count = _fill(call, handle)
        stride = _stride(raw, count, narrow)
        return [_entry(raw, at * stride) for at in range(count)]
    raise Refused(FUNCTION_NOT_FOUND)


def _fill(call: "Any", handle: "Any") -> "tuple[bytes, int]":
    capacity = _CAPACITY
    for _ in range(4):
        buffer = (ctypes.c_ubyte * (capacity * _WIDE))()
        ctypes.memset(buffer, _SENTINEL, capacity * _WIDE)
        count = ctypes.c_uint(capacity)
        code = call(handle, ctypes.byref(count), ctypes.byref(buffer))
        if code == 0:
            return bytes(buffer), min(count.value, capacity)
        if code != INSUFFICIENT_SIZE:
            raise Refused(code)
        capacity = max(capacity, count.value) * 2
    raise Refused(INSUFFICIENT_SIZE)


def _stride(raw: bytes, count: int, narrow: int) -> int:
    written = len(raw.rstrip(bytes([_SENTINEL])))
    return _WIDE if narrow == _NARROW and written > narrow * count else narrow


def _entry(raw: bytes, at: int) -> "list[Any]":
    used = int.from_bytes(raw[at + 8 : at + 16], "little")
    return [int.from_bytes(raw[at : at + 4], "little"), None if used == _NOT_AVAILABLE else used >> 20]


def field(nv: "Any", handle: "Any", number: int) -> int:
    """One field value; the call succeeds even where the field does not, so each entry's own code counts."""
    value = nv.nvmlDeviceGetFieldValues(handle, [number])[0]
    if value.nvmlReturn:
        raise Refused(value.nvmlReturn)
    return int(value.value.uiVal)


def fabric(nv: "Any", handle: "Any") -> "list[int]":
    """[state, nvmlReturn_t of its making]. State 0: none, 1: not started, 2: in progress, 3: completed."""
    info = nv.c_nvmlGpuFabricInfo_v2_t()
    nv.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
    return [int(info.state), int(info.status)]


def questions(nv: "Any", handle: "Any", major: "Optional[int]") -> "list[tuple[str, Callable[[], Any]]]":
    """In the order in which they are asked: identity and the verdict first, what is only nice to know last."""

    def pci() -> str:
        return str(text(nv.nvmlDeviceGetPciInfo(handle).busId))

    def rows(kind: str) -> "Callable[[], Any]":
        return lambda: processes(nv, handle, kind)

    return [
        ("bus", pci),
        ("uuid", lambda: nv.nvmlDeviceGetUUID(handle)),
        ("minor", lambda: nv.nvmlDeviceGetMinorNumber(handle)),
        ("name", lambda: nv.nvmlDeviceGetName(handle)),
        ("action", lambda: field(nv, handle, RECOVERY_ACTION)),
        ("memory", lambda: memory(nv, handle, major)),
        ("compute", rows("Compute")),
        ("graphics", rows("Graphics")),
        ("mps", rows("MPSCompute")),
        ("persistence", lambda: nv.nvmlDeviceGetPersistenceMode(handle)),
        ("mig", lambda: list(nv.nvmlDeviceGetMigMode(handle))),
        ("util", lambda: nv.nvmlDeviceGetUtilizationRates(handle).gpu),
        ("remap", lambda: list(nv.nvmlDeviceGetRemappedRows(handle))),
        ("ecc", lambda: nv.nvmlDeviceGetTotalEccErrors(handle, 1, 0)),  # uncorrected, volatile
        ("fabric", lambda: fabric(nv, handle)),
        ("virt", lambda: nv.nvmlDeviceGetVirtualizationMode(handle)),
        ("width", lambda: nv.nvmlDeviceGetCurrPcieLinkWidth(handle)),
        ("width_max", lambda: nv.nvmlDeviceGetMaxPcieLinkWidth(handle)),
        ("bar1", lambda: nv.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used),
        ("power", lambda: nv.nvmlDeviceGetPowerUsage(handle)),
        ("temperature", lambda: nv.nvmlDeviceGetTemperature(handle, 0)),
        ("retired_pending", lambda: nv.nvmlDeviceGetRetiredPagesPendingStatus(handle)),
        ("serial", lambda: nv.nvmlDeviceGetSerial(handle)),
        ("vbios", lambda: nv.nvmlDeviceGetVbiosVersion(handle)),
    ]
