"""All processes of one server are one group, however they hang together; two servers on a guest are never one group.

Who belongs together is found in `kinship`; here a group gets its name, owner, launch and GPUs. Health comes later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from recover.core import engines
from recover.core.engines import OTHER
from recover.core.kinship import GPU_NODE, Draft, Part, drafts_of, engine_of, ranks_of
from recover.core.owners import ancestors, owner_of
from recover.core.redact import redact, redact_text
from recover.model.gpu import Gpu, uuid_of
from recover.model.guest import Guest
from recover.model.process import Group, Health, Owner, OwnerKind, Process, Rank
from recover.model.reading import Known
from recover.model.snapshot import Snapshot


def gpus_of(snapshot: Snapshot) -> tuple[Gpu, ...]:
    guest = snapshot.guest
    return guest.gpus.value if isinstance(guest, Guest) and isinstance(guest.gpus, Known) else ()


def processes_of(snapshot: Snapshot) -> tuple[Process, ...]:
    guest = snapshot.guest
    return guest.processes.value if isinstance(guest, Guest) and isinstance(guest.processes, Known) else ()


def in_container(snapshot: Snapshot) -> bool:
    """In a container the driver names processes by their numbers on the host: here the number is somebody else's."""
    return isinstance(snapshot.guest, Guest) and snapshot.guest.identity.container


def form(snapshot: Snapshot) -> tuple[Group, ...]:
    """The groups of a look, each with health LIVE and no evidence yet; oldest first."""
    return tuple(group for group, _ in form_with_parts(snapshot))


def form_with_parts(snapshot: Snapshot) -> tuple[tuple[Group, tuple[Part, ...]], ...]:
    processes = processes_of(snapshot)
    table = {p.pid: p for p in processes}
    listed = {} if in_container(snapshot) else _listed(gpus_of(snapshot), table)
    drafts = drafts_of(processes, table, set(listed))
    made = [(_group(d, table, snapshot, listed), tuple(d.parts[k] for k in sorted(d.parts))) for d in drafts]
    return tuple(sorted(made, key=lambda pair: pair[0].members[0]))


def _listed(gpus: tuple[Gpu, ...], table: Mapping[int, Process]) -> dict[int, set[str]]:
    """pid -> GPUs on which the driver lists it."""
    found: dict[int, set[str]] = {}
    for gpu in gpus:
        rows = gpu.processes.value if isinstance(gpu.processes, Known) else ()
        for row in rows:
            if row.pid in table:
                found.setdefault(row.pid, set()).add(uuid_of(gpu))
    return found


def main_of(parts: tuple[Part, ...], table: Mapping[int, Process]) -> Process | None:
    """The launcher: named so, else a member that the ranks are children of (an engine used from a script)."""
    engine = engine_of(parts)
    mains = [p.process for p in parts if p.rank is Rank.MAIN and p.engine in (engine, OTHER)]
    if mains:
        return min(mains, key=lambda p: p.id)
    members = {p.process.pid for p in parts}
    workers = ranks_of(parts)
    for worker in sorted(workers, key=lambda p: p.id):
        above = ancestors(worker, table)
        outer = [a for a in above if a.pid in members and a not in workers and not engines.is_inner(a)]
        if outer:
            return outer[-1]
    return None


def _group(draft: Draft, table: Mapping[int, Process], snapshot: Snapshot, listed: Mapping[int, set[str]]) -> Group:
    parts = tuple(draft.parts[k] for k in sorted(draft.parts))
    members = tuple(sorted(p.process.id for p in parts))
    main = main_of(parts, table)
    lead = main if main is not None else draft.root
    argv = lead.argv.value if isinstance(lead.argv, Known) else ()
    known_main = main is not None and not main.plain_zombie and not main.dead_leader
    launch = redact(argv) if known_main or draft.engine is OTHER else ()
    peers = frozenset(p for part in parts for p in part.process.peers) if _spreads(launch) else frozenset()
    return Group(
        key=str(members[0]),
        engine=draft.engine.name,
        members=members,
        owner=_named(owner_of(lead, table), snapshot),
        health=Health.LIVE,
        why="",
        title=redact_text(lead.title) or f"[{lead.comm}]",
        launch=launch,
        tp=engines.number(launch, draft.engine.tp_flags) if launch else None,
        gpus=_gpus(parts, snapshot, listed),
        distributed=_spreads(launch),
        peer_hosts=peers | _addresses(launch),
        protected=_why_protected(parts, snapshot.target.protect),
    )


def _named(owner: Owner, snapshot: Snapshot) -> Owner:
    """A pod by its namespace and name, which is how it is asked for; its control group knows only its uid."""
    if owner.kind is not OwnerKind.KUBERNETES or not isinstance(snapshot.guest, Guest):
        return owner
    name = dict(snapshot.guest.pods).get(owner.name)
    return replace(owner, name=name) if name else owner


def _gpus(parts: tuple[Part, ...], snapshot: Snapshot, listed: Mapping[int, set[str]]) -> frozenset[str]:
    """The driver's list outranks open nodes: CUDA opens the nodes of all GPUs that it may see."""
    pids = {p.process.pid for p in parts}
    told = frozenset(uuid for pid in pids & listed.keys() for uuid in listed[pid])
    nodes = {int(m[1]) for p in parts for name in p.process.holds if (m := GPU_NODE.match(name))}
    open_nodes = [g for g in gpus_of(snapshot) if isinstance(g.minor, Known) and g.minor.value in nodes]
    return told | {uuid_of(g) for g in open_nodes if not told or not isinstance(g.processes, Known)}


_WIDE = ("--nnodes", "-n", "--node-rank", "--dist-init-addr", "--nccl-init-addr", "--master-addr", "--headless")


def _spreads(launch: tuple[str, ...]) -> bool:
    nodes = engines.number(launch, ("--nnodes",))
    return nodes > 1 if nodes is not None else engines.flag(launch, _WIDE[3:6]) is not None


def _addresses(launch: tuple[str, ...]) -> frozenset[str]:
    if not _spreads(launch):
        return frozenset()
    address = engines.flag(launch, _WIDE[3:6])
    return frozenset({address.rsplit(":", 1)[0].strip("[]")}) if address else frozenset()


def _why_protected(parts: tuple[Part, ...], protect: tuple[str, ...]) -> str:
    for part in parts:
        process = part.process
        why = engines.legitimate_holder(process)
        if why:
            return why
        words = engines.words_of(process)
        program = words.split(" ", maxsplit=1)[0].rsplit("/", 1)[-1]
        unit = process.cgroup.rsplit("/", 1)[-1].removesuffix(".service")
        for name in protect:
            if name in (program, process.comm, unit, f"{unit}.service") or name[:15] == process.comm:
                return f"protect: {name}"
        if process.pid == 1:
            return "pid 1"
    return ""


def fingerprint(group: Group) -> str:
    """Equal for two launches of the same server; empty where the launch is not known."""
    if not group.launch or group.engine == OTHER.name:
        return ""
    return hashlib.sha256("\0".join(group.launch).encode()).hexdigest()[:16]


def with_health(group: Group, health: Health, why: str) -> Group:
    return replace(group, health=health, why=why)
