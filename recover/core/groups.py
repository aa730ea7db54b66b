"""All processes of one server are one group, however they hang together; two servers on a guest are never one group.

Parents bind first (also dead ones), then what lost its parent joins by process group, session or its own control group,
but only a main that is older than itself and that has no such rank yet. Health is not judged here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from recover.core import engines
from recover.core.engines import OTHER, Engine
from recover.core.owners import ancestors, own_cgroup, owner_of
from recover.core.redact import redact, redact_text
from recover.model.gpu import Gpu
from recover.model.guest import Guest
from recover.model.process import Group, Health, Process, ProcessId, Rank
from recover.model.reading import Known
from recover.model.snapshot import Snapshot

_GPU_NODE = re.compile(r"^nvidia(\d+)$")
_DRIVER_WAIT = re.compile(r"nvidia|uvm_|^rm_|^os_acquire|^nv_", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Part:
    """A process in its group: which engine's, and its rank in it."""

    process: Process
    engine: Engine
    rank: Rank
    named: bool  # by its own name, not only by whom it belongs to


@dataclass(slots=True)
class _Draft:
    root: Process
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        found = [p.engine for p in self.parts.values() if p.engine is not OTHER]
        return min(found, key=lambda e: e.name == "ray", default=OTHER)

    @property
    def main(self) -> Process | None:
        mains = [p.process for p in self.parts.values() if p.rank is Rank.MAIN]
        return min(mains, key=lambda p: p.id, default=None)

    def titles(self) -> set[str]:
        return {p.process.title for p in self.parts.values() if p.rank is Rank.WORKER and p.process.title}


def uuid_of(gpu: Gpu) -> str:
    """How a GPU is named in findings: its UUID, or its bus id where the driver does not say."""
    return gpu.uuid.value if isinstance(gpu.uuid, Known) else gpu.bus_id


def gpus_of(snapshot: Snapshot) -> tuple[Gpu, ...]:
    guest = snapshot.guest
    return guest.gpus.value if isinstance(guest, Guest) and isinstance(guest.gpus, Known) else ()


def processes_of(snapshot: Snapshot) -> tuple[Process, ...]:
    guest = snapshot.guest
    return guest.processes.value if isinstance(guest, Guest) and isinstance(guest.processes, Known) else ()


def form(snapshot: Snapshot) -> tuple[Group, ...]:
    """The groups of a look, each with health LIVE and no evidence yet; oldest first."""
    return tuple(group for group, _ in form_with_parts(snapshot))


def form_with_parts(snapshot: Snapshot) -> tuple[tuple[Group, tuple[Part, ...]], ...]:
    processes = processes_of(snapshot)
    table = {p.pid: p for p in processes}
    listed = _listed(gpus_of(snapshot), table)
    drafts = _by_parents(processes, table, set(listed))
    drafts = _orphans_join(drafts)
    for draft in drafts:
        _descendants_join(draft, drafts, processes)
        _zombies_join(draft, drafts, processes)
    drafts = [d for d in drafts if not all(p.process.plain_zombie for p in d.parts.values())]  # those hold nothing
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


def holds_gpu(process: Process) -> bool:
    """Whether a GPU's own node is open or mapped, or the task waits inside the driver where nobody can look at it."""
    if any(_GPU_NODE.match(name) for name in process.holds):
        return True
    waits = (process.wchan, *process.thread_wchans)
    return not process.holds_known and process.state == "D" and any(_DRIVER_WAIT.search(w) for w in waits)


def _by_parents(processes: Iterable[Process], table: Mapping[int, Process], listed: set[int]) -> list[_Draft]:
    """One draft per outermost process; between it and a seed there are only its own processes, no shell or init."""
    drafts: dict[int, _Draft] = {}
    for process in processes:
        if process.ours:
            continue
        named = _part_of(process, table)
        if named is None and process.pid not in listed and not holds_gpu(process):
            continue
        root = _root(process, table)
        draft = drafts.setdefault(root.pid, _Draft(root))
        engine, rank = named if named is not None else (OTHER, Rank.NONE)
        draft.parts[process.pid] = Part(process, engine, rank, named is not None)
    for draft in drafts.values():
        for part in list(draft.parts.values()):
            for parent in _own_ancestors(part.process, table):
                draft.parts.setdefault(parent.pid, Part(parent, OTHER, Rank.NONE, False))
    return list(drafts.values())


def _own_ancestors(process: Process, table: Mapping[int, Process]) -> list[Process]:
    """The parents up to the first shell, init or supervisor, or the first real main of another server.

    A main is where its server begins: what starts servers (a script, a notebook) may start several.
    """
    found: list[Process] = []
    if _begins(process, table):
        return found
    for parent in ancestors(process, table):
        if engines.is_reaper(parent) or parent.ours or engines.legitimate_holder(parent):
            break
        found.append(parent)
        if _begins(parent, table):
            break
    return found


def _begins(process: Process, table: Mapping[int, Process]) -> bool:
    named = _part_of(process, table)
    return named is not None and named[1] is Rank.MAIN


