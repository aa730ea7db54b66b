"""What the Proxmox API answered becomes a Hypervisor; an answer that is missing stays a gap that says why."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from recover.core.read.pve_config import (
    flag,
    host_pcis,
    number,
    nvidia_nodes,
    pci_devices,
    rows_of,
    shared_nodes,
    vm_config,
)
from recover.core.read.pve_raw import GuestRow, PveRaw, guest_rows, list_of, object_of, tags_of
from recover.core.read.pve_tasks import Upid, parse_upid, task_list
from recover.model.hypervisor import (
    AgentState,
    GuestKind,
    HostMemory,
    HostPci,
    Hypervisor,
    Neighbour,
    Pending,
    Task,
    VmConfig,
)
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
BACKUP_SOON_S = 30 * 60
_LISTS = ("pending", "tasks", "cluster_status", "pci", "mappings", "storages", "resources", "backup_jobs")


def hypervisor(raw: PveRaw) -> Hypervisor:
    lists: dict[str, Any] = {name: list_of(getattr(raw, name)) for name in _LISTS}
    raw = replace(raw, **lists)
    devices = map_known(raw.pci, pci_devices)
    config = map_known(object_of(raw.config), lambda c: vm_config(c, raw.node, devices, raw.mappings))
    ours = config.value.hostpci if isinstance(config, Known) else ()
    clock = number(known_or(object_of(raw.node_time), {}).get("time"), raw.clock_s) or raw.clock_s
    tasks = _tasks(raw)
    agent = _agent(raw, config)
    ha = _ha(raw)
    quorate = _quorate(raw.cluster_status)
    storages = _storages(raw, config)
    backup = _backup_due(raw, clock)
    neighbours = _neighbours(raw, ours)
    status = raw.status
    node = object_of(raw.node_status)
    memory = _memory(node)
    return Hypervisor(
        cluster=raw.cluster,
        node=raw.node,
        vmid=raw.vmid,
        kind=raw.kind,
        status=str(status.get("status", "")),
        qmpstatus=Known(str(status["qmpstatus"])) if "qmpstatus" in status else Unknown(Why.ABSENT, "no qmpstatus"),
        config=config,
        pending=map_known(raw.pending, _pending),
        lock=str(status.get("lock") or known_or(object_of(raw.config), {}).get("lock") or ""),
        ha_state=ha,
        quorate=quorate,
        tasks=tasks,
        agent=agent,
        host_memory=memory,
        storages=storages,
        neighbours=neighbours,
        uptime_s=number(status.get("uptime")),
        pid=number(status.get("pid")),
        tags=tags_of(status),
        name=str(status.get("name", "")),
        version=str(known_or(object_of(raw.version), {}).get("version", "")),
        backup_due=backup,
        invisible_guests=not _sees_all(raw),
        host_uptime_s=_uptime(node),
        clock_s=clock,
        agent_addresses=addresses(raw.agent_net),
        gaps=_gaps(
            raw,
            {
                "configuration": config, "pending changes": raw.pending, "tasks": tasks, "HA": ha, "quorum": quorate,
                "host memory": memory, "PCI devices": raw.pci if ours else Known(None),
                "PCI mappings": raw.mappings if any(d.mapping for d in ours) else Known(None),
                "storages": storages, "neighbours": neighbours, "backup jobs": backup,
                "guest agent": agent if raw.kind is GuestKind.VM else Known(None),
            },
        ),
    )  # fmt: skip


def _pending(rows: Any) -> tuple[Pending, ...]:
    return tuple(
        Pending(str(r["key"]), str(r.get("value", "")), str(r.get("pending", "")), bool(number(r.get("delete"))))
        for r in rows_of(rows)
        if "key" in r and ("pending" in r or number(r.get("delete")))
    )


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
    return map_known(raw.tasks, lambda rows: task_list(rows, raw.token_id))


def _quorate(reading: Reading[Any]) -> Reading[bool]:
    """A node that is no cluster has no cluster row, and no quorum to lose."""
    if isinstance(reading, Unknown):
        return reading
    rows = rows_of(reading.value)
    if not any(row.get("type") in ("cluster", "node") for row in rows):
        return Unknown(Why.GARBLED, "the cluster's status has neither cluster nor node")
    return Known(all(flag(row.get("quorate", 0)) for row in rows if row.get("type") == "cluster"))


def _ha(raw: PveRaw) -> Reading[str]:
    ha = raw.status.get("ha")
    if isinstance(ha, Mapping):
        if not flag(ha.get("managed", 0)):
            return Known("")
        if ha.get("state"):
            return Known(str(ha["state"]))
    if isinstance(raw.ha, Unknown) and raw.ha.why is Why.ABSENT:  # "no such resource": not HA-managed
        return Known("")
    return map_known(object_of(raw.ha), lambda row: str(row.get("state") or "started"))


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


def _backup_due(raw: PveRaw, clock: int) -> Reading[bool]:
    """Whether a job that includes this guest begins within half an hour."""
    if isinstance(raw.backup_jobs, Unknown):
        return raw.backup_jobs
    if not clock:
        return Unknown(Why.ABSENT, "the node's clock is not known")
    jobs = [j for j in rows_of(raw.backup_jobs.value) if flag(j.get("enabled", 1)) and _includes(j, raw)]
    unplanned = [str(job.get("id", "")) for job in jobs if "next-run" not in job]
    if unplanned:  # pve-manager before 7.1 has a day and a time instead
        return Unknown(Why.ABSENT, f"this release does not tell when backup job {unplanned[0] or '?'} runs next")
    return Known(any(0 <= number(job.get("next-run"), -1) - clock <= BACKUP_SOON_S for job in jobs))


def _includes(job: Mapping[str, Any], raw: PveRaw) -> bool:
    if job.get("node") not in (None, "", raw.node):
        return False
    if job.get("pool"):
        pools = {row.pool for row in guest_rows(known_or(raw.resources, [])) if row.vmid == raw.vmid and row.pool}
        return str(job["pool"]) in (pools or {str(job["pool"])})  # our pool is not shown: it may be this one
    named = re.split(r"[;, ]+", str(job.get("exclude" if flag(job.get("all", 0)) else "vmid", "")))
    return (str(raw.vmid) in named) != flag(job.get("all", 0))


def _neighbours(raw: PveRaw, ours: tuple[HostPci, ...]) -> Reading[tuple[Neighbour, ...]]:
    if isinstance(raw.resources, Unknown):
        return raw.resources
    configs = dict(raw.others)
    found: list[Neighbour] = []
    for row in guest_rows(raw.resources.value):
        if row.node != raw.node or row.vmid == raw.vmid:
            continue
        config = object_of(configs.get(row.vmid, Known({})))
        if isinstance(config, Unknown):
            return Unknown(config.why, f"the configuration of guest {row.vmid}: {config.detail}")
        shares = _shared(raw, ours, config.value)
        found.append(Neighbour(row.vmid, row.name, row.kind, row.status, shares))
    return Known(tuple(sorted(found, key=lambda one: one.vmid)))


def _shared(raw: PveRaw, ours: tuple[HostPci, ...], other: Mapping[str, Any]) -> tuple[str, ...]:
    theirs = host_pcis(other, raw.node, map_known(raw.pci, pci_devices), raw.mappings)
    devices = {a for one in ours for a in one.addresses} & {a for one in theirs for a in one.addresses}
    groups = {g for one in ours for g in one.iommu_groups} & {g for one in theirs for g in one.iommu_groups}
    mappings = {one.mapping for one in ours if one.mapping} & {one.mapping for one in theirs}
    fabric = _fabric(raw, {a for one in ours for a in one.addresses}, {a for one in theirs for a in one.addresses})
    nodes = shared_nodes(nvidia_nodes(known_or(object_of(raw.config), {})), nvidia_nodes(other))
    return (
        *sorted(devices), *(f"iommu group {g}" for g in sorted(groups)), *(f"mapping {m}" for m in sorted(mappings)),
        *sorted(nodes), *fabric,
    )  # fmt: skip


def _fabric(raw: PveRaw, ours: set[str], theirs: set[str]) -> tuple[str, ...]:
    """NVSwitches of one guest whose GPUs are another's: who restarts the one takes the other's NVLinks down."""
    rows = map_known(raw.pci, pci_devices)
    devices = rows.value if isinstance(rows, Known) else ()
    switches, gpus = ({d.address for d in devices if getattr(d, word)} for word in ("nvswitch", "gpu"))
    across = (switches & ours and gpus & theirs) or (switches & theirs and gpus & ours)
    return ("the NVLink fabric (NVSwitch " + ", ".join(sorted(switches & (ours | theirs))) + ")",) if across else ()


def addresses(reading: Reading[Any]) -> tuple[str, ...]:
    """The guest's own addresses: from its agent, or for a container from its interfaces."""
    value: Any = known_or(reading, [])
    rows = value.get("result") if isinstance(value, Mapping) else value
    texts: list[str] = []
    for row in rows_of(rows):
        texts += [str(a.get("ip-address", "")) for a in rows_of(row.get("ip-addresses", []))]
        texts += [str(row[key]).partition("/")[0] for key in ("inet", "inet6") if row.get(key)]
    found: dict[str, None] = {}
    for text in texts:
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
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
