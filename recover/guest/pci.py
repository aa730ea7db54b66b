"""PCI devices of a Proxmox node are reset only where nobody holds them, and looked for without touching another.

Who holds what is looked up at the moment of the act; a device on which an earlier write still hangs is left alone.
"""

import os

from recover.guest import host, procs, sysfs
from recover.guest.child import NAME
from recover.guest.pciwrites import HOW, Failed, Refused, back, write
from recover.guest.wire import Limit, at, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Answer = dict[str, Any]

_FREE = ("", "vfio-pci")


def reset(request: "Answer") -> "Answer":
    """One kind of reset of all the given functions. `how`: flr, bus or rescan."""
    addresses = [str(a) for a in request.get("addresses") or ()]
    how = str(request.get("how"))
    log = []  # type: list[str]
    limit = Limit(float(request.get("deadline") or 300.0))
    since = _newest()
    began = False
    try:
        _same_boot(request)
        _alone(addresses, request, how)
        _given_up(addresses)
        before = host.hardware([a for a in addresses if os.path.isdir(sysfs.folder(a))], limit.within(8.0), wake=True)
        began = True
        HOW[how](addresses, limit, log)
        after = _answers(addresses, limit)
    except Refused as error:
        return {"ok": False, "changed": began, "detail": str(error), "log": log}
    except Failed as error:
        words = [str(error)] + _kernel_words(addresses, since)
        return {"ok": False, "changed": True, "clear": error.clear, "detail": "; ".join(words), "log": log}
    detail = "; ".join([_done(how, before, after), *_grabbed(addresses), *_kernel_words(addresses, since)])
    return {"ok": True, "changed": True, "detail": detail, "log": log}


def restore(request: "Answer") -> "Answer":
    """The kernel's own order of reset methods is put back."""
    log = []  # type: list[str]
    limit = Limit(float(request.get("deadline") or 30.0))
    try:
        _same_boot(request)
        for address in request.get("addresses") or ():
            path = sysfs.folder(str(address)) + "/reset_method"
            if os.path.exists(path):
                _unblocked([str(address)])
                write(path, "default", limit, log)
    except Refused as error:
        # Another boot of the node: what was set is gone with the old one.
        gone = str(error).startswith("the node")
        return {"ok": gone, "changed": False, "detail": str(error), "log": log}
    except Failed as error:
        return {"ok": False, "changed": True, "clear": error.clear, "detail": str(error), "log": log}
    return {"ok": True, "changed": bool(log), "detail": "reset methods are the kernel's own again", "log": log}


def find(request: "Answer") -> "Answer":
    """Functions that are off the bus are looked for; what is on it is not touched, so their VM may run meanwhile."""
    addresses = [str(a) for a in request.get("addresses") or ()]
    log = []  # type: list[str]
    limit = Limit(float(request.get("deadline") or 90.0))
    since = _newest()
    try:
        _same_boot(request)
        if not addresses or not all(sysfs.ADDRESS.match(a) for a in addresses):
            raise Refused("no device is named")
        gone = [a for a in addresses if not os.path.isdir(sysfs.folder(a))]
        if gone:
            _unblocked(gone)
            write(at("/sys/bus/pci/rescan"), "1", limit, log)
            back(gone, limit)
        _answers(addresses, limit)
        if _grabbed(gone):
            raise Failed("; ".join(_grabbed(gone)))
    except Refused as error:
        return {"ok": False, "changed": False, "detail": str(error), "log": log}
    except Failed as error:
        words = [str(error)] + _kernel_words(addresses, since)
        return {"ok": False, "changed": bool(log), "clear": error.clear, "detail": "; ".join(words), "log": log}
    words = ["%s is on the bus%s" % (", ".join(addresses), " again" if log else "")]
    return {"ok": True, "changed": bool(log), "detail": "; ".join(words + _kernel_words(addresses, since)), "log": log}


# before


def _same_boot(request: "Answer") -> None:
    here = read_or("/proc/sys/kernel/random/boot_id").strip()
    if request.get("boot_id") and request["boot_id"] != here:
        raise Refused("the node has rebooted since it was looked at")


def _alone(addresses: "list[str]", request: "Answer", how: str) -> None:
    """Nobody has any of what would be reset, looked up now: sysfs itself resets a device under its user's feet."""
    vmid = int(request.get("vmid") or 0)
    if not addresses or not all(sysfs.ADDRESS.match(a) for a in addresses) or how not in HOW:
        raise Refused("no device is named")
    pids = host.qemu_pids(vmid)
    if pids:
        raise Refused("QEMU of VM %d still runs on the node: pid %s" % (vmid, ", ".join(map(str, pids))))
    hit = set(addresses)
    for address in addresses:
        hit.update(sysfs.group_members(address))
        hit.update(sysfs.virtual_of(address))
        if how != "flr" and sysfs.physical_of(address):
            raise Refused("%s is a virtual function: a rescan finds none again, and the bus is not its own" % address)
    if how == "bus":
        for address in addresses:
            hit.update(sysfs.below(sysfs.bridge_of(address)) if sysfs.bridge_of(address) else ())
    own = set(addresses) | {str(a) for a in request.get("own") or ()}
    others = sorted(hit - own)
    if others:
        raise Refused("%s would be hit as well, and is not the guest's" % ", ".join(others))
    _unheld(sorted(hit), vmid)
    _unblocked(sorted(hit))


