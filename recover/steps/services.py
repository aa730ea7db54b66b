"""`stop-service`: a dead or hung group's owner is asked to stop it, unless it also serves something that is well.

Who owns a group would start it again, so this comes before any signal. Owners that only a person may ask (a Kubernetes
pod, a Slurm job) are refused with the command that asks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from recover.model.act import Act, Pass, Plan, Refuse, StopService
from recover.model.guest import Guest, Service
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Param, Params, Step
from recover.model.process import Group, OwnerKind
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.care import let_go, restored
from recover.steps.common import SICK, called, elsewhere, evictable, line, number, processes

Key = tuple[str, str, int | None]  # (manager, name, whose manager: None is the machine's)

_ASKED = {
    OwnerKind.SYSTEMD: "systemd",
    OwnerKind.SYSTEMD_USER: "systemd-user",
    OwnerKind.DOCKER: "docker",
    OwnerKind.PODMAN: "podman",
    OwnerKind.SUPERVISORD: "supervisord",
}
STOPPED = frozenset({
    "inactive", "failed", "exited", "dead", "created", "stopped", "initialized", "configured", "STOPPED", "EXITED",
    "FATAL",
})  # fmt: skip
_TRYING = frozenset({"activating", "restarting", "BACKOFF", "STARTING"})
_BOXES = ("docker", "podman")

# Units without which nobody can reach or run the guest; a group that stands in one of them is no service of its own.
_VITAL = ("sshd", "ssh.", "docker.", "containerd.", "crio.", "kubelet.", "slurmd.", "dbus", "user@", "init.")
_NO_SERVICE = (".scope", ".slice")
_UID = re.compile(r"^uid (\d+)$|/user@(\d+)\.service/")


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    groups = evictable(snapshot, findings, params)
    if not groups:
        return Pass("no dead or hung group is named by a finding")
    now, kept, stopped = services_of(snapshot, groups)
    stopping = [g for g in groups if key_of(snapshot, g) in now]
    for group in stopping:
        if (found := restored(snapshot, group)) is not None:
            return found
    if now:
        freed = let_go(snapshot, stopping)
        words = [f"{len(freed)} clients are ended by their MPS server first"] if freed else []
        launches = {key_of(snapshot, g): g.launch for g in stopping}
        acts = [*freed, *stops(now, number(params, "deadline"), launches)]
        return line(acts, [*words, *(_words(snapshot, key) for key in now)])
    return _refuse_elsewhere(snapshot, groups) or Pass(_why_not(stopped, kept))


def stops(
    keys: Iterable[Key], deadline_s: float, launches: Mapping[Key | None, tuple[str, ...]] = MappingProxyType({})
) -> list[Act]:
    return [
        Act(StopService(manager, name, deadline_s, uid=uid, launch=launches.get((manager, name, uid), ())))
        for manager, name, uid in keys
    ]


def _words(snapshot: Snapshot, key: Key) -> str:
    manager, name, uid = key
    text = f"{manager} stops {name}" + (f" of user {uid}" if uid is not None else "")
    found = _service(snapshot, key)
    if found is not None and found.enabled == "auto-remove":
        text += "; its container is deleted by that and can't be started again"
    return text


def services_of(snapshot: Snapshot, groups: tuple[Group, ...]) -> tuple[list[Key], dict[Key, Group], list[Key]]:
    """Who would start `groups` again: to be stopped now; kept, as it also serves another group; already stopped."""
    found: dict[Key, None] = {}  # in the order of the groups, each once
    for group in groups:
        key = key_of(snapshot, group)
        if key is not None and _stoppable(key[0], key[1]):
            found[key] = None
    for service in _retrying(snapshot, groups):
        found[(service.manager, service.name, service.uid)] = None
    kept = {key: well for key in found if (well := _also_serves(snapshot, key, groups))}
    stopped = [key for key in found if key not in kept and _is_stopped(snapshot, key)]
    return [key for key in found if key not in kept and key not in stopped], kept, stopped


def key_of(snapshot: Snapshot, group: Group) -> Key | None:
    """Who is to be asked to stop a group; None where nobody is, or only a person may."""
    manager = _ASKED.get(group.owner.kind, "")
    if not manager:
        return None
    if manager == "supervisord":
        program = _program(snapshot, group)
        return ("supervisord", program, None) if program else None
    match = _UID.search(group.owner.detail) if manager in ("systemd-user", "podman") else None
    uid = int(match[1] or match[2]) if match else None
    if manager == "systemd-user" and uid is None:
        return None
    key = (manager, group.owner.name, uid)
    found = _service(snapshot, key)
    if found is not None and found.unit:  # Podman's own word for who would start it again
        return ("systemd" if uid is None else "systemd-user", found.unit, uid)
    return key if group.owner.name else None


def only_by_hand(snapshot: Snapshot, group: Group) -> str:
    """The command with which a person asks the owner of `group`, where we can't ask it ourselves."""
    return "" if key_of(snapshot, group) is not None else elsewhere(group.owner)


