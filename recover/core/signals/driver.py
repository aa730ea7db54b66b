"""The driver is sick when it does not answer, loses a GPU or asks for a reset; its own word outranks the Xid table.

The order of trust: the GPU does not answer > off the bus (Xid 79, also over the driver's own "GPU reset", which cannot
reach such a card: open-gpu-kernel-modules gpu.c, NVSentinel 1494) > recovery action (field 230) > last Xid 154 > table.
"""

from __future__ import annotations

import re

from recover.core.look import BOOT_S, Gap, Look, Signs, Watch, on_gpu, watch
from recover.core.news import Fault, of_kind
from recover.core.read.kernel_log import SxidEvent, events, last_load
from recover.core.signals.host import cure_of_loss
from recover.core.xid_table import SXID_RESET_FABRIC, SXID_RESTART_VM, XIDS
from recover.core.xids import cure, is_fault
from recover.model.gpu import Condition, Gpu, RecoveryAction, uuid_of
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope

_NVIDIA = re.compile(r"nvidia|\buvm_", re.IGNORECASE)
TRACE_LINES = 40
ASKED_AGAIN_S = 180.0  # the longest look, which may have begun before a boot's time was over
_HINT = re.compile(r"The GPU likely needs to be reset|NV_ERR_GPU_IN_FULLCHIP_RESET|RC watchdog: GPU is probably locked")

ACTION_CURES: dict[RecoveryAction, Scope | None] = {
    RecoveryAction.GPU_RESET: Scope.GPU,
    RecoveryAction.NODE_REBOOT: Scope.GUEST,
    RecoveryAction.DRAIN_P2P: Scope.GPU,
    RecoveryAction.DRAIN_AND_RESET: Scope.GPU,
    RecoveryAction.RECOVER_IMEX_DOMAIN: None,
    RecoveryAction.BUS_RESET: Scope.VM,  # the guest's bus is QEMU's; the real one is reset at stop and start
    RecoveryAction.SYSTEM_REBOOT: Scope.VM,
    RecoveryAction.OTHER: None,
}


def action_signal(action: RecoveryAction) -> str:
    """The finding that an action is which the driver asks for."""
    return "reset-required" if action is RecoveryAction.GPU_RESET else "recovery-action"


def action_words(action: RecoveryAction) -> str:
    return action.name.lower().replace("_", " ")


def lockups(look: Look) -> tuple[str, ...]:
    """Heads of lockups and RCU stalls whose trace stands in the NVIDIA driver."""
    told = [line.text for line in look.news]
    heads = {e.msg for e in of_kind(look.events, "soft-lockup", "hard-lockup", "rcu-stall")}
    found = [i for i, text in enumerate(told) if text in heads]
    return tuple(told[i] for i in found if any(_NVIDIA.search(text) for text in told[i : i + TRACE_LINES]))[:3]


def kernel_lockup(look: Look) -> Signs:
    """A CPU is locked up inside the driver, and something of it does not answer or does not die.

    Nothing from inside the guest helps then (open-gpu-kernel-modules 1223). The line alone may be of a long pinning.
    """
    found = lockups(look)
    bad = {Condition.HANGS, Condition.NOT_ASKED, Condition.FAILS, Condition.LOST}
    witness = any(g.condition in bad for g in look.gpus) or any(p.sigkill_pending for p in look.processes)
    driver = look.driver
    if found and (witness or (driver is not None and driver.condition is Condition.HANGS)):
        says = "the guest's kernel is locked up inside the NVIDIA driver"
        yield Finding("kernel-lockup", says, Scope.VM, None, found, at_least=Scope.VM)


def gpu_condition(look: Look) -> Signs:
    """Each GPU by how it answers: hangs, lost, reset required, fails, or not asked."""
    for gpu in look.gpus:
        match gpu.condition:
            case Condition.ANSWERS | Condition.RESET_REQUIRED:
                continue
            case Condition.HANGS:
                yield _hang(look, gpu, "does not answer the driver, while the guest does")
            case Condition.NOT_ASKED:
                if uuid_of(gpu) in look.snapshot.unasked_gpus or gpu.bus_id in look.snapshot.unasked_gpus:
                    yield _hang(look, gpu, "hung earlier in this run, and nothing was done about it since")
                else:
                    yield Gap(f"GPU {gpu.index} was not asked: {gpu.detail or 'no reason given'}")
            case Condition.LOST:
                says = "is lost: it does not answer on its bus"
                yield on_gpu("gpu-lost", gpu, says, _loss(look), *_said(look, gpu))
            case Condition.FAILS:
                yield from _fails(look, gpu)


