"""reload-driver: only where nobody holds the driver and no GPU is silent, in the modules' own order, and put back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.diagnose import _look
from recover.core.past import Past
from recover.core.signals.modules import stuck_unload
from recover.model.act import LoadDriver, Pass, Refuse, SetPersistence, StartService, StopService, UnloadDriver
from recover.model.gpu import Condition, Driver
from recover.model.guest import Module
from recover.model.process import Health
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from recover.steps.undo import duty
from tests.core import builders as b
from tests.core.looks import LIMITS
from tests.steps.looks import acts, dead, group, plan

FAILS = dead(None, Scope.DRIVER, "driver-fails")
LOADED = (
    Module("nvidia_uvm", 0),
    Module("nvidia_drm", 1, ("nvidia_x",)),
    Module("nvidia_modeset", 1, ("nvidia_drm",)),
    Module("nvidia", 2, ("nvidia_uvm", "nvidia_modeset")),
    Module("nvidia_peermem", 0),
)
PLAIN = (LOADED[0], Module("nvidia_drm", 0), *LOADED[2:])
NAMES = ("nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")


def look(modules=PLAIN, *, gpus=None, processes=(), groups=(), **changes):
    seen = b.healthy_snapshot(
        gpus=gpus or tuple(b.gpu(i, persistence=Known(False)) for i in range(b.GPUS)),
        processes=processes, groups=groups, **changes,
    )  # fmt: skip
    quiet = tuple(p for p in seen.guest.processes.value if p.comm != "nvidia-persiste")
    return replace(seen, guest=replace(seen.guest, modules=Known(modules), processes=Known(quiet)))


def test_the_order_is_the_modules_own_and_the_way_back_is_the_reverse():
    assert acts(plan("reload-driver", look(), FAILS)) == [
        UnloadDriver(NAMES, b.BOOT, 120.0),
        LoadDriver(tuple(reversed(NAMES)), b.BOOT, 120.0),
    ]
    owed = duty(UnloadDriver(NAMES, b.BOOT))
    assert owed is not None and owed.do == LoadDriver(tuple(reversed(NAMES)), b.BOOT)


def test_monitors_and_persistence_go_before_and_come_back_after():
    kept = tuple(b.gpu(i, persistence=Known(i == 0)) for i in range(b.GPUS))
    seen = look(gpus=kept)
    daemon = b.process(300, "/usr/bin/nvidia-persistenced", comm="nvidia-persiste", holds=b.holding(0),
                       cgroup="/system.slice/nvidia-persistenced.service")  # fmt: skip
    table = Known((*seen.guest.processes.value, daemon))
    kinds = [
        type(a) for a in acts(plan("reload-driver", replace(seen, guest=replace(seen.guest, processes=table)), FAILS))
    ]
    assert kinds == [StopService, SetPersistence, UnloadDriver, LoadDriver, SetPersistence, StartService]


def test_a_driver_that_is_not_loaded_is_loaded():
    assert acts(plan("reload-driver", look(()), FAILS)) == [
        LoadDriver(("nvidia", "nvidia_modeset", "nvidia_uvm"), b.BOOT, 120.0)
    ]


@pytest.mark.parametrize("condition", [Condition.LOST, Condition.HANGS, Condition.NOT_ASKED])
def test_never_with_a_gpu_that_is_lost_or_silent(condition):
    gpus = tuple(b.gpu(i, condition=condition if i == 3 else Condition.ANSWERS) for i in range(b.GPUS))
    assert isinstance(plan("reload-driver", look(gpus=gpus), FAILS), Pass)
    fewer = tuple(b.gpu(i) for i in range(b.GPUS - 1))
    assert isinstance(plan("reload-driver", look(gpus=fewer, pci_gpus=Known(tuple(map(b.bus, range(8))))), FAILS), Pass)
    hung = look(driver=Known(Driver(Condition.HANGS)))
    assert isinstance(plan("reload-driver", hung, FAILS), Pass)


@pytest.mark.parametrize(
    "modules",
    [
        LOADED,  # used by something that is not the driver's
        (LOADED[0], Module("nvidia_drm", 3), *LOADED[2:]),  # a display
        (Module("nvidia_uvm", 0, (), "Unloading"), *PLAIN[1:]),
    ],
    ids=["foreign", "display", "unloading"],
)
def test_modules_that_something_else_holds_stay(modules):
    assert isinstance(plan("reload-driver", look(modules), FAILS), Pass)


def test_whoever_works_is_named_and_not_ended():
    worker = b.process(5000, "python3 train.py", holds=b.holding(0))
    offered = plan("reload-driver", look(processes=(worker,)), FAILS)
    assert isinstance(offered, Refuse) and "pid 5000" in offered.why
    sick = group(5000, health=Health.DEAD)
    assert isinstance(plan("reload-driver", look(processes=(worker,), groups=(sick,)), FAILS), Pass)


def test_memory_of_dead_owners_is_not_the_drivers():
    assert isinstance(plan("reload-driver", look(), dead(None, Scope.PROCESS, "leftover-memory")), Pass)


def test_what_cannot_be_seen_may_hold_it():
    blind = b.process(5000, "x", holds_known=False)
    assert isinstance(plan("reload-driver", look(processes=(blind,)), FAILS), Pass)
    seen = look()
    unknown = replace(seen, guest=replace(seen.guest, modules=Unknown(Why.DENIED, "x")))
    assert isinstance(plan("reload-driver", unknown, FAILS), Pass)


def test_an_unload_that_hangs_is_for_the_vm():
    stuck = look((Module("nvidia", 0, (), "Unloading"),))
    (sign,) = stuck_unload(_look(stuck, Past(), LIMITS))
    assert sign.symptom.finding.cure is Scope.VM and sign.symptom.finding.at_least is Scope.VM
    assert not list(stuck_unload(_look(look(), Past(), LIMITS)))
