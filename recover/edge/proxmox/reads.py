"""Everything that the API can tell about one guest is asked within one total deadline; no answer hinders another."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from recover.core.read.pve import GuestRow, PveRaw, guest_rows, hypervisor
from recover.edge.proxmox.client import Client, path
from recover.edge.proxmox.errors import ApiError, Kind
from recover.model.gpu import NOT_ASKED
from recover.model.hypervisor import GuestKind, Hypervisor, NoHypervisor
from recover.model.reading import Known, Reading, Unknown, Why

LOOK_S = 75.0
ONE_S = 40.0
PING_S = 12.0  # PVE itself gives the agent 3 s
AT_ONCE = 4  # a node has three workers by default, shared with everybody else
TASKS = 50
OTHERS = 256  # running guests of one node whose configuration is read; beyond it, who shares is not known
_NO = {
    Kind.NO_SECRET: "no-secret", Kind.UNREACHABLE: "unreachable", Kind.UNCLEAR: "unreachable", Kind.TLS: "tls",
    Kind.AUTH: "auth", Kind.DENIED: "auth", Kind.NOT_THERE: "not-found",
}  # fmt: skip

Ask = Callable[[], Reading[Any]]


def no_hypervisor(error: ApiError) -> NoHypervisor:
    detail = f"needs {error.privilege}" if error.privilege else error.message
    return NoHypervisor(_NO.get(error.kind, "garbled"), detail)


def guests(client: Client, deadline: float = ONE_S) -> tuple[GuestRow, ...] | ApiError:
    """All guests of the cluster that the token can see."""
    rows = client.get("/cluster/resources", deadline=deadline, type="vm")
    return rows if isinstance(rows, ApiError) else guest_rows(rows)


def find(rows: tuple[GuestRow, ...], wanted: str) -> tuple[GuestRow, ...]:
    """The guests that `wanted`, a vmid or a name, may mean. More than one: names are not unique in PVE."""
    by_id = tuple(row for row in rows if wanted.isdecimal() and row.vmid == int(wanted))
    return by_id or tuple(row for row in rows if row.name == wanted)


def look(client: Client, cluster: str, vmid: int, seconds: float = LOOK_S) -> Hypervisor | NoHypervisor:
    """One look at a guest through the API."""
    raw = gather(client, cluster, vmid, seconds)
    return raw if isinstance(raw, NoHypervisor) else hypervisor(raw)


@dataclass(frozen=True, slots=True)
class _Look:
    """One look's client and the moment when it must be over."""

    client: Client
    ends: float

    def left(self, most: float = ONE_S) -> float:
        return min(most, self.ends - time.monotonic())

    def get(self, *parts: object, **params: Any) -> Reading[Any]:
        left = self.left()
        if left <= 0:
            return Unknown(Why.TIMEOUT, "not asked: the look's time was over")
        answer = self.client.get(path(*parts), deadline=left, **params)
        return answer.unknown() if isinstance(answer, ApiError) else Known(answer)

    def ping(self, base: tuple[object, ...]) -> Reading[Any]:
        answer = self.client.post(path(*base, "agent", "ping"), deadline=max(self.left(PING_S), 0.1))
        return answer.unknown() if isinstance(answer, ApiError) else Known(answer)

    def all(self, asked: Mapping[str, Ask]) -> dict[str, Reading[Any]]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            futures = {name: pool.submit(ask) for name, ask in asked.items()}
            return {name: future.result() for name, future in futures.items()}


def gather(client: Client, cluster: str, vmid: int, seconds: float = LOOK_S) -> PveRaw | NoHypervisor:
    """The raw answers. NoHypervisor if not even the guest's own status could be had."""
    one = _Look(client, time.monotonic() + seconds)
    for moved in (False, True):
        rows = client.get("/cluster/resources", deadline=max(one.left(), 0.1), type="vm")
        if isinstance(rows, ApiError):
            return no_hypervisor(rows)
        row = next((row for row in guest_rows(rows) if row.vmid == vmid), None)
        if row is None:
            return NoHypervisor("not-found", f"no guest {vmid} that this token may see (needs VM.Audit on /vms/{vmid})")
        base = ("nodes", row.node, "lxc" if row.kind is GuestKind.CONTAINER else "qemu", vmid)
        status = client.get(path(*base, "status", "current"), deadline=max(one.left(), 0.1))
        if isinstance(status, Mapping) and status.get("status") in ("running", "stopped"):
            return _around(one, cluster, row, base, status, rows)
        if not isinstance(status, ApiError):
            break
        if moved or status.kind is not Kind.NOT_THERE:
            return no_hypervisor(status)
        # not there: it went to another node between the two questions, as HA and migration do
    return NoHypervisor("garbled", f"the status of guest {vmid} says neither running nor stopped")


