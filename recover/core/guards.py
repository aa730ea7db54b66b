"""What forbids a rung although it would help: each guard names itself and how a person can lift it.

A guard that can't be answered refuses from VM scope up, and names the privilege that it lacks. What a start needs
(quorum, storages, devices, memory, pending changes, backups) is proved by the step itself, see steps/startable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recover.core.blast import bystanders
from recover.core.identity import identity
from recover.model.act import Refuse
from recover.model.guest import Guest
from recover.model.hypervisor import GuestKind, Hypervisor, Task, VmConfig
from recover.model.ladder import Step
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Channel, IdentityProof, Snapshot
from recover.model.verdict import Scope
from recover.steps.boot import objection
from recover.steps.common import FRAGILE
from recover.steps.startable import open_question

FOREIGN_TASK_S = 30 * 60
_HA_FOLLOWS_S = 120  # within so long of our own hastop/hastart, what root@pam does is HA carrying it out
_REBOOT_SLACK_S = 120  # an uptime is whole seconds, and two questions aren't asked at once
_POWER = frozenset({
    "qmstart", "qmstop", "qmshutdown", "qmreboot", "qmreset", "qmsuspend", "qmresume", "qmpause", "hastart", "hastop",
    "vzstart", "vzstop", "vzshutdown", "vzreboot",
})  # fmt: skip
_NOT_OURS_TO_END = {
    "io-error": "a disk of it can't be written: free space on its storage, then resume it",
    "paused": "somebody paused it: resume it (qm resume {vmid}), or ask who did",
    "suspended": "it sleeps: wake it (qm resume {vmid})",
    "prelaunch": "it is held before its start, as by a backup: wait until that has ended",
}


@dataclass(frozen=True, slots=True)
class Context:
    """What the person allowed and what the run knows of itself. `host_booted_at`: by the node's clock, at our start."""

    run: str = ""
    evict: bool = False
    trust_vmid: bool = False
    apply_pending: bool = False
    assume_hung: bool = False
    approved: Scope | None = None  # how far --approve consents
    host_booted_at: int | None = None
    over: frozenset[str] = frozenset()  # runs of this target that can't be going on: we hold the lock that they had
    took: tuple[tuple[str, float, int], ...] = ()  # (step, minutes, of so many past runs of this target)


@dataclass(frozen=True, slots=True)
class Case:
    """One rung that would be tried now."""

    snapshot: Snapshot
    step: Step
    context: Context
    evict: bool


Check = Callable[[Case], Refuse | None]


@dataclass(frozen=True, slots=True)
class Guard:
    """`when`: every step, only those through the hypervisor, or those that stop all that runs in the guest."""

    name: str
    when: str  # always | hypervisor | guest-scope
    check: Check
    why: str


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


# Who else works there


def _held(case: Case) -> Refuse | None:
    guest = case.snapshot.guest
    if not isinstance(guest, Guest) or not isinstance(guest.marker, Known) or guest.marker.value is None:
        return None
    marker = guest.marker.value
    if marker.run == case.context.run or marker.expires_uptime_s <= guest.mark.uptime_s:
        return None
    if marker.run in case.context.over:
        return None  # it ended without taking its mark away: the act that places ours says so
    left = (marker.expires_uptime_s - guest.mark.uptime_s) / 60
    why = f"run {marker.run} by {marker.who} on {marker.host} works there (rung {marker.rung})"
    lift = f"wait for it; if it is over there (gpu-recover report {marker.run}), its mark expires in {left:.0f} min"
    return Refuse("held", why, lift)


def _do_not_recover(case: Case) -> Refuse | None:
    hypervisor, target = case.snapshot.hypervisor, case.snapshot.target
    if target.do_not_recover:
        lift = f"take do_not_recover out of [targets.{target.name}], if you may"
        return Refuse("tag", "the configuration says do_not_recover", lift)
    if isinstance(hypervisor, Hypervisor) and "do-not-recover" in hypervisor.tags:
        return Refuse("tag", "it carries the tag do-not-recover", "take the tag off in Proxmox, if you may")
    return None


