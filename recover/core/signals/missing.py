"""A GPU is missing where something says that there should be more: a baseline, the configuration, the bus or Proxmox.

Without such a word fewer GPUs are no fault. The same holds for a link that is narrower than it was.
"""

from __future__ import annotations

from recover.core.look import Gap, Look, Sign, Signs, Watch, on_gpu, watch
from recover.core.news import of_kind
from recover.core.signals.host import cure_of_loss
from recover.core.signals.whole import unfit
from recover.model.gpu import Condition, uuid_of
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope


def missing_gpus(look: Look) -> Signs:
    """Fewer GPUs than the baseline, the configuration or the PCI bus have. Right after a boot they may still come."""
    guest, driver = look.guest, look.driver
    if guest is None:
        return
    if not isinstance(guest.gpus, Known):
        yield Gap("the GPUs are not known")
    if isinstance(guest.gpus, Known) and driver is not None and driver.condition is Condition.ANSWERS:
        told = tuple(_not_shown(look))
        yield from told
        if any(isinstance(sign, Watch) for sign in told):
            return
    yield from _off_the_bus(look)


def _not_shown(look: Look) -> Signs:
    """GPUs that the driver should show and does not."""
    seen = {uuid_of(g) for g in look.gpus} | {g.bus_id for g in look.gpus}
    saved = [] if look.baseline is None else [b for b in look.baseline.gpus if not {b.uuid, b.bus_id} & seen]
    given = passed_through(look)
    if given and given == len(look.gpus):
        yield from _fewer_given(look, given, len(saved))
        return
    for gone in saved:
        says = f"GPU {gone.uuid} ({gone.bus_id}) is missing: the baseline has it"
        yield _missing(look, gone.uuid, says, len(saved), gone.bus_id)
    fewer = () if saved else tuple(_fewer(look, seen))
    yield from fewer
    if not saved and not any(isinstance(sign, Watch) for sign in fewer):
        yield from _since_our_try(look, seen)


def _fewer_given(look: Look, given: int, saved: int) -> Signs:
    """All that the VM was given is there: what it once had, or ought to have, no restart of it brings."""
    expected = dict(look.snapshot.target.expect).get("gpus", 0)
    if expected > given:
        says = f"Proxmox passes {given} GPUs through, and the configuration expects {expected}"
        yield Finding("gpu-missing", says, None, None)
    elif saved:
        yield Gap(f"Proxmox passes {given} GPUs through, and the baseline has {saved} other ones", matters=False)


def _since_our_try(look: Look, seen: set[str]) -> Signs:
    """Where nothing else says how many there should be, what we did may have cost one: it was there when we came."""
    gone = [(uuid, bus_id) for uuid, bus_id in look.past.gpus if not {uuid, bus_id} & seen] if look.past.tries else []
    for uuid, bus_id in gone:
        says = f"GPU {uuid} ({bus_id}) is missing: it was there when this run began"
        yield _missing(look, uuid, says, len(gone), bus_id)


def _fewer(look: Look, seen: set[str]) -> Signs:
    guest, expected = look.guest, dict(look.snapshot.target.expect).get("gpus")
    container = guest is not None and guest.identity.container
    bus = guest.pci_gpus.value if guest is not None and isinstance(guest.pci_gpus, Known) and not container else ()
    hidden = [bus_id for bus_id in bus if bus_id not in seen]
    for bus_id in hidden:
        says = f"the GPU at {bus_id} is on the bus, and the driver does not show it"
        yield _missing(look, bus_id, says, len(hidden), bus_id)
    if expected is not None and len(look.gpus) < expected and not set(bus) - seen:
        says = f"{len(look.gpus)} GPUs are there, and the configuration expects {expected}"
        yield _missing(look, None, says, expected - len(look.gpus))
    if not look.gpus and not bus and expected is None and not passed_through(look):
        yield Gap("no GPU was seen, and nothing says that there should be one")


def _off_the_bus(look: Look) -> Signs:
    """GPUs that Proxmox passes through and the guest's bus does not have; the driver need not be there to know."""
    guest, wanted = look.guest, passed_through(look)
    if guest is None or wanted is None or not isinstance(guest.pci_gpus, Known):
        return
    there = len(guest.pci_gpus.value)
    if there < wanted:
        says = f"{there} GPUs are on the guest's bus, and Proxmox passes {wanted} through to it"
        yield _missing(look, None, says, wanted - there)


def passed_through(look: Look) -> int | None:
    """How many GPUs the running VM was given; None where one entry can't be told."""
    seen = look.snapshot.hypervisor
    if not isinstance(seen, Hypervisor) or seen.kind is not GuestKind.VM or not isinstance(seen.config, Known):
        return None
    if "vfio-pci" in seen.config.value.args:
        return None
    counts = [device.gpus for device in seen.config.value.hostpci]
    known = [count.value for count in counts if isinstance(count, Known)]
    return sum(known) if len(known) == len(counts) else None


def _missing(look: Look, where: str | None, says: str, level: int, bus_id: str = "") -> Sign:
    """The guest's bus has it and nothing says that it is sick there: the driver has to look again, no more."""
    broken = tuple(e.msg for e in of_kind(look.events, "io-region-invalid"))[:2]
    lost = {e.bdf for e in of_kind(look.events, "init-failed", "pci-not-ready", "pci-d3cold")}
    lost |= {e.bus_id for e in look.faults if e.code == 79}
    cure = cure_of_loss(look, level)
    bus = look.guest.pci_gpus if look.guest is not None else None
    if cure is Scope.VM and isinstance(bus, Known) and bus_id in bus.value and bus_id not in lost:
        cure, broken = Scope.DRIVER, broken or unfit(look)
    finding = Finding("gpu-missing", says, None if broken else cure, where, broken)
    return watch(f"missing:{where or 'count'}", level, 1, look.ripens(), finding)


def link_width(look: Look) -> Signs:
    """A link that is narrower than it was: only the host can train it anew."""
    saved = {} if look.baseline is None else {b.uuid: b.link_width for b in look.baseline.gpus}
    for gpu in look.gpus:
        before = saved.get(uuid_of(gpu))
        if before is not None and isinstance(gpu.link_width, Known) and 0 < gpu.link_width.value < before:
            says = f"has a PCIe link of x{gpu.link_width.value}, it was x{before}"
            yield on_gpu("link-width", gpu, says, Scope.HOST_DEVICE)
