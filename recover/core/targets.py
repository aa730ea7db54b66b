"""A guest is a GPU guest because its configuration gives it NVIDIA devices; in doubt it is listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recover.core.clean import clean
from recover.core.read.pve_config import PciDevice, host_pcis, nvidia_nodes, shared_nodes
from recover.core.read.pve_raw import GuestRow
from recover.core.report.words import UNKNOWN, columns
from recover.model.gpu import NOT_ASKED
from recover.model.hypervisor import GuestKind, HostPci
from recover.model.reading import Known, Reading, Unknown

NVIDIA = "10de:"
_NAMED = 8


@dataclass(frozen=True, slots=True)
class Answers:
    """One cluster's answers. `configs` by vmid; `pci` by node."""

    cluster: str
    rows: tuple[GuestRow, ...]
    configs: Mapping[int, Reading[Mapping[str, Any]]]
    pci: Mapping[str, Reading[tuple[PciDevice, ...]]]
    mappings: Reading[Any] = NOT_ASKED
    addresses: Mapping[int, tuple[str, ...]] | None = None
    sees_all: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuGuest:
    """`devices` are PCI addresses, or device files for a container; `shares`: other guests that use the same."""

    cluster: str
    vmid: int
    name: str
    kind: GuestKind
    node: str
    status: str
    addresses: tuple[str, ...]
    devices: tuple[str, ...]
    shares: tuple[str, ...]
    others: int  # running guests on the same node
    configured: str  # its name in the configuration


def gpu_guests(said: Answers, names: Mapping[tuple[str, int], str]) -> tuple[GpuGuest, ...]:
    """`names`: (cluster, vmid) -> the name under which it is configured."""
    used = {row.vmid: _uses(said, row) for row in said.rows}
    found = []
    for row in said.rows:
        devices = _devices(said, row, used[row.vmid])
        if not devices:
            continue
        near = [other for other in said.rows if other.node == row.node and other.vmid != row.vmid]
        shares = tuple(
            f"{other.vmid} ({other.name}, {other.status}): {', '.join(same)}"
            for other in near
            if (same := _shared(used[row.vmid], used[other.vmid], said, row, other))
        )
        found.append(
            GpuGuest(
                said.cluster,
                row.vmid,
                row.name,
                row.kind,
                row.node,
                row.status,
                (said.addresses or {}).get(row.vmid, ()),
                devices,
                shares,
                sum(other.status not in ("stopped", "unknown") for other in near),
                names.get((said.cluster, row.vmid), ""),
            )
        )
    return tuple(sorted(found, key=lambda one: one.vmid))


def has_devices(config: Mapping[str, Any]) -> bool:
    return bool(host_pcis(config, "")) or bool(nvidia_nodes(config))


def _uses(said: Answers, row: GuestRow) -> tuple[HostPci, ...]:
    config = said.configs.get(row.vmid, NOT_ASKED)
    if not isinstance(config, Known) or row.kind is GuestKind.CONTAINER:
        return ()
    return host_pcis(config.value, row.node, said.pci.get(row.node, NOT_ASKED), said.mappings)


def _devices(said: Answers, row: GuestRow, used: tuple[HostPci, ...]) -> tuple[str, ...]:
    if row.kind is GuestKind.CONTAINER:
        return tuple(sorted(_nodes(said, row)))
    shown: list[str] = []
    for one in used:
        if one.device_ids and not any(ids.startswith(NVIDIA) for ids in one.device_ids):
            continue  # a network card, say
        shown += one.addresses or [f"mapping {one.mapping}" if one.mapping else one.raw]
    return tuple(dict.fromkeys(shown))


def _nodes(said: Answers, row: GuestRow) -> frozenset[str]:
    config = said.configs.get(row.vmid, NOT_ASKED)
    return nvidia_nodes(config.value) if isinstance(config, Known) and row.kind is GuestKind.CONTAINER else frozenset()


def _shared(
    ours: tuple[HostPci, ...], theirs: tuple[HostPci, ...], said: Answers, row: GuestRow, other: GuestRow
) -> tuple[str, ...]:
    devices = {a for one in ours for a in one.addresses} & {a for one in theirs for a in one.addresses}
    groups = {g for one in ours for g in one.iommu_groups} & {g for one in theirs for g in one.iommu_groups}
    return (
        *sorted(devices),
        *(f"iommu group {g}" for g in sorted(groups)),
        *sorted(shared_nodes(_nodes(said, row), _nodes(said, other))),
    )


def notes(said: Answers) -> tuple[str, ...]:
    """What is not in the list, and why."""
    blind = [vmid for vmid, config in sorted(said.configs.items()) if isinstance(config, Unknown)]
    found = list(said.notes)
    if not said.sees_all:
        found.append("guests that this token cannot see are not listed: needs VM.Audit on /vms")
    if blind:
        first = said.configs[blind[0]]
        why = first.detail if isinstance(first, Unknown) else ""
        named = ", ".join(map(str, blind[:_NAMED])) + (f" and {len(blind) - _NAMED} more" if blind[_NAMED:] else "")
        found.append(f"{'guest' if len(blind) == 1 else 'guests'} {named}: the configuration could not be read ({why})")
    found += [
        f"the PCI devices of {node} are not shown: {one.detail or one.why}"
        for node, one in sorted(said.pci.items())
        if isinstance(one, Unknown)
    ]
    return tuple(clean(f"{said.cluster}: {text}", 400) for text in found)


_HEAD = ["cluster", "vmid", "name", "host", "status", "address", "devices", "neighbours", "configured as"]


def table(found: Sequence[GpuGuest]) -> str:
    rows = [_HEAD, *(_row(one) for one in found)]
    return "\n".join(columns(rows, ""))


def _row(one: GpuGuest) -> list[str]:
    shown = ", ".join(one.devices[:2]) + (f" and {len(one.devices) - 2} more" if len(one.devices) > 2 else "")
    near = "; ".join(f"shares with {share}" for share in one.shares) or f"{one.others} running, none shares"
    kind = " (container)" if one.kind is GuestKind.CONTAINER else ""
    return [
        one.cluster,
        str(one.vmid),
        (one.name or UNKNOWN) + kind,
        one.node,
        one.status,
        one.addresses[0] if one.addresses else UNKNOWN,
        shown,
        near,
        one.configured or "-",
    ]


def data(found: Sequence[GpuGuest], said: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "targets": [
            {
                "cluster": g.cluster,
                "vmid": g.vmid,
                "name": g.name,
                "kind": str(g.kind),
                "host": g.node,
                "status": g.status,
                "addresses": list(g.addresses),
                "devices": list(g.devices),
                "shares": list(g.shares),
                "running_neighbours": g.others,
                "configured": g.configured or None,
            }
            for g in found
        ],
        "notes": list(said),
    }
