"""What serves here is kept from starting at the next boot, where the playbook asks for it; it is put back at the end.

supervisord's own autostart stands in its configuration, which is not ours to edit: its unit is kept from starting, and
only where all that it runs serves here.
"""

from __future__ import annotations

from recover.model.act import Act, StopService, SuspendAutostart
from recover.model.guest import Guest, Service
from recover.model.ladder import Param
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from recover.steps.common import processes
from recover.steps.services import STOPPED, of_sick, starts_by_itself, unit_in

PARAM = Param(
    "suspend_autostart",
    False,
    "stop what serves here first and keep it from starting at this boot; put back at the end",
)


def held_back(snapshot: Snapshot, deadline_s: float = 120.0, *, must: bool = True) -> tuple[list[Act], list[str]]:
    """Acts and words that stop what serves here and keep it from starting at the next boot."""
    acts: list[Act] = []
    units, words = _supervisors(snapshot)
    for service in dict.fromkeys((*starts_by_itself(snapshot), *units)):
        if service.state not in STOPPED:
            acts.append(Act(StopService(service.manager, service.name, deadline_s, uid=service.uid), must=False))
        acts.append(Act(SuspendAutostart(service.manager, service.name, _was(service), service.uid), must=must))
        words.append(f"{service.name} does not start at the next boot; that is put back at the end")
    return acts, words


def _was(service: Service) -> str:
    return service.restart if service.manager in ("docker", "podman") else service.enabled


def _supervisors(snapshot: Snapshot) -> tuple[list[Service], list[str]]:
    """The unit of the one supervisord, where it runs nothing but what serves here; else that its programs start."""
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.services, Known):
        return [], []
    listed = snapshot.guest.services.value
    programs = [s for s in listed if s.manager == "supervisord" and s.state not in STOPPED]
    ours = [s for s in programs if s.name in snapshot.target.services or s in of_sick(snapshot)]
    if not ours:
        return [], []
    daemons = [p for p in processes(snapshot).values() if p.comm == "supervisord"]
    name = unit_in(daemons[0].cgroup) if len(daemons) == 1 else ""
    unit = next((s for s in listed if s.manager == "systemd" and s.name == name and s.enabled == "enabled"), None)
    if unit is not None and len(ours) == len(programs):
        return [unit], []
    names = ", ".join(s.name for s in ours)
    return [], [f"{names}: supervisord starts it at boot all the same, its configuration is not edited"]
