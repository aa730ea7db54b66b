"""Who belongs together: parents bind first, then what lost its parent joins one home at most.

A home is a main of the same engine that is older than the orphan and has no such rank yet, in the same process group,
session or control group of its own. What starts servers (a shell, a script, a notebook) may start several: each begins
with its own main, with the script that its ranks are children of, or with what one launcher runs beside other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from recover.core import engines
from recover.core.engines import OTHER, Engine
from recover.core.owners import ancestors, own_cgroup
from recover.model.process import Process, Rank
from recover.model.reading import Known

GPU_NODE = re.compile(r"^nvidia(\d+)$")
# Functions in which tasks of network and user-space file systems wait for their server.
STORAGE = re.compile(
    r"^(nfs\d?_|nfs_|rpc_|xprt_|ceph_|fuse_|request_wait_answer|ll_|lustre|ptlrpc_|obd_|cl_|osc_|gpfs|cifs_|smb2?_|"
    r"wait_on_commit|afs_|p9_client|v9fs_|gfs2_|ocfs2_|beegfs|weka)",
)
# A page of a mapped file on its way from whatever storage: how weights are read that are mapped.
PAGE_WAIT = re.compile(r"^(folio_wait_bit|wait_on_page_|__lock_page|__folio_lock|io_schedule|filemap_)")
_DRIVER_WAIT = re.compile(r"nvidia|uvm_|^rm_|^os_acquire|^nv_", re.IGNORECASE)


Names = Mapping[int, tuple[Engine, Rank]]  # by pid: what a process is by its own name


@dataclass(frozen=True, slots=True)
class Part:
    """A process in its group: which engine's, and its rank in it."""

    process: Process
    engine: Engine
    rank: Rank
    named: bool  # by its own name, not only by whom it belongs to


@dataclass(slots=True)
class Draft:
    root: Process
    parts: dict[int, Part] = field(default_factory=dict)

    @property
    def engine(self) -> Engine:
        return engine_of(self.parts.values())

    @property
    def main(self) -> Process | None:
        mains = [p.process for p in self.parts.values() if p.rank is Rank.MAIN]
        root = self.parts.get(self.root.pid)
        if not mains and root is not None and root.engine is not self.engine and not engines.is_inner(self.root):
            mains = [self.root] if ranks_of(self.parts.values()) else []  # a script or an actor that uses an engine
        return min(mains, key=lambda p: p.id, default=None)

    def titles(self) -> set[str]:
        return {p.process.title for p in self.parts.values() if p.rank is Rank.WORKER and p.process.title}


def engine_of(parts: Iterable[Part]) -> Engine:
    """A server that an actor of Ray started is that server, not Ray."""
    found = [p.engine for p in parts if p.engine is not OTHER]
    return min(found, key=lambda e: e.name == "ray", default=OTHER)


def ranks_of(parts: Iterable[Part]) -> list[Process]:
    """The ranks of the server itself, not of what has started it."""
    parts = tuple(parts)
    engine = engine_of(parts)
    return [p.process for p in parts if p.rank is Rank.WORKER and p.engine is engine]


def drafts_of(processes: Iterable[Process], table: Mapping[int, Process], listed: set[int]) -> list[Draft]:
    """All that belongs together, as drafts of groups. What holds nothing (plain zombies alone) is none."""
    processes = tuple(processes)
    drafts = _orphans_join(_by_parents(processes, table, listed))
    for draft in drafts:
        _descendants_join(draft, drafts, processes)
        _zombies_join(draft, drafts, processes)
    return [d for d in drafts if not all(p.process.plain_zombie for p in d.parts.values())]


def holds_gpu(process: Process) -> bool:
    """Whether a GPU's own node is open or mapped, or the task waits inside the driver where nobody can look at it."""
    if any(GPU_NODE.match(name) for name in process.holds):
        return True
    return not process.holds_known and process.state == "D" and bool(driver_wait(process))


def driver_wait(process: Process) -> str:
    """The function of the NVIDIA driver in which a task of it waits, or nothing."""
    return next((w for w in process.waits if _DRIVER_WAIT.search(w)), "")


