"""Each public case of tests/data/cases/coverage.toml is held by exactly one kind of test, which exists and agrees."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from recover.model.snapshot import Snapshot
from tests.core import test_public_cases, test_public_cases_node
from tests.core.test_public_cases import Found

ROOT = Path(__file__).parents[2]
COVERAGE: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "tests/data/cases/coverage.toml").read_text())
NUMBERS = {
    "L": "02 04 05 06 07 08 10 11 12 13 14 15 16 18 21 22 23 24 27 28",
    "D": "01 02 04 05 08 09 10 12 14 15 16 17 18 19 20 21 22 23 24 25",
    "V": "01 02 04 05 06 08 11 13 14 15 16 17 18 20 21 22 23 24 25 26",
    "C": "01 02 03 04 06 07",
}
IDS = [family + number for family, numbers in NUMBERS.items() for number in numbers.split()]
MODULES = (test_public_cases, test_public_cases_node)
LOOKS: dict[str, tuple[Snapshot, Found]] = {**test_public_cases.CASES, **test_public_cases_node.CASES}
KINDS = ("looks", "covered", "cannot")
# Looks of what engines and drivers do in general, and of no report of the list.
OF_NO_REPORT = {
    "a rank's leader is defunct and a thread of it lives on, holding its GPU",
    "names of others are never leftovers of ours",
}
# What the report says ended it -> what a diagnosis may ask for. What is not listed decides nothing: it was left open,
# or cured by another version. `differs` stands where the two are not the same.
RIGHT = {
    "kill": {"process", "nothing"},
    "files": {"process", "nothing"},
    "wait": {"nothing"},
    "container": {"process"},
    "gpu-reset": {"gpu"},
    "driver": {"driver", "person"},
    "config": {"person", "nothing"},
    "host-reboot": {"guest", "vm"},
    "power": {"vm", "person"},
}
OPEN = {"none", "upgrade", "policy", "graceful", "holder", "api-wait", "vm-cycle"}


@cache
def text_of(path: Path) -> str:
    return path.read_text()


def there(name: str) -> bool:
    """A test of a file, a scenario's folder with what it must end as, or a published text."""
    path, _, test = name.partition("::")
    where = ROOT / path
    if test:
        return where.is_file() and f"\ndef {test}(" in text_of(where)
    if where.is_dir():
        return (where / "scenario.toml").is_file() and any(where.glob("expected.*"))
    return where.is_file() and path.startswith("tests/data/")


def asked_for(names: list[str]) -> list[str]:
    """What the diagnosis of these looks asks for, which their own tests hold it to; in order and once."""
    found = [LOOKS[name][1] or [("", "nothing")] for name in names if name in LOOKS]
    return sorted({cure or "person" for one in found for _, cure in one})


def test_every_case_is_in_the_table() -> None:
    assert len(IDS) == len(set(IDS)) == 66
    assert sorted(COVERAGE) == sorted(IDS)


@pytest.mark.parametrize("case", IDS)
def test_a_case_is_of_one_kind_and_what_it_names_exists(case: str) -> None:
    row = COVERAGE[case]
    assert [kind for kind in KINDS if kind in row] == [next(kind for kind in KINDS if row.get(kind))]
    assert set(row) <= {*KINDS, "source", "fix", "cures", "differs", "also"}
    assert row["source"] and row["fix"] in {*RIGHT, *OPEN}
    assert ("cures" in row) == ("looks" in row)
    assert [name for name in (*row.get("covered", ()), *row.get("also", ())) if not there(name)] == []
    unknown = [
        name
        for name in row.get("looks", ())
        if name not in LOOKS and not (name.startswith("test_") and any(hasattr(m, name) for m in MODULES))
    ]
    assert unknown == []


@pytest.mark.parametrize("case", [case for case in IDS if "looks" in COVERAGE.get(case, {})])
def test_its_diagnosis_asks_for_what_ended_it(case: str) -> None:
    row = COVERAGE[case]
    assert asked_for(row["looks"]) == row["cures"]
    wrong = set(row["cures"]) - RIGHT.get(row["fix"], set(row["cures"]))
    assert bool(wrong) == bool(row.get("differs")), "where it differs from the report the table must say why"


def test_no_look_stands_for_nothing_and_no_two_share_a_name() -> None:
    used = {name for row in COVERAGE.values() for name in row.get("looks", ())}
    assert set(LOOKS) - used == OF_NO_REPORT
    assert len(LOOKS) == sum(len(module.CASES) for module in MODULES)
