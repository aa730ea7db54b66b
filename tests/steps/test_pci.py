"""Resets on the node: one straight line between stop and start, nobody else is ever hit, every write is said."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from recover.model.act import (
    AwaitBoot,
    Line,
    Pass,
    Refuse,
    RescanPci,
    ResetPci,
    RestoreResetMethod,
    ShutdownVm,
    StartVm,
    StopVm,
    SyncDisks,
)
from recover.model.host import Bridge, Holder, Reservation
from recover.model.hypervisor import Pending
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from recover.steps.pci import by_hand
from tests.core import builders as b
from tests.steps.looks import acts, dead, must, node, pci, plan, vm

STEP = "power-cycle-reset-pci"
STUCK = dead(None, Scope.HOST_DEVICE, "pci-device-gone")
GPUS = tuple(f"0000:{0x41 + i:02x}:00.0" for i in range(b.GPUS))


def look(host=None, hypervisor=None, **changes):
    return b.healthy_snapshot(
        hypervisor=hypervisor or vm(), host=Known(host or node()), host_shell=True, **changes
    )  # fmt: skip


def first(**changes):
    """The node with its first GPU changed."""
    functions = node().functions
    return node(functions=(replace(functions[0], **changes), *functions[1:]))


def test_the_one_line_of_the_rung():
    line = plan(STEP, look(), STUCK)
    kinds = [SyncDisks, ShutdownVm, StopVm, ResetPci, ResetPci, ResetPci, RestoreResetMethod, StartVm, AwaitBoot]
    assert [type(do) for do in acts(line)] == kinds
    assert must(line) == [False, False, True, False, False, True, False, True, True]
    resets = [do for do in acts(line) if isinstance(do, ResetPci)]
    assert [r.how for r in resets] == ["flr", "bus", "rescan"]
    assert all(r.addresses == r.own == GPUS and r.boot_id == "host-boot" and r.vm.vmid == 174 for r in resets)


def test_the_plan_says_every_write():
    line = plan(STEP, look(), STUCK)
    assert isinstance(line, Line)
    told = "\n".join(line.words)
    assert f"for d in {' '.join(GPUS)}; do echo flr > /sys/bus/pci/devices/$d/reset_method; " in told
    assert "echo 1 > /sys/bus/pci/devices/0000:40:01.1/reset_subordinate" in told
    assert "/remove; done; for p in 0000:40:01.1" in told


def test_a_port_with_somebody_else_below_it_is_not_reset():
    bridges = node().bridges
    shared = replace(bridges[0], below=(GPUS[0], "0000:41:00.1"))
    line = plan(STEP, look(node(bridges=(shared, *bridges[1:]))), STUCK)
    bus = next(do for do in acts(line) if isinstance(do, ResetPci) and do.how == "bus")
    assert bus.addresses == GPUS[1:]
    assert any("no bus reset of 0000:41:00.0: 0000:41:00.1 is below the same port" in word for word in line.words)


def test_a_virtual_function_is_only_reset_itself():
    """Removed, it would be gone: it exists by its physical function's sriov_numvfs, and no rescan finds it."""
    line = plan(STEP, look(first(physfn="0000:41:00.7")), STUCK)
    reached = {do.how: do.addresses for do in acts(line) if isinstance(do, ResetPci)}
    assert reached == {"flr": GPUS, "bus": GPUS[1:], "rescan": GPUS[1:]}
    assert any("virtual function of 0000:41:00.7" in word for word in line.words)
    every = node(functions=tuple(replace(f, physfn="0000:99:00.0") for f in node().functions))
    assert [do.how for do in acts(plan(STEP, look(every), STUCK)) if isinstance(do, ResetPci)] == ["flr"]


def test_a_device_whose_virtual_functions_others_have_is_left_alone():
    refused = plan(STEP, look(first(virtfns=("0000:41:00.4",))), STUCK)
    assert isinstance(refused, Refuse) and refused.guard == "shared-device" and "0000:41:00.4" in refused.why


def test_where_no_port_may_be_reset_the_line_goes_without():
    line = plan(STEP, look(node(bridges=())), STUCK)
    assert [do.how for do in acts(line) if isinstance(do, ResetPci)] == ["flr", "rescan"]


def test_what_has_no_function_reset_is_left_out_of_it():
    line = plan(STEP, look(first(resets=("bus",))), STUCK)
    assert [do.addresses for do in acts(line) if isinstance(do, ResetPci)] == [GPUS[1:], GPUS, GPUS]


def test_other_devices_of_the_vm_are_not_reset():
    config = {"hostpci": (*(pci(i) for i in range(8)), pci(8, device_ids=("15b3:1021",)))}
    nic = replace(node().functions[0], address="0000:49:00.0", ids="15b3:1021", iommu_group=8, bridge="0000:40:09.1")
    host = node(functions=(*node().functions, nic), bridges=(*node().bridges, Bridge("0000:40:09.1", (nic.address,))))
    resets = [do for do in acts(plan(STEP, look(host, vm(config)), STUCK)) if isinstance(do, ResetPci)]
    assert all(r.addresses == GPUS and nic.address in r.own for r in resets)


