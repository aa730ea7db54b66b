"""`power-cycle-vm` and `reset-vm`: a VM is stopped only after it is proved that it can be started again.

The Proxmox API resets no PCI device; stopping and starting a VM is what resets the devices passed through to it
(qemu-server, PCI.pm). A `reset` keeps QEMU and its pinned memory: it cures what a reboot of the guest cures, no more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recover.model.act import Act, AwaitBoot, Pass, Plan, Refuse, ResetVm, ShutdownVm, StartVm, StopVm, SyncDisks, VmRef
from recover.model.guest import Guest
from recover.model.host import Host, PciFunction
from recover.model.hypervisor import AgentState, GuestKind, Hypervisor, VmConfig
from recover.model.ladder import Param, Params, Step
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.autostart import PARAM, held_back
from recover.steps.common import line, number
from recover.steps.startable import startable


def start_timeout_s(memory_mib: int, hostpci_count: int, nics: int, hugepages: str = "") -> int:
    """How long PVE itself would let the start take: pinning RAM for passed-through devices is slow.

    qemu-server, QemuServer/Helpers.pm, config_aware_timeout: 512 GiB with a GPU and one NIC: 2053 s.
    """
    seconds = memory_mib // 1024 if memory_mib > 30720 else 30
    if hostpci_count:
        seconds *= 4
    if hugepages:
        seconds = max(seconds, 150)
    return seconds + 5 * nics


def vm_ref(hypervisor: Hypervisor) -> VmRef:
    config = hypervisor.config
    uuid = config.value.smbios_uuid if isinstance(config, Known) else ""
    return VmRef(hypervisor.cluster, hypervisor.vmid, uuid, hypervisor.name)


def gpus_expected(snapshot: Snapshot) -> int:
    """How many GPUs must be there after a boot: as configured, else as learned, else as seen."""
    expected = dict(snapshot.target.expect).get("gpus")
    if expected is not None:
        return expected
    if snapshot.baseline is not None:
        return len(snapshot.baseline.gpus)
    if isinstance(snapshot.guest, Guest):
        seen = (snapshot.guest.gpus, snapshot.guest.pci_gpus)
        return max((len(r.value) for r in seen if isinstance(r, Known)), default=0)
    return 0


def _await_boot(snapshot: Snapshot, params: Params) -> Act:
    boot_id = snapshot.guest.identity.boot_id if isinstance(snapshot.guest, Guest) else ""
    return Act(AwaitBoot(boot_id, gpus_expected(snapshot), number(params, "boot_deadline")))


def _sync(snapshot: Snapshot) -> list[Act]:
    return [Act(SyncDisks(), must=False)] if isinstance(snapshot.guest, Guest) else []


def _held_back(snapshot: Snapshot, params: Params) -> tuple[list[Act], list[str]]:
    """A guest that is stopped from outside may be too sick to obey: what it doesn't suspend hinders nothing."""
    if params.get("suspend_autostart") is not True or not isinstance(snapshot.guest, Guest):
        return [], []
    return held_back(snapshot, must=False)


def running(snapshot: Snapshot) -> Hypervisor | Pass | Refuse:
    """The running guest's record, or why nothing can be done to it."""
    hypervisor = snapshot.hypervisor
    if not isinstance(hypervisor, Hypervisor):
        return Pass(f"the Proxmox API can't be asked: {hypervisor.detail or hypervisor.why}")
    if hypervisor.status != "running":
        last = hypervisor.tasks.value[:1] if isinstance(hypervisor.tasks, Known) else ()
        by = f" (last task: {last[0].type} by {last[0].user})" if last else ""
        kind, tool = ("container", "pct") if hypervisor.kind is GuestKind.CONTAINER else ("VM", "qm")
        why = f"{kind} {hypervisor.vmid} is {hypervisor.status} and not by us{by}"
        return Refuse("vm-stopped", why, f"{tool} start {hypervisor.vmid} on {hypervisor.node}, if it should run")
    return hypervisor


@dataclass(frozen=True, slots=True)
class Cycle:
    """A stop and a start with all that belongs to them; what is done while the VM is stopped goes between."""

    down: tuple[Act, ...]
    up: tuple[Act, ...]
    words: tuple[str, ...]
    hypervisor: Hypervisor
    config: VmConfig


def off_the_bus(snapshot: Snapshot) -> tuple[str, ...]:
    """The VM's functions that neither Proxmox nor the node's own shell finds on the node's bus."""
    seen = snapshot.hypervisor
    if not isinstance(snapshot.host, Known) or not isinstance(seen, Hypervisor) or not isinstance(seen.config, Known):
        return ()
    host = snapshot.host.value
    gone = (a for d in seen.config.value.hostpci if d.present == Known(False) and d.choices == 1 for a in d.addresses)
    return tuple(a for a in dict.fromkeys(gone) if host.functions and host.function(a) is None)


def given_up(host: Host, functions: Iterable[PciFunction]) -> Refuse | None:
    """A VM with such a device would not start again: `stuck in D3` at its next start (vm-curator issue 60)."""
    for function in functions:
        if function.dead:
            why = f"{function.address} is lost to {host.node}: {function.gave_up}"
            return Refuse("device-dead", why, f"reboot {host.node}; if it is still gone, cut its power for 30 s")
    return None


