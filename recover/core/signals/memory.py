"""Memory is sick when it stays away although nothing that lives owns it; owned memory is never residual.

Thresholds: 16 MiB on a GPU covers the idle figures of 0 to 14 MiB seen on healthy cards; RAM may differ from its
baseline by 8 GiB or 3 %, since page tables, slab and the driver's own pools move with use; without a baseline only
unowned RAM above 16 GiB or 5 % is a symptom, since nobody knows what is normal there.
"""

from __future__ import annotations

from recover.core.engines import OTHER
from recover.core.groups import in_container
from recover.core.look import Gap, Look, Signs, gib, on_gpu, watch
from recover.core.ram import blind_tolerance_mib, free_enough, ram_expected, unowned, unowned_limit
from recover.model.gpu import Condition, Gpu, uuid_of
from recover.model.memory import LeftoverKind, Ram
from recover.model.process import Group
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope
from recover.steps.container import is_monitor
from recover.steps.leftovers import abandoned, known_name

QUANTUM_MIB = 64
CONTEXT_MIB = 1024  # what a process's context may take beyond its row
LEFTOVER_MIB = 1024  # less is what every server leaves behind


def gpu_memory_held(look: Look) -> Signs:
    """Bytes on a GPU that no living process owns. While a dead or hung group exists, they may be its own."""
    for gpu in look.gpus:
        if gpu.condition is not Condition.ANSWERS:
            continue
        if not isinstance(gpu.used_mib, Known):
            yield Gap(f"GPU {gpu.index}: used memory is not known ({gpu.used_mib.detail or gpu.used_mib.why})")
            continue
        used, idle = gpu.used_mib.value, look.idle_mib(gpu)
        if used <= idle or look.broken:
            continue
        if _owned(look, gpu):
            # As for RAM below: whatever a try was for, dead groups may have hidden this, and what came up hides it now.
            if look.past.tries and not _explained(gpu, used - idle):
                yield Gap(f"GPU {gpu.index} uses {gib(used)}, more than its processes are listed with")
            continue
        doubt = _undecidable(look, gpu)
        if doubt:
            yield Gap(f"GPU {gpu.index} uses {gib(used)}, and whose it is can't be told: {doubt}")
            continue
        finding = on_gpu(
            "gpu-memory-held",
            gpu,
            f"holds {gib(used)} that no living process owns ({idle} MiB are normal)",
            Scope.GPU,
            *_ghosts(look, gpu),
        )
        yield watch(f"vram:{uuid_of(gpu)}", used, QUANTUM_MIB, look.limits.ripens_s, finding)


def _owned(look: Look, gpu: Gpu) -> bool:
    """Daemons that only keep a GPU's node open own none of its memory, unless the driver lists them."""
    listed = look.listed(gpu)
    if any(not p.plain_zombie for p in listed):
        return True
    return any(not g.protected and not _watches(look, g) for g in look.groups_on(uuid_of(gpu)))


def _watches(look: Look, group: Group) -> bool:
    """Whoever asks NVML has all nodes open, but CUDA's own, and the driver lists it nowhere: it has no memory there."""
    if group.engine != OTHER.name or in_container(look.snapshot):
        return False
    processes = [part.process for part in look.parts[group.key]]
    if any("nvidia-uvm" in p.holds or not p.holds_known for p in processes):
        return False
    lists = [g.processes.value for g in look.gpus if isinstance(g.processes, Known)]
    listed = {row.pid for rows in lists for row in rows}
    return len(lists) == len(look.gpus) and not listed & {p.pid for p in processes}


def _explained(gpu: Gpu, used: int) -> bool:
    """Whether the driver's rows account for what is used: asked only after a try."""
    rows = gpu.processes.value if isinstance(gpu.processes, Known) else ()
    listed = [row.used_mib for row in rows if row.used_mib is not None]
    return len(listed) == len(rows) and used <= sum(listed) + CONTEXT_MIB * max(1, len(rows))


