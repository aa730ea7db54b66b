"""One function per way in which a machine shows that it is sick, one line each; the order is the order of a report."""

from __future__ import annotations

from collections.abc import Callable

from recover.core.look import Look, Signs
from recover.core.signals import driver, host, hypervisor, memory, missing, modules, processes, reboot, server, whole

SIGNALS: tuple[Callable[[Look], Signs], ...] = (
    hypervisor.vm_state,
    hypervisor.mute_guest,
    host.node_devices,
    reboot.reboot_hangs,
    whole.driver_state,
    driver.kernel_lockup,
    driver.gpu_condition,
    driver.recovery,
    driver.remapping,
    missing.missing_gpus,
    missing.link_width,
    driver.fabric,
    driver.switches,
    modules.stuck_unload,
    driver.reset_hint,
    server.dead_group,
    server.hung_group,
    server.crash_loop,
    server.watched_groups,
    processes.storage_hang,
    processes.unkillable,
    processes.uninterruptible,
    memory.gpu_memory_held,
    memory.ghost_utilisation,
    memory.leftovers,
    memory.unowned_ram,
    memory.ram_below_baseline,
    memory.memory_files,
    server.unproved_server,
    processes.unseen_handles,
    hypervisor.our_limits,
)
