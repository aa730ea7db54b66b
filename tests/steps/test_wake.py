"""wake-gpu opens a context on the GPUs that a finding names, and only where nobody is."""

from __future__ import annotations

import pytest

from recover.model.act import Pass, WakeGpu
from recover.model.gpu import Condition, GpuProcess
from recover.model.process import Health
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from tests.core import builders as b
from tests.steps.looks import acts, dead, group, must, plan


def ghost(index: int):
    return dead(b.uuid(index), Scope.GPU, "ghost-utilisation")


def look(*groups, **of_gpu2):
    gpus = tuple(b.gpu(i, utilisation_pct=Known(100), **(of_gpu2 if i == 2 else {})) for i in range(b.GPUS))
    return b.healthy_snapshot(gpus=gpus, groups=groups)


def test_exactly_the_named_gpus_and_one_failure_stops_no_other():
    line = plan("wake-gpu", look(), ghost(2), ghost(5))
    assert acts(line) == [WakeGpu(b.uuid(i), b.bus(i), 60.0) for i in (2, 5)]
    assert must(line) == [False, False]


def test_another_finding_is_none_of_its_business():
    assert isinstance(plan("wake-gpu", look(), dead(b.uuid(2), Scope.GPU, "gpu-memory-held")), Pass)


@pytest.mark.parametrize(
    "change",
    [
        {"processes": Known((GpuProcess(7, 1, "compute"),))},
        {"processes": Unknown(Why.DENIED, "x")},
        {"mig": Known(True)},
        {"condition": Condition.LOST},
    ],
    ids=str,
)
def test_only_where_nobody_is(change):
    assert isinstance(plan("wake-gpu", look(**change), ghost(2)), Pass)


def test_a_holder_without_a_row_counts():
    holder = group(900, health=Health.HEALTHY, gpus=frozenset({b.uuid(2)}))
    assert isinstance(plan("wake-gpu", look(holder), ghost(2)), Pass)
