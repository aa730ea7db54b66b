"""The whole text: readers of tables and logs first, single lines last; each thing once, and causes over effects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from recover.core.explain.boots import without_earlier_boots
from recover.core.explain.bus import BDF, bus_told
from recover.core.explain.dcgm import dcgm_told
from recover.core.explain.kernel import kernel_told
from recover.core.explain.lines import Line, read_lines
from recover.core.explain.memory import memory_told
from recover.core.explain.messages import said_by
from recover.core.explain.processes import processes_told
from recover.core.explain.servers import servers_told
from recover.core.explain.smi import smi_told
from recover.core.explain.told import Told, weight
from recover.core.read.procfs import bus_id

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
    lines = without_earlier_boots(read_lines(text))
    processes, rows = processes_told(lines)
    memory, figures = memory_told(lines)
    smi, printed = smi_told(lines, rows | figures)
    kernel, logged = kernel_told(lines, rows | figures | printed)
    said = said_by(lines, rows | figures | printed | logged)
    found = [
        *processes,
        *memory,
        *smi,
        *kernel,
        *bus_told(lines),
        *dcgm_told(lines),
        *_off_bus_over_lines(lines, said),
    ]
    if not any(told.signal == "storage-hang" for told in found):  # who waits is said, and for what
        found += servers_told(lines)
    back, reset = _last(_READY, "ready ", lines), _last(_WAS_RESET, "successfully reset", lines)
    found = [told for told in found if not _passed(told, lines, back, reset)]
    return tuple(sorted(_settled(_once(found)), key=lambda told: (told.line, told.signal)))


_PROBED = re.compile(rf"The NVIDIA GPU {BDF}")


def _off_bus_over_lines(lines: tuple[Line, ...], said: Iterable[Told]) -> Iterator[Told]:
    """The driver's probe says over three lines which GPU is off its bus; the address stands in the first."""
    for told in said:
        if told.signal == "gpu-lost" and not told.subject and "not responding" in told.text:
            before = lines[max(0, told.line - 4) : told.line - 1]
            named = [match for line in before if (match := _PROBED.search(line.after))]
            yield replace(told, subject=bus_id(named[-1]["bdf"])) if named else told
        else:
            yield told


_READY = re.compile(rf"{BDF}: ready \d+ms after ")
_WAS_RESET = re.compile(rf"GPU {BDF} was successfully reset")
_RESET_CURES = frozenset(
    {"xid", "reset-required", "recovery-action", "row-remap-pending", "gpu-fails", "gpu-memory-held"}
)
_ENDED_WELL = re.compile(
    r"EngineCore\.shutdown|Application shutdown complete|Shutting down|destroy_process_group\(\) was not called"
    r"|SIG(?:TERM|INT)\b.*received|[Rr]eceived (?:signal )?SIG(?:TERM|INT)|KeyboardInterrupt|Stopping container"
)
_TEARDOWN = 40  # lines that a server takes to say goodbye


def _passed(told: Told, lines: tuple[Line, ...], back: dict[str, int], reset: dict[str, int]) -> bool:
    """What a later line settles: a device that came back, a GPU that was reset, a part of a server asked to end."""
    if told.signal == "reset-waiting":
        return back.get(told.subject, 0) > told.line
    if told.signal in _RESET_CURES:
        return reset.get(told.subject, 0) > told.line
    if told.signal == "dead-group" and "died unexpectedly" in told.text:
        before = lines[max(0, told.line - 1 - _TEARDOWN) : told.line - 1]
        return any(_ENDED_WELL.search(line.after) for line in before)
    if (
        told.signal == "group-not-viable" and "Verify all devices" in told.text
    ):  # QEMU's hint below any error of a group
        return any(
            "error getting device from group" in line.text for line in lines[max(0, told.line - 3) : told.line - 1]
        )
    return False


def _last(pattern: re.Pattern[str], word: str, lines: tuple[Line, ...]) -> dict[str, int]:
    """For each device the last line that says so."""
    found = ((pattern.search(line.text), line.number) for line in lines if word in line.text)
    return {bus_id(match["bdf"]): number for match, number in found if match is not None}


def _once(found: list[Told]) -> list[Told]:
    """The same of the same subject once, the gravest and first; what names no device or guest joins what does."""
    best: dict[tuple[str, str, str], Told] = {}
    for told in sorted(found, key=lambda t: t.line):
        key = (told.signal, told.subject, told.part)
        if key not in best or weight(told) > weight(best[key]):
            best[key] = told
    named = {told.signal for told in best.values() if ":" in told.subject or told.subject.startswith("guest ")}
    return [told for told in best.values() if _has_a_name(told) or told.signal not in named or told.note]


def _has_a_name(told: Told) -> bool:
    """DCGM counts its GPUs: who has addresses beside its numbers has been told the same before."""
    return told.subject != "" and not told.subject.startswith("GPU ")


def _settled(found: list[Told]) -> Iterator[Told]:
    dead = {told.subject for told in found if told.signal in _DEAD_DEVICE and told.subject}
    said: dict[str, set[str]] = {}
    for told in found:
        said.setdefault(told.subject, set()).add(told.signal)
    misfit = any(told.signal == "gpu-missing" and told.cure is None for told in found)
    timeout = any(told.signal == "flock-timeout" for told in found)
    for told in found:
        if any(told.signal in _COVERS.get(signal, ()) for signal in said[told.subject]):
            continue
        if (told.signal == "gpu-init-failed" and misfit) or (told.signal == "flock-wait" and timeout):
            continue
        if told.signal in _OF_A_DEAD_DEVICE and told.subject in dead:
            fact = "the device itself does not come back: a person must cut its power"
            yield replace(told, cure=None, fact=fact)
        else:
            yield told
