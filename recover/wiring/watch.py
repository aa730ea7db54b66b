"""Composes what acts with nobody there: the one place that gives an attendant its ledger, its rules and its runs."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from recover.attendant import Attendant, Jobs, RunEnd, one_by_one
from recover.core.config import Config
from recover.core.fleet import BUG, FAR_S, Picture
from recover.core.report.check.verdict import Checked
from recover.core.report.result import SERVICE_NOT_BACK, exit_code
from recover.core.unattended import Rules
from recover.edge.clock import SignalInterrupts, SystemClock
from recover.edge.fleet import side_by_side
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import JournalDamaged, read_entries
from recover.edge.store.ledger import FileLedger, LocalControllers
from recover.edge.store.lock import noted
from recover.edge.store.standings import FileStandings
from recover.model.ladder import Playbook, Ready
from recover.model.record import Acting, Began, Decided, EndKind, Entry, Opened, Saw, Try
from recover.model.snapshot import Target
from recover.model.watch import Standing, Status
from recover.ports import Gate, View
from recover.wiring.app import App
from recover.wiring.run import Recovery
from recover.wiring.words import Flags, Held, Result, UsageProblem, Wired

FRESH_S = 900.0  # what was seen of the rest of the fleet counts for so long
ON_CALL_S = (
    1800.0  # whoever worked there so lately is still at it; also within this time a cut run would be gone on with
)

NOT_BACK = "service-not-back"  # how a run ended, in a word, where its end alone does not tell

Views = Callable[[Wired], AbstractContextManager[View]]


def playbook_of(app: App) -> Playbook:
    """The playbook that may be climbed with nobody there. Raises UsageProblem."""
    name = app.config.watch.playbook
    playbook = app.playbook(name)
    if playbook.unattended is None:
        raise UsageProblem(
            (f"watch.playbook: {name} has no [unattended]: it does not say what may be done with nobody there",),
            "gpu-recover playbooks show watch is an example; or take playbook out of [watch]",
        )
    return playbook


def attendant(
    app: App, targets: Mapping[str, Target], view_of: Views, bug: Callable[[Exception], None],
    told: Callable[[str], None] = lambda who: None, *, dry: bool = False,
) -> Attendant:  # fmt: skip
    """`targets` by name: those that were looked at. `bug` is told of what `run` never raises, `told` who asked several
    runs to stop. Raises UsageProblem.
    """
    playbook = playbook_of(app)
    assert playbook.unattended is not None
    config, clock = app.config, SystemClock()
    runs = _Runs(app, targets, playbook, view_of, bug, told)
    return Attendant(
        ledger=FileLedger(app.state),
        controllers=LocalControllers(),
        clock=clock,
        rules=Rules(playbook.unattended, config.watch.policy, config.fleet, (*config.watch.quiet, *config.maintenance)),
        size=len({*config.targets, *targets}),
        at_work=lambda target: at_work(app.state, target, clock.now()),
        run=runs.plan if dry else runs.run,
        herald=app.herald(),
        together=runs.together,
    )


def picture(config: Config, state: StateFolder, seen: Iterable[Checked]) -> Picture:
    """How the fleet is: what was just seen, and of the rest what was kept a short while ago."""
    found = {one.target: one.status for one in seen}
    standings, now = FileStandings(state), time.time()
    for name in config.targets:
        if name not in found:
            kept = standings.read(name)
            newest = kept.recent[-1] if isinstance(kept, Standing) and kept.recent else None
            fresh = newest is not None and 0 <= now - newest.at <= FRESH_S
            found[name] = newest.status if newest is not None and fresh else Status.UNKNOWN
    return Picture(len(found), found)


def at_work(state: StateFolder, target: str, now: float) -> str:
    """Who works on the target, or which person did lately; an empty string for nobody."""
    holder = noted(state.target(target))
    if holder is not None and (holder.host == socket.gethostname() or now - holder.since < FAR_S):
        return f"run {holder.run} by {holder.who} on {holder.host} works on it"
    for folder in reversed(state.runs(target)[-5:]):
        path = folder / "journal.jsonl"
        try:
            if time.time() - path.stat().st_mtime > ON_CALL_S:
                continue
            last = [e for e in read_entries(path) if isinstance(e, Opened)][-1:]
        except FileNotFoundError:
            continue
        except (OSError, JournalDamaged) as error:
            return f"what was done there last can't be read: {error}"
        if last and not last[0].unattended:
            return f"{last[0].who} worked on it within {ON_CALL_S / 60:g} min (run {last[0].run})"
    return ""


@dataclass(slots=True)
class _Runs:
    app: App
    targets: Mapping[str, Target]
    playbook: Playbook
    view_of: Views
    bug: Callable[[Exception], None]
    told: Callable[[str], None]  # who asked to stop, while several runs go on
    above: SignalInterrupts | None = None

    def together(self, jobs: Jobs) -> None:
        """Several at the same time. A signal comes to the main thread alone, and is for all of them."""
        if len(jobs) < 2:
            return one_by_one(jobs)
        self.app.state.ready()  # it has just taken the permits, so nothing is in its way
        self.above = SignalInterrupts()
        self.above.told = self.told
        self.above.install()
        try:
            side_by_side(jobs)
        finally:
            self.above.uninstall()
            self.above = None

    def run(self, name: str, gate: Gate) -> RunEnd:
        """A whole run. All that goes wrong is an end; nothing but Ctrl-C comes through."""
        try:
            result = self._result(name, gate, Flags(unattended=True, steady=True))
        except Held as held:
            return RunEnd(EndKind.HELD.value, False, str(held), code=20)
        except UsageProblem as error:
            return RunEnd(BUG, True, "; ".join(error.problems))
        except OSError as error:
            return RunEnd(BUG, True, f"its journal can't be written: {error.strerror or error}")
        except Exception as error:
            self.bug(error)
            return RunEnd(BUG, True, f"a fault of gpu-recover ({type(error).__name__})")
        end, code = result.closed.end, exit_code(result.closed)
        word = NOT_BACK if code == SERVICE_NOT_BACK else end.kind.value
        why = f"{end.why}; its service is not back: {result.closed.service}" if word == NOT_BACK else end.why
        return RunEnd(word, tried(result.entries), why, result.run, code, result.unheard, result.notice)

    def plan(self, name: str, gate: Gate) -> RunEnd:
        """What a run would do first, and whether it might; nothing is changed and nothing written."""
        try:
            result = self._result(name, gate, Flags(unattended=True, dry_run=True, steady=True))
        except UsageProblem as error:
            return RunEnd(BUG, False, "; ".join(error.problems))
        end = result.closed.end
        refused = _asked(result.entries, gate) if end.kind is EndKind.PLANNED else ""
        if refused:
            return RunEnd(EndKind.BLOCKED.value, False, f"{end.why}; but {refused}")
        return RunEnd(end.kind.value, False, end.why)

    def _result(self, name: str, gate: Gate, flags: Flags) -> Result:
        wired = self.app.wire(self.targets[name], self.playbook, flags)
        try:
            with self.view_of(wired) as view:
                if self.above is None:
                    return self.app.recover_untold(wired, gate, view, flags)
                return Recovery(self.app.state, wired, gate, view, flags, self.app.config.hooks, self.above).run()
        finally:
            wired.close()


def tried(entries: Iterable[Entry]) -> bool:
    """Whether this run, the last that was opened in its journal, did anything to the target."""
    did = False
    for entry in entries:
        if isinstance(entry, Opened):
            did = False
        did = did or isinstance(entry, (Began, Acting))
    return did


def _asked(entries: Iterable[Entry], gate: Gate) -> str:
    """Why the gate would say no to what a plan would try first."""
    saw: Saw | None = None
    wanted: Try | None = None
    for entry in entries:
        match entry:
            case Saw():
                saw = entry
            case Decided(decision=Try() as attempt):
                wanted = attempt
    if saw is None or wanted is None:
        return ""
    option = next((o for o in saw.options if o.index == wanted.index), None)
    if option is None or not isinstance(option.offer, Ready):
        return ""
    answer = gate.ask(wanted, option.offer.blast, saw.diagnosis)
    return "" if answer.said == "yes" else answer.why
