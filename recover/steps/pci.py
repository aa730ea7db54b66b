"""`power-cycle-reset-pci`: root on the node does what the API can't, while the VM is stopped and nobody else is hit.

One straight line: stop, function reset, bus reset, off the bus and on again, start. The first two are `must=False`:
where a device has no function reset, or shares its port, the next may still help. Each puts the kernel's order of
reset methods back itself; that it was done is asked once more before the start. sysfs refuses nothing by itself, so
who holds what is looked up again at the moment of each reset (recover/guest/pci.py).

A device that is off the bus is looked for before the stop, which touches nothing else: without it the VM would not
start again (qemu-server: `no PCI device found for`), so where it does not come back nothing is stopped.
"""

from __future__ import annotations

from collections.abc import Iterable

from recover.model.act import Act, Pass, Plan, Refuse, RescanPci, ResetPci, RestoreResetMethod
from recover.model.host import Host, PciFunction
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.ladder import Param, Params, Step
from recover.model.reading import Known
from recover.model.snapshot import Channel, Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.common import line, number
from recover.steps.power import CYCLE, Cycle, cycle, given_up, off_the_bus, vm_ref

_NVIDIA = "10de:"
_FREE = frozenset({"", "vfio-pci"})
_SYS = "/sys/bus/pci/devices"


def _plan(snapshot: Snapshot, findings: tuple[Finding, ...], params: Params) -> Plan:
    if not findings:
        return Pass("no finding asks for it")
    if not isinstance(snapshot.host, Known):
        return Pass(f"the node's root shell can't be used: {snapshot.host.detail or snapshot.host.why}")
    host = snapshot.host.value
    gone = off_the_bus(snapshot)
    made = cycle(snapshot, params, gone)
    if not isinstance(made, Cycle):
        return made
    own = tuple(dict.fromkeys(a for device in made.config.hostpci for a in device.addresses))
    ours = tuple(f for f in host.functions if f.address in own and f.ids.startswith(_NVIDIA))
    if not ours and not gone:
        return Pass(f"no NVIDIA device is passed through that {host.node} knows")
    refusal = _forbidden(host, made.hypervisor, ours, own)
    if refusal is not None:
        return refusal
    vm, deadline = vm_ref(made.hypervisor), number(params, "reset_deadline")
    names = tuple(f.address for f in ours if not f.physfn)  # a rescan finds no virtual function again
    flr = tuple(f.address for f in ours if "flr" in f.resets or (f.can_reset and not f.has_method))
    bus, alone = bus_resettable(host, ours, own)
    acts, words = [], list(made.words[:1])
    for how, which in (("flr", flr), ("bus", bus), ("rescan", names)):
        if which:
            acts.append(Act(ResetPci(vm, host.node, which, how, host.boot_id, deadline, own), must=how == "rescan"))
            words.append(f"on {host.node}: {' '.join(writes(how, which, host))}")
    acts.append(Act(RestoreResetMethod(host.node, own, host.boot_id), must=False))
    words += [f"no bus reset of {a}: {why}" for a, why in alone]
    first = [Act(RescanPci(host.node, gone, host.boot_id))] if gone else []
    if gone:
        words.insert(0, f"first, while the VM still runs, {', '.join(gone)} is looked for on {host.node}: {_RESCAN}")
    return line((*first, *made.down, *acts, *made.up), (*words, *made.words[2:]))


def _forbidden(
    host: Host, hypervisor: Hypervisor, ours: tuple[PciFunction, ...], own: tuple[str, ...]
) -> Refuse | None:
    if not host.complete:
        why = f"{host.node} did not tell all: {'; '.join(host.gaps[:3])}"
        return Refuse("host", why, "look at the node, then run again")
    dead = given_up(host, ours)
    if dead is not None:
        return dead
    reserved = {r.address for r in host.reservations if r.vmid == hypervisor.vmid}
    if reserved and reserved != set(own):
        why = f"Proxmox has {_list(reserved)} reserved for {hypervisor.vmid}, and its configuration says {_list(own)}"
        return Refuse("reservation", why, "find out which devices the running VM has (/run/qemu-server)")
    return _others(host, hypervisor, ours, own)


