"""What a node's root shell shows of the guest's devices: gone from the bus, given up, or held by a QEMU that is over.

A device that the kernel gave up is terminal: no reset is tried on it again, and only its power brings it back.
"""

from __future__ import annotations

from recover.core.look import Gap, Look, Signs
from recover.model.gpu import NOT_ASKED
from recover.model.guest import Guest
from recover.model.host import Host
from recover.model.hypervisor import HostPci, Hypervisor
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope


def node_devices(look: Look) -> Signs:
    seen, reading, guest = look.snapshot.hypervisor, look.snapshot.host, look.snapshot.guest
    if isinstance(guest, Guest) and guest.through:
        yield Gap(f"it does not answer itself and was looked at through {guest.through}", matters=False)
    if not isinstance(reading, Known):
        if reading != NOT_ASKED:
            yield Gap(f"the node's root shell was not to be had: {reading.detail or reading.why}", matters=False)
        return
    host = reading.value
    yield from (Gap(f"on {host.node}: {text}", matters=False) for text in host.gaps)
    if not isinstance(seen, Hypervisor):
        return
    if seen.status == "stopped" and host.qemu:
        yield _leftover(host, seen)
    own = {a for d in seen.config.value.hostpci for a in d.addresses} if isinstance(seen.config, Known) else set()
    if host.functions:
        for address in sorted(own - {f.address for f in host.functions}):
            says = f"{address} is not on the bus of {host.node}"
            yield Finding("pci-device-gone", says, Scope.HOST_DEVICE, None)
    for function in host.functions:
        if function.address not in own:
            continue
        if function.dead:
            says = f"{function.address} is lost to {host.node} until its power is cut"
            yield Finding("pci-device-dead", says, None, None, (function.gave_up,))
        elif function.answers == Known(False):
            says = f"{function.address} does not answer {host.node}: its configuration reads all ones"
            yield Finding("pci-device-gone", says, Scope.HOST_DEVICE, None)


def cure_of_loss(look: Look, lacking: int) -> Scope | None:
    """What brings back `lacking` GPUs that the guest has lost: its VM's power, or what the node knows better.

    A VM would not start with a device that reads all ones or is off the bus (`device inaccessible`), and what the
    kernel gave up, or warm reboots did not bring back (shine-cluster issue 172), only power does.
    """
    seen, reading = look.snapshot.hypervisor, look.snapshot.host
    if not isinstance(reading, Known) or not isinstance(seen, Hypervisor) or not isinstance(seen.config, Known):
        return Scope.VM
    host = reading.value
    off = [d for d in seen.config.value.hostpci if _off(host, d)]
    if not 0 < lacking <= sum(d.gpus.value if isinstance(d.gpus, Known) else 1 for d in off):
        return Scope.VM
    dead = any(f.dead for f in host.functions for d in off if f.address in d.addresses)
    return None if dead else Scope.HOST_DEVICE


def _off(host: Host, device: HostPci) -> bool:
    found = [host.function(address) for address in device.addresses]
    return bool(host.functions) and any(f is None or f.dead or f.answers == Known(False) for f in found)


def _leftover(host: Host, seen: Hypervisor) -> Finding:
    pids = ", ".join(str(p) for p in host.qemu)
    says = f"Proxmox calls {seen.vmid} stopped, and its QEMU (pid {pids} on {host.node}) has not ended: it hangs there"
    return Finding("leftover-qemu", says, None, None)
