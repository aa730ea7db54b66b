"""What a person types next where nothing from here cures it: a line for each kind of finding, its names filled in.

Where no command mends it the line says what to read and who decides. It never names the command that was just run.
"""

from __future__ import annotations

from recover.core.history import History
from recover.model.act import Pass
from recover.model.hypervisor import GuestKind
from recover.model.ladder import RungOption
from recover.model.record import Vitals
from recover.model.verdict import Finding

_FILES = "on {target}: findmnt -t nfs,nfs4,ceph,lustre,cifs,fuse    # its file server must come back"
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
    "storage-hang": _FILES,
    "unkillable-process": _FILES,  # a person's only where the process waits for a network file system
    "guest-not-up": "on {node}: {console} {vmid}    # or its console in the web interface: what its boot waits for",
    "crash-loop": "whoever owns that server corrects its launch; would it fit: "
    "gpu-recover preflight {target} -- LAUNCH",
    "sxid": "on {target}: dmesg | grep -i sxid; nvidia-smi nvlink -s"
    "    # whoever runs the NVLink fabric resets all of it",
    "recovery-action": "on {target}: nvidia-smi -q | grep -i 'recovery action'; systemctl status nvidia-imex"
    "    # an IMEX domain is recovered by whoever runs it",
    "xid": "on {target}: dmesg | grep -i xid"
    "    # the card itself: whoever has the hardware checks its power, or replaces it",
    "gpu-missing": "on {node}: qm config {vmid} | grep hostpci",
}


def line_for(history: History, target: str) -> str:
    """The line for what the last look calls a person's, that of the whole target first."""
    if history.last is None:
        return f"gpu-recover probe {target}"
    found = sorted(history.last.diagnosis.incurable, key=lambda f: f.where is not None)
    if found and found[0].signal == "vm-stopped" and "pci-device-gone" in signals(history):
        found = [f for f in history.last.diagnosis.findings if f.signal == "pci-device-gone"]
    tool = "pct" if _is_container(history) else "qm"
    for finding in found:
        line = _filled(finding, history.last.vitals, target, tool)
        if line:
            return line
    if any(f.signal in _LINES for f in found):
        return f"gpu-recover doctor {target}    # Proxmox could not be asked, and its node is where this is mended"
    return f"gpu-recover probe {target}    # all that was seen, for whoever decides"


def own_task(upid: str, target: str) -> str:
    """A task of ours that has not ended: only its node knows what it waits for. A UPID names its node first."""
    node = upid.split(":")[1] if upid.count(":") > 1 else "its node"
    return f"on {node}: pvenode task log {upid}    # once it has ended: gpu-recover {target}"


def gpus_of_container(history: History) -> str:
    """Where its restart did not bring its GPUs back: its numbers and the node's must be compared."""
    last = history.last
    found = () if last is None else last.diagnosis.findings
    lost = [f for f in found if f.signal == "container-lost-gpus"]
    return _filled(lost[0], last.vitals, "", "pct") if lost and last is not None else ""


def _is_container(history: History) -> bool:
    """By what its ladder says: steps are of one kind of guest each."""
    for option in history.last.options if history.last is not None else ():
        if not_for(GuestKind.CONTAINER, option):
            return True
        if option.step == "restart-container":
            return not not_for(GuestKind.VM, option)
    return False


def not_for(kind: GuestKind, option: RungOption) -> bool:
    return isinstance(option.offer, Pass) and option.offer.why == f"not for a {kind}"


def signals(history: History) -> set[str]:
    return {f.signal for f in history.last.diagnosis.findings} if history.last is not None else set()


def _filled(finding: Finding, seen: Vitals, target: str, tool: str) -> str:
    line = _LINES.get(finding.signal, "")
    if not (seen.node and seen.vmid) and ("{node}" in line or "{vmid}" in line):
        return ""
    console = "pct console" if tool == "pct" else "qm terminal"
    return line.format(node=seen.node, vmid=seen.vmid, target=target, tool=tool, console=console)
