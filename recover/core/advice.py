"""The exact next command for a person, for each way that a run can stop without success."""

from __future__ import annotations

from recover.core.history import History
from recover.model.act import Due, StartVm
from recover.model.record import EndKind
from recover.model.verdict import Scope


def next_command(history: History, kind: EndKind) -> str:
    """One command (or an empty string): what a person types next."""
    target = history.opened.target if history.opened is not None else "TARGET"
    for owed in history.due(Due.AT_ONCE):
        if isinstance(owed.duty.do, StartVm):
            return f"qm start {owed.duty.do.vm.vmid}    # on its Proxmox node: we stopped this VM and owe its start"
    match kind:
        case EndKind.HEALTHY | EndKind.RECOVERED | EndKind.PLANNED:
            return ""
        case EndKind.EXHAUSTED:
            return _above(history, target)
        case EndKind.BLOCKED | EndKind.HELD:
            return f"gpu-recover plan {target}"
        case EndKind.OUT_OF_TIME | EndKind.INTERRUPTED:
            return f"gpu-recover {target}"
        case EndKind.CANNOT_TELL:
            return f"gpu-recover probe {target}"
        case EndKind.NEEDS_HUMAN:
            return f"gpu-recover plan {target}"
    return ""


def _above(history: History, target: str) -> str:
    top = max((a.scope for a in history.attempts), default=Scope.PROCESS)
    if top < Scope.GUEST:
        return f"gpu-recover {target} --max-scope vm --approve vm"
    return "reboot the Proxmox node when its other guests allow it; if the card is still gone, cut its power for 30 s"
