"""One check of one target: as many looks as it takes, and what they add up to; it drives ports and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recover.core.diagnose import assess
from recover.core.past import Past, advance
from recover.core.report.check.verdict import Checked, checked, progress_may_tell
from recover.model.guest import Guest
from recover.model.ladder import Limits
from recover.ports import Clock, Observer


@dataclass(frozen=True, slots=True)
class Manner:
    """How often to look. `looks` None: a second time where only that can tell a working server from a hung one."""

    looks: int | None
    every_s: float


@dataclass(frozen=True, slots=True)
class Examined:
    """`past` is what the next check of this process may be given: which symptoms are seen since when."""

    checked: Checked
    past: Past


def examine(
    name: str,
    observer: Observer,
    limits: Limits,
    clock: Clock,
    manner: Manner,
    left: Callable[[], float],
    before: Past | None = None,
) -> Examined:
    """Look at one target while there are seconds `left`. The last look counts, with what the earlier ones let it know.

    Of `before` only the symptoms' times count: what the kernel log says is news by the time of this check's first look.
    """
    began, number = clock.now(), 0
    past = Past(anchors=before.anchors) if before is not None else Past()
    while True:
        number += 1
        snapshot, diagnosis = assess(observer.look(), past, limits)
        after = advance(past.anchors, diagnosis.symptoms, snapshot.at)
        wanted = manner.looks or (2 if progress_may_tell(snapshot, diagnosis) else 1)
        if number >= wanted or manner.every_s >= left():
            return Examined(checked(name, snapshot, diagnosis, clock.now() - began, number), Past(anchors=after))
        first = past.first or (snapshot.guest.mark if isinstance(snapshot.guest, Guest) else None)
        past = Past(anchors=after, first=first)
        clock.sleep(manner.every_s)
