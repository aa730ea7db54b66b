"""A configuration is whole or it is refused: every problem at once, each with its path; no secret stands in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from recover.core.config_notify import Destination, Hook, hooks_of, notify_of
from recover.core.config_table import FORMS, SecretFile, SecretSource, Table, nearest
from recover.core.config_watch import WatchConfig, fleet, maintenance, none_unknown, watch
from recover.core.fleet import FleetLimits
from recover.core.windows import Window
from recover.model.notice import HookEvent

_UNIT = re.compile(r"[A-Za-z0-9:_.@\\][A-Za-z0-9:_.@\\-]*")
# pve-access-control, AccessControl.pm: a user's own name may hold "@" and "!", as those of directories do
_TOKEN = re.compile(r"[^\s:/=]+@[A-Za-z0-9][A-Za-z0-9._-]*![A-Za-z0-9][A-Za-z0-9._-]*")
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Proxmox cluster: its API's addresses in the order to try them, the token's name, and where its secret is."""

    name: str
    urls: tuple[str, ...]
    token_id: str
    token_secret: SecretSource
    ca_file: str | None = None
    fingerprint: str | None = None  # 64 lower-case hex digits


@dataclass(frozen=True, slots=True)
class Ssh:
    """What is said about SSH; where None stands, ~/.ssh/config decides. `sudo`: True means `sudo -n`."""

    user: str | None = None
    port: int | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    sudo: bool | SecretSource | None = None

    def over(self, base: Ssh) -> Ssh:
        """These settings, and those of `base` where these say nothing."""
        return Ssh(
            *(mine if mine is not None else theirs for mine, theirs in zip(_values(self), _values(base), strict=True))
        )


@dataclass(frozen=True, slots=True)
class HostConfig:
    """A Proxmox node whose root shell may be used. `address` empty: its own name, or what ssh config makes of that."""

    ssh: Ssh = field(default_factory=lambda: Ssh(user="root"))
    address: str = ""


@dataclass(frozen=True, slots=True)
class TargetConfig:
    """One guest. `ssh` is already merged over [ssh]; `expect` as in model.snapshot.Target, RAM in MiB."""

    name: str
    cluster: str = ""
    vmid: int | None = None
    address: str = ""  # empty: the guest agent's word, else DNS or ssh config under the target's name
    playbook: str = ""
    services: tuple[str, ...] = ()
    health: str = ""
    protect: tuple[str, ...] = ()
    ssh: Ssh = field(default_factory=Ssh)
    expect: tuple[tuple[str, int], ...] = ()
    do_not_recover: bool = False  # never by itself; a person may


@dataclass(frozen=True, slots=True)
class Config:
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    ssh: Ssh = field(default_factory=Ssh)
    hosts: Mapping[str, HostConfig] = field(
        default_factory=dict
    )  # opt-in root shells; their ssh is merged over nothing
    targets: Mapping[str, TargetConfig] = field(default_factory=dict)
    source: str = ""
    watch: WatchConfig = field(default_factory=WatchConfig)
    fleet: FleetLimits = field(default_factory=FleetLimits)
    maintenance: tuple[Window, ...] = ()
    notify: Mapping[str, Destination] = field(default_factory=dict)
    hooks: Mapping[HookEvent, Hook] = field(default_factory=dict)


def parse_config(data: Mapping[str, Any], source: str = "") -> tuple[Config | None, tuple[str, ...]]:
    """The configuration, or None and every problem in it, in the order of the file."""
    at = Table(data, "", [])
    clusters = at.tables("clusters", _cluster)
    ssh = at.table("ssh", _ssh) or Ssh()
    hosts = at.tables("hosts", lambda table, name: _node(table))
    targets = at.tables("targets", _target)
    notify, hooks = notify_of(at), hooks_of(at)
    watched = at.table("watch", watch) or WatchConfig()
    limits = at.table("fleet", fleet) or FleetLimits()
    windows = at.rows("maintenance", maintenance)
    none_unknown(at, windows, targets)
    at.done()
    targets = {name: replace(t, ssh=t.ssh.over(ssh)) for name, t in _placed(at, data, targets).items()}
    if at.problems:
        return None, tuple(at.problems)
    freeze = MappingProxyType
    reached = (freeze(clusters), ssh, freeze(hosts), freeze(targets))
    return Config(*reached, source, watched, limits, windows, freeze(notify), freeze(hooks)), ()


def _cluster(table: Table, name: str) -> Cluster:
    urls = table.texts("urls", _api_url)
    if not urls and not (table.has("urls") and table.data["urls"]):
        table.wrong("urls", 'missing: at least one, like ["https://pve1.example.org:8006"]')
    token = table.text("token_id", _token_id, need='like "gpu-recover@pve!oncall"')
    if not table.has("token_secret"):
        table.wrong("token_secret", f"missing: {FORMS}")
    secret = table.secret("token_secret")
    ca_file = table.text("ca_file") or None
    fingerprint = table.text("fingerprint", _fingerprint) or None
    if ca_file and fingerprint:
        table.wrong("fingerprint", "ca_file is given too: only one of them")
    digits = _digits(fingerprint) if fingerprint else None
    return Cluster(name, urls, token, secret or SecretFile(""), ca_file, digits)