def _undecidable(look: Look, gpu: Gpu) -> str:
    guest = look.guest
    if gpu.shares_system_memory:
        return "the system shares its memory and keeps freed pages"
    if isinstance(gpu.virtualisation, Known) and "vgpu" in gpu.virtualisation.value:
        return "it is a virtual GPU"
    if not look.processes_known or (guest is not None and not guest.complete):
        return "the process table is not complete"
    if guest is not None and not guest.root and (look.hidden or _ghosts(look, gpu)):
        return "without root, processes of others may be hidden (hidepid)"
    if not isinstance(gpu.processes, Known):
        return "the driver's process list is not known"
    return _on_node(look, gpu) if in_container(look.snapshot) else ""


def _on_node(look: Look, gpu: Gpu) -> str:
    """A container is told nothing of others on its GPU; its node's root shell sees who has it open."""
    host = look.snapshot.host
    if not isinstance(host, Known) or not host.value.complete:
        return "in a container the driver's process list is wrong or empty: look on the host"
    minor = next((h.minor for h in host.value.gpus if h.uuid == uuid_of(gpu)), None)
    if minor is None:
        return f"{host.value.node} does not know it"
    files = {f"/dev/nvidia{minor}"}
    holders = [h for h in host.value.holders if h.file in files and not is_monitor(h)]
    return f"on {host.value.node} {holders[0].comm} (pid {holders[0].pid}) has it open" if holders else ""


def _ghosts(look: Look, gpu: Gpu) -> list[str]:
    rows = gpu.processes.value if isinstance(gpu.processes, Known) else ()
    table = {p.pid for p in look.processes}
    return [f"the driver lists pid {row.pid}, which does not exist" for row in rows if row.pid not in table]


def ghost_utilisation(look: Look) -> Signs:
    """100 % busy with nothing on it: seen after killed CUDA programs; a new context cures it."""
    for gpu in look.gpus:
        busy = isinstance(gpu.utilisation_pct, Known) and gpu.utilisation_pct.value >= 99
        empty = isinstance(gpu.used_mib, Known) and gpu.used_mib.value <= look.idle_mib(gpu)
        nobody = not _undecidable(look, gpu) and gpu.processes == Known(())
        if gpu.condition is Condition.ANSWERS and busy and empty and nobody and not _owned(look, gpu):
            finding = on_gpu("ghost-utilisation", gpu, "says 100 % busy, and nothing runs on it", Scope.GPU)
            yield watch(f"util:{uuid_of(gpu)}", 0, 1, look.limits.ripens_s, finding)


def leftovers(look: Look) -> Signs:
    """Shared memory whose owner is dead and that nobody maps: the kernel keeps it until somebody unlinks it."""
    guest = look.guest
    if guest is None or not isinstance(guest.leftovers, Known) or look.broken:
        return
    known = [item for item in guest.leftovers.value if known_name(item)]
    dead = [item for item in known if abandoned(item)]
    unread = sum(item.size_mib for item in known if item.owner_alive is False and item.mapped is None)
    if look.past.tries and unread >= LEFTOVER_MIB:
        yield Gap(f"shared memory of dead owners holds {gib(unread)}, and whether anybody maps it is not known")
    size = sum(item.size_mib for item in dead)
    if size >= LEFTOVER_MIB:
        names = tuple(f"{item.name} {gib(item.size_mib)}" for item in sorted(dead, key=lambda i: -i.size_mib)[:5])
        says = f"{len(dead)} shared memory objects of dead owners hold {gib(size)}"
        finding = Finding("leftover-memory", says, Scope.PROCESS, None, names)
        yield watch("ram:leftovers", size, QUANTUM_MIB, look.limits.ripens_s, finding)


