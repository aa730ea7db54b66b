"""Acts with nobody there: a permit on disk before each run, its end on disk after it, and nothing beside that.

It drives ports only. Whatever can't be known is a reason not to act; a run whose end can't be known opens the breaker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from recover.core.fleet import BUG, Picture, granted, open_breaker, refusal, released, same, settled, withdrawn
from recover.core.unattended import BY, Candidate, Objection, Rules, consent, objection
from recover.core.windows import first
from recover.model.act import Blast
from recover.model.notice import Event, Notice
from recover.model.record import EndKind, Try
from recover.model.verdict import Diagnosis
from recover.model.watch import Ledger, Permit
from recover.ports import Clock, Controllers, Gate, GateAnswer, Herald, LedgerBook, Lost

STALE_S = 180.0  # a look that is older is left to the next check: a run before it took its time
LIMIT, BREAKER = "limit", "breaker"  # rules that are asked for here
CLOSE = "gpu-recover breaker close"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: an end's word, `service-not-back` or `bug`. `tried`: something was done, or nobody knows."""

    end: str
    tried: bool
    why: str
    run: str = ""
    code: int | None = None
    unheard: tuple[str, ...] = ()  # hooks of its end that failed, a sentence each
    notice: Notice | None = None  # what people are to hear of it, once its end is on disk


@dataclass(frozen=True, slots=True)
class Attended:
    """What was done about one target, or why nothing was. `rule`: acted, would-act, or the rule that forbade it.

    `trouble`: what else went wrong, a sentence each: who could not be told, what could not be written.
    """

    target: str
    rule: str
    why: str
    ended: RunEnd | None = None
    trouble: tuple[str, ...] = ()


class WatchGate:
    """Says yes within what the playbook lists, as long as nothing has come up since. `still`: why not any more."""

    def __init__(self, rules: Rules, still: Callable[[], str]) -> None:
        self._rules, self._still = rules, still

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        why = self._still()
        if why:
            return GateAnswer("no", BY, why, "gpu-recover TARGET   (a person may)")
        return consent(attempt, blast, diagnosis, self._rules.unattended)


Runs = Callable[[str, Gate], RunEnd]
Jobs = Sequence[Callable[[], None]]


def one_by_one(jobs: Jobs) -> None:
    for job in jobs:
        job()


