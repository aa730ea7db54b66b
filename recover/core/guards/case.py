"""What a guard judges: one rung that would be tried now, the look behind it, and what the person allowed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recover.model.act import Refuse
from recover.model.hypervisor import Hypervisor
from recover.model.ladder import Step
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope


@dataclass(frozen=True, slots=True)
class Context:
    """What the person allowed and what the run knows of itself. `host_booted_at`: by the node's clock, at our start."""

    run: str = ""
    evict: bool = False
    trust_vmid: bool = False
    apply_pending: bool = False
    assume_hung: bool = False
    approved: Scope | None = None  # how far --approve consents
    host_booted_at: int | None = None
    over: frozenset[str] = frozenset()  # runs of this target that can't be going on: we hold the lock that they had
    took: tuple[tuple[str, float, int], ...] = ()  # (step, minutes, of so many past runs of this target)


@dataclass(frozen=True, slots=True)
class Case:
    """One rung that would be tried now."""

    snapshot: Snapshot
    step: Step
    context: Context
    evict: bool


Check = Callable[[Case], Refuse | None]


@dataclass(frozen=True, slots=True)
class Guard:
    """`when`: every step, only those through the hypervisor, or those that stop all that runs in the guest."""

    name: str
    when: str  # always | hypervisor | guest-scope
    check: Check
    why: str


def hypervisor_of(case: Case) -> Hypervisor:
    """The hypervisor's look; guards for hypervisor steps only run where there is one (see options)."""
    assert isinstance(case.snapshot.hypervisor, Hypervisor)
    return case.snapshot.hypervisor
