"""What a token needs is a table: the privilege, where, what is asked by it, and what its absence costs.

Paths and privileges: proxmox-ve's API schema; pve-access-control, src/PVE/AccessControl.pm and RPCEnvironment.pm.
`VM.Monitor` ended with PVE 9 and `VM.GuestAgent.*` began with it; each is refused by the other as invalid.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.reading import Known

AGENT_9, AGENT_8 = "VM.GuestAgent.Audit", "VM.Monitor"
# Held on the guest, its node or the root they allow far more than is ever asked.
NEVER_NEEDED = (
    "Permissions.Modify",
    "Realm.Allocate",
    "Sys.Console",
    "Sys.Modify",
    "Sys.PowerMgmt",
    "User.Modify",
    "VM.Allocate",
)
_ROLES = {
    "GpuRecoverGuest": "", "GpuRecoverLook": "VM.Audit", "GpuRecoverHost": "Sys.Audit",
    "GpuRecoverStorage": "Datastore.Audit", "GpuRecoverMapping": "Mapping.Audit",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """Where a guest's needs lie. `release` is the cluster's major version, 0 where it is not known."""

    vmid: int
    nodes: tuple[str, ...] = ()
    storages: tuple[str, ...] = ()
    mappings: tuple[str, ...] = ()
    near: tuple[str, ...] = ()  # mappings that running guests beside it use
    devices: bool = False
    agent: bool = False
    ha: bool = False
    release: int = 0


@dataclass(frozen=True, slots=True)
class Need:
    """One question or act. `any_of`: the first is what a recipe gives, the others do as well."""

    any_of: tuple[str, ...]
    path: str
    role: str
    asked: str
    costs: str
    must: bool  # a configured rung is refused or fails without it
    below: bool = False  # it must also hold on what is below the path

    @property
    def privilege(self) -> str:
        return self.any_of[0]


Held = Mapping[str, bool]  # privilege -> whether it propagates


def place_of(seen: Hypervisor, others: Iterable[str] = ()) -> Place:
    """`others`: the cluster's other nodes, on which HA may start the guest."""
    config = seen.config.value if isinstance(seen.config, Known) else None
    devices = config.hostpci if config is not None else ()
    mappings = tuple(dict.fromkeys(d.mapping for d in devices if d.mapping))
    ha = isinstance(seen.ha_state, Known) and seen.ha_state.value not in ("", "ignored")
    return Place(
        vmid=seen.vmid,
        nodes=tuple(dict.fromkeys((seen.node, *(others if ha else ())))),
        storages=config.storages if config is not None else (),
        mappings=mappings,
        near=tuple(name for name in seen.near_mappings if name not in mappings),
        devices=bool(devices),
        agent=bool(config is not None and config.agent) and seen.kind is GuestKind.VM,
        ha=ha,
        release=major(seen.version),
    )


def major(version: str) -> int:
    """ "9.2.6" -> 9; 0 where nobody said."""
    head = version.partition(".")[0]
    return int(head) if head.isdecimal() else 0


