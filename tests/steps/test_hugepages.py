"""Huge pages of a VM: what a start asks for, and that nothing is called sure which the kernel could still refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.read.pve_config import vm_config
from recover.model.host import HugePages
from recover.steps.hugepages import Wanted, short, wanted

GIB = 1 << 20  # in KiB


def needs(**config: Any) -> tuple[Wanted, ...] | None:
    return wanted(vm_config({"memory": "65536", "numa": 1, "hugepages": "1024", **config}, "pve1"))


BIND = "cpus=0-31,hostnodes={},memory=32768,policy=bind"


@pytest.mark.parametrize(("config", "found"), [
    ({"sockets": 2}, [(0, 1024, 32, False), (1, 1024, 32, False)]),
    ({}, [(0, 1024, 64, False)]),
    ({"hugepages": "2"}, [(0, 2, 32768, False)]),
    ({"numa0": BIND.format(0), "numa1": BIND.format(1)}, [(0, 1024, 32, True), (1, 1024, 32, True)]),
    ({"numa0": BIND.format(1), "numa1": BIND.format(1)}, [(1, 1024, 64, True)]),
    ({"numa0": BIND.format(1), "numa1": BIND.format(1).replace("bind", "preferred")}, [(1, 1024, 64, False)]),
    ({"hugepages": "any", "numa0": BIND.format(0), "numa1": BIND.format(1).replace("32768", "32770"),
      "memory": "65538"}, [(0, 1024, 32, True), (1, 2, 16385, True)]),
    ({"hugepages": "any"}, [(0, 1024, 64, False)]), ({"hugepages": "any", "memory": "65538"}, [(0, 2, 32769, False)]),
    # what qemu-server refuses or what isn't said: not guessed
    ({"numa": 0}, None), ({"hotplug": "disk,memory"}, None), ({"numa0": "cpus=0-3,memory=65536"}, None),
    ({"numa0": BIND.format("0-1")}, None), ({"memory": "65537"}, None), ({"sockets": 3}, None),
])  # fmt: skip
def test_what_a_start_asks_for(config: dict[str, Any], found: list[tuple[int, int, int, bool]] | None) -> None:
    """The rows follow qemu-server's hugepages_topology and hugepages_size."""
    said = needs(**config)
    assert (None if said is None else [(w.node, w.size_mib, w.pages, w.bound) for w in said]) == found


class Kernel:
    """One size of pages on two nodes: pages in use by this VM and by others, and the pool, as mm/hugetlb.c counts."""

    def __init__(self, free: list[int], surplus: list[int], mine: list[int], others: list[int]) -> None:
        self.free, self.mine, self.others = list(free), list(mine), list(others)
        self.surplus = [min(s, m + o) for s, m, o in zip(surplus, mine, others, strict=True)]

    def pools(self) -> tuple[HugePages, ...]:
        every = zip(self.free, self.mine, self.others, self.surplus, strict=True)
        return tuple(HugePages(n, GIB, f + m + o, f, s) for n, (f, m, o, s) in enumerate(every))

    def stop(self) -> None:
        """free_huge_folio: while there is surplus on its node, a page goes back to the kernel."""
        for node in (0, 1):
            while self.mine[node]:
                self.mine[node] -= 1
                if self.surplus[node]:
                    self.surplus[node] -= 1
                else:
                    self.free[node] += 1

    def starts(self, asked: list[int]) -> bool:
        """hugepages_allocate, with memory in pieces: not one page more can be had."""
        return all(self.free[node] >= asked[node] for node in (0, 1))


PAGES = st.lists(st.integers(0, 6), min_size=2, max_size=2)


@given(PAGES, PAGES, PAGES, PAGES, PAGES, st.booleans())
def test_nothing_is_sure_that_the_kernel_can_refuse(
    asked: list[int], free: list[int], surplus: list[int], others: list[int], lies: list[int], bound: bool
) -> None:
    """Caught, planted: all pages of the VM counted as free again; those of a VM that is bound to no node counted."""
    kernel = Kernel(free, surplus, asked if bound else lies, others)
    missing = short([Wanted(n, 1024, asked[n], bound) for n in (0, 1)], kernel.pools())
    kernel.stop()
    started = kernel.starts(asked)
    if not missing:
        assert started
    elif bound:
        assert not started, "and no more is called missing than must be"
