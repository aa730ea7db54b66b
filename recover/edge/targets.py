"""Asks one cluster for its guests and their devices within one deadline; what can't be had becomes a gap."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from recover.core.read.pve import addresses, guest_rows
from recover.core.read.pve_config import bus
from recover.core.read.pve_values import flag
from recover.core.targets import Answers, has_devices
from recover.edge.proxmox.client import Client, path
from recover.edge.proxmox.errors import ApiError
from recover.model.hypervisor import GuestKind
from recover.model.reading import Known, Reading, Unknown, Why

ONE_S = 20.0
AT_ONCE = 4
GUESTS = 2000  # so many configurations are read at most
K = TypeVar("K")


def see_targets(client: Client, cluster: str, left: float) -> Answers | ApiError:
    """Everything for the list of one cluster. ApiError where not even the guests could be listed."""
    ends = time.monotonic() + left

    def get(*parts: object, **params: Any) -> Reading[Any]:
        rest = ends - time.monotonic()
        if rest <= 0:
            return Unknown(Why.TIMEOUT, "not asked: the time was over")
        said = client.get(path(*parts), deadline=min(ONE_S, rest), **params)
        return said.unknown() if isinstance(said, ApiError) else Known(said)

    listed = client.get("/cluster/resources", deadline=min(ONE_S, left), type="vm")
    if isinstance(listed, ApiError):
        return listed
    rows = tuple(row for row in guest_rows(listed) if not row.template)
    base = {row.vmid: (row.node, "lxc" if row.kind is GuestKind.CONTAINER else "qemu", row.vmid) for row in rows}
    away: set[str] = set()

    def on(node: str, *parts: object, **params: Any) -> Reading[Any]:
        """A node that is away is asked once: its guests must not take the time of all others."""
        if node in away:
            return Unknown(Why.UNREACHABLE, f"{node} does not answer")
        said = get("nodes", node, *parts, **params)
        if isinstance(said, Unknown) and said.why in (Why.TIMEOUT, Why.UNREACHABLE):
            away.add(node)
        return said

    asked = sorted(rows[:GUESTS], key=lambda row: row.status == "unknown")  # as the guests of such a node are listed
    configs = _all([row.vmid for row in asked], lambda vmid: on(*base[vmid], "config", current=1))
    ours = [
        r
        for r in rows
        if isinstance(c := configs.get(r.vmid), Known) and isinstance(c.value, Mapping) and has_devices(c.value)
    ]
    nodes = sorted({row.node for row in ours if row.kind is GuestKind.VM})
    pci = _all(nodes, lambda node: on(node, "hardware", "pci", **{"pci-class-blacklist": ""}))
    up = [row.vmid for row in ours if row.status == "running"]
    kinds = {row.vmid: row.kind for row in ours}

    def network(vmid: int) -> Reading[Any]:
        tail = ("interfaces",) if kinds[vmid] is GuestKind.CONTAINER else ("agent", "network-get-interfaces")
        return on(*base[vmid], *tail)

    held = get("access", "permissions", path="/vms")
    return Answers(
        cluster=cluster,
        rows=rows,
        configs=configs,
        pci={node: bus(one) for node, one in pci.items()},
        mappings=get("cluster", "mapping", "pci"),
        addresses={vmid: addresses(one) for vmid, one in _all(up, network).items()},
        sees_all=_audits(held),
        notes=(f"only {GUESTS} of {len(rows)} guests were asked",) if len(rows) > GUESTS else (),
    )


def _all(keys: Sequence[K], ask: Callable[[K], Reading[Any]]) -> dict[K, Reading[Any]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(keys, pool.map(ask, keys), strict=True))


def _object(one: Reading[Any]) -> Reading[Mapping[str, Any]]:
    if isinstance(one, Known) and not isinstance(one.value, Mapping):
        return Unknown(Why.GARBLED, "not an object")
    return one


def _audits(held: Reading[Any]) -> bool:
    rows = held.value.get("/vms") if isinstance(held, Known) and isinstance(held.value, Mapping) else None
    return isinstance(rows, Mapping) and flag(rows.get("VM.Audit", 0))
