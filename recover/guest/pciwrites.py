"""The writes that reset PCI devices on a Proxmox node; none of them is waited for beyond its deadline.

A write to sysfs can block in the kernel for ever (a device that is held, a lock that a stuck write has), so each is made
in a child that may be abandoned.
"""

import os
import struct
import time

from recover.guest import sysfs
from recover.guest.child import Child, collect
from recover.guest.wire import Limit, at, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

WRITE_S = 75.0  # the kernel waits for a device up to 65.5 s after its reset (drivers/pci/pci.c)
BACK_S = 30.0
_BRIDGE_CONTROL, _BUS_RESET = 0x3E, 0x40  # PCI-to-PCI bridge specification, secondary bus reset
_RAW_S = 1.1  # so long a device may take after that (PCIe base specification, 6.6.1)


class Refused(Exception):
    """Nothing was written."""


class Failed(Exception):
    """`clear` False: a write hangs, and may yet be done."""

    def __init__(self, says: str, clear: bool = True) -> None:
        Exception.__init__(self, says)
        self.clear = clear


def write(path: str, text: str, limit: Limit, log: "list[str]", most: float = WRITE_S) -> None:
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
        path = sysfs.folder(address)
        if not os.path.exists(path + "/reset"):
            raise Failed("%s has no reset that the kernel knows" % address)
        chooses = os.path.exists(path + "/reset_method")
        if chooses and method not in read_or(path + "/reset_method").split():
            raise Failed("%s has no %s reset" % (address, method))
        if not chooses and method != "flr":
            raise Failed("this kernel does not let one choose a %s reset" % method)
        try:
            if chooses:
                write(path + "/reset_method", method, limit, log)
            write(path + "/reset", "1", limit, log)
        finally:
            if chooses:
                write(path + "/reset_method", "default", Limit(max(5.0, limit.left)), log, 10.0)


def _flr(addresses: "list[str]", limit: Limit, log: "list[str]") -> None:
    _by_method(addresses, "flr", limit, log)


def _bus(addresses: "list[str]", limit: Limit, log: "list[str]") -> None:
    bridges = []  # type: list[str]
    for address in addresses:
        bridge = sysfs.bridge_of(address)
        if not bridge:
            raise Refused("%s stands on the root bus: there is no port to reset it by" % address)
        if bridge not in bridges:
            bridges.append(bridge)
    for bridge in bridges:
        one = sysfs.below(bridge)
        if os.path.exists(sysfs.folder(bridge) + "/reset_subordinate"):
            write(sysfs.folder(bridge) + "/reset_subordinate", "1", limit, log)
        elif len(one) == 1 and "bus" in read_or(sysfs.folder(one[0]) + "/reset_method").split():
            _by_method(one, "bus", limit, log)
        elif set(one) <= set(addresses):
            _raw(bridge, limit, log)
        else:
            raise Refused("%s has more below it than is found again afterwards" % bridge)


def _raw(bridge: str, limit: Limit, log: "list[str]") -> None:
    """The bit itself, as setpci sets it: the devices lose their configuration, and remove and rescan must follow."""
    path = sysfs.folder(bridge) + "/config"

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
    ports = {address: sysfs.bridge_of(address) for address in addresses}
    for address in addresses:
        if os.path.isdir(sysfs.folder(address)):
            write(sysfs.folder(address) + "/remove", "1", limit, log)
    for port in sorted(set(ports.values())):
        local = sysfs.folder(port) + "/rescan"
        write(local if port and os.path.exists(local) else at("/sys/bus/pci/rescan"), "1", limit, log)
    back(addresses, limit)


def back(addresses: "list[str]", limit: Limit) -> None:
    end = Limit(min(BACK_S, max(1.0, limit.left)))
    while end.left > 0 and not all(os.path.isdir(sysfs.folder(a)) for a in addresses):
        time.sleep(0.1)
    missing = [a for a in addresses if not os.path.isdir(sysfs.folder(a))]
    if missing:
        raise Failed("%s did not come back on the bus" % ", ".join(missing))


HOW = {"flr": _flr, "bus": _bus, "rescan": _rescan}
