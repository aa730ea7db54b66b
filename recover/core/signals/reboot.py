"""A restart that we asked of the guest is over when another boot id answers; one that never ends is cured at VM.

It is our own act that bears witness here: the guest answered, was asked to go down, and did not come back in its time.
What can lie on our way to it still counts for nothing, and a changed host key is a person's to judge.
"""

from __future__ import annotations

from recover.core.look import BOOT_S, Gap, Look, Signs, watch
from recover.model.contact import Failure
from recover.model.guest import Guest
from recover.model.hypervisor import AgentState, Hypervisor
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope

_DOWN = frozenset({
    Failure.REFUSED, Failure.NO_ROUTE, Failure.CONNECT_TIMEOUT, Failure.BANNER_SILENCE, Failure.DIED, Failure.TIMEOUT,
})  # fmt: skip


def reboot_hangs(look: Look) -> Signs:
    """The guest that we asked to restart still is, or hangs in, the boot that was to end."""
    asked, guest, seen = look.past.reboot, look.snapshot.guest, look.snapshot.hypervisor
    if asked is None and isinstance(guest, Guest):
        yield from _asked_by_others(guest)
    if asked is None or (isinstance(seen, Hypervisor) and seen.status != "running"):
        return
    if isinstance(guest, Guest):
        if guest.mark.boot_id != asked.boot_id:
            return
        if not _stopping(guest, asked.sure):
            return  # it was never begun, or something inside took it back: the rung did nothing
        how = "is still up in the boot that was to end"
    elif guest.failure is Failure.CHANGED_KEY:
        yield Gap("its host key changed with the reboot that we asked for")
        return
    elif guest.failure not in _DOWN:
        return
    elif isinstance(seen, Hypervisor) and seen.agent == Known(AgentState.ANSWERS):
        yield Gap("the guest does not answer after its reboot, while its guest agent does")
        return
    else:
        how = "does not come back"
    minutes = asked.deadline_s / 60
    says = f"the guest was asked to reboot and {how} within {minutes:.0f} min"
    finding = Finding("reboot-hangs", says, Scope.VM, None, (), at_least=Scope.VM)
    if look.snapshot.at - asked.at >= asked.deadline_s:
        yield finding
    else:
        yield watch(f"reboot:{asked.boot_id}", 0, 1, asked.deadline_s, finding)


def _asked_by_others(guest: Guest) -> Signs:
    """Somebody else restarts it or shuts it down: that is waited for, and nothing is done beside it meanwhile.

    One that hangs in the driver's shutdown never gets there by itself (open-gpu-kernel-modules issue 1027).
    """
    if isinstance(guest.boot, Known) and guest.boot.value.state == "stopping":
        says = "the guest is going down, as somebody else asked, and does not get there"
        finding = Finding("reboot-hangs", says, Scope.VM, None, (), at_least=Scope.VM)
        yield watch(f"stopping:{guest.mark.boot_id}", 0, 1, BOOT_S, finding)


def _stopping(guest: Guest, sure: bool) -> bool:
    """By systemd's own word; where it says nothing any more, by its word when it was asked."""
    state = guest.boot.value.state if isinstance(guest.boot, Known) else ""
    return state == "stopping" if state else sure
