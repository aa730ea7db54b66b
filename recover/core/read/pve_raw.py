"""The API's answers as they came, one Reading per question; nothing is interpreted here beyond rows and tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from recover.core.read.pve_values import flag, number, rows_of, text
from recover.model.gpu import NOT_ASKED
from recover.model.hypervisor import GuestKind
from recover.model.reading import Known, Reading, Unknown, Why


@dataclass(frozen=True, slots=True)
class GuestRow:
    """A guest as the cluster's list shows it: good for finding it, up to 10 s old as to its status."""

    vmid: int
    name: str
    node: str
    kind: GuestKind
    status: str
    template: bool = False
    tags: tuple[str, ...] = ()
    pool: str = ""


@dataclass(frozen=True, slots=True)
class PveRaw:
    """Answers as they came, one Reading per question, for one guest on the node where it is now."""

    cluster: str
    node: str
    vmid: int
    kind: GuestKind
    token_id: str
    status: Mapping[str, Any]  # status/current: without it there is no look at all
    version: Reading[Any] = NOT_ASKED
    config: Reading[Any] = NOT_ASKED
    pending: Reading[Any] = NOT_ASKED
    agent_ping: Reading[Any] = NOT_ASKED
    agent_net: Reading[Any] = NOT_ASKED
    tasks: Reading[Any] = NOT_ASKED
    node_status: Reading[Any] = NOT_ASKED
    node_time: Reading[Any] = NOT_ASKED
    cluster_status: Reading[Any] = NOT_ASKED
    ha: Reading[Any] = NOT_ASKED
    pci: Reading[Any] = NOT_ASKED
    mappings: Reading[Any] = NOT_ASKED
    storages: Reading[Any] = NOT_ASKED
    resources: Reading[Any] = NOT_ASKED  # cluster/resources?type=vm
    others: tuple[tuple[int, Reading[Any]], ...] = ()  # vmid -> config?current=1 of running guests on the node
    backup_jobs: Reading[Any] = NOT_ASKED
    node_privs: Reading[Any] = NOT_ASKED  # access/permissions?path=/nodes/{node}
    vms_privs: Reading[Any] = NOT_ASKED  # access/permissions?path=/vms
    clock_s: int = 0  # fallback for node_time, from an answer's Date
    notes: tuple[str, ...] = field(default=())


_KINDS = {"qemu": GuestKind.VM, "lxc": GuestKind.CONTAINER}


def guest_rows(resources: Any) -> tuple[GuestRow, ...]:
    """The guests that the list names; one without number or node is none."""
    return tuple(
        GuestRow(
            number(row.get("vmid")),
            text(row.get("name")),
            text(row.get("node")),
            _KINDS[text(row.get("type"))],
            text(row.get("status")) or "unknown",
            flag(row.get("template")),
            tags_of(row),
            text(row.get("pool")),
        )
        for row in rows_of(resources)
        if _is_guest(row)
    )


def _is_guest(row: Mapping[str, Any]) -> bool:
    node = row.get("node")
    return text(row.get("type")) in _KINDS and number(row.get("vmid")) > 0 and isinstance(node, str) and bool(node)


def strange_rows(resources: Any) -> int:
    """How many rows of `cluster/resources?type=vm` are no guests: each could be anybody's."""
    rows = resources if isinstance(resources, list) else []
    return sum(not (isinstance(row, Mapping) and _is_guest(row)) for row in rows)


def tags_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Lower-case, as PVE compares them unless it is told otherwise (datacenter.cfg, tag-style)."""
    said = row.get("tags")
    words = said if isinstance(said, list) else re.split(r"[;, ]+", text(said))
    return tuple(dict.fromkeys(t.strip().lower() for t in map(text, words) if t.strip()))


def object_of(reading: Reading[Any]) -> Reading[Mapping[str, Any]]:
    if isinstance(reading, Known) and not isinstance(reading.value, Mapping):
        return Unknown(Why.GARBLED, "expected an object")
    return reading


def list_of(reading: Reading[Any]) -> Reading[list[Any]]:
    """A list must not become an empty one only because something else came."""
    if isinstance(reading, Known) and not isinstance(reading.value, list):
        return Unknown(Why.GARBLED, "expected a list")
    return reading
