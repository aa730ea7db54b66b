"""One run on disk: lock, journal, signals, hooks, engine; or the same without hands, when nothing may be done."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recover import __version__
from recover.core.config_notify import Hook
from recover.core.report.message import ended
from recover.edge.clock import SignalInterrupts
from recover.edge.evidence import EvidenceFolder, NoEvidence
from recover.edge.store.cases import DAY_S, Case, disruptions_since, to_resume
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import FileJournal, JournalDamaged
from recover.edge.store.lock import Holder, TargetLock
from recover.edge.store.memory import MemoryJournal
from recover.edge.takeover import TAKE_OVER_S, taken_over
from recover.engine import Run, World
from recover.model.notice import HookEvent
from recover.model.record import Began, Closed, Entry, Opened
from recover.ports import Actuator, Gate, Journal, View

if TYPE_CHECKING:
    from recover.edge.hooks import Patience

from recover.wiring.words import Flags, Held, Result, UsageProblem, Wired


def run_id(target: str, now: float) -> str:
    """Sorts by time, says where, and is never the same twice."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{target}-{secrets.token_hex(2)}"


@dataclass(slots=True)
class Recovery:
    """One run on disk: lock, journal, signals, engine."""

    state: StateFolder
    wired: Wired
    gate: Gate
    view: View
    flags: Flags
    hooks: Mapping[HookEvent, Hook]
    above: SignalInterrupts | None = None  # has the signals, where several runs go on at the same time

    def run(self) -> Result:
        name, now = self.wired.target.name, self.wired.clock.now()
        try:
            case = to_resume(self.state, name, now)
        except JournalDamaged as error:
            raise UsageProblem((str(error),), "move that run's folder away after reading it") from None
        run = case.run if case is not None else run_id(name, now)
        lock = TargetLock(self.state.target(name))
        by = f"watch ({who()})" if self.flags.unattended else who()
        me = Holder(run, by, socket.gethostname(), os.getpid(), now, self.flags.unattended)
        other = self._take(lock, me)
        if other is not None:
            raise Held(other, self._rung_of(other), name)
        try:
            # Only with the lock is it sure that the run to go on with is not going on.
            now = self.wired.clock.now()
            case = to_resume(self.state, name, now)
            run = case.run if case is not None else run_id(name, now)
            lock.note(replace(me, run=run))
            return self._with_journal(run, case, me)
        finally:
            lock.release()

    def _take(self, lock: TargetLock, me: Holder) -> Holder | None:
        if not self.flags.take_over:
            return lock.take(me)
        told = getattr(self.view, "waiting", lambda text: None)
        return taken_over(lock, me, lambda h: self.state.run(self.wired.target.name, h.run), told, TAKE_OVER_S)

    def _rung_of(self, holder: Holder) -> str:
        from recover.edge.store.journal import read_entries

        folder = self.state.run(self.wired.target.name, holder.run)
        began = [e for e in read_entries(folder / "journal.jsonl") if isinstance(e, Began)]
        return began[-1].step if began else "looking"

    def _with_journal(self, run: str, case: Case | None, me: Holder) -> Result:
        folder = self.state.run(self.wired.target.name, run)
        journal = FileJournal(folder)
        (folder / "abort").unlink(missing_ok=True)
        interrupts = SignalInterrupts(
            folder / "abort", lambda: "a full state folder" if journal.full else "", self.above
        )
        interrupts.told = getattr(self.view, "told", interrupts.told)
        interrupts.install()
        self.wired.clock.woken_by(lambda: bool(interrupts.pending()))
        evidence = EvidenceFolder(
            folder / "evidence", self.wired.connections.collectors(), self.wired.connections.causes
        )
        try:
            cut = self._cut(run, journal)
            gate = self._hooked(run, journal, interrupts)
            closed = engine_of(self.wired, self.wired.actuator(), gate, self.view, journal, evidence, interrupts,
                             run, case).run(self._opened(run, case, me), *cut)  # fmt: skip
            unheard = self._hooks_at_the_end(run, journal, closed, interrupts)
            entries = tuple(journal.entries())
            return Result(closed, entries, run, str(journal.path), unheard, ended(entries))
        finally:
            interrupts.uninstall()
            journal.close()

    def _cut(self, run: str, journal: Journal) -> tuple[Entry, ...]:
        """A hook whose tool was killed is told of by the run after it."""
        if not self.hooks:
            return ()
        from recover.edge.hooks import left_cut

        now = self.wired.clock.now()
        found = left_cut(self.state, self.wired.target.name, run, journal.entries())
        return tuple(replace(entry, at=now) for entry in found)

    def _patience(self, interrupts: SignalInterrupts) -> Patience:
        from recover.edge.hooks import Patience

        return Patience(lambda: interrupts.asked, getattr(self.view, "waiting", lambda text: None))

    def _hooked(self, run: str, journal: Journal, interrupts: SignalInterrupts) -> Gate:
        hook, wired = self.hooks.get(HookEvent.BEFORE_DISRUPTION), self.wired
        if hook is None:
            return self.gate
        from recover.edge.hooks import HookedGate

        write, patience = self._writer(journal), self._patience(interrupts)
        return HookedGate(self.gate, hook, wired.target, run, write, wired.clock.now, self.view, patience)

    def _hooks_at_the_end(
        self, run: str, journal: Journal, closed: Closed, interrupts: SignalInterrupts
    ) -> tuple[str, ...]:
        """Still under the lock: no other run may begin on a target that is just being given back."""
        from recover.edge.hooks import at_the_end

        target, write, now = self.wired.target, self._writer(journal), self.wired.clock.now
        try:
            patience = self._patience(interrupts)
            return at_the_end(self.hooks, self.state, target, run, journal.entries(), closed, write, now, patience)
        except OSError as error:
            return (f"hooks were not run at the end: the journal cannot be written: {error.strerror or error}",)

    def _writer(self, journal: Journal) -> Callable[[Entry], None]:
        def write(entry: Entry) -> None:
            journal.append(entry)
            self.view.entry(entry)

        return write

    def _opened(self, run: str, case: Case | None, me: Holder) -> Opened:
        now = self.wired.clock.now()
        today = disruptions_since(self.state, self.wired.target.name, now - DAY_S)
        return opening(self.wired, self.flags, run, me, today, resumed=case is not None)


