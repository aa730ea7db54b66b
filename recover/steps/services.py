"""`stop-service`: a dead or hung group's owner is asked to stop it, unless it also serves something that is well.

Who owns a group would start it again, so this comes before any signal. Owners that only a person may ask (a Kubernetes
pod, a Slurm job) are refused with the command that asks them.
"""

from __future__ import annotations

from recover.model.act import Act, Pass, Plan, Refuse, StopService
from recover.model.guest import Guest, Service
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.process import Group, OwnerKind
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import SICK, called, elsewhere, evictable, line, number

Key = tuple[str, str]  # (manager, name)

_ASKED = {OwnerKind.SYSTEMD: "systemd", OwnerKind.DOCKER: "docker"}
_STOPPED = frozenset({"inactive", "failed", "exited", "dead", "created"})
_TRYING = frozenset({"activating", "restarting"})

# Units without which nobody can reach or run the guest; a group that stands in one of them is no service of its own.
_VITAL = ("sshd", "ssh.", "docker.", "containerd.", "crio.", "kubelet.", "slurmd.", "dbus", "user@", "init.")
_NO_SERVICE = (".scope", ".slice")


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    groups = evictable(snapshot, findings, params)
    if not groups:
        return Pass("no dead or hung group is named by a finding")
    now, kept, stopped = services_of(snapshot, groups)
    if now:
        acts = [Act(StopService(manager, name, number(params, "deadline"))) for manager, name in now]
        return line(acts, [f"{manager} stops {name}" for manager, name in now])
    return _refuse_elsewhere(groups) or Pass(_why_not(stopped, kept))


def services_of(snapshot: Snapshot, groups: tuple[Group, ...]) -> tuple[list[Key], dict[Key, Group], list[Key]]:
    """Who would start `groups` again: to be stopped now; kept, as it also serves another group; already stopped."""
    found: dict[Key, None] = {}  # in the order of the groups, each once
    for group in groups:
        manager = _ASKED.get(group.owner.kind, "")
        if manager and _stoppable(manager, group.owner.name):
            found[(manager, group.owner.name)] = None
    for service in _retrying(snapshot, groups):
        found[(service.manager, service.name)] = None
    kept = {key: well for key in found if (well := _also_serves(snapshot, key, groups))}
    stopped = [key for key in found if key not in kept and _is_stopped(snapshot, key)]
    return [key for key in found if key not in kept and key not in stopped], kept, stopped


def _refuse_elsewhere(groups: tuple[Group, ...]) -> Refuse | None:
    asked = [(g, command) for g in groups if (command := elsewhere(g.owner))]
    if not asked:
        return None
    names = "; ".join(called(g) for g, _ in asked)
    return Refuse("owned-elsewhere", f"its owner would start it again: {names}", "; ".join(c for _, c in asked))


def _why_not(stopped: list[Key], kept: dict[Key, Group]) -> str:
    if kept:
        return "; ".join(f"{name} also serves {called(well)}, so it isn't stopped" for (_, name), well in kept.items())
    if stopped:
        return f"already stopped: {', '.join(name for _, name in stopped)}"
    return "no service owns what is dead or hung"


def _stoppable(manager: str, name: str) -> bool:
    return bool(name) and (manager != "systemd" or not (name.startswith(_VITAL) or name.endswith(_NO_SERVICE)))


def _also_serves(snapshot: Snapshot, key: Key, ending: tuple[Group, ...]) -> Group | None:
    """A group of the same service that isn't to be ended."""
    keys = {g.key for g in ending}
    for group in snapshot.groups:
        if group.key not in keys and (_ASKED.get(group.owner.kind, ""), group.owner.name) == key:
            return group
    return None


def _services(snapshot: Snapshot) -> tuple[Service, ...]:
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.services, Known):
        return ()
    return snapshot.guest.services.value


def starts_by_itself(snapshot: Snapshot) -> tuple[Service, ...]:
    """Running services of this target, or owners of its sick groups, that the next boot would start again."""
    owners = {g.owner.name for g in snapshot.groups if g.health in SICK and not g.protected}
    return tuple(
        s
        for s in _services(snapshot)
        if (s.name in snapshot.target.services or s.name in owners)
        and s.state not in _STOPPED
        and _stoppable(s.manager, s.name)
        and (s.enabled == "enabled" or (s.manager in ("docker", "podman") and s.restart not in ("", "no")))
    )


def _is_stopped(snapshot: Snapshot, key: Key) -> bool:
    return any(s.state in _STOPPED for s in _services(snapshot) if (s.manager, s.name) == key)


def _retrying(snapshot: Snapshot, ending: tuple[Group, ...]) -> tuple[Service, ...]:
    """Services of this target that try to start on top of what is held, or whose main process is being ended."""
    members = {m.pid for g in ending for m in g.members}
    return tuple(
        s
        for s in _services(snapshot)
        if s.name in snapshot.target.services
        and s.manager in _ASKED.values()
        and _stoppable(s.manager, s.name)
        and (s.state in _TRYING or (s.main_pid in members and s.state not in _STOPPED))
    )


STEPS = (
    Step(
        name="stop-service",
        scope=Scope.PROCESS,
        reach=Scope.PROCESS,
        via=frozenset({Channel.GUEST}),
        kinds=frozenset({GuestKind.VM, GuestKind.CONTAINER}),
        plan=_plan,
        params=(
            Param("deadline", 120.0, "how long its manager may take to stop it", unit="s", least=1, most=3600),
            Param("evict", False, "also services of groups without evidence of health"),
            Param("drain", False, "the services of all groups, also of healthy ones"),
        ),
        doc="Stops the systemd unit or container that owns a dead or hung group; it is started again after recovery.",
    ),
)
