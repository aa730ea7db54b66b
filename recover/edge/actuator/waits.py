"""Whatever is waited for here is waited for within one total limit, and asked again is only a question.

The clock and the sleep are given from outside. The sleep must really sleep: one that returns early turns a wait into
a storm of questions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from recover.model.act import Outcome
from recover.steps.bounds import LAST_WORDS_S, OVER_S

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limit:
    """`at`: the moment by the given clock at which an act's goal must be reached. `last`: when all of it is over.

    Between the two it is only found out what came of the act; after `last` each question gets one more second.
    """

    clock: Callable[[], float]
    at: float
    last: float

    def left(self) -> float:
        return max(0.0, self.at - self.clock())

    def rest(self) -> float:
        return max(0.0, self.last - self.clock())

    def ask_s(self, most: float) -> float:
        return min(most, max(1.0, self.rest()))

    def part(self, seconds: float) -> Limit:
        """A wait on the way to the goal."""
        return Limit(self.clock, min(self.clock() + seconds, self.at), self.last)

    def then(self, seconds: float) -> Limit:
        """A wait for what the act leaves, also past the moment for its goal."""
        return Limit(self.clock, min(self.clock() + seconds, self.last), self.last)


@dataclass(frozen=True, slots=True)
class Again:
    """Proved that nothing was done, and the reason is one that passes: one more try is allowed, else `otherwise`."""

    otherwise: Outcome


@dataclass(frozen=True, slots=True)
class Waits:
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def limit(self, seconds: float) -> Limit:
        at = self.clock() + seconds
        return Limit(self.clock, at, at + OVER_S - LAST_WORDS_S)

    def until(self, ask: Callable[[], T], good: Callable[[T], bool], limit: Limit, every: float) -> T:
        """The first answer that is good, or the last one within the limit."""
        from tenacity import RetryCallState, Retrying, retry_if_result

        def last(state: RetryCallState) -> T:
            assert state.outcome is not None
            answer: T = state.outcome.result()
            return answer

        asking = Retrying(
            retry=retry_if_result(lambda answer: not good(answer)),
            stop=lambda _: limit.left() <= 0,
            wait=lambda _: min(every, limit.left()),
            sleep=self.sleep,
            retry_error_callback=last,
        )
        return asking(ask)

    def at_most_twice(self, once: Callable[[], Outcome | Again]) -> Outcome:
        """`once`, and once more where it says that nothing was done."""
        from tenacity import RetryCallState, Retrying, retry_if_result, stop_after_attempt, wait_fixed

        def give_up(state: RetryCallState) -> Outcome:
            assert state.outcome is not None
            again: Again = state.outcome.result()
            return again.otherwise

        trying = Retrying(
            retry=retry_if_result(lambda ended: isinstance(ended, Again)),
            stop=stop_after_attempt(2),
            wait=wait_fixed(1.0),
            sleep=self.sleep,
            retry_error_callback=give_up,
        )
        ended = trying(once)
        return ended.otherwise if isinstance(ended, Again) else ended
