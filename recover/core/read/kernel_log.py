"""Lines of the guest's kernel log become events with their own time; what a line means is decided elsewhere.

Forms of NVIDIA's driver from "Xid (0000:03:00): 14, …" to 595 with MIG attribution (open-gpu-kernel-modules,
kernel_rc.c), SXids of NVSwitches, and the kernel's own words on memory, hung tasks, PCI and lockups.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from recover.core.clean import clean
from recover.core.read.procfs import bus_id
from recover.core.read.smi_xml import ACTIONS
from recover.model.gpu import RecoveryAction
from recover.model.memory import KernelLine


@dataclass(frozen=True, slots=True)
class XidEvent:
    """`bdf` as "00000000:9b:00.0" (the log has no function: it is 0). `pid` 0: not told."""

    usec: int
    bdf: str
    xid: int
    pid: int = 0
    name: str = ""
    msg: str = ""
    mig: str = ""  # "GI 5" or "GI 5 CI 0"


@dataclass(frozen=True, slots=True)
class ActionEvent:
    """Xid 154: the driver's own verdict changed."""

    usec: int
    bdf: str
    before: RecoveryAction
    after: RecoveryAction


@dataclass(frozen=True, slots=True)
class SxidEvent:
    usec: int
    bdf: str
    sxid: int
    fatal: bool
    msg: str = ""


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """Anything else of interest. `kind` is one of the first words in RULES."""

    usec: int
    kind: str
    msg: str
    bdf: str = ""
    pid: int = 0
    name: str = ""


Event = XidEvent | ActionEvent | SxidEvent | KernelEvent

_BDF = r"(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?" + _BDF + r"(?: GPU-I:(?P<gi>\d+))?(?: GPU-CI:(?P<ci>\d+))?\): (?P<xid>\d{1,5})"
    r"(?:, pid=(?P<pid>'?<unknown>'?|\d{1,10}))?(?:, name=(?P<name>.*?))?(?:, (?P<msg>.*))?$"
)
_SXID = re.compile(r"SXid \(PCI:" + _BDF + r"\): (?P<sxid>\d{1,6}), (?P<msg>.*)$")
_ACTION = re.compile(
    r"recovery action changed from (0x[0-9a-fA-F]{1,8}) \(([^)]*)\) to (0x[0-9a-fA-F]{1,8}) \(([^)]*)\)", re.I
)
# kind, pattern. Groups `bdf`, `pid`, `name` are taken where they stand. The first that matches counts.
RULES: tuple[tuple[str, str], ...] = (
    ("driver-loaded", r"NVRM: loading NVIDIA UNIX .*Kernel Module"),
    ("driver-unloaded", r"NVRM: .*[Uu]nloading|nvidia-uvm: Unloaded|nvidia-modeset: Unloading"),
    ("gpu-uuid", r"NVRM: GPU at PCI:" + _BDF + r": (?P<name>GPU-[0-9a-fA-F-]+)"),
    ("off-bus", r"NVRM: GPU " + _BDF + r": GPU has fallen off the bus"),
    ("off-bus", r"NVRM: fallen off the bus and is not responding"),
    ("init-failed", r"NVRM: GPU " + _BDF + r": (?:RmInitAdapter failed|rm_init_adapter failed)"),
    (
        "init-failed",
        r"NVRM: (?:None of the NVIDIA (?:devices|graphics adapters) were initialized|No NVIDIA .* found)",
    ),
    ("io-region-invalid", r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid"),
    ("api-mismatch", r"NVRM: API mismatch"),
    ("rpc-limited", r"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:" + _BDF),
    ("remove-in-use", r"NVRM: Attempting to remove device " + _BDF + r" with non-zero usage count"),
    ("probe-failed", r"nvidia: probe of " + _BDF + r" failed with error"),
    ("oom-kill", r"Out of memory: Killed process (?P<pid>\d{1,10})(?:, UID \d+,)? \((?P<name>.*?)\)"),
    ("oom-kill", r"Memory cgroup out of memory: Killed process (?P<pid>\d{1,10}) \((?P<name>.*?)\)"),
    ("oom-kill", r"oom-kill:constraint="),
    ("oom-reaped", r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<name>.*?)\)"),
    ("hung-task", r"INFO: task (?P<name>.+):(?P<pid>\d{1,10}) blocked for more than \d+ seconds"),
    ("hung-state", r"^\s*task:(?P<name>\S+)\s+state:\S+\s.*?pid:(?P<pid>\d{1,10})"),
    ("soft-lockup", r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<name>.*):(?P<pid>\d{1,10})\]"),
    ("hard-lockup", r"Watchdog detected hard LOCKUP|NMI watchdog: .*LOCKUP"),
    ("rcu-stall", r"rcu\w*: INFO: .*detected stalls|\brcu_\w+ (?:self-)?detected (?:expedited )?stall"),
    ("pci-not-ready", r"\S+ " + _BDF + r": not ready \d+ms after"),
    ("pci-d3cold", r"\S+ " + _BDF + r": Unable to change power state from D3cold to D0"),
    ("pcie-aer", r"(?:AER: |PCIe Bus Error: ).*(?:Uncorrect|[Ff]atal)"),
    ("pcie-aer-corrected", r"AER: .*[Cc]orrect|PCIe Bus Error: severity=Corrected"),
    ("storage", r"nfs: server \S+ not responding|ceph: .*(?:hung|closed)|Lustre: .*(?:timed out|lost)"),
    ("io-error", r"blk_update_request: .*I/O error|Buffer I/O error|I/O error, dev \S+"),
    ("mce", r"mce: \[Hardware Error\]|Machine check"),
)
# Dates and levels that dmesg, journalctl and syslog write before a line.
_PREFIX = re.compile(
    r"^(?:(?:kern|user|daemon)\s*:\w+\s*:\s*)?"
    r"(?:<\d{1,3}>)?"
    r"(?:\d{4}-\d\d-\d\dT[\d:.,]+(?:[+-][\d:]+|Z)?\s+(?:\S+ (?=kernel: ))?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ )?"
    r"(?:kernel: )?"
    r"(?:\[\s*(?:(?P<s>\d{1,10})\.(?P<us>\d{6})|[A-Z][a-z]{2} [^\]]*)\]\s?)?(?:\[\s*[TC]\d+\]\s?)?"
)


