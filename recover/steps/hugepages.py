"""Which huge pages a start will ask for, on which NUMA node, and whether they will be there once the stop is done.

qemu-server, QemuServer/Memory.pm: `hugepages_topology` says how many of which size on which node of the host;
`hugepages_allocate` takes what is free there, adds what is missing to the pool, and dies (`hugepage allocation failed`)
where the kernel finds no memory in one piece for that. So only what is in the pool is sure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from recover.model.host import HugePages
from recover.model.hypervisor import VmConfig

SIZES = {"2": 2, "1024": 1024}


@dataclass(frozen=True, slots=True)
class Wanted:
    """`bound`: the pages that the VM has now lie on this node for certain, so they come free there."""

    node: int
    size_mib: int
    pages: int
    bound: bool

    def __str__(self) -> str:
        size = "1 GiB" if self.size_mib == 1024 else f"{self.size_mib} MiB"
        return f"{self.pages} of {size} on NUMA node {self.node}"


def wanted(config: VmConfig) -> tuple[Wanted, ...] | None:
    """What the start asks for; None where the configuration doesn't tell (it plugs memory in, or names no node)."""
    if not config.numa or config.plugs_memory:
        return None
    parts: list[tuple[int | None, int, bool]] = [(n.host_node, n.memory_mib, n.bound) for n in config.numa_nodes]
    if not parts:  # split over the sockets, one host node for each, and bound to none of them
        sockets = max(config.sockets, 1)
        if config.memory_mib % sockets:
            return None
        parts = [(node, config.memory_mib // sockets, False) for node in range(sockets)]
    pages: Counter[tuple[int, int]] = Counter()
    loose: set[tuple[int, int]] = set()
    for node, memory, bound in parts:
        size = SIZES.get(config.hugepages, 2 if memory % 1024 else 1024)
        if node is None or memory <= 0 or memory % size:
            return None
        pages[node, size] += memory // size
        if not bound:
            loose.add((node, size))
    return tuple(Wanted(node, size, count, (node, size) not in loose) for (node, size), count in sorted(pages.items()))


def short(needs: Iterable[Wanted], pools: Iterable[HugePages]) -> tuple[Wanted, ...]:
    """Those of which the pool will not surely have enough after the stop."""
    there = {(pool.node, pool.kib): pool for pool in pools}
    return tuple(one for one in needs if _left(one, there.get((one.node, one.size_mib * 1024))) < one.pages)


def _left(need: Wanted, pool: HugePages | None) -> int:
    """What is free there after the stop: as many of the VM's own pages as are surplus leave the pool with it."""
    if pool is None:
        return 0
    return pool.free + (max(0, need.pages - pool.surplus) if need.bound else 0)