def _program(snapshot: Snapshot, group: Group) -> str:
    """The supervisord program whose process is a member of the group or above it."""
    table = {p.pid: p for p in processes(snapshot).values()}
    above: set[int] = set()
    todo = [m.pid for m in group.members]
    while todo:
        pid = todo.pop()
        if pid > 1 and pid not in above:
            above.add(pid)
            todo += [table[pid].ppid] if pid in table else []
    named = [s.name for s in _services(snapshot) if s.manager == "supervisord" and s.main_pid in above and s.main_pid]
    return named[0] if len(named) == 1 else ""


def _refuse_elsewhere(snapshot: Snapshot, groups: tuple[Group, ...]) -> Refuse | None:
    asked = [(g, command) for g in groups if (command := only_by_hand(snapshot, g))]
    if not asked:
        return None
    names = "; ".join(called(g) for g, _ in asked)
    return Refuse("owned-elsewhere", f"its owner would start it again: {names}", "; ".join(c for _, c in asked))


def _why_not(stopped: list[Key], kept: dict[Key, Group]) -> str:
    if kept:
        return "; ".join(f"{key[1]} also serves {called(well)}, so it isn't stopped" for key, well in kept.items())
    if stopped:
        return f"already stopped: {', '.join(key[1] for key in stopped)}"
    return "no service owns what is dead or hung"


def _stoppable(manager: str, name: str) -> bool:
    if not name:
        return False
    return not manager.startswith("systemd") or not (name.startswith(_VITAL) or name.endswith(_NO_SERVICE))


def _also_serves(snapshot: Snapshot, key: Key, ending: tuple[Group, ...]) -> Group | None:
    """A group of the same service that isn't to be ended."""
    keys = {g.key for g in ending}
    return next((g for g in snapshot.groups if g.key not in keys and key_of(snapshot, g) == key), None)


def _services(snapshot: Snapshot) -> tuple[Service, ...]:
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.services, Known):
        return ()
    return snapshot.guest.services.value


def _service(snapshot: Snapshot, key: Key) -> Service | None:
    """What its manager said of it; a container is known by its name or by the beginning of its id."""
    manager, name, uid = key
    for service in _services(snapshot):
        by_id = manager in _BOXES and len(name) >= 12 and service.id.startswith(name)
        if service.manager == manager and service.uid == uid and (service.name == name or by_id):
            return service
    return None


def of_sick(snapshot: Snapshot) -> set[Service]:
    """The owners of the groups that are dead or hung, as their managers know them."""
    sick = [key for g in snapshot.groups if g.health in SICK and not g.protected and (key := key_of(snapshot, g))]
    return {found for key in sick if (found := _service(snapshot, key)) is not None}


def unit_in(cgroup: str) -> str:
    """The system's unit whose control group this is; empty for a user's, a scope and what is none."""
    name = cgroup.rpartition("/")[2]
    return name if name.endswith(".service") and "/user.slice/" not in cgroup else ""


def starts_by_itself(snapshot: Snapshot) -> tuple[Service, ...]:
    """Services of this target, or owners of its sick groups, that the next boot would start; also what we stopped."""
    owners = of_sick(snapshot)
    return tuple(
        s
        for s in _services(snapshot)
        if (s.name in snapshot.target.services or s.within in snapshot.target.services or s in owners)
        and _stoppable(s.manager, s.name)
        and (s.enabled == "enabled" or (s.manager in _BOXES and s.restart not in ("", "no")))
    )


def _is_stopped(snapshot: Snapshot, key: Key) -> bool:
    found = _service(snapshot, key)
    return found is not None and found.state in STOPPED


def _retrying(snapshot: Snapshot, ending: tuple[Group, ...]) -> tuple[Service, ...]:
    """Services of this target that try to start on top of what is held, or whose main process is being ended."""
    members = {m.pid for g in ending for m in g.members}
    ours = snapshot.target.services
    return tuple(
        s
        for s in _services(snapshot)
        if (s.name in ours or s.within in ours)
        and s.manager in _ASKED.values()
        and _stoppable(s.manager, s.name)
        and (s.state in _TRYING or (s.main_pid in members and s.state not in STOPPED))
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
        doc="Stops the unit, container or program that owns a dead or hung group; it is started again after recovery.",
    ),
)