def _loss(look: Look) -> Scope | None:
    """What brings back the GPUs that are off their bus."""
    lost = {g.bus_id for g in look.gpus if g.condition is Condition.LOST}
    return cure_of_loss(look, len(lost | {e.bus_id for e in look.faults if e.code == 79}))


def _hang(look: Look, gpu: Gpu, says: str) -> Finding | Watch:
    """A guest reboot or a reset waits for the same firmware: only the device's own reset at VM stop and start helps.

    Right after a boot the driver still brings its GPUs up, one after the other, and whoever asks waits for it: what
    did not answer then is asked once more when that time is over.
    """
    said, key = _said(look, gpu), f"hang:{uuid_of(gpu)}"
    finding = on_gpu("nvml-hang", gpu, says, Scope.VM, *said)
    waits = BOOT_S if gpu.condition is Condition.HANGS else BOOT_S + ASKED_AGAIN_S if key in look.past.anchors else 0.0
    return finding if said or look.uptime_s >= waits else watch(key, 0, 1, waits, finding)


def _fails(look: Look, gpu: Gpu) -> Signs:
    """Another NVML error: it may be ours (no permission), and a GPU may come up late."""
    if any(word in gpu.detail.lower() for word in ("permission", "not supported", "denied")):
        yield Gap(f"GPU {gpu.index} may not be asked: {gpu.detail}")
        return
    broken = [e for e in of_kind(look.events, "init-failed") if e.bdf == gpu.bus_id]
    if broken:
        finding = on_gpu(
            "gpu-init-failed", gpu, "could not be brought up by the driver", _init_cure(look, gpu), broken[-1].msg
        )
    else:
        says = f"answers the driver with an error: {gpu.detail or 'unknown'}"
        finding = on_gpu("gpu-fails", gpu, says, Scope.GPU, *_said(look, gpu))
    yield watch(f"fails:{uuid_of(gpu)}", 0, 1, look.ripens(), finding)


def _init_cure(look: Look, gpu: Gpu) -> Scope:
    """Not since the driver came in: a later modprobe brought up what that of the boot had not (nvtrust issue 128).

    What came up and fails now, or what its bus gave up, needs the reset that a VM's stop and start brings.
    """
    told = events(look.kernel)
    loaded = last_load(told)
    first = next((e.usec for e in of_kind(told, "init-failed") if e.bdf == gpu.bus_id and e.usec >= loaded), None)
    gave_up = of_kind(told, "pci-not-ready", "pci-d3cold")
    young = first is not None and first - loaded < BOOT_S * 1e6
    return Scope.DRIVER if young and not gave_up else Scope.VM


def recovery(look: Look) -> Signs:
    """What the driver and the kernel log ask for on a GPU, one verdict each, contradictions as evidence."""
    events, loss = look.faults, _loss(look)
    for gpu in look.gpus:
        if gpu.condition in (Condition.LOST, Condition.HANGS, Condition.NOT_ASKED):
            continue
        own = tuple(e for e in events if e.bus_id == gpu.bus_id)
        finding = _verdict(gpu, own, loss)
        if finding is not None:
            yield finding
    known = {gpu.bus_id for gpu in look.gpus}
    for bus_id in dict.fromkeys(e.bus_id for e in events if e.code == 79 and e.bus_id not in known):
        yield Finding("gpu-lost", f"the GPU at {bus_id} has fallen off its bus (Xid 79)", loss, bus_id, ())


def _verdict(gpu: Gpu, own: tuple[Fault, ...], loss: Scope | None) -> Finding | None:
    said = tuple(_words(e) for e in own)
    if any(e.code == 79 for e in own):
        action = gpu.recovery_action
        doubt = (f"the driver asks for {action.value.name}",) if isinstance(action, Known) and action.value else ()
        return on_gpu("gpu-lost", gpu, "has fallen off its bus (Xid 79)", loss, *said, *doubt)
    if any(e.code == 64 for e in own):
        return on_gpu(
            "row-remap-failed", gpu, "could not remap bad memory (Xid 64): take it out of service", None, *said
        )
    by_driver = _by_driver(gpu, said)
    if by_driver is not None:
        return by_driver
    if gpu.condition is Condition.RESET_REQUIRED:
        return on_gpu("reset-required", gpu, "needs a reset, says the driver", Scope.GPU, *said)
    if isinstance(gpu.recovery_action, Known):
        return None  # the driver's word of now, NONE, outranks older lines of its log
    return _by_log(gpu, own, said)


def _by_driver(gpu: Gpu, said: tuple[str, ...]) -> Finding | None:
    if not isinstance(gpu.recovery_action, Known) or gpu.recovery_action.value is RecoveryAction.NONE:
        return None
    action = gpu.recovery_action.value
    says = f"needs: {action_words(action)}, says the driver"
    return on_gpu(action_signal(action), gpu, says, ACTION_CURES[action], *said)


