"""What would be done if nothing changed: the very engine, without an actuator, over one look that stays as it is."""

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
from recover.ports import GateAnswer

if TYPE_CHECKING:
    from recover.core.history import History
    from recover.core.options import Context
    from recover.model.ladder import Playbook


class StillWorld:
    """Clock, observer, gate, view and interrupts of a world that stands still: only its time goes on."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen, self._at = seen, seen.at

    def now(self) -> float:
        return self._at

    def sleep(self, seconds: float) -> None:
        self._at += seconds

    def look(self) -> Snapshot:
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


def plan_of(
    look: Callable[[], Snapshot], playbook: Playbook, context: Context, history: History | None, target: str
) -> Planned:
    """One look, and what a run would do about it now. `history`: of a run that would be gone on with."""
    from recover.edge.evidence import NoEvidence
    from recover.edge.store.memory import MemoryJournal
    from recover.engine import Run, World

    still = StillWorld(look())
    journal = MemoryJournal()
    world = World(still, None, still, still, journal, NoEvidence(), still, still)
    opened = Opened(
        at=still.now(), run="plan", target=target, playbook=playbook.name, playbook_digest=playbook.digest, who="",
        host="", pid=0, deadline_s=playbook.limits.deadline_s or 0.0, resumed=history is not None,
    )  # fmt: skip
    Run(world, playbook, context, history).run(opened)
    return planned(journal.entries())