def _dead_or_silent(snapshot: Snapshot, made: Cycle) -> Pass | Refuse | None:
    """With a function that reads all ones on the node no VM starts: vfio finds such a device inaccessible."""
    if not isinstance(snapshot.host, Known):
        return None
    host = snapshot.host.value
    own = {a for device in made.config.hostpci for a in device.addresses}
    functions = [f for f in host.functions if f.address in own]
    refusal = given_up(host, functions)
    silent = [f.address for f in functions if f.answers == Known(False)]
    if refusal is not None or not silent:
        return refusal
    return Pass(f"{', '.join(silent)} reads all ones on the node: the VM would not start before it answers there")


def cycle(snapshot: Snapshot, params: Params, sought: tuple[str, ...] = ()) -> Cycle | Pass | Refuse:
    """How this VM is stopped and started, or why it isn't. `sought`: functions that are found again before that."""
    hypervisor = running(snapshot)
    if not isinstance(hypervisor, Hypervisor):
        return hypervisor
    allowed = params.get("apply_pending") is True
    refusal = startable(hypervisor, apply_pending=allowed, sought=frozenset(sought))
    if refusal is not None:
        return refusal
    assert isinstance(hypervisor.config, Known)  # startable refuses otherwise
    config = hypervisor.config.value
    vm = vm_ref(hypervisor)
    timeout = start_timeout_s(config.memory_mib, len(config.hostpci), config.nics, config.hugepages)
    down = number(params, "shutdown_first")
    asked = down > 0 and _can_shut_down(snapshot, hypervisor)
    acts, kept = _held_back(snapshot, params)
    acts += _sync(snapshot)
    if asked:
        acts.append(Act(ShutdownVm(vm, down, timeout), must=False))
    acts.append(Act(StopVm(vm, number(params, "stop_deadline"), timeout, config.memory_mib)))
    up = (Act(StartVm(vm, timeout)), _await_boot(snapshot, params))
    words = (*kept, *_words(hypervisor, config, down if asked else 0.0, timeout))
    return Cycle(tuple(acts), up, words, hypervisor, config)


def _power_cycle(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    if not findings:
        return Pass("no finding asks for it")
    gone = off_the_bus(snapshot)
    if gone:
        return Pass(f"{', '.join(gone)} isn't on the node's bus: the VM would not start before it is found again there")
    made = cycle(snapshot, params)
    if not isinstance(made, Cycle):
        return made
    return _dead_or_silent(snapshot, made) or line((*made.down, *made.up), made.words)


def _can_shut_down(snapshot: Snapshot, hypervisor: Hypervisor) -> bool:
    """A guest that neither answers us nor its hypervisor doesn't hear ACPI either."""
    return isinstance(snapshot.guest, Guest) or hypervisor.agent == Known(AgentState.ANSWERS)


def _words(hypervisor: Hypervisor, config: VmConfig, down: float, timeout: int) -> list[str]:
    name = f"VM {hypervisor.vmid} ({hypervisor.name or config.name}) on {hypervisor.node}"
    words = [f"{name} is asked to shut down within {down:.0f} s, then stopped" if down else f"{name} is stopped"]
    words.append(f"its {len(config.hostpci)} passed-through devices are reset by Proxmox and the kernel")
    words.append(f"it is started again: with {config.memory_mib // 1024} GiB that may take up to {timeout} s")
    return words


def _reset(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    if not findings:
        return Pass("no finding asks for it")
    hypervisor = running(snapshot)
    if not isinstance(hypervisor, Hypervisor):
        return hypervisor
    held, kept = _held_back(snapshot, params)
    acts = [*held, *_sync(snapshot), Act(ResetVm(vm_ref(hypervisor))), _await_boot(snapshot, params)]
    words = f"VM {hypervisor.vmid} ({hypervisor.name}) on {hypervisor.node} is reset like by its reset button"
    return line(acts, [*kept, words, "QEMU and its devices stay as they are"])


_VM = frozenset({GuestKind.VM})
_API = frozenset({Channel.HYPERVISOR})
BOOT = Param("boot_deadline", 900.0, "how long the boot and its GPUs may take", unit="s", least=30, most=7200)
CYCLE = (
    Param("shutdown_first", 180.0, "how long the guest may take to shut down; 0: it isn't asked", "s", 0, 3600),
    Param("stop_deadline", 180.0, "how long the stop may take; PVE itself takes up to 131 s", "s", 180, 3600),
    BOOT,
    PARAM,
    Param("apply_pending", False, "go on although the stop applies pending changes"),
)

STEPS = (
    Step(
        name="reset-vm",
        scope=Scope.VM,
        reach=Scope.GUEST,
        via=_API,
        kinds=_VM,
        plan=_reset,
        params=(BOOT, PARAM),
        doc="Resets the VM through the API (QMP system_reset): same QEMU process, no reset of devices by Proxmox.",
    ),
    Step(
        name="power-cycle-vm",
        scope=Scope.VM,
        reach=Scope.VM,
        via=_API,
        kinds=_VM,
        plan=_power_cycle,
        params=CYCLE,
        doc="Shuts down or stops the VM through the API, proves it stopped, starts it: the devices are reset by that.",
    ),
)