def _around(
    one: _Look, cluster: str, row: GuestRow, base: tuple[object, ...], status: Mapping[str, Any], resources: Any
) -> PveRaw:
    node = row.node
    vm = row.kind is GuestKind.VM
    first: dict[str, Ask] = {
        "config": lambda: one.get(*base, "config", current=1),
        "pending": lambda: one.get(*base, "pending"),
        "tasks": lambda: one.get("nodes", node, "tasks", source="all", vmid=row.vmid, limit=TASKS),
        "node_status": lambda: one.get("nodes", node, "status"),
        "node_time": lambda: one.get("nodes", node, "time"),
        "cluster_status": lambda: one.get("cluster", "status"),
        "storages": lambda: one.get("nodes", node, "storage"),
        "backup_jobs": lambda: one.get("cluster", "backup"),
        "node_privs": lambda: one.get("access", "permissions", path=f"/nodes/{node}"),
        "vms_privs": lambda: one.get("access", "permissions", path="/vms"),
        "version": lambda: one.get("version"),
    }
    ha = status.get("ha")
    if not isinstance(ha, Mapping) or ha.get("managed") is None or (ha["managed"] and not ha.get("state")):
        first["ha"] = lambda: one.get("cluster", "ha", "resources", f"{'vm' if vm else 'ct'}:{row.vmid}")
    if vm and status.get("status") == "running":
        first["agent_ping"] = lambda: one.ping(base)
    got = one.all(first)
    more, others, notes = _second(one, row, base, got, resources)
    return PveRaw(
        cluster=cluster, node=node, vmid=row.vmid, kind=row.kind, token_id=one.client.settings.token_id, status=status,
        resources=Known(resources), others=others, notes=notes, clock_s=one.client.server_time, **got, **more,
    )  # fmt: skip


def _second(
    one: _Look, row: GuestRow, base: tuple[object, ...], got: Mapping[str, Reading[Any]], resources: Any
) -> tuple[dict[str, Reading[Any]], tuple[tuple[int, Reading[Any]], ...], tuple[str, ...]]:
    """What is only worth asking once the configuration is known: devices, and who else has them."""
    config = got["config"]
    devices = isinstance(config, Known) and isinstance(config.value, Mapping) and _has_devices(config.value)
    asked: dict[str, Ask] = {}
    if devices and row.kind is GuestKind.VM:
        # Without this parameter memory controllers and bridges are hidden, and among these are NVSwitches.
        asked["pci"] = lambda: one.get("nodes", row.node, "hardware", "pci", **{"pci-class-blacklist": ""})
        asked["mappings"] = lambda: one.get("cluster", "mapping", "pci", **{"check-node": row.node})
    if row.kind is GuestKind.CONTAINER:
        asked["agent_net"] = lambda: one.get(*base, "interfaces")
    elif isinstance(got.get("agent_ping", NOT_ASKED), Known):
        asked["agent_net"] = lambda: one.get(*base, "agent", "network-get-interfaces")
    more = one.all(asked)
    near = [g for g in guest_rows(resources) if g.node == row.node and g.vmid != row.vmid and g.status != "stopped"]
    notes: tuple[str, ...] = ()
    if devices and len(near) > OTHERS:
        notes = (f"only {OTHERS} of {len(near)} running guests of {row.node} were asked whether they share a device",)
    configs = one.all({str(g.vmid): _config_of(one, g) for g in near[:OTHERS]} if devices else {})
    return more, tuple((int(vmid), reading) for vmid, reading in configs.items()), notes


def _config_of(one: _Look, guest: GuestRow) -> Ask:
    kind = "lxc" if guest.kind is GuestKind.CONTAINER else "qemu"
    return lambda: one.get("nodes", guest.node, kind, guest.vmid, "config", current=1)


def _has_devices(config: Mapping[str, Any]) -> bool:
    """Whether sharing is possible at all."""
    return any(key.startswith(("hostpci", "dev")) or key == "lxc" for key in config)
