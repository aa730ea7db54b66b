"""The loop: look, decide, write down, do, look again. It only drives ports and knows no adapter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from recover.core.aftercare import Finish, Prove, aftercare
from recover.core.decide import decide
from recover.core.diagnose import assess, vitals
from recover.core.fold import after
from recover.core.history import History
from recover.core.options import Context, options
from recover.model.act import Action, Line, Outcome, PlaceMarker
from recover.model.guest import Guest
from recover.model.hypervisor import Hypervisor
from recover.model.ladder import Playbook, Ready
from recover.model.reading import Known
from recover.model.record import (
    Acted,
    Acting,
    Began,
    Closed,
    Consented,
    Decided,
    Decision,
    Declined,
    End,
    Ended,
    EndKind,
    Entry,
    Interrupted,
    Kept,
    Opened,
    Restore,
    Saw,
    Stop,
    Try,
    Wait,
)
from recover.model.snapshot import Snapshot
from recover.ports import Actuator, Clock, Evidence, Gate, GateAnswer, Interrupts, Journal, Observer, View
from recover.steps.undo import settled_by_others

STALE_ANSWER_S = 30.0  # an answer that took longer is checked against a new look
MARKER_TTL_S = 900.0
POWER_TASKS = frozenset({"qmstart", "qmstop", "qmshutdown", "qmreset", "qmreboot", "hastart", "hastop",
                         "vzstart", "vzstop", "vzshutdown"})  # fmt: skip

Decide = Callable[[Playbook, History, float], Decision]


@dataclass(frozen=True, slots=True)
class World:
    """All doors of one run. A read-only run has no actuator."""

    observer: Observer
    actuator: Actuator | None
    gate: Gate
    clock: Clock
    journal: Journal
    evidence: Evidence
    view: View
    interrupts: Interrupts


class Run:
    """One run over one journal. `begin` is written first; what can't be written isn't done."""

    def __init__(
        self,
        world: World,
        playbook: Playbook,
        context: Context,
        history: History | None = None,
        decide: Decide = decide,
    ) -> None:
        self.world = world
        self._decides = decide
        self.playbook = playbook
        self.context = context
        self.history = history if history is not None else History()
        self.snapshot: Snapshot | None = None
        self._consent: tuple[str, Line] | None = None

    def run(self, begin: Opened, *known: Entry) -> Closed:
        """From `Opened` to `Closed`. OSError when the journal can't be written (nothing more is done then).

        `known`: what is to be told of before the first look.
        """
        for entry in (begin, *known):
            self._write(entry)
        end = self._climb()
        service, carried = self._after(end) if self.world.actuator is not None else (None, ())
        closed = Closed(self.world.clock.now(), end, service, carried)
        self._write(closed)
        return closed

    def _climb(self) -> End:
        while True:
            decision = self._decide()
            match decision:
                case Stop(end):
                    return end
                case Wait(seconds):
                    self._pause(seconds)
                    self._look()
                case Restore(duty) if self.world.actuator is None:
                    return End(EndKind.PLANNED, f"would first put back what is owed: {duty.key}")
                case Try() if self.world.actuator is None:
                    return End(EndKind.PLANNED, f"would try {decision.step}: {decision.why}")
                case Restore():
                    self._restore(decision)
                    self._look_if_stale()
                case Try():
                    self._try(decision)

    def _after(self, end: End) -> tuple[str | None, tuple[str, ...]]:
        while True:
            self._check_interrupt()
            step = aftercare(self.playbook, self.history, end, self.world.clock.now())
            match step:
                case Finish(service, carried):
                    return service, carried
                case Wait(seconds):
                    self._pause(seconds)
                    self._look()
                case Restore():
                    self._write(Decided(self.world.clock.now(), step))
                    self._restore(step)
                    self._look_if_stale()
                case Prove(action):
                    self._act(action)

    def _decide(self) -> Decision:
        self._check_interrupt()
        now = self.world.clock.now()
        decision = self._decides(self.playbook, self.history, now)
        self._write(Decided(now, decision))
        return decision

    def _write(self, entry: Entry) -> None:
        self.world.journal.append(entry)
        self.history = after(self.history, entry)
        self.world.view.entry(entry)

    def _check_interrupt(self) -> None:
        who = self.world.interrupts.pending()
        if who and self.history.interrupted is None:
            self._write(Interrupted(self.world.clock.now(), who))

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self.world.clock.sleep(seconds)

    def _look_if_stale(self) -> None:
        if self.history.stale:
            self._look()

    def _look(self) -> None:
        """One look and what it means, written down. Looking can never change the world."""
        raw = self.world.observer.look()
        snapshot, diagnosis = assess(raw, self.history.past, self.playbook.limits)
        self.snapshot = snapshot
        seen = vitals(snapshot, diagnosis)
        booted_at = self.history.host_booted_at
        context = replace(self.context, host_booted_at=booted_at if booted_at is not None else seen.host_booted_at)
        settled = tuple(
            (d.duty.key, why)
            for d in self.history.duties
            if (why := settled_by_others(d.duty, snapshot, d.opened_at)) is not None
        )
        self._write(
            Saw(
                at=self.world.clock.now(),
                mark=snapshot.guest.mark if isinstance(snapshot.guest, Guest) else None,
                vitals=seen,
                diagnosis=diagnosis,
                options=options(snapshot, diagnosis, self.playbook, context),
                busy=own_running_task(snapshot),
                payable=frozenset(d.duty.key for d in self.history.duties if d.duty.via in diagnosis.channels),
                settled=settled,
            )
        )

    def _restore(self, restore: Restore) -> None:
        self._act(restore.duty.do, restores=restore.duty.key)

    def _try(self, attempt: Try) -> None:
        if not self._consented(attempt):
            return
        if not self.history.evidence and self.snapshot is not None:
            saved = self.world.evidence.keep(self.snapshot)
            self._write(Kept(self.world.clock.now(), saved.folder, saved.missing, saved.notes))
        marked = self._mark(attempt)
        if not marked.ok:
            self._write(Declined(self.world.clock.now(), "the guest's marker", marked.detail, attempt.step, held=True))
            self._look()
            return
        findings = self.history.last.diagnosis.findings if self.history.last is not None else ()
        now = self.world.clock.now()
        self._write(Began(now, attempt.index, attempt.step, attempt.attempt, attempt.scope, findings))
        outcome = self._line(attempt.line)
        self._write(Ended(self.world.clock.now(), attempt.index, attempt.step, attempt.attempt, outcome))
        self._consent = None
        self._look()

    def _line(self, line: Line) -> Outcome:
        """Do a line's acts in order. It ends early when a `must` act fails, or between acts when we are interrupted."""
        began = self.world.clock.now()
        said: list[str] = []
        for act in line.acts:
            self._check_interrupt()
            if self.history.interrupted is not None:
                return Outcome(False, "interrupted; " + "; ".join(said), seconds=self.world.clock.now() - began)
            outcome = self._act(act.do)
            if outcome.detail:
                said.append(outcome.detail)
            if not outcome.ok and act.must:
                seconds = self.world.clock.now() - began
                return Outcome(False, outcome.detail, clear=outcome.clear, seconds=seconds, busy=outcome.busy)
        return Outcome(True, "; ".join(said), seconds=self.world.clock.now() - began)

    def _act(self, action: Action, restores: str = "") -> Outcome:
        if self.world.actuator is None:
            raise PermissionError("a read-only run has no actuator")
        n = self.history.acts
        self._write(Acting(self.world.clock.now(), n, action, restores))
        outcome = self.world.actuator.perform(action)
        self._write(Acted(self.world.clock.now(), n, outcome))
        self.world.observer.acted(action)
        return outcome

    def _mark(self, attempt: Try) -> Outcome:
        """Say in the guest that we work here; a guest that can't be reached has no marker to be had."""
        if self.snapshot is None or not isinstance(self.snapshot.guest, Guest) or self.history.opened is None:
            return Outcome(True, "no marker: the guest is mute", changed=False)
        opened, marker = self.history.opened, self.snapshot.guest.marker
        stale = marker.value.run if isinstance(marker, Known) and marker.value is not None else ""
        ttl = max(MARKER_TTL_S, attempt.line.worst_case_s + STALE_ANSWER_S)
        over = stale if stale in self.context.over else ""
        outcome = self._act(PlaceMarker(opened.run, opened.who, opened.host, attempt.step, ttl, over))
        if outcome.detail.startswith("held by"):
            return outcome
        return replace(outcome, ok=True)  # a /run that can't be written is no reason to leave a node stuck

    def _consented(self, attempt: Try) -> bool:
        """Ask the gate. A late yes holds only if a new look still plans the very same line."""
        if self._consent == (attempt.step, attempt.line):
            return True
        saw = self.history.last
        option = next((o for o in saw.options if o.index == attempt.index), None) if saw is not None else None
        if saw is None or option is None or not isinstance(option.offer, Ready):
            raise AssertionError("a try without a ready option")
        asked = self.world.clock.now()
        self.world.view.asking(True)
        try:
            answer = self.world.gate.ask(attempt, option.offer.blast, saw.diagnosis)
        finally:
            self.world.view.asking(False)
        now = self.world.clock.now()
        waited = now - asked
        self._answered(answer, attempt, now, waited)
        if answer.said != "yes":
            return False
        if waited > STALE_ANSWER_S:
            self._consent = (attempt.step, attempt.line)
            self._look()
            return False
        return True

    def _answered(self, answer: GateAnswer, attempt: Try, now: float, waited: float) -> None:
        if answer.said == "yes":
            self._write(Consented(now, attempt.step, answer.by, waited))
        else:
            skip = answer.said == "skip"
            self._write(Declined(now, answer.by, answer.why, attempt.step, skip, waited, answer.lift))


def own_running_task(snapshot: Snapshot) -> str:
    """UPID of a power task by our own token that still runs: an act of this run, or of one that was cut, left it."""
    if not isinstance(snapshot.hypervisor, Hypervisor) or not isinstance(snapshot.hypervisor.tasks, Known):
        return ""
    running = (t for t in snapshot.hypervisor.tasks.value if t.running and t.ours and t.type in POWER_TASKS)
    return next((t.upid for t in running), "")
