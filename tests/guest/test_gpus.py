"""NVML through the real pynvml and the fake driver: errors by number, hangs under one deadline, sizes measured."""

from __future__ import annotations

import os
import time

import pytest

from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.shell.local import LocalShell
from recover.guest import gpus as gpus_module
from recover.guest.wire import Limit
from recover.model.gpu import Condition, Driver, Gpu, RecoveryAction
from recover.model.guest import Guest
from recover.model.reading import Known, Unknown, Why
from tests.guest.conftest import Machine, pythons
from tests.lab.driver.build import build
from tests.lab.driver.state import State, gpu

GPU_S = 5.0


def look(machine: Machine, **fields: object) -> Guest:
    settings = ProbeSettings(gpu_deadline_s=GPU_S, health_ports=False, root=str(machine.root))
    guest = GuestProbe(LocalShell(), settings).look(deadline=120.0, **fields)
    assert isinstance(guest, Guest), guest
    return guest


def gpus(guest: Guest) -> tuple[Gpu, ...]:
    assert isinstance(guest.gpus, Known), guest.gpus
    return guest.gpus.value


def driver(guest: Guest) -> Driver:
    assert isinstance(guest.driver, Known)
    return guest.driver.value


def wall(guest: Guest) -> float:
    import json

    return float(json.loads(guest.raw[-1])["wall"])


def test_eight_idle_gpus(machine):
    guest = look(machine)
    assert [g.condition for g in gpus(guest)] == [Condition.ANSWERS] * 8
    first = gpus(guest)[0]
    assert (first.bus_id, first.used_mib, first.total_mib) == ("00000000:01:00.0", Known(0), Known(97887))
    assert first.processes == Known(()) and first.recovery_action == Known(RecoveryAction.NONE)
    assert first.link_width == Known(16) and first.pci_ids == "10de:2bb5"
    assert driver(guest).version == Known("570.148.08")
    assert guest.pci_gpus == Known(tuple(g.bus_id for g in gpus(guest)))
    assert not [gap for gap in guest.gaps if "gpu" in gap]


@pytest.mark.parametrize("python", pythons())
def test_every_python_reads_the_same(machine, python):
    machine.state.attach(4242, 80000, gpu=1)
    settings = ProbeSettings(pythons=(python,), health_ports=False, root=str(machine.root))
    guest = GuestProbe(LocalShell(), settings).look(deadline=120.0)
    assert isinstance(guest, Guest)
    seen = gpus(guest)[1]
    assert isinstance(seen.processes, Known)
    assert [(p.pid, p.used_mib, p.kind) for p in seen.processes.value] == [(4242, 80000, "compute")]
    assert seen.used_mib == Known(80000)


def test_several_that_hang_cost_one_deadline_and_hide_no_other(machine):
    for slot in (1, 3, 6):
        machine.state.set_hang(slot)
    guest = look(machine)
    conditions = [g.condition for g in gpus(guest)]
    assert [i for i, c in enumerate(conditions) if c is Condition.HANGS] == [1, 3, 6]
    assert conditions.count(Condition.ANSWERS) == 5
    assert wall(guest) < 2.5 * GPU_S  # one after the other they would cost three
    hung = gpus(guest)[3]
    assert isinstance(hung.used_mib, Unknown) and hung.used_mib.why is Why.TIMEOUT
    assert isinstance(hung.uuid, Known)


@pytest.mark.parametrize("deep", [False, True])
def test_a_gpu_that_hung_is_not_asked_again(machine, deep):
    machine.state.set_hang(3, deep=deep)
    looked = look(machine)
    first, slow = gpus(looked)[3], wall(looked)
    assert first.condition is Condition.HANGS
    for key in (first.bus_id, first.uuid.value):
        again = look(machine, skip_gpus=[key])
        assert gpus(again)[3].condition is Condition.NOT_ASKED
        assert gpus(again)[3].uuid == first.uuid
        assert wall(again) < slow


def test_lost_and_reset_required_go_by_number(machine):
    machine.state.set_lost(2)
    machine.state.set_reset_required(5)
    machine.state.set_error(6, "nvmlDeviceGetUtilizationRates", 999)
    machine.state.set_error(7, "nvmlDeviceGetMemoryInfo_v2", 999)
    seen = gpus(look(machine))
    assert seen[2].condition is Condition.LOST and isinstance(seen[2].uuid, Known)
    assert seen[5].condition is Condition.RESET_REQUIRED
    assert seen[5].recovery_action == Known(RecoveryAction.GPU_RESET)
    assert isinstance(seen[5].used_mib, Unknown)
    assert seen[6].condition is Condition.ANSWERS and isinstance(seen[6].utilisation_pct, Unknown)
    assert seen[7].condition is Condition.FAILS and isinstance(seen[7].used_mib, Unknown)


def test_an_unheard_of_recovery_action_is_carried(machine):
    machine.state.set(0, recovery_action=42)
    seen = gpus(look(machine))[0]
    assert seen.recovery_action == Known(RecoveryAction.OTHER)
    assert ("recovery_action", "42") in seen.extra


@pytest.mark.parametrize(("code", "says"), [(9, "not loaded"), (18, "mismatch")])
def test_a_driver_that_refuses_is_data(machine, code, says):
    machine.state.set_driver(init_error=code)
    guest = look(machine)
    assert driver(guest).condition is Condition.FAILS
    assert driver(guest).nvml_code == code and says in driver(guest).detail
    assert isinstance(guest.gpus, Unknown)


