"""Who would start a group again is read from its control group first and from its living parents second.

Control group paths: systemd.special(7) and user@.service(5), Docker and containerd (`docker-ID.scope`, `/docker/ID`,
`cri-containerd-ID.scope`), Podman (`libpod-ID.scope`), kubelet (`kubepods…pod<UID>`), Slurm (`job_N/step_M`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from recover.core.engines import is_reaper
from recover.model.process import Owner, OwnerKind, Process

_POD = re.compile(r"kubepods.*?pod([0-9a-f]{8}[-_][0-9a-f_-]{27,})|kubepods.*?/pod([^/]+)")
_SLURM = re.compile(r"/job_(\d+)(?:/step_([^/]+))?|slurmstepd\.scope/job_(\d+)")
_PODMAN = re.compile(r"libpod-(?:payload-)?([0-9a-f]{12,64})")
_DOCKER = re.compile(r"(?:docker[-/])([0-9a-f]{12,64})|/docker/([^/]+)")
_OTHER_CONTAINER = re.compile(r"(?:cri-containerd-|crio-|containerd[-/])([0-9a-f]{12,64})")
_USER_UNIT = re.compile(r"/user@(\d+)\.service/(?:[^/]+\.slice/)*([^/]+\.service)")
_USER_SCOPE = re.compile(r"/user@\d+\.service/.*?((?:tmux-spawn|app|run|vte-spawn)[^/]*\.scope)")
_UNIT = re.compile(r"/([^/]+\.service)(?:/[^/]+)*$")
_SESSION = re.compile(r"/(session-[^/]+\.scope)")
_SHARED = re.compile(r"^(/|/init\.scope|/user\.slice.*|/system\.slice)?$")

# Services whose own children are somebody's session, not the service itself.
_HOSTS_OF_SESSIONS = re.compile(r"^(ssh|sshd|sshd@.*|cron|crond|atd|user@\d+|getty@.*|serial-getty@.*)\.service$")


def by_cgroup(cgroup: str) -> Owner | None:
    """The owner that a control group names, None for one that says nothing."""
    if found := _POD.search(cgroup):
        return Owner(OwnerKind.KUBERNETES, (found[1] or found[2]).replace("_", "-"), cgroup)
    if found := _SLURM.search(cgroup):
        return Owner(OwnerKind.SLURM, found[1] or found[3], f"step {found[2]}" if found[2] else "")
    if found := _PODMAN.search(cgroup):
        return Owner(OwnerKind.PODMAN, found[1], cgroup)
    if found := _DOCKER.search(cgroup) or _OTHER_CONTAINER.search(cgroup):
        return Owner(OwnerKind.DOCKER, next(g for g in found.groups() if g), cgroup)
    if found := _USER_UNIT.search(cgroup):
        return Owner(OwnerKind.SYSTEMD_USER, found[2], f"uid {found[1]}")
    if _SESSION.search(cgroup) or _USER_SCOPE.search(cgroup):
        return None  # a login: its parents tell more
    if (found := _UNIT.search(cgroup)) and not _HOSTS_OF_SESSIONS.match(found[1]):
        return Owner(OwnerKind.SYSTEMD, found[1])
    return None


def container_of(cgroup: str) -> str:
    """The container or pod that a control group belongs to; empty outside of any."""
    owner = by_cgroup(cgroup)
    kinds = {OwnerKind.KUBERNETES, OwnerKind.PODMAN, OwnerKind.DOCKER}
    return f"{owner.kind} {owner.name}" if owner is not None and owner.kind in kinds else ""


def own_cgroup(cgroup: str) -> bool:
    """Whether a control group is one program's own (a unit, a container, a job), not a login or a shared slice."""
    return _SHARED.match(cgroup) is None and by_cgroup(cgroup) is not None


def ancestors(process: Process, table: Mapping[int, Process]) -> list[Process]:
    """Living and dead parents, nearest first, without pid 1."""
    found: list[Process] = []
    seen = {process.pid}
    while (parent := table.get(process.ppid)) is not None and parent.pid > 1 and parent.pid not in seen:
        found.append(parent)
        seen.add(parent.pid)
        process = parent
    return found


def owner_of(process: Process, table: Mapping[int, Process]) -> Owner:
    """Who owns a group whose outermost process is `process`."""
    chain = ancestors(process, table)
    supervisor = next((p for p in chain if p.comm == "supervisord"), None)
    named = by_cgroup(process.cgroup)
    if named is not None and named.kind is OwnerKind.SLURM and _job_is_over(named.name, table):
        return Owner(OwnerKind.NONE, "", f"left over from Slurm job {named.name}")
    if named is not None and named.kind is not OwnerKind.SYSTEMD:
        return named
    if supervisor is not None:
        return Owner(OwnerKind.SUPERVISORD, "", f"supervisord, pid {supervisor.pid}")
    if any("ipykernel" in p.title or "jupyter" in p.title for p in (process, *chain)):
        return Owner(OwnerKind.JUPYTER, next((p.title.split(" ")[0] for p in chain), ""), "")
    if named is not None:
        return named
    return _by_parents(process, chain)


def _job_is_over(job: str, table: Mapping[int, Process]) -> bool:
    """No step of the job has its slurmstepd any more: Slurm has forgotten it, and scancel reaches nobody.

    Seen with sglang 23627: schedulers ran on below pid 1 after Slurm had ended their job.
    """
    steps = [p for p in table.values() if p.comm == "slurmstepd" and not p.plain_zombie]
    mine = any(f"[{job}." in p.title or f"[{job}]" in p.title or not p.title for p in steps)
    return 1 in table and not mine


def _by_parents(process: Process, chain: list[Process]) -> Owner:
    for parent in chain:
        if parent.comm.startswith(("tmux", "screen", "SCREEN")):
            name = "tmux" if parent.comm.startswith("tmux") else "screen"
            return Owner(OwnerKind.TERMINAL, name, f"pid {parent.pid}")
    shell = chain[0] if chain and is_reaper(chain[0]) else None
    if session := _SESSION.search(process.cgroup):
        if chain:
            return Owner(OwnerKind.TERMINAL, session[1], f"login session, tty {process.tty}" if process.tty else "")
        return Owner(OwnerKind.NONE, "", f"left over from {session[1]}")
    if shell is not None and shell.comm not in {"systemd", "init"}:
        return Owner(OwnerKind.SHELL, shell.comm, f"pid {shell.pid}")
    return Owner(OwnerKind.NONE)
