"""Persistence mode and GPU reset. NVML has no public reset, so the reset is nvidia-smi's; its texts are data (RESULTS).

Persistence counts as a client of the GPU: it is switched off only around a reset, by who plans the acts, not here.
"""

import re

from recover.guest import deep, nvml, procs, reload
from recover.guest.child import Child, collect, run, which
from recover.guest.gpus import full_bus, uuid_of
from recover.guest.system import pci_gpus
from recover.guest.wire import Limit, at, listdir, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Say = Callable[[Any], None]
    Row = dict[str, Any]

NVML_S = 30.0
# nvidia-smi's words -> ours, in the order in which they are looked for.
RESULTS = (
    ("is not supported", "not-supported"),
    ("In use by another client", "in-use"),
    ("currently in use by another process", "in-use"),
    ("being used by one or more other processes", "in-use"),
    ("being used by some other process", "in-use"),
    ("is the primary GPU", "primary"),
    ("Insufficient Permissions", "no-permission"),
    ("GPU is lost", "lost"),
    ("Unknown Error", "failed"),
    ("could not be reset", "failed"),
    ("was successfully reset", "reset"),
)
EXITS = {
    2: "bad argument", 3: "not available on this device", 4: "no permission", 6: "no such GPU", 8: "external power",
    9: "driver not loaded", 10: "interrupt problem", 12: "NVML library missing", 13: "NVML too old",
    14: "infoROM corrupted", 15: "GPU is lost", 255: "refused or failed",
}  # fmt: skip


def _same(one: str, other: str) -> bool:
    return full_bus(one) == full_bus(other)


def _persistence_job(bus: str, uuid: str, on: bool) -> "Callable[[Say], None]":
    """Tells `setting` before it sets: without that word nothing was changed, whatever hangs."""

    def job(say: "Say") -> None:
        import pynvml as nv

        init = nvml.start(nv)
        got = []  # type: list[Any]
        handle = nvml.ask(lambda: got.append(nv.nvmlDeviceGetHandleByPciBusId(bus.encode("ascii"))))
        if not got:
            say({"error": init if "e" in init else handle})
            return
        now = nvml.ask(lambda: nv.nvmlDeviceGetUUID(got[0]))
        if uuid and now.get("v") not in (None, uuid):
            say({"wrong": now.get("v")})
            return
        before = nvml.ask(lambda: nv.nvmlDeviceGetPersistenceMode(got[0]))
        if before.get("v") == int(on):
            say({"already": True})
            return
        say({"setting": True})
        say({"set": nvml.ask(lambda: nv.nvmlDeviceSetPersistenceMode(got[0], int(on)))})
        say({"after": nvml.ask(lambda: nv.nvmlDeviceGetPersistenceMode(got[0]))})

    return job


def set_persistence(request: "dict[str, Any]") -> "dict[str, Any]":
    bus, uuid, on = str(request.get("bus_id")), str(request.get("uuid") or ""), bool(request.get("on"))
    limit = Limit(float(request.get("deadline", NVML_S)))
    word = "on" if on else "off"
    one = Child("NVML: persistence of %s" % bus, _persistence_job(bus, uuid, on))
    late = collect([one], limit)
    values = {key: value for said in one.values for key, value in said.items()}
    if late:
        sure = "setting" not in values
        return {"ok": False, "clear": sure, "changed": not sure, "detail": "the driver did not come back"}
    if "wrong" in values:
        return {"ok": False, "changed": False, "detail": "%s is another GPU now: %s" % (bus, values["wrong"])}
    if values.get("already"):
        return {"ok": True, "changed": False, "detail": "persistence is %s already" % word}
    if values.get("after", {}).get("v") == (1 if on else 0):
        return {"ok": True, "changed": True, "detail": "persistence is %s" % word}
    error = values.get("error") or values.get("set") or {"t": values.get("crash")}
    if error.get("e") in (12, 13) and which("nvidia-smi"):
        return _persistence_by_tool(bus, on, limit)
    return {"ok": False, "changed": False, "detail": "persistence is not %s: %s" % (word, error)}


