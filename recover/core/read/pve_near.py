"""Who else is on the node and shares what the guest has: while one guest there can't be read, that is not known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recover.core.nvlink import may_be_joined
from recover.core.read.pve_config import PciDevice, host_pcis, nvidia_nodes, shared_nodes, unreadable
from recover.core.read.pve_raw import GuestRow, PveRaw, guest_rows, object_of, strange_rows
from recover.model.gpu import NOT_ASKED
from recover.model.hypervisor import HostPci, Neighbour
from recover.model.reading import Known, Reading, Unknown, Why, known_or


def neighbours(
    raw: PveRaw, ours: tuple[HostPci, ...], devices: Reading[tuple[PciDevice, ...]]
) -> Reading[tuple[Neighbour, ...]]:
    """`devices`: the node's bus."""
    if isinstance(raw.resources, Unknown):
        return raw.resources
    if strange_rows(raw.resources.value):
        return Unknown(Why.GARBLED, "the cluster's list of guests has rows that are none")
    configs = dict(raw.others)
    shares = bool(ours or nvidia_nodes(known_or(object_of(raw.config), {})))  # else nobody can share anything
    found: list[Neighbour] = []
    for row in guest_rows(raw.resources.value):
        if row.node != raw.node or row.vmid == raw.vmid:
            continue
        asked = configs.get(row.vmid, NOT_ASKED if shares and row.status != "stopped" else Known({}))
        near = _neighbour(raw, ours, devices, row, object_of(asked))
        if isinstance(near, Unknown):
            return near
        found.append(near)
    return Known(tuple(sorted(found, key=lambda one: one.vmid)))


def near_mappings(raw: PveRaw, ours: tuple[HostPci, ...]) -> tuple[str, ...]:
    """Which mappings must be read to know what the running guests beside it have."""
    configs = [known_or(object_of(config), {}) for _, config in raw.others] if ours else []
    return tuple(sorted({d.mapping for config in configs for d in host_pcis(config, raw.node) if d.mapping}))


def _neighbour(
    raw: PveRaw,
    ours: tuple[HostPci, ...],
    devices: Reading[tuple[PciDevice, ...]],
    row: GuestRow,
    config: Reading[Mapping[str, Any]],
) -> Neighbour | Unknown:
    if isinstance(config, Unknown):
        return Unknown(config.why, f"the configuration of guest {row.vmid}: {config.detail or config.why}")
    key = unreadable(config.value)
    if key:
        return Unknown(Why.GARBLED, f"the configuration of guest {row.vmid}: {key} makes no sense")
    theirs = host_pcis(config.value, raw.node, devices, raw.mappings)
    for one in theirs if ours else ():
        if not one.addresses and isinstance(one.present, Unknown):
            return Unknown(one.present.why, f"what guest {row.vmid} has ({one.key}): {one.present.detail}")
    shares = _shared(raw, ours, theirs, config.value, devices)
    return Neighbour(row.vmid, row.name, row.kind, row.status, shares, _joined(devices, ours, theirs))


def _joined(
    devices: Reading[tuple[PciDevice, ...]], ours: tuple[HostPci, ...], theirs: tuple[HostPci, ...]
) -> tuple[str, ...]:
    """Where there are NVSwitches the links go to them, and whose those are is seen (`_fabric`)."""
    if isinstance(devices, Known) and any(device.nvswitch for device in devices.value):
        return ()
    return may_be_joined(*([ids for one in them for ids in one.device_ids] for them in (ours, theirs)))


def _shared(
    raw: PveRaw,
    ours: tuple[HostPci, ...],
    theirs: tuple[HostPci, ...],
    other: Mapping[str, Any],
    devices: Reading[tuple[PciDevice, ...]],
) -> tuple[str, ...]:
    mine, others = ({a for one in them for a in one.addresses} for them in (ours, theirs))
    groups = {g for one in ours for g in one.iommu_groups} & {g for one in theirs for g in one.iommu_groups}
    mappings = {one.mapping for one in ours if one.mapping} & {one.mapping for one in theirs}
    nodes = shared_nodes(nvidia_nodes(known_or(object_of(raw.config), {})), nvidia_nodes(other))
    return (
        *sorted(mine & others), *(f"iommu group {g}" for g in sorted(groups)),
        *(f"mapping {m}" for m in sorted(mappings)), *sorted(nodes), *_fabric(devices, mine, others),
    )  # fmt: skip


def _fabric(devices: Reading[tuple[PciDevice, ...]], ours: set[str], theirs: set[str]) -> tuple[str, ...]:
    """NVSwitches of one guest whose GPUs are another's: who restarts the one takes the other's NVLinks down."""
    rows = devices.value if isinstance(devices, Known) else ()
    switches, gpus = ({d.address for d in rows if getattr(d, word)} for word in ("nvswitch", "gpu"))
    across = (switches & ours and gpus & theirs) or (switches & theirs and gpus & ours)
    return ("the NVLink fabric (NVSwitch " + ", ".join(sorted(switches & (ours | theirs))) + ")",) if across else ()
