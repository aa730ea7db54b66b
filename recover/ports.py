"""The doors between the engine and the world: protocols only. What holds no Actuator cannot change anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from recover.model.act import Action, Blast, Outcome
from recover.model.notice import Notice
from recover.model.record import Entry, Try
from recover.model.snapshot import Snapshot
from recover.model.verdict import Diagnosis
from recover.model.watch import Controller, Ledger, Standing, Transition

T = TypeVar("T")


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch by the controller's clock, but never going back within one process."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, or earlier when the run is interrupted."""


class Observer(Protocol):
    """Looks, and can change nothing but its own memory of which GPUs hung."""

    def look(self) -> Snapshot:
        """One bounded look from all sides. Never raises for what the world does."""

    def acted(self, action: Action) -> None:
        """Told after each act, so that a GPU that hung is asked again only after something was done about it."""


class Actuator(Protocol):
    def perform(self, action: Action) -> Outcome:
        """Do one act within its own deadline. Never raises for what the world does."""


@dataclass(frozen=True, slots=True)
class GateAnswer:
    """`said`: yes | no | skip. `by`: who, or which option. `lift`: how a refusal can be lifted."""

    said: str
    by: str
    why: str = ""
    lift: str = ""


class Gate(Protocol):
    """Asks for consent before each try."""

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer: ...


class Journal(Protocol):
    def append(self, entry: Entry) -> None:
        """On disk when it returns; raises OSError otherwise, and then nothing is done."""

    def entries(self) -> Iterable[Entry]: ...


@dataclass(frozen=True, slots=True)
class Saved:
    """Where evidence lies, what is missing of it, and what it already tells a person."""

    folder: str = ""
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Evidence(Protocol):
    def keep(self, snapshot: Snapshot) -> Saved:
        """Save what an act may destroy, within 60 s."""


class View(Protocol):
    """Progress is an object of methods that may be empty, so that the engine never prints."""

    def entry(self, entry: Entry) -> None: ...

    def asking(self, asking: bool) -> None: ...


class Interrupts(Protocol):
    def pending(self) -> str:
        """Who asked the run to stop ("SIGINT", "abort by kim"), or an empty string."""


class Herald(Protocol):
    """Tells people and other systems that a target's state changed. Never raises: failures are returned."""

    def tell(self, *changes: Transition) -> tuple[str, ...]:
        """Within its own total deadline. One sentence per message or hook that failed, without secrets.

        Changes given together become one message per destination. Call it at every check, also without a change:
        what could not be delivered is tried again then, and reminders are due then. It may be called from any thread.
        """

    def announce(self, *notices: Notice) -> tuple[str, ...]:
        """What happened once: a run's end, a breaker that opened. In all else as `tell`."""


StandingStep = Callable[[Standing], tuple[Standing, Transition | None]]


@dataclass(frozen=True, slots=True)
class Kept:
    """A standing after one more look. `due`: changes that somebody must be told now, also those of who died before."""

    standing: Standing
    change: Transition | None
    due: tuple[Transition, ...] = ()
    trouble: tuple[str, ...] = ()


class Standings(Protocol):
    """How each target stands, over all processes of one state folder. Never raises: what failed is named."""

    def step(self, target: str, step: StandingStep, at: float) -> Kept:
        """One more look, by one process at a time; the change is on disk when this returns."""

    def told(self, target: str, changes: tuple[Transition, ...]) -> tuple[str, ...]:
        """They need not be told again. One sentence for each thing that went wrong."""

    def read(self, target: str) -> Standing | str:
        """As it is now, a new one where there is none, or why it can't be read."""


@dataclass(frozen=True, slots=True)
class Lost:
    """The ledger can't be read or written, and why: then nothing is done unattended."""

    why: str


class LedgerBook(Protocol):
    """The one ledger of all processes of a state folder. Never raises for what the world does."""

    def change(self, do: Callable[[Ledger], tuple[Ledger, T]]) -> T | Lost:
        """One change by one process at a time, on disk when this returns."""

    def read(self) -> Ledger | Lost: ...


class Controllers(Protocol):
    """Which processes work for us."""

    def me(self) -> Controller: ...

    def lives(self, controller: Controller) -> bool | None:
        """None: it can't be told, as of another machine."""
