"""One target of the exporter over all of its periods: its eyes, its connection, and what was seen to last so far."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from recover.cli.common import playbook_of
from recover.core.past import Past
from recover.core.report.check.verdict import Checked, unjudged
from recover.edge.fleet import Failed, Late
from recover.edge.patrol import Post
from recover.looking import Manner, examine
from recover.model.snapshot import Baseline, Target
from recover.wiring import App, Eyes, UsageProblem

LOOK_S = 60.0
SECOND_LOOK_S = 5.0


def unjudged_of(name: str, answer: Failed | Late) -> Checked:
    if isinstance(answer, Failed) and isinstance(answer.error, UsageProblem):  # a baseline that was damaged since
        return unjudged(name, str(answer.error), answer.seconds)
    if isinstance(answer, Failed):
        why = f"the look failed by a fault of gpu-recover ({type(answer.error).__name__})"
    else:
        why = f"the look did not end within {LOOK_S:g} s, and hangs"
    return unjudged(name, why, answer.seconds)


def post_of(opened: App, target: Target, period_s: float, *, keeps: bool) -> Post[Checked]:
    """Wired now, so that a damaged baseline or playbook is told before anything is looked at. Raises UsageProblem."""
    eye = _Eye(opened, target, keeps, 2 * period_s + LOOK_S)
    eye.open()
    return Post(target.name, eye.look, eye.close)


@dataclass(slots=True)
class _Eye:
    """One target over all periods. `keeps`: its connection stands between them."""

    opened: App
    target: Target
    keeps: bool
    remembers_s: float  # what was seen longer ago says nothing about what lasts
    eyes: Eyes | None = None
    saved: Baseline | None = None
    past: Past | None = None
    ended: float = 0.0
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def open(self) -> Eyes:
        """A baseline that was saved since counts from the next look on."""
        saved = self.opened.baseline(self.target)
        with self.lock:
            if self.eyes is not None and saved == self.saved:
                return self.eyes
            old, self.saved = self.eyes, saved
            self.eyes = self.opened.eyes(self.target, playbook_of(self.opened, self.target, None), 0.9 * LOOK_S)
        if old is not None:
            old.close()
        return self.eyes

    def look(self, seconds: float) -> Checked:
        ends, eyes = time.monotonic() + seconds, self.open()
        try:
            if self.closed:
                eyes.close()
            seen = examine(
                self.target.name, eyes.observer, eyes.limits, eyes.clock, Manner(None, SECOND_LOOK_S),
                lambda: ends - time.monotonic(), self._before(),
            )  # fmt: skip
        finally:
            if not self.keeps:
                self.drop()
        self.past, self.ended = seen.past, time.monotonic()
        return seen.checked

    def _before(self) -> Past | None:
        return self.past if time.monotonic() - self.ended < self.remembers_s else None

    def drop(self) -> None:
        with self.lock:
            old, self.eyes = self.eyes, None
        if old is not None:
            old.close()

    def close(self) -> None:
        self.closed = True
        self.drop()
