"""A context wakes exactly the GPU that was meant; what CUDA says is data, and a hang costs its deadline."""

from __future__ import annotations

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.probe import GuestProbe
from recover.edge.shell.local import LocalShell
from recover.model.act import WakeGpu
from tests.guest.conftest import pythons
from tests.lab.driver.state import gpu

actuator = GuestActuator(GuestProbe(LocalShell()))


def wake(index: int, deadline: float = 30.0, uuid: str = ""):
    row = gpu(index)
    return actuator.perform(WakeGpu(uuid or row["uuid"], row["bus_id"], deadline))


def test_only_the_gpu_that_was_meant_wakes(machine):
    for slot in (1, 2):
        machine.state.set_ghost(slot)
    done = wake(2)
    assert done.ok and done.changed, done
    assert [machine.state.get(n, "ghost") for n in (1, 2)] == [1, 0]


@pytest.mark.parametrize("python", pythons())
def test_with_every_python(machine, agent, python):
    machine.state.set_ghost(0)
    row = gpu(0)
    done = agent("wake_gpu", python, uuid=row["uuid"], bus_id=row["bus_id"], deadline=30.0).one("done")
    assert done.flag("ok") and machine.state.get(0, "ghost") == 0, done.raw


def test_another_gpu_at_that_address_is_left_alone(machine):
    machine.state.set_ghost(3)
    done = wake(3, uuid="GPU-another")
    assert not done.ok and not done.changed and "another GPU" in done.detail
    assert machine.state.get(3, "ghost") == 1


def test_what_cuda_says_is_told(machine):
    machine.state.set_reset_required(1)
    done = wake(1)
    assert not done.ok and not done.changed and "needs a reset" in done.detail


def test_a_hang_costs_its_deadline_and_no_more(machine):
    machine.state.hang_init(True)
    done = wake(0, deadline=3.0)
    assert not done.ok and "did not come back" in done.detail and done.seconds < 30
