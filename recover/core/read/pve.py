"""What the Proxmox API answered becomes a Hypervisor; an answer that is missing stays a gap that says why."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recover.core.read.pve_config import PciDevice, bus, unreadable, vm_config
from recover.core.read.pve_jobs import backup_due
from recover.core.read.pve_near import near_mappings, neighbours
from recover.core.read.pve_raw import GuestRow, PveRaw, guest_rows, list_of, object_of, tags_of
from recover.core.read.pve_tasks import Upid, parse_upid, strange_tasks, task_list
from recover.core.read.pve_values import flag, given, number, rows_of, text
from recover.model.hypervisor import AgentState, GuestKind, HostMemory, HostPci, Hypervisor, Pending, Task, VmConfig
from recover.model.reading import Known, Reading, Unknown, Why, known_or, map_known

__all__ = [
    "GuestRow",
    "PveRaw",
    "Upid",
    "addresses",
    "guest_rows",
    "hypervisor",
    "parse_upid",
    "task_list",
]

MIB = 1024 * 1024
_LISTS = ("pending", "tasks", "cluster_status", "pci", "mappings", "storages", "resources", "backup_jobs")


def hypervisor(raw: PveRaw) -> Hypervisor:
    lists: dict[str, Any] = {name: list_of(getattr(raw, name)) for name in _LISTS}
    raw = replace(raw, **lists)
    devices = bus(raw.pci)
    config = _config(raw, devices)
    ours = config.value.hostpci if isinstance(config, Known) else ()
    clock = number(known_or(object_of(raw.node_time), {}).get("time")) or raw.clock_s
    tasks = _tasks(raw)
    agent = _agent(raw, config)
    ha = _ha(raw)
    quorate = _quorate(raw.cluster_status)
    storages = _storages(raw, config)
    backup = backup_due(raw, clock)
    near = neighbours(raw, ours, devices)
    status = raw.status
    node = object_of(raw.node_status)
    memory = _memory(node)
    return Hypervisor(
        cluster=raw.cluster,
        node=raw.node,
        vmid=raw.vmid,
        kind=raw.kind,
        status=text(status.get("status")),
        qmpstatus=_qmpstatus(status),
        config=config,
        pending=_pending(raw.pending),
        lock=_lock(status) or _lock(known_or(object_of(raw.config), {})),
        ha_state=ha,
        quorate=quorate,
        tasks=tasks,
        agent=agent,
        host_memory=memory,
        storages=storages,
        neighbours=near,
        uptime_s=number(status.get("uptime")),
        pid=number(status.get("pid")),
        tags=_tags(raw),
        name=text(status.get("name")),
        version=text(known_or(object_of(raw.version), {}).get("version")),
        backup_due=backup,
        invisible_guests=not _sees_all(raw),
        host_uptime_s=_uptime(node),
        clock_s=clock,
        agent_addresses=addresses(raw.agent_net),
        near_mappings=near_mappings(raw, ours),
        gaps=_gaps(
            raw,
            {
                "configuration": config, "pending changes": raw.pending, "tasks": tasks, "HA": ha, "quorum": quorate,
                "host memory": memory, "PCI devices": devices if ours else Known(None),
                "PCI mappings": _mapped(raw, ours),
                "storages": storages, "neighbours": near, "backup jobs": backup,
                "guest agent": agent if raw.kind is GuestKind.VM else Known(None),
            },
        ),
    )  # fmt: skip


def _config(raw: PveRaw, devices: Reading[tuple[PciDevice, ...]]) -> Reading[VmConfig]:
    found = object_of(raw.config)
    if isinstance(found, Unknown):
        return found
    key = unreadable(found.value)
    if key:
        return Unknown(Why.GARBLED, f"{key} makes no sense")
    return Known(vm_config(found.value, raw.node, devices, raw.mappings))


def _qmpstatus(status: Mapping[str, Any]) -> Reading[str]:
    if "qmpstatus" not in status:
        return Unknown(Why.ABSENT, "no qmpstatus")
    word = status["qmpstatus"]
    return Known(word) if isinstance(word, str) and word else Unknown(Why.GARBLED, "qmpstatus is no word")


def _lock(row: Mapping[str, Any]) -> str:
    """Whatever stands there is a lock, but nothing at all."""
    return str(given(row, "lock", ""))


def _tags(raw: PveRaw) -> tuple[str, ...]:
    """Of all that show them: the status of old releases doesn't, and the cluster's list may be ten seconds old."""
    rows = [row for row in guest_rows(known_or(raw.resources, [])) if row.vmid == raw.vmid]
    config = known_or(object_of(raw.config), {})
    return tuple(dict.fromkeys((*tags_of(raw.status), *tags_of(config), *(t for row in rows for t in row.tags))))


def _pending(reading: Reading[list[Any]]) -> Reading[tuple[Pending, ...]]:
    if isinstance(reading, Unknown):
        return reading
    if not all(isinstance(row, Mapping) and text(row.get("key")) for row in reading.value):
        return Unknown(Why.GARBLED, "the list of pending changes has rows without a key")
    return Known(
        tuple(
            Pending(text(r["key"]), text(r.get("value")), text(r.get("pending")), _goes(r))
            for r in rows_of(reading.value)
            if "pending" in r or _goes(r)
        )
    )


def _goes(row: Mapping[str, Any]) -> bool:
    """1 and 2 (by force) stand for a key that is taken out."""
    return "delete" in row and number(row["delete"], 1) != 0


def _mapped(raw: PveRaw, ours: tuple[HostPci, ...]) -> Reading[Any]:
    mapped = [d for d in ours if d.mapping]
    if isinstance(raw.mappings, Unknown) or not mapped:
        return raw.mappings if mapped else Known(None)
    return next((d.present for d in mapped if not d.addresses and isinstance(d.present, Unknown)), Known(None))


def _privileges(reading: Reading[Any]) -> Reading[dict[str, bool]]:
    """Privilege -> whether it propagates; a privilege that does not is held all the same."""

    def merge(paths: Mapping[str, Any]) -> dict[str, bool]:
        held: dict[str, bool] = {}
        for privileges in paths.values():
            if isinstance(privileges, Mapping):
                for name, propagates in privileges.items():
                    held[str(name)] = held.get(str(name), False) or flag(propagates)
        return held

    return map_known(object_of(reading), merge)


def _sees_all(raw: PveRaw) -> bool:
    held = _privileges(raw.vms_privs)
    return isinstance(held, Known) and held.value.get("VM.Audit", False)


def _tasks(raw: PveRaw) -> Reading[tuple[Task, ...]]:
    """A token without Sys.Audit on the node is shown its own tasks only, and is not told so."""
    held = _privileges(raw.node_privs)
    if isinstance(held, Known) and "Sys.Audit" not in held.value:
        return Unknown(Why.DENIED, f"needs Sys.Audit on /nodes/{raw.node}: tasks of others are not shown")
    if isinstance(held, Unknown) and not isinstance(raw.node_status, Known):  # that one needs the same privilege
        return Unknown(held.why, f"whether tasks of others are shown: {held.detail or held.why}")
    if isinstance(raw.tasks, Known) and strange_tasks(raw.tasks.value):
        return Unknown(Why.GARBLED, "the list of tasks has rows that name none")
    return map_known(raw.tasks, lambda rows: task_list(rows, raw.token_id))


def _quorate(reading: Reading[Any]) -> Reading[bool]:
    """A node that is no cluster has no cluster row, and no quorum to lose."""
    if isinstance(reading, Unknown):
        return reading
    rows = rows_of(reading.value)
    kinds = [row.get("type") for row in rows]
    if not rows or len(rows) != len(reading.value) or not set(map(str, kinds)) <= {"cluster", "node"}:
        return Unknown(Why.GARBLED, "the cluster's status has rows that are neither cluster nor node")
    if "cluster" not in kinds and len(kinds) > 1:
        return Unknown(Why.GARBLED, "the cluster's status has several nodes and no cluster")
    return Known(all(flag(row.get("quorate")) for row in rows if row.get("type") == "cluster"))


def _ha(raw: PveRaw) -> Reading[str]:
    ha = raw.status.get("ha")
    if isinstance(ha, Mapping) and ha.get("managed") is not None:
        if not flag(ha["managed"], doubt=True):
            return Known("")
        if ha.get("state") not in (None, ""):  # else the CRM has not taken it up yet
            return _ha_state(Known(ha))
    if isinstance(raw.ha, Unknown):
        # pve-ha-manager, API2/HA/Resources.pm. Any other answer is not about this guest: a proxy's 404, a 400.
        gone = raw.ha.why is Why.ABSENT and "no such resource" in raw.ha.detail
        return Known("") if gone else raw.ha
    return _ha_state(object_of(raw.ha))


def _ha_state(reading: Reading[Mapping[str, Any]]) -> Reading[str]:
    if isinstance(reading, Unknown):
        return reading
    state = text(given(reading.value, "state", "started"))
    return Known(state) if state else Unknown(Why.GARBLED, "its HA state is no word")


def _agent(raw: PveRaw, config: Reading[VmConfig]) -> Reading[AgentState]:
    """Silence is what the agent's own ping says; an API that does not answer says nothing about the agent."""
    if isinstance(config, Known) and not config.value.agent:
        return Known(AgentState.OFF)
    ping = raw.agent_ping
    if isinstance(ping, Known):
        return Known(AgentState.ANSWERS)
    text = ping.detail.lower()
    if "no qemu guest agent configured" in text:
        return Known(AgentState.OFF)
    if "guest agent is not running" in text or ("guest-ping" in text and "got timeout" in text):
        return Known(AgentState.SILENT)
    return ping


