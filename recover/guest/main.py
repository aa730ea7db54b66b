"""One request line in, JSON lines out: a look in the order of harm, or one act."""

import gc
import json
import os
import signal
import sys
import time

from recover.guest import child, deep, gpus, health, ipc, leftovers, marker, mps, procs
from recover.guest import reload, restart, services, system, wire
from recover.guest.wire import Limit, emit, gap, guarded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK_S = 150.0
_DEEP_S = 20.0
_OVERTIME_S = 120


def main(line: str) -> None:
    try:
        request = json.loads(line)
        request["do"], request.get("stay")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        emit("done", ok=False, clear=True, changed=False, detail="no valid request: %s" % error)
        os._exit(2)
    if request.get("stay"):
        from recover.guest import stay

        stay.serve(line, once)
    if request.get("pack"):
        wire.pack()
    once(request)


def once(request: "dict[str, Any]") -> None:
    """One look or one act. Never returns."""
    began = time.monotonic()
    gc.disable()  # a look is short, and each child that is forked would copy what a collection touches
    wire.ROOT = str(request.get("root") or "")
    what = request["do"]
    # A controller that vanished may leave us blocked in a write: SIGALRM's default action ends that.
    signal.alarm(int(float(request.get("deadline") or LOOK_S)) + _OVERTIME_S)
    if what == "look":
        look(request)
    elif what == "budget":
        from recover.guest import budget

        budget.look(request)
    else:
        from recover.guest import acts

        acts.perform(what, request)
    times = os.times()
    emit("end", abandoned=child.ABANDONED, wall=round(time.monotonic() - began, 3),
         cpu=round(times[0] + times[1] + times[2] + times[3], 3))  # fmt: skip
    os._exit(0)  # no exit handler may wait for an abandoned child


def look(request: "dict[str, Any]") -> None:
    limit = Limit(float(request.get("deadline") or LOOK_S))
    system.hello()
    lines = guarded("kernel-log", system.kernel_log) or []
    guarded("ram", system.ram)
    guarded("marker", _marker)
    early = deep.Early()
    rows = guarded("processes", procs.table, early.begin) or {}
    guarded("driver-files", system.driver_files)
    guarded("driver-modules", reload.look)
    pci = guarded("pci", system.pci_gpus) or []
    guarded("leftovers", system.leftovers)
    guarded("fuse", leftovers.stuck_fuse)
    guarded("gpus", gpus.prepare)
    found = guarded("process-files", deep.scan, rows, deep.Nodes(pci), limit.within(_DEEP_S), early.shares) or {}
    cgroups = {rows[pid]["cgroup"] for pid in deep.holders(found) if pid in rows}
    folders = guarded("services", services.look, request.get("services") or (), sorted(cgroups), rows, limit)
    guarded("sockets", ipc.look, folders or ())
    guarded("pods", system.pods, sorted(cgroups))
    guarded("memory-limits", system.memory_limits, sorted(cgroups))
    guarded("boot", restart.look, limit)
    guarded("mps", mps.look, rows, limit)
    timeout = float(request.get("health_timeout") or health.TIMEOUT_S)
    asked = guarded("servers", health.start, health.questions(request, found), timeout) or []
    seconds = gpus.patience(lines, int(float(request.get("news_after") or 0.0) * 1e6))
    guarded("gpus", gpus.look, request, pci, seconds, limit)
    guarded("servers", health.finish, asked, limit.within(timeout + 2.0))


def _marker() -> None:
    try:
        emit("marker", value=marker.current())
    except (OSError, ValueError) as error:
        gap("marker", "denied" if isinstance(error, PermissionError) else "garbled", str(error))


if __name__ == "__main__":
    main(sys.stdin.readline())
