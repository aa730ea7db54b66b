"""A process outside a group that keeps its dead in the process table: only a script of its own, and only with consent.

A zombie holds no memory and no GPU, so nothing asks for this; the playbook may. Whoever has other work, or is a
terminal, the init of a container or a supervisor, is only named.
"""

from __future__ import annotations

from collections.abc import Iterable

from recover.model.act import Act, EndZombieParent
from recover.model.process import Group, Process, ProcessId
from recover.model.snapshot import Snapshot
from recover.steps.common import processes, runs_script, spared

_NEVER = (
    "systemd", "init", "sshd", "login", "su", "sudo", "tmux", "screen", "SCREEN", "supervisord", "slurm", "kubelet",
    "dockerd", "containerd", "docker-init", "tini", "dumb-init", "catatonit", "conmon", "runsv", "s6-", "cron", "atd",
    "jupyter", "ray", "dbus",
)  # fmt: skip
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash", "busybox", "fish", "tcsh", "csh"})


def zombie_parents(snapshot: Snapshot, groups: Iterable[Group]) -> list[Act]:
    """One act per process outside `groups` that is, or will be, the parent of one of their dead."""
    ending = tuple(groups)
    members = {m: g for g in ending for m in g.members}
    table = {p.pid: p for p in processes(snapshot).values()}
    sparing = spared(snapshot, ending)
    children: dict[ProcessId, list[ProcessId]] = {}
    for member in sorted(members):
        child = table.get(member.pid)
        parent = table.get(child.ppid) if child is not None and child.id == member else None
        if parent is not None and parent.id not in members and _may_end(snapshot, parent, members, sparing):
            children.setdefault(parent.id, []).append(member)
    return [
        Act(EndZombieParent(members[kids[0]].key, parent, tuple(kids)), must=False) for parent, kids in children.items()
    ]


def _may_end(
    snapshot: Snapshot, parent: Process, members: dict[ProcessId, Group], sparing: frozenset[ProcessId]
) -> bool:
    if parent.ours or parent.pid == 1 or parent.id in sparing or parent.plain_zombie:
        return False
    if parent.comm.startswith(_NEVER) or (len(parent.ns_pids) > 1 and parent.ns_pids[-1] == 1):
        return False
    if (parent.tty and parent.sid == parent.pid) or "ipykernel" in parent.title:
        return False
    if parent.comm in _SHELLS and not runs_script(parent):
        return False
    names = {parent.comm, parent.title.split(" ", maxsplit=1)[0].rsplit("/", 1)[-1]}
    if names & set(snapshot.target.protect):
        return False
    kids = [p for p in processes(snapshot).values() if p.ppid == parent.pid and not p.plain_zombie]
    return all(kid.id in members for kid in kids)
