"""Who else works on the guest, or just did: a person, another run, HA, a backup, whoever paused it."""

from __future__ import annotations

from recover.core.guards.case import Case, hypervisor_of
from recover.model.act import Refuse
from recover.model.guest import Guest
from recover.model.hypervisor import GuestKind, Hypervisor, Task
from recover.model.reading import Known, Unknown
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
# QEMU's other states (qapi/run-state.json) are those of a migration, a snapshot or a debugger at work.
_OURS_TO_END = frozenset({"running", "stopped", "internal-error", "guest-panicked", "watchdog", "shutdown"})
# The CRM's states in which it leaves a guest as it is (pve-ha-manager, HA/Manager.pm).
_HA_AT_REST = frozenset({"", "ignored", "started", "stopped", "disabled"})


def held(case: Case) -> Refuse | None:
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


def do_not_recover(case: Case) -> Refuse | None:
    hypervisor, target = case.snapshot.hypervisor, case.snapshot.target
    if target.do_not_recover:
        lift = f"take do_not_recover out of [targets.{target.name}], if you may"
        return Refuse("tag", "the configuration says do_not_recover", lift)
    if isinstance(hypervisor, Hypervisor) and "do-not-recover" in hypervisor.tags:
        return Refuse("tag", "it carries the tag do-not-recover", "take the tag off in Proxmox, if you may")
    return None


def tasks(case: Case) -> Refuse | None:
    hypervisor = hypervisor_of(case)
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
        if not hypervisor.clock_s:
            why = f"{task.user} did {task.type}, and how long ago can't be told: the node's clock is not known"
            return Refuse("foreign-task", why, f"ask {task.user}, or give the token Sys.Audit on /nodes/{task.node}")
        why = f"{task.user} did {task.type} {max(0, age) // 60} min ago: somebody else may be at work"
        left = max(1, (FOREIGN_TASK_S - age) // 60 + 1)
        return Refuse("foreign-task", why, f"ask {task.user}, or run again in {left} min")
    return None


def lock(case: Case) -> Refuse | None:
    hypervisor = hypervisor_of(case)
    if not hypervisor.lock:
        return None
    why = f"guest {hypervisor.vmid} is locked ({hypervisor.lock}): somebody or something works on it"
    tool = "pct" if hypervisor.kind is GuestKind.CONTAINER else "qm"
    lift = f"wait until it has ended; only if nothing works there any more: {tool} unlock {hypervisor.vmid}"
    return Refuse("lock", why, f"{lift} on {hypervisor.node}")


def ha(case: Case) -> Refuse | None:
    hypervisor = hypervisor_of(case)
    if isinstance(hypervisor.ha_state, Unknown):
        return open_question("ha", "its HA state", hypervisor.ha_state, hypervisor)
    state = hypervisor.ha_state.value
    sid = ("ct" if hypervisor.kind is GuestKind.CONTAINER else "vm") + f":{hypervisor.vmid}"
    if state == "error":
        lift = f"find out why, then: ha-manager set {sid} --state disabled, and --state started"
        return Refuse("ha-error", f"HA has given {sid} up (state error)", lift)
    if state not in _HA_AT_REST:
        return Refuse("ha-busy", f"HA is at work on {sid} (state {state})", "wait until it is in state started")
    return None


def qmpstatus(case: Case) -> Refuse | None:
    hypervisor = hypervisor_of(case)
    if hypervisor.kind is not GuestKind.VM:
        return None
    if isinstance(hypervisor.qmpstatus, Unknown):
        return open_question("qmpstatus", "the state of its QEMU", hypervisor.qmpstatus, hypervisor)
    if hypervisor.qmpstatus.value in _OURS_TO_END:
        return None
    other = "something is at work on it, as a migration or a snapshot: wait until that has ended"
    lift = _NOT_OURS_TO_END.get(hypervisor.qmpstatus.value, other)
    why = f"VM {hypervisor.vmid} is in state {hypervisor.qmpstatus.value}"
    return Refuse("qmpstatus", why, lift.format(vmid=hypervisor.vmid))


def host_rebooted(case: Case) -> Refuse | None:
    hypervisor, before = hypervisor_of(case), case.context.host_booted_at
    if before is None or not isinstance(hypervisor.host_uptime_s, Known) or not hypervisor.clock_s:
        return None
    if hypervisor.clock_s - hypervisor.host_uptime_s.value <= before + _REBOOT_SLACK_S:
        return None
    return Refuse(
        "host-rebooted", f"{hypervisor.node} rebooted since this run began", "look at the node, then run again"
    )
