"""What a Proxmox node can tell of a guest before it is touched: its kernel's log, its devices, what hangs there.

Nothing is woken: lspci reads a device's configuration, so one that sleeps or that the kernel gave up is left out.
"""

from recover.guest import host, procs, sysfs
from recover.guest.child import run, which
from recover.guest.kill import stack_of
from recover.guest.redact import redact_text
from recover.guest.wire import Limit, at, emit, gap, guarded, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LINES = 6000  # of the kernel's log: the newest
_CAP = 2 << 20
_LSPCI_S = 8.0


def words(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline") or 30.0))
    vmid = int(request.get("vmid") or 0)
    lines = guarded("node-kernel", host.kernel_lines) or []
    _piece("node-kernel.txt", "\n".join("[%12.6f] %s" % (usec / 1e6, text) for usec, text in lines[-_LINES:]))
    _piece("node-reservations.txt", read_or(at(host.RESERVATIONS)))
    guarded("node-stacks", _stacks, vmid, bool(request.get("container")))
    asked = [str(a) for a in request.get("addresses") or () if sysfs.ADDRESS.match(str(a))]
    guarded("node-lspci", _lspci, asked, lines, limit)
    return {"ok": True, "changed": False, "detail": "told"}


def _piece(name: str, text: str) -> None:
    if text:
        emit("piece", name=name, text=redact_text(text[-_CAP:]))


def _lspci(asked: "list[str]", lines: "list[list[Any]]", limit: Limit) -> None:
    if which("lspci") is None:
        gap("node-lspci", "absent", "no lspci on the node")
        return
    told = []
    for address in host.wanted(asked):
        path = sysfs.folder(address)
        asleep = read_or(path + "/power/runtime_status").strip() == "suspended"
        cold = read_or(path + "/power_state").strip() in ("D3cold", "error")
        if asleep or cold or host.gave_up(address, lines):
            told.append("%s is not asked: it sleeps, or the kernel gave it up" % address)
            continue
        if limit.left <= 0.5:
            gap("node-lspci", "timeout", "no time was left for " + address)
            break
        ended = run(["lspci", "-nnvv", "-s", address], limit.within(_LSPCI_S), "lspci", _CAP)
        told.append((ended.out or ended.err) if ended.code is not None else address + ": lspci did not end")
        if ended.code is None:
            gap("node-lspci", "timeout", address + ": lspci did not end")
            break
    _piece("node-lspci.txt", "\n".join(told))


def _stacks(vmid: int, container: bool) -> None:
    """Kernel stacks of the guest's QEMU, or of the container's processes that hang."""
    pids = host.qemu_pids(vmid)
    if container:
        mine = "ct %d" % vmid
        hangs = [p for p in procs.pids() if (procs.stat("/proc/%d" % p) or {}).get("state") == "D"]
        pids = [p for p in hangs if host.guest_of(procs._cgroup("/proc/%d" % p)) == mine]
    told = []
    for pid in pids[:32]:
        row = procs.stat("/proc/%d" % pid)
        for tid, state, wchan in procs.threads(pid)[:256]:
            if row is not None and (state == "D" or tid == pid):
                told.append("%d/%d %s %s %s\n%s" % (pid, tid, row["comm"], state, wchan, stack_of(pid, tid)))
    _piece("node-stacks.txt", "\n".join(told))