def needs(place: Place, rungs: tuple[str, ...]) -> tuple[Need, ...]:
    """What the rungs that go through the API need on this guest; without such rungs all of it is only for the looks."""
    guest, power = f"/vms/{place.vmid}", bool(rungs)
    named = ", ".join(rungs)
    refused = f"{named} refused" if power else "fewer facts in reports"
    found = [
        Need(("VM.Audit",), guest, "GpuRecoverGuest", "status, configuration, pending changes",
             "the guest is not found: nothing through Proxmox, and the address is not proved to be the guest", True),
    ]  # fmt: skip
    if power:
        found.append(
            Need(
                ("VM.PowerMgmt",),
                guest,
                "GpuRecoverGuest",
                "shutdown, stop, start, reset",
                f"{named} fails when it is tried",
                True,
            )
        )
    if place.agent:
        found.append(
            Need(
                _agent(place.release),
                guest,
                "GpuRecoverGuest",
                "ping of the guest agent, its addresses",
                "a mute guest lacks its second witness and ends in cannot-tell",
                False,
            )
        )
    for number, node in enumerate(place.nodes):
        found.append(
            Need(
                ("Sys.Audit",),
                f"/nodes/{node}",
                "GpuRecoverHost",
                "tasks of others, memory and clock",
                f"{refused} (guards tasks, host-memory)" + (", once HA has it there" if number else ""),
                power and not number,
            )
        )
    found.append(
        Need(
            ("Sys.Audit",),
            "/",
            "GpuRecoverHost",
            "quorum, HA, backup jobs, PCI devices",
            f"{refused} (guards quorum, device, backup-due)",
            power,
        )
    )
    found += [
        Need(("Datastore.Audit", "Datastore.AllocateSpace"), f"/storage/{storage}", "GpuRecoverStorage",
             "whether the storage is active", f"{refused} (guard storage)", power)
        for storage in place.storages
    ]  # fmt: skip
    found += [
        Need(("Mapping.Audit", "Mapping.Use", "Mapping.Modify"), f"/mapping/pci/{mapping}", "GpuRecoverMapping",
             "which devices the mapping stands for", f"{refused} (guard {guard})", power)
        for names, guard in ((place.mappings, "device"), (place.near, "shared-device")) for mapping in names
    ]  # fmt: skip
    found.append(
        Need(
            ("VM.Audit",),
            "/vms",
            "GpuRecoverLook",
            "other guests of the node, and who shares a device",
            "guests that cannot be seen are named as not known before a power cycle",
            False,
            below=True,
        )
    )
    return tuple(found)


def _agent(release: int) -> tuple[str, ...]:
    if not release:
        return (AGENT_9, AGENT_8, "VM.GuestAgent.Unrestricted")
    return (AGENT_9, "VM.GuestAgent.Unrestricted") if release >= 9 else (AGENT_8,)


def missing(need: Need, held: Held) -> bool:
    return not any(name in held and (held[name] or not need.below) for name in need.any_of)


def too_much(held: Held) -> tuple[str, ...]:
    return tuple(name for name in NEVER_NEEDED if name in held)


def role_privileges(role: str, release: int) -> str:
    if role == "GpuRecoverGuest":
        return f"VM.Audit VM.PowerMgmt {AGENT_9 if release >= 9 else AGENT_8}"
    return _ROLES[role]


def grant(need: Need, token_id: str) -> str:
    """The command that gives one missing privilege, on a node of the cluster; the role must exist: see `recipe`."""
    user, _, _ = token_id.rpartition("!")
    rest = " --propagate 0" if need.path == "/" else ""
    who = f"--users {shlex.quote(user)} --tokens {shlex.quote(token_id)}"
    return f"pveum acl modify {shlex.quote(need.path)} {who} --roles {need.role}{rest}"


def amend(need: Need) -> str:
    """The command for a token that has the role already, and the role lacks this: as after an upgrade from 8 to 9."""
    return f"pveum role modify {need.role} --append 1 --privs {need.privilege}"


def recipe(release: int, token_id: str, place: Place) -> tuple[str, ...]:
    """The whole of it, ready to paste as root on any node: 9 for Proxmox VE 9, 8 for 7 and 8."""
    user, _, name = token_id.rpartition("!")
    mappings = (place.mappings or place.near) if release > 7 else ()
    wanted = [n for n in needs(place, ("power-cycle-vm",)) if n.role != "GpuRecoverMapping" or mappings]
    roles = [role for role in _ROLES if any(n.role == role for n in wanted)]
    return (
        f"pveum user add {shlex.quote(user)} --comment 'recovers GPU guests'",
        f"pveum user token add {shlex.quote(user)} {shlex.quote(name)} --privsep 1    # prints the secret, once",
        *(f"pveum role add {role} --privs '{role_privileges(role, release)}'" for role in roles),
        *dict.fromkeys(grant(need, token_id) for need in wanted),
    )
