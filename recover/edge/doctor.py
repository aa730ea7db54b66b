"""Asks, side by side and each within its time, all that a recovery will depend on; it changes nothing anywhere."""

from __future__ import annotations

import hashlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from recover.core.config import Cluster, Config, HostConfig, TargetConfig
from recover.core.doctor import Certificate, Refusal
from recover.core.doctor_guest import AgentSeen
from recover.core.privileges import Held, Need, Place, needs, place_of
from recover.core.read.agent import parse_lines
from recover.core.read.pve_values import flag, rows_of, text
from recover.edge.connections import Connections, secret_of, ssh_settings
from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.proxmox.client import DEFAULT_PORT, Client, ClusterSettings, bounded
from recover.edge.proxmox.errors import ApiError, clean
from recover.edge.proxmox.reads import look
from recover.edge.proxmox.secret import NoSecret, Secret
from recover.edge.shell.ssh import SshShell
from recover.model.contact import Broken, Failure
from recover.model.guest import Guest, Mute
from recover.model.hypervisor import GuestKind, Hypervisor, NoHypervisor
from recover.model.reading import Known, Reading, Unknown, Why
from recover.model.snapshot import Baseline, Snapshot, Target

NAME_S, DIAL_S, API_S, LOOK_API_S = 8.0, 8.0, 20.0, 60.0
CONNECT_S, WORD_S, LOOK_S = 40.0, 25.0, 75.0
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class UrlSeen:
    """One address of a cluster's API."""

    url: str
    host: str
    addresses: tuple[str, ...] = ()
    name_problem: str = ""
    certificate: Certificate | str = "not asked"
    said: str | Refusal = field(default_factory=lambda: Refusal("unreachable", "the name is not resolved"))
    ahead_s: float | None = None  # the node's clock before ours
    margin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    urls: tuple[UrlSeen, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApiSeen:
    """One guest through the API: what it is, what is needed for it, and what the token holds there."""

    found: Hypervisor | NoHypervisor
    place: Place
    wanted: tuple[Need, ...]
    held: Mapping[str, Reading[Held]]


@dataclass(frozen=True, slots=True)
class ShellSeen:
    """A machine through SSH; `guest` only where the agent was started."""

    where: str
    failure: Failure | None = None
    detail: str = ""
    uid: int | None = None
    ahead_s: float | None = None
    margin_s: float = 0.0
    agent: AgentSeen | str | None = None
    guest: Guest | Mute | None = None
    hostname: str = ""  # asked of a node only
    python: str = ""


# --- a cluster


def see_cluster(cluster: Cluster, left: float) -> ClusterSeen:
    """Every address of it, each with the production client, so that what is said here is what a run would meet."""
    secret = secret_of(cluster.token_secret)()

    def one(url: str) -> UrlSeen:
        return _see_url(cluster, url, secret, left)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = tuple(pool.map(one, cluster.urls))
    return ClusterSeen(seen, secret.warnings if isinstance(secret, Secret) else ())


def _see_url(cluster: Cluster, url: str, secret: Secret | NoSecret, left: float) -> UrlSeen:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    ends = time.monotonic() + left
    addresses = resolve(host, min(NAME_S, left))
    if isinstance(addresses, str):
        return UrlSeen(url, host, name_problem=addresses)
    certificate = _shown(host, port, min(DIAL_S, ends - time.monotonic()))
    client = Client(ClusterSettings((url,), cluster.token_id, lambda: secret, cluster.ca_file, cluster.fingerprint))
    began, wall = time.monotonic(), time.time()
    try:
        said = client.get("/version", deadline=max(1.0, min(API_S, ends - time.monotonic())))
    finally:
        client.close()
    took = time.monotonic() - began
    ahead = client.server_time - (wall + took / 2) if client.server_time else None
    if isinstance(said, ApiError):
        answer: str | Refusal = Refusal(said.kind, said.message)
    else:
        version = clean(text(said.get("version")), 40) if isinstance(said, Mapping) else ""
        answer = version or Refusal("garbled", "it names no version")
    return UrlSeen(url, host, addresses, "", certificate, answer, ahead, took / 2 + 1.0)  # a Date has whole seconds


def resolve(host: str, seconds: float) -> tuple[str, ...] | str:
    try:
        found = bounded(seconds, lambda: socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except TimeoutError:
        return f"the resolver gave no answer within {seconds:.0f} s"
    except (OSError, UnicodeError) as error:
        return clean(getattr(error, "strerror", None) or error, 200)
    return tuple(dict.fromkeys(str(row[4][0]) for row in found))


def _shown(host: str, port: int, seconds: float) -> Certificate | str:
    """The certificate whoever signed it: its dates are read, nothing is trusted and nothing sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def dial() -> bytes:
        with socket.create_connection((host, port), timeout=max(seconds, 0.1)) as plain, context.wrap_socket(
            plain, server_hostname=host
        ) as wrapped:  # fmt: skip
            return wrapped.getpeercert(binary_form=True) or b""

    try:
        return _parsed(bounded(seconds, dial))
    except (OSError, ValueError) as error:
        return clean(getattr(error, "strerror", None) or error, 200)


def _parsed(der: bytes) -> Certificate:
    from cryptography import x509

    found: Any = x509.load_der_x509_certificate(der)

    def seconds(name: str) -> float:
        moment = getattr(found, f"{name}_utc", None)  # since cryptography 42
        if moment is None:
            moment = getattr(found, name).replace(tzinfo=UTC)
        assert isinstance(moment, datetime)
        return moment.timestamp()

    return Certificate(seconds("not_valid_before"), seconds("not_valid_after"), hashlib.sha256(der).hexdigest())


# --- a guest through the API


def see_api(
    client: Client, cluster: str, vmid: int, rungs: Callable[[GuestKind], tuple[str, ...]], left: float
) -> ApiSeen:
    """`rungs`: those of a guest of that kind which act through the API."""
    ends = time.monotonic() + left

    def rest(most: float) -> float:
        return max(0.5, min(most, ends - time.monotonic()))

    found = look(client, cluster, vmid, rest(LOOK_API_S))
    if isinstance(found, Hypervisor):
        said = client.get("/nodes", deadline=rest(API_S))
        others = sorted(
            str(row["node"]) for row in rows_of([] if isinstance(said, ApiError) else said) if "node" in row
        )
        place = place_of(found, others)
    else:
        place = Place(vmid)
    kind = found.kind if isinstance(found, Hypervisor) else GuestKind.VM
    wanted = needs(place, rungs(kind))
    paths = tuple(dict.fromkeys(need.path for need in wanted))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        held = dict(zip(paths, pool.map(lambda path: _held(client, path, rest(API_S)), paths), strict=True))
    return ApiSeen(found, place, wanted, held)


def _held(client: Client, path: str, seconds: float) -> Reading[Held]:
    """Privilege -> whether it propagates, as PVE itself counts it for this token on this path."""
    said = client.get("/access/permissions", deadline=seconds, path=path)
    if isinstance(said, ApiError):
        return said.unknown()
    if not isinstance(said, Mapping):
        return Unknown(Why.GARBLED, "not an object")
    rows = said.get(path)  # PVE answers by path; no row: nothing is held there
    return Known({str(name): flag(below) for name, below in rows.items()} if isinstance(rows, Mapping) else {})


# --- a machine through SSH


def see_guest(config: Config, settings: TargetConfig, target: Target, left: float) -> ShellSeen:
    connections = Connections(config, settings, target, look_s=min(LOOK_API_S, left))
    try:
        return see_shell(connections.shell(), left, agent=True)
    finally:
        connections.close()


def see_host(name: str, host: HostConfig, left: float) -> ShellSeen:
    """The opt-in root shell of a Proxmox node: also which machine it is on, and whether the agent can start there."""
    ends = time.monotonic() + left
    shell = SshShell(ssh_settings(host.ssh, host.address or name))
    try:
        seen = see_shell(shell, left, agent=False)
        if seen.failure is not None:
            return seen
        asked = ["sh", "-c", "uname -n; python3 --version 2>&1"]
        said = shell.run(asked, deadline=max(1.0, min(WORD_S, ends - time.monotonic())))
        words = [] if isinstance(said, Broken) else said.stdout.decode("utf-8", "replace").splitlines()
        name_, python = (clean(word, 100) for word in [*words, "", ""][:2])
        return replace(seen, hostname=name_, python=python)
    finally:
        shell.close()


def see_shell(shell: SshShell, left: float, *, agent: bool) -> ShellSeen:
    ends = time.monotonic() + left
    broken = shell.connect(max(1.0, min(CONNECT_S, left)))
    seen = ShellSeen(shell.where)
    if broken is not None:
        return replace(seen, failure=broken.failure, detail=broken.detail)
    began, wall = time.monotonic(), time.time()
    said = shell.run(["sh", "-c", "id -u; date +%s"], deadline=max(1.0, min(WORD_S, ends - time.monotonic())))
    if isinstance(said, Broken):
        return replace(seen, failure=said.failure, detail=said.detail)
    took = time.monotonic() - began
    words = said.stdout.split()
    numbers = [int(word) for word in words if word.isdigit()]
    if len(numbers) == 2:
        ahead = numbers[1] + 0.5 - (wall + took / 2)
        seen = replace(seen, uid=numbers[0], ahead_s=ahead, margin_s=took / 2 + 0.5)
    return _with_agent(seen, shell, ends - time.monotonic()) if agent else seen


def _with_agent(seen: ShellSeen, shell: SshShell, left: float) -> ShellSeen:
    if left < 10.0:
        return replace(seen, agent="no time was left for it")
    found = GuestProbe(shell, ProbeSettings(health_ports=False)).look(health=False, deadline=min(LOOK_S, left))
    if isinstance(found, Mute):
        return replace(seen, agent=f"{found.failure}: {found.detail}", guest=found)
    hello = parse_lines("\n".join(found.raw).encode("utf-8", "replace")).one("hello")
    python = hello.text("python", limit=20) if hello is not None else ""
    gpus = found.gpus
    count = len(gpus.value) if isinstance(gpus, Known) else None
    return replace(seen, agent=AgentSeen(python, found.complete, found.gaps, count), guest=found)


def snapshot(target: Target, guest: ShellSeen | None, api: ApiSeen | None, baseline: Baseline | None) -> Snapshot:
    """What was seen, as a look that the rules about identity and baseline can judge."""
    inside = guest.guest if guest is not None and guest.guest is not None else None
    outside = api.found if api is not None else NoHypervisor("not-configured", "no cluster is configured")
    silent = (
        Mute(Failure.CONFIG, "not looked at") if guest is None else Mute(guest.failure or Failure.DIED, guest.detail)
    )
    return Snapshot(target, 0.0, inside or silent, outside, baseline)
