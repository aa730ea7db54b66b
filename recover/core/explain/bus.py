"""What PCIe and the IOMMU say of a device: off the bus, a fatal error above it, no answer to the IOMMU.

Corrected errors, and those that are not fatal, are daily bread; a page fault of the IOMMU is a program's or a reset's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from recover.core.explain.lines import Line
from recover.core.explain.told import Told
from recover.core.read.procfs import bus_id
from recover.model.verdict import Scope

_NEAR = 20  # lines that one error of a port takes to be told
_LSPCI = re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] .*(?:NVIDIA|10de).*\(rev ff\)")
BDF = r"(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_FATAL = re.compile(r"AER: (?:Multiple )?Uncorrect\w+ \(Fatal\)|severity=(?:Uncorrect\w+ \(Fatal\)|Fatal)")
_LEFT_ALONE = re.compile(r"^(?:nvidia|vfio-pci) " + BDF + r": AER: can't recover")
_AMD = re.compile(r"AMD-Vi: Event logged \[IOTLB_INV_TIMEOUT device=" + BDF)
_INTEL = re.compile(r"DMAR: VT-d detected Invalidation Time-out Error: SID (?P<sid>[0-9a-f]{1,4})\b")


def bus_told(lines: tuple[Line, ...]) -> Iterator[Told]:
    fatal = -_NEAR
    for at, line in enumerate(lines):
        if line.typed:
            continue
        if "(rev ff)" in line.text and _LSPCI.match(line.text):
            bdf = bus_id(line.text.split(" ", 1)[0])
            says = f"the device at {bdf} answers with ones only: it is off the bus, and only a cold power cycle helps"
            fact = "lspci (rev ff): warm reboots did not bring such cards back (shine-cluster issue 172)"
            yield Told("gpu-lost", says, None, fact, line.number, line.shown, bdf)
        elif "atal" in line.text and _FATAL.search(line.text):
            fatal = at
        elif "AER: can't" in line.text and at - fatal < _NEAR and (left := _LEFT_ALONE.match(line.text)):
            bdf = bus_id(left["bdf"])
            says = f"the link above the GPU at {bdf} had a fatal error, and the GPU's driver cannot mend that"
            fact = "Linux AER: without its driver's help the device stays as it is until it is reset (pcieaer-howto)"
            yield Told("gpu-fails", says, Scope.VM, fact, line.number, line.shown, bdf)
        elif "TIMEOUT" in line.text or "Time-out" in line.text:
            yield from _no_answer(line)


def _no_answer(line: Line) -> Iterator[Told]:
    amd, intel = _AMD.search(line.text), _INTEL.search(line.text)
    if amd is not None:
        bdf = bus_id(amd["bdf"])
    elif intel is not None and int(intel["sid"], 16) not in (0, 0xFFFF):
        sid = int(intel["sid"], 16)
        bdf = bus_id(f"{sid >> 8:02x}:{sid >> 3 & 31:02x}.{sid & 7}")
    else:
        return
    says = f"the device at {bdf} does not answer the IOMMU: cut its power, and look at its reset"
    fact = "an invalidation of its address cache timed out, the node may hang next (vendor-reset issue 81)"
    yield Told("device-dead", says, None, fact, line.number, line.shown, bdf)
