"""What a host does with a passed-through device: facts of a real kernel with an IOMMU, as a host rung needs them.

Every write goes through `inside.write`: detached, with a deadline, because some of them wait in the kernel for ever.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recover.edge.shell.ssh import SshShell

from . import inside
from .machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(600), pytest.mark.xdist_group("vm-node")]
BDF = "0000:01:00.0"
DEVICE = f"/sys/bus/pci/devices/{BDF}"

# As QEMU opens it: container, group, device (VFIO_GROUP_SET_CONTAINER, VFIO_SET_IOMMU, VFIO_GROUP_GET_DEVICE_FD).
HOLDER = """
import fcntl, os, struct, sys, time
container = os.open('/dev/vfio/vfio', os.O_RDWR)
group = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(group, 0x3B68, struct.pack('i', container))
fcntl.ioctl(container, 0x3B66, 1)
device = fcntl.ioctl(group, 0x3B6A, sys.argv[2].encode() + bytes(1))
print('ready', flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def host(node: Machine) -> Iterator[SshShell]:
    shell = node.shell()
    yield shell
    shell.close()


@pytest.fixture
def group(host: SshShell) -> str:
    """The device bound to vfio-pci, as Proxmox leaves it; gives its /dev/vfio node."""
    if driver(host) != "vfio-pci":
        assert inside.write(host, BDF, f"{DEVICE}/driver/unbind") == "0"
        assert inside.write(host, "vfio-pci", f"{DEVICE}/driver_override") == "0"
        assert inside.write(host, BDF, "/sys/bus/pci/drivers_probe") == "0"
    number = inside.run(host, f"basename $(readlink {DEVICE}/iommu_group)")
    return f"/dev/vfio/{number}"


def driver(host: SshShell) -> str:
    return inside.run(host, f"basename $(readlink {DEVICE}/driver)")


def methods(host: SshShell) -> list[str]:
    return inside.run(host, f"cat {DEVICE}/reset_method").split()


def test_a_bound_device_is_a_node_of_its_group(host: SshShell, group: str) -> None:
    assert driver(host) == "vfio-pci"
    assert inside.run(host, f"ls -d {group}") == group
    assert inside.run(host, f"ls {DEVICE}/iommu_group/devices") == BDF, "alone in its group"


def test_a_function_reset_succeeds(host: SshShell, group: str) -> None:
    assert methods(host) == ["flr", "bus"]
    assert inside.write(host, "flr", f"{DEVICE}/reset_method") == "0"
    assert methods(host) == ["flr"]
    assert inside.write(host, "1", f"{DEVICE}/reset") == "0"
    assert inside.write(host, "default", f"{DEVICE}/reset_method") == "0"
    assert methods(host) == ["flr", "bus"]
    assert driver(host) == "vfio-pci"


def test_a_bus_reset_is_accepted_as_method_and_then_fails(host: SshShell, group: str) -> None:
    try:
        assert inside.write(host, "bus", f"{DEVICE}/reset_method") == "0"
        said = inside.write(host, "1", f"{DEVICE}/reset", 20)
        # ENOTTY, as in Proxmox's task log. Debian's sh calls every failed write of its echo an I/O error.
        assert said.startswith("1") and "Inappropriate ioctl for device" in said, said
        assert "Link Active" in inside.run(host, "dmesg | tail -5")
    finally:
        assert inside.write(host, "default", f"{DEVICE}/reset_method") == "0"
    assert inside.write(host, "1", f"{DEVICE}/reset") == "0", "a function reset still works after it"


def test_a_method_that_the_device_lacks_is_refused(host: SshShell, group: str) -> None:
    assert "nvalid argument" in inside.write(host, "pm", f"{DEVICE}/reset_method")
    assert methods(host) == ["flr", "bus"]


def test_a_device_that_another_process_holds(host: SshShell, group: str) -> None:
    holder = inside.start(host, HOLDER, group, BDF)
    found = inside.run(host, f"ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c -- '-> {group}$'")
    assert found == "1", "the holder is found by its open node"
    busy = inside.run(host, f"exec 2>&1; cat {group} || true")
    assert "busy" in busy.lower(), busy
    assert inside.write(host, "1", f"{DEVICE}/reset") == "0", "sysfs resets it under its user's feet: nobody refuses"

    said = inside.write(host, BDF, f"{DEVICE}/driver/unbind", 3)
    assert said.startswith("blocked "), said
    writer = said.split()[1]
    assert inside.run(host, f"cat /proc/{writer}/wchan || true").startswith("vfio"), "it waits for the holder"
    inside.run(host, f"kill {holder}")
    ended = inside.run(host, f"for i in $(seq 100); do kill -0 {writer} 2>/dev/null || break; sleep 0.1; done; echo $i")
    assert int(ended) < 100, "and ends with it"
    assert inside.run(host, f"readlink {DEVICE}/driver || echo none") == "none"
    inside.write(host, BDF, "/sys/bus/pci/drivers_probe")


def test_removed_and_found_again_it_has_its_first_driver(host: SshShell, group: str) -> None:
    assert inside.write(host, "1", f"{DEVICE}/remove") == "0"
    assert inside.run(host, f"ls {DEVICE} 2>&1 || true").startswith("ls:"), "it is gone from sysfs"
    assert inside.write(host, "1", "/sys/bus/pci/rescan") == "0"
    assert driver(host) == "nvme", "driver_override went with it: Proxmox binds it again at the next start"
    assert inside.run(host, f"cat {DEVICE}/driver_override") == "(null)"


def test_a_remove_that_blocks_makes_every_rescan_block_too(host: SshShell, group: str) -> None:
    holder = inside.start(host, HOLDER, group, BDF)
    assert inside.write(host, "1", f"{DEVICE}/remove", 3).startswith("blocked ")
    assert inside.write(host, "1", "/sys/bus/pci/rescan", 3).startswith("blocked "), "one lock for the whole bus"
    inside.run(host, f"kill {holder}")
    back = f"for i in $(seq 100); do [ -e {DEVICE}/driver ] && break; sleep 0.1; done; echo $i"
    assert int(inside.run(host, back)) < 100, "both go on when the holder is gone"
