"""One look becomes one of four words of the monitoring-plugin convention; what can't be judged is UNKNOWN, never OK.

Sick is proved by a finding. A symptom that is not ripe yet is a WARNING: one look can't tell slow from stuck. So is a
server that is alive and could not be proved healthy. A guest that is loading a model is OK.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from recover.core.baseline import idle, stale
from recover.core.clean import clean
from recover.core.diagnose import vitals
from recover.core.report.words import count
from recover.core.signals.server import unproved
from recover.model.guest import Guest, Mute
from recover.model.process import Group, Health
from recover.model.reading import Unknown, Why
from recover.model.record import Vitals
from recover.model.snapshot import Snapshot
from recover.model.verdict import Diagnosis, Finding, State
from recover.model.watch import Status

_WORST_LAST = (Status.OK, Status.WARNING, Status.UNKNOWN, Status.CRITICAL)


def worst(found: Iterable[Status]) -> Status:
    """Of several nodes. UNKNOWN outranks WARNING: a node that nobody can judge may be the sickest."""
    return max(found, key=_WORST_LAST.index, default=Status.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Checked:
    """One target as it was seen last. `snapshot` and what follows from it are None where no look came back.

    The snapshot is without its processes, kernel log and report: see `_told`.
    """

    target: str
    status: Status
    why: str
    seconds: float
    looks: int = 0
    snapshot: Snapshot | None = None
    diagnosis: Diagnosis | None = None
    vitals: Vitals | None = None
    baseline: str = "none"  # saved | stale | none
    proposes: bool = False  # this look could be saved as the baseline, and there is none

    @property
    def reached(self) -> bool:
        return self.snapshot is not None and isinstance(self.snapshot.guest, Guest)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.diagnosis.findings if self.diagnosis is not None else ()

    @property
    def ripening(self) -> tuple[Finding, ...]:
        """What will be found wrong unless it moves."""
        found = [s.finding for s in self.diagnosis.ripening] if self.diagnosis is not None else []
        return tuple(dict.fromkeys(found))

    @property
    def gaps(self) -> tuple[str, ...]:
        return self.diagnosis.gaps if self.diagnosis is not None else ()

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.snapshot.groups if self.snapshot is not None else ()


def checked(target: str, snapshot: Snapshot, diagnosis: Diagnosis, seconds: float, looks: int = 1) -> Checked:
    """`snapshot` and `diagnosis` as `assess` gives them."""
    status, why = judge(snapshot, diagnosis)
    saved = snapshot.baseline
    base = "none" if saved is None else "stale" if stale(saved, snapshot) else "saved"
    return Checked(
        target=target,
        status=status,
        why=why,
        seconds=seconds,
        looks=looks,
        snapshot=_told(snapshot),
        diagnosis=diagnosis,
        vitals=vitals(snapshot, diagnosis),
        baseline=base,
        proposes=base != "saved" and idle(snapshot, diagnosis)[0] is not None,
    )


def _told(snapshot: Snapshot) -> Snapshot:
    """What is still told of a look once it is judged: the rest is a megabyte a node, and a fleet's are held at once."""
    if not isinstance(snapshot.guest, Guest):
        return snapshot
    gone = Unknown(Why.ABSENT, "not kept after the look was judged")
    return replace(snapshot, guest=replace(snapshot.guest, processes=gone, kernel=gone, leftovers=gone, raw=()))


def unjudged(target: str, why: str, seconds: float) -> Checked:
    """No look came back: nothing is known, and that is what is said."""
    return Checked(target, Status.UNKNOWN, clean(why), seconds)


def judge(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[Status, str]:
    """The status and the one sentence that a person on call reads first."""
    if diagnosis.findings:
        return Status.CRITICAL, _several([f.says for f in diagnosis.findings])
    if diagnosis.state is State.HEALTHY:
        return Status.OK, _well(snapshot)
    if isinstance(snapshot.guest, Mute):
        return Status.UNKNOWN, f"the guest was not reached: {snapshot.guest.failure} {snapshot.guest.detail}".rstrip()
    alive = {unproved(group): group for group in snapshot.groups}
    blind = [gap for gap in diagnosis.gaps[: diagnosis.blind] if gap not in alive]
    if blind:
        return Status.UNKNOWN, _several(blind)
    waiting = list(dict.fromkeys(s.finding.says for s in diagnosis.ripening))
    if waiting:
        return Status.WARNING, f"not proved yet: {_several(waiting)}"
    unsure = [gap for gap in diagnosis.gaps[: diagnosis.blind] if gap in alive]
    if unsure:
        return Status.WARNING, _several(unsure)
    return Status.UNKNOWN, "what was seen does not suffice to call it healthy"


_OF_SERVERS = frozenset({"loading", "tokens", "silent"})  # symptoms that one more look shows to move, or not


def progress_may_tell(snapshot: Snapshot, diagnosis: Diagnosis) -> bool:
    """Whether a second look soon can turn a merely living server into a healthy or a starting one."""
    if diagnosis.findings or not isinstance(snapshot.guest, Guest) or diagnosis.state is not State.UNCERTAIN:
        return False
    blind = diagnosis.gaps[: diagnosis.blind]
    alive = {unproved(group) for group in snapshot.groups if group.health is Health.LIVE}
    servers_only = all(symptom.key.partition(":")[0] in _OF_SERVERS for symptom in diagnosis.ripening)
    return bool(blind or diagnosis.ripening) and servers_only and all(gap in alive for gap in blind)


def _several(sentences: list[str]) -> str:
    first = clean(sentences[0], 600)
    return first if len(sentences) == 1 else f"{first} (and {len(sentences) - 1} more)"


def _well(snapshot: Snapshot) -> str:
    """Nothing is wrong; what runs there."""
    shown = [g for g in snapshot.groups if not g.protected]
    if not shown:
        return "healthy, nothing runs on its GPUs"
    words = [
        f"{count(sum(g.health is health for g in shown), 'group')} {word}"
        for health, word in ((Health.HEALTHY, "serving"), (Health.STARTING, "starting"), (Health.LIVE, "at work"))
        if any(g.health is health for g in shown)
    ]
    return "healthy: " + ", ".join(words)