def unowned_ram(look: Look) -> Signs:
    """RAM that no process, file or kernel pool accounts for, and no living server for which the driver may pin it.

    The incident's 318 GB were of this kind: only a new kernel gave them back.
    """
    ram = look.ram
    if ram is None:
        if look.guest is not None:
            yield Gap("the guest's RAM is not known")
        return
    if look.broken or not look.processes_known or in_container(look.snapshot):
        return  # a container's meminfo is lxcfs's view of its control group: it names no kernel pools
    size, limit = unowned(ram), unowned_limit(ram, look.baseline)
    if look.working:
        # What the driver pins for a living server looks the same. After a try, "recovered" would
        # be a guess: it is said that nobody can tell.
        if size > limit and look.past.tries:
            yield Gap(f"{gib(size)} of RAM have no owner, which a living server may pin: cannot be told while it works")
        return
    if size > limit and look.hidden:
        yield Gap(f"{gib(size)} of RAM belong to nobody that is shown, and without root processes may be hidden")
    elif size > limit:
        says = f"{gib(size)} of RAM are gone, and nothing owns them ({gib(limit)} are tolerated)"
        finding = Finding("ram-unowned", says, Scope.GUEST, None, (f"{gib(ram.available_mib)} available",))
        yield watch("ram:unowned", size, QUANTUM_MIB, look.limits.ripens_s, finding)


def ram_below_baseline(look: Look) -> Signs:
    """Less available than when idle, though no living process, leftover file or unowned page explains it."""
    ram, expected = look.ram, ram_expected(look.snapshot, look.baseline)
    if ram is None or expected is None or look.working or look.broken or not look.processes_known or look.hidden:
        return  # where processes are hidden, what they hold is unowned RAM to us
    missing = expected - ram.available_mib - ram.process_anon_mib - _known_objects(look) - _set_aside(look, ram)
    inside = in_container(look.snapshot)
    if free_enough(missing, ram) or (not inside and unowned(ram) > unowned_limit(ram, look.baseline)):
        return
    says = f"{gib(ram.available_mib)} of RAM are available, {gib(expected)} were when the guest was idle"
    cure = Scope.PROCESS if inside else Scope.GUEST  # a container's restart empties its control group
    finding = Finding("ram-below-baseline", says, cure, None, (f"{gib(missing)} of that are not explained",))
    yield watch("ram:available", missing, QUANTUM_MIB, look.limits.ripens_s, finding)


def _known_objects(look: Look) -> int:
    """Files in memory, wherever they are mounted, are somebody's: a restart would be their end, not their cure."""
    guest, ram = look.guest, look.ram
    items = guest.leftovers.value if guest is not None and isinstance(guest.leftovers, Known) else ()
    huge = sum(item.size_mib for item in items if item.kind is LeftoverKind.HUGETLB_FILE)
    named = sum(item.size_mib for item in items if item.kind is not LeftoverKind.HUGETLB_FILE)
    files = 0 if ram is None else ram.shmem_mib - (look.baseline.shmem_mib if look.baseline is not None else 0)
    return huge + max(named, files)


def _set_aside(look: Look, ram: Ram) -> int:
    """What an administrator or the kernel keeps: free huge pages, caches that meminfo does not know, the balloon."""
    base = look.baseline.hugepages_free if look.baseline is not None else 0
    huge = max(0, ram.hugepages_free - base) * ram.hugepage_kib // 1024
    return huge + ram.cache_mib + (ram.balloon_mib.value if isinstance(ram.balloon_mib, Known) else 0)


def memory_files(look: Look) -> Signs:
    """Said, as a person may wonder where the RAM is; whose they are is not known, so it is no reason to doubt."""
    ram = look.ram
    if ram is None or look.working or look.broken:
        return
    size = ram.shmem_mib - (look.baseline.shmem_mib if look.baseline is not None else 0)
    if size > blind_tolerance_mib(ram.total_mib):
        yield Gap(f"files in memory (tmpfs, /dev/shm) hold {gib(size)}: they are left alone", matters=False)
