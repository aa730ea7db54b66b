"""A kernel line counts only while it is news: of this boot and this driver, recent, and not of our own making.

Old Xids never climb: what happened before the driver was loaded, more than half an hour before somebody called us, or
while our own acts ran, is recorded and not climbed on. A GPU that was reset since has nothing to answer for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from recover.core.past import Past
from recover.core.read.kernel_log import ActionEvent, Event, KernelEvent, XidEvent, events, last_load
from recover.model.gpu import RecoveryAction
from recover.model.guest import Guest
from recover.model.memory import KernelLine
from recover.model.reading import Known

BEFORE_S = 1800.0  # events up to this long before the first look may be why somebody called us


@dataclass(frozen=True, slots=True)
class Fault:
    """One Xid line, or a line that says the same; `action` is what an Xid 154 announces."""

    usec: int
    bus_id: str
    code: int
    text: str
    action: RecoveryAction | None = None


def news(guest: Guest, past: Past) -> tuple[tuple[KernelLine, ...], tuple[Event, ...]]:
    """The lines of the guest's kernel log that are news, and the events in them."""
    if not isinstance(guest.kernel, Known):
        return (), ()
    first = past.first if past.first is not None else guest.mark
    since = first.uptime_s - BEFORE_S if first.boot_id == guest.mark.boot_id else 0.0
    loaded = last_load(events(guest.kernel.value))
    lines = tuple(
        line
        for line in guest.kernel.value
        if line.usec >= loaded and line.usec / 1e6 >= since and not _ours(line.usec / 1e6, guest.mark.boot_id, past)
    )
    return lines, tuple(e for e in events(lines) if not _settled(e, guest.mark.boot_id, past))


def _ours(uptime_s: float, boot_id: str, past: Past) -> bool:
    return any(
        span.boot_id == boot_id
        and span.since_uptime_s <= uptime_s
        and (span.until_uptime_s is None or uptime_s <= span.until_uptime_s)
        for span in past.own_acts
    )


def _settled(event: Event, boot_id: str, past: Past) -> bool:
    """Whether the GPU that an event names was reset by us after it."""
    return any(
        span.boot_id == boot_id
        and span.until_uptime_s is not None
        and event.usec / 1e6 <= span.until_uptime_s
        and event.bdf in span.reset
        for span in past.own_acts
    )


def faults(found: Iterable[Event]) -> tuple[Fault, ...]:
    """The Xids among events, in their order; a line that says a GPU is off its bus counts as 79, and so for 119."""
    told: list[Fault] = []
    for event in found:
        match event:
            case XidEvent():
                told.append(Fault(event.usec, event.bdf, event.xid, event.msg))
            case ActionEvent():
                says = f"recovery action changed from {event.before.name} to {event.after.name}"
                told.append(Fault(event.usec, event.bdf, 154, says, event.after))
            case KernelEvent(kind="off-bus") if event.bdf:
                told.append(Fault(event.usec, event.bdf, 79, event.msg))
            case KernelEvent(kind="rpc-limited") if event.bdf:  # so many time-outs that it prints one in thirty
                told.append(Fault(event.usec, event.bdf, 119, event.msg))
            case _:
                continue
    return tuple(told)


def of_kind(found: Iterable[Event], *kinds: str) -> tuple[KernelEvent, ...]:
    return tuple(e for e in found if isinstance(e, KernelEvent) and e.kind in kinds)