def _ssh(table: Table) -> Ssh:
    sudo: bool | SecretSource | None = None
    if table.has("sudo"):
        value = table.data["sudo"]
        if isinstance(value, Mapping):
            sudo = table.table("sudo", lambda inner: inner.secret("password"))
            if sudo is None and not value:
                table.wrong("sudo", f"expected true, false or {{ password = {FORMS} }}")
        elif isinstance(value, bool):
            table.asked.append("sudo")
            sudo = value
        else:
            table.asked.append("sudo")
            table.wrong("sudo", "expected true, false or { password = { command = […] } }")
    else:
        table.asked.append("sudo")
    return Ssh(
        user=table.text("user", _user) or None,
        port=table.integer("port", 1, 65535),
        identity_file=table.text("identity_file") or None,
        known_hosts=table.text("known_hosts") or None,
        sudo=sudo,
    )


def _target(table: Table, name: str) -> TargetConfig:
    return TargetConfig(
        name=name,
        cluster=table.text("cluster"),
        vmid=table.integer("vmid", 100, 999_999_999),
        address=table.text("address", _host),
        playbook=table.text("playbook"),
        services=table.texts("services", _unit),
        health=table.text("health", _http_url),
        protect=table.texts("protect"),
        ssh=table.table("ssh", _ssh) or Ssh(),
        expect=table.table("expect", _expect) or (),
        do_not_recover=table.flag("do_not_recover"),
    )


def _node(table: Table) -> HostConfig:
    return HostConfig(table.table("ssh", _ssh) or Ssh(user="root"), table.text("address", _host))


def _expect(table: Table) -> tuple[tuple[str, int], ...]:
    found = (("gpus", table.integer("gpus", 1, 64)), ("ram_available", table.size("ram_available")))
    return tuple((key, value) for key, value in found if value is not None)


def _placed(at: Table, data: Mapping[str, Any], targets: dict[str, TargetConfig]) -> dict[str, TargetConfig]:
    """The targets with their cluster: it must exist, and no two names may mean the same guest (they lock by name)."""
    known = [str(c) for c in data["clusters"]] if isinstance(data.get("clusters"), Mapping) else []
    seen: dict[tuple[str, int], str] = {}
    placed: dict[str, TargetConfig] = {}
    for name, target in targets.items():
        path = f"targets.{name}"
        if target.cluster and target.cluster not in known:
            close = nearest(target.cluster, known)
            says = f"did you mean {close!r}?" if close else f"known: {', '.join(known) or 'none'}"
            at.problems.append(f"{path}.cluster: no cluster {target.cluster!r} in [clusters]: {says}")
        if target.vmid is not None and not target.cluster:
            if len(known) != 1:
                at.problems.append(f"{path}.cluster: missing: vmid {target.vmid} on which cluster?")
            else:
                target = replace(target, cluster=known[0])  # noqa: PLW2901
        if target.cluster and target.vmid is None and not _given(data, name, "vmid"):
            at.problems.append(f"{path}.vmid: missing: which guest of cluster {target.cluster!r} is it?")
        if target.vmid is not None:
            other = seen.setdefault((target.cluster, target.vmid), name)
            if other != name:
                at.problems.append(f"{path}.vmid: {target.vmid} is already targets.{other}: one guest, one name")
        placed[name] = target
    return placed


def _given(data: Mapping[str, Any], name: str, key: str) -> bool:
    return key in data["targets"][name]


def _values(ssh: Ssh) -> tuple[Any, ...]:
    return (ssh.user, ssh.port, ssh.identity_file, ssh.known_hosts, ssh.sudo)


def _host(value: str) -> str:
    ok = re.fullmatch(r"[A-Za-z0-9_.:%][A-Za-z0-9_.:%-]*", value) is not None
    return "" if ok else f"expected an address or a host name, got {value!r}"


def _user(value: str) -> str:
    ok = re.fullmatch(r"[A-Za-z0-9_.@\\+][A-Za-z0-9_.@\\+$-]*", value) is not None
    return "" if ok else f"expected a user name, got {value!r}"


def _unit(value: str) -> str:
    return "" if _UNIT.fullmatch(value) else f"expected a unit or container name, got {value!r}"


def _http_url(value: str) -> str:
    found = re.fullmatch(r"https?://([^/\s]+)(/\S*)?", value)
    if found and "@" in found[1]:
        return "no user or password may stand in a URL here"
    return "" if found else f"expected a URL like http://127.0.0.1:30000/health, got {value!r}"


def _api_url(value: str) -> str:
    found = re.fullmatch(r"https://([^/\s?#]+)/?", value)
    if found and "@" in found[1]:
        return "no user or password may stand in a URL: the token is named by token_id"
    if value.startswith("http://"):
        return "expected https://: the token may not travel in the clear"
    return "" if found else "expected https://HOST:8006"


def _token_id(value: str) -> str:
    if "=" in value:
        return "holds more than the token's name: the secret after '=' belongs elsewhere, see token_secret"
    return "" if _TOKEN.fullmatch(value) else f'expected "user@realm!name", got {value!r}'


def _digits(value: str) -> str:
    return value.strip().lower().removeprefix("sha256:").replace(":", "").replace(" ", "")


def _fingerprint(value: str) -> str:
    return "" if _HEX.fullmatch(_digits(value)) else "expected the 32 bytes of a SHA-256 fingerprint, like AB:CD:…"
