"""The journal's entries: all that a run knows. History is a fold over them, and decide looks at nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from recover.model.act import Action, Duty, Line, Outcome
from recover.model.guest import Mark
from recover.model.ladder import RungOption
from recover.model.process import ProcessId
from recover.model.verdict import Diagnosis, Finding, Scope


class EndKind(StrEnum):
    HEALTHY = "healthy"
    RECOVERED = "recovered"
    EXHAUSTED = "exhausted"
    BLOCKED = "blocked"
    NEEDS_HUMAN = "needs-human"
    OUT_OF_TIME = "out-of-time"
    CANNOT_TELL = "cannot-tell"
    INTERRUPTED = "interrupted"
    HELD = "held"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended, why in words, and the exact next command for a person where there is one."""

    kind: EndKind
    why: str
    next: str = ""
    passed_over: tuple[str, ...] = ()  # at the top of the ladder: why each rung was not (again) tried


@dataclass(frozen=True, slots=True)
class Try:
    index: int
    step: str
    line: Line
    attempt: int
    scope: Scope
    why: str


@dataclass(frozen=True, slots=True)
class Restore:
    duty: Duty
    attempt: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again after `seconds`. `why` is for the live view."""

    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    end: End


Decision = Try | Restore | Wait | Stop


@dataclass(frozen=True, slots=True)
class GpuVital:
    index: int
    uuid: str
    bus_id: str
    used_mib: int | None
    total_mib: int | None
    condition: str


@dataclass(frozen=True, slots=True)
class Serving:
    """A group by who would start it again, and by where it answered its health question with 200."""

    group: str
    service: str  # the key of the duty to start it; empty: nobody would
    url: str = ""
    listeners: tuple[ProcessId, ...] = ()


@dataclass(frozen=True, slots=True)
class Vitals:
    """The figures of one look that reports and curves need. None: not known. MiB."""

    gpus: tuple[GpuVital, ...] = ()
    ram_total_mib: int | None = None
    ram_available_mib: int | None = None
    ram_baseline_mib: int | None = None
    unowned_mib: int | None = None
    groups: tuple[tuple[str, str, str], ...] = ()  # (key, health, title)
    by_hand: tuple[tuple[str, str], ...] = ()  # (group key, command without secrets) of servers that no manager owns
    launches: tuple[tuple[str, str], ...] = ()  # (group key, launch fingerprint): the same launch again is a crash-loop
    server: str = ""
    serving: tuple[Serving, ...] = ()
    vm_status: str = ""
    host_free_mib: int | None = None
    baseline_is_default: bool = True
    services: tuple[tuple[str, str, str], ...] = ()  # (manager, name, state)
    reached: bool = True
    baseline_stale: str = ""  # why the saved baseline does not fit this guest any more
    host_booted_at: int | None = None  # by the Proxmox node's own clock, seconds
    node: str = ""  # the Proxmox node, and what is passed through to the guest there
    vmid: int = 0
    devices: tuple[str, ...] = ()
    start_timeout_s: int = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """A run begins, or goes on after a crash (`resumed`). Consent is never inherited."""

    at: float
    run: str
    target: str
    playbook: str
    playbook_digest: str
    who: str
    host: str
    pid: int
    deadline_s: float
    disruptions_today: int = 0
    resumed: bool = False
    start_at: str = ""
    only: str = ""
    restart_services: bool = True
    version: str = ""
    unattended: bool = False  # nobody asked for it: check --recover did


@dataclass(frozen=True, slots=True)
class Saw:
    at: float
    mark: Mark | None
    vitals: Vitals
    diagnosis: Diagnosis
    options: tuple[RungOption, ...] = ()
    busy: str = ""  # UPID of our own task that still runs
    payable: frozenset[str] = frozenset()  # keys of open duties whose channel works now
    settled: tuple[tuple[str, str], ...] = ()  # (duty key, why): void, since somebody else settled it


@dataclass(frozen=True, slots=True)
class Decided:
    at: float
    decision: Decision


@dataclass(frozen=True, slots=True)
class Consented:
    """The gate said yes. Time at the prompt does not count against the deadline."""

    at: float
    step: str
    by: str
    waited_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Declined:
    """The gate said no (`skip`: to this rung only)."""

    at: float
    by: str
    why: str
    step: str = ""
    skip: bool = False
    waited_s: float = 0.0
    lift: str = ""
    held: bool = False  # another run works on the target


@dataclass(frozen=True, slots=True)
class Interrupted:
    at: float
    by: str


@dataclass(frozen=True, slots=True)
class Kept:
    at: float
    evidence: str
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what it already tells: why the launch could not work, and which would


@dataclass(frozen=True, slots=True)
class Began:
    at: float
    index: int
    step: str
    attempt: int
    scope: Scope
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Acting:
    """Written and on disk before the act. `n` counts acts within the journal."""

    at: float
    n: int
    action: Action
    restores: str = ""  # key of the duty that this act pays


@dataclass(frozen=True, slots=True)
class Acted:
    at: float
    n: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Ended:
    at: float
    index: int
    step: str
    attempt: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Hooking:
    """Written and on disk before a hook is run: what it may have done is owed its counterpart at a run's end.

    `event`: before-disruption, after-recovery or gave-up; `command`: its program, without arguments.
    """

    at: float
    event: str
    command: str
    step: str = ""  # the rung before which it is run


@dataclass(frozen=True, slots=True)
class Hooked:
    """How a hook ended. `outcome.detail` is cleaned and holds no secret."""

    at: float
    event: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing comes after it but hooks. `carried`: keys of duties that a later run must pay."""

    at: float
    end: End
    service: str | None = None  # None: nothing was to start; "healthy"; else what is wrong with it
    carried: tuple[str, ...] = field(default=())


Entry = (
    Opened
    | Saw
    | Decided
    | Consented
    | Declined
    | Interrupted
    | Kept
    | Began
    | Acting
    | Acted
    | Ended
    | Hooking
    | Hooked
    | Closed
)
