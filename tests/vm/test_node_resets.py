"""The agent's resets on a real kernel with an IOMMU: what a folder of files can't refuse, sysfs and vfio do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recover.edge.actuator.host import HostActuator
from recover.edge.host import HostProbe
from recover.edge.shell.ssh import SshShell
from recover.model.act import Outcome, ResetPci, RestoreResetMethod, VmRef
from recover.model.host import Host
from recover.model.hypervisor import GuestKind, HostPci, Hypervisor, VmConfig
from recover.model.reading import Known, Unknown

from . import inside
from .machine import Machine
from .test_node import BDF, DEVICE, HOLDER

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.xdist_group("vm-node")]
CONFIG = VmConfig("node-174", 1024, hostpci=(HostPci("hostpci0", BDF, (BDF,)),))
SEEN = Hypervisor("pve", "pve1", 174, GuestKind.VM, "stopped", config=Known(CONFIG))


@pytest.fixture(scope="module")
def host(node: Machine) -> Iterator[SshShell]:
    shell = node.shell()
    assert shell.connect(120.0, patient=True) is None
    yield shell
    shell.close()


@pytest.fixture
def bound(host: SshShell) -> str:
    """The device at vfio-pci, as Proxmox leaves it; gives its /dev/vfio node."""
    if inside.run(host, f"basename $(readlink {DEVICE}/driver)") != "vfio-pci":
        assert inside.write(host, BDF, f"{DEVICE}/driver/unbind") == "0"
        assert inside.write(host, "vfio-pci", f"{DEVICE}/driver_override") == "0"
        assert inside.write(host, BDF, "/sys/bus/pci/drivers_probe") == "0"
    return "/dev/vfio/" + inside.run(host, f"basename $(readlink {DEVICE}/iommu_group)")


def looked(host: SshShell) -> Host:
    seen = HostProbe(lambda _: host, seconds=180.0).look(SEEN)
    assert isinstance(seen, Known), seen
    return seen.value


def reset(host: SshShell, how: str, boot: str, deadline: float = 60.0) -> Outcome:
    hands = HostActuator(lambda _: host)
    return hands.perform(ResetPci(VmRef("pve", 174, ""), "pve1", (BDF,), how, boot, deadline, own=(BDF,)))


def test_what_a_look_at_the_node_tells(host: SshShell, bound: str) -> None:
    seen = looked(host)
    function = seen.function(BDF)
    assert function is not None and seen.root and seen.complete, seen
    assert (function.driver, function.resets) == ("vfio-pci", ("flr", "bus")), function
    assert function.runtime == "suspended" and isinstance(function.answers, Unknown), "vfio lets it sleep: not woken"
    assert f"/dev/vfio/{function.iommu_group}" == bound
    assert {b.address: b.below for b in seen.bridges}[function.bridge] == (BDF,)
    assert not seen.holders and not seen.qemu


def test_function_reset_bus_reset_and_off_the_bus_and_on_again(host: SshShell, bound: str) -> None:
    boot = looked(host).boot_id
    flr = reset(host, "flr", boot)
    assert flr.ok and flr.changed, flr
    bus = reset(host, "bus", boot)
    assert not bus.ok and bus.clear and "Inappropriate ioctl" in bus.detail, bus  # this port's slot can't do it
    assert inside.run(host, f"cat {DEVICE}/reset_method") == "flr bus", "the kernel's own order is back"
    again = reset(host, "rescan", boot)
    assert again.ok and "taken by the node's own driver" in again.detail, again
    assert HostActuator(lambda _: host).perform(RestoreResetMethod("pve1", (BDF,), boot)).ok


def test_a_device_that_is_held_is_not_touched(host: SshShell, bound: str) -> None:
    boot = looked(host).boot_id
    holder = inside.start(host, HOLDER, bound, BDF)
    try:
        assert (int(holder), bound) in {(h.pid, h.file) for h in looked(host).holders}
        for how in ("flr", "rescan"):
            refused = reset(host, how, boot)
            assert (refused.ok, refused.changed) == (False, False) and f"pid {holder}" in refused.detail, refused
    finally:
        inside.run(host, f"kill {holder}")
    assert not reset(host, "flr", "another boot").changed