def lines_of(text: str) -> tuple[KernelLine, ...]:
    """Any printed kernel log; lines without a time since boot get 0."""
    found = []
    for raw in text.splitlines():
        match = _PREFIX.match(raw)
        rest = raw[match.end() :] if match else raw
        usec = 0
        if match and match.group("s"):
            usec = int(match.group("s")) * 1_000_000 + int(match.group("us"))
        if rest.strip():
            found.append(KernelLine(usec, clean(rest)))
    return tuple(found)


def events(lines: Iterable[KernelLine]) -> tuple[Event, ...]:
    """In the order of the log."""
    found: list[Event] = []
    for line in lines:
        for read in _READERS:
            event = read(line)
            if event is not None:
                found.append(event)
                break
    return tuple(found)


def _xid(line: KernelLine) -> Event | None:
    match = _XID.search(line.text)
    if match is None:
        return None
    bdf, msg = bus_id(match["bdf"]), match["msg"] or ""
    changed = _ACTION.search(line.text) if match["xid"] == "154" else None
    if changed:
        return ActionEvent(line.usec, bdf, _action(changed[1], changed[2]), _action(changed[3], changed[4]))
    pid, name = match["pid"] or "", match["name"] or ""
    mig = " ".join(f"{word} {int(match[key])}" for word, key in (("GI", "gi"), ("CI", "ci")) if match[key])
    return XidEvent(
        line.usec,
        bdf,
        int(match["xid"]),
        int(pid) if pid.isdecimal() else 0,
        "" if name.strip("'") == "<unknown>" else name,
        msg,
        mig,
    )


def _action(number: str, words: str) -> RecoveryAction:
    try:
        return RecoveryAction(int(number, 16))
    except ValueError:
        return ACTIONS.get(words.lower(), RecoveryAction.OTHER)


def _sxid(line: KernelLine) -> Event | None:
    match = _SXID.search(line.text)
    if match is None:
        return None
    msg = match["msg"]
    return SxidEvent(line.usec, bus_id(match["bdf"]), int(match["sxid"]), msg.startswith("Fatal"), msg)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """When a line first asks for it: all of them are a twentieth of what starting the tool takes."""
    return re.compile(pattern)


def _other(line: KernelLine) -> Event | None:
    for kind, pattern in RULES:
        match = _compiled(pattern).search(line.text)
        if match:
            said = match.groupdict()
            bdf, pid = said.get("bdf"), said.get("pid")
            return KernelEvent(
                line.usec, kind, line.text, bus_id(bdf) if bdf else "", int(pid) if pid else 0, said.get("name") or ""
            )
    return None


_READERS: tuple[Callable[[KernelLine], Event | None], ...] = (_xid, _sxid, _other)


def last_load(found: Iterable[Event]) -> int:
    """When the driver was last loaded (µs since boot): older Xids belong to a driver that is gone. 0 if never seen."""
    return max((e.usec for e in found if isinstance(e, KernelEvent) and e.kind == "driver-loaded"), default=0)
