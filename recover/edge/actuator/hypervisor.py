"""A VM is stopped, started or reset through the Proxmox API, and each act is proved by the guest's state.

Every act is an ensure verb: it looks the guest up anew, checks that it is the one meant and that nobody else works on
it, is done at once where the goal holds, and sends its POST once. Only where it is proved that nothing was done may one
more be sent: the lock file could not be had, the guest was on another node, or a start ended `got timeout`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recover.core.read.pve_values import flag
from recover.core.read.task_log import TaskClass
from recover.edge.actuator.power import Power, Ready
from recover.edge.actuator.proof import (
    RESET,
    SHUTDOWN,
    START,
    STOP,
    Ran,
    Returned,
    done,
    returned,
    tail,
    undone,
)
from recover.edge.actuator.sight import Sight, Vm, refused
from recover.edge.actuator.waits import Again, Limit, Waits
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.errors import clean
from recover.edge.proxmox.tasks import TaskEnd, Tasks
from recover.model.act import Action, AwaitBoot, Outcome, ResetVm, ShutdownVm, StartVm, StopVm
from recover.model.reading import Reading
from recover.steps.bounds import power_limit_s

BACK_S = 30.0  # so long the host's memory is waited for after a SIGKILL
BACK_EVERY_S = 3.0
# The worker dies of these before it says a word to the guest (PVE/API2/Qemu.pm, vm_shutdown).
_NEVER_ASKED = frozenset({
    TaskClass.LOCKED, TaskClass.FLOCK_TIMEOUT, TaskClass.NO_QUORUM, TaskClass.DENIED, TaskClass.PAUSED,
    TaskClass.HA_ERROR,
})  # fmt: skip


class HypervisorActuator:
    """The hands for one cluster. `sleep` must really sleep. A boot is awaited by another, since that asks the guest."""

    def __init__(
        self,
        client: Client,
        tasks: Tasks,
        cluster: str,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        await_boot: Callable[[AwaitBoot], Outcome],
    ) -> None:
        self._cluster, self._await_boot = cluster, await_boot
        self._waits = Waits(clock, sleep)
        self._sight = Sight(client)
        self._power = Power(self._sight, tasks, self._waits)

    def perform(self, action: Action) -> Outcome:
        began = self._waits.clock()
        outcome = self._perform(action)
        return replace(outcome, seconds=self._waits.clock() - began)

    def _perform(self, action: Action) -> Outcome:
        match action:
            case AwaitBoot():
                return self._await_boot(action)
            case ShutdownVm() | StopVm() | StartVm() | ResetVm():
                if action.vm.cluster != self._cluster:
                    return refused(f"{action.vm} is of cluster {action.vm.cluster}, not {self._cluster}")
                return self._vm(action)
        return refused(f"{type(action).__name__} is not done through the Proxmox API")

    def _vm(self, action: ShutdownVm | StopVm | StartVm | ResetVm) -> Outcome:
        seconds = power_limit_s(action)
        match action:
            case ShutdownVm():
                limit = self._waits.limit(seconds)
                return self._waits.at_most_twice(lambda: self._shutdown(action, limit))
            case StopVm():
                limit = self._waits.limit(seconds)
                return self._waits.at_most_twice(lambda: self._stop(action, limit))
            case ResetVm():
                limit = self._waits.limit(seconds)
                return self._waits.at_most_twice(lambda: self._reset(action, limit))
            case StartVm():
                # A start that PVE gave up needs all of its time again, so each of the two has its own part.
                both = self._waits.limit(2 * seconds)
                return self._waits.at_most_twice(lambda: self._start(action, both.part(seconds)))

    # down

    def _shutdown(self, action: ShutdownVm, limit: Limit) -> Outcome | Again:
        ready = self._power.ready(action.vm, SHUTDOWN, limit)
        if isinstance(ready, Outcome):
            return ready
        params = {"forceStop": 0, "timeout": max(1, int(action.deadline_s))}
        ran = self._power.send(ready, SHUTDOWN, params, limit)
        if not isinstance(ran, Ran):
            return ran
        if ran.reached:
            return done(ran)
        outcome = undone(ran)
        if isinstance(ran.end, TaskEnd) and ran.says(TaskClass.SHUTDOWN_TIMEOUT):
            detail = f"the guest did not power off within {action.deadline_s:.0f} s, and may still do so"
            outcome = replace(outcome, detail=detail)
        # It was asked, and that can't be taken back: it may go down at any later moment.
        asked = isinstance(ran.end, TaskEnd) and not any(ran.says(kind) for kind in _NEVER_ASKED)
        return replace(outcome, clear=False) if asked else outcome

    def _stop(self, action: StopVm, limit: Limit) -> Outcome | Again:
        ready = self._power.ready(action.vm, STOP, limit)
        if isinstance(ready, Outcome):
            return ready
        free = self._sight.host_free_mib(ready.vm.node)
        ran = self._power.send(ready, STOP, {}, limit)
        if not isinstance(ran, Ran):
            return ran
        return self._gone(ran, free, action.memory_mib, limit) if ran.reached else undone(ran)

    def _gone(self, ran: Ran, free: Reading[int], memory_mib: int, limit: Limit) -> Outcome:
        """The API calls a guest stopped whose QEMU hangs in the kernel: its pid file is removed after a SIGKILL."""
        killed = ran.says(TaskClass.SIGKILLED)

        def look() -> Returned:
            return returned(free, self._sight.host_free_mib(ran.before.node), ran.before, memory_mib)

        back = limit.then(BACK_S if killed else 0.0)
        memory = self._waits.until(look, lambda seen: seen.back is not False, back, BACK_EVERY_S)
        outcome = replace(done(ran), log=tail(ran, memory.says))
        if killed and memory.back is False:
            return replace(outcome, ok=False, detail=f"leftover QEMU suspected: it was killed, and {memory.says}")
        return outcome

    # up

    def _start(self, action: StartVm, limit: Limit) -> Outcome | Again:
        ready = self._power.ready(action.vm, START, limit)
        if isinstance(ready, Outcome):
            return ready
        given = {} if action.vm.container else {"timeout": int(action.timeout_s)}  # LXC's start knows none
        ran = self._power.send(ready, START, given, limit)
        if not isinstance(ran, Ran):
            return ran
        if ran.reached:
            return self._up(ran)
        outcome, worst = undone(ran), ran.worst
        down = isinstance(ran.after, Vm) and ran.after.status == "stopped"
        timed_out = isinstance(ran.end, TaskEnd) and worst is not None and worst.kind is TaskClass.START_TIMEOUT
        return Again(outcome) if timed_out and down else outcome

    @staticmethod
    def _up(ran: Ran) -> Outcome:
        outcome = done(ran)
        # Somebody was faster: it runs, and not by us.
        return replace(outcome, changed=not ran.says(TaskClass.ALREADY_RUNNING))

    def _reset(self, action: ResetVm, limit: Limit) -> Outcome | Again:
        ready = self._power.ready(action.vm, RESET, limit)
        if isinstance(ready, Outcome):
            return ready
        if not flag(ready.config.get("reboot", 1)):
            return refused(f"VM {ready.vm.vmid} has `reboot: 0`: a reset would end it")
        ran = self._power.send(ready, RESET, {}, limit)
        return self._was_reset(ready, ran) if isinstance(ran, Ran) else ran

    @staticmethod
    def _was_reset(ready: Ready, ran: Ran) -> Outcome:
        """The state is the same before and after: only the task tells, and later the guest's boot id."""
        if not (isinstance(ran.end, TaskEnd) and ran.end.ok and isinstance(ran.after, Vm)):
            return undone(ran)
        if ran.after.status != "running":
            return Outcome(False, f"QEMU ended at the reset: {ran.after}", log=tail(ran))
        if ran.after.pid != ready.vm.pid:
            detail = f"{ran.after} with pid {ran.after.pid}, before {ready.vm.pid}: it was started anew, not reset"
            return Outcome(True, clean(detail), log=tail(ran))
        return done(ran)
