"""A guest that cannot be reached is sick only on a second witness; what may lie on our way to it never counts.

Witnesses: its guest agent answered at baseline and fails its ping now; TCP is accepted and then nothing is said; QEMU
says internal-error; a person says --assume-hung. Refused, DNS, route, keys and authentication can have their cause in
the network, in sshd alone or in our own configuration, and a guest that checks keys is alive.
"""

from __future__ import annotations

from recover.core.identity import identity
from recover.core.look import BOOT_S, Gap, Look, Signs, boot_patience, watch
from recover.model.contact import Failure
from recover.model.guest import Mute
from recover.model.hypervisor import AgentState, Hypervisor, NoHypervisor
from recover.model.reading import Known
from recover.model.snapshot import IdentityProof
from recover.model.verdict import Finding, Scope

# No answer at all: the machine, or the way to it. Only together with a witness.
_SILENT = frozenset({Failure.CONNECT_TIMEOUT, Failure.TIMEOUT, Failure.DIED, Failure.BANNER_SILENCE})
_ASLEEP = frozenset({"io-error", "paused", "suspended", "prelaunch"})
_HALTED = frozenset({"paused", "suspended", "prelaunch", "shutdown", "guest-panicked", "watchdog"})


def vm_state(look: Look) -> Signs:
    """The VM as QEMU and Proxmox show it: stopped by somebody, halted, or broken inside."""
    seen = look.snapshot.hypervisor
    if isinstance(seen, NoHypervisor):
        yield Gap(f"Proxmox could not be asked ({seen.why}): {seen.detail}", matters=False)
        return
    if seen.status == "stopped":
        if not look.past.owed_vm:
            yield Finding("vm-stopped", f"{_who(seen)} is stopped{_by_whom(seen)}", None, None)
        return
    qmp = seen.qmpstatus.value if isinstance(seen.qmpstatus, Known) else ""
    if qmp == "internal-error":
        says = f"QEMU stopped {_who(seen)} with an internal error"
        yield Finding("vm-internal-error", says, Scope.VM, None, (), at_least=Scope.VM)
    elif qmp == "io-error":
        says = f"QEMU stopped {_who(seen)}: a disk of it can't be written (its storage may be full)"
        yield Finding("vm-io-error", says, None, None)
    elif qmp in ("guest-panicked", "watchdog"):
        says = f"{_who(seen)} is halted: {qmp}"
        yield Finding("vm-halted", says, Scope.VM, None, (), at_least=Scope.VM)
    elif qmp in _HALTED:
        # A backup or migration may pause it for a moment.
        finding = Finding("vm-paused", f"{_who(seen)} is {qmp}{_by_whom(seen)}", None, None)
        yield watch(f"qmp:{qmp}", 0, 1, look.limits.ripens_s, finding)


def mute_guest(look: Look) -> Signs:
    """A guest that does not answer. Without a witness it is only a gap."""
    mute = look.snapshot.guest
    if not isinstance(mute, Mute):
        return
    yield Gap(f"the guest was not reached: {mute.failure} {mute.detail}".rstrip())
    seen = look.snapshot.hypervisor
    if isinstance(seen, Hypervisor) and (seen.status == "stopped" or look.past.owed_vm):
        return
    qmp = seen.qmpstatus.value if isinstance(seen, Hypervisor) and isinstance(seen.qmpstatus, Known) else ""
    if qmp in _ASLEEP:
        return  # it can't answer, and why is told by vm_state: its silence bears no witness
    witness = _witness(look, mute)
    if not witness:
        yield from _booting(look)
        return
    finding = Finding("guest-mute", f"the guest is hung: {witness}", Scope.VM, None, (mute.detail,), at_least=Scope.VM)
    up = seen.uptime_s if isinstance(seen, Hypervisor) else BOOT_S
    yield watch("mute:guest", 0, 1, boot_patience(up, look.limits.ripens_s), finding)


def _booting(look: Look) -> Signs:
    """A VM that was just started is on its way up: patience is not spent on that, its uptime is its progress."""
    seen = look.snapshot.hypervisor
    if isinstance(seen, Hypervisor) and seen.status == "running" and 0 < seen.uptime_s < BOOT_S:
        finding = Finding("guest-not-up", f"{_who(seen)} runs, and its guest does not come up", None, None)
        yield watch("boot:guest", -seen.uptime_s, 1, look.limits.ripens_s, finding)


def _witness(look: Look, mute: Mute) -> str:
    if look.snapshot.assume_hung:
        return "a person says so (--assume-hung)"
    if mute.failure not in _SILENT:
        return ""
    seen, baseline = look.snapshot.hypervisor, look.snapshot.baseline
    if isinstance(seen, Hypervisor) and seen.agent == Known(AgentState.ANSWERS):
        return ""  # its programs run: whatever accepts and is silent may be sshd alone, or something on our way
    if mute.failure is Failure.BANNER_SILENCE:
        return "it accepts connections and says nothing"
    silent = isinstance(seen, Hypervisor) and seen.agent == Known(AgentState.SILENT)
    if silent and baseline is not None and baseline.agent_answered:
        return "it does not answer, and neither does its guest agent, which did"
    return ""


def _who(seen: Hypervisor) -> str:
    return f"{seen.name or seen.kind} ({seen.vmid} on {seen.node})"


def _by_whom(seen: Hypervisor) -> str:
    tasks = seen.tasks.value if isinstance(seen.tasks, Known) else ()
    last = next((t for t in tasks if t.type.startswith(("qm", "vz", "ha")) and not t.running), None)
    if last is None:
        return ""
    failed = f", which failed: {last.status[:160]}" if last.status not in ("", "OK") else ""
    return f"; its last task is {last.type} by {last.user}{failed}"


def our_limits(look: Look) -> Signs:
    """What we may not see of the guest through Proxmox, and what the look itself left out: said, not judged."""
    seen, guest = look.snapshot.hypervisor, look.guest
    if isinstance(seen, Hypervisor):
        yield from (Gap(text, matters=False) for text in seen.gaps)
    if guest is None:
        return
    if identity(look.snapshot) is IdentityProof.WRONG:  # as where a restart gave its address to another machine
        yield Gap(f"what answers at {look.snapshot.target.address} is not the guest {look.snapshot.target.vmid}")
    yield from (Gap(text, matters=False) for text in guest.gaps)
    if not guest.complete:
        yield Gap("the look from inside the guest broke off")
    if not isinstance(guest.processes, Known):
        yield Gap("the process table is not known")
    if not guest.root:
        yield Gap("not root in the guest: open files of others are not seen", matters=False)
