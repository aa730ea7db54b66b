"""A group is dead, or kept by the kernel, by what its own processes show: ranks gone, defunct, stuck in the driver."""

from __future__ import annotations

from recover.core import engines
from recover.core.engines import BY_NAME, OTHER
from recover.core.groups import main_of
from recover.core.kinship import Part, driver_wait, ranks_of
from recover.core.look import Look, Watch, d_symptom, kill_symptom, watch
from recover.core.news import of_kind
from recover.model.process import Group, Process, Rank
from recover.model.verdict import Finding, Scope


def dead_finding(group: Group, why: str) -> Finding:
    return _finding("dead-group", group, f"is dead: {why}")


def hung_finding(group: Group, why: str) -> Finding:
    return _finding("hung-group", group, f"is hung: {why}")


def _finding(signal: str, group: Group, says: str) -> Finding:
    evidence = [group.title, f"{len(group.members)} processes, owner {group.owner.kind} {group.owner.name}".rstrip()]
    if group.distributed:
        evidence.append("part of a server over several hosts: " + (", ".join(sorted(group.peer_hosts)) or "unknown"))
    what = f"{group.engine} server" if group.engine != OTHER.name else "GPU program"
    return Finding(signal, f"{what} {group.key} {says}", Scope.PROCESS, group.key, tuple(evidence))


def dead_by_its_own(look: Look, group: Group, parts: tuple[Part, ...]) -> str:
    """Why it is dead; empty where its processes do not show it."""
    engine = BY_NAME.get(group.engine, OTHER)
    table = {p.pid: p for p in look.processes}
    main = main_of(parts, table)
    workers = ranks_of(parts)
    needed = [] if engine.lone else workers
    core = needed + ([main] if main is not None else []) if engine is not OTHER else [p.process for p in parts]
    for process in core:
        if process.dead_leader:
            where = f" waits in {process.thread_wchans[0]}" if process.thread_wchans else " lives on"
            return f"pid {process.pid} ({process.comm}) is defunct, but a thread of it{where} and holds everything"
    gone = [w for w in needed if w.plain_zombie]
    if gone and not _replaced(group, parts):
        return f"{len(gone)} of {len(workers)} ranks are defunct (pid {gone[0].pid})"
    if main is not None and main.plain_zombie:
        return f"its main process {main.pid} is defunct"
    complete = look.guest is not None and look.guest.complete
    visible = all(w.ppid <= 1 or w.ppid in table for w in workers)  # a parent that is not shown lives all the same
    if main is None and workers and engine.orphans_die and complete and visible:
        return f"{len(workers)} of its ranks run on without a main process"
    return _oom_rank(look, group, parts)


def kept(look: Look, group: Group, parts: tuple[Part, ...]) -> str:
    """Which process the kernel keeps in the driver without any progress: it serves nobody, and no signal reaches it.

    A stuck nvidia-smi is such a group too; it is nobody's work that a restart would end.
    """
    engine = BY_NAME.get(group.engine, OTHER)
    main = [p.process for p in parts if p.rank is Rank.MAIN]
    core = [p.process for p in parts if not p.process.plain_zombie] if engine is OTHER else [*ranks_of(parts), *main]
    held = [words for process in core if (words := _kept_words(look, process))]
    together = engine is not OTHER and not engine.lone
    return held[0] if held and (together or len(held) == len(core)) else ""


def beyond_signals(look: Look, parts: tuple[Part, ...]) -> Process | None:
    """One of its processes, where all that live ignore SIGKILL: there is nothing left that a signal could end."""
    living = [p.process for p in parts if not p.process.plain_zombie]
    kept = [p for p in living if _ignores_kill(look, p)]
    return kept[0] if kept and len(kept) == len(living) else None


def _ignores_kill(look: Look, process: Process) -> bool:
    nothing = Finding("", "", None, None)
    pending = process.sigkill_pending and process.state in "DR"
    return pending and look.ripe(kill_symptom(look, process, look.limits.ripens_s, nothing))


def _kept_words(look: Look, process: Process) -> str:
    ripens, nothing = look.limits.ripens_s, Finding("", "", None, None)
    where = driver_wait(process)
    if _ignores_kill(look, process):
        return f"pid {process.pid} ({process.comm}) ignores SIGKILL in state {process.state}"
    if process.state == "D" and where and look.ripe(d_symptom(process, ripens, nothing)):
        return f"pid {process.pid} ({process.comm}) waits in the driver ({where}) without any progress"
    return ""


def _replaced(group: Group, parts: tuple[Part, ...]) -> bool:
    """Whether all ranks that were asked for live beside defunct ones."""
    asked = engines.ranks_asked(group.launch, BY_NAME.get(group.engine, OTHER))
    return asked is not None and _living_ranks(group, parts) >= (expected_ranks(group) or asked)


def _oom_rank(look: Look, group: Group, parts: tuple[Part, ...]) -> str:
    """The OOM killer named a rank of this engine while the group ran, and a rank is missing."""
    if rank_watch(look, group, parts) is None:
        return ""
    oldest = min(p.process.id.start for p in parts) / 100
    for kill in of_kind(look.events, "oom-kill"):
        named = bool(kill.name) and any(rank.startswith(kill.name) for rank in BY_NAME[group.engine].ranks)
        if kill.usec / 1e6 > oldest and named:
            return f"the kernel killed its rank {kill.pid} ({kill.name}) for want of memory"
    return ""


def expected_ranks(group: Group) -> int | None:
    """The fewest ranks that its flags ask for on this host; None if they do not say."""
    engine = BY_NAME.get(group.engine, OTHER)
    if group.tp is None or not engine.ranks:
        return None
    pp = engines.number(group.launch, engine.pp_flags) or 1
    nodes = engines.number(group.launch, ("--nnodes", "-n")) or 1
    return max(1, group.tp * pp // nodes)


def _living_ranks(group: Group, parts: tuple[Part, ...]) -> int:
    """Living ranks, with children that may become one: they get their title only when they have loaded."""
    named = [p for p in ranks_of(parts) if not p.plain_zombie]
    if group.engine == "vllm" and (expected_ranks(group) or 1) > 1:
        # With several ranks the engine core holds no GPU; with Ray as its executor the ranks are Ray's processes.
        named = [p for p in named if "::EngineCor" not in engines.words_of(p)]
    nameless = [p.process for p in parts if p.rank is not Rank.MAIN and (not p.named or p.rank is Rank.NONE)]
    return len(named) + sum(1 for p in nameless if _may_be_rank(p))


def _may_be_rank(process: Process) -> bool:
    return not process.plain_zombie and (engines.spawned_child(process) or bool(process.holds))


def rank_words(group: Group, parts: tuple[Part, ...]) -> str:
    return f"{_living_ranks(group, parts)} of {expected_ranks(group)} ranks are alive"


def rank_watch(look: Look, group: Group, parts: tuple[Part, ...]) -> Watch | None:
    """Fewer ranks than the flags ask for. None at all: it has not come so far, or it is a single process."""
    expected = expected_ranks(group)
    living = _living_ranks(group, parts)
    complete = look.guest is not None and look.guest.complete
    if expected is None or living >= expected or living == 0 or not complete:
        return None
    finding = dead_finding(group, rank_words(group, parts))
    return watch(f"ranks:{group.key}", -living, 1, look.limits.ripens_s, finding)
