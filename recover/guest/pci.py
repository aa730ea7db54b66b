"""Resets of PCI devices on a Proxmox node: only of what nobody holds, and no write is waited for beyond its deadline.

Writes to sysfs can block in the kernel for ever (a device that is held, a lock that a stuck write has), so each is made
in a child that may be abandoned; a device on which such a child still hangs is not written to again.
"""

import os
import struct
import time

from recover.guest import host, procs
from recover.guest.child import NAME, Child, collect
from recover.guest.wire import Limit, at, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Answer = dict[str, Any]

WRITE_S = 75.0  # the kernel waits for a device up to 65.5 s after its reset (drivers/pci/pci.c)
BACK_S = 30.0
_BRIDGE_CONTROL, _BUS_RESET = 0x3E, 0x40  # PCI-to-PCI bridge specification, secondary bus reset
_RAW_S = 1.1  # so long a device may take after that (PCIe base specification, 6.6.1)
_FREE = ("", "vfio-pci")


class Refused(Exception):
    """Nothing was written."""


class Failed(Exception):
    """`clear` False: a write hangs, and may yet be done."""

    def __init__(self, says: str, clear: bool = True) -> None:
        Exception.__init__(self, says)
        self.clear = clear


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
        before = host.hardware([a for a in addresses if os.path.isdir(host.folder(a))], limit.within(8.0), wake=True)
        began = True
        _HOW[how](addresses, limit, log)
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
            path = host.folder(str(address)) + "/reset_method"
            if os.path.exists(path):
                _unblocked([str(address)])
                _write(path, "default", limit, log)
    except Refused as error:
        # Another boot of the node: what was set is gone with the old one.
        gone = str(error).startswith("the node")
        return {"ok": gone, "changed": False, "detail": str(error), "log": log}
    except Failed as error:
        return {"ok": False, "changed": True, "clear": error.clear, "detail": str(error), "log": log}
    return {"ok": True, "changed": bool(log), "detail": "reset methods are the kernel's own again", "log": log}


# before


def _same_boot(request: "Answer") -> None:
    here = read_or("/proc/sys/kernel/random/boot_id").strip()
    if request.get("boot_id") and request["boot_id"] != here:
        raise Refused("the node has rebooted since it was looked at")


def _alone(addresses: "list[str]", request: "Answer", how: str) -> None:
    """Nobody has any of what would be reset, looked up now: sysfs itself resets a device under its user's feet."""
    vmid = int(request.get("vmid") or 0)
    if not addresses or not all(host.ADDRESS.match(a) for a in addresses) or how not in _HOW:
        raise Refused("no device is named")
    pids = host.qemu_pids(vmid)
    if pids:
        raise Refused("QEMU of VM %d still runs on the node: pid %s" % (vmid, ", ".join(map(str, pids))))
    hit = set(addresses)
    for address in addresses:
        hit.update(host.group_members(address))
    if how == "bus":
        for address in addresses:
            hit.update(host.below(host.bridge_of(address)) if host.bridge_of(address) else ())
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
    files = {name for address in addresses for name in host.nodes_of(address)}
    for one in host.holders(files):
        who = one["guest"] or one["unit"] or "the node"
        raise Refused("%s is held by %s (pid %d, %s)" % (one["file"], one["comm"], one["pid"], who))
    for address in addresses:
        driver = host.driver_of(address)
        if os.path.isdir(host.folder(address)) and driver not in _FREE:
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


# the writes


def _write(path: str, text: str, limit: Limit, log: "list[str]", most: float = WRITE_S) -> None:
    """One write in a child that may be abandoned. Failed if it is refused or does not come back."""
    if limit.left <= 0:
        raise Failed("no time was left for a write to " + path)

    def job(say: "Callable[[Any], None]") -> None:
        fd = os.open(path, os.O_WRONLY)
        say({"open": True})
        try:
            os.write(fd, text.encode("ascii"))
            say({"ok": True})
        except OSError as error:
            say({"errno": error.errno})
        finally:
            os.close(fd)

    began = time.monotonic()
    one = Child("write to " + path, job)
    late = collect([one], limit.within(most))
    said = {}  # type: dict[str, Any]
    for value in one.values:
        said.update(value)
    took = time.monotonic() - began
    plain = path[len(at("")):]
    if late:
        log.append("echo %s > %s: blocked in the kernel" % (text, plain))
        raise Failed("the write to %s did not come back within %.0f s" % (plain, took), clear=False)
    if not said.get("ok"):
        why = os.strerror(said["errno"]) if "errno" in said else str(said.get("crash", "no answer"))
        log.append("echo %s > %s: %s" % (text, plain, why))
        raise Failed("%s refused %r: %s" % (plain, text, why))
    log.append("echo %s > %s: done in %.1f s" % (text, plain, took))