def _by_log(gpu: Gpu, own: tuple[Fault, ...], said: tuple[str, ...]) -> Finding | None:
    """Without field 230: the last Xid 154 of the GPU, which also takes back what came before it, else the table."""
    last = next((e for e in reversed(own) if e.action is not None), None)
    later = own
    if last is not None and last.action is not None:
        if last.action is not RecoveryAction.NONE:
            says = f"needs: {action_words(last.action)} (Xid 154)"
            return on_gpu("recovery-action", gpu, says, ACTION_CURES[last.action], *said)
        later = own[own.index(last) + 1 :]
    verdicts = [(e, cure(e.code, e.text)) for e in later if is_fault(e.code, e.text)]
    if not verdicts:
        return None
    event, scope = max(verdicts, key=lambda pair: 99 if pair[1] is None else int(pair[1]))
    name = XIDS[event.code].note.split(";")[0]
    return on_gpu("xid", gpu, f"reported Xid {event.code}: {name}", scope, *said)


def _words(event: Fault) -> str:
    return f"Xid {event.code} at {event.usec / 1e6:.0f} s: {event.text[:160]}"


def _said(look: Look, gpu: Gpu) -> tuple[str, ...]:
    return tuple(_words(e) for e in look.faults if e.bus_id == gpu.bus_id)[-5:]


def reset_hint(look: Look) -> Signs:
    """The driver's log says that a GPU needs a reset, without saying which: evidence for a gap, not for an act."""
    named = {e.msg for e in of_kind(look.events, "rpc-limited") if e.bdf}
    hints = [line.text for line in look.news if _HINT.search(line.text) and line.text not in named]
    if hints and look.gpus and not any(isinstance(g.recovery_action, Known) for g in look.gpus):
        yield Gap(f"the driver's log asks for a reset and does not say of which GPU: {hints[-1][:120]}")


def remapping(look: Look) -> Signs:
    """Bad memory rows: a failed remap is for a person, a pending one takes effect with the next reset."""
    for gpu in look.gpus:
        if gpu.remap_failed == Known(True):
            says = "could not remap bad memory: take it out of service"
            yield on_gpu("row-remap-failed", gpu, says, None)
        elif gpu.remap_pending == Known(True):
            says = "has a row remap pending, which its next reset applies"
            yield on_gpu("row-remap-pending", gpu, says, Scope.GPU)
        elif gpu.pages_pending == Known(True):
            yield on_gpu("row-remap-pending", gpu, "has pages to retire, which its next reset does", Scope.GPU)


def fabric(look: Look) -> Signs:
    """A GPU that belongs to an NVLink fabric can't be used before that is made: CUDA answers 802.

    It takes minutes after a boot (nvrc issue 159). What works on the GPU proves that it is usable all the same.
    """
    for gpu in look.gpus:
        state = gpu.fabric.value if isinstance(gpu.fabric, Known) else ""
        sick = state in ("not started", "in progress") or state.startswith("failed")
        used = bool(look.listed(gpu)) or any(not group.protected for group in look.groups_on(uuid_of(gpu)))
        if gpu.condition is Condition.ANSWERS and sick and not used:
            says = f"is not ready for CUDA: its NVLink fabric is {state}"
            if state.startswith("failed"):
                hint = "reset all GPUs between the fabric manager's stop and start (nccl issue 1488)"
                finding = on_gpu("fabric-broken", gpu, says, Scope.GPU, hint)
            else:
                finding = on_gpu("fabric-not-ready", gpu, says, None, "look at the fabric manager")
            yield watch(f"fabric:{uuid_of(gpu)}", 0, 1, look.ripens(), finding)


def switches(look: Look) -> Signs:
    """NVSwitch errors in the guest's own log: the fabric guide asks for a VM restart, or for the whole fabric."""
    found = [e for e in look.events if isinstance(e, SxidEvent) and "Non-fatal" not in e.msg]
    fabric = [e for e in found if e.sxid in SXID_RESET_FABRIC]
    restart = [e for e in found if e.sxid in SXID_RESTART_VM]
    if fabric:
        says = f"NVSwitch {fabric[-1].bdf} reports SXid {fabric[-1].sxid}: the whole fabric must be reset"
        yield Finding("sxid", says, None, None, tuple(e.msg[:160] for e in fabric[-3:]))
    elif restart:
        says = f"NVSwitch {restart[-1].bdf} reports SXid {restart[-1].sxid}"
        yield Finding("sxid", says, Scope.VM, restart[-1].bdf, tuple(e.msg[:160] for e in restart[-3:]))
