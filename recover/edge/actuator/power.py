"""A power call is sent only to the guest that is meant, only while nobody else works on it, and once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recover.core.read.pve_tasks import parse_upid
from recover.core.read.task_log import TaskClass, classify
from recover.edge.actuator.proof import RESET, START, STOP, Ran, Verb, undone
from recover.edge.actuator.sight import ASK_S, Sight, Vm, failed, mismatch, refused
from recover.edge.actuator.waits import Again, Limit, Waits
from recover.edge.proxmox.client import path
from recover.edge.proxmox.errors import ApiError, Kind, clean
from recover.edge.proxmox.tasks import NotStarted, StillRunning, TaskEnd, Tasks, Unresolved
from recover.model.act import Outcome, VmRef
from recover.model.hypervisor import Task

GRACE_S = 10.0  # between a task's end and the state that it leaves
HA_LOOK_S = 5.0  # CRM and LRM act in rounds of 10 s each
FLR_S = 70.0  # the kernel waits for a device up to 65.5 s after its reset (drivers/pci/pci.c)
FLOCK_S = 60.0  # so long a task that has the guest's lock file is waited for
HA_HEARS_S = 30.0  # ... and until then a wish that it took does not show
HA_USER = "root@pam"  # as whom the LRM's tasks run
_POWER = frozenset({
    "qmstart", "qmstop", "qmshutdown", "qmreset", "qmreboot", "vzstart", "vzstop", "vzshutdown", "vzreboot",
})  # fmt: skip
_OVERRULE = "overrule-shutdown"


@dataclass(frozen=True, slots=True)
class Ready:
    """The guest may be acted on. `more`: parameters that this moment asks for."""

    vm: Vm
    config: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)


class Power:
    def __init__(self, sight: Sight, tasks: Tasks, waits: Waits) -> None:
        self._sight, self._tasks, self._waits = sight, tasks, waits

    # before

    def ready(self, ref: VmRef, verb: Verb, limit: Limit) -> Ready | Outcome:
        """The guest, or why nothing is sent to it: done already, another guest, locked, somebody at work."""
        self._sight.limit = limit
        doing = f"{verb.word} of {ref}"
        vm = self._sight.see(ref.vmid, ref.container)
        if isinstance(vm, ApiError):
            return failed(doing, vm)
        config = self._sight.config(vm)
        if isinstance(config, ApiError):
            return failed(f"{doing}: its identity", config)
        wrong = mismatch(vm, config, ref)
        if wrong:
            return refused(f"identity: {wrong}")
        more = self._alone(vm, verb, limit)
        if isinstance(more, Outcome):
            return more
        if not more:  # a task of ours may have ended just now
            seen = self._sight.see(ref.vmid, ref.container)
            if isinstance(seen, ApiError):
                return failed(doing, seen)
            vm = self._heard(seen, limit) if verb is START else seen
        return self._worth(vm, verb, limit) or Ready(vm, config, more)

    def _heard(self, vm: Vm, limit: Limit) -> Vm:
        """The guest after HA's next round, if it was told to stop just now: it runs, and not for long."""
        age = self._sight.ha_stop_age_s(vm) if vm.ha and vm.has("running") else None
        if age is None or age >= HA_HEARS_S:
            return vm
        heard = limit.part(HA_HEARS_S - age)
        seen = self._waits.until(
            lambda: self._sight.see(vm.vmid, vm.container),
            lambda s: isinstance(s, Vm) and not s.has("running"),
            heard,
            HA_LOOK_S,
        )
        return seen if isinstance(seen, Vm) else vm

    @staticmethod
    def _worth(vm: Vm, verb: Verb, limit: Limit) -> Outcome | None:
        """The end, where there is nothing to do or nothing may be done."""
        if verb.ensure and vm.has(verb.goal):
            return Outcome(True, f"already: {vm}", changed=False)
        if verb is RESET and vm.status != "running":
            return refused(f"{vm}: there is nothing to reset")
        if verb is START and vm.status == "running" and not vm.ha:
            return refused(f"{vm}: a start does not change that")
        if vm.lock and not (verb is START and vm.lock == "suspended"):
            return refused(f"{vm.called} is locked ({vm.lock}): somebody else works on it, and its lock is left alone")
        if limit.left() <= 0:
            return refused(f"{vm}: no time is left for the {verb.word}")
        return None

    def _alone(self, vm: Vm, verb: Verb, limit: Limit) -> dict[str, Any] | Outcome:
        """Refuses where another works on the guest; a task of our own is waited for, since it has the lock file."""
        running = self._sight.running_tasks(vm)
        if isinstance(running, ApiError):
            return failed(f"{verb.word} of {vm.called}: who works on it", running)
        for task in running:
            if not (task.ours or _of_ha(vm, task)):
                return refused(f"{clean(task.type, 40)} by {clean(task.user, 100)} is running on {vm.called}")
        shutdowns = bool(running) and all(t.ours and t.type in ("qmshutdown", "vzshutdown") for t in running)
        if verb is STOP and shutdowns and not vm.ha and self._sight.can_overrule():
            return {_OVERRULE: 1}
        for task in running:
            if not isinstance(self._tasks.wait(task.node, task.upid, limit.left(), read=False), TaskEnd):
                whose = "HA's" if _of_ha(vm, task) else "our own"
                return refused(f"{whose} {clean(task.type, 40)} of {vm.called} still runs", clear=False, busy=task.upid)
        return {}

    # the act

    def send(self, ready: Ready, verb: Verb, params: Mapping[str, Any], limit: Limit) -> Ran | Outcome | Again:
        vm = ready.vm
        where = path("nodes", vm.node, vm.kind, vm.vmid, "status", verb.word)
        given = {**params, **ready.more}
        posted = self._tasks.post_task(where, given, node=vm.node, vmid=vm.vmid, types=verb.types, most=limit.rest())
        if isinstance(posted, NotStarted):
            outcome = failed(f"{vm.called} was not told to {verb.word}", posted.error)
            if posted.error.kind is Kind.BAD_REQUEST and _OVERRULE in given:  # this version doesn't know it
                self._wait_for_others(vm, limit)
                return Again(outcome)
            if posted.error.kind is Kind.FAILED:
                return self._overtaken(vm, verb) or outcome
            return Again(outcome) if posted.error.kind is Kind.NOT_THERE else outcome  # moved to another node
        if isinstance(posted, Unresolved):
            return Ran(verb, vm, self._arrived(verb, limit.then(GRACE_S), vm), posted)
        ran = self._followed(vm, verb, posted.upid, limit)
        held = ran.reached and verb.ensure  # a guest that runs is no sign that it was reset
        if isinstance(ran.end, TaskEnd) and not ran.end.ok and not held:
            worst = ran.worst
            if worst is not None and worst.kind is TaskClass.FLOCK_TIMEOUT:  # the worker never got to the guest
                self._wait_for_others(vm, limit)
                return Again(undone(ran))
        return ran

    def _overtaken(self, vm: Vm, verb: Verb) -> Outcome | None:
        """Somebody was faster: LXC refuses then (`CT 200 not running`) where QEMU's worker has nothing to do."""
        seen = self._sight.see(vm.vmid, vm.container) if verb.ensure else None
        if not isinstance(seen, Vm) or not seen.has(verb.goal):
            return None
        return Outcome(True, f"already: {seen}", changed=False)

    def _followed(self, vm: Vm, verb: Verb, upid: str, limit: Limit) -> Ran:
        parsed = parse_upid(upid)
        node = parsed.node if parsed is not None else vm.node
        end = self._tasks.wait(node, upid, limit.left())
        if isinstance(end, StillRunning) and any(n.kind is TaskClass.RESET_WAITING for n in classify(end.log)):
            end = self._tasks.wait(node, upid, limit.then(FLR_S).left())
        log = end.log if isinstance(end, StillRunning | TaskEnd) else ()
        if isinstance(end, StillRunning):
            return Ran(verb, vm, self._sight.see(vm.vmid, vm.container), end, upid, log)
        queued = bool(vm.ha) and isinstance(end, TaskEnd) and end.ok
        after = self._arrived(verb, limit if queued else limit.then(GRACE_S), vm)
        if queued and isinstance(after, Vm):
            log = (*log, *self._ha_log(after, verb, parsed.starttime if parsed is not None else 0, limit))
        return Ran(verb, vm, after, end, upid, log)

    def _arrived(self, verb: Verb, limit: Limit, vm: Vm) -> Vm | ApiError:
        """The guest once the goal holds, or as it is when the time is over. HA may start it on another node."""

        def final(seen: Vm | ApiError) -> bool:
            return isinstance(seen, Vm) and (seen.has(verb.goal) or seen.ha == "error")

        every = HA_LOOK_S if limit.left() > GRACE_S else 2.0
        return self._waits.until(lambda: self._sight.see(vm.vmid, vm.container), final, limit, every)

    def _ha_log(self, vm: Vm, verb: Verb, since: int, limit: Limit) -> tuple[str, ...]:
        """The LRM's own task tells what `hastop` can't; it is seen only with Sys.Audit on the node."""
        tasks = self._sight.tasks(vm)
        found = () if isinstance(tasks, ApiError) else tasks
        kinds = {"qmstart", "vzstart"} if verb is START else {"qmstop", "qmshutdown", "vzstop", "vzshutdown"}
        theirs = [t for t in found if t.type in kinds and t.user == HA_USER and t.starttime >= since]
        if not theirs:
            return (f"HA's own task is not to be seen on {vm.node}",)
        return tuple(
            line for task in reversed(theirs) for line in self._tasks.log(task.node, task.upid, limit.ask_s(ASK_S))
        )

    def _wait_for_others(self, vm: Vm, limit: Limit) -> None:
        """Whoever has the lock file ends soon, or the next try says so."""
        running = self._sight.running_tasks(vm)
        ends = limit.part(FLOCK_S)
        for task in running if not isinstance(running, ApiError) else ():
            self._tasks.wait(task.node, task.upid, ends.left(), read=False)


def _of_ha(vm: Vm, task: Task) -> bool:
    return bool(vm.ha) and task.user == HA_USER and task.type in _POWER
