"""The composition root: the one place that names adapters; an actuator goes only to what may change things."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from recover import __version__
from recover.core.config import Config, TargetConfig
from recover.core.config_notify import Hook
from recover.core.guards import Context
from recover.core.report.message import ended
from recover.edge.clock import SignalInterrupts, SystemClock
from recover.edge.config_file import ConfigProblem, load_config
from recover.edge.evidence import EvidenceFolder, NoEvidence
from recover.edge.hooks import HookedGate, at_the_end
from recover.edge.inventory import Unresolved, resolve
from recover.edge.playbooks import PlaybookProblem, read_playbook, shipped_playbooks
from recover.edge.store.baselines import load_baseline, save_baseline
from recover.edge.store.cases import DAY_S, Case, disruptions_since, minutes_taken, to_resume
from recover.edge.store.folder import StateFolder, StateProblem, state_folder
from recover.edge.store.journal import FileJournal, JournalDamaged
from recover.edge.store.lock import Holder, TargetLock
from recover.edge.store.memory import MemoryJournal
from recover.edge.store.standings import FileStandings
from recover.edge.takeover import TAKE_OVER_S, taken_over
from recover.engine import Run, World
from recover.model.ladder import Limits, Playbook
from recover.model.notice import HookEvent, Notice
from recover.model.record import Began, Closed, End, EndKind, Entry, Opened
from recover.model.snapshot import Baseline, Snapshot, Target
from recover.model.verdict import Scope
from recover.ports import Actuator, Clock, Gate, Herald, Journal, Observer, View
from recover.watcher import Watcher

if TYPE_CHECKING:
    from recover.core.read.pve import GuestRow
    from recover.edge.connections import Connections
    from recover.edge.proxmox.client import Client
    from recover.edge.simulated import Fault

DEFAULT_PLAYBOOK = "hung-server"


class UsageProblem(Exception):
    """Words or configuration that cannot be used: every problem, and one hint. Exit code 2."""

    def __init__(self, problems: tuple[str, ...], hint: str = "") -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.hint = hint


class Held(Exception):
    """Another run works on the target. Exit code 20."""

    def __init__(self, holder: Holder, rung: str, target: str) -> None:
        super().__init__(f"{target} is held by run {holder.run} of {holder.who} on {holder.host}")
        self.holder, self.rung, self.target = holder, rung, target


@dataclass(frozen=True, slots=True)
class Flags:
    """What a person said on the command line."""

    yes: bool = False
    approve: Scope | None = None
    evict: bool = False
    assume_hung: bool = False
    trust_vmid: bool = False
    apply_pending: bool = False
    no_restart: bool = False
    deadline_s: float | None = None
    dry_run: bool = False
    max_scope: Scope | None = None
    start_at: str = ""
    only: str = ""
    json: bool = False
    look_s: float | None = None  # the most that one look may take
    steady: bool = False  # several looks will be made: the agent stays on the far side between them
    take_over: bool = False  # an unattended run on the target is asked to yield, and waited for
    unattended: bool = False  # nobody said any of this


@dataclass(frozen=True, slots=True)
class Result:
    """A run from beginning to end. `journal` is a path, empty where nothing was kept."""

    closed: Closed
    entries: tuple[Entry, ...]
    run: str
    journal: str
    unheard: tuple[str, ...] = ()  # hooks and messages of its end that failed, a sentence each
    notice: Notice | None = None  # its end, for people; None: there is nothing to tell, or they were told


@dataclass(slots=True)
class Wired:
    """Everything for one resolved target. Holds open connections: `close` it."""

    target: Target
    playbook: Playbook
    context: Context
    state: StateFolder
    clock: SystemClock
    observer: Observer
    actuator: Callable[[], Actuator]
    connections: Connections
    baseline: Baseline | None = None

    def look(self) -> Snapshot:
        return self.observer.look()

    def close(self) -> None:
        self.connections.close()


@dataclass(frozen=True, slots=True)
class Eyes:
    """What may look at one target and change nothing: there is no actuator in it to be had. `close` it."""

    target: Target
    limits: Limits
    clock: Clock
    observer: Observer
    close: Callable[[], None]


@dataclass(slots=True)
class App:
    """The configuration and the state folder of one invocation."""

    config: Config
    state: StateFolder
    environ: Mapping[str, str] = field(default_factory=dict)
    _guests: dict[str, tuple[GuestRow, ...] | str] = field(default_factory=dict)
    _clients: dict[str, Client] = field(default_factory=dict)  # for looks: of many targets one asks for the secret

    def resolve(self, names: Sequence[str]) -> tuple[Target, ...]:
        """All names or none. Raises UsageProblem with suggestions for each that is no target."""
        known = {name: _target(t) for name, t in self.config.targets.items()}
        found = [resolve(name, known, self.config.clusters, self._guests_of) for name in names]
        wrong = [f for f in found if isinstance(f, Unresolved)]
        if wrong:
            raise UsageProblem(tuple(str(w) for w in wrong), "gpu-recover --help lists the commands")
        return tuple(f for f in found if isinstance(f, Target))

    def _guests_of(self, cluster: str) -> tuple[GuestRow, ...] | str:
        from recover.edge.connections import cluster_client
        from recover.edge.proxmox.errors import ApiError
        from recover.edge.proxmox.reads import guests

        if cluster not in self._guests:
            rows = guests(cluster_client(self.config.clusters[cluster]))
            self._guests[cluster] = str(rows) if isinstance(rows, ApiError) else rows
        return self._guests[cluster]

    def playbook(self, name_or_file: str) -> Playbook:
        """A shipped playbook by name, or one from a file. Raises UsageProblem with all of its problems."""
        try:
            return read_playbook(name_or_file)
        except PlaybookProblem as error:
            raise UsageProblem(error.problems, error.hint) from None

    def playbooks(self) -> tuple[Playbook, ...]:
        return shipped_playbooks()

    def baseline(self, target: Target) -> Baseline | None:
        try:
            return load_baseline(self.state, target.name)
        except StateProblem as error:
            raise UsageProblem((str(error),)) from None

    def save_baseline(self, target: Target, baseline: Baseline) -> str:
        try:
            self.state.ready()
            return save_baseline(self.state, target.name, baseline)
        except StateProblem as error:
            raise UsageProblem((str(error),)) from None

    def wire(self, target: Target, playbook: Playbook, flags: Flags, *, acts: bool = True) -> Wired:
        """Adapters for one target. Nothing is connected before the first look."""
        from recover.edge.connections import Connections

        clock = SystemClock()
        baseline = self.baseline(target)
        settings = self.config.targets.get(target.name) or TargetConfig(target.name, ssh=self.config.ssh)
        client = None if acts else self._client_of(target.cluster)
        connections = Connections(
            self.config, settings, target, look_s=flags.look_s, steady=flags.steady, client=client
        )
        limits = playbook.limits if flags.max_scope is None else replace(playbook.limits, max_scope=flags.max_scope)
        context = Context(
            evict=flags.evict,
            trust_vmid=flags.trust_vmid,
            apply_pending=flags.apply_pending,
            assume_hung=flags.assume_hung,
            approved=flags.approve,
            took=self._took(target) if acts else (),
        )
        return Wired(
            target=target,
            playbook=replace(playbook, limits=limits),
            context=context,
            state=self.state,
            clock=clock,
            observer=connections.observer(clock, baseline, assume_hung=flags.assume_hung),
            actuator=connections.actuator,
            connections=connections,
            baseline=baseline,
        )

    def _client_of(self, cluster: str) -> Client | None:
        from recover.edge.connections import cluster_client

        if cluster in self.config.clusters and cluster not in self._clients:
            self._clients[cluster] = cluster_client(self.config.clusters[cluster])
        return self._clients.get(cluster)

    def close(self) -> None:
        """End the connections that looks at several targets share."""
        for client in self._clients.values():
            client.close()

    def _took(self, target: Target) -> tuple[tuple[str, float, int], ...]:
        """A journal that can't be read must not keep us from recovering: then the estimate is from the size."""
        try:
            return minutes_taken(self.state, target.name)
        except (JournalDamaged, OSError):
            return ()

    def eyes(self, target: Target, playbook: Playbook, look_s: float, *, steady: bool = True) -> Eyes:
        """For commands that only look. Nothing is connected before the first look."""
        wired = self.wire(target, playbook, Flags(look_s=look_s, steady=steady), acts=False)
        return Eyes(target, wired.playbook.limits, wired.clock, wired.observer, wired.close)

    def watcher(self, herald: Herald) -> Watcher:
        """Remembers what checks say and tells what changed. Can change nothing but files below STATE/watch."""
        return Watcher(FileStandings(self.state), herald, SystemClock(), self.config.watch.policy)

    def recover(self, wired: Wired, gate: Gate, view: View, flags: Flags) -> Result:
        """Run, or go on with a run that was cut, and tell people how it ended.

        Raises Held, UsageProblem; OSError if the journal can't be written.
        """
        result = self.recover_untold(wired, gate, view, flags)
        said = self.herald().announce(result.notice) if result.notice is not None else ()
        return replace(result, unheard=(*result.unheard, *said), notice=None)

    def recover_untold(self, wired: Wired, gate: Gate, view: View, flags: Flags) -> Result:
        """As `recover`, for who shows the result first: whose pager hangs must not wait for the verdict."""
        if flags.dry_run:
            return _dry(self.state, wired, gate, view, flags)
        try:
            self.state.ready()
        except StateProblem as error:
            raise UsageProblem((str(error),)) from None
        return _Recovery(self.state, wired, gate, view, flags, self.config.hooks).run()

    def herald(self) -> Herald:
        """Who tells people and the state-change hook. Nothing is read or imported for it before there is something."""
        from recover.edge.herald import FileHerald

        hook = self.config.hooks.get(HookEvent.STATE_CHANGE)
        return FileHerald(self.config.notify, hook, self.state, self._by_name)

    def _by_name(self, name: str) -> Target:
        """A target for words about it: without asking anybody."""
        known = self.config.targets.get(name)
        return _target(known) if known is not None else Target(name, "")


