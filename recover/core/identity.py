"""Whether the guest behind the address is the guest behind the vmid: proved, wrong, or unproved, never assumed."""

from __future__ import annotations

from recover.model.guest import Guest
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.reading import Known
from recover.model.snapshot import IdentityProof, Snapshot


def identity(snapshot: Snapshot) -> IdentityProof:
    """By SMBIOS UUID first, by MAC second; a container by its init. A mute guest by what its baseline remembers."""
    if not isinstance(snapshot.hypervisor, Hypervisor):
        return IdentityProof.UNPROVED
    if _same_init(snapshot):
        return IdentityProof.PROVED
    config = snapshot.hypervisor.config.value if isinstance(snapshot.hypervisor.config, Known) else None
    expected = (config.smbios_uuid if config else "") or snapshot.expected_dmi_uuid
    uuid, macs = _seen_identity(snapshot)
    if expected and uuid and snapshot.hypervisor.kind is GuestKind.VM:
        return IdentityProof.PROVED if same_uuid(expected, uuid) else IdentityProof.WRONG
    if config is None or not config.macs or not macs:
        return IdentityProof.UNPROVED
    lowered = {m.lower() for m in config.macs}
    return IdentityProof.PROVED if lowered & {m.lower() for m in macs} else IdentityProof.WRONG


def _same_init(snapshot: Snapshot) -> bool:
    """A container has its host's DMI and boot id: it is known by its init, which its node sees as well."""
    guest, host = snapshot.guest, snapshot.host
    if not isinstance(guest, Guest) or not isinstance(host, Known) or not guest.identity.container:
        return False
    init = host.value.init_start
    return init > 0 and (host.value.boot_id, init) == (guest.identity.boot_id, guest.identity.init_start)


def _seen_identity(snapshot: Snapshot) -> tuple[str, frozenset[str]]:
    if isinstance(snapshot.guest, Guest):
        seen = snapshot.guest.identity
        return (seen.dmi_uuid.value if isinstance(seen.dmi_uuid, Known) else "", seen.macs)
    if snapshot.baseline is not None:
        return snapshot.baseline.dmi_uuid, snapshot.baseline.macs
    return "", frozenset()


def same_uuid(one: str, other: str) -> bool:
    """Equal, also where one of them has the first three fields in SMBIOS 2.6's byte order and the other has not."""
    one, other = one.lower(), other.lower()
    return one == other or _swapped(one) == other


def _swapped(uuid: str) -> str:
    fields = uuid.split("-")
    return "-".join([_bytes_back(f) if i < 3 else f for i, f in enumerate(fields)])


def _bytes_back(field: str) -> str:
    return "".join(field[i : i + 2] for i in range(len(field) - 2, -1, -2))