def _hypervisor(case: Case) -> Hypervisor:
    """The hypervisor's look; guards for hypervisor steps only run where there is one (see options)."""
    assert isinstance(case.snapshot.hypervisor, Hypervisor)
    return case.snapshot.hypervisor


def _tasks(case: Case) -> Refuse | None:
    hypervisor = _hypervisor(case)
    if isinstance(hypervisor.tasks, Unknown):
        return open_question("tasks", "the tasks of others", hypervisor.tasks, hypervisor)
    for task in hypervisor.tasks.value:
        if task.running and not task.ours:
            return Refuse("running-task", f"{task.type} by {task.user} runs on it", "wait until it has ended")
    return _foreign_power(hypervisor, hypervisor.tasks.value)


def _foreign_power(hypervisor: Hypervisor, tasks: tuple[Task, ...]) -> Refuse | None:
    ours = [t.starttime for t in tasks if t.ours and t.type in ("hastop", "hastart")]
    for task in tasks:
        age = hypervisor.clock_s - task.starttime
        ha = task.user == "root@pam" and any(0 <= task.starttime - at <= _HA_FOLLOWS_S for at in ours)
        if task.ours or ha or task.type not in _POWER or age > FOREIGN_TASK_S:
            continue
        why = f"{task.user} did {task.type} {max(0, age) // 60} min ago: somebody else may be at work"
        left = max(1, (FOREIGN_TASK_S - age) // 60 + 1)
        return Refuse("foreign-task", why, f"ask {task.user}, or run again in {left} min")
    return None


def _lock(case: Case) -> Refuse | None:
    hypervisor = _hypervisor(case)
    if not hypervisor.lock:
        return None
    why = f"guest {hypervisor.vmid} is locked ({hypervisor.lock}): somebody or something works on it"
    tool = "pct" if hypervisor.kind is GuestKind.CONTAINER else "qm"
    lift = f"wait until it has ended; only if nothing works there any more: {tool} unlock {hypervisor.vmid}"
    return Refuse("lock", why, f"{lift} on {hypervisor.node}")


def _ha(case: Case) -> Refuse | None:
    hypervisor = _hypervisor(case)
    if isinstance(hypervisor.ha_state, Unknown):
        return open_question("ha", "its HA state", hypervisor.ha_state, hypervisor)
    state = hypervisor.ha_state.value
    sid = ("ct" if hypervisor.kind is GuestKind.CONTAINER else "vm") + f":{hypervisor.vmid}"
    if state == "error":
        lift = f"find out why, then: ha-manager set {sid} --state disabled, and --state started"
        return Refuse("ha-error", f"HA has given {sid} up (state error)", lift)
    if state in ("fence", "migrate", "relocate", "recovery", "freeze"):
        return Refuse("ha-busy", f"HA is at work on {sid} (state {state})", "wait until it is in state started")
    return None


def _qmpstatus(case: Case) -> Refuse | None:
    hypervisor = _hypervisor(case)
    if hypervisor.kind is not GuestKind.VM:
        return None
    if isinstance(hypervisor.qmpstatus, Unknown):
        return open_question("qmpstatus", "the state of its QEMU", hypervisor.qmpstatus, hypervisor)
    lift = _NOT_OURS_TO_END.get(hypervisor.qmpstatus.value)
    if lift is None:
        return None
    why = f"VM {hypervisor.vmid} is in state {hypervisor.qmpstatus.value}"
    return Refuse("qmpstatus", why, lift.format(vmid=hypervisor.vmid))


def _host_rebooted(case: Case) -> Refuse | None:
    hypervisor, before = _hypervisor(case), case.context.host_booted_at
    if before is None or not isinstance(hypervisor.host_uptime_s, Known) or not hypervisor.clock_s:
        return None
    if hypervisor.clock_s - hypervisor.host_uptime_s.value <= before + _REBOOT_SLACK_S:
        return None
    return Refuse(
        "host-rebooted", f"{hypervisor.node} rebooted since this run began", "look at the node, then run again"
    )


# What the devices are


def _config(case: Case) -> Refuse | None:
    hypervisor = _hypervisor(case)
    if isinstance(hypervisor.config, Unknown):
        return open_question("config", "its configuration", hypervisor.config, hypervisor)
    return None


def _devices(case: Case) -> Refuse | None:
    """Devices that a stop and start would not simply reset and give back."""
    hypervisor = _hypervisor(case)
    assert isinstance(hypervisor.config, Known)  # _config comes first
    config: VmConfig = hypervisor.config.value
    for device in config.hostpci:
        if device.choices > 1:
            why = f"{device.key}: mapping {device.mapping} has {device.choices} entries for {hypervisor.node}"
            return Refuse("mapping-choices", why, "give the mapping one entry per node, so that it is the same device")
        if device.driver == "keep":
            why = f"{device.key} has driver=keep: Proxmox doesn't reset it at a start"
            return Refuse("driver-keep", why, "reset it by hand on the host, or take driver=keep out")
        if device.mdev:
            why = f"{device.key} is a virtual GPU ({device.mdev}): its memory belongs to the host's driver"
            return Refuse("vgpu", why, "ask whoever runs the host's vGPU manager")
    if "vfio-pci" in config.args:
        return Refuse("args", "its `args` pass a device through behind Proxmox's back", "use hostpci for that device")
    return None


def _shared(case: Case) -> Refuse | None:
    hypervisor = _hypervisor(case)
    if hypervisor.kind is GuestKind.CONTAINER:
        return None  # a GPU of the node may serve many; what resets one looks at all of them (steps/container)
    if isinstance(hypervisor.neighbours, Unknown):
        what = "which other guests share its devices"
        return open_question("shared-device", what, hypervisor.neighbours, hypervisor)
    for near in hypervisor.neighbours.value:
        if near.status == "running" and near.shares:
            why = f"{near.name} ({near.vmid}) runs and shares {', '.join(near.shares)}"
            return Refuse("shared-device", why, f"stop {near.vmid} first, or give each guest its own devices")
    return None


def _fragile(case: Case) -> Refuse | None:
    hypervisor, approved = _hypervisor(case), case.context.approved
    if approved is not None and approved >= case.step.scope:
        return None
    assert isinstance(hypervisor.config, Known)  # _config comes first
    for device in hypervisor.config.value.hostpci:
        for ids in device.device_ids:
            if ids.lower() in FRAGILE:
                why = f"{device.key} is an {FRAGILE[ids.lower()]}: a reset can leave it dead until the host reboots"
                return Refuse("fragile-device", why, f"accept that with --approve {case.step.scope.word}")
    return None


def _protection(case: Case) -> Refuse | None:
    """Proxmox only keeps such a guest from being removed; who set it wants to be asked before more is done to it."""
    hypervisor, approved = _hypervisor(case), case.context.approved
    assert isinstance(hypervisor.config, Known)  # _config comes first
    if not hypervisor.config.value.protection or (approved is not None and approved >= case.step.scope):
        return None
    why = f"guest {hypervisor.vmid} has the protection flag"
    return Refuse("protection", why, f"ask who set it, and say --approve {case.step.scope.word}")


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
    Guard("tag", "always", _do_not_recover, "its owner said so"),
    Guard("held", "always", _held, "two runs would undo each other"),
    Guard("identity-unproved", "hypervisor", _unproved_guest, "another guest would be stopped"),
    Guard("config", "hypervisor", _config, "nothing is known of its devices"),
    Guard("protection", "hypervisor", _protection, "somebody wants to be asked first"),
    Guard("lock", "hypervisor", _lock, "Proxmox would refuse, and it protects somebody's work"),
    Guard("tasks", "hypervisor", _tasks, "somebody works on it, or just did"),
    Guard("ha", "hypervisor", _ha, "HA would act against us or not at all"),
    Guard("qmpstatus", "hypervisor", _qmpstatus, "no restart cures that"),
    Guard("host-rebooted", "hypervisor", _host_rebooted, "what was found before may be over"),
    Guard("devices", "hypervisor", _devices, "a restart would not reset them, or reset others"),
    Guard("shared-device", "hypervisor", _shared, "another guest would be hit"),
    Guard("bystanders", "guest-scope", _bystanders, "work of others would be lost"),
    Guard("inhibitor", "guest-scope", _inhibitor, "an update or a backup inside the guest would be cut off"),
    Guard("fragile-device", "hypervisor", _fragile, "the cure can be worse than the fault"),
)