def open_config(path: str | None, environ: Mapping[str, str], state_dir: str | None) -> App:
    """Read the configuration. Raises UsageProblem."""
    try:
        config = load_config(path, environ)
    except ConfigProblem as error:
        raise UsageProblem(error.problems, error.hint) from None
    return App(config, open_state(environ, state_dir), environ)


def open_state(environ: Mapping[str, str], state_dir: str | None) -> StateFolder:
    return StateFolder(state_folder(state_dir, environ, root=os.geteuid() == 0))


def _target(config: TargetConfig) -> Target:
    return Target(
        name=config.name,
        address=config.address,
        cluster=config.cluster,
        vmid=config.vmid,
        services=config.services,
        health=config.health,
        protect=config.protect,
        playbook=config.playbook,
        expect=config.expect,
        do_not_recover=config.do_not_recover,
    )


def run_id(target: str, now: float) -> str:
    """Sorts by time, says where, and is never the same twice."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}-{target}-{secrets.token_hex(2)}"


@dataclass(slots=True)
class _Recovery:
    """One run on disk: lock, journal, signals, engine."""

    state: StateFolder
    wired: Wired
    gate: Gate
    view: View
    flags: Flags
    hooks: Mapping[HookEvent, Hook]

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
        interrupts = SignalInterrupts(folder / "abort", lambda: "a full state folder" if journal.full else "")
        interrupts.told = getattr(self.view, "told", interrupts.told)
        interrupts.install()
        self.wired.clock.woken_by(lambda: bool(interrupts.pending()))
        evidence = EvidenceFolder(
            folder / "evidence", self.wired.connections.collectors(), self.wired.connections.causes
        )
        try:
            gate = self._hooked(run, journal)
            closed = _engine(self.wired, self.wired.actuator(), gate, self.view, journal, evidence, interrupts,
                             run, case).run(self._opened(run, case, me))  # fmt: skip
            unheard = self._hooks_at_the_end(run, journal, closed)
            entries = tuple(journal.entries())
            return Result(closed, entries, run, str(journal.path), unheard, ended(entries))
        finally:
            interrupts.uninstall()
            journal.close()

    def _hooked(self, run: str, journal: Journal) -> Gate:
        hook, wired = self.hooks.get(HookEvent.BEFORE_DISRUPTION), self.wired
        if hook is None:
            return self.gate
        return HookedGate(self.gate, hook, wired.target, run, self._writer(journal), wired.clock.now, self.view)

    def _hooks_at_the_end(self, run: str, journal: Journal, closed: Closed) -> tuple[str, ...]:
        """Still under the lock: no other run may begin on a target that is just being given back."""
        target, write, now = self.wired.target, self._writer(journal), self.wired.clock.now
        try:
            return at_the_end(self.hooks, self.state, target, run, journal.entries(), closed, write, now)
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
        return _opening(self.wired, self.flags, run, me, today, resumed=case is not None)


def _opening(wired: Wired, flags: Flags, run: str, me: Holder, today: int, *, resumed: bool) -> Opened:
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


def _engine(
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


def _dry(state: StateFolder, wired: Wired, gate: Gate, view: View, flags: Flags) -> Result:
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
        engine = _engine(wired, None, gate, view, journal, NoEvidence(), interrupts, "dry-run", case)
        closed = engine.run(_opening(wired, flags, "dry-run", me, today, resumed=case is not None))
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


def rehearse(playbook: Playbook, fault: Fault, view: View, gate: Gate, disruptions_today: int = 0) -> Result:
    """The whole climb against a machine that isn't there; nothing is written and no time passes."""
    from recover.edge.simulated import SimulatedClock, simulate

    clock = SimulatedClock(time.time())
    machine = simulate(fault, clock)
    journal = MemoryJournal()
    world = World(machine, machine, gate, clock, journal, NoEvidence(), view, SignalInterrupts())
    opened = Opened(
        at=clock.now(),
        run="rehearsal",
        target="node-174",
        playbook=playbook.name,
        playbook_digest=playbook.digest,
        who=who(),
        host="simulated",
        pid=os.getpid(),
        deadline_s=playbook.limits.deadline_s or 0.0,
        disruptions_today=disruptions_today,
        version=__version__,
    )
    closed = Run(world, playbook, Context(run="rehearsal", approved=Scope.HOST_DEVICE)).run(opened)
    return Result(closed, tuple(journal.entries()), "rehearsal", "")


def held_end(held: Held) -> End:
    """The end of a run that could not begin."""
    return End(
        EndKind.HELD, str(held) + (f", at {held.rung}" if held.rung else ""), f"gpu-recover follow {held.target}"
    )


__all__ = [
    "DEFAULT_PLAYBOOK",
    "App",
    "Eyes",
    "Flags",
    "Held",
    "Result",
    "UsageProblem",
    "Wired",
    "held_end",
    "open_config",
    "open_state",
    "rehearse",
]
