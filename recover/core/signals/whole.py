"""The driver as a whole: hung, not loaded, refused, of another version than its library, or out of a container's reach.

What an installation lacks no restart brings: where the kernel said why the module did not come up, a person is told.
"""

from __future__ import annotations

import re

from recover.core.look import BOOT_S, Gap, Look, Signs, watch
from recover.core.news import of_kind
from recover.core.read.kernel_log import Event, events, last_load
from recover.core.signals.driver import lockups
from recover.model.gpu import Condition, Driver
from recover.model.reading import Known
from recover.model.verdict import Finding, Scope

_DENIED = 4
_NOT_LOADED = 9
_NO_LIBRARY = 12
_MISMATCH = 18
_UNKNOWN = 999

# Why the module did not come up, where that stays so with the next boot: nv.c of open-gpu-kernel-modules, and
# kernel/module (signing.c, version.c). "module verification failed … tainting kernel" is none: that one is loaded.
_UNFIT = re.compile(
    r"requires use of the NVIDIA open kernel modules|installed in this system is not supported by the"
    r"|This PCI I/O region assigned to your NVIDIA device is invalid"
    r"|NVIDIA probe routine was not called for|Loading of .*module.* is rejected"
    r"|^nvidia\w*: (?:version magic|disagrees about version of symbol)"
)


def driver_state(look: Look) -> Signs:
    """The driver as a whole: hung, not loaded, another version than its library, or not to be asked."""
    guest = look.guest
    if guest is None:
        return
    driver = look.driver
    if driver is None:
        yield Gap("the driver's state is not known")
    elif driver.condition is Condition.HANGS:
        says = f"the NVIDIA driver does not answer, while the guest does ({driver.detail or 'nvmlInit'})"
        finding = Finding("nvml-hang", says, Scope.VM, None, lockups(look))
        yield finding if look.uptime_s >= BOOT_S or look.faults else watch("hang:driver", 0, 1, BOOT_S, finding)
    elif driver.condition is Condition.FAILS:
        yield from _failed(look, driver)
    elif driver.condition is not Condition.ANSWERS:
        yield Gap(f"the driver was not asked: {driver.detail or driver.condition}")


def _failed(look: Look, driver: Driver) -> Signs:
    guest = look.guest
    code, said = driver.nvml_code, driver.detail
    container = guest is not None and guest.identity.container
    if code == _MISMATCH or "mismatch" in said.lower():
        says = (
            "the NVIDIA library and the loaded module differ in version: nothing is stuck, a reboot loads the new one"
        )
        yield Finding("driver-mismatch", says, None, None, (said,))
    elif code == _NO_LIBRARY:
        yield Finding("driver-missing", "the NVIDIA library is not installed in the guest", None, None, (said,))
    elif code == _DENIED:
        yield Gap(f"the driver may not be asked: {said}")
    elif container and (code == _UNKNOWN or "Unknown Error" in said):
        yield watch("driver:container", 0, 1, look.ripens(), _forbidden_devices(look, said))
    elif container and (code == _NOT_LOADED or "communicate with the NVIDIA driver" in said):
        yield watch("driver:container", 0, 1, look.ripens(), _absent_devices(look, said))
    elif code == _NOT_LOADED or "communicate with the NVIDIA driver" in said:
        yield watch("driver:not-loaded", 0, 1, look.ripens(), _not_loaded(look, said))
    else:
        finding = Finding("driver-fails", f"the NVIDIA driver fails: {said or code}", Scope.DRIVER, None, (said,))
        yield watch("driver:fails", 0, 1, look.ripens(), finding)


def _not_loaded(look: Look, said: str) -> Finding:
    told = events(look.kernel)
    loaded = last_load(told)
    says, why = "the NVIDIA driver is not loaded in the guest", unfit(look, loaded)
    if why:
        return Finding("driver-not-loaded", f"{says}, and its kernel says why: {why[-1][:120]}", None, None, why)
    failed = _not_brought_up(told, loaded)
    if failed:
        says = "the NVIDIA driver is not loaded in the guest: it found its GPUs and could not bring them up"
        return Finding("driver-not-loaded", says, Scope.VM, None, failed)
    changed = "" if loaded else _other_kernel(look)
    if changed:  # nvidia-docker issue 365: `modprobe: FATAL: Module nvidia not found`, built for the old kernel only
        hint = "is its module built for this kernel? (dkms status)"
        return Finding("driver-not-loaded", f"{says}, whose kernel changed to {changed}", None, None, (said, hint))
    if look.past.first is not None and look.guest is not None and look.past.first.boot_id != look.guest.mark.boot_id:
        return Finding("driver-not-loaded", f"{says}, not even after its restart", None, None, (said,))
    return Finding("driver-not-loaded", says, Scope.DRIVER, None, (said,))


def _not_brought_up(told: tuple[Event, ...], loaded: int) -> tuple[str, ...]:
    """What the driver said of the GPUs that it refused while it came in: they need the reset of a VM's stop and start.

    As where passthrough works until the guest's first restart: that one brings the same device to the same driver.
    """
    kinds = ("off-bus", "init-failed", "probe-failed")
    return tuple(e.msg for e in of_kind(told, *kinds) if e.usec >= loaded)[-3:]


def unfit(look: Look, since: int = 0) -> tuple[str, ...]:
    """The kernel's words, from this boot's whole log, on why the driver can't take a GPU or can't be loaded."""
    found = (line.text for line in look.kernel if line.usec >= since and _UNFIT.search(line.text))
    return tuple(dict.fromkeys(found))[:3]


def _other_kernel(look: Look) -> str:
    """The kernel that runs, where the baseline saw another one."""
    saved, guest = look.snapshot.baseline, look.guest
    if saved is None or guest is None or not saved.kernel or saved.kernel == guest.identity.kernel:
        return ""
    return guest.identity.kernel


def _forbidden_devices(look: Look, said: str) -> Finding:
    """It lost its device permissions, and the host is well (nvidia-container-toolkit 48): only its restart helps.

    Not where the node's new kernel gave the devices other numbers than the container's configuration allows: its
    restart alone changed nothing then (proxmox-setup-scripts issue 7).
    """
    says = "the container may not open its GPUs any more: NVML says unknown error"
    working = any(name.startswith("nvidia") for p in look.processes for name in p.holds)
    changed = "" if working else _other_kernel(look)  # who has one open since before shows that the numbers fit
    if not changed:
        return Finding("container-lost-gpus", says, Scope.PROCESS, None, (said,))
    hint = "compare lxc.cgroup2.devices.allow with the node's /proc/devices, then restart the container"
    return Finding("container-lost-gpus", f"{says}; the node's kernel changed to {changed}", None, None, (said, hint))


def _absent_devices(look: Look, said: str) -> Finding:
    """The driver is the node's: a restart brings its device files in only where the node itself has them by now."""
    host = look.snapshot.host
    if isinstance(host, Known) and host.value.gpus:
        says = f"the container has no device files of the NVIDIA driver, which is loaded on {host.value.node}"
        return Finding("container-lost-gpus", says, Scope.PROCESS, None, (said,))
    says = "the container does not reach its node's NVIDIA driver: not loaded there, or no device files for it"
    hint = "on the node: nvidia-smi, and nvidia-modprobe -u -c 0; then restart the container"
    return Finding("container-lost-gpus", says, None, None, (said, hint))
