"""A baseline is saved only from an idle look without gaps: a serving guest's figures would hide every leak.

A changed driver, MemTotal or GPU set makes a baseline stale, not the guest faulty; fewer of the same GPUs do not.
"""

from __future__ import annotations

from recover.core.groups import gpus_of
from recover.core.ram import blind_tolerance_mib, unowned
from recover.model.gpu import Gpu, uuid_of
from recover.model.guest import Guest
from recover.model.hypervisor import AgentState, Hypervisor
from recover.model.memory import Ram
from recover.model.reading import Known
from recover.model.snapshot import Baseline, GpuBaseline, Snapshot
from recover.model.verdict import Diagnosis

SETTLED_S = 120.0  # the driver makes its nodes and pools on first use, after the boot
IDLE_GPU_MIB = 1024  # a display or an MPS daemon may hold up to some hundred MiB; a server never so little


def idle(snapshot: Snapshot, diagnosis: Diagnosis) -> tuple[Baseline | None, tuple[str, ...]]:
    """The baseline that this look makes, or why it makes none."""
    guest = snapshot.guest
    if not isinstance(guest, Guest):
        return None, ("the guest was not reached",)
    reasons = _not_idle(snapshot, guest, diagnosis)
    if reasons or not isinstance(guest.ram, Known) or not isinstance(guest.driver, Known):
        return None, reasons or ("RAM or driver are not known",)
    ram, version = guest.ram.value, guest.driver.value.version
    seen = snapshot.hypervisor
    made = Baseline(
        gpus=tuple(_gpu(g) for g in gpus_of(snapshot)),
        ram_total_mib=ram.total_mib,
        ram_available_mib=ram.available_mib,
        shmem_mib=ram.shmem_mib,
        hugepages_free=ram.hugepages_free,
        driver=version.value if isinstance(version, Known) else "",
        kernel=guest.identity.kernel,
        dmi_uuid=guest.identity.dmi_uuid.value if isinstance(guest.identity.dmi_uuid, Known) else "",
        macs=guest.identity.macs,
        hostname=guest.identity.hostname,
        agent_answered=isinstance(seen, Hypervisor) and seen.agent == Known(AgentState.ANSWERS),
        saved_at=snapshot.wall,
        unowned_mib=unowned(ram),
    )
    return made, ()


def _not_idle(snapshot: Snapshot, guest: Guest, diagnosis: Diagnosis) -> tuple[str, ...]:
    reasons = [f.says for f in diagnosis.findings]
    reasons += [f"may go away by itself, look again in a minute: {s.finding.says}" for s in diagnosis.ripening]
    reasons += [f"{g.engine} {g.key} runs: {g.title}" for g in snapshot.groups if not g.protected]
    reasons += list(diagnosis.gaps)
    if guest.mark.uptime_s < SETTLED_S:
        reasons.append(f"the guest is up for {guest.mark.uptime_s:.0f} s only")
    gpus = gpus_of(snapshot)
    if not gpus:
        reasons.append("no GPU was seen")
    for gpu in gpus:
        if not isinstance(gpu.used_mib, Known) or not isinstance(gpu.uuid, Known):
            reasons.append(f"GPU {gpu.index}: its memory or its UUID is not known")
        elif gpu.used_mib.value > IDLE_GPU_MIB:
            reasons.append(f"GPU {gpu.index}: {gpu.used_mib.value} MiB are used")
    if isinstance(guest.ram, Known):
        reasons += _ram_in_use(guest.ram.value)
    return tuple(reasons)


def _ram_in_use(ram: Ram) -> list[str]:
    limit = blind_tolerance_mib(ram.total_mib)
    found = []
    if ram.process_anon_mib > limit:
        found.append(f"processes hold {ram.process_anon_mib} MiB of RAM")
    if ram.shmem_mib > limit:
        found.append(f"shared memory holds {ram.shmem_mib} MiB")
    if unowned(ram) > limit:
        found.append(f"{unowned(ram)} MiB of RAM have no owner")
    return found


def _gpu(gpu: Gpu) -> GpuBaseline:
    return GpuBaseline(
        uuid=uuid_of(gpu),
        bus_id=gpu.bus_id,
        used_mib=gpu.used_mib.value if isinstance(gpu.used_mib, Known) else 0,
        link_width=gpu.link_width.value if isinstance(gpu.link_width, Known) else None,
    )


def stale(baseline: Baseline, snapshot: Snapshot) -> tuple[str, ...]:
    """Why a baseline does not describe this guest any more; empty if it does, or if nobody can tell."""
    guest = snapshot.guest
    if not isinstance(guest, Guest):
        return ()
    reasons = []
    if isinstance(guest.ram, Known) and _differ(guest.ram.value.total_mib, baseline.ram_total_mib):
        reasons.append(f"MemTotal is {guest.ram.value.total_mib} MiB, it was {baseline.ram_total_mib} MiB")
    version = guest.driver.value.version if isinstance(guest.driver, Known) else None
    if isinstance(version, Known) and baseline.driver and version.value != baseline.driver:
        reasons.append(f"the driver is {version.value}, it was {baseline.driver}")
    saved = {b.uuid for b in baseline.gpus}
    new = [g.uuid.value for g in gpus_of(snapshot) if isinstance(g.uuid, Known) and g.uuid.value not in saved]
    if new:
        reasons.append(f"GPU {', '.join(sorted(new))} was not there")
    return tuple(reasons)


def _differ(total: int, saved: int) -> bool:
    """The kernel takes a little more or less for itself from one boot and version to the next."""
    return abs(total - saved) > max(256, saved // 100)
