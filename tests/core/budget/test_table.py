"""The table: what was read holds, what wasn't takes the worse row and says so."""

from __future__ import annotations

from itertools import pairwise

import pytest

from recover.core.budget.model import Check, Pages, Pinning, Problem
from recover.core.budget.sizes import both, container_size, count, decimal, size
from recover.core.budget.table import FLAGS, ROWS, ruling, semantics
from recover.core.budget.version import numbers, version


@pytest.mark.parametrize(
    ("release", "pages", "pinning", "check"),
    [
        ("0.4.6", Pages.DOWN, Pinning.POWER_OF_TWO, Check.EACH),
        ("0.5.2", Pages.DOWN, Pinning.POWER_OF_TWO, Check.EACH),
        ("0.5.4", Pages.DOWN, Pinning.POWER_OF_TWO, Check.EACH),
        ("0.5.5", Pages.DOWN, Pinning.EXACT, Check.EACH),
        ("0.5.9", Pages.UP, Pinning.EXACT, Check.EACH),
        ("0.5.18", Pages.UP, Pinning.EXACT, Check.EACH),
        ("0.5.19", Pages.UP, Pinning.EXACT, Check.SPLIT),
        ("0.5.21", Pages.UP, Pinning.EXACT, Check.SPLIT_CGROUP),
        ("0.5.23", Pages.UP, Pinning.EXACT, Check.SPLIT_CGROUP),
    ],
)
def test_sglang_by_release(release: str, pages: Pages, pinning: Pinning, check: Check) -> None:
    found = semantics("sglang", version(release), "hicache-size")
    assert (found.pages, found.pinning, found.check, found.assumed) == (pages, pinning, check, "")


@pytest.mark.parametrize("release", [None, "0.5.24", "0.3.0", "1.0.0"])
def test_what_no_row_speaks_of_takes_the_worst(release: str | None) -> None:
    found = semantics("sglang", version(release) if release else None, "hicache-size")
    assert (found.pages, found.pinning, found.check) == (Pages.UP, Pinning.POWER_OF_TWO, Check.UNKNOWN)
    assert found.assumed


@pytest.mark.parametrize(
    ("release", "key", "value", "assumed"),
    [
        ("0.5.11", "indexer", "apart", True),
        ("0.5.10", "indexer", "inside", False),
        ("0.5.9.dev3", "indexer", "inside", True),
        ("0.5.5rc1", "pinning", Pinning.POWER_OF_TWO, True),
        ("0.5.9.post1", "indexer", "inside", False),
        ("0.5.3", "decode-offload", True, True),
    ],
)
def test_between_two_releases_the_worse_of_them(release: str, key: str, value: object, assumed: bool) -> None:
    found = ruling("sglang", version(release), key)
    assert (found.value, bool(found.assumed)) == (value, assumed)


@pytest.mark.parametrize(
    ("release", "place"),
    [
        ("0.5.9", "memory_pool_host.py:159 (0.5.9)"),
        ("0.5.5", "memory_pool_host.py:63 (0.5.4)"),
        ("0.5.23", "pool_host/base.py:223 (0.5.23)"),
    ],
)
def test_the_place_in_the_source_goes_with_the_release(release: str, place: str) -> None:
    assert semantics("sglang", version(release), "hicache-size").source.endswith(place)


def test_every_row_has_its_source_and_ranges_do_not_overlap() -> None:
    assert all(r.source and numbers(r.first) <= numbers(r.last) for r in ROWS)
    for engine, key in {(r.engine, r.key) for r in ROWS}:
        rows = sorted((r for r in ROWS if (r.engine, r.key) == (engine, key)), key=lambda r: numbers(r.first))
        assert all(numbers(a.last) < numbers(b.first) for a, b in pairwise(rows))
    assert all(semantics(engine, None, flag).source for engine, flag in FLAGS)


@pytest.mark.parametrize("text", ["", "main", "0.0.0.dev0+g123", "0.0.0", "latest", "1", "v", "1.2.3 or so", "9" * 90])
def test_what_is_no_version(text: str) -> None:
    assert version(text) is None


def test_sizes_in_both_units() -> None:
    assert both(2400 * 10**9) == "2400 GB (2235 GiB)"
    assert both(48 * 10**9) == "48.0 GB (44.7 GiB)"
    assert both(21_900_000) == "21.9 MB (20.9 MiB)"
    assert size("47.5GiB", "x") == 51_002_736_640


@pytest.mark.parametrize(("text", "amount"), [("16g", 16 << 30), ("512M", 512 << 20), ("2MB", 2 << 20), ("7", 7)])
def test_container_sizes(text: str, amount: int) -> None:
    assert container_size(text) == amount


@pytest.mark.parametrize("text", ["", "x", "-1", "infinity", "50%", "1e9", "0"])
def test_what_is_no_container_size(text: str) -> None:
    assert container_size(text) is None


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "x", "1e999999", "-0.1", ""])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(Problem, match=r"^--x: "):
        decimal(text, "--x")


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "²", "65537", "1_0", ""])
def test_what_is_no_count(text: str) -> None:
    with pytest.raises(Problem, match=r"^--ranks: "):
        count(text, "--ranks")


def test_digits_of_other_scripts_are_no_size() -> None:
    """A count refuses them as well."""
    with pytest.raises(Problem, match="is no size"):
        size("\uff14\uff14\uff15GiB", "--available")
