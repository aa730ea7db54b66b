"""The agent on a Proxmox node: what it tells of devices, and that it resets only what nobody has."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from recover.core.read.host import read_host
from recover.core.read.report import Report
from recover.edge.actuator.host import HostActuator
from recover.edge.host import HostProbe
from recover.edge.shell.local import LocalShell
from recover.model.act import RescanPci, ResetPci, RestoreResetMethod, VmRef
from recover.model.gpu import NOT_ASKED
from recover.model.host import Holder, Reservation
from recover.model.reading import Known, Unknown, Why
from tests.guest.conftest import BOOT, pythons
from tests.guest.sysfs import DEAD, VMID, Node
from tests.steps.looks import vm

GPU, AUDIO, OTHER = "0000:41:00.0", "0000:41:00.1", "0000:42:00.0"
PORT, PORT2 = "0000:40:01.1", "0000:40:03.1"
VM = VmRef("pve", VMID, "")
HOLD = "import sys,time\nf=open(sys.argv[1])\nprint('ready', flush=True)\ntime.sleep(600)"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.port(PORT)
    made.port(PORT2)
    made.function(GPU, PORT, group=20)
    made.function(AUDIO, PORT, group=20, methods="bus", kind="0x040300")
    made.function(OTHER, PORT2, group=21)
    return made


@pytest.fixture
def act(node: Node) -> Callable[..., object]:
    hands = HostActuator(lambda name: LocalShell() if name == "pve1" else None, str(node.root))

    def perform(how: str, *addresses: str, own: tuple[str, ...] = (), deadline: float = 30.0, boot: str = BOOT):
        which = addresses or (GPU, AUDIO)
        return hands.perform(ResetPci(VM, "pve1", which, how, boot, deadline, own))

    return perform


@pytest.mark.parametrize("python", pythons())
def test_a_node_is_told_with_every_python(node: Node, agent: Callable[..., Report], python: str) -> None:
    node.reserve(f"{GPU} {VMID} pid:123", "garbage")
    host = read_host(agent("host_look", python, vmid=VMID, addresses=[GPU], root=str(node.root)), "pve1")
    assert host is not None and host.complete and not host.gaps, host
    gpu = host.function(GPU)
    assert gpu is not None
    assert (gpu.driver, gpu.iommu_group, gpu.bridge, gpu.resets) == ("vfio-pci", 20, PORT, ("flr", "bus"))
    assert (gpu.link_width, gpu.link_width_max, gpu.power_state, gpu.answers) == (16, 16, "D0", Known(True))
    assert {b.address: (b.below, b.resets) for b in host.bridges}[PORT] == ((GPU, AUDIO), True)
    assert dict(host.groups)[20] == (GPU, AUDIO)
    assert host.reservations == (Reservation(GPU, VMID, "pid:123"),)
    assert host.boot_id == BOOT and host.root == (os.geteuid() == 0)


def test_the_drivers_device_files_are_told(node: Node, agent: Callable[..., Report]) -> None:
    for name in ("nvidia0", "nvidiactl", "null"):
        (node.root / "dev" / name).touch()
    host = read_host(agent("host_look", vmid=VMID, addresses=[], root=str(node.root)), "pve1")
    assert host is not None and host.device_files == ("/dev/nvidia0", "/dev/nvidiactl")


def test_huge_pages_of_each_numa_node_are_told(node: Node, agent: Callable[..., Report]) -> None:
    node.huge_pages(0, 1 << 20, nr=224, free=4, surplus=220)
    node.huge_pages(1, 1 << 20, nr=230, free=10, surplus=0)
    node.huge_pages(1, 2048, nr=0, free=0, surplus=0)
    node.huge_pages(2, 2048, nr="what?", free=1, surplus=0)
    host = read_host(agent("host_look", vmid=VMID, addresses=[], root=str(node.root)), "pve1")
    assert host is not None and host.complete
    assert sorted((p.node, p.kib, p.all, p.free, p.surplus) for p in host.hugepages) == [
        (0, 1 << 20, 224, 4, 220), (1, 2048, 0, 0, 0), (1, 1 << 20, 230, 10, 0),
    ]  # fmt: skip


def test_a_dead_device_and_a_sleeping_one(node: Node, agent: Callable[..., Report]) -> None:
    node.function("0000:43:00.0", PORT2, group=22, config=DEAD)
    node.function("0000:44:00.0", PORT2, group=23, config=DEAD, runtime="suspended")
    node.says("vfio-pci 0000:43:00.0: not ready 65535ms after FLR; giving up")
    node.says(f"vfio-pci {OTHER}: not ready 65535ms after bus reset; giving up")
    node.says(f"vfio-pci {OTHER}: ready 3000ms after bus reset")
    host = read_host(agent("host_look", vmid=VMID, addresses=[], root=str(node.root)), "pve1")
    assert host is not None
    dead, asleep, back = (host.function(a) for a in ("0000:43:00.0", "0000:44:00.0", OTHER))
    assert dead is not None and asleep is not None and back is not None
    assert dead.dead and dead.answers == Known(False) and "giving up" in dead.gave_up
    assert isinstance(asleep.answers, Unknown) and not asleep.dead, "asking would have woken it"
    assert not back.gave_up and back.answers == Known(True)


def test_who_holds_a_device_is_told_by_open_files(node: Node, agent: Callable[..., Report], start) -> None:
    child = start(HOLD, str(node.root / "dev/vfio/20"))
    host = read_host(agent("host_look", vmid=VMID, addresses=[GPU], root=str(node.root)), "pve1")
    assert host is not None
    (holder,) = host.holders
    assert isinstance(holder, Holder) and (holder.pid, holder.file) == (child.pid, "/dev/vfio/20")


def test_the_shell_must_be_on_the_node_that_the_api_names(node: Node) -> None:
    seen = vm()
    probe = HostProbe(lambda name: LocalShell(), str(node.root))
    other = probe.look(seen)
    assert isinstance(other, Unknown) and "correct [hosts.pve1] address" in other.detail
    here = vm(node=os.uname().nodename.partition(".")[0], host_uptime_s=NOT_ASKED)
    assert isinstance(probe.look(here), Known)
    up = Path("/proc/uptime").read_text().split()[0]
    same = HostProbe(lambda name: LocalShell(), str(node.root)).look(replace(here, host_uptime_s=Known(int(float(up)))))
    assert isinstance(same, Known)
    twin = HostProbe(lambda name: LocalShell(), str(node.root)).look(replace(here, host_uptime_s=Known(10**9)))
    assert isinstance(twin, Unknown) and "another machine of that name" in twin.detail
    none = HostProbe(lambda name: None).look(seen)
    assert isinstance(none, Unknown) and none.why is Why.ABSENT and "[hosts.pve1]" in none.detail


def test_the_node_s_words_are_kept_and_nothing_is_woken(node: Node, start, tmp_path: Path, monkeypatch) -> None:
    """`lspci` here is a script: what it is asked is what matters, since it reads a device's own configuration."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "lspci").write_text("#!/bin/sh\necho asked $*\n")
    (tools / "lspci").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    node.function("0000:44:00.0", PORT2, group=23, runtime="suspended")
    node.says(f"vfio-pci {GPU}: enabling device (0000 -> 0002)")
    node.says(f"vfio-pci {OTHER}: not ready 65535ms after FLR; giving up")
    node.reserve(f"{GPU} {VMID} pid:1")
    child = start(HOLD, str(node.root / "dev/kmsg"))
    scope = node.root / f"sys/fs/cgroup/qemu.slice/{VMID}.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text(f"{child.pid}\n")
    pieces = HostProbe(lambda name: LocalShell(), str(node.root)).words(vm(), 30.0)
    told = dict(pieces.files)
    assert pieces.missing == () and f"{GPU}: enabling device" in told["node-kernel.txt"], pieces
    assert told["node-reservations.txt"].startswith(GPU) and f"{child.pid}/{child.pid} " in told["node-stacks.txt"]
    assert f"asked -nnvv -s {GPU}" in told["node-lspci.txt"]
    for address in ("0000:44:00.0", OTHER):
        assert f"{address} is not asked" in told["node-lspci.txt"] and f"-s {address}" not in told["node-lspci.txt"]
    assert HostProbe(lambda name: None).words(vm(), 30.0).files == ()