def _by_method(addresses: "list[str]", method: str, limit: Limit, log: "list[str]") -> None:
    """Select, reset, and put the kernel's own order back, whatever came of it."""
    for address in addresses:
        path = host.folder(address)
        if not os.path.exists(path + "/reset"):
            raise Failed("%s has no reset that the kernel knows" % address)
        chooses = os.path.exists(path + "/reset_method")
        if chooses and method not in read_or(path + "/reset_method").split():
            raise Failed("%s has no %s reset" % (address, method))
        if not chooses and method != "flr":
            raise Failed("this kernel does not let one choose a %s reset" % method)
        try:
            if chooses:
                _write(path + "/reset_method", method, limit, log)
            _write(path + "/reset", "1", limit, log)
        finally:
            if chooses:
                _write(path + "/reset_method", "default", Limit(max(5.0, limit.left)), log, 10.0)


def _flr(addresses: "list[str]", limit: Limit, log: "list[str]") -> None:
    _by_method(addresses, "flr", limit, log)


def _bus(addresses: "list[str]", limit: Limit, log: "list[str]") -> None:
    bridges = []  # type: list[str]
    for address in addresses:
        bridge = host.bridge_of(address)
        if not bridge:
            raise Refused("%s stands on the root bus: there is no port to reset it by" % address)
        if bridge not in bridges:
            bridges.append(bridge)
    for bridge in bridges:
        one = host.below(bridge)
        if os.path.exists(host.folder(bridge) + "/reset_subordinate"):
            _write(host.folder(bridge) + "/reset_subordinate", "1", limit, log)
        elif len(one) == 1 and "bus" in read_or(host.folder(one[0]) + "/reset_method").split():
            _by_method(one, "bus", limit, log)
        elif set(one) <= set(addresses):
            _raw(bridge, limit, log)
        else:
            raise Refused("%s has more below it than is found again afterwards" % bridge)


def _raw(bridge: str, limit: Limit, log: "list[str]") -> None:
    """The bit itself, as setpci sets it: the devices lose their configuration, and remove and rescan must follow."""
    path = host.folder(bridge) + "/config"

    def job(say: "Callable[[Any], None]") -> None:
        fd = os.open(path, os.O_RDWR)
        try:
            before = struct.unpack("<H", os.pread(fd, 2, _BRIDGE_CONTROL))[0]
            try:
                os.pwrite(fd, struct.pack("<H", before | _BUS_RESET), _BRIDGE_CONTROL)
                time.sleep(0.01)
            finally:
                os.pwrite(fd, struct.pack("<H", before & ~_BUS_RESET), _BRIDGE_CONTROL)
            time.sleep(_RAW_S)
            say({"ok": True})
        finally:
            os.close(fd)

    one = Child("bus reset by " + bridge, job)
    late = collect([one], limit.within(20.0))
    said = {key: value for one_said in one.values for key, value in one_said.items()}
    log.append("setpci -s %s BRIDGE_CONTROL, bit 6 set and cleared: %s" % (bridge, "done" if said.get("ok") else said))
    if late or not said.get("ok"):
        raise Failed("the bus reset by %s failed: %s" % (bridge, said.get("crash", "it did not come back")), not late)


def _rescan(addresses: "list[str]", limit: Limit, log: "list[str]") -> None:
    """Taken off the bus and found again: all of them go before the first comes back."""
    ports = {address: host.bridge_of(address) for address in addresses}
    for address in addresses:
        if os.path.isdir(host.folder(address)):
            _write(host.folder(address) + "/remove", "1", limit, log)
    for port in sorted(set(ports.values())):
        local = host.folder(port) + "/rescan"
        _write(local if port and os.path.exists(local) else at("/sys/bus/pci/rescan"), "1", limit, log)
    end = Limit(min(BACK_S, max(1.0, limit.left)))
    while end.left > 0 and not all(os.path.isdir(host.folder(a)) for a in addresses):
        time.sleep(0.1)
    missing = [a for a in addresses if not os.path.isdir(host.folder(a))]
    if missing:
        raise Failed("%s did not come back on the bus" % ", ".join(missing))


_HOW = {"flr": _flr, "bus": _bus, "rescan": _rescan}


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
    names = ["%s by %s" % (a, host.driver_of(a)) for a in addresses if host.driver_of(a) not in _FREE]
    return ["taken by the node's own driver: " + ", ".join(names)] if names else []


def gpu_users(request: "Answer") -> "list[str]":
    """Everybody on the node who has one of these GPUs open."""
    files = {name for _, bus in request.get("gpus") or () for name in host.nodes_of(_short(str(bus)))}
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
