"""The configuration and the state folder of one invocation, and the adapters that it hands out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from recover.core.config import Config, TargetConfig
from recover.edge.clock import SystemClock
from recover.edge.config_file import ConfigProblem, load_config
from recover.edge.inventory import Unresolved, resolve
from recover.edge.playbooks import PlaybookProblem, read_playbook, shipped_playbooks
from recover.edge.store.baselines import load_baseline, save_baseline
from recover.edge.store.folder import StateFolder, StateProblem, state_folder
from recover.model.ladder import Playbook
from recover.model.notice import HookEvent
from recover.model.snapshot import Baseline, Target
from recover.ports import Gate, Herald, View

if TYPE_CHECKING:
    from recover.core.read.pve import GuestRow
    from recover.edge.proxmox.client import Client
    from recover.watcher import Watcher

from recover.wiring.words import Eyes, Flags, Result, UsageProblem, Wired

ADDRESSES_S = 45.0  # so long a cluster may take to tell its guests' addresses


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
        found = [resolve(name, known, self.config.clusters, self._guests_of, self._addresses_of) for name in names]
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

    def _addresses_of(self, cluster: str) -> Mapping[int, tuple[str, ...]]:
        """What the GPU guests of a cluster say of themselves: asked only for an address that nobody is known by."""
        from recover.edge.connections import cluster_client
        from recover.edge.proxmox.errors import ApiError
        from recover.edge.targets import see_targets

        said = see_targets(cluster_client(self.config.clusters[cluster]), cluster, ADDRESSES_S)
        return {} if isinstance(said, ApiError) else said.addresses or {}

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
        """Adapters for one target. Nothing is asked before the first look.

        The guest is greeted for a run of several looks: while it lets us in, the rest of the tool is loaded.
        """
        from recover.edge.connections import Connections

        clock = SystemClock()
        baseline = self.baseline(target)
        settings = self.config.targets.get(target.name) or TargetConfig(target.name, ssh=self.config.ssh)
        client = None if acts else self._client_of(target.cluster)
        connections = Connections(
            self.config, settings, target, look_s=flags.look_s, steady=flags.steady, client=client
        )
        if acts and not flags.take_over:  # who must wait for another run first would greet too early
            connections.greet(acts=not flags.dry_run)
        from recover.core.guards import Context

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
        from recover.edge.store.cases import minutes_taken
        from recover.edge.store.journal import JournalDamaged

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
        from recover.edge.store.standings import FileStandings
        from recover.watcher import Watcher

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
        from recover.wiring.run import Recovery, dry

        if flags.dry_run:
            return dry(self.state, wired, gate, view, flags)
        try:
            self.state.ready()
        except StateProblem as error:
            raise UsageProblem((str(error),)) from None
        return Recovery(self.state, wired, gate, view, flags, self.config.hooks).run()

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