@pytest.mark.parametrize("how", ["flr", "bus", "rescan"])
def test_virtual_functions(node: Node, agent: Callable[..., Report], act, how: str) -> None:
    """A reset of the physical one ends them; one of them alone knows only its own function reset."""
    (node.pci / GPU / "virtfn0").symlink_to((node.pci / OTHER).resolve())
    (node.pci / OTHER / "physfn").symlink_to((node.pci / GPU).resolve())
    host = read_host(agent("host_look", vmid=VMID, addresses=[GPU], root=str(node.root)), "pve1")
    assert host is not None
    physical, virtual = host.function(GPU), host.function(OTHER)
    assert physical is not None and virtual is not None
    assert (physical.virtfns, virtual.physfn) == ((OTHER,), GPU)
    outcome = act(how, GPU, own=(GPU, AUDIO))
    assert not outcome.ok and not outcome.changed and f"{OTHER} would be hit as well" in outcome.detail
    alone = act(how, OTHER, own=(OTHER,))
    assert alone.changed is (how == "flr"), alone
    assert node.wrote(f"{OTHER}/remove") == "" and node.wrote(f"{GPU}/reset") == ""


def test_a_function_reset_is_chosen_done_and_put_back(node: Node, act) -> None:
    outcome = act("flr", GPU, own=(GPU, AUDIO))
    assert outcome.ok and outcome.changed and outcome.detail.startswith("function reset: 0000:41:00.0 x16"), outcome
    assert [line.split(" > ")[0] for line in outcome.log] == ["echo flr", "echo 1", "echo default"]
    assert node.wrote(f"{GPU}/reset") == "1" and node.wrote(f"{AUDIO}/reset") == ""


