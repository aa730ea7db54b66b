"""Every act that changes something for a while opens a duty, and exactly one kind of act pays it."""

from __future__ import annotations

from typing import get_args

import pytest

from recover.model import act as a
from recover.model.act import Due
from recover.model.contact import Failure
from recover.model.guest import Marker, Mute, Service
from recover.model.hypervisor import Task
from recover.model.reading import Known
from recover.model.snapshot import Channel
from recover.steps.undo import duty, settled_by_others, settles
from tests.core import builders as b
from tests.steps.looks import vm

VM = a.VmRef("pve", 174, b.SMBIOS)
ACTIONS = [
    a.StopService("systemd", "s.service"),
    a.StopService("systemd", "nvidia-persistenced.service", monitor=True),
    a.StartService("systemd", "s.service"),
    a.Signal("g", (), "KILL"),
    a.AwaitGone("g", (), 1.0),
    a.SetPersistence("GPU-1", "bus", on=False),
    a.SetPersistence("GPU-1", "bus", on=True),
    a.ResetGpu((("GPU-1", "bus"),)),
    a.PlaceMarker("r1", "kim", "desk", "reset-gpu", 60.0),
    a.ClearMarker("r1"),
    a.SyncDisks(),
    a.ShutdownVm(VM, 60.0, 2053),
    a.StopVm(VM, start_timeout_s=2053),
    a.StartVm(VM, 300),
    a.ResetVm(VM),
    a.AwaitBoot("", 8, 60.0),
    a.RebootGuest("b1", 900.0),
    a.RemoveLeftovers((a.MemoryObject("shm-file", "psm_1"),)),
    a.WakeGpu("GPU-1", "bus"),
    a.EndMpsClient("g", b.pid(10), b.pid(11)),
    a.EndZombieParent("g", b.pid(10), (b.pid(11),)),
    a.AskServer(("http://127.0.0.1:30000/health",)),
    a.SuspendAutostart("systemd", "s.service", "enabled"),
    a.RestoreAutostart("systemd", "s.service", "enabled"),
    a.UnloadDriver(("nvidia_uvm", "nvidia"), "b1"),
    a.LoadDriver(("nvidia", "nvidia_uvm"), "b1"),
    a.ResetPci(VM, "pve1", ("0000:41:00.0",), "flr", "b1", own=("0000:41:00.0", "0000:41:00.1")),
    a.ResetPci(VM, "pve1", ("0000:41:00.0",), "bus", "b1"),
    a.ResetPci(VM, "pve1", ("0000:41:00.0",), "rescan", "b1"),
    a.RescanPci("pve1", ("0000:41:00.0",), "b1"),
    a.RestoreResetMethod("pve1", ("0000:41:00.0",), "b1"),
    a.OnHost("pve1", "b1", a.StopService("systemd", "nvidia-persistenced.service", monitor=True)),
    a.OnHost("pve1", "b1", a.SetPersistence("GPU-1", "bus", on=False)),
    a.OnHost("pve1", "b1", a.ResetGpu((("GPU-1", "bus"),))),
]


def test_the_table_knows_every_act():
    assert {type(x) for x in ACTIONS} == set(get_args(a.Action))


@pytest.mark.parametrize("action", ACTIONS)
def test_paying_a_duty_settles_it_and_opens_no_other(action):
    owed = duty(action)
    if owed is None:
        return
    assert settles(owed.do) == owed.key
    assert duty(owed.do) is None
    assert settles(action) is None


@pytest.mark.parametrize(
    ("action", "key", "due", "via"),
    [
        (ACTIONS[0], "service:systemd/s.service", Due.AT_RECOVERY, Channel.GUEST),
        (ACTIONS[1], "service:systemd/nvidia-persistenced.service", Due.AT_ONCE, Channel.GUEST),
        (a.SetPersistence("GPU-1", "bus", on=False), "persistence:GPU-1", Due.AT_ONCE, Channel.GUEST),
        (a.PlaceMarker("r1", "kim", "desk", "x", 60.0), "marker:r1", Due.AT_END, Channel.GUEST),
        (a.ShutdownVm(VM, 60.0), "vm:pve/174", Due.AT_ONCE, Channel.HYPERVISOR),
        (a.StopVm(VM), "vm:pve/174", Due.AT_ONCE, Channel.HYPERVISOR),
    ],
)
def test_what_is_owed_when(action, key, due, via):
    owed = duty(action)
    assert (owed.key, owed.due, owed.via) == (key, due, via)