def _by_parents(processes: Iterable[Process], table: Mapping[int, Process], listed: set[int]) -> list[Draft]:
    """One draft per outermost process; between it and a seed there are only its own processes, no shell or init."""
    drafts: dict[int, Draft] = {}
    processes = tuple(processes)
    names = {p.pid: named for p in processes if (named := _part_of(p, table)) is not None}
    begins = _beginnings(processes, table, names, listed)
    for process in processes:
        if process.ours:
            continue
        named = names.get(process.pid)
        if named is None and process.pid not in listed and not holds_gpu(process):
            continue
        root = ([process, *_own_ancestors(process, table, begins)])[-1]
        draft = drafts.setdefault(root.pid, Draft(root))
        engine, rank = named if named is not None else (OTHER, Rank.NONE)
        draft.parts[process.pid] = Part(process, engine, rank, named is not None)
    for draft in drafts.values():
        for part in list(draft.parts.values()):
            for parent in _own_ancestors(part.process, table, begins):
                draft.parts.setdefault(parent.pid, Part(parent, OTHER, Rank.NONE, False))
    return list(drafts.values())


def _own_ancestors(process: Process, table: Mapping[int, Process], begins: frozenset[int]) -> list[Process]:
    """The parents up to the first shell, init or supervisor, or to where its server or job begins."""
    found: list[Process] = []
    if process.pid in begins:
        return found
    for parent in ancestors(process, table):
        if engines.is_reaper(parent) or parent.ours or engines.legitimate_holder(parent):
            break
        found.append(parent)
        if parent.pid in begins:
            break
    return found


def _beginnings(
    processes: Iterable[Process], table: Mapping[int, Process], names: Names, listed: set[int]
) -> frozenset[int]:
    """Where servers and jobs begin: mains, notebooks' kernels, scripts that use an engine, jobs of one launcher."""
    processes = tuple(processes)
    found = {p.pid for p in processes if p.pid not in names and engines.notebook(p)}
    for pid, (engine, rank) in names.items():
        if rank is Rank.MAIN:
            found.add(pid)
        elif rank is Rank.WORKER:
            found |= _launcher(table[pid], engine, table, names)
    users = (p for p in processes if p.pid in listed or holds_gpu(p))
    return frozenset(found | _side_by_side(users, table, names, frozenset(found)))


def _launcher(rank: Process, engine: Engine, table: Mapping[int, Process], names: Names) -> set[int]:
    """The script or the actor whose engine a rank is: the nearest parent that is no part of the engine itself."""
    for parent in ancestors(rank, table):
        if engines.is_reaper(parent) or parent.ours or engines.legitimate_holder(parent):
            return set()
        named = names.get(parent.pid)
        if named is not None and named[0] is engine and named[1] is Rank.HELPER and not engines.is_inner(parent):
            return set()  # a router's servers, an API server: what has started them knows more
        if named is not None and named[1] is Rank.MAIN:
            return set()
        above = table.get(parent.ppid)
        forked = above is not None and bool(parent.title) and above.title == parent.title
        own = named is not None and named[0] is engine
        if not (own or forked or engines.is_inner(parent) or engines.spawned_child(parent)):
            return {parent.pid}
    return set()


def _side_by_side(
    users: Iterable[Process], table: Mapping[int, Process], names: Names, begins: frozenset[int]
) -> set[int]:
    """Different programs with GPUs below one launcher that has none. Ranks of one job run one program."""
    below: dict[int, set[int]] = {}
    for user in users:
        child = user
        for parent in _own_ancestors(user, table, begins):
            below.setdefault(parent.pid, set()).add(child.pid)
            child = parent
    found: set[int] = set()
    for pid, children in below.items():
        jobs = {c for c in children if c not in names and engines.program(table[c])}
        if not holds_gpu(table[pid]) and len({engines.program(table[c]) for c in jobs}) > 1:
            found |= jobs
    return found