def _memory(node: Reading[Mapping[str, Any]]) -> Reading[HostMemory]:
    if isinstance(node, Unknown):
        return node
    memory = node.value.get("memory")
    sizes = [number(memory.get(key), -1) for key in ("total", "used", "free")] if isinstance(memory, Mapping) else [-1]
    if min(sizes) < 0:
        return Unknown(Why.GARBLED, "the node's status has no memory")
    return Known(HostMemory(*(size // MIB for size in sizes)))


def _uptime(node: Reading[Mapping[str, Any]]) -> Reading[int]:
    if isinstance(node, Unknown):
        return node
    seconds = number(node.value.get("uptime"), -1)
    return Known(seconds) if seconds >= 0 else Unknown(Why.GARBLED, "the node's status has no uptime")


def _storages(raw: PveRaw, config: Reading[VmConfig]) -> Reading[tuple[tuple[str, bool], ...]]:
    if isinstance(config, Unknown):
        return config
    if isinstance(raw.storages, Unknown):
        return raw.storages
    active = {str(r.get("storage")): flag(r.get("active", 0)) for r in rows_of(raw.storages.value)}
    hidden = [name for name in config.value.storages if name not in active]
    if hidden:  # the list leaves out what the token may not see, and says nothing
        return Unknown(Why.DENIED, f"needs Datastore.Audit on /storage/{hidden[0]}")
    return Known(tuple((name, active[name]) for name in config.value.storages))


def addresses(reading: Reading[Any]) -> tuple[str, ...]:
    """The guest's own addresses: from its agent, or for a container from its interfaces."""
    value: Any = known_or(reading, [])
    rows = value.get("result") if isinstance(value, Mapping) else value
    said: list[str] = []
    for row in rows_of(rows):
        said += [text(a.get("ip-address")) for a in rows_of(row.get("ip-addresses", []))]
        said += [text(row.get(key)).partition("/")[0] for key in ("inet", "inet6")]
    found: dict[str, None] = {}
    for word in said:
        try:
            address = ipaddress.ip_address(word.partition("%")[0])
        except ValueError:
            continue
        if not (address.is_loopback or address.is_link_local or address.is_unspecified):
            found[str(address)] = None
    return tuple(found)


def _gaps(raw: PveRaw, readings: Mapping[str, Reading[Any]]) -> tuple[str, ...]:
    gaps = [f"{name}: {r.detail or r.why}" for name, r in readings.items() if isinstance(r, Unknown)]
    if not _sees_all(raw):
        gaps.append("guests of the node that this token cannot see: needs VM.Audit on /vms")
    return (*gaps, *raw.notes)