def test_a_late_answer_proves_nothing_when_no_time_was_left(machine):
    settings = ProbeSettings(gpu_deadline_s=60.0, health_ports=False, root=str(machine.root))
    guest = GuestProbe(LocalShell(), settings).look(deadline=25.0)
    assert isinstance(guest, Guest) and guest.complete
    assert isinstance(guest.gpus, Unknown) and isinstance(guest.driver, Unknown)
    assert any("no time was left" in gap for gap in guest.gaps)


def test_an_init_that_hangs_asks_no_gpu(machine):
    machine.state.hang_init(True)
    guest = look(machine)
    assert driver(guest).condition is Condition.HANGS
    assert isinstance(guest.gpus, Unknown) and guest.gpus.why is Why.TIMEOUT
    assert guest.complete
    assert wall(guest) < 2 * GPU_S


@pytest.mark.parametrize("variant", ["r470", "r535"])
def test_old_drivers_are_read_right(variant, machine, tmp_path, monkeypatch):
    """R470 has neither v2 memory nor v3 processes; R535.43-86 writes 32 bytes per process where pynvml expects 24."""
    built = build(tmp_path / "old", variant=variant)
    state = State.create(
        tmp_path / "old-state", [gpu(0), gpu(1)], driver_version={"r470": "470.82.01", "r535": "535.54.03"}[variant]
    )
    for name, value in built.env(tmp_path / "old-state", machine.dev).items():
        monkeypatch.setenv(name, value)
    rows = [(1001, 100), (1002, 200), (1003, 300)]
    for pid, mib in rows:
        state.attach(pid, mib, gpu=0)
    guest = look(machine)
    state.close()
    seen = gpus(guest)[0]
    assert isinstance(seen.processes, Known)
    assert [(p.pid, p.used_mib) for p in seen.processes.value] == rows
    assert seen.used_mib == Known(600)


def test_v1_memory_is_not_believed_after_r510(machine):
    machine.state.set_error(0, "nvmlDeviceGetMemoryInfo_v2", 13)
    assert isinstance(gpus(look(machine))[0].used_mib, Unknown)


def test_without_the_library_the_tool_speaks(machine, monkeypatch, tmp_path):
    """The fake tool needs no library; `LD_LIBRARY_PATH` without ours is a guest whose loader does not find it."""
    machine.state.attach(4242, 500, gpu=0)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    guest = look(machine)
    assert driver(guest).source == "nvidia-smi"
    assert gpus(guest)[0].used_mib == Known(500)


def test_the_state_of_the_nvlink_fabric(machine):
    for slot, (state, status) in enumerate([(0, 0), (1, 0), (2, 0), (3, 0), (3, 999)]):
        machine.state.set(slot, fabric_state=state, fabric_status=status)
    found = look(machine).gpus.value
    words = [gpu.fabric.value for gpu in found[:5]]
    assert words == ["none", "not started", "in progress", "completed", "failed (NVML 999: unknown error)"]


class Nobody:
    """A driver that starts, and has nothing to say."""

    def __getattr__(self, name):
        return lambda *words: 5


def turned(job_of, count, seconds):
    turn = gpus_module.Turn(Nobody(), lambda index, major, inited: job_of(index))
    assert not turn.starts(30.0)
    return gpus_module._answers(turn, [(index, f"GPU {index}") for index in range(count)], 570, Limit(seconds))


@pytest.mark.parametrize(
    ("hang", "die", "turn_s"),
    [((), (0,), 0.0), ((), (), 0.3), ((1, 3), (), 0.0), ((2,), (4,), 0.3), ((4,), (1,), 0.3)],
)
def test_each_is_asked_once_and_alone_to_blame(hang, die, turn_s, monkeypatch, tmp_path):
    """A slow machine stops the turn anywhere. Planted: a turn that goes on, one that blames whoever came first."""
    monkeypatch.setattr(gpus_module, "_TURN_S", turn_s)
    asked = tmp_path / "asked"

    def job_of(index):
        def job(say):
            with asked.open("a") as file:
                file.write(f"{index}\n")
            say({"ask": "first"})
            if index in hang:
                time.sleep(600)
            if index in die:
                os._exit(9)
            say({"first": {"v": index}, "complete": True})

        return job

    found = turned(job_of, 5, 2.0)
    assert sorted(found) == [0, 1, 2, 3, 4] == sorted(map(int, asked.read_text().split()))
    assert [index for index, (_, pid) in sorted(found.items()) if pid] == list(hang)
    for index, (said, _) in found.items():
        assert ({"first": {"v": index}, "complete": True} in said) is (index not in (*hang, *die))
        assert said[0] == {"ask": "first"} and len(said) <= 2


def test_a_turn_that_is_stopped_as_it_begins_leaves_that_one_to_others(monkeypatch):
    begun = gpus_module.Turn.begun

    def stopped(turn, names, major):
        turn._shared[:1] = b"\1"
        begun(turn, names, major)
        return 2

    monkeypatch.setattr(gpus_module.Turn, "begun", stopped)
    found = turned(lambda index: lambda say: say({"v": index}), 3, 30.0)
    assert found == {index: ([{"v": index}], 0) for index in range(3)}


def test_without_time_or_shared_memory_no_turn_is_taken(monkeypatch):
    turn = gpus_module.Turn(Nobody(), lambda index, major, inited: pytest.fail("asked"))
    assert not turn.starts(30.0)
    turn.ends()
    assert turn.child.done and not turn.child.killed and not turn.told(False)
    monkeypatch.setattr(gpus_module, "mmap", None)
    assert turned(lambda index: lambda say: say({"v": index}), 2, 30.0) == {0: ([{"v": 0}], 0), 1: ([{"v": 1}], 0)}
