"""What a person types next where nothing from here cures it: a line for each kind of finding, its names filled in.

Where a name is not known, or the finding has no line, there is none, and the caller says what else to look at.
"""

from __future__ import annotations

from recover.core.history import History
from recover.model.act import Pass
from recover.model.hypervisor import GuestKind
from recover.model.record import Vitals
from recover.model.verdict import Finding

_LINES: dict[str, str] = {
    "vm-stopped": "on {node}: {tool} start {vmid}    # if it should run",
    "vm-paused": "on {node}: qm resume {vmid}    # if whoever paused it agrees",
    "vm-io-error": "on {node}: pvesm status; once its storage has room again: qm resume {vmid}",
    "pci-device-gone": "on {node}: echo 1 > /sys/bus/pci/rescan; once the device is back: {tool} start {vmid}",
    "driver-not-loaded": "on {target}: dkms status; dmesg | grep -iE 'nvrm|nvidia|module.* rejected'",
    "driver-missing": "on {target}: ldconfig -p | grep libnvidia-ml",
    "driver-mismatch": "on {target}: cat /proc/driver/nvidia/version; ldconfig -p | grep libnvidia-ml"
    "    # its running jobs still work",
    "container-lost-gpus": "on {node}: nvidia-smi; nvidia-modprobe -u -c 0; grep nvidia /proc/devices; "
    "grep -E 'devices.allow|^dev' /etc/pve/lxc/{vmid}.conf; once they agree: pct reboot {vmid}",
    "fabric-not-ready": "on {target}: systemctl status nvidia-fabricmanager; journalctl -b -u nvidia-fabricmanager",
    "row-remap-failed": "on {target}: nvidia-smi -q -d ROW_REMAPPER    # then take that GPU out of service",
    "storage-hang": "on {target}: findmnt -t nfs,nfs4,ceph,lustre,cifs,fuse    # its file server must come back",
    "gpu-missing": "on {node}: qm config {vmid} | grep hostpci",
}


def line_for(history: History, target: str) -> str:
    """The line for what the last look calls a person's, that of the whole target first; empty if there is none."""
    if history.last is None:
        return ""
    found = sorted(history.last.diagnosis.incurable, key=lambda f: f.where is not None)
    if found and found[0].signal == "vm-stopped" and "pci-device-gone" in _signals(history):
        found = [f for f in history.last.diagnosis.findings if f.signal == "pci-device-gone"]
    tool = "pct" if is_container(history) else "qm"
    for finding in found:
        line = _filled(finding, history.last.vitals, target, tool)
        if line:
            return line
    return ""


def gpus_of_container(history: History) -> str:
    """Where its restart did not bring its GPUs back: its numbers and the node's must be compared."""
    last = history.last
    found = () if last is None else last.diagnosis.findings
    lost = [f for f in found if f.signal == "container-lost-gpus"]
    return _filled(lost[0], last.vitals, "", "pct") if lost and last is not None else ""


def is_container(history: History) -> bool:
    """By what its ladder says: steps are of one kind of guest each."""
    for option in history.last.options if history.last is not None else ():
        other = option.offer.why if isinstance(option.offer, Pass) else ""
        if other == f"not for a {GuestKind.CONTAINER}":
            return True
        if option.step == "restart-container":
            return other != f"not for a {GuestKind.VM}"
    return False


def _signals(history: History) -> set[str]:
    return {f.signal for f in history.last.diagnosis.findings} if history.last is not None else set()


def _filled(finding: Finding, seen: Vitals, target: str, tool: str) -> str:
    line = _LINES.get(finding.signal, "")
    if not (seen.node and seen.vmid) and ("{node}" in line or "{vmid}" in line):
        return ""
    return line.format(node=seen.node, vmid=seen.vmid, target=target, tool=tool)
