"""The whole climb against a machine that is not there."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from recover import __version__
from recover.core.guards import Context
from recover.edge.clock import SignalInterrupts
from recover.edge.evidence import NoEvidence
from recover.edge.store.memory import MemoryJournal
from recover.engine import Run, World
from recover.model.ladder import Playbook
from recover.model.record import Opened
from recover.model.verdict import Scope
from recover.ports import Gate, View

if TYPE_CHECKING:
    from recover.edge.simulated import Fault

from recover.wiring.run import who
from recover.wiring.words import Result


def rehearse(playbook: Playbook, fault: Fault, view: View, gate: Gate, disruptions_today: int = 0) -> Result:
    """The whole climb against a machine that isn't there; nothing is written and no time passes."""
    from recover.edge.simulated import SimulatedClock, simulate

    clock = SimulatedClock(time.time())
    machine = simulate(fault, clock)
    journal = MemoryJournal()
    world = World(machine, machine, gate, clock, journal, NoEvidence(), view, SignalInterrupts())
    opened = Opened(
        at=clock.now(),
        run="rehearsal",
        target="node-174",
        playbook=playbook.name,
        playbook_digest=playbook.digest,
        who=who(),
        host="simulated",
        pid=os.getpid(),
        deadline_s=playbook.limits.deadline_s or 0.0,
        disruptions_today=disruptions_today,
        version=__version__,
    )
    closed = Run(world, playbook, Context(run="rehearsal", approved=Scope.HOST_DEVICE)).run(opened)
    return Result(closed, tuple(journal.entries()), "rehearsal", "")
