"""Single lines that mean something by themselves: the table in `message_table` is tried on each, also over a wrap."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from recover.core.explain.lines import WRAPPED, Line, continued
from recover.core.explain.message_table import By, Message
from recover.core.explain.needles import Hit, hits, may_be_cut
from recover.core.explain.source import is_advice
from recover.core.explain.told import Told
from recover.core.read.procfs import bus_id

_BDF = re.compile(r"(?<![0-9a-fA-F:])[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7](?![0-9a-fA-F:.])")
_FULL_BDF = re.compile(
    r"(?<![0-9a-fA-F])(?<![0-9a-fA-F]:)[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?(?![0-9a-fA-F:])"
)
_PID = re.compile(r"\b(?:PID|pid|process)[ =:]+(\d{1,10})|:(\d{1,10})\]|\w:(\d{1,10}) blocked")
_UNIT = re.compile(r"\b([\w@.-]{1,80}\.(?:service|scope)): ")
_GUEST = re.compile(
    r"VMID '?(\d{1,9})|\b(?:VM|CT) (\d{1,9})\b|\b(?:vm|ct):(\d{1,9})|/lock-(\d{1,9})\.conf|/pve-config-(\d{1,9})\.lock"
    r"|/(?:qemu|lxc|vms)/(\d{1,9})\b"
)


def said_by(lines: tuple[Line, ...], claimed: frozenset[int]) -> Iterator[Told]:
    """What lines say that no table or log reader has claimed; a continued line is tried with what follows it."""
    held = [hits(line.after) or () for line in lines]
    for at, line in enumerate(lines):
        if line.typed or not line.text or line.number in claimed:
            continue
        found = _fitting(line.after, held[at]) if held[at] else None
        if found is not None:
            after = lines[at + 1].after if at + 1 < len(lines) else ""
            if found.unless is not None and found.unless.search(f"{line.after} {after}"):
                continue
            yield told(found, line, _with_address(found, lines, at))
            continue
        for text in continued(lines, at) if _may_go_on(lines, held, at) else ():
            found = first(text)
            # It must need both lines: what the next one says alone is told there.
            if found is None or first(lines[at + 1].after) is found or first(text[len(line.after) :]) is not None:
                continue
            if not any(_is_spoken_of(found, follower.after) for follower in lines[at + 1 : at + 1 + WRAPPED]):
                yield told(found, line, text)
                break


def _may_go_on(lines: tuple[Line, ...], held: list[Sequence[Hit]], at: int) -> bool:
    """Whether a message may stand on this line and on those that may continue it: trying is dear."""
    line, known = lines[at], bool(held[at])
    for follower in lines[at + 1 : at + 1 + WRAPPED]:
        if follower.fresh or follower.typed:
            return False
        if known or held[follower.number - 1] or may_be_cut(line.after, follower.text):
            return True
        line = follower
    return False


def _is_spoken_of(message: Message, text: str) -> bool:
    return any(needle in text and is_advice(text, text.find(needle)) for needle in message.needles)


def _with_address(found: Message, lines: tuple[Line, ...], at: int) -> str:
    """The line, with the one that it continues where only that one names the device."""
    line, before = lines[at], lines[at - 1] if at else None
    if found.by is not By.DEVICE or before is None or line.fresh or before.typed or subject_of(found.by, line.after):
        return line.after
    return line.after if first(before.after) is not None else f"{before.after} {line.after}"


def first(text: str) -> Message | None:
    return _fitting(text, hits(text))


def _fitting(text: str, held: Sequence[Hit]) -> Message | None:
    return next((message for _, needle, message in held if _fits(message, needle, text)), None)


def _fits(message: Message, needle: str, text: str) -> bool:
    if message.unless is not None and message.unless.search(text):
        return False
    if is_advice(text, text.find(needle)):
        return False
    return (
        message.pattern is None
        or message.pattern.search(text) is not None
        or (message.alone and text in message.needles)
    )


def told(message: Message, line: Line, text: str) -> Told:
    subject = subject_of(message.by, text)
    return Told(
        message.signal, message.says, message.cure, message.fact, line.number, line.shown, subject, note=message.note
    )


def subject_of(by: By, text: str) -> str:
    match by:
        case By.DEVICE:
            found = _FULL_BDF.search(text) or _BDF.search(text)
            return bus_id(found[0]) if found else ""
        case By.PROCESS:
            unit, number = _UNIT.search(text), _PID.search(text)
            if unit is not None:
                return unit[1]
            return next((f"pid {group}" for group in number.groups() if group), "") if number else ""
        case By.GUEST:
            guest = _GUEST.search(text)
            return next((f"guest {group}" for group in guest.groups() if group), "") if guest else ""
        case By.TEXT:
            return ""
