"""What is done in a container's own shell can be done by its node's: the same processes, by their numbers there.

The kernel is one: boot id and start times are the same on both sides, only the pids differ (NSpid of /proc/PID/status).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recover.model.act import Act, AwaitGone, OnHost, Signal
from recover.model.guest import Guest
from recover.model.host import Host
from recover.model.process import ProcessId
from recover.model.reading import Known
from recover.model.snapshot import Snapshot


def through_host(snapshot: Snapshot, acts: Iterable[Act]) -> tuple[Act, ...]:
    """`acts` with signals and waits done on the node, where each process of theirs is known there; else as they are."""
    given = tuple(acts)
    guest, host = snapshot.guest, snapshot.host
    if not isinstance(guest, Guest) or not guest.identity.container or not isinstance(host, Known):
        return given
    numbers = pids_on_node(host.value)
    changed: list[Act] = []
    for act in given:
        do = act.do
        if isinstance(do, Signal):
            members, spare = _mapped(do.members, numbers), _mapped(do.spare, numbers)
            if members is None or spare is None:
                return given
            do = replace(do, members=members, spare=spare)
        elif isinstance(do, AwaitGone):
            gone = _mapped(do.members, numbers)
            if gone is None:
                return given
            do = replace(do, members=gone)
        else:
            changed.append(act)
            continue
        changed.append(Act(OnHost(host.value.node, host.value.boot_id, do), act.must))
    return tuple(changed)


def pids_on_node(host: Host) -> dict[tuple[str, int, int], ProcessId]:
    """(boot id, pid inside, start) -> the same process on the node."""
    return {(host.boot_id, p.ns_pid, p.start): ProcessId(host.boot_id, p.pid, p.start) for p in host.container}


def _mapped(
    members: Iterable[ProcessId], numbers: dict[tuple[str, int, int], ProcessId]
) -> tuple[ProcessId, ...] | None:
    found = [numbers.get((m.boot_id, m.pid, m.start)) for m in members]
    return None if None in found else tuple(p for p in found if p is not None)