def _unheld(addresses: "list[str]", vmid: int) -> None:
    for row in host.reservations():
        if row["address"] in addresses and row["vmid"] != vmid:
            raise Refused("%s is reserved by guest %d" % (row["address"], row["vmid"]))
    files = {name for address in addresses for name in sysfs.nodes_of(address)}
    for one in host.holders(files):
        who = one["guest"] or one["unit"] or "the node"
        raise Refused("%s is held by %s (pid %d, %s)" % (one["file"], one["comm"], one["pid"], who))
    for address in addresses:
        driver = sysfs.driver_of(address)
        if os.path.isdir(sysfs.folder(address)) and driver not in _FREE:
            raise Refused("%s belongs to the node's own driver %s" % (address, driver))


def _unblocked(addresses: "list[str]") -> None:
    """A child of an earlier try that hangs in one of these devices' files, or in the lock that all removals share."""
    name = NAME.decode("ascii")
    for pid in procs.pids():
        seen = procs.stat("/proc/%d" % pid)
        if seen is None or seen["comm"] != name or pid == os.getpid():
            continue
        for fd in _links("/proc/%d/fd" % pid):
            if fd.endswith(("/remove", "/rescan")) or any("/" + a + "/" in fd for a in addresses):
                raise Refused("an earlier write still hangs in the kernel: pid %d, %s" % (pid, fd))


def _links(folder: str) -> "list[str]":
    found = []
    try:
        for name in os.listdir(folder):
            found.append(os.readlink("%s/%s" % (folder, name)))
    except OSError:
        pass
    return found


def _given_up(addresses: "list[str]") -> None:
    """Terminal: a device that the kernel gave up and that does not answer is not reset again and again."""
    lines = host.kernel_lines()
    marked = [a for a in addresses if host.gave_up(a, lines)]
    said = host.hardware(marked, Limit(8.0), wake=True) if marked else {}
    for address in marked:
        if said[address].get("answers") is not True:
            word = host.gave_up(address, lines)
            raise Refused("%s is lost to this node until its power is cut: %s" % (address, word))


# after


def _answers(addresses: "list[str]", limit: Limit) -> "dict[str, Answer]":
    said = host.hardware(addresses, Limit(min(10.0, max(2.0, limit.left))), wake=True)
    silent = [a for a in addresses if said[a].get("late") or said[a].get("answers") is False]
    if silent:
        raise Failed("%s does not answer: its configuration reads all ones" % ", ".join(silent))
    return said


def _newest() -> int:
    lines = host.kernel_lines()
    return int(lines[-1][0]) if lines else 0


def _kernel_words(addresses: "list[str]", since: int) -> "list[str]":
    lines = [text for _, text in host.kernel_lines(since) if any(a in text for a in addresses)]
    return ["the kernel: " + text for text in lines[-2:]]


_DONE = {"flr": "function reset", "bus": "bus reset", "rescan": "removed and found again"}


def _done(how: str, before: "dict[str, Answer]", after: "dict[str, Answer]") -> str:
    """With the link's width, and what it was before where that has changed."""
    shown = []
    for address, now in sorted(after.items()):
        was = str(before.get(address, {}).get("width") or "")
        width = str(now.get("width") or "")
        known = width not in ("", "0")
        changed = ", before x%s" % was if known and was not in ("", "0", width) else ""
        shown.append("%s x%s%s" % (address, width, changed) if known else address)
    return "%s: %s" % (_DONE[how], ", ".join(shown))


def _grabbed(addresses: "list[str]") -> "list[str]":
    names = ["%s by %s" % (a, sysfs.driver_of(a)) for a in addresses if sysfs.driver_of(a) not in _FREE]
    return ["taken by the node's own driver: " + ", ".join(names)] if names else []


def gpu_users(request: "Answer") -> "list[str]":
    """Everybody on the node who has one of these GPUs open."""
    files = {name for _, bus in request.get("gpus") or () for name in sysfs.nodes_of(_short(str(bus)))}
    found = []
    for one in host.holders(files):
        where = one["guest"] or one["unit"] or "the node"
        found.append("%s (pid %d, %s) on %s" % (one["comm"], one["pid"], where, one["file"]))
    return found


def _short(bus: str) -> str:
    """A bus id of the driver, with its eight digits, as sysfs names it."""
    head, _, rest = bus.lower().partition(":")
    return "%s:%s" % (head[-4:], rest) if len(head) == 8 and head.startswith("0000") else bus.lower()


def reset_gpu(request: "Answer") -> "Answer":
    """The driver's own reset, where nobody at all has the GPU: containers share the node's driver."""
    try:
        _same_boot(request)
    except Refused as error:
        return {"ok": False, "changed": False, "detail": str(error)}
    users = gpu_users(request)
    if users:
        return {"ok": False, "changed": False, "detail": "in use by " + ", ".join(users[:8])}
    from recover.guest import reset as driver

    return driver.reset_gpu(request)
