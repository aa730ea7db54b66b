"""The driver is unloaded only if nobody holds it, module by module, and never by force; an unload can hang for ever.

nvidia_drm's exit restores the console in an endless loop on a dead GPU (open-gpu-kernel-modules PR 1252): each rmmod runs
in a session of its own and is given up at its deadline.
"""

import os
import re

from recover.guest import deep, procs
from recover.guest.child import run, which
from recover.guest.system import pci_gpus
from recover.guest.wire import Limit, at, emit, listdir, read, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = re.compile(r"^(nvidia(_[a-z0-9_]+)?|gdrdrv)$")


def modules() -> "dict[str, dict[str, Any]]":
    """name -> references, who uses it, and its state, of the driver's modules: /proc/modules, else sysfs."""
    found = {}
    try:
        text = read(at("/proc/modules"))
    except OSError:
        return _from_sysfs()
    for line in text.splitlines():
        field = line.split()
        if len(field) > 4 and _NAME.match(field[0]):
            users = [name for name in field[3].split(",") if name and name != "-"]
            refs = whole(field[2].lstrip("-")) * (-1 if field[2].startswith("-") else 1)
            found[field[0]] = {"name": field[0], "refs": refs, "by": users, "state": field[4]}
    return found


def _from_sysfs() -> "dict[str, dict[str, Any]]":
    """The same where /proc/modules isn't shown: what is built in has no `initstate`."""
    found = {}
    for name in listdir(at("/sys/module")):
        state = read_or(at("/sys/module/%s/initstate" % name)).strip()
        if _NAME.match(name) and state:
            refs = read_or(at("/sys/module/%s/refcnt" % name)).strip()
            users = sorted(listdir(at("/sys/module/%s/holders" % name)))
            word = {"live": "Live", "coming": "Loading", "going": "Unloading"}.get(state, state)
            found[name] = {"name": name, "refs": whole(refs), "by": users, "state": word}
    return found


def look() -> None:
    emit("driver-modules", list=list(modules().values()))


def _moving(found: "dict[str, dict[str, Any]]") -> str:
    stuck = [name for name, row in sorted(found.items()) if row["state"] != "Live"]
    return "%s is %s" % (stuck[0], found[stuck[0]]["state"]) if stuck else ""


def _holders(limit: Limit) -> "tuple[list[str], bool]":
    """Who has a node of the driver open or mapped, and whether all could be looked at."""
    rows = {}
    for pid in procs.pids():
        row = procs.describe(pid)
        if row is not None:
            rows[pid] = row
    for pid in procs.ours(rows):
        if pid in rows:
            rows[pid]["ours"] = True
    found = deep.scan(rows, deep.Nodes(pci_gpus()), limit)
    held = ["%d %s holds %s" % (pid, rows[pid]["comm"], ", ".join(n)) for pid, n in sorted(deep.holders(found).items())]
    return held, not any(row.get("why") in ("timeout", "denied") for row in found.values())


def unload(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 120.0)))
    names = [str(name) for name in request.get("modules") or ()]
    why = _not_now(names, request)
    if why:
        return {"ok": False, "changed": False, "detail": why}
    held, sure = _holders(limit.within(15.0))
    if held or not sure:
        why = "in use: " + "; ".join(held[:8]) if held else "who holds the driver can't be told"
        return {"ok": False, "changed": False, "detail": why, "log": held[:50]}
    changed = False
    for name in names:
        row = modules().get(name)
        if row is None:
            continue
        if row["refs"] > 0:
            users = ", ".join(row["by"]) or "something that no process shows, such as a display or the console"
            return {"ok": False, "changed": changed, "detail": "%s is used %d times, by %s" % (name, row["refs"], users)}
        ended = run(["rmmod", name], limit, "rmmod " + name)
        now = modules().get(name)
        if ended.code is None:
            state = now["state"] if now else "gone"
            return {"ok": False, "clear": False, "detail": "the unload of %s did not come back: it is %s" % (name, state)}
        if now is not None:
            said = (ended.err or ended.out).strip()[:200]
            return {"ok": False, "changed": changed, "detail": "%s was not unloaded: %s" % (name, said)}
        changed = True
    return {"ok": True, "changed": changed, "detail": "unloaded" if changed else "nothing was loaded"}


def _not_now(names: "list[str]", request: "dict[str, Any]") -> str:
    if not names or not all(_NAME.match(name) for name in names):
        return "no module of the driver is named"
    if read_or("/proc/sys/kernel/random/boot_id").strip() != str(request.get("boot_id")):
        return "it has booted anew meanwhile"
    if os.geteuid() != 0 or which("rmmod") is None or which("modprobe") is None:
        return "an unload needs root, rmmod and modprobe"
    return _moving(modules())


def load(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 120.0)))
    names = [str(name) for name in request.get("modules") or ()]
    if not names or not all(_NAME.match(name) for name in names):
        return {"ok": False, "changed": False, "detail": "no module of the driver is named"}
    before = modules()
    why = _moving(before)
    if why:
        return {"ok": False, "changed": False, "detail": "%s: nothing can be loaded before that ends" % why}
    missing = [name for name in names if name not in before]
    for name in missing:
        ended = run(["modprobe", name], limit, "modprobe " + name)
        if ended.code is None:
            return {"ok": False, "clear": False, "detail": "the load of %s did not come back" % name}
        if name not in modules():
            said = (ended.err or ended.out).strip()[:200]
            return {"ok": False, "changed": True, "detail": "%s was not loaded: exit %d: %s" % (name, ended.code, said)}
    if missing and which("nvidia-modprobe"):
        run(["nvidia-modprobe", "-u", "-c=0"], limit.within(20.0))  # the nodes; without them nothing can open it
    detail = "loaded: %s" % ", ".join(missing) if missing else "all are loaded already"
    return {"ok": True, "changed": bool(missing), "detail": detail}