def test_the_start_that_is_owed_has_the_time_that_its_memory_needs():
    assert duty(a.StopVm(VM, start_timeout_s=2053)).do == a.StartVm(VM, 2053)
    assert duty(a.ShutdownVm(VM, 60.0, 2053)).do == a.StartVm(VM, 2053)


def task(kind, start, *, ours=False, user="kim@pve", status="OK", running=False):
    return Task(f"UPID:{kind}{start}", "pve1", kind, 174, user, start, running, status, ours=ours)


OWED_VM = duty(a.StopVm(VM))
STOPPED = task("qmstop", 1000, ours=True)


@pytest.mark.parametrize(
    ("status", "tasks", "void"),
    [
        ("running", (task("qmstart", 1100), STOPPED), True),
        ("running", (STOPPED,), False),  # our shutdown may still be on its way
        ("running", (task("qmstart", 900), STOPPED), False),
        ("running", (task("qmstart", 1100, ours=True), STOPPED), False),  # paid by its own entry
        ("running", (task("qmstart", 1100, status="start failed"), STOPPED), False),
        ("stopped", (task("qmstart", 1100), STOPPED), False),
    ],
)
def test_a_start_is_void_only_by_somebodys_newer_start(status, tasks, void):
    snapshot = b.healthy_snapshot(hypervisor=vm(status=status, tasks=Known(tasks)))
    why = settled_by_others(OWED_VM, snapshot)
    assert (why is not None) == void
    assert not void or "kim@pve" in why


def test_without_a_task_of_ours_the_age_of_the_duty_counts_by_the_nodes_clock():
    snapshot = b.healthy_snapshot(wall=5000.0, hypervisor=vm(clock_s=1200, tasks=Known((task("qmstart", 1100),))))
    assert settled_by_others(OWED_VM, snapshot, opened_at=4850.0) is not None  # 1050 by the node's clock
    assert settled_by_others(OWED_VM, snapshot, opened_at=4950.0) is None


@pytest.mark.parametrize(
    ("manager", "state", "void"),
    [
        ("systemd", "active", True),
        ("systemd", "deactivating", False),
        ("systemd", "inactive", False),
        ("docker", "running", False),
    ],
)
def test_a_service_that_is_active_again(manager, state, void):
    snapshot = b.healthy_snapshot(services=Known((Service(manager, "s", state),)))
    assert (settled_by_others(duty(a.StopService(manager, "s")), snapshot) is not None) == void


@pytest.mark.parametrize("on", [True, False])
def test_persistence_mode_that_is_on_again(on):
    snapshot = b.healthy_snapshot(gpus=(b.gpu(0, persistence=Known(on)),))
    owed = duty(a.SetPersistence(b.uuid(0), b.bus(0), on=False))
    assert (settled_by_others(owed, snapshot) is not None) == on


@pytest.mark.parametrize(("marker", "void"), [(None, True), ("r1", False), ("r2", True)])
def test_a_marker_that_is_gone_or_anothers(marker, void):
    found = None if marker is None else Marker(marker, "kim", "desk", "x", b.UPTIME_S + 60)
    snapshot = b.healthy_snapshot(guest=b.guest(marker=Known(found)))
    owed = duty(a.PlaceMarker("r1", "me", "here", "x", 60.0))
    assert (settled_by_others(owed, snapshot) is not None) == void


@pytest.mark.parametrize("action", [x for x in ACTIONS if duty(x)])
def test_a_blind_look_voids_nothing(action):
    blind = b.mute_snapshot(Mute(Failure.NO_ROUTE, ""), hypervisor=b.no_hypervisor())
    assert settled_by_others(duty(action), blind, 0.0) is None
