"""What each rung of the ladder offers for what was just seen: the guards live here, so that the journal shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from recover.core.blast import blast
from recover.core.guards import Context, refusal
from recover.core.identity import identity
from recover.model.act import Blast, Line, OnHost, Pass, Refuse, RemoveLeftovers, ResetGpu, Signal, StopService, WakeGpu
from recover.model.hypervisor import Hypervisor
from recover.model.ladder import Playbook, Ready, Rung, RungOption, Step, Value
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Diagnosis, Finding, Scope
from recover.steps.services import key_of
from recover.steps.table import ALL_STEPS

__all__ = ["DRAIN", "Context", "identity", "options"]

DRAIN = "drain"  # what a rung reaches that empties a healthy machine because its playbook says so


def options(
    snapshot: Snapshot,
    diagnosis: Diagnosis,
    playbook: Playbook,
    context: Context,
    steps: Mapping[str, Step] = ALL_STEPS,
) -> tuple[RungOption, ...]:
    """One option per rung, in the ladder's order."""
    found = []
    for index, rung in enumerate(playbook.rungs):
        step = steps[rung.step]
        offer = _offer(snapshot, diagnosis, rung, step, context)
        found.append(RungOption(index, step.name, step.scope, step.reach, offer))
    return tuple(found)


def _offer(snapshot: Snapshot, diagnosis: Diagnosis, rung: Rung, step: Step, context: Context) -> Ready | Pass | Refuse:
    if snapshot.target.kind not in step.kinds:
        return Pass(f"not for a {snapshot.target.kind}")
    missing = sorted(c for c in step.via if not _works(c, snapshot, diagnosis))
    if missing:
        return Pass(f"no {' and no '.join(missing)} channel")
    params = _params(rung, step, context)
    drain = params.get("drain") is True
    findings = tuple(f for f in diagnosis.curable if within_reach(step, f))
    if not findings and not drain:
        return Pass("nothing that it can cure")
    plan = step.plan(snapshot, findings, params)
    if isinstance(plan, Pass):
        return plan
    forbidden = refusal(snapshot, step, context, evict=drain or params.get("evict") is True)
    if forbidden is not None:
        return forbidden
    if isinstance(plan, Refuse):
        return plan
    reaches = tuple(dict.fromkeys(f.signal for f in findings if _works_on(snapshot, step, plan, f)))
    return Ready(plan, _blast(snapshot, step, plan, context), reaches or ((DRAIN,) if drain else ()))


def _blast(snapshot: Snapshot, step: Step, line: Line, context: Context) -> Blast:
    """With the minutes that past runs of this target took, where there are any."""
    hits = blast(snapshot, step.scope, line)
    took = next(((minutes, runs) for name, minutes, runs in context.took if name == step.name), None)
    return hits if took is None else replace(hits, minutes=took[0], past_runs=took[1])


def within_reach(step: Step, finding: Finding) -> bool:
    """Whether `step` brings a cure as large as `finding` needs."""
    if finding.cure is None or finding.cure > step.reach:
        return False
    return finding.at_least is None or finding.at_least <= step.reach


def _works(channel: Channel, snapshot: Snapshot, diagnosis: Diagnosis) -> bool:
    if channel is Channel.HYPERVISOR and not isinstance(snapshot.hypervisor, Hypervisor):
        return False
    return channel in diagnosis.channels


def _params(rung: Rung, step: Step, context: Context) -> dict[str, Value]:
    """The step's defaults, what the playbook says, and what the person allowed on top."""
    params = step.with_defaults(dict(rung.params))
    for name, allowed in (("evict", context.evict), ("apply_pending", context.apply_pending)):
        if allowed and name in params:
            params[name] = True
    return params


def _works_on(snapshot: Snapshot, step: Step, line: Line, finding: Finding) -> bool:
    """Whether `line` does something about `finding`: all of the guest from GUEST scope up, else what its acts name."""
    if step.scope >= Scope.GUEST or finding.where is None:
        return True
    return finding.where in _named(snapshot, line)


def _named(snapshot: Snapshot, line: Line) -> frozenset[str]:
    """Group keys and GPUs that the acts of `line` touch, and the GPUs that such groups hold."""
    names: set[str] = set()
    for act in line.acts:
        match act.do.do if isinstance(act.do, OnHost) else act.do:
            case Signal(group=key):
                names.add(key)
            case StopService(manager, name, uid=uid):
                owned = (
                    g for g in snapshot.groups if g.owner.name == name or key_of(snapshot, g) == (manager, name, uid)
                )
                names |= {g.key for g in owned}
            case ResetGpu(gpus=gpus):
                names |= {word for pair in gpus for word in pair}
            case WakeGpu(uuid=uuid, bus_id=bus_id):
                names |= {uuid, bus_id}
            case RemoveLeftovers(objects=objects):
                names |= {o.name for o in objects}
            case _:
                pass
    held = {gpu for g in snapshot.groups if g.key in names for gpu in g.gpus}
    return frozenset(names | held)
