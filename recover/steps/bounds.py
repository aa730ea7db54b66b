"""How long an act may take at the most: the deadlines that its hand keeps, and from them the worst case of every act.

Whoever performs an act takes its limits from here, so that what a person is told at the gate, what must fit before a
run's deadline and what really ends a wait are one number. All in seconds.
"""

from __future__ import annotations

from typing import assert_never

from recover.model import act

# In the guest and on the node: the agent's own deadline, and what connecting and its last word may take beyond it.
SHORT_S = 30.0  # acts without a deadline of their own
ASKING_S = 60.0  # a manager is asked for something that it does at once
STATE_S = 20.0  # a service's state is read back
GUEST_SLACK_S = 15.0
HOST_SLACK_S = 20.0
BOOT_SLACK_S = 65.0  # the last look of a wait for a boot, on a guest without Python also its second form
CHECK_S = 60.0  # a server's launch is judged before the server is started again

# Through the Proxmox API.
STOP_LEAST_S = 180.0  # qemu-server's _do_vm_stop takes up to 60 + 60 + 10 + 1 s from 9.2 on
SHUTDOWN_MARGIN_S = 30.0  # its task ends by itself at its time-out: the lock file may be waited for before that
START_MARGIN_S = 60.0
# Beyond its limit an act may only find out what came of it: a call whose answer is lost (50 s) and its task looked for
# (80 s), the state that a task leaves (10 s), a device after its reset (70 s), the host's memory (30 s), and questions.
OVER_S = 180.0
LAST_WORDS_S = 30.0  # of these, what is kept for questions that are asked when all is over: a second each


def worst_case_s(action: act.Action) -> float:
    """The longest time that `action` may take before its own deadlines have ended it."""
    match action:
        case act.ShutdownVm() | act.StopVm() | act.StartVm() | act.ResetVm():
            return power_limit_s(action) * (2 if isinstance(action, act.StartVm) else 1) + OVER_S
        case act.AwaitBoot(deadline_s=s):
            return s + BOOT_SLACK_S
        case act.ResetPci(deadline_s=s) | act.RescanPci(deadline_s=s) | act.RestoreResetMethod(deadline_s=s):
            return s + HOST_SLACK_S
        case act.OnHost(do=inner):
            return agent_s(inner) + HOST_SLACK_S
        case act.StartService(launch=launch, monitor=False) if launch:
            return CHECK_S + agent_s(action) + GUEST_SLACK_S
        case _:
            return agent_s(action) + GUEST_SLACK_S


def power_limit_s(action: act.ShutdownVm | act.StopVm | act.StartVm | act.ResetVm) -> float:
    """Until when one try must have reached its goal. Of a start that PVE gave up there is a second one."""
    match action:
        case act.ShutdownVm(deadline_s=s):
            return s + SHUTDOWN_MARGIN_S
        case act.StopVm(deadline_s=s):
            return max(s, STOP_LEAST_S)
        case act.StartVm(timeout_s=s):
            return s + START_MARGIN_S
        case act.ResetVm(deadline_s=s):
            return s
        case _:
            assert_never(action)


def agent_s(action: act.Action) -> float:
    """The deadline that the agent is given for an act that it performs."""
    match action:
        case act.AskServer(deadline_s=s) | act.EndZombieParent(deadline_s=s):
            return s
        case act.StopService(deadline_s=s) | act.StartService(deadline_s=s):
            return s + STATE_S
        case (
            act.AwaitGone(deadline_s=s)
            | act.ResetGpu(deadline_s=s)
            | act.SyncDisks(deadline_s=s)
            | act.RemoveLeftovers(deadline_s=s)
        ):
            return s
        case (
            act.WakeGpu(deadline_s=s)
            | act.EndMpsClient(deadline_s=s)
            | act.UnloadDriver(deadline_s=s)
            | act.LoadDriver(deadline_s=s)
        ):
            return s
        case act.ResetPci(deadline_s=s) | act.RescanPci(deadline_s=s) | act.RestoreResetMethod(deadline_s=s):
            return s
        case act.RebootGuest() | act.SuspendAutostart() | act.RestoreAutostart():
            return ASKING_S
        case act.Signal() | act.SetPersistence() | act.PlaceMarker() | act.ClearMarker():
            return SHORT_S
        case act.ShutdownVm() | act.StopVm() | act.StartVm() | act.ResetVm() | act.AwaitBoot() | act.OnHost():
            raise ValueError(f"{type(action).__name__} is not the agent's")
        case _:
            assert_never(action)
