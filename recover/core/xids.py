"""What an Xid line says and which scope cures it; the driver's own recovery action outranks this.

Line formats: kernel_rc.c of open-gpu-kernel-modules 595.45.04 and older logs (without "PCI:", with MIG attribution,
pid='<unknown>'). The codes themselves are in `xid_table`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from recover.core.xid_table import XIDS
from recover.model.memory import KernelLine
from recover.model.verdict import Scope


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One Xid line. `bus_id` as the driver gives it for Gpu: "00000000:41:00.0"."""

    usec: int
    bus_id: str
    code: int
    text: str
    pid: int | None = None


_BDF = r"(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"
_LINE = re.compile(
    r"NVRM: Xid \((?:PCI:)?" + _BDF + r"(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): "
    r"(?P<xid>\d+)(?:, pid=(?P<pid>'?<unknown>'?|\d+))?(?:, name=(?P<name>.*?))?, (?P<msg>.*)"
)
_SXID = re.compile(r"SXid \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?P<sxid>\d{5}), (?P<msg>.*)")
_BARE_LOSS = re.compile(r"NVRM:.*?" + _BDF + r".*(?:fallen off the bus|GPU lost from the bus)")
DRIVER_LOADED = re.compile(r"loading NVIDIA UNIX .*Kernel Module")
_VERDICT = re.compile(r"recovery action changed from .* to (?P<code>0x[0-9a-fA-F]+|\d+) \((?P<text>[^)]*)\)")


def bus_of(bdf: str) -> str:
    """The driver's 8-digit form of a PCI address; the kernel log has no function."""
    domain, bus, device = bdf.lower().split(":")
    return f"{int(domain, 16):08x}:{bus}:{device.split('.')[0]}.0"


def events(lines: Iterable[KernelLine]) -> tuple[XidEvent, ...]:
    """All Xids of a kernel log in their order; the bare "fallen off the bus" forms count as 79."""
    found: list[XidEvent] = []
    for line in lines:
        if match := _LINE.search(line.text):
            pid = int(match["pid"]) if (match["pid"] or "").isdigit() else None
            found.append(XidEvent(line.usec, bus_of(match["bdf"]), int(match["xid"]), match["msg"], pid))
        elif match := _BARE_LOSS.search(line.text):
            found.append(XidEvent(line.usec, bus_of(match["bdf"]), 79, line.text))
    return tuple(found)


def sxids(lines: Iterable[KernelLine]) -> tuple[XidEvent, ...]:
    return tuple(
        XidEvent(line.usec, match["bdf"], int(match["sxid"]), match["msg"])
        for line in lines
        if (match := _SXID.search(line.text))
    )


def verdict_of(event: XidEvent) -> int | None:
    """The recovery action that an Xid 154 announces, as nvmlGpuRecoveryAction has it."""
    match = _VERDICT.search(event.text)
    return int(match["code"], 0) if match else None


_BUCKET_CURE = {
    "RESET_GPU": Scope.GPU,
    "WORKFLOW_XID_48": Scope.GPU,
    "WORKFLOW_NVLINK_ERR": Scope.GPU,  # a reset clears it
    "RESTART_VM": Scope.VM,
    "RESTART_BM": Scope.VM,  # from a guest's point of view: the reset of the device at VM stop and start
}
# Codes for which the bucket alone would mislead.
_CURES: dict[int, Scope | None] = {
    64: None,  # a reset "works" for a while, and the memory is still bad (awsome-distributed-ai 1190)
    167: Scope.VM,  # fatal PCIe time-out, no bucket: like 79
    169: Scope.GPU,
    171: Scope.GPU,
    172: Scope.GPU,
    173: Scope.VM,
    175: Scope.GPU,  # the driver marks the GPU for reset
}
_FOR_A_PERSON = frozenset({54, 64})
_NVLINK5 = range(144, 151)


def cure(event: XidEvent) -> tuple[bool, Scope | None]:
    """Whether an Xid is a fault of the GPU at all, and the smallest scope that cures it (None: no step can)."""
    known = XIDS.get(event.code)
    if known is None or event.code == 154:
        return False, None
    if event.code in _CURES or event.code in _FOR_A_PERSON:
        return True, _CURES.get(event.code)
    if event.code in _NVLINK5:
        fatal = re.search(r"\bFatal\b", event.text) is not None
        return fatal, Scope.GPU if fatal else None
    scope = _BUCKET_CURE.get(known.bucket)
    return scope is not None, scope
