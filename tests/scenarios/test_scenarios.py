"""Every scenario folder is played against the simulated machine and must do what its expected.journal says."""

from __future__ import annotations

import pytest

from recover.edge.simulated import FAULTS
from tests.scenarios.play import HERE, folders, log


@pytest.mark.parametrize("name", folders())
def test_the_run_is_the_expected_one(name: str) -> None:
    expected = (HERE / name / "expected.journal").read_text()
    assert log(name) == expected


def test_every_fault_has_a_scenario_and_every_scenario_its_prose() -> None:
    assert set(FAULTS) <= set(folders())
    for name in folders():
        assert len((HERE / name / "README.md").read_text().split()) > 20, name
