"""The connections of one target, made when first needed: SSH to the guest, the API of its cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from recover.core.config import Cluster, Config, Ssh, TargetConfig
from recover.core.config_table import SecretCommand, SecretEnv, SecretFile, SecretSource
from recover.edge.clock import SystemClock
from recover.edge.host import LOOK_S as LOOK_HOST_S
from recover.edge.host import HostProbe
from recover.edge.inside import KEPT_S, Inside
from recover.edge.observer import CombinedObserver
from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.proxmox.client import Client, ClusterSettings
from recover.edge.proxmox.secret import NoSecret, Secret, from_command, from_env, from_file
from recover.edge.shell.port import Shell
from recover.edge.shell.settings import SshSettings, SudoPassword
from recover.edge.shell.ssh import SshShell
from recover.edge.steady import SteadyProbe
from recover.model.contact import Broken, Ran
from recover.model.gpu import Condition
from recover.model.guest import Guest, Mute
from recover.model.hypervisor import GuestKind, Hypervisor, NoHypervisor
from recover.model.process import Health, OwnerKind
from recover.model.reading import Known
from recover.model.snapshot import Baseline, Snapshot, Target

if TYPE_CHECKING:
    from recover.core.read.pve_raw import PveRaw
    from recover.edge.actuator import CombinedActuator
    from recover.edge.evidence import Collector, Found

LOOK_S = 180.0
FRESH_S = 5.0  # so long the answers of a look are evidence of how it was before an act


def secret_of(source: SecretSource) -> Callable[[], Secret | NoSecret]:
    match source:
        case SecretFile(path):
            return lambda: from_file(path)
        case SecretEnv(name):
            return lambda: from_env(name)
        case SecretCommand(argv):
            return lambda: from_command(argv)


def cluster_client(cluster: Cluster) -> Client:
    return Client(
        ClusterSettings(
            urls=cluster.urls,
            token_id=cluster.token_id,
            secret=secret_of(cluster.token_secret),
            ca_file=cluster.ca_file,
            fingerprint=cluster.fingerprint,
        )
    )


def ssh_settings(ssh: Ssh, host: str) -> SshSettings:
    sudo: bool | SudoPassword = False
    if isinstance(ssh.sudo, bool):
        sudo = ssh.sudo
    elif ssh.sudo is not None:
        sudo = SudoPassword(_password(ssh.sudo))
    return SshSettings(
        host=host,
        port=ssh.port,
        user=ssh.user,
        identity_file=ssh.identity_file,
        known_hosts=ssh.known_hosts,
        sudo=sudo,
    )


def _password(source: SecretSource) -> Callable[[], str]:
    def ask() -> str:
        found = secret_of(source)()
        if isinstance(found, NoSecret):
            raise PermissionError(f"the sudo password cannot be had: {found.reason}")
        return found.value

    return ask


class Connections:
    """One target's channels. An address that only the hypervisor knows is asked for at the first look."""

    def __init__(
        self,
        config: Config,
        settings: TargetConfig,
        target: Target,
        *,
        look_s: float | None = None,
        steady: bool = False,
        client: Client | None = None,
    ) -> None:
        """`client`: one of the target's cluster that others use too; whoever made it closes it."""
        self._settings, self._target = settings, target
        self._look_s, self._steady = look_s or LOOK_S, steady
        cluster = config.clusters.get(target.cluster)
        self._shares = client is not None
        self._client = client or (cluster_client(cluster) if cluster is not None else None)
        self._hosts, self._host_shells = config.hosts, dict[str, SshShell]()
        self._shell: SshShell | None = None
        self._ram_bytes: int | None = None  # of the guest, as last seen
        self._probe: SteadyProbe | None = None
        self._kind = target.kind
        self._answers: tuple[PveRaw, float] | None = None  # the API's at the last look, and when they were complete
        asks_node = bool(self._hosts) and self._client is not None
        self._inside = Inside(self.host_shell, self._look_hypervisor, self._settings_of_looks()) if asks_node else None
        if target.address:
            self._reach(target.address)

    def _reach(self, address: str) -> None:
        self._shell = SshShell(ssh_settings(self._settings.ssh, address))

    def shell(self) -> SshShell:
        """The shell, at the configured address, else where the guest's agent says it is, else by its name."""
        if self._shell is None:
            seen = self._look_hypervisor()
            addresses = seen.agent_addresses if isinstance(seen, Hypervisor) else ()
            self._reach(addresses[0] if addresses else self._target.name)
        assert self._shell is not None
        return self._shell

    def host_shell(self, node: str) -> SshShell | None:
        """The opt-in root shell on a node, by the name that Proxmox has for it."""
        if node not in self._hosts:
            return None
        if node not in self._host_shells:
            host = self._hosts[node]
            self._host_shells[node] = SshShell(ssh_settings(host.ssh, host.address or node))
        return self._host_shells[node]

    def _eye(self) -> GuestProbe:
        """The probe; one whose agent stays is made once."""
        shell, settings = self.shell(), self._settings_of_looks()
        if not self._steady:
            return GuestProbe(shell, settings)
        if self._probe is None:
            self._probe = SteadyProbe(shell, settings)
        return self._probe

    def _settings_of_looks(self) -> ProbeSettings:
        health = (self._target.health,) if self._target.health else ()
        return ProbeSettings(services=self._target.services, health=health)

    def probe_now(self) -> GuestProbe:
        """The way that the last look went: to the guest itself, or into a container through its node."""
        return (self._inside.probe() if self._inside is not None else None) or self._eye()

    def shell_now(self) -> Shell:
        return (self._inside.found if self._inside is not None else None) or self.shell()

    def greet(self, *, acts: bool) -> None:
        """Before the first of several looks, where the guest's address is known and its agent will stay."""
        if self._shell is not None and self._steady:
            import recover.edge.shell.chain  # noqa: F401  the thread shall wait for the guest, not load modules

            self._eye()
            assert self._probe is not None
            self._probe.greet(self._own_share(self._look_s), acts=acts)

    def _own_share(self, deadline: float) -> float:
        """What the guest itself may take of a look: a container may have to be asked through its node after it."""
        kept = KEPT_S if self._inside is not None and self._kind is GuestKind.CONTAINER else 0.0
        return max(deadline / 3, deadline - kept)

    def look_guest(self, skip_gpus: Iterable[str] = (), *, deadline: float = LOOK_S) -> Guest | Mute:
        ends = time.monotonic() + deadline
        seen = self._eye().look(skip_gpus, deadline=self._own_share(deadline))
        if self._inside is not None:
            self._inside.found = None
            if isinstance(seen, Mute):
                seen = self._inside.look(seen, skip_gpus, ends - time.monotonic())
        if isinstance(seen, Guest) and isinstance(seen.ram, Known):
            self._ram_bytes = seen.ram.value.total_mib << 20
        return seen

    def _look_hypervisor(self) -> Hypervisor | NoHypervisor:
        if self._client is None or self._target.vmid is None:
            return NoHypervisor("not-configured", f"no cluster is configured for {self._target.name}")
        from recover.core.read.pve import hypervisor
        from recover.edge.proxmox.reads import LOOK_S as LOOK_API_S
        from recover.edge.proxmox.reads import gather

        raw = gather(self._client, self._target.cluster, self._target.vmid, min(LOOK_API_S, self._look_s))
        if isinstance(raw, NoHypervisor):
            self._answers = None
            return raw
        if not self._shares:  # a fleet's looks are many, and none of them is followed by an act
            self._answers = raw, time.monotonic()
        seen = hypervisor(raw)
        self._kind = seen.kind if isinstance(seen, Hypervisor) else self._kind
        return seen

    def observer(self, clock: SystemClock, baseline: Baseline | None, *, assume_hung: bool) -> CombinedObserver:
        hypervisor = self._look_hypervisor if self._client is not None else None
        seconds = min(LOOK_HOST_S, self._look_s)
        host = HostProbe(self.host_shell, seconds=seconds).look if self._hosts and self._client is not None else None
        return CombinedObserver(
            self._target,
            clock,
            _Eye(self),
            hypervisor,
            baseline,
            host=host,
            assume_hung=assume_hung,
            look_deadline=self._look_s,
        )

    def actuator(self) -> CombinedActuator:
        from recover.edge.actuator import CombinedActuator
        from recover.edge.actuator.guest import GuestActuator
        from recover.edge.actuator.host import HostActuator
        from recover.edge.actuator.hypervisor import HypervisorActuator
        from recover.edge.actuator.starts import CheckedStarts
        from recover.edge.boot import BootWatch
        from recover.edge.proxmox.tasks import Tasks

        guest = CheckedStarts(GuestActuator(_Hands(self)), self.shell_now, lambda: self._ram_bytes)
        boot = BootWatch(lambda seconds: self.look_guest(deadline=seconds), self.shell().forget)
        if self._client is None:
            return CombinedActuator(guest, None, boot)
        power = HypervisorActuator(
            self._client,
            Tasks(self._client),
            self._target.cluster,
            clock=time.monotonic,
            sleep=time.sleep,
            await_boot=boot,
        )
        return CombinedActuator(guest, power, host=HostActuator(self.host_shell) if self._hosts else None)

    def collectors(self) -> tuple[tuple[str, Collector], ...]:
        found: list[tuple[str, Collector]] = [("the guest's own logs", self._dump)]
        if self._client is not None and self._target.vmid is not None:
            found.append(("the hypervisor's record", self._record))
            if self._hosts:
                found.append(("the node's own words", self._node_words))
        return tuple(found)

    def causes(self, snapshot: Snapshot, seconds: float) -> tuple[str, ...]:
        from recover.edge.causes import causes

        return causes(self.shell_now(), snapshot, min(seconds, 30.0))

    def _dump(self, snapshot: Snapshot, seconds: float) -> Found:
        """Stacks and last words of what may be ended; the driver's own view only where no GPU hangs."""
        if not isinstance(snapshot.guest, Guest):
            return (), ()
        ending = [g for g in snapshot.groups if g.health in (Health.DEAD, Health.HUNG)]
        owners = [g.owner for g in ending]
        gpus = snapshot.guest.gpus.value if isinstance(snapshot.guest.gpus, Known) else ()
        pieces = self.probe_now().evidence(
            members=[m for g in ending for m in g.members],
            units=dict.fromkeys([*self._target.services, *(o.name for o in owners if o.kind is OwnerKind.SYSTEMD)]),
            containers=dict.fromkeys(o.name for o in owners if o.kind in (OwnerKind.DOCKER, OwnerKind.PODMAN)),
            nvml_hangs=any(g.condition in (Condition.HANGS, Condition.NOT_ASKED) for g in gpus),
            deadline=seconds,
        )
        return [(name, text.encode()) for name, text in pieces.files], pieces.missing

    def _record(self, snapshot: Snapshot, seconds: float) -> Found:
        from recover.edge.proxmox.record import record

        assert self._client is not None and self._target.vmid is not None
        raw, at = self._answers or (None, 0.0)
        known = raw if time.monotonic() - at < FRESH_S else None
        return record(self._client, self._target.cluster, self._target.vmid, seconds, known)

    def _node_words(self, snapshot: Snapshot, seconds: float) -> Found:
        if not isinstance(snapshot.host, Known) or not isinstance(snapshot.hypervisor, Hypervisor):
            return (), ()  # no shell that is proved to be on this node: the look has said why
        pieces = HostProbe(self.host_shell).words(snapshot.hypervisor, min(seconds, LOOK_HOST_S))
        return [(name, text.encode()) for name, text in pieces.files], pieces.missing

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()
        for shell in (self._shell, *self._host_shells.values()):
            if shell is not None:
                shell.close()
        if self._client is not None and not self._shares:
            self._client.close()


class _Hands:
    """Acts go the way of the last look."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def act(self, request: dict[str, Any], deadline: float) -> Ran | Broken:
        return self._connections.probe_now().act(request, deadline)


class _Eye:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def look(self, skip_gpus: Iterable[str] = (), *, deadline: float) -> Guest | Mute:
        return self._connections.look_guest(skip_gpus, deadline=deadline)
