"""Servers are sick when their group is dead or hung, or when the launch that was ended fails again by itself."""

from __future__ import annotations

from dataclasses import replace

from recover.core.engines import BY_NAME, OTHER
from recover.core.groups import fingerprint
from recover.core.look import Gap, Look, Signs, gib
from recover.core.ranks import beyond_signals, dead_finding, hung_finding
from recover.core.waits import network_wait
from recover.model.process import Group, Health, Rank
from recover.model.verdict import Finding, Scope


def dead_group(look: Look) -> Signs:
    """A group without its main process or without some of its ranks: what is left only holds memory."""
    for group in look.groups:
        if group.health is Health.DEAD:
            found = _reachable(look, group, dead_finding(group, group.why))
            yield replace(found, evidence=(*found.evidence, *_limit(look, group)))


def _limit(look: Look, group: Group) -> tuple[str, ...]:
    """What a memory limit over the group may have had to do with its end; its restart meets the same limit."""
    cgroups = {part.process.cgroup for part in look.parts[group.key]}
    limits = look.guest.memory_limits if look.guest is not None else ()
    return tuple(
        f"memory limit {gib(one.limit_mib)} on {one.path}, {gib(one.used_mib)} used, "
        f"{one.oom_kills} processes ended by the OOM killer there"
        for one in limits
        if one.cgroup in cgroups
    )[:1]


def hung_group(look: Look) -> Signs:
    """A group that has work and does none."""
    for group in look.groups:
        if group.health is Health.HUNG:
            yield _reachable(look, group, replace(hung_finding(group, ""), says=group.why))


def _reachable(look: Look, group: Group, found: Finding) -> Finding:
    """Where all that is left of a group ignores SIGKILL, another signal is no cure (vllm issue 25127)."""
    kept = beyond_signals(look, look.parts[group.key])
    if kept is None:
        return found
    cure = None if network_wait(kept) else Scope.GUEST
    return replace(found, cure=cure, at_least=cure)


def watched_groups(look: Look) -> Signs:
    """What must be seen again before a group can be called healthy, hung or dead."""
    return look.watches


def unproved_server(look: Look) -> Signs:
    """A server that is merely alive: nobody can say that the machine is well. Who uses no GPU is only named."""
    for group in look.groups:
        serves = BY_NAME.get(group.engine, OTHER).serves
        if group.health is Health.LIVE and serves and not group.protected:
            yield Gap(unproved(group), matters=not _idle_front(look, group))


def _idle_front(look: Look, group: Group) -> bool:
    """A router, or a server that takes a GPU only when it is asked: without one it holds nothing back."""
    parts = look.parts[group.key]
    unread = any(not p.process.holds_known for p in parts)
    front = BY_NAME.get(group.engine, OTHER).lazy or all(p.rank is Rank.HELPER for p in parts)
    return front and not group.gpus and not unread and not any(p.rank is Rank.WORKER for p in parts)


def unproved(group: Group) -> str:
    """The gap that a merely living server is."""
    return f"whether {group.engine} server {group.key} is healthy is not known: {group.why}"


def crash_loop(look: Look) -> Signs:
    """The launch that we ended came back by itself and fails again: ending it once more would be a loop."""
    for group in look.groups:
        if group.supervised_again and group.health in {Health.DEAD, Health.HUNG}:
            owner = f"{group.owner.kind} {group.owner.name}".rstrip()
            yield Finding(
                "crash-loop",
                f"{group.engine} server {group.key} was started again by {owner} after it was ended, and fails again",
                None,
                None,
                (group.why, group.title),
            )


def came_back(look: Look, group: Group) -> bool:
    """Whether a group is a new launch of one that a try of this journal was to end.

    A group that only lost its first process has another key too, so it must be younger than the one that was ended.
    """
    mark = fingerprint(group)
    old = [key for key, launch in look.past.ended if launch == mark and key != group.key]
    if not mark or not old or any(key == group.key for key, _ in look.past.ended):
        return False
    guest, first = look.guest, look.past.first
    rebooted = guest is None or first is None or first.boot_id != guest.mark.boot_id
    born = min(member.start for member in group.members)
    return rebooted or all(born > _start(key) for key in old)


def _start(key: str) -> int:
    _, _, start = key.partition("@")
    return int(start) if start.isdecimal() else -1
