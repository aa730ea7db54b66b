"""What would be done if nothing changed: the very engine, without an actuator, over a few looks and then a still world.

One look cannot tell a busy server from a hung one, and waiting until a symptom is ripe would take minutes: so it looks
while that still tells something new, and from then on only time goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from recover.core.report.plan import Planned, planned
from recover.model.act import Action, Blast
from recover.model.guest import Guest, Mark
from recover.model.record import Entry, Opened, Try
from recover.model.snapshot import Snapshot
from recover.model.verdict import Diagnosis
from recover.ports import Clock, GateAnswer

if TYPE_CHECKING:
    from recover.core.history import History
    from recover.wiring import Wired

REAL_LOOKS = 3
PAUSE_S = 5.0


class StillWorld:
    """Clock, observer, gate, view and interrupts of a world that stands still after a few real looks."""

    def __init__(self, look: Callable[[], Snapshot], clock: Clock) -> None:
        self._look, self._clock = look, clock
        self._left = REAL_LOOKS
        self._seen: Snapshot | None = None
        self._at = 0.0

    def now(self) -> float:
        return self._clock.now() if self._left else self._at

    def sleep(self, seconds: float) -> None:
        if self._left:
            self._clock.sleep(min(seconds, PAUSE_S))
        else:
            self._at += seconds

    def look(self) -> Snapshot:
        if self._left or self._seen is None:
            self._seen = self._look()
            self._at = self._clock.now()
            self._left -= 1
            return self._seen
        past = self._at - self._seen.at
        guest = self._seen.guest
        if isinstance(guest, Guest):
            guest = replace(guest, mark=Mark(guest.mark.boot_id, guest.mark.uptime_s + past))
        return replace(self._seen, at=self._at, wall=self._seen.wall + past, guest=guest)

    def acted(self, action: Action) -> None:
        """Nothing acts here."""

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        return GateAnswer("no", "plan")

    def entry(self, entry: Entry) -> None:
        """Nobody watches."""

    def asking(self, asking: bool) -> None:
        """Nobody is asked."""

    def pending(self) -> str:
        return ""


def plan_of(wired: Wired, history: History | None) -> Planned:
    """What a run would do about the target now. `history`: of a run that would be gone on with."""
    from recover.edge.evidence import NoEvidence
    from recover.edge.store.memory import MemoryJournal
    from recover.engine import Run, World

    playbook = replace(wired.playbook, limits=replace(wired.playbook.limits, confirm=1))
    still = StillWorld(wired.look, wired.clock)
    journal = MemoryJournal()
    world = World(still, None, still, still, journal, NoEvidence(), still, still)
    opened = Opened(
        at=still.now(), run="plan", target=wired.target.name, playbook=playbook.name, playbook_digest=playbook.digest,
        who="", host="", pid=0, deadline_s=playbook.limits.deadline_s or 0.0, resumed=history is not None,
    )  # fmt: skip
    Run(world, playbook, wired.context, history).run(opened)
    return planned(journal.entries())
