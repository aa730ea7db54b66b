"""What the journal's entries so far say, as one value: nothing that decide uses comes from anywhere else."""

from __future__ import annotations

from dataclasses import dataclass, field

from recover.core.duties import OpenDuty
from recover.core.past import Anchor, OwnActs, Past, Reboot
from recover.model.act import (
    Due,
    Outcome,
    StartVm,
)
from recover.model.record import (
    Acting,
    Closed,
    Declined,
    Interrupted,
    Opened,
    Saw,
)
from recover.model.verdict import Finding, Scope


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a rung. `outcome` None: it runs."""

    index: int
    step: str
    attempt: int
    scope: Scope
    began_at: float
    findings: tuple[Finding, ...] = ()
    outcome: Outcome | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class History:
    """All that the entries so far say. Times are the engine's clock, seconds."""

    opened: Opened | None = None
    first: Saw | None = None
    last: Saw | None = None
    stale: bool = True  # something was done, or a run began, since the last look
    streak: int = 0  # healthy looks in a row since the last act
    anchors: dict[str, Anchor] = field(default_factory=dict)
    attempts: tuple[Attempt, ...] = ()
    skipped: frozenset[str] = frozenset()
    duties: tuple[OpenDuty, ...] = ()
    voided: tuple[tuple[str, str], ...] = ()  # (duty key, why it is no longer ours to pay)
    acting: tuple[Acting, ...] = ()  # acts whose end is not in the journal
    acts: int = 0
    declined: Declined | None = None
    interrupted: Interrupted | None = None
    unsure_since: float | None = None
    prompt_s: float = 0.0
    disruptions: int = 0
    derived_deadline_s: float = 0.0
    worst_case_s: float = 0.0  # of the longest ladder that was offered so far; only a longer one moves the deadline
    own_acts: tuple[OwnActs, ...] = ()
    ended: frozenset[tuple[str, str]] = frozenset()
    evidence: str = ""
    closed: Closed | None = None
    started: tuple[tuple[str, float, Outcome], ...] = ()  # paid AT_RECOVERY duties: (key, at, outcome)
    back: tuple[tuple[str, float], ...] = ()  # services that we stopped and a boot or somebody started: (key, seen at)
    asked: tuple[tuple[float, Outcome], ...] = ()  # when a real request went to what was started again
    tried_since_open: bool = False
    host_booted_at: int | None = None  # of the Proxmox node, as first seen in this climb
    reboot: Reboot | None = None  # asked of the guest itself, and no other boot seen since
    paid: int = 0  # AT_ONCE duties paid since the run began: it did something, even without a try

    @property
    def running(self) -> Attempt | None:
        """The attempt that has begun and not ended."""
        return next((a for a in reversed(self.attempts) if a.outcome is None), None)

    @property
    def height(self) -> int:
        """The highest rung tried so far, -1 before the first."""
        return max((a.index for a in self.attempts), default=-1)

    def used(self, index: int) -> int:
        return sum(1 for a in self.attempts if a.index == index)

    @property
    def deadline_at(self) -> float:
        """When the run must have ended; time at a prompt does not count."""
        if self.opened is None:
            return float("inf")
        seconds = self.opened.deadline_s or max(self.derived_deadline_s, 2700.0)
        return self.opened.at + seconds + self.prompt_s

    @property
    def past(self) -> Past:
        """What the next look must know."""
        return Past(
            anchors=self.anchors,
            ended=self.ended,
            own_acts=self.own_acts,
            first=self.first.mark if self.first is not None else None,
            owed_vm=any(isinstance(d.duty.do, StartVm) for d in self.duties),
            tries=len(self.attempts),
            reboot=self.reboot,
            gpus=tuple((g.uuid, g.bus_id) for g in self.first.vitals.gpus) if self.first is not None else (),
        )

    @property
    def target(self) -> str:
        """Its name, for a command that a person types."""
        return self.opened.target if self.opened is not None else "TARGET"

    def due(self, due: Due) -> tuple[OpenDuty, ...]:
        """Open duties of one kind, newest first."""
        return tuple(d for d in reversed(self.duties) if d.duty.due is due)
