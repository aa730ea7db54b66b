"""Single processes are sick when the kernel keeps them: no progress in D, a SIGKILL that does nothing, dead storage."""

from __future__ import annotations

from dataclasses import replace

from recover.core.kinship import driver_wait, holds_gpu
from recover.core.look import TICKS_QUANTUM, Gap, Look, Signs, Watch, d_symptom, kill_symptom, watch
from recover.core.waits import frozen, network_wait, storage_wait
from recover.model.process import Health, Process
from recover.model.verdict import Finding, Scope
from recover.steps.leftovers import fuse_words


def uninterruptible(look: Look) -> Signs:
    """D without progress in a member of a group or in the driver; unpinning after a kill makes progress."""
    ripens = look.limits.ripens_s
    for process in look.processes:
        if process.ours or process.sigkill_pending or not _stuck_in_d(process) or _storage(process):
            continue
        group = look.group_of(process.id)
        if group is None and not _in_driver(process):
            continue
        if group is not None and group.health is Health.STARTING:
            continue  # its ranks pin one after the other, under a lock; whether it grows is watched as a whole
        if frozen(process):
            continue
        where = _where(process)
        finding = Finding(
            "stuck-process",
            f"pid {process.pid} ({process.comm}) waits in the kernel without any progress{where}",
            Scope.PROCESS if group is not None else Scope.GUEST,
            group.key if group is not None else None,
            (_words(process),),
        )
        if group is None or not group.protected:
            yield _doubted(look, Watch(d_symptom(process, ripens, finding)))


def _doubted(look: Look, seen: Watch) -> Watch:
    """A single look may catch any process in D; only the second one without progress is a reason to wait."""
    again = seen.symptom.key in look.past.anchors and not look.moved(seen.symptom)
    return replace(seen, worrying=again)


def unkillable(look: Look) -> Signs:
    """A SIGKILL is pending and does nothing. D with progress is unpinning; R may spin: its CPU time proves nothing.

    Seen with vllm 25127: R in uvm_spin_loop, only a restart of the machine ended it.
    """
    for process in look.processes:
        if process.ours or not process.sigkill_pending or process.state not in "DR":
            continue
        group = look.group_of(process.id)
        if group is None and not holds_gpu(process) and not _in_driver(process):
            continue
        cure = None if network_wait(process) else Scope.GUEST
        finding = Finding(
            "unkillable-process",
            f"pid {process.pid} ({process.comm}) ignores SIGKILL in state {process.state}{_where(process)}",
            cure,
            group.key if group is not None else None,
            (_words(process),),
            at_least=cure,
        )
        yield Watch(kill_symptom(look, process, look.limits.ripens_s, finding))


def storage_hang(look: Look) -> Signs:
    """A member of a group waits for a file server: no step here cures that, and no signal reaches it."""
    for process in look.processes:
        group = look.group_of(process.id)
        if process.ours or group is None or not _stuck_in_d(process) or not _storage(process):
            continue
        finding = Finding(
            "storage-hang",
            f"pid {process.pid} ({process.comm}) waits for storage that does not answer{_where(process)}",
            None,
            group.key,
            (_words(process), *(fuse_words(look.guest.stuck_fuse) if look.guest is not None else ())),
        )
        yield _doubted(
            look, watch(f"storage:{process.id}", -process.cpu_ticks, TICKS_QUANTUM, look.limits.ripens_s, finding)
        )


def unseen_handles(look: Look) -> Signs:
    """Processes whose open files could not be read: they may hold a GPU. Said, but no reason to doubt or to act."""
    unseen = [p for p in look.processes if not p.holds_known and not p.plain_zombie]
    if unseen:
        yield Gap(f"open files of {len(unseen)} processes could not be read", matters=False)


def _stuck_in_d(process: Process) -> bool:
    return process.state == "D" or (process.dead_leader and bool(process.thread_wchans))


def _storage(process: Process) -> bool:
    return bool(storage_wait(process))


def _in_driver(process: Process) -> bool:
    return bool(driver_wait(process))


def _where(process: Process) -> str:
    return f" (in {process.waits[0]})" if process.waits else ""


def _words(process: Process) -> str:
    return f"{process.title or process.comm}: state {process.state}, {process.cpu_ticks} ticks, {process.rss_mib} MiB"
