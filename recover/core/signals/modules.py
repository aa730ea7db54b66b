"""A module of the driver that is on its way out and does not get there holds everything: only a new kernel ends that.

A reboot from inside waits for the same unload, so the VM is what cures it.
"""

from __future__ import annotations

from recover.core.look import Look, Signs, watch
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope


def stuck_unload(look: Look) -> Signs:
    """rmmod that never comes back: /proc/modules says Unloading, look after look."""
    guest = look.guest
    if guest is None or not isinstance(guest.modules, Known):
        return
    for module in guest.modules.value:
        if module.state == "Unloading":
            says = f"the unload of {module.name} hangs in the kernel"
            finding = Finding("unload-stuck", says, Scope.VM, None, (), at_least=Scope.VM)
            yield watch(f"unload:{module.name}", 0, 1, look.limits.ripens_s, finding)
