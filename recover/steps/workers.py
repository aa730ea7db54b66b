"""`end-workers`: dead and hung groups end, and nothing else: asked first, killed second, waited for with a deadline.

That their memory comes back is not judged here: unpinning takes minutes, so it is a symptom of the next looks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recover.model.act import Act, AwaitGone, EndZombieParent, Line, Pass, Plan, Refuse, Signal
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.process import Group, OwnerKind, Process, ProcessId
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.care import clients, let_go, restored
from recover.steps.common import called, evictable, flag, line, number, processes, runs_script, spared
from recover.steps.onhost import through_host
from recover.steps.parents import zombie_parents
from recover.steps.services import only_by_hand

_QUIT_S = 5.0
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash", "busybox"})


@dataclass(frozen=True, slots=True)
class _Ending:
    """One group to end: what still runs of it, and the processes at the top of its tree."""

    group: Group
    alive: tuple[ProcessId, ...]
    tops: tuple[ProcessId, ...]
    quits: bool  # its main answers SIGQUIT by killing its own tree
    spare: tuple[ProcessId, ...] = ()  # what its members started and that belongs to others
    clients: int = 0  # so many of them are clients of an MPS server
    loop: ProcessId | None = None  # the shell that has started it again and again


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    groups = evictable(snapshot, findings, params)
    if not groups:
        return Pass("no dead or hung group is named by a finding")
    term, kill = number(params, "term_deadline"), number(params, "kill_deadline")
    made = end_groups(snapshot, groups, term, kill, zombies=flag(params, "end_zombie_parents"))
    return line(through_host(snapshot, made.acts), made.words) if isinstance(made, Line) else made


def end_groups(
    snapshot: Snapshot, groups: tuple[Group, ...], term_s: float, kill_s: float, *, zombies: bool = False
) -> Plan:
    """A line that ends those of `groups` that may be ended; refused only where none may.

    `zombies`: also whoever outside of them keeps their dead in the process table.
    """
    refused = {g.key: why for g in groups if (why := _refuse(snapshot, g))}
    sparing = spared(snapshot, groups)
    endings = [_ending(snapshot, g, sparing) for g in groups if g.key not in refused]
    keepers = zombie_parents(snapshot, [e.group for e in endings]) if zombies else []
    endings = [e for e in endings if e.alive]
    if endings or keepers:
        made = _line(snapshot, endings, term_s, kill_s) if endings else Line(())
        return line((*made.acts, *keepers), (*made.words, *_keeper_words(snapshot, keepers)))
    if refused:
        return next(iter(refused.values()))
    return Pass("; ".join(_only_zombies(snapshot, g) for g in groups))


def _keeper_words(snapshot: Snapshot, keepers: list[Act]) -> list[str]:
    pids = [act.do.parent.pid for act in keepers if isinstance(act.do, EndZombieParent)]
    return [f"{_parent(snapshot, pid)} is ended too if it does not reap what is dead" for pid in pids]


def _line(snapshot: Snapshot, endings: list[_Ending], term_s: float, kill_s: float) -> Line:
    """TERM to the tops of all trees and one wait, QUIT where it helps, KILL to all that still run and one wait.

    One wait for all groups: they end side by side. All but the last are `must=False`: who is gone already ends the
    waits at once, who isn't is killed next.
    """
    keys = ", ".join(e.group.key for e in endings)
    everyone = tuple(p for e in endings for p in e.alive)
    acts = let_go(snapshot, [replace(e.group, members=e.alive) for e in endings])
    loops = [(e, e.loop) for e in endings if e.loop is not None]
    acts += [Act(Signal(e.group.key, (loop,), "KILL", descendants=False), must=False) for e, loop in loops]
    acts += [Act(Signal(e.group.key, e.tops, "TERM", descendants=False), must=False) for e in endings]
    acts.append(Act(AwaitGone(keys, everyone, term_s), must=False))
    quits = [e for e in endings if e.quits]
    # SGLang's main answers SIGQUIT with SIGKILL to its whole tree, also to ranks that left our view of it.
    acts += [Act(Signal(e.group.key, e.tops, "QUIT", descendants=False), must=False) for e in quits]
    if quits:
        acts.append(Act(AwaitGone(keys, tuple(p for e in quits for p in e.alive), _QUIT_S), must=False))
    acts += [Act(Signal(e.group.key, e.alive, "KILL", spare=e.spare), must=False) for e in endings]
    acts.append(Act(AwaitGone(keys, everyone, kill_s)))
    return line(acts, [_words(e, term_s) for e in endings])


def _words(ending: _Ending, term_s: float) -> str:
    count = len(ending.alive)
    noun = "process" if count == 1 else "processes"
    text = f"{called(ending.group)}: {count} {noun} asked to end, and killed if still there after {term_s:.0f} s"
    if ending.clients:
        text += f"; {ending.clients} of them by their MPS server first"
    return text + (f"; the shell {ending.loop.pid} that starts it again ends with it" if ending.loop else "")


def _refuse(snapshot: Snapshot, group: Group) -> Refuse | None:
    command = only_by_hand(snapshot, group)
    if command:
        return Refuse("owned-elsewhere", f"its owner would start it again: {called(group)}", command)
    if (found := restored(snapshot, group)) is not None:
        return found
    if group.supervised_again and loop_of(snapshot, group) is None:
        why = f"{called(group)} came back after it was ended: something starts it again"
        return Refuse("supervised", why, "stop what starts it, then run gpu-recover again")
    return None


def _ending(snapshot: Snapshot, group: Group, sparing: frozenset[ProcessId]) -> _Ending:
    seen = processes(snapshot)
    alive = tuple(m for m in group.members if m not in sparing and not _holds_nothing(seen.get(m)))
    pids = {m.pid for m in alive}
    tops = tuple(m for m in alive if m not in seen or seen[m].ppid not in pids)
    main = len(tops) == 1 and tops[0] in seen and not seen[tops[0]].comm.startswith("sglang::")
    pairs, _ = clients(snapshot, alive)
    return _Ending(
        group,
        alive,
        tops or alive,
        quits=group.engine == "sglang" and main and not pairs,
        spare=_below(seen, alive, sparing),
        clients=len(pairs),
        loop=loop_of(snapshot, group) if group.supervised_again else None,
    )


def _below(
    seen: dict[ProcessId, Process], members: tuple[ProcessId, ...], sparing: frozenset[ProcessId]
) -> tuple[ProcessId, ...]:
    """Who is spared and yet a descendant, or in the session, of a member: a SIGKILL with descendants may not hit it."""
    kids: dict[int, list[Process]] = {}
    for process in seen.values():
        kids.setdefault(process.ppid, []).append(process)
    pids = {m.pid for m in members}
    found = [p.id for p in seen.values() if p.sid in pids and p.id in sparing]
    todo, been = [m.pid for m in members], {m.pid for m in members}
    while todo:
        for kid in kids.get(todo.pop(), ()):
            if kid.pid not in been:
                been.add(kid.pid)
                todo.append(kid.pid)
                found += [kid.id] if kid.id in sparing else []
    return tuple(sorted(set(found)))


def loop_of(snapshot: Snapshot, group: Group) -> ProcessId | None:
    """The shell script that starts a group again, with no other child.

    An interactive or login shell is somebody's; whoever runs other things beside the server isn't ended for it.
    """
    if group.owner.kind is not OwnerKind.SHELL:
        return None
    table = processes(snapshot)
    members = set(group.members)
    parents = {table[m].ppid for m in group.members if m in table and m not in spared(snapshot, (group,))}
    shells = [p for p in table.values() if p.pid in parents and p.id not in members]
    if len(shells) != 1:
        return None
    (shell,) = shells
    others = [p for p in table.values() if p.ppid == shell.pid and p.id not in members and not p.plain_zombie]
    if shell.ours or shell.pid == 1 or others or not runs_script(shell) or shell.comm not in _SHELLS:
        return None
    return None if shell.id in spared(snapshot, (group,)) else shell.id


def _holds_nothing(process: Process | None) -> bool:
    return process is not None and process.plain_zombie


def _only_zombies(snapshot: Snapshot, group: Group) -> str:
    seen = processes(snapshot)
    parents = sorted({seen[m].ppid for m in group.members if m in seen and seen[m].plain_zombie})
    named = ", ".join(_parent(snapshot, pid) for pid in parents)
    return f"{called(group)} holds nothing: only zombies, to be reaped by {named or 'their parents'}"


def _parent(snapshot: Snapshot, pid: int) -> str:
    found = next((p for p in processes(snapshot).values() if p.pid == pid), None)
    return f"pid {pid} ({found.comm})" if found else f"pid {pid}"


STEPS = (
    Step(
        name="end-workers",
        scope=Scope.PROCESS,
        reach=Scope.PROCESS,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM, GuestKind.CONTAINER}),
        plan=_plan,
        params=(
            Param("term_deadline", 30.0, "how long SIGTERM may take before SIGKILL", unit="s", least=0, most=1800),
            Param("kill_deadline", 60.0, "how long SIGKILL may take", unit="s", least=1, most=1800),
            Param("evict", False, "also groups without evidence of health"),
            Param("drain", False, "all groups that aren't protected, also healthy ones"),
            Param("end_zombie_parents", False, "also a script outside of a group that doesn't reap its dead"),
        ),
        doc="Ends dead and hung groups: SIGTERM, a deadline, SIGKILL; each process is known again before each signal.",
    ),
)
