"""The exact next command for a person, for each way that a run can stop without success."""

from __future__ import annotations

import re

from recover.core.history import History
from recover.core.look import ONLY_NODE
from recover.core.next_by_hand import gpus_of_container, line_for, not_for, own_task, signals
from recover.model.act import Due, Pass, StartVm
from recover.model.hypervisor import GuestKind
from recover.model.ladder import RungOption
from recover.model.record import EndKind, Vitals
from recover.model.snapshot import Channel
from recover.model.verdict import Scope
from recover.steps.pci import by_hand

_REBOOT = "reboot the Proxmox node when its other guests allow it; if the card is still gone, cut its power for 30 s"


def next_command(history: History, kind: EndKind) -> str:
    """One command (or an empty string): what a person types next."""
    target = history.target
    for owed in history.due(Due.AT_ONCE):
        if isinstance(owed.duty.do, StartVm):
            vm = owed.duty.do.vm
            what, tool = ("container", "pct") if vm.container else ("VM", "qm")
            if vm.container and history.last is not None and ":vzstop:" in history.last.busy:
                return f"pct start {vm.vmid}    # on its node, once our stop has ended; {_held_up(vm.vmid)}"
            return f"{tool} start {vm.vmid}    # on its Proxmox node: we stopped this {what} and owe its start"
    match kind:
        case EndKind.HEALTHY | EndKind.RECOVERED | EndKind.PLANNED:
            return ""
        case EndKind.EXHAUSTED:
            return _above(history, target)
        case EndKind.BLOCKED | EndKind.HELD:
            return f"gpu-recover plan {target}"
        case EndKind.OUT_OF_TIME | EndKind.INTERRUPTED:
            return f"gpu-recover {target}"
        case EndKind.CANNOT_TELL if history.last is not None and history.last.mark is None:
            return f"gpu-recover doctor {target}    # where the way to the guest ends"
        case EndKind.CANNOT_TELL:
            return f"gpu-recover probe {target}"
        case EndKind.NEEDS_HUMAN:
            if history.last is not None and history.last.busy:
                return own_task(history.last.busy, target)
            return _REBOOT if _needs_node(history) else line_for(history, target)
    return ""


_OPTION = re.compile(r"--(?:evict|trust-vmid|apply-pending|take-over|approve [a-z-]+)")


def lifted(history: History, scope: Scope, lift: str) -> str:
    """How a refusal is lifted; where an option does it, with the whole command, so that nobody has to compose it."""
    options = list(dict.fromkeys(_OPTION.findall(lift)))
    if not options or "gpu-recover " in lift:
        return lift
    if scope > Scope.GPU and not any(option.startswith("--approve") for option in options):
        options.append(f"--approve {scope.word}")
    return f"{lift}: gpu-recover {history.target} {' '.join(options)}"


def _held_up(vmid: int) -> str:
    """pve-container waits for `lxc-stop --kill` without a limit: a process that sleeps in the kernel holds it up."""
    shown = f"ps -eo pid,stat,wchan:30,comm,cgroup | grep -E 'lxc[^ ]*[./]{vmid}(/|$)'"
    return f"what it waits for: {shown} (state D: only that it ends, or a reboot of the node, helps)"


_ONLY_POWER = frozenset({"pci-device-dead", "leftover-qemu"})


def _needs_node(history: History) -> bool:
    found = history.last.diagnosis.findings if history.last is not None else ()
    return any(f.signal in _ONLY_POWER or ONLY_NODE in f.evidence for f in found)


def _above(history: History, target: str) -> str:
    if _needs_node(history):
        return _REBOOT
    if line := gpus_of_container(history):
        return line
    if history.last is not None and any(_shut(option) for option in history.last.options):
        return f"gpu-recover doctor {target}    # Proxmox could not be asked, and a rung needs it"
    if history.last is not None and any(not_for(GuestKind.CONTAINER, option) for option in history.last.options):
        return f"gpu-recover {target} --playbook container --approve vm"
    top = max((a.scope for a in history.attempts), default=Scope.PROCESS)
    if top < Scope.GUEST and "pci-device-gone" not in signals(history):
        return f"gpu-recover {target} --max-scope vm --approve vm"
    cycled = any(a.scope is Scope.VM and a.outcome is not None and a.outcome.ok for a in history.attempts)
    useful = cycled or "pci-device-gone" in signals(history)
    if history.last is None or top is Scope.HOST_DEVICE or not history.last.vitals.devices or not useful:
        return _REBOOT
    if Channel.HOST.value in history.last.diagnosis.channels:
        return f"gpu-recover {target} --playbook lost-gpu --max-scope host-device --approve host-device"
    return _on_node(history.last.vitals)


def _shut(option: RungOption) -> bool:
    return isinstance(option.offer, Pass) and f"no {Channel.HYPERVISOR} " in option.offer.why


def _on_node(seen: Vitals) -> str:
    """No root shell is configured: the very commands, for who has one."""
    commands = by_hand(seen.vmid, seen.devices, seen.start_timeout_s)
    return f"as root on {seen.node}: {commands}    # else {_REBOOT}"
