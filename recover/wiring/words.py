"""What is said to wiring and what it gives back: flags, what is wired for one target, and a run's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recover.edge.clock import SystemClock
from recover.edge.store.folder import StateFolder
from recover.edge.store.lock import Holder
from recover.model.ladder import Limits, Playbook
from recover.model.notice import Notice
from recover.model.record import Closed, End, EndKind, Entry
from recover.model.snapshot import Baseline, Snapshot, Target
from recover.model.verdict import Scope
from recover.ports import Actuator, Clock, Observer

if TYPE_CHECKING:
    from recover.core.guards import Context
    from recover.edge.connections import Connections


DEFAULT_PLAYBOOK = "hung-server"


class UsageProblem(Exception):
    """Words or configuration that cannot be used: every problem, and one hint. Exit code 2."""

    def __init__(self, problems: tuple[str, ...], hint: str = "") -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.hint = hint


class Held(Exception):
    """Another run works on the target. Exit code 20."""

    def __init__(self, holder: Holder, rung: str, target: str) -> None:
        super().__init__(f"{target} is held by run {holder.run} of {holder.who} on {holder.host}")
        self.holder, self.rung, self.target = holder, rung, target


@dataclass(frozen=True, slots=True)
class Flags:
    """What a person said on the command line."""

    yes: bool = False
    approve: Scope | None = None
    evict: bool = False
    assume_hung: bool = False
    trust_vmid: bool = False
    apply_pending: bool = False
    no_restart: bool = False
    deadline_s: float | None = None
    dry_run: bool = False
    max_scope: Scope | None = None
    start_at: str = ""
    only: str = ""
    json: bool = False
    look_s: float | None = None  # the most that one look may take
    steady: bool = False  # several looks will be made: the agent stays on the far side between them
    take_over: bool = False  # an unattended run on the target is asked to yield, and waited for
    unattended: bool = False  # nobody said any of this


@dataclass(frozen=True, slots=True)
class Result:
    """A run from beginning to end. `journal` is a path, empty where nothing was kept."""

    closed: Closed
    entries: tuple[Entry, ...]
    run: str
    journal: str
    unheard: tuple[str, ...] = ()  # hooks and messages of its end that failed, a sentence each
    notice: Notice | None = None  # its end, for people; None: there is nothing to tell, or they were told


@dataclass(slots=True)
class Wired:
    """Everything for one resolved target. Holds open connections: `close` it."""

    target: Target
    playbook: Playbook
    context: Context
    state: StateFolder
    clock: SystemClock
    observer: Observer
    actuator: Callable[[], Actuator]
    connections: Connections
    baseline: Baseline | None = None

    def look(self) -> Snapshot:
        return self.observer.look()

    def close(self) -> None:
        self.connections.close()


@dataclass(frozen=True, slots=True)
class Eyes:
    """What may look at one target and change nothing: there is no actuator in it to be had. `close` it."""

    target: Target
    limits: Limits
    clock: Clock
    observer: Observer
    close: Callable[[], None]


def held_end(held: Held) -> End:
    """The end of a run that could not begin."""
    return End(
        EndKind.HELD, str(held) + (f", at {held.rung}" if held.rung else ""), f"gpu-recover follow {held.target}"
    )