def test_what_has_no_function_reset_says_so(node: Node, act) -> None:
    outcome = act("flr", AUDIO, own=(GPU, AUDIO))
    assert not outcome.ok and "has no flr reset" in outcome.detail and outcome.clear
    assert node.wrote(f"{AUDIO}/reset") == ""


def test_a_bus_reset_goes_by_the_port(node: Node, act) -> None:
    outcome = act("bus")
    assert outcome.ok, outcome
    assert node.wrote(f"{PORT}/reset_subordinate") == "1" and node.wrote(f"{GPU}/reset") == ""


def test_a_bus_reset_is_refused_where_another_device_is_below(node: Node, act) -> None:
    node.function("0000:41:00.2", PORT, group=25, vendor="0x15b3", driver="mlx5_core")
    outcome = act("bus")
    assert (outcome.ok, outcome.changed) == (False, False) and "0000:41:00.2 would be hit" in outcome.detail
    assert node.wrote(f"{PORT}/reset_subordinate") == ""


def test_an_old_kernel_resets_the_bus_by_the_bridge_s_own_bit(node: Node, act) -> None:
    (node.pci / PORT / "reset_subordinate").unlink()
    (node.pci / PORT / "config").write_bytes(bytes(0x3E) + b"\x02\x00")
    outcome = act("bus")
    assert outcome.ok and "BRIDGE_CONTROL" in outcome.log[0], outcome
    assert (node.pci / PORT / "config").read_bytes()[0x3E:0x40] == b"\x02\x00", "the bit is cleared again"


def test_off_the_bus_and_on_again(node: Node, act) -> None:
    outcome = act("rescan")
    assert outcome.ok and "removed and found again" in outcome.detail, outcome
    assert node.wrote(f"{GPU}/remove") == node.wrote(f"{AUDIO}/remove") == node.wrote(f"{PORT}/rescan") == "1"
    assert (node.root / "sys/bus/pci/rescan").read_text() == "", "no further than below its own port"


def test_what_is_off_the_bus_is_looked_for_and_nothing_else_is_touched(node: Node, start) -> None:
    """The VM's QEMU runs meanwhile. Its kernel here finds the device when it is told to look."""
    hands, gone = HostActuator(lambda _: LocalShell(), str(node.root)), "0000:45:00.0"
    start(HOLD, str(node.root / "dev/vfio/20"))
    bus = node.root / "sys/bus/pci/rescan"

    def kernel() -> None:
        while not bus.read_text():
            time.sleep(0.01)
        node.function(gone, PORT2, group=30)

    finder = threading.Thread(target=kernel, daemon=True)
    finder.start()
    found = hands.perform(RescanPci("pve1", (GPU, gone), BOOT))
    assert found.ok and found.changed and "is on the bus again" in found.detail, found
    assert found.log[0].startswith("echo 1 > /sys/bus/pci/rescan") and node.wrote(f"{GPU}/remove") == ""
    again = hands.perform(RescanPci("pve1", (GPU, gone), BOOT))
    assert (again.ok, again.changed) == (True, False), "an ensure verb"


