"""The kernel's log: one verdict a GPU, in the order of trust of `core.signals.driver`.

Xid 79 outranks the driver's own word, an Xid 64 is for a person, the last Xid 154 outranks the table, and takes back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from recover.core.explain.boots import clock
from recover.core.explain.lines import Line, continued
from recover.core.explain.stalls import stalls
from recover.core.explain.told import Told
from recover.core.read.kernel_log import ActionEvent, Event, KernelEvent, SxidEvent, XidEvent, events
from recover.core.read.procfs import bus_id
from recover.core.signals.driver import ACTION_CURES, action_signal, action_words
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
    loaded: dict[str, str] = {}
    mine = set()
    for at, line in enumerate(lines):
        if line.typed or line.number in claimed:
            continue
        if "NVRM: loading NVIDIA UNIX" in line.after:
            loaded.update([own] if (own := clock(line)) is not None else [])
        elif "Xid (" in line.after:
            event = _event(lines, at)
            mine.add(line.number)
            if isinstance(event, SxidEvent):
                switches.extend(_switch(event, line))
            elif isinstance(event, (XidEvent, ActionEvent)):
                gpus.setdefault(event.bdf, []).append(_seen(event, line))
        elif "has fallen off the bus" in line.after:
            mine.update(_off_bus(gpus, line))
    known = {seen.code for one in gpus.values() for seen in one}
    for gpu, seen in _by_others(lines):
        if seen.code not in known:
            gpus.setdefault(gpu, []).append(seen)
            mine.add(seen.line.number)
    told = [one for bdf, seen in gpus.items() for one in _verdicts(bdf, [s for s in seen if not _old(s.line, loaded)])]
    stalled, used = stalls(lines, claimed)
    return [*told, *switches, *stalled], frozenset(mine) | used


def _old(line: Line, loaded: dict[str, str]) -> bool:
    """Whether the same host loaded the driver anew after this line."""
    own = clock(line) if loaded else None
    return own is not None and own[1] < loaded.get(own[0], "")


_PLUGIN = re.compile(r"XidCriticalError: Xid=(?P<xid>\d{1,5}) on Device=(?P<gpu>(?:GPU|MIG)-[\w-]{4,80})")
_METRIC = re.compile(r"^DCGM_FI_DEV_XID_ERRORS\{(?P<labels>[^}]{0,1500})\} (?P<xid>\d{1,5})(?:\.0)?\b")
_LABEL = re.compile(r'\b(?:pci_bus_id|UUID)="([^"]{4,64})"')


def _by_others(lines: tuple[Line, ...]) -> Iterator[tuple[str, _Seen]]:
    """Xids as Kubernetes' device plugin and DCGM tell them. A metric stays after its program ended: faults only."""
    for line in lines:
        plugin = _PLUGIN.search(line.after) if "XidCriticalError" in line.after and not line.typed else None
        metric = _METRIC.match(line.text) if line.text.startswith("DCGM_FI_DEV_XID") else None
        if plugin is not None:
            yield plugin["gpu"], _Seen(line, int(plugin["xid"]), "")
        elif metric is not None and is_fault(int(metric["xid"])):
            named = _LABEL.findall(metric["labels"])
            yield bus_id(max(named, key=lambda name: ":" in name, default="")), _Seen(line, int(metric["xid"]), "")


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
        says = f"needs: {action_words(action)}, says the driver (Xid 154)"
        yield _told(action_signal(action), bdf, says, ACTION_CURES[action], _BY_DRIVER, seen[last].line)
        return
    yield from _by_table(bdf, seen[last + 1 :])


_CAUSE = re.compile(r"caused by previous Xid (\d{1,5})")
_ENDS_PROGRAMS = "Fatal"  # an NVLink error (Xids 144 to 150) that is not fatal tears no channel down


def _by_table(bdf: str, seen: list[_Seen]) -> Iterator[Told]:
    told: set[int] = set()
    for one in seen:
        cause = _CAUSE.search(one.text) if one.code == 45 else None
        if cause is not None and all(other.code != int(cause[1]) for other in seen):
            one = _Seen(one.line, int(cause[1]), _ENDS_PROGRAMS)  # noqa: PLW2901
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
