"""What forbids a rung although it would help: each guard names itself and how a person can lift it.

A guard that can't be answered refuses from VM scope up, and names the privilege that it lacks. What a start needs
(quorum, storages, devices, memory, pending changes, backups) is proved by the step itself, see steps/startable.
"""

from __future__ import annotations

from recover.core.blast import bystanders
from recover.core.guards import devices, others
from recover.core.guards.case import Case, Context, Guard
from recover.core.identity import identity
from recover.model.act import Refuse
from recover.model.guest import Guest
from recover.model.ladder import Step
from recover.model.reading import Unknown, Why
from recover.model.snapshot import Channel, IdentityProof, Snapshot
from recover.model.verdict import Scope
from recover.steps.boot import objection


def refusal(snapshot: Snapshot, step: Step, context: Context, evict: bool = False) -> Refuse | None:
    """The first guard that forbids `step` now. `evict`: the playbook's own rung ends bystanders."""
    case = Case(snapshot, step, context, evict or context.evict)
    for guard in GUARDS:
        if _applies(guard, step):
            found = guard.check(case)
            if found is not None:
                return found
    return None


def _applies(guard: Guard, step: Step) -> bool:
    match guard.when:
        case "hypervisor":
            return Channel.HYPERVISOR in step.via
        case "guest-scope":
            return step.scope >= Scope.GUEST
        case _:
            return True


# Who it is


def _wrong_guest(case: Case) -> Refuse | None:
    if identity(case.snapshot) is not IdentityProof.WRONG:
        return None
    target = case.snapshot.target
    why = f"{target.address} isn't the guest {target.vmid} of {target.cluster}: neither its UUID nor its MAC fit"
    return Refuse("identity", why, "correct vmid or address of this target in the configuration")


def _unproved_guest(case: Case) -> Refuse | None:
    if case.context.trust_vmid or identity(case.snapshot) is not IdentityProof.UNPROVED:
        return None
    target = case.snapshot.target
    why = f"nothing proves that {target.address} is the guest {target.vmid} of {target.cluster}"
    return Refuse("identity-unproved", why, "make sure that it is, and say --trust-vmid")


# Who would be hit


def _bystanders(case: Case) -> Refuse | None:
    if case.evict:
        return None
    guest = case.snapshot.guest
    if isinstance(guest, Guest) and isinstance(guest.processes, Unknown) and guest.processes.why is Why.DENIED:
        return Refuse("bystanders", "we may not see who else works there", "log in as root, or allow sudo")
    hit = bystanders(case.snapshot)
    if not hit:
        return None
    named = "; ".join(f"{h.name} ({h.how})" if h.kind == "group" else h.name for h in hit)
    return Refuse("bystanders", f"it would also end {named}", "ask them, and allow it with --evict")


def _inhibitor(case: Case) -> Refuse | None:
    guest = case.snapshot.guest
    return objection(guest) if isinstance(guest, Guest) and not case.evict else None


GUARDS: tuple[Guard, ...] = (
    Guard("identity", "always", _wrong_guest, "another machine's processes would be ended"),
    Guard("tag", "always", others.do_not_recover, "its owner said so"),
    Guard("held", "always", others.held, "two runs would undo each other"),
    Guard("identity-unproved", "hypervisor", _unproved_guest, "another guest would be stopped"),
    Guard("config", "hypervisor", devices.config, "nothing is known of its devices"),
    Guard("protection", "hypervisor", devices.protection, "somebody wants to be asked first"),
    Guard("lock", "hypervisor", others.lock, "Proxmox would refuse, and it protects somebody's work"),
    Guard("tasks", "hypervisor", others.tasks, "somebody works on it, or just did"),
    Guard("ha", "hypervisor", others.ha, "HA would act against us or not at all"),
    Guard("qmpstatus", "hypervisor", others.qmpstatus, "no restart cures that"),
    Guard("host-rebooted", "hypervisor", others.host_rebooted, "what was found before may be over"),
    Guard("devices", "hypervisor", devices.devices, "a restart would not reset them, or reset others"),
    Guard("shared-device", "hypervisor", devices.shared, "another guest would be hit"),
    Guard("hugepages", "hypervisor", devices.hugepages, "it may not find its memory again"),
    Guard("bystanders", "guest-scope", _bystanders, "work of others would be lost"),
    Guard("inhibitor", "guest-scope", _inhibitor, "an update or a backup inside the guest would be cut off"),
    Guard("fragile-device", "hypervisor", devices.fragile, "the cure can be worse than the fault"),
)