def _others(host: Host, hypervisor: Hypervisor, ours: tuple[PciFunction, ...], own: tuple[str, ...]) -> Refuse | None:
    """Whoever else has one of the devices, or stands in one of their groups."""
    for function in ours:
        if function.driver not in _FREE:
            why = f"{function.address} belongs to {host.node}'s own driver {function.driver}"
            return Refuse("host-driver", why, "see why it isn't bound to vfio-pci")
    virtual = [a for f in ours for a in f.virtfns if a not in own]
    if virtual:
        why = f"{_list(virtual)} is a virtual function of a device of this VM, and isn't its own"
        return Refuse("shared-device", why, "give the virtual functions up first: echo 0 > …/sriov_numvfs")
    foreign = [r for r in host.reservations if r.address in own and r.vmid != hypervisor.vmid]
    if foreign:
        why = f"{foreign[0].address} is reserved for guest {foreign[0].vmid}"
        return Refuse("reservation", why, f"stop guest {foreign[0].vmid} first")
    groups = {f.iommu_group for f in ours} - {None}
    for group, members in host.groups:
        strange = [m for m in members if m not in own]
        if group in groups and strange:
            why = f"{_list(strange)} stands in IOMMU group {group} and isn't this VM's"
            return Refuse("shared-device", why, "give each guest its own groups")
    files = {f"/dev/vfio/{g}" for g in groups}
    for holder in host.holders:
        if holder.file in files and holder.guest != f"vm {hypervisor.vmid}" and holder.pid not in host.qemu:
            whose = holder.guest or holder.unit or "the node"
            why = f"{holder.comm} (pid {holder.pid}, {whose}) has {holder.file} open"
            return Refuse("held-device", why, "end it first, if it may end")
    return None


def bus_resettable(
    host: Host, ours: tuple[PciFunction, ...], own: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The functions below whose port is nothing but this VM's, and why the others are left out."""
    below = {b.address: b.below for b in host.bridges}
    good: list[str] = []
    left: list[tuple[str, str]] = []
    for function in ours:
        others = [a for a in below.get(function.bridge, ()) if a not in own]
        if function.physfn:
            left.append((function.address, f"it is a virtual function of {function.physfn}"))
        elif not function.bridge or function.bridge not in below:
            left.append((function.address, "it stands on the root bus"))
        elif others:
            left.append((function.address, f"{_list(others)} is below the same port {function.bridge}"))
        else:
            good.append(function.address)
    return tuple(good), tuple(left)


def writes(how: str, addresses: tuple[str, ...], host: Host) -> list[str]:
    """What is written, as a person would type it."""
    each = f"for d in {' '.join(addresses)}; do"
    seen = {f.address: f for f in host.functions}
    ports = list(dict.fromkeys(seen[a].bridge for a in addresses if seen[a].bridge))
    if how == "flr":
        plain = [a for a in addresses if not seen[a].has_method]
        return [f"{each} echo 1 > {_SYS}/$d/reset; done"] if plain else [f"{each} {_by_method('flr')} done"]
    if how == "rescan":
        again = f"for p in {' '.join(ports)}; do echo 1 > {_SYS}/$p/rescan; done" if ports else _RESCAN
        return [f"{each} echo 1 > {_SYS}/$d/remove; done; {again}"]
    said = []
    for bridge in host.bridges:
        if bridge.address not in ports:
            continue
        if bridge.resets:
            said.append(f"echo 1 > {_SYS}/{bridge.address}/reset_subordinate;")
        elif len(bridge.below) == 1 and "bus" in seen[bridge.below[0]].resets:
            said.append(f"d={bridge.below[0]}; {_by_method('bus')}")
        else:
            said.append(f"setpci -s {bridge.address} BRIDGE_CONTROL=40:40; sleep 0.01;")
            said.append(f"setpci -s {bridge.address} BRIDGE_CONTROL=0:40; sleep 1;")
    return said


_RESCAN = "echo 1 > /sys/bus/pci/rescan"


def _by_method(method: str) -> str:
    path = f"{_SYS}/$d"
    return f"echo {method} > {path}/reset_method; echo 1 > {path}/reset; echo default > {path}/reset_method;"


def by_hand(vmid: int, addresses: Iterable[str], timeout_s: int) -> str:
    """The same for a person at the node's own shell, who sees no plan: function reset, bus reset, off the bus and on.

    By the device's own `bus` method the kernel resets no bus on which anything else stands (drivers/pci/pci.c,
    pci_reset_bus_function): what is not this VM's is not hit.
    """
    each = "for m in flr bus; do echo $m > $d/reset_method && echo 1 > $d/reset; done; echo default > $d/reset_method"
    return (
        f"qm shutdown {vmid} --timeout 180 --forceStop 1 && ! systemctl is-active --quiet {vmid}.scope && "
        f"( cd {_SYS} || exit; set -- {' '.join(addresses)}; for d; do {each}; done; "
        "for d; do echo 1 > $d/remove; done; echo 1 > ../rescan ); "
        f"qm start {vmid} --timeout {timeout_s}"
    )


def _list(addresses: Iterable[str]) -> str:
    return ", ".join(sorted(addresses))


STEPS = (
    Step(
        name="power-cycle-reset-pci",
        scope=Scope.HOST_DEVICE,
        reach=Scope.HOST_DEVICE,
        via=frozenset({Channel.HYPERVISOR, Channel.HOST}),
        kinds=frozenset({GuestKind.VM}),
        plan=_plan,
        params=(
            *CYCLE,
            Param("reset_deadline", 300.0, "how long each kind of reset may take in all", "s", 90, 3600),
        ),
        doc="Stops the VM, resets its GPUs as root on the node (function, bus, remove and rescan), starts it again.",
    ),
)
