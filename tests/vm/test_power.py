"""Restarts that the API orders are real: another boot id, and GPU memory that only a reset of the device clears."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from recover.edge.actuator.hypervisor import HypervisorActuator
from recover.edge.boot import BootWatch
from recover.edge.probe import GuestProbe
from recover.edge.proxmox.tasks import Tasks
from recover.edge.shell.ssh import SshShell
from recover.model.act import Action, AwaitBoot, Outcome, ResetVm, ShutdownVm, StartVm, StopVm, VmRef
from recover.model.reading import Known
from tests.lab.driver.state import State
from tests.lab.pve.server import PveServer

from . import inside, power
from .machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(600), pytest.mark.xdist_group("vm-guest")]
LEFT_MIB = 70000  # memory of the GPU that no process owns
Hands = Callable[[Action], Outcome]


@pytest.fixture
def hands(pve: PveServer, shell: SshShell) -> Iterator[Hands]:
    """The real actuator against the API that drives QEMU, with the real proof of a boot."""
    client = power.client(pve)
    watch = BootWatch(lambda left: GuestProbe(shell).look(deadline=left), shell.forget, every_s=0.5)
    tasks = Tasks(client, look_s=0.3)
    actuator = HypervisorActuator(client, tasks, "pve", clock=time.monotonic, sleep=time.sleep, await_boot=watch)
    yield actuator.perform
    client.close()


@pytest.fixture
def ref(guest: Machine) -> VmRef:
    return VmRef("pve", power.VMID, guest.uuid, guest.name)


def boot(shell: SshShell) -> str:
    return inside.look(shell).identity.boot_id


def used_mib(shell: SshShell) -> int:
    seen = inside.look(shell)
    assert isinstance(seen.gpus, Known), seen.gpus
    (one,) = seen.gpus.value
    assert isinstance(one.used_mib, Known), one
    return one.used_mib.value


def test_memory_outlives_a_reboot_from_inside_and_not_a_reset_of_the_device(
    guest: Machine, shell: SshShell, device: State
) -> None:
    device.set_used(0, LEFT_MIB)
    before = boot(shell)
    pid = guest.monitor.pid
    inside.run(
        shell, "setsid /run/vm/busybox sh -c 'sleep 0.5; exec /run/vm/busybox reboot' >/dev/null 2>&1 </dev/null &"
    )
    after = BootWatch(lambda left: GuestProbe(shell).look(deadline=left), shell.forget, every_s=0.5)(
        AwaitBoot(before, 1, 300.0)
    )
    assert after.ok, after
    assert guest.monitor.pid == pid, "the same QEMU"
    assert used_mib(shell) == LEFT_MIB
    inside.run(shell, "nvidia-smi --gpu-reset -i 0")
    assert used_mib(shell) == 0
    assert device.used_mib(0) == 0, "and so it is seen from outside"


def test_reset_vm_is_a_new_boot_in_the_same_qemu_with_the_same_gpu_memory(
    guest: Machine, shell: SshShell, device: State, hands: Hands, ref: VmRef
) -> None:
    device.set_used(0, LEFT_MIB)
    before, pid = boot(shell), guest.monitor.pid
    done = hands(ResetVm(ref))
    assert done.ok and done.changed, done
    up = hands(AwaitBoot(before, 1, 300.0))
    assert up.ok, up
    assert boot(shell) in up.detail
    assert boot(shell) != before
    assert guest.monitor.pid == pid
    assert used_mib(shell) == LEFT_MIB


def test_a_power_cycle_ends_a_qemu_that_can_not_quit_and_resets_the_gpu(
    guest: Machine, shell: SshShell, device: State, hands: Hands, ref: VmRef
) -> None:
    device.set_used(0, LEFT_MIB)
    before, pid = boot(shell), guest.monitor.pid
    guest.hold_read()
    inside.start(shell, inside.READER)
    stopped = hands(StopVm(ref, memory_mib=guest.kind.memory_mib))
    assert stopped.ok and stopped.changed, stopped
    assert not guest.monitor.alive
    assert guest.ends[-1] == "killed", "a request of its disk is stuck: asking QEMU to quit does not end it"
    again = hands(StopVm(ref))
    assert again.ok and not again.changed, "it is stopped already"
    assert device.used_mib(0) == LEFT_MIB, "nobody has touched the device yet"

    started = hands(StartVm(ref, 120))
    assert started.ok and started.changed, started
    assert guest.monitor.pid != pid
    up = hands(AwaitBoot(before, 1, 300.0))
    assert up.ok, up
    assert boot(shell) not in (before, "")
    assert used_mib(shell) == 0


def test_a_guest_that_obeys_powers_off(guest: Machine, shell: SshShell, hands: Hands, ref: VmRef) -> None:
    before = boot(shell)
    down = hands(ShutdownVm(ref, 60.0))
    assert down.ok, down
    assert guest.ends[-1] == "powered off"
    assert hands(StartVm(ref, 120)).ok
    assert hands(AwaitBoot(before, 1, 300.0)).ok
