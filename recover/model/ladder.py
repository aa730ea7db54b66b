"""The ladder: what a rung is, what a playbook says, and what each rung offers for what was seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from recover.model.act import Blast, Line, Pass, Plan, Refuse
from recover.model.hypervisor import GuestKind
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope

Value = bool | int | float | str
Params = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a step: its default (whose type it has), least and greatest value, and what it means."""

    name: str
    default: Value
    doc: str
    unit: str = ""  # "s" for durations: written "30s", "2m" in a playbook
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A remedy. `scope`: how much stops; `reach`: the largest cure that it brings; `via`: channels that it needs, all.

    `plan(snapshot, curable findings, params)` is pure and gives a straight line, Pass or Refuse.
    """

    name: str
    scope: Scope
    reach: Scope
    via: frozenset[Channel]
    kinds: frozenset[GuestKind]
    plan: Callable[[Snapshot, tuple[Finding, ...], Params], Plan]
    params: tuple[Param, ...]
    doc: str

    def with_defaults(self, given: Params) -> dict[str, Value]:
        return {**{p.name: p.default for p in self.params}, **given}


@dataclass(frozen=True, slots=True)
class Rung:
    """One line of a playbook's ladder. `params` only holds what the playbook says; the step has the defaults."""

    step: str
    attempts: int = 1
    settle_s: float = 10.0
    params: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    max_scope: Scope = Scope.VM
    patience_s: float = 120.0
    confirm: int = 2
    confirm_every_s: float = 5.0  # between looks while counting to `confirm`, and while waiting
    disruptions_per_day: int = 3
    deadline_s: float | None = None  # None: derived from the target
    ripens_s: float = 60.0  # no progress for so long: stuck, not slow
    hung_after_s: float = 120.0  # running requests and no counter moves for so long: a hung server
    loading_stalls_s: float = 300.0


@dataclass(frozen=True, slots=True)
class After:
    start: str = "what-we-stopped"  # or "nothing"
    healthy_within_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Unattended:
    """What may be done without anybody who consents. A finding or a scope that is not listed is left to a person."""

    signals: tuple[str, ...]
    scopes: tuple[Scope, ...]
    runs_per_day: int = 2  # of one target, those that did something


@dataclass(frozen=True, slots=True)
class Playbook:
    name: str
    about: str
    limits: Limits = field(default_factory=Limits)
    rungs: tuple[Rung, ...] = ()
    after: After = field(default_factory=After)
    unattended: Unattended | None = None  # None: it is never climbed without a person
    source: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The rung can be tried now. `reaches`: signals of the findings that it can cure."""

    line: Line
    blast: Blast
    reaches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RungOption:
    """What one rung of the playbook offers for what was just seen. `index` is its place in the ladder."""

    index: int
    step: str
    scope: Scope
    reach: Scope
    offer: Ready | Pass | Refuse