def _part_of(process: Process, table: Mapping[int, Process]) -> tuple[Engine, Rank] | None:
    """The part by its own name; what was forked shows its parent's, until it sets its title or for good."""
    named = engines.classify(process)
    if named is None and engines.mpi_rank(process) and holds_gpu(process) and _singleton(process, table):
        return engines.BY_NAME["trtllm"], Rank.WORKER
    parent = table.get(process.ppid)
    if named is None or named[1] is Rank.HELPER or parent is None or engines.classify(parent) != named:
        return named
    if named[1] is Rank.MAIN:
        return (named[0], Rank.NONE) if parent.title == process.title else named
    if process.comm != parent.comm or (process.title and process.title != parent.title):
        return named
    core = "::EngineCor" in parent.comm  # its forks become ranks, those of a rank are its own business
    return named[0], Rank.NONE if core and not process.plain_zombie else Rank.HELPER


def _singleton(process: Process, table: Mapping[int, Process]) -> bool:
    """Started by MPI for one program on this host (`orted --singleton-died-pipe`), not for a job of several."""
    return any(p.comm == "orted" and "--singleton" in p.title for p in ancestors(process, table))


def _orphans_join(drafts: list[Draft]) -> list[Draft]:
    """What has no main joins the one main that it can belong to, or its fellow orphans."""
    with_main = [d for d in drafts if d.main is not None]
    kept: list[Draft] = list(with_main)
    orphans: list[Draft] = []
    for draft in sorted((d for d in drafts if d.main is None), key=lambda d: d.root.id):
        homes = [d for d in with_main if _home_of(draft, d)]
        home = homes[0] if len(homes) == 1 else next((o for o in orphans if _fellows(draft, o)), None)
        if home is None:
            orphans.append(draft)
        else:
            home.parts.update(draft.parts)
    return kept + orphans


def _home_of(orphan: Draft, home: Draft) -> bool:
    main = home.main
    if main is None or orphan.engine is OTHER or orphan.engine is not home.engine or _protected(orphan.root):
        return False
    if _full(home, main):
        return False
    born_later = all(p.process.id.start >= main.id.start for p in orphan.parts.values() if p.named)
    return born_later and not orphan.titles() & home.titles() and _together(orphan.root, main)


def _full(home: Draft, main: Process) -> bool:
    """Whether a server has all ranks that it asked for: one more is somebody else's."""
    argv = main.argv.value if isinstance(main.argv, Known) else ()
    asked = engines.ranks_asked(argv, home.engine)
    return asked is not None and sum(not p.plain_zombie for p in ranks_of(home.parts.values())) >= asked


def _fellows(orphan: Draft, other: Draft) -> bool:
    if _protected(orphan.root) or _protected(other.root) or orphan.engine is not other.engine:
        return False
    if orphan.titles() & other.titles():
        return False
    if orphan.engine is OTHER:  # ranks of a job that is no server: torchrun gives them one process group or session
        same = bool(engines.program(orphan.root)) and engines.program(orphan.root) == engines.program(other.root)
        return same and orphan.root.pgid == other.root.pgid and orphan.root.sid == other.root.sid
    return _together(orphan.root, other.root)


def _together(one: Process, other: Process) -> bool:
    if (one.pgid == other.pgid or one.sid == other.sid) and one.sid > 1:
        return True
    return one.cgroup == other.cgroup and own_cgroup(one.cgroup)


def _protected(process: Process) -> str:
    return engines.legitimate_holder(process)


def _descendants_join(draft: Draft, drafts: list[Draft], processes: Iterable[Process]) -> None:
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


def _zombies_join(draft: Draft, drafts: list[Draft], processes: Iterable[Process]) -> None:
    """A dead main has lost its children, but its process group still names it."""
    taken = {pid for d in drafts for pid in d.parts}
    pgids = {p.process.pgid for p in draft.parts.values() if p.process.pgid > 1}
    for process in processes:
        if process.pid in taken or process.state not in "ZX" or process.ours or engines.is_reaper(process):
            continue
        if process.pgid in pgids and draft.engine is not OTHER:
            main = process.pid == process.pgid and draft.main is None
            draft.parts[process.pid] = Part(process, OTHER, Rank.MAIN if main else Rank.HELPER, False)
