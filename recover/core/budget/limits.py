"""What there is for a launch: every limit by itself, since the smallest one kills the server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recover.core.budget.arithmetic import Case
from recover.core.budget.containers import CONTAINER_SHM
from recover.core.budget.model import Demand, Fit, Place
from recover.core.budget.sizes import both, container_size
from recover.model.reading import Known


@dataclass(frozen=True, slots=True)
class Limit:
    """`room` before loading and margin; `low`, `high`: what is asked of it. `soft`: beyond it is only tight."""

    name: str
    room: int | None
    low: int
    high: int | None
    loading: int = 0
    margin: int = 0
    soft: bool = False
    unsure: str = ""  # why it may not apply

    def judge(self) -> tuple[Fit, str]:
        asked = _range(self.low, self.high)
        if self.room is None:
            return Fit.CANNOT_TELL, f"{self.name}: not known; {asked} are asked of it"
        rest = self.room - self.loading
        after = f" - {both(self.loading)} for loading" if self.loading else ""
        kept = f" - {both(self.margin)} of margin" if self.margin else ""
        there = f"{self.name}: {asked} asked of {both(self.room)}{after}{kept}"
        if self.low > rest:
            fit = Fit.TIGHT if self.soft else Fit.CANNOT_TELL if self.unsure else Fit.NOT
            return fit, f"{there}: {both(self.low - rest)} too much{_because(self.unsure)}"
        if self.high is None or self.high > rest:
            return (Fit.TIGHT if self.soft else Fit.CANNOT_TELL), f"{there}: it may be too much{_because(self.unsure)}"
        if self.high > rest - self.margin:
            return Fit.TIGHT, f"{there}: {both(self.high - rest + self.margin)} into the margin"
        return Fit.FITS, f"{there}: {both(rest - self.margin - self.high)} left over"


def _because(unsure: str) -> str:
    return f" ({unsure})" if unsure else ""


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"at least {both(low)}"
    return both(low) if low == high else f"{both(low)} to {both(high)}"


def limits(case: Case, demands: Sequence[Demand], loading: int, margin: int) -> Iterator[Limit]:
    facts, launch = case.facts, case.launch
    in_ram = [d for d in demands if d.place is not Place.HUGE]
    low, high = _sum(in_ram)
    available = facts.available.value if isinstance(facts.available, Known) else None
    yield Limit("available memory", available, low, high, loading, margin)
    if isinstance(facts.cgroup_room, Known) and facts.cgroup_room.value is not None:
        yield Limit("room under the cgroup's limit", facts.cgroup_room.value, low, high, loading, margin)
    if launch.memory_limit is not None:
        yield Limit("the launch's own memory limit", launch.memory_limit, low, high, loading, margin)
    yield from _balloon(case, available, low, high, loading, margin)
    yield from _numa(case, in_ram, loading, margin)
    yield from _shm(case, demands)
    yield from _huge(case, demands)


def _sum(demands: Sequence[Demand]) -> tuple[int, int | None]:
    highs = [d.total_high for d in demands]
    high = None if any(h is None for h in highs) else sum(h for h in highs if h is not None)
    return sum(d.total_low for d in demands), high


def _balloon(
    case: Case, available: int | None, low: int, high: int | None, loading: int, margin: int
) -> Iterator[Limit]:
    """What the hypervisor may still take back from the guest."""
    target, total = case.facts.balloon_target, case.facts.total
    if not isinstance(target, Known) or not isinstance(total, Known) or available is None:
        return
    if target.value < total.value:
        room = max(0, available - (total.value - target.value))
        name = "available memory once the balloon is at its target"
        yield Limit(name, room, low, high, loading, margin, soft=True)


def _numa(case: Case, demands: Sequence[Demand], loading: int, margin: int) -> Iterator[Limit]:
    """Where ranks may only use their own node's memory: SGLang 0.5.18 and later, or numactl --membind."""
    facts, launch = case.facts, case.launch
    if launch.membind:
        nodes = _nodes(launch.membind)
        here = [n for n in facts.numa if n.number in nodes]
        if not here:
            return
        low, high = _sum(demands)
        room = sum(n.free for n in here)
        yield Limit(f"NUMA node {launch.membind} (--membind)", room, low, high, loading, margin)
        return
    if launch.engine != "sglang" or len(facts.numa) < 2 or case.rule("numa-bind").value is not True:
        return
    if (launch.variable("SGLANG_AUTO_NUMA_BIND") or "").lower() in {"0", "false", "no"}:
        return
    if isinstance(facts.numactl, Known) and not facts.numactl.value:
        return
    yield from _by_node(case, demands, loading, margin)


def _by_node(case: Case, demands: Sequence[Demand], loading: int, margin: int) -> Iterator[Limit]:
    ranks = case.counts.on_host
    gpus = case.facts.gpus[:ranks]
    known = len(gpus) == ranks and all(g.numa is not None for g in gpus) and not _picks(case)
    sure = case.rule("numa-bind").assumed == "" and isinstance(case.facts.numactl, Known)
    for node in case.facts.numa:
        there = sum(1 for g in gpus if g.numa == node.number) if known else ranks
        if not there:
            continue
        low, high = _sum(demands)
        low, high = low * there // ranks, None if high is None else -(-high * there // ranks)
        unsure = "" if known and sure else "which ranks are bound to it is not known" if not known else "if bound"
        part, kept = loading * there // ranks, margin * there // ranks
        name = f"NUMA node {node.number}, for the {there} ranks bound to it"
        yield Limit(name, node.free, low, high, part, kept, unsure=unsure)


def _picks(case: Case) -> bool:
    """Whether the launch picks GPUs, so that the first ones need not be its own."""
    launch = case.launch
    return bool(launch.variable("CUDA_VISIBLE_DEVICES")) or launch.has("base-gpu-id")


def _nodes(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())
        if match is not None:
            found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def _shm(case: Case, demands: Sequence[Demand]) -> Iterator[Limit]:
    low, high = _sum([d for d in demands if d.place is Place.SHM])
    if not low and high == 0:
        return
    room = case.launch.shm_size
    if room == CONTAINER_SHM:
        yield Limit("/dev/shm of the container, 64 MiB by default", room, low, high)
        return
    if room is None and isinstance(case.facts.shm, Known):
        room = case.facts.shm.value.free
    yield Limit("/dev/shm", room, low, high)


def _huge(case: Case, demands: Sequence[Demand]) -> Iterator[Limit]:
    low, high = _sum([d for d in demands if d.place is Place.HUGE])
    if not low and high == 0:
        return
    size = container_size(case.launch.variable("SGLANG_HUGEPAGE_SIZE") or "")
    found = next((h for h in case.facts.hugepages if h.size == size), None)
    yield Limit("free hugepages", found.free * found.size if found is not None else None, low, high)