@dataclass(frozen=True, slots=True)
class Attendant:
    """`size`: targets of the fleet. `at_work`: who works on a target, or did lately. `run` raises only Ctrl-C.

    `together` does jobs at the same time, or one by one, and comes back when all have ended.
    """

    ledger: LedgerBook
    controllers: Controllers
    clock: Clock
    rules: Rules
    size: int
    at_work: Callable[[str], str]
    run: Runs
    herald: Herald
    together: Callable[[Jobs], None] = one_by_one

    def attend(self, seen: Sequence[Candidate], picture: Picture) -> tuple[Attended, ...]:
        """All that the limits allow at the same time, the longest sick first; the answers in the order of `seen`.

        All of them are counted before the first begins. A run that did nothing gives its place back, so who was kept
        out by the limits is asked again afterwards.
        """
        unheard = self._settle()
        found: dict[str, Attended] = {}
        waiting = sorted(seen, key=lambda c: c.standing.since)
        while waiting:
            asked = [(one.target, self._permit(one, picture, found)) for one in waiting]
            permits = [(target, permit) for target, permit in asked if isinstance(permit, Permit)]
            found |= {target: answer for target, answer in asked if isinstance(answer, Attended)}
            try:
                self.together([partial(self._act, permit, found) for _, permit in permits])
            finally:
                for target, permit in permits:
                    if target not in found:
                        self._withdraw(permit)
            waiting = [one for one in waiting if permits and found[one.target].rule == LIMIT]
        answers = tuple(found[one.target] for one in seen)
        return answers if not unheard or not answers else (_with(answers[0], *unheard), *answers[1:])

    def would(self, seen: Sequence[Candidate], picture: Picture) -> tuple[Attended, ...]:
        """The same without any effect. `run` must be one that only plans."""
        ledger = self.ledger.read()
        if not isinstance(ledger, Lost):
            ledger = settled(ledger, self.clock.now(), self.rules.fleet.window_s, self.controllers.lives)
        found: dict[str, Attended] = {}
        for one in sorted(seen, key=lambda c: c.standing.since):
            found[one.target], ledger = self._would(one, picture, ledger)
        return tuple(found[one.target] for one in seen)

    def _permit(self, one: Candidate, picture: Picture, found: Mapping[str, Attended]) -> Permit | Attended:
        """A permit that is on disk, or why there is none."""
        against = self._against(one, picture) or _interrupted(found)
        if against is not None:
            return Attended(one.target, against.rule, against.why)
        permit = self.ledger.change(lambda ledger: self._grant(ledger, one.target))
        match permit:
            case Lost(why):
                return Attended(one.target, "ledger", why)
            case Objection(rule, why):
                return Attended(one.target, rule, why)
        return permit

    def _act(self, permit: Permit, found: dict[str, Attended]) -> None:
        """One run, and its answer into `found`. What has come up since the permit was given forbids also to begin."""
        target = permit.target
        against = _interrupted(found) or self._come_up(permit)
        if against is not None:
            self._withdraw(permit)
            found[target] = Attended(target, against.rule, against.why)
            return
        ended = RunEnd(BUG, True, "its run broke off")
        try:
            ended = self.run(target, WatchGate(self.rules, lambda: self._still(permit)))
        except KeyboardInterrupt:
            ended = RunEnd(EndKind.INTERRUPTED.value, True, "interrupted")
            raise
        finally:
            said, trouble = self._release(permit, ended)
        if ended.notice is not None:
            trouble = (*trouble, *self.herald.announce(ended.notice))
        why = f"{ended.why}; {said}" if said else ended.why
        found[target] = Attended(target, "acted", why, ended, (*ended.unheard, *trouble))

    def _would(self, one: Candidate, picture: Picture, ledger: Ledger | Lost) -> tuple[Attended, Ledger | Lost]:
        against = self._against(one, picture)
        if against is not None:
            return Attended(one.target, against.rule, against.why), ledger
        if isinstance(ledger, Lost):
            return Attended(one.target, "ledger", ledger.why), ledger
        after, answer = self._grant(ledger, one.target)
        if isinstance(answer, Objection):
            return Attended(one.target, answer.rule, answer.why), ledger
        ended = self.run(one.target, WatchGate(self.rules, lambda: ""))
        rule = "would-act" if ended.end == EndKind.PLANNED.value else "would-not-act"
        return Attended(one.target, rule, ended.why, ended), after

    def _against(self, one: Candidate, picture: Picture) -> Objection | None:
        now = self.clock.now()
        against = objection(replace(one, at=now), self.rules, picture)
        if against is not None or now - one.at <= STALE_S:
            return against or self._someone(one)
        return Objection("stale", f"it was looked at {now - one.at:.0f} s ago: the next check sees it anew")

    def _someone(self, one: Candidate) -> Objection | None:
        who = self.at_work(one.target)
        return Objection("at-work", who) if who else None

    def _settle(self) -> tuple[str, ...]:
        """What others left behind comes first: a process that is gone may have opened the breaker."""

        def settle(ledger: Ledger) -> tuple[Ledger, bool]:
            after = settled(ledger, self.clock.now(), self.rules.fleet.window_s, self.controllers.lives)
            return after, open_breaker(after) is not None and open_breaker(ledger) is None

        return self._announce() if self.ledger.change(settle) is True else ()

    def _grant(self, ledger: Ledger, target: str) -> tuple[Ledger, Permit | Objection]:
        now, fleet = self.clock.now(), self.rules.fleet
        ledger = settled(ledger, now, fleet.window_s, self.controllers.lives)
        why = refusal(ledger, target, now, fleet, self.size, self.rules.unattended.runs_per_day)
        if why:
            return ledger, Objection(BREAKER if open_breaker(ledger) is not None else LIMIT, why)
        return granted(ledger, target, self.controllers.me(), now)

    def _withdraw(self, permit: Permit) -> None:
        """Should it fail, the permit stays, and once this process is gone it opens the breaker."""
        self.ledger.change(lambda ledger: (withdrawn(ledger, permit), None))

    def _still(self, permit: Permit) -> str:
        """Asked before every try: why not any more, in words."""
        against = self._come_up(permit)
        return against.why if against is not None else ""

    def _come_up(self, permit: Permit) -> Objection | None:
        """What holds at the beginning of a run may not hold half an hour later, nor when its permit was just given."""
        ledger = self.ledger.read()
        if isinstance(ledger, Lost):
            return Objection("ledger", ledger.why)
        breaker = open_breaker(ledger)
        if breaker is not None:
            return Objection(BREAKER, f"the breaker was opened meanwhile: {breaker.target}: {breaker.why}")
        if not any(same(p, permit) for p in ledger.permits):
            return Objection("ledger", "its permit is not in the ledger any more")
        window = first(self.rules.windows, permit.target, self.clock.now())
        return Objection("maintenance", window.why or "a maintenance window has begun") if window is not None else None

    def _release(self, permit: Permit, ended: RunEnd) -> tuple[str, tuple[str, ...]]:
        """The end on disk. Where that fails the permit stays, and once this process is gone it opens the breaker."""

        def release(ledger: Ledger) -> tuple[Ledger, bool]:
            now = self.clock.now()
            after = released(ledger, permit, now, ended.end, tried=ended.tried, why=ended.why)
            return after, open_breaker(after) is not None and open_breaker(ledger) is None

        opened = self.ledger.change(release)
        if isinstance(opened, Lost):
            return "", (opened.why,)
        return (f"this opens the breaker: {CLOSE}", self._announce()) if opened else ("", ())

    def _announce(self) -> tuple[str, ...]:
        ledger = self.ledger.read()
        breaker = open_breaker(ledger) if not isinstance(ledger, Lost) else None
        if breaker is None:
            return ()
        what = f"nothing is recovered unattended any more: {breaker.why}"
        return self.herald.announce(Notice(breaker.opened_at, Event.BREAKER, breaker.target, what, next=CLOSE))


def _interrupted(found: Mapping[str, Attended]) -> Objection | None:
    if any(a.ended is not None and a.ended.end == EndKind.INTERRUPTED.value for a in tuple(found.values())):
        return Objection("interrupted", "a run of this check was interrupted: nothing more is begun by it")
    return None


def _with(one: Attended, *trouble: str) -> Attended:
    return replace(one, trouble=(*one.trouble, *trouble))
