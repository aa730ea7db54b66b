"""The kernel's log: one verdict a GPU, in the order of trust of `core.signals.driver`; stalls by their trace.

Xid 79 outranks the driver's own word, an Xid 64 is for a person, the last Xid 154 outranks the table, and takes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from recover.core.explain.lines import Line, continued
from recover.core.explain.told import Told
from recover.core.kinship import STORAGE
from recover.core.read.kernel_log import ActionEvent, Event, KernelEvent, SxidEvent, XidEvent, events
from recover.core.signals.driver import ACTION_CURES, TRACE_LINES
from recover.core.xid_table import SXID_RESET_FABRIC, SXID_RESTART_VM, XIDS
from recover.core.xids import cure, is_fault
from recover.model.gpu import RecoveryAction
from recover.model.memory import KernelLine
from recover.model.verdict import Scope

_CATALOGUE = "NVIDIA's Xid catalogue"
_BY_DRIVER = "the driver's own recovery action outranks any table of Xids (open-gpu-kernel-modules issue 1134)"


@dataclass(frozen=True, slots=True)
class _Seen:
    line: Line
    code: int
    text: str
    action: RecoveryAction | None = None


def kernel_told(lines: tuple[Line, ...], claimed: frozenset[int]) -> tuple[list[Told], frozenset[int]]:
    """Findings, and the lines that were read here."""
    gpus: dict[str, list[_Seen]] = {}
    switches: list[Told] = []
    loaded, mine = 0, set()
    for at, line in enumerate(lines):
        if line.typed or line.number in claimed:
            continue
        if "NVRM: loading NVIDIA UNIX" in line.after:
            loaded = line.usec or loaded
        elif "Xid (" in line.after:
            event = _event(lines, at)
            mine.add(line.number)
            if isinstance(event, SxidEvent):
                switches.extend(_switch(event, line))
            elif isinstance(event, (XidEvent, ActionEvent)):
                gpus.setdefault(event.bdf, []).append(_seen(event, line))
        elif "has fallen off the bus" in line.after:
            mine.update(_off_bus(gpus, line))
    told = [one for bdf, seen in gpus.items() for one in _verdicts(bdf, [s for s in seen if not _old(s.line, loaded)])]
    stalls, used = _stalls(lines, claimed)
    return [*told, *switches, *stalls], frozenset(mine) | used


def _old(line: Line, loaded: int) -> bool:
    """Whether the same kernel loaded the driver anew after this line."""
    return 0 < line.usec < loaded


def _event(lines: tuple[Line, ...], at: int) -> Event | None:
    """The event of a line, or of what it was before it was wrapped where it is not whole by itself."""
    own = _read(lines[at].after)
    if isinstance(own, (ActionEvent, SxidEvent)) or (isinstance(own, XidEvent) and own.msg and own.xid != 154):
        return own
    for text in continued(lines, at):
        whole = _read(text)
        if isinstance(whole, ActionEvent) or (isinstance(whole, XidEvent) and whole.msg and whole.xid != 154):
            return whole
    return own


def _read(text: str) -> Event | None:
    found = events((KernelLine(0, text),))
    return found[0] if found else None


def _seen(event: XidEvent | ActionEvent, line: Line) -> _Seen:
    if isinstance(event, ActionEvent):
        return _Seen(line, 154, "", event.after)
    return _Seen(line, event.xid, event.msg)


def _off_bus(gpus: dict[str, list[_Seen]], line: Line) -> set[int]:
    """The driver's line without an Xid counts as Xid 79; one without an address is left to the table."""
    event = _read(line.after)
    if not isinstance(event, KernelEvent) or event.kind != "off-bus" or not event.bdf:
        return set()
    gpus.setdefault(event.bdf, []).append(_Seen(line, 79, event.msg))
    return {line.number}


# ------------------------------------------------------------------------------------------------ one GPU


def _verdicts(bdf: str, seen: list[_Seen]) -> Iterator[Told]:
    for code, signal, scope, says in (
        (79, "gpu-lost", Scope.VM, "has fallen off its bus (Xid 79): no reset from inside the guest reaches it"),
        (64, "row-remap-failed", None, "could not remap bad memory (Xid 64): take it out of service, a reset hides it"),
    ):
        hit = next((s for s in seen if s.code == code), None)
        if hit is not None:
            fact = f"{_CATALOGUE}: {XIDS[code].name}"
            yield _told(signal, bdf, says, scope, fact, hit.line)
            return
    last = max((i for i, s in enumerate(seen) if s.action is not None), default=-1)
    action = seen[last].action if last >= 0 else None
    if action is not None and action is not RecoveryAction.NONE:
        signal = "reset-required" if action is RecoveryAction.GPU_RESET else "recovery-action"
        says = f"needs: {action.name.lower().replace('_', ' ')}, says the driver (Xid 154)"
        yield _told(signal, bdf, says, ACTION_CURES[action], _BY_DRIVER, seen[last].line)
        return
    yield from _by_table(bdf, seen[last + 1 :])


_CAUSE = re.compile(r"caused by previous Xid (\d{1,5})")


