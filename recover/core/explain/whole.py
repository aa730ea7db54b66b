"""The whole text: readers of tables and logs first, single lines last; each thing once, and causes over effects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from recover.core.explain.kernel import kernel_told
from recover.core.explain.lines import Line, read_lines
from recover.core.explain.memory import memory_told
from recover.core.explain.messages import said_by
from recover.core.explain.processes import processes_told
from recover.core.explain.smi import smi_told
from recover.core.explain.told import Told, weight
from recover.core.read.procfs import bus_id

_LSPCI = re.compile(r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] .*(?:NVIDIA|10de).*\(rev ff\)")
# Of one device, or of a text that names none: what is told by the left makes the right its consequence.
_COVERS: dict[str, frozenset[str]] = {
    "gpu-lost": frozenset(
        {"gpu-init-failed", "reset-required", "recovery-action", "xid", "gpu-fails", "row-remap-pending"}
    ),
    "row-remap-failed": frozenset({"reset-required", "recovery-action", "row-remap-pending"}),
    "recovery-action": frozenset({"reset-required"}),
    "reset-gave-up": frozenset({"reset-waiting"}),
    "reset-refused": frozenset({"mig-pending"}),
    "storage-hang": frozenset({"stuck-process"}),
    "unkillable-process": frozenset({"stuck-process"}),
}
_DEAD_DEVICE = frozenset({"reset-gave-up", "stuck-d3"})
_OF_A_DEAD_DEVICE = frozenset({"gpu-init-failed", "gpu-lost", "reset-failed-warn"})


def explain(text: str) -> tuple[Told, ...]:
    """Findings and notes in the order of their lines."""
    lines = read_lines(text)
    processes, rows = processes_told(lines)
    memory, figures = memory_told(lines)
    smi, printed = smi_told(lines, rows | figures)
    kernel, logged = kernel_told(lines, rows | figures | printed)
    said = said_by(lines, rows | figures | printed | logged)
    found = [*processes, *memory, *smi, *kernel, *_bus(lines), *_off_bus_over_lines(lines, list(said))]
    return tuple(sorted(_settled(_once(found)), key=lambda told: (told.line, told.signal)))


def _bus(lines: tuple[Line, ...]) -> Iterator[Told]:
    """lspci: a config space of ones only."""
    for line in lines:
        if not line.typed and "(rev ff)" in line.text and _LSPCI.match(line.text):
            bdf = bus_id(line.text.split(" ", 1)[0])
            says = f"the device at {bdf} answers with ones only: it is off the bus, and only a cold power cycle helps"
            fact = "lspci (rev ff): warm reboots did not bring such cards back (shine-cluster issue 172)"
            yield Told("gpu-lost", says, None, fact, line.number, line.shown, bdf)


_PROBED = re.compile(r"The NVIDIA GPU (?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])")


def _off_bus_over_lines(lines: tuple[Line, ...], said: list[Told]) -> Iterator[Told]:
    """The driver's probe says over three lines which GPU is off its bus; the address stands in the first."""
    for told in said:
        if told.signal == "gpu-lost" and not told.subject and "not responding" in told.text:
            before = lines[max(0, told.line - 4) : told.line - 1]
            named = [match for line in before if (match := _PROBED.search(line.after))]
            yield replace(told, subject=bus_id(named[-1]["bdf"])) if named else told
        else:
            yield told


def _once(found: list[Told]) -> list[Told]:
    """The same of the same subject once, the gravest and first; what names no device or guest joins what does."""
    best: dict[tuple[str, str, str], Told] = {}
    for told in sorted(found, key=lambda t: t.line):
        key = (told.signal, told.subject, told.part)
        if key not in best or weight(told) > weight(best[key]):
            best[key] = told
    named = {told.signal for told in best.values() if ":" in told.subject or told.subject.startswith("guest ")}
    return [told for told in best.values() if told.subject or told.signal not in named or told.note]


def _settled(found: list[Told]) -> Iterator[Told]:
    dead = {told.subject for told in found if told.signal in _DEAD_DEVICE and told.subject}
    misfit = any(told.signal == "gpu-missing" and told.cure is None for told in found)
    timeout = any(told.signal == "flock-timeout" for told in found)
    for told in found:
        if any(told.signal in _COVERS.get(other.signal, ()) and other.subject == told.subject for other in found):
            continue
        if (told.signal == "gpu-init-failed" and misfit) or (told.signal == "flock-wait" and timeout):
            continue
        if told.signal in _OF_A_DEAD_DEVICE and told.subject in dead:
            fact = "the device itself does not come back: a person must cut its power"
            yield replace(told, cure=None, fact=fact)
        else:
            yield told