def _persistence_by_tool(bus: str, on: bool, limit: Limit) -> "dict[str, Any]":
    ended = run(["nvidia-smi", "-i", bus, "-pm", "1" if on else "0"], limit, "nvidia-smi -pm")
    if ended.code is None:
        return {"ok": False, "clear": False, "detail": "nvidia-smi -pm did not come back"}
    back = run(["nvidia-smi", "-i", bus, "--query-gpu=persistence_mode", "--format=csv,noheader"], limit)
    ok = back.out.strip() == ("Enabled" if on else "Disabled")
    return {"ok": ok, "clear": back.code == 0, "detail": "nvidia-smi -pm: %s" % (ended.out + ended.err).strip()[:300]}


def minor_of(bus: str) -> "Optional[int]":
    """The node's number by the driver's cached file; None where there is none."""
    for name in listdir(at("/proc/driver/nvidia/gpus")):
        if _same(name, bus):
            text = read_or(at("/proc/driver/nvidia/gpus/%s/information" % name))
            match = re.search(r"^Device Minor:\s*(\d+)", text, re.M)
            return int(match.group(1)) if match else None
    return None


def uuid_now(bus: str) -> str:
    for name in listdir(at("/proc/driver/nvidia/gpus")):
        if _same(name, bus):
            return uuid_of(name)
    return ""


def holders_of(buses: "list[str]", limit: Limit) -> "tuple[list[str], bool]":
    """Who holds one of these GPUs besides us, and whether all processes could be looked at."""
    rows = {}
    for pid in procs.pids():
        row = procs.describe(pid)
        if row is not None:
            rows[pid] = row
    for pid in procs.ours(rows):
        if pid in rows:
            rows[pid]["ours"] = True
    found = deep.scan(rows, deep.Nodes(pci_gpus()), limit)
    minors = [minor_of(bus) for bus in buses]
    nodes = {"nvidia%d" % minor for minor in minors if minor is not None}
    blind = None in minors
    held = []
    for pid, names in sorted(deep.holders(found).items()):
        mine = [n for n in names if n in nodes or (blind and re.match(r"nvidia\d+$", n))]
        if mine:
            held.append("%d %s holds %s" % (pid, rows[pid]["comm"], ", ".join(mine)))
    return held, not any(row.get("why") in ("timeout", "denied") for row in found.values())


def judge(code: "Optional[int]", text: str, buses: "list[str]") -> "tuple[str, str]":
    """(our word, the line that says so). Exit 0 alone proves nothing, and 14 still did what was asked."""
    for pattern, word in RESULTS[:-1]:
        for line in text.splitlines():
            if pattern in line:
                return word, line.strip()
    done = text.count("was successfully reset")
    if done >= len(buses):
        return "reset", "%d GPUs were reset" % done
    if code == 0 and not done:
        return "unclear", "nvidia-smi ended with 0 and named no GPU"
    return "failed", EXITS.get(code or 0, "exit %s" % code)


def reset_gpu(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 120.0)))
    gpus = [(str(uuid or ""), str(bus)) for uuid, bus in request.get("gpus") or ()]
    buses = [bus for _, bus in gpus]
    if not buses or which("nvidia-smi") is None:
        return {"ok": False, "changed": False, "detail": "nvidia-smi is not there" if buses else "no GPU named"}
    for uuid, bus in gpus:
        now = uuid_now(bus)
        if uuid and now and now != uuid:
            return {"ok": False, "changed": False, "detail": "%s is another GPU now: %s" % (bus, now)}
    held, sure = holders_of(buses, limit.within(15.0))
    if held or not sure:
        why = "in use: " + "; ".join(held[:8]) if held else "who holds the GPU can't be told"
        return {"ok": False, "changed": False, "detail": why, "log": held[:50]}
    ended = run(["nvidia-smi", "--gpu-reset", "-i", ",".join(buses)], limit, "nvidia-smi --gpu-reset")
    text = ended.out + "\n" + ended.err
    log = [line for line in text.splitlines() if line.strip()][:50]
    if ended.code is None:
        what = "and can't be ended" if ended.left else "and was ended"
        return {"ok": False, "clear": False, "detail": "the reset did not come back %s" % what, "log": log}
    word, line = judge(ended.code, text, buses)
    if word == "in-use" and "nvidia_drm" in reload.modules():
        line += " (no process holds it: nvidia_drm is loaded, and can be the client that nobody sees)"
    return {"ok": word == "reset", "changed": word in ("reset", "unclear", "failed", "lost"), "clear": word != "unclear",
            "detail": "%s: %s" % (word, line), "log": log}  # fmt: skip