def opening(wired: Wired, flags: Flags, run: str, me: Holder, today: int, *, resumed: bool) -> Opened:
    return Opened(
        at=wired.clock.now(),
        run=run,
        target=wired.target.name,
        playbook=wired.playbook.name,
        playbook_digest=wired.playbook.digest,
        who=me.who,
        host=me.host,
        pid=me.pid,
        deadline_s=flags.deadline_s or wired.playbook.limits.deadline_s or 0.0,
        disruptions_today=today,
        resumed=resumed,
        start_at=flags.start_at,
        only=flags.only,
        restart_services=not flags.no_restart,
        version=__version__,
        unattended=flags.unattended,
    )


def engine_of(
    wired: Wired,
    actuator: Actuator | None,
    gate: Gate,
    view: View,
    journal: Journal,
    evidence: EvidenceFolder | NoEvidence,
    interrupts: SignalInterrupts,
    run: str,
    case: Case | None,
) -> Run:
    world = World(wired.observer, actuator, gate, wired.clock, journal, evidence, view, interrupts)
    history = case.history if case is not None else None
    # Who may act holds the target's lock, so every other run in this folder is over, however it ended.
    runs = wired.state.runs(wired.target.name) if actuator is not None else []
    context = replace(wired.context, run=run, over=frozenset(p.name for p in runs) - {run})
    return Run(world, wired.playbook, context, history)


def dry(state: StateFolder, wired: Wired, gate: Gate, view: View, flags: Flags) -> Result:
    """The same loop without an actuator: it ends where the first act would begin, and writes nothing.

    What earlier runs left behind counts as it would in earnest.
    """
    try:
        case = to_resume(state, wired.target.name, wired.clock.now())
        today = disruptions_since(state, wired.target.name, wired.clock.now() - DAY_S)
    except JournalDamaged as error:
        raise UsageProblem((str(error),), "move that run's folder away after reading it") from None
    journal, interrupts = MemoryJournal(), SignalInterrupts()
    me = Holder("dry-run", who(), socket.gethostname(), os.getpid(), wired.clock.now())
    interrupts.install()
    wired.clock.woken_by(lambda: bool(interrupts.pending()))
    try:
        engine = engine_of(wired, None, gate, view, journal, NoEvidence(), interrupts, "dry-run", case)
        closed = engine.run(opening(wired, flags, "dry-run", me, today, resumed=case is not None))
    finally:
        interrupts.uninstall()
    return Result(closed, tuple(journal.entries()), "dry-run", "")


def who() -> str:
    """Who runs us, for the people who find us at work."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        name = f"uid {os.getuid()}"
    sudo = os.environ.get("SUDO_USER")
    return f"{sudo} (as {name})" if sudo else name