def test_what_a_rescan_does_not_find_is_no_success(node: Node) -> None:
    hands = HostActuator(lambda _: LocalShell(), str(node.root))
    lost = hands.perform(RescanPci("pve1", ("0000:77:00.0",), BOOT, deadline_s=2.0))
    assert not lost.ok and "0000:77:00.0 did not come back on the bus" in lost.detail and lost.clear, lost
    other = hands.perform(RescanPci("pve1", (GPU,), "another boot"))
    assert (other.ok, other.changed) == (False, False) and "rebooted" in other.detail


def test_what_anybody_holds_is_not_touched(node: Node, act, start) -> None:
    child = start(HOLD, str(node.root / "dev/vfio/20"))
    for how in ("flr", "bus", "rescan"):
        outcome = act(how)
        assert (outcome.ok, outcome.changed) == (False, False)
        assert f"pid {child.pid}" in outcome.detail and "/dev/vfio/20" in outcome.detail
    assert not any(node.wrote(f"{GPU}/{name}") for name in ("reset", "remove"))


def test_a_qemu_that_still_runs_forbids_it(node: Node, act, start) -> None:
    child = start(HOLD, str(node.root / "dev/kmsg"))
    scope = node.root / f"sys/fs/cgroup/qemu.slice/{VMID}.scope"
    scope.mkdir(parents=True)
    (scope / "cgroup.procs").write_text(f"{child.pid}\n")
    outcome = act("flr", GPU, own=(GPU, AUDIO))
    assert not outcome.changed and f"pid {child.pid}" in outcome.detail and "still runs" in outcome.detail


def test_reservations_drivers_and_other_boots_forbid_it(node: Node, act) -> None:
    node.reserve(f"{GPU} 999 time:1")
    assert "reserved by guest 999" in act("flr", GPU, own=(GPU, AUDIO)).detail
    node.reserve()
    node.bind(GPU, "nvidia")
    assert "own driver nvidia" in act("rescan").detail
    node.bind(GPU, "vfio-pci")
    rebooted = act("flr", GPU, own=(GPU, AUDIO), boot="another")
    assert not rebooted.changed and "rebooted" in rebooted.detail
    assert "would be hit" in act("flr", GPU).detail, "its own audio function was not said to be the guest's"
    assert node.wrote(f"{GPU}/reset") == ""


def test_a_device_that_was_given_up_is_left_alone(node: Node, act) -> None:
    node.says(f"vfio-pci {GPU}: Unable to change power state from D3cold to D0, device inaccessible")
    (node.pci / GPU / "config").write_bytes(DEAD)
    outcome = act("rescan")
    assert (outcome.ok, outcome.changed) == (False, False) and "until its power is cut" in outcome.detail
    assert node.wrote(f"{GPU}/remove") == ""


def test_a_write_that_blocks_is_left_behind_and_says_so(node: Node, act) -> None:
    node.blocks(f"{GPU}/reset")
    outcome = act("flr", GPU, own=(GPU, AUDIO), deadline=2.0)
    assert not outcome.ok and not outcome.clear and "did not come back" in outcome.detail, outcome
    assert outcome.seconds < 20
    assert outcome.log[-1].startswith("echo default > "), "and the methods are put back all the same"


def test_a_device_that_comes_back_silent_is_no_success(node: Node, act) -> None:
    (node.pci / GPU / "config").write_bytes(DEAD)
    outcome = act("bus")
    assert not outcome.ok and outcome.changed and "reads all ones" in outcome.detail


def test_methods_are_restored_and_a_new_boot_needs_none(node: Node) -> None:
    hands = HostActuator(lambda _: LocalShell(), str(node.root))
    (node.pci / GPU / "reset_method").write_text("flr\n")
    back = hands.perform(RestoreResetMethod("pve1", (GPU, "0000:99:00.0"), BOOT))
    assert back.ok and node.wrote(f"{GPU}/reset_method").startswith("default"), back
    gone = hands.perform(RestoreResetMethod("pve1", (GPU,), "another boot"))
    assert (gone.ok, gone.changed) == (True, False)


def test_without_a_shell_nothing_is_done(node: Node) -> None:
    outcome = HostActuator(lambda _: None).perform(RestoreResetMethod("pve1", (GPU,), BOOT))
    assert (outcome.ok, outcome.changed) == (False, False) and "[hosts.pve1]" in outcome.detail
