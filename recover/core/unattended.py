"""May this target be acted on now, with nobody there? A reason not to is looked for first; each is named.

`objection` is asked before a run, about what was seen; `consent` is the gate within it, asked before every try, about
what would be done. Both say no to all that the playbook doesn't list, and neither looks at anything but its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recover.core.clean import clean
from recover.core.fleet import FleetLimits, Picture
from recover.core.report.check.verdict import Checked
from recover.core.watch import Policy, lasting
from recover.core.windows import Window, first
from recover.model.act import Blast, Hit
from recover.model.hypervisor import Hypervisor
from recover.model.ladder import Unattended
from recover.model.record import Try
from recover.model.snapshot import Channel
from recover.model.verdict import Diagnosis, Scope
from recover.model.watch import Standing, Status
from recover.ports import GateAnswer
from recover.steps.common import MAY_DIE

BY = "watch"
_SICK_GROUPS = frozenset({"ended (dead)", "ended (hung)"})
_OTHERS = frozenset({"session", "neighbour"})
# QEMU's states internal-error, guest-panicked and watchdog: no processor of the VM runs (QEMU, qapi/run-state.json)
_STOPPED = frozenset({"vm-internal-error", "vm-halted"})


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration and the playbook say, the same for every target."""

    unattended: Unattended
    policy: Policy
    fleet: FleetLimits
    windows: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """All that is known of one target. `at_work`: who works there, or did lately; `trouble`: its standing is lost."""

    checked: Checked
    standing: Standing
    at: float
    trouble: tuple[str, ...] = ()
    at_work: str = ""

    @property
    def target(self) -> str:
        return self.checked.target


@dataclass(frozen=True, slots=True)
class Objection:
    """`rule`: a stable word for data. `why`: a sentence for a person."""

    rule: str
    why: str


Reason = Callable[[Candidate, Rules, Picture], str]


def objection(candidate: Candidate, rules: Rules, picture: Picture) -> Objection | None:
    """The first reason to leave the target alone."""
    for rule, reason in REASONS:
        why = reason(candidate, rules, picture)
        if why:
            return Objection(rule, clean(why, 600))
    return None


def _not_critical(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    status = candidate.checked.status
    return "" if status is Status.CRITICAL else f"it is {status.name}"


def _unkept(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    return candidate.trouble[0] if candidate.trouble else ""


def _protected(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    snapshot = candidate.checked.snapshot
    if snapshot is None:
        return "it was not seen"
    if snapshot.target.do_not_recover:
        return "the configuration says do_not_recover"
    if isinstance(snapshot.hypervisor, Hypervisor) and "do-not-recover" in snapshot.hypervisor.tags:
        return "it carries the tag do-not-recover"
    return ""


def _maintenance(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    found = first(rules.windows, candidate.target, candidate.at)
    return (found.why or "a maintenance window") if found is not None else ""


def _soft(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    state, policy = candidate.standing.state, rules.policy
    if state is not None and state.status is Status.CRITICAL:
        return ""
    came = sum(r.status is Status.CRITICAL for r in candidate.standing.recent[-policy.of :])
    return f"CRITICAL in {came} of the last {policy.of} looks that count, and {policy.bad} are needed"


def _flapping(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    return "it is flapping: what would be seen afterwards proves nothing" if candidate.standing.flapping else ""


def _unlisted(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    diagnosis = candidate.checked.diagnosis
    return "nothing is known of it" if diagnosis is None else not_listed(diagnosis, rules.unattended)


def _not_lasting(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    kept = lasting(candidate.standing, rules.policy)
    young = sorted({f.signal for f in candidate.checked.findings} - kept)
    return f"{', '.join(young)}: not seen often enough yet" if young else ""


def _fleet(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    return picture.sick(rules.fleet)


def _at_work(candidate: Candidate, rules: Rules, picture: Picture) -> str:
    return candidate.at_work


# The order is the order of a report: what the target itself says, then what holds for all.
REASONS: tuple[tuple[str, Reason], ...] = (
    ("not-critical", _not_critical),
    ("standing", _unkept),
    ("do-not-recover", _protected),
    ("maintenance", _maintenance),
    ("soft", _soft),
    ("flapping", _flapping),
    ("unlisted", _unlisted),
    ("not-lasting", _not_lasting),
    ("at-work", _at_work),
    ("sick-fleet", _fleet),
)


def not_listed(diagnosis: Diagnosis, unattended: Unattended) -> str:
    """Findings that the playbook does not list, in words, or an empty string; nothing found is no reason to act."""
    if not diagnosis.findings:
        return "nothing was found"
    others = sorted({f.signal for f in diagnosis.findings} - set(unattended.signals))
    return f"{', '.join(others)}: not among the findings that the playbook lists" if others else ""


def consent(attempt: Try, blast: Blast, diagnosis: Diagnosis, unattended: Unattended) -> GateAnswer:
    """Yes only within what the playbook lists, and only where nobody else is hit."""
    why = (
        _scope(attempt, unattended)
        or not_listed(diagnosis, unattended)
        or _hit(blast.hits)
        or _unseen(attempt, diagnosis)
        or _dangerous(attempt)
    )
    if why:
        return GateAnswer("no", BY, clean(why, 600), "gpu-recover TARGET   (a person may)")
    return GateAnswer("yes", BY)


def _scope(attempt: Try, unattended: Unattended) -> str:
    if attempt.scope in unattended.scopes:
        return ""
    return f"scope {attempt.scope.word} is not among the scopes that the playbook lists"


def _hit(hits: tuple[Hit, ...]) -> str:
    """Whoever is neither dead nor hung, and everybody who isn't a group of the trouble."""
    for hit in hits:
        if hit.kind in _OTHERS or (hit.kind == "group" and hit.how not in _SICK_GROUPS):
            return f"it would hit {hit.kind} {hit.name} ({hit.how})"
    return ""


def _unseen(attempt: Try, diagnosis: Diagnosis) -> str:
    """A guest that only does not answer may be at work. One whose processors QEMU has stopped for good is not."""
    stopped = any(finding.signal in _STOPPED for finding in diagnosis.findings)
    if attempt.scope >= Scope.GUEST and Channel.GUEST not in diagnosis.channels and not stopped:
        return "who works in the guest can't be seen, and this would stop all of it"
    return ""


def _dangerous(attempt: Try) -> str:
    return next((word for word in attempt.line.words if MAY_DIE in word), "")
