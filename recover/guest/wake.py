"""A CUDA context is opened and closed on exactly one GPU, in a child that may be abandoned.

The child is shown only that GPU (CUDA_VISIBLE_DEVICES), since cuInit asks every GPU that it sees and hangs with the
first that does. Codes are those of cuda.h, CUresult.
"""

import ctypes
import os

from recover.guest import nvml
from recover.guest.child import Child, collect
from recover.guest.wire import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Say = Callable[[Any], None]

CODES = {
    1: "invalid value", 2: "out of memory", 3: "not initialised", 46: "unavailable: its compute mode forbids it, or it "
    "needs a reset", 100: "no device", 101: "invalid device", 802: "the fabric is not ready", 803: "driver and library "
    "differ in version", 804: "forward compatibility is not supported", 999: "unknown error",
}  # fmt: skip


def _job(uuid: str, bus: str) -> "Callable[[Say], None]":
    def job(say: "Say") -> None:
        wrong = _another(uuid, bus)
        if wrong:
            say({"wrong": wrong})
            return
        if uuid:
            os.environ["CUDA_VISIBLE_DEVICES"] = uuid
        try:
            cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            say({"missing": str(error)})
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        say({"opening": True})
        for what, call in (
            ("cuInit", lambda: cuda.cuInit(0)),
            ("cuDeviceGetByPCIBusId", lambda: cuda.cuDeviceGetByPCIBusId(ctypes.byref(device), _short(bus))),
            ("cuCtxCreate", lambda: cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)),
            ("cuCtxDestroy", lambda: cuda.cuCtxDestroy_v2(context)),
        ):
            code = call()
            if code:
                say({"failed": what, "code": code})
                return
        say({"done": True})

    return job


def _another(uuid: str, bus: str) -> str:
    """The UUID at that address, if it is not the one that was meant; the driver is asked for this GPU only."""
    import pynvml as nv

    if "e" in nvml.start(nv):
        return ""
    now = nvml.ask(lambda: nv.nvmlDeviceGetUUID(nv.nvmlDeviceGetHandleByPciBusId(bus.encode("ascii"))))
    return str(now["v"]) if uuid and now.get("v") not in (None, uuid) else ""


def _short(bus: str) -> bytes:
    """CUDA has domains of four digits: 0000:01:00.0."""
    domain, _, rest = bus.partition(":")
    return ("%04x:%s" % (int(domain, 16), rest)).encode("ascii")


def wake(request: "dict[str, Any]") -> "dict[str, Any]":
    bus, uuid = str(request.get("bus_id")), str(request.get("uuid") or "")
    one = Child("CUDA context on %s" % bus, _job(uuid, bus))
    late = collect([one], Limit(float(request.get("deadline", 60.0))))
    said = {key: value for told in one.values for key, value in told.items()}
    if "wrong" in said:
        return {"ok": False, "changed": False, "detail": "%s is another GPU now: %s" % (bus, said["wrong"])}
    if "missing" in said or "crash" in said:
        return {"ok": False, "changed": False, "detail": str(said.get("missing") or said.get("crash"))[:300]}
    if late:
        return {"ok": False, "changed": True, "detail": "the context on %s did not come back" % bus}
    if "failed" in said:
        word = CODES.get(said["code"], "CUDA error %d" % said["code"])
        return {"ok": False, "changed": False, "detail": "%s on %s: %s" % (said["failed"], bus, word)}
    return {"ok": bool(said.get("done")), "changed": True, "detail": "a context was opened and closed on %s" % bus}