@pytest.mark.parametrize(
    ("host", "guard", "names"),
    [
        (first(answers=Known(False), gave_up="not ready 65535ms after FLR; giving up"), "device-dead", "giving up"),
        (first(driver="nvidia"), "host-driver", "nvidia"),
        (node(holders=(Holder(9, 1, "python3", "/dev/vfio/3", "", "x.service"),)), "held-device", "python3 (pid 9"),
        (node(holders=(Holder(9, 1, "kvm", "/dev/vfio/3", "vm 175"),)), "held-device", "vm 175"),
        (node(reservations=(Reservation(GPUS[0], 175, "pid:9"),)), "reservation", "175"),
        (node(reservations=(Reservation("0000:99:00.0", 174, "pid:9"),)), "reservation", "0000:99:00.0"),
        (node(groups=((0, (GPUS[0], "0000:41:00.1")),)), "shared-device", "0000:41:00.1"),
        (node(complete=False, gaps=("holders: denied",)), "host", "holders: denied"),
    ],
)
def test_it_is_refused(host, guard, names):
    refused = plan(STEP, look(host), STUCK)
    assert isinstance(refused, Refuse) and refused.guard == guard and refused.lift, refused
    assert names in refused.why


def off_the_bus(shell=True, present=Known(False)):
    config = {"hostpci": (pci(0, present=present), *(pci(i) for i in range(1, 8)))}
    shown = node(functions=node().functions[1:]) if shell else node()
    return look(shown, vm(config))


def test_a_device_off_the_bus_is_looked_for_before_the_stop():
    line = plan(STEP, off_the_bus(), STUCK)
    kinds = [type(do) for do in acts(line)]
    assert kinds[0] is RescanPci and kinds.index(RescanPci) < kinds.index(ShutdownVm) and must(line)[0], kinds
    assert acts(line)[0].addresses == GPUS[:1]
    assert all(GPUS[0] not in do.addresses for do in acts(line) if isinstance(do, ResetPci)), "PVE itself resets it"
    assert "while the VM still runs, 0000:41:00.0 is looked for" in line.words[0]
    passed = plan("power-cycle-vm", off_the_bus(), STUCK)
    assert isinstance(passed, Pass) and "would not start" in passed.why


def test_where_the_two_looks_do_not_agree_it_is_refused():
    """Proxmox says that the device is gone and the node's shell shows it, or Proxmox does not say."""
    for snapshot in (off_the_bus(shell=False), off_the_bus(present=Unknown(Why.DENIED, "needs Sys.Audit on /"))):
        for step in (STEP, "power-cycle-vm"):
            refused = plan(step, snapshot, STUCK)
            assert isinstance(refused, Refuse) and refused.guard == "device", refused


def test_without_a_shell_the_commands_are_said():
    blind = replace(off_the_bus(), host=Unknown(Why.ABSENT, "none"), host_shell=False)
    refused = plan("power-cycle-vm", blind, STUCK)
    assert isinstance(refused, Refuse) and refused.guard == "device"
    assert "echo 1 > /sys/bus/pci/rescan; lspci -nns 0000:41:00.0" in refused.lift


def test_it_needs_what_a_power_cycle_needs():
    refused = plan(STEP, look(hypervisor=vm(pending=Known((Pending("memory", "1", "2"),)))), STUCK)
    assert isinstance(refused, Refuse) and refused.guard == "pending"


def test_without_the_shell_or_a_finding_it_is_of_no_use():
    blind = b.healthy_snapshot(hypervisor=vm(), host=Unknown(Why.UNREACHABLE, "refused"))
    assert isinstance(plan(STEP, blind, STUCK), Pass)
    assert isinstance(plan(STEP, look()), Pass)
    assert isinstance(plan(STEP, look(node(functions=())), STUCK), Pass)


@pytest.mark.parametrize("running", [False, True])
def test_a_person_is_given_the_same_commands(running, tmp_path):
    """Typed into a shell: what is written where, in which order, and nothing at all while QEMU still runs."""
    said = by_hand(174, GPUS[:2], 2053)
    assert said.startswith("qm shutdown 174 ") and said.endswith("qm start 174 --timeout 2053")
    bus, log = tmp_path / "pci", tmp_path / "log"
    for gpu in GPUS[:2]:
        (bus / "devices" / gpu).mkdir(parents=True)
    noted = said.replace("/sys/bus/pci", str(bus)).replace(" > ", " note ").replace("echo ", "say ")
    tools = f"""qm() {{ echo qm $1 >> {log}; }}; systemctl() {{ return {0 if running else 3}; }}
say() {{ echo "$1 > $3" >> {log}; }}"""
    subprocess.run(["sh", "-c", f"{tools}\n{noted}"], check=True, timeout=30)
    one = [f"{word} > {{}}/{name}" for word, name in (("flr", "reset_method"), ("1", "reset"), ("bus", "reset_method"),
                                                    ("1", "reset"), ("default", "reset_method"))]  # fmt: skip
    resets = [step.format(gpu) for gpu in GPUS[:2] for step in one]
    wanted = [*resets, *(f"1 > {gpu}/remove" for gpu in GPUS[:2]), "1 > ../rescan"]
    assert log.read_text().splitlines() == ["qm shutdown", *([] if running else wanted), "qm start"]
