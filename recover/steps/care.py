"""Who must not simply be killed: an MPS client is ended by its server first, what CRIU restored is left to a person.

A killed MPS client with work in flight leaves its server and the other clients undefined; ending what CRIU restored has
hung whole hosts inside the driver.
"""

from __future__ import annotations

from collections.abc import Iterable

from recover.model.act import Act, EndMpsClient, Refuse
from recover.model.guest import Guest
from recover.model.process import Group, ProcessId
from recover.model.snapshot import Snapshot
from recover.steps.common import called, processes


def restored(snapshot: Snapshot, group: Group) -> Refuse | None:
    """The refusal where a member was brought back by CRIU."""
    seen = processes(snapshot)
    if not any(m in seen and seen[m].criu_restored for m in group.members):
        return None
    why = f"{called(group)} was restored by CRIU; ending it can hang the machine"
    return Refuse("criu-restored", why, "end it by hand, or restart the guest by hand")


def clients(snapshot: Snapshot, members: Iterable[ProcessId]) -> tuple[tuple[tuple[ProcessId, ProcessId], ...], bool]:
    """(server, client) of the members that are MPS clients; whether others are clients of such a server."""
    rows = snapshot.guest.mps if isinstance(snapshot.guest, Guest) else ()
    table = {p.pid: p.id for p in processes(snapshot).values()}
    ending = {m.pid: m for m in members}
    ours = [r for r in rows if r.client_pid in ending and r.server_pid in table]
    servers = {r.server_pid for r in ours}
    others = any(r.server_pid in servers and r.client_pid not in ending for r in rows)
    return tuple((table[r.server_pid], ending[r.client_pid]) for r in ours), others


def let_go(snapshot: Snapshot, groups: Iterable[Group]) -> list[Act]:
    """The acts that end the groups' MPS clients; what follows is not done where others would be hit by it."""
    found = tuple(groups)
    everyone = [m for g in found for m in g.members]
    pairs, others = clients(snapshot, everyone)
    keys = {m: g.key for g in found for m in g.members}
    return [Act(EndMpsClient(keys[client], server, client), must=others) for server, client in pairs]
