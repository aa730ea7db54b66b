"""What is done with a check besides showing it: remembered, told where it changed, never more. It drives ports only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recover.core.past import Past
from recover.core.report.check.verdict import Checked
from recover.core.watch import Policy, judged, known_before, remembered, step
from recover.model.watch import Standing, Transition
from recover.ports import Clock, Herald, Kept, Standings


@dataclass(frozen=True, slots=True)
class Watched:
    """A target after one more check. `trouble`: what could not be kept, a sentence each."""

    standing: Standing
    change: Transition | None = None
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Watcher:
    """Takes what was checked. Safe for many threads, and beside other processes of the same state folder."""

    standings: Standings
    herald: Herald
    clock: Clock
    policy: Policy

    def checked(
        self, *seen: Checked, shown: Callable[[Standing], None] | None = None
    ) -> tuple[tuple[Watched, ...], tuple[str, ...]]:
        """Remember it all, then tell together what changed. Gives also what could not be told, a sentence each.

        Never raises for what the world does. The herald is called also where nothing changed: it may owe something.
        `shown` is given each standing before anybody is told, which may take its time.
        """
        kept = [(one.target, self._remember(one)) for one in seen]
        if shown is not None:
            for _, k in kept:
                shown(k.standing)
        failed = self.herald.tell(*(change for _, k in kept for change in k.due))
        for target, k in kept:
            if k.due:
                failed = (*failed, *self.standings.told(target, k.due))
        return tuple(Watched(k.standing, k.change, k.trouble) for _, k in kept), failed

    def would(self, seen: Sequence[Checked]) -> tuple[Watched, ...]:
        """How they would stand after this check; nothing is written and nobody is told."""
        return tuple(self._would(one) for one in seen)

    def before(self, target: str) -> Past | None:
        """What the next look at `target` may know of the checks before it, of whatever process."""
        found = self.standings.read(target)
        return known_before(found, self.clock.now()) if isinstance(found, Standing) else None

    def _remember(self, one: Checked) -> Kept:
        now = self.clock.now()
        return self.standings.step(one.target, lambda before: self._step(before, one, now), now)

    def _would(self, one: Checked) -> Watched:
        before = self.standings.read(one.target)
        trouble = () if isinstance(before, Standing) else (before,)
        standing = before if isinstance(before, Standing) else Standing(one.target)
        after, change = self._step(standing, one, self.clock.now())
        return Watched(after, change, trouble)

    def _step(self, before: Standing, one: Checked, now: float) -> tuple[Standing, Transition | None]:
        after, change = step(before, judged(one, now), self.policy)
        return after if after is before else remembered(after, one, known_before(before, now)), change
