"""reset-gpu resets GPUs that nobody uses, and puts back what it had to turn off for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.model.act import Pass, Refuse, ResetGpu, SetPersistence, Signal, StartService, StopService
from recover.model.gpu import Condition, Driver
from recover.model.guest import Module, Service
from recover.model.process import Health, Owner, OwnerKind
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from tests.core import builders as b
from tests.steps.looks import UNIT, acts, dead, group, plan

PERSISTENCED = "nvidia-persistenced.service"


def stuck(index: int = 2):
    return dead(b.uuid(index), Scope.GPU, "residual-memory")


def gpus(**of: dict) -> tuple:
    """Eight idle GPUs, changed where `gpu2=dict(...)` says so; persistence mode off, so that lines are short."""
    return tuple(b.gpu(i, **{"persistence": Known(False), **of.get(f"gpu{i}", {})}) for i in range(b.GPUS))


def look(*groups, **changes):
    """A guest without the persistence daemon."""
    snapshot = b.healthy_snapshot(groups=groups, **{"gpus": gpus(), **changes})
    quiet = tuple(p for p in snapshot.guest.processes.value if p.comm != "nvidia-persiste")
    return replace(snapshot, guest=replace(snapshot.guest, processes=Known(quiet)))


def test_a_free_gpu_is_reset():
    assert acts(plan("reset-gpu", look(), stuck())) == [ResetGpu(((b.uuid(2), b.bus(2)),), 120.0)]


def test_several_are_reset_together():
    (reset,) = acts(plan("reset-gpu", look(), stuck(2), stuck(5)))
    assert reset.gpus == ((b.uuid(2), b.bus(2)), (b.uuid(5), b.bus(5)))


def test_a_finding_for_all_gpus_resets_all():
    (reset,) = acts(plan("reset-gpu", look(), dead(None, Scope.GPU)))
    assert len(reset.gpus) == 8


def test_persistence_mode_is_off_only_for_the_reset():
    line = plan("reset-gpu", look(gpus=gpus(gpu2={"persistence": Known(True)})), stuck())
    off, reset, on = acts(line)
    assert (off, on) == (SetPersistence(b.uuid(2), b.bus(2), on=False), SetPersistence(b.uuid(2), b.bus(2), on=True))
    assert isinstance(reset, ResetGpu)


def test_monitors_stop_for_it_and_start_again_in_reverse():
    services = Known((Service("systemd", PERSISTENCED, "active"), Service("docker", "dcgm-exporter", "running")))
    done = acts(plan("reset-gpu", look(services=services), stuck()))
    assert done[:2] == [
        StopService("systemd", PERSISTENCED, monitor=True),
        StopService("docker", "dcgm-exporter", monitor=True),
    ]
    assert done[-2:] == [
        StartService("docker", "dcgm-exporter", monitor=True),
        StartService("systemd", PERSISTENCED, monitor=True),
    ]


def test_a_monitor_is_known_by_its_control_group_too():
    persistenced = group(700, health=Health.LIVE, protected="monitor", gpus=frozenset({b.uuid(2)}))
    snapshot = b.healthy_snapshot(groups=(persistenced,), gpus=gpus())
    assert acts(plan("reset-gpu", snapshot, stuck()))[0] == StopService("systemd", PERSISTENCED, monitor=True)


def test_with_a_fabric_manager_all_are_reset_together():
    services = Known((Service("systemd", "nvidia-fabricmanager.service", "active"),))
    stop, reset, start = acts(plan("reset-gpu", look(services=services), stuck()))
    assert len(reset.gpus) == 8
    assert (stop.name, start.name) == ("nvidia-fabricmanager.service",) * 2


@pytest.mark.parametrize("health", [Health.HEALTHY, Health.STARTING, Health.LIVE])
def test_whoever_is_well_on_that_gpu_is_named(health):
    user = group(5000, health=health, gpus=frozenset({b.uuid(2)}))
    offered = plan("reset-gpu", look(user), stuck())
    assert isinstance(offered, Refuse)
    assert offered.guard == "bystanders"
    assert "server-5000" in offered.why


def test_users_of_other_gpus_do_not_matter():
    user = group(5000, health=Health.HEALTHY, gpus=frozenset({b.uuid(3)}))
    assert acts(plan("reset-gpu", look(user), stuck()))


def test_a_holder_without_a_group_is_named():
    snapshot = look(processes=(b.process(900, "Xorg", holds=b.holding(2)),))
    offered = plan("reset-gpu", snapshot, stuck())
    assert isinstance(offered, Refuse)
    assert "Xorg (pid 900)" in offered.why


def test_dead_holders_that_are_still_there_make_it_useless():
    holder = group(5000, gpus=frozenset({b.uuid(2)}))
    offered = plan("reset-gpu", look(holder), stuck())
    assert isinstance(offered, Pass)
    assert "still held by server-5000" in offered.why


def test_evict_ends_its_users_first():
    user = group(5000, owner=UNIT, health=Health.HEALTHY, gpus=frozenset({b.uuid(2)}))
    done = acts(plan("reset-gpu", look(user, processes=(b.process(5000),)), stuck(), evict=True))
    assert done[0] == StopService("systemd", "sglang.service", 120.0)
    assert [d.signal for d in done if isinstance(d, Signal)] == ["TERM", "QUIT", "KILL"]
    assert isinstance(done[-1], ResetGpu)


@pytest.mark.parametrize(
    "changes",
    [
        {"protected": "protect: mine"},
        {"owner": Owner(OwnerKind.KUBERNETES, "0a1b")},
    ],
)
def test_evict_does_not_reach_everybody(changes):
    user = group(5000, health=Health.HEALTHY, gpus=frozenset({b.uuid(2)}), **changes)
    assert isinstance(plan("reset-gpu", look(user), stuck(), evict=True), Refuse)


def test_evict_stops_no_unit_that_serves_on_another_gpu():
    users = [group(5000 + i, owner=UNIT, health=Health.HEALTHY, gpus=frozenset({b.uuid(2 + i)})) for i in range(2)]
    assert isinstance(plan("reset-gpu", look(*users), stuck(), evict=True), Refuse)


@pytest.mark.parametrize(
    ("of", "word"),
    [
        ({"gpu2": {"condition": Condition.LOST}}, "lost"),
        ({"gpu2": {"condition": Condition.HANGS}}, "hang"),
        ({"gpu7": {"condition": Condition.HANGS}}, "hang"),
        ({"gpu7": {"condition": Condition.NOT_ASKED}}, "hang"),
    ],
)
def test_of_no_use(of, word):
    offered = plan("reset-gpu", look(gpus=gpus(**of)), stuck())
    assert isinstance(offered, Pass)
    assert word in offered.why


def test_another_gpu_that_is_lost_does_not_forbid_it():
    assert acts(plan("reset-gpu", look(gpus=gpus(gpu7={"condition": Condition.LOST})), stuck()))


@pytest.mark.parametrize(
    ("change", "guard"), [({"mig": Known(True)}, "mig"), ({"virtualisation": Known("vgpu")}, "vgpu")]
)
def test_not_ours_to_reset(change, guard):
    offered = plan("reset-gpu", look(gpus=gpus(gpu2=change)), stuck())
    assert isinstance(offered, Refuse)
    assert offered.guard == guard


def test_without_root_or_driver_or_finding_it_is_passed_over():
    snapshot = look()
    assert isinstance(plan("reset-gpu", snapshot), Pass)
    assert isinstance(plan("reset-gpu", look(gpus=Unknown(Why.TIMEOUT)), stuck()), Pass)
    assert isinstance(plan("reset-gpu", replace(snapshot, guest=replace(snapshot.guest, root=False)), stuck()), Pass)
    broken = look(driver=Known(Driver(Condition.FAILS, "Driver/library version mismatch")))
    assert isinstance(plan("reset-gpu", broken, stuck()), Pass)


def test_of_a_card_that_resets_have_killed_it_is_said():
    assert "dead until the host reboots" in " ".join(plan("reset-gpu", look(), stuck()).words)
    harmless = look(gpus=gpus(gpu2={"pci_ids": "10de:2330"}))
    assert "dead" not in " ".join(plan("reset-gpu", harmless, stuck()).words)


@pytest.mark.parametrize(("refs", "users", "used"), [(0, (), False), (1, ("x",), False), (2, (), True)])
def test_a_display_is_the_client_that_no_process_shows(refs, users, used):
    seen = look()
    seen = replace(seen, guest=replace(seen.guest, modules=Known((Module("nvidia_drm", refs, users),))))
    offered = plan("reset-gpu", seen, stuck())
    assert isinstance(offered, Pass) == used
    assert not used or "nvidia_drm" in offered.why