def _by_table(bdf: str, seen: list[_Seen]) -> Iterator[Told]:
    told: set[int] = set()
    for one in seen:
        cause = _CAUSE.search(one.text) if one.code == 45 else None
        if cause is not None and all(other.code != int(cause[1]) for other in seen):
            one = _Seen(one.line, int(cause[1]), "")  # noqa: PLW2901
        if one.code == 63 and "reset gpu to activate" in one.text.lower() and 63 not in told:
            says = "has a row remap pending, which its next reset applies (Xid 63)"
            yield _told("row-remap-pending", bdf, says, Scope.GPU, "the driver's own words in the line", one.line)
            told.add(63)
        judged = judge(one.code, one.text)
        if one.code in told or judged is None:
            continue
        told.add(one.code)
        scope, note, fact = judged
        yield replace(_told("xid", bdf, f"reported Xid {one.code}: {note}", scope, fact, one.line), part=str(one.code))


def judge(code: int, text: str) -> tuple[Scope | None, str, str] | None:
    """(cure, in words, source) of an Xid that says that something must be done; None for one to ignore."""
    row = XIDS.get(code)
    if row is None:
        return None if code == 154 else (None, "a code that the catalogue does not have", f"not in {_CATALOGUE}")
    note = row.note.split(";")[0]
    fact = f"{_CATALOGUE}: {row.name}, {row.bucket.replace('_', ' ').lower()}"
    if is_fault(code, text):
        return cure(code, text), note, fact
    if row.bucket == "RESTART_APP" or (row.effect == "app" and row.bucket == "-"):
        return Scope.PROCESS, note, fact
    if row.bucket in ("CONTACT_SUPPORT", "UPDATE_SWFW") or (row.effect in ("gpu", "link") and row.bucket == "-"):
        return None, note, fact
    return None


def _told(signal: str, bdf: str, says: str, scope: Scope | None, fact: str, line: Line) -> Told:
    return Told(signal, f"the GPU at {bdf} {says}", scope, fact, line.number, line.shown, bdf)


def _switch(event: SxidEvent, line: Line) -> Iterator[Told]:
    if "Non-fatal" in event.msg:
        return
    fact = "Fabric Manager user guide, SXid classes"
    if event.sxid in SXID_RESET_FABRIC:
        says = f"NVSwitch {event.bdf} reports SXid {event.sxid}: the whole fabric must be reset"
        yield Told("sxid", says, None, fact, line.number, line.shown, event.bdf)
    elif event.sxid in SXID_RESTART_VM:
        says = f"NVSwitch {event.bdf} reports SXid {event.sxid}: the guest must be restarted"
        yield Told("sxid", says, Scope.VM, fact, line.number, line.shown, event.bdf)


# ------------------------------------------------------------------------------------------------ stalls

_HUNG = re.compile(
    r"INFO: task (?P<name>.{1,64}?):(?P<pid>\d{1,10}) blocked for more than \d+ seconds|^blocked for more than$"
)
_SHOWN = re.compile(r"task:(?P<name>.{1,64}?) +state:D .{0,60}?(?<!p)pid: ?(?P<pid>\d{1,10})\b")
_LOCKED = re.compile(
    r"BUG: soft lockup|^soft lockup$|hard LOCKUP on cpu|rcu.*(?:self-)?detected (?:expedited )?stalls?\b"
)
_FRAME = re.compile(r"(?:^|\s|\? )(?P<function>[A-Za-z_][\w.]{2,60})\+0x[0-9a-f]+/0x[0-9a-f]+")
_NVIDIA = re.compile(r"\[nvidia(?:_\w+)?[\s\]]|\buvm_|\bnvidia_")
_DISKS = re.compile(
    r"^(?:jbd2|xfsaild|txg_sync|kworker/\S*flush|nfsd|nfs|lockd|mount\.|umount|btrfs|z_|dm_|md\d|ceph|rbd|loop)"
)


_UNLOADS = re.compile(r"^(?:modprobe|rmmod)$")
_ENDING = re.compile(r"^(?:modprobe|rmmod|reboot|poweroff|shutdown|systemd-shutdow)$")


def _stalls(lines: tuple[Line, ...], claimed: frozenset[int]) -> tuple[list[Told], frozenset[int]]:
    found, used = [], set()
    for at, line in enumerate(lines):
        if line.typed or line.number in claimed:
            continue
        hung = _hung_head(lines, at)
        if hung is not None:
            found.append(_hung(hung, line, _trace(lines, at, hung["pid"])))
            used.add(line.number)
        elif ("lockup" in line.after or "LOCKUP" in line.after or "stall" in line.after) and _LOCKED.search(line.text):
            found.append(_locked(line, _trace(lines, at)))
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


def _locked(line: Line, trace: list[str]) -> Told:
    where = " inside the NVIDIA driver" if any(_NVIDIA.search(text) for text in (line.text, *trace)) else ""
    says = f"a CPU of this kernel is locked up{where}; unless it stands alone and passed, only the VM's restart helps"
    fact = "nothing from inside the guest helps then, not even a reset (open-gpu-kernel-modules issue 1223)"
    return Told("kernel-lockup", says, Scope.VM, fact, line.number, line.shown)