def _part_of(process: Process, table: Mapping[int, Process]) -> tuple[Engine, Rank] | None:
    """The part by its own name; a forked rank still shows its parent's command line until it sets its title."""
    named = engines.classify(process)
    parent = table.get(process.ppid)
    if named is None or named[1] is not Rank.MAIN or parent is None or parent.title != process.title:
        return named
    return (named[0], Rank.NONE) if engines.classify(parent) == named else named


def _root(process: Process, table: Mapping[int, Process]) -> Process:
    return ([process, *_own_ancestors(process, table)])[-1]


def _orphans_join(drafts: list[_Draft]) -> list[_Draft]:
    """What has no main joins the one main that it can belong to, or its fellow orphans."""
    with_main = [d for d in drafts if d.main is not None]
    kept: list[_Draft] = list(with_main)
    orphans: list[_Draft] = []
    for draft in sorted((d for d in drafts if d.main is None), key=lambda d: d.root.id):
        homes = [d for d in with_main if _home_of(draft, d)]
        home = homes[0] if len(homes) == 1 else next((o for o in orphans if _fellows(draft, o)), None)
        if home is None:
            orphans.append(draft)
        else:
            home.parts.update(draft.parts)
    return kept + orphans


def _home_of(orphan: _Draft, home: _Draft) -> bool:
    main = home.main
    if main is None or orphan.engine is OTHER or orphan.engine is not home.engine or _protected(orphan.root):
        return False
    born_later = all(p.process.id.start >= main.id.start for p in orphan.parts.values() if p.named)
    return born_later and not orphan.titles() & home.titles() and _together(orphan.root, main)


def _fellows(orphan: _Draft, other: _Draft) -> bool:
    if _protected(orphan.root) or _protected(other.root) or orphan.engine is not other.engine:
        return False
    if orphan.titles() & other.titles():
        return False
    if orphan.engine is OTHER:  # ranks of a job that is no server: torchrun gives them one process group or session
        return orphan.root.pgid == other.root.pgid and orphan.root.sid == other.root.sid
    return _together(orphan.root, other.root)


def _together(one: Process, other: Process) -> bool:
    if (one.pgid == other.pgid or one.sid == other.sid) and one.sid > 1:
        return True
    return one.cgroup == other.cgroup and own_cgroup(one.cgroup)


def _protected(process: Process) -> str:
    return engines.legitimate_holder(process)


def _descendants_join(draft: _Draft, drafts: list[_Draft], processes: Iterable[Process]) -> None:
    """Whatever a member started belongs to it, unless that begins another server or a session."""
    taken = {pid for d in drafts for pid in d.parts}
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.ppid, []).append(process)
    queue = [p for p in draft.parts if not _protected(draft.root)]
    while queue:
        for child in children.get(queue.pop(), ()):
            if child.pid in taken or child.ours or _session_like(child):
                continue
            rank = Rank.HELPER
            draft.parts[child.pid] = Part(child, OTHER, rank, False)
            taken.add(child.pid)
            queue.append(child.pid)


def _session_like(process: Process) -> bool:
    return process.comm.startswith(("sshd", "tmux", "screen", "login"))


def _zombies_join(draft: _Draft, drafts: list[_Draft], processes: Iterable[Process]) -> None:
    """A dead main has lost its children, but its process group still names it."""
    taken = {pid for d in drafts for pid in d.parts}
    pgids = {p.process.pgid for p in draft.parts.values() if p.process.pgid > 1}
    for process in processes:
        if process.pid in taken or process.state not in "ZX" or process.ours or engines.is_reaper(process):
            continue
        if process.pgid in pgids and draft.engine is not OTHER:
            main = process.pid == process.pgid and draft.main is None
            draft.parts[process.pid] = Part(process, OTHER, Rank.MAIN if main else Rank.HELPER, False)


def main_of(parts: tuple[Part, ...], table: Mapping[int, Process]) -> Process | None:
    """The launcher: named so, else a member that the ranks are children of (an engine used from a script)."""
    mains = [p.process for p in parts if p.rank is Rank.MAIN]
    if mains:
        return min(mains, key=lambda p: p.id)
    members = {p.process.pid for p in parts}
    workers = [p.process for p in parts if p.rank is Rank.WORKER]
    for worker in sorted(workers, key=lambda p: p.id):
        outer = [a for a in ancestors(worker, table) if a.pid in members and a not in workers]
        if outer:
            return outer[-1]
    return None


def _group(draft: _Draft, table: Mapping[int, Process], snapshot: Snapshot, listed: Mapping[int, set[str]]) -> Group:
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
        owner=owner_of(lead, table),
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


def _gpus(parts: tuple[Part, ...], snapshot: Snapshot, listed: Mapping[int, set[str]]) -> frozenset[str]:
    """The driver's list outranks open nodes: CUDA opens the nodes of all GPUs that it may see."""
    pids = {p.process.pid for p in parts}
    told = frozenset(uuid for pid in pids & listed.keys() for uuid in listed[pid])
    nodes = {int(m[1]) for p in parts for name in p.process.holds if (m := _GPU_NODE.match(name))}
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


def member_ids(groups: Iterable[Group]) -> frozenset[ProcessId]:
    return frozenset(member for group in groups for member in group.members)
