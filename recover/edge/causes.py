"""Before a sick server is ended it is told whether its launch could ever have fitted, by the source installed there."""

from __future__ import annotations

from collections.abc import Iterable

from recover.edge.shell.port import Shell
from recover.model.guest import Guest
from recover.model.process import Group, Health
from recover.model.reading import Known
from recover.model.snapshot import Snapshot

MIB = 1 << 20
_SICK = (Health.DEAD, Health.HUNG)


def causes(shell: Shell, snapshot: Snapshot, seconds: float) -> tuple[str, ...]:
    """What the sick servers asked for, what fits, and the command that does; nothing where that was not the cause.

    The machine is asked only where even the worst reading of the engine says that it may be the cause.
    """
    if not isinstance(snapshot.guest, Guest) or not isinstance(snapshot.guest.ram, Known):
        return ()
    ram = snapshot.guest.ram.value
    total = ram.total_mib * MIB
    idle = snapshot.baseline.ram_available_mib * MIB if snapshot.baseline is not None else None
    servers = _servers(snapshot.groups)
    if not servers:
        return ()
    from recover.core.budget.preflight import explain_exhaustion  # not above: it would hold up runs that need none

    for group in servers:
        if explain_exhaustion(group.launch, total, idle) is None:
            continue
        proved = _proved(shell, group, total, idle, seconds)
        if proved:
            return proved
    return ()


def _servers(groups: Iterable[Group]) -> list[Group]:
    return [g for g in groups if g.health in _SICK and g.launch and not g.protected]


def _proved(shell: Shell, group: Group, total: int, idle: int | None, seconds: float) -> tuple[str, ...]:
    from recover.core.budget.launch import from_argv
    from recover.core.budget.model import Problem
    from recover.core.budget.preflight import explain_exhaustion
    from recover.core.budget.preflight_report import gathered, wanted
    from recover.edge.preflight import question

    try:
        launch = from_argv(group.launch)
        if launch is None:
            return ()
        found = gathered(question(shell, wanted(launch, members=group.members), seconds))
    except Problem as problem:
        return (f"whether its launch could fit was not found out: {problem}",)
    return explain_exhaustion(group.launch, total, idle, found) or ()
