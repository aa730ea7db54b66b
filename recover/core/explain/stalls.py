"""Tasks and CPUs that do not get on, by the head and the trace that the kernel logs of each: who waits for what."""

from __future__ import annotations

import re

from recover.core.explain.lines import Line, continued
from recover.core.explain.source import is_advice
from recover.core.explain.told import Told
from recover.core.kinship import STORAGE
from recover.core.signals.driver import TRACE_LINES
from recover.model.verdict import Scope

_HUNG = re.compile(
    r"INFO: task (?P<name>.{1,64}?):(?P<pid>\d{1,10}) blocked for more than \d+ seconds|^blocked for more than$"
)
_SHOWN = re.compile(r"task:(?P<name>.{1,64}?) +state:D .{0,60}?(?<!p)pid: ?(?P<pid>\d{1,10})\b")
_LOCKED = re.compile(
    r"BUG: soft lockup(?! - CPU#(?!\d))|^soft lockup$|hard LOCKUP on cpu"
    r"|rcu.*(?:self-)?detected (?:expedited )?stalls?\b"
)
_FRAME = re.compile(r"(?:^|\s|\? )(?P<function>[A-Za-z_][\w.]{2,60})\+0x[0-9a-f]+/0x[0-9a-f]+")
# Of a frame: a list of the modules that are loaded names them all.
_NVIDIA = re.compile(
    r"\+0x[0-9a-f]+/0x[0-9a-f]+.*\[nvidia(?:_\w+)?[\s\]]|\b(?:uvm|nvidia)_\w*\+0x[0-9a-f]+/0x[0-9a-f]+"
)
_DISKS = re.compile(
    r"^(?:jbd2|xfsaild|txg_sync|kworker/\S*flush|nfsd|nfs|lockd|mount\.|umount|btrfs|z_|dm_|md\d|ceph|rbd|loop)"
)


_CRASHED = re.compile(r"BUG: (?:kernel NULL pointer|unable to handle)|general protection fault|Oops: |kernel BUG at ")
_UNLOADS = re.compile(r"^(?:modprobe|rmmod)$")
_ENDING = re.compile(r"^(?:modprobe|rmmod|reboot|poweroff|shutdown|systemd-shutdow)$")


def stalls(lines: tuple[Line, ...], claimed: frozenset[int]) -> tuple[list[Told], frozenset[int]]:
    """Findings, and the lines that were read here."""
    found, used = [], set()
    for at, line in enumerate(lines):
        if line.typed or line.number in claimed:
            continue
        hung = _hung_head(lines, at)
        if hung is not None:
            found.append(_hung(hung, line, _trace(lines, at, hung["pid"])))
            used.add(line.number)
        elif ("lockup" in line.after or "LOCKUP" in line.after or "stall" in line.after) and _is_locked(line.text):
            found.append(_locked(line, _trace(lines, at)))
            used.add(line.number)
        elif _CRASHED.match(line.text) and any(_NVIDIA.search(text) for text in _trace(lines, at)):
            says = "the NVIDIA driver made an error in the kernel: what it held then is never let go"
            fact = "Linux oops: the task ends with its locks held, only a new kernel frees them"
            found.append(Told("driver-fails", says, Scope.GUEST, fact, line.number, line.shown))
            used.add(line.number)
        elif "state:D" in line.text and (shown := _SHOWN.match(line.text)) is not None:
            trace = _trace(lines, at, shown["pid"])
            if any(_NVIDIA.search(text) for text in trace):
                found.append(_hung(shown, line, trace))
                used.add(line.number)
    return found, frozenset(used)


def _hung_head(lines: tuple[Line, ...], at: int) -> re.Match[str] | None:
    text = lines[at].text
    if "blocked for more than" in text and (own := _HUNG.search(text)):
        return own
    if "INFO: task " not in text:
        return None
    return next((match for whole in continued(lines, at) if (match := _HUNG.search(whole))), None)


def _trace(lines: tuple[Line, ...], at: int, pid: str | None = None) -> list[str]:
    """What follows a head, up to the next one of another task: the stack that belongs to it."""
    rest = []
    for line in lines[at + 1 : at + 1 + TRACE_LINES]:
        shown = _SHOWN.match(line.text)
        other = shown is not None and shown["pid"] != pid
        if line.typed or other or _HUNG.search(line.text) or _LOCKED.search(line.text):
            break
        rest.append(line.text)
    return rest


def _hung(match: re.Match[str], line: Line, trace: list[str]) -> Told:
    name, pid = match["name"] or "a task", match["pid"] or ""
    who = f"pid {pid} ({name})" if pid else name
    frames = [f["function"] for text in trace if (f := _FRAME.search(text))]
    driver = any(_NVIDIA.search(text) for text in trace)
    subject = f"pid {pid}" if pid else ""
    if not driver and (_DISKS.match(name) or any(STORAGE.search(f) for f in frames)):
        says = f"{who} waits for storage that does not answer: no step here cures that"
        fact = "Linux hung-task watchdog: its stack or name is of a file system"
        return Told("storage-hang", says, None, fact, line.number, line.shown, subject)
    if _ENDING.match(name) and (driver or not _UNLOADS.match(name)):
        says = f"{who} hangs in the kernel: neither a reboot from inside nor unloading the driver comes to its end"
        fact = "the driver's shutdown waits for a dead GPU (open-gpu-kernel-modules 1027, 1252): stop and start the VM"
        return Told("stuck-process", says, Scope.VM, fact, line.number, line.shown, subject)
    where = " inside the NVIDIA driver" if driver else ""
    says = f"{who} waits in the kernel{where} and does not get on: no signal reaches it"
    fact = "Linux hung-task watchdog; a task in state D ends only when what it waits for answers (gpud 117)"
    return Told("stuck-process", says, Scope.GUEST, fact, line.number, line.shown, subject)


def _is_locked(text: str) -> bool:
    match = _LOCKED.search(text)
    return match is not None and not is_advice(text, match.start())


def _locked(line: Line, trace: list[str]) -> Told:
    where = " inside the NVIDIA driver" if any(_NVIDIA.search(text) for text in (line.text, *trace)) else ""
    says = f"a CPU of this kernel is locked up{where}; unless it stands alone and passed, only the VM's restart helps"
    fact = "nothing from inside the guest helps then, not even a reset (open-gpu-kernel-modules issue 1223)"
    return Told("kernel-lockup", says, Scope.VM, fact, line.number, line.shown)
