# ruff: noqa: E501
"""Messages of one line as data: what each means, the smallest scope that cures it and how that is known; no logic.

Texts: NVIDIA's driver (open-gpu-kernel-modules), nvidia-smi, CUDA, NCCL and the engines, the Linux kernel, systemd and
docker, QEMU's hw/vfio, qemu-server, pve-container, pve-ha-manager, pve-http-server. The first row that fits a line wins.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from recover.model.verdict import Scope


class By(Enum):
    """What a message is about: the same thing said again of the same one is told once."""

    TEXT = auto()
    DEVICE = auto()
    PROCESS = auto()
    GUEST = auto()


@dataclass(frozen=True, slots=True)
class Message:
    """Fits a line with one of `needles` if `pattern` is found there; `alone`: also a line that is nothing but a needle.

    `unless`: words in it, or in the line after it, that say otherwise.
    """

    signal: str
    cure: Scope | None
    by: By
    needles: tuple[str, ...]
    pattern: re.Pattern[str] | None
    says: str
    fact: str
    note: bool = False
    unless: re.Pattern[str] | None = None
    alone: bool = False


def _m(
    signal: str, cure: Scope | None, by: By, needles: tuple[str, ...] | str, pattern: str, says: str, fact: str,
    *, note: bool = False, unless: str = "", alone: bool = False,
) -> Message:  # fmt: skip
    return Message(
        signal,
        cure,
        by,
        (needles,) if isinstance(needles, str) else needles,
        re.compile(pattern) if pattern else None,
        says,
        fact,
        note,
        re.compile(unless) if unless else None,
        alone,
    )


_PROCESS, _GPU, _GUEST, _VM, _DEVICE = Scope.PROCESS, Scope.GPU, Scope.GUEST, Scope.VM, Scope.HOST_DEVICE
_QEMU_SERVER = "qemu-server, QemuServer.pm"
_PCI_PM = "qemu-server, PCI.pm"

# fmt: off
MESSAGES: tuple[Message, ...] = (
    # ------------------------------------------------------------------------------- the GPU and its bus
    _m("gpu-lost", _VM, By.DEVICE, "Unable to determine the device handle", r"Unable to determine the device handle for (?:GPU|gpu)?",
       "nvidia-smi cannot reach this GPU: it is lost",
       "a lost GPU answers no reset from inside the guest; stopping and starting the VM resets it on the host (NVSentinel issue 1494)", alone=True),
    _m("gpu-lost", _VM, By.DEVICE, ("has fallen off the bus", "fallen off the bus and is not responding"), r"(?:GPU|NVRM|NVIDIA).*fallen off the bus",
       "a GPU has fallen off its bus",
       "it no longer answers on PCIe: no reset from inside reaches it (Xid 79 of NVIDIA's catalogue; open-gpu-kernel-modules issue 1151)"),
    _m("gpu-lost", _VM, By.DEVICE, ("GPU lost from the bus", "NV_ERR_GPU_IS_LOST", "CUDA_ERROR_DEVICE_LOST"), "",
       "a GPU does not answer on its bus any more",
       "NV_ERR_GPU_IS_LOST of the driver: no reset from inside reaches it"),
    _m("gpu-lost", _VM, By.DEVICE, ("GPU is lost", "gpu is lost"), "",
       "the driver has lost this GPU",
       "NVML error 15: only the host's reset of the device, at VM stop and start, brings it back"),
    _m("reset-required", _GPU, By.DEVICE, ("GPU requires reset", "GPU Requires Reset", "gpu requires reset", "NV_ERR_RESET_REQUIRED"), "",
       "the driver wants this GPU reset before it is used again",
       "NVML error 16, reset required (open-gpu-kernel-modules issue 847)"),
    _m("reset-required", _GPU, By.DEVICE, "The GPU likely needs to be reset", "",
       "the GPU's firmware does not answer, and the driver says that it likely needs a reset",
       "open-gpu-kernel-modules kernel_gsp.c prints this after repeated RPC time-outs"),
    _m("reset-required", _GPU, By.DEVICE, ("RC watchdog: GPU is probably locked", "RC watchdog: GPU is possibly locked"), r"GPU is probably locked",
       "the driver's watchdog finds the GPU locked",
       "open-gpu-kernel-modules, RC watchdog: the GPU made no progress for its whole time-out"),
    _m("reset-required", _GPU, By.DEVICE, "NV_ERR_GPU_IN_FULLCHIP_RESET", "",
       "the GPU stands in an unfinished reset",
       "if its reset hangs on the same lock, the VM's stop and start is next (open-gpu-kernel-modules issue 1134)"),
    _m("reset-required", _GPU, By.TEXT, ("busy or unavailable", "cudaErrorDevicesUnavailable", "CUDA_ERROR_DEVICE_UNAVAILABLE"), r"CUDA.*busy or unavailable|cudaErrorDevicesUnavailable|CUDA_ERROR_DEVICE_UNAVAILABLE",
       "CUDA gets no context: the GPU waits for a reset, or MPS or exclusive mode keeps others out",
       "new contexts on a GPU that is marked for reset fail so (sichek pull request 121)", alone=True),
    _m("reset-required", _GPU, By.TEXT, ("uncorrectable ECC error encountered", "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable"), "",
       "CUDA met an uncorrectable memory error",
       "NVIDIA's catalogue, Xid 48: reset the GPU before it is used again"),
    _m("reset-required", _GPU, By.DEVICE, "Received signal from GSP that PMU has halted", "",
       "the GPU's power controller has halted",
       "NVIDIA's catalogue, Xid 62: reset the GPU"),
    _m("gpu-init-failed", _VM, By.DEVICE, ("RmInitAdapter failed", "rm_init_adapter failed"), "",
       "the driver cannot bring this GPU up",
       "a GPU that fails its initialisation needs the reset of the device itself (open-gpu-kernel-modules issue 1353)"),
    _m("gpu-missing", None, By.TEXT, "This PCI I/O region assigned to your NVIDIA device is invalid", "",
       "the GPU's memory window was not mapped: the platform or the VM's configuration is wrong",
       "no restart cures it: firmware, MMIO window or an unsupported board (Proxmox forum thread 179366)"),
    _m("gpu-init-failed", _VM, By.DEVICE, ("None of the NVIDIA devices were initialized", "None of the NVIDIA graphics adapters were initialized"), "",
       "the driver could bring up no GPU at all",
       "open-gpu-kernel-modules nv.c: the probe of every device failed"),
    _m("gpu-init-failed", _VM, By.DEVICE, "nvidia: probe of ", r"nvidia: probe of \S+ failed with error",
       "the driver's probe of this GPU failed",
       "open-gpu-kernel-modules nv-pci.c: the lines before say why", alone=True),
    _m("gpu-fails", _VM, By.TEXT, ("Error while waiting for GPU progress", "Failed to query display engine channel state", "Lost display notification"), r"nvidia-modeset",
       "nvidia-modeset waits for a GPU that makes no progress; unloading the driver would hang too",
       "the display driver's wait has no end (open-gpu-kernel-modules pull request 1252): do not unload, restart the VM"),
    _m("gpu-fails", _VM, By.DEVICE, "PCIe Bus Error", r"(?:nvidia|vfio-pci) \S+ PCIe Bus Error: severity=(?:Uncorrect\w+ \(Fatal\)|Fatal)",
       "the GPU's PCIe link reported a fatal error",
       "Linux AER: a fatal error leaves the link unreliable until it is reset"),
    _m("device-in-use", _PROCESS, By.DEVICE, "Attempting to remove device", r"Attempting to remove device .*non-zero usage count",
       "a GPU was to be removed while it is in use: that waits until the last holder is gone",
       "open-gpu-kernel-modules nv-pci.c loops until the last file is closed; end the holders, do not force it", alone=True),
    _m("nvml-hang", _VM, By.TEXT, "nvidia_dev_put_uuid", r"WARNING: .*nvidia_dev_put_uuid",
       "the driver lost count of a GPU's users: every later question to it hangs",
       "the GPU's lock is orphaned (open-gpu-kernel-modules issue 1333)"),
    _m("recovery-action", _GUEST, By.TEXT, "uvm encountered global fatal error", "",
       "nvidia_uvm met a fatal error and asks for a reboot of this machine",
       "open-gpu-kernel-modules uvm_global.c: requiring os reboot to recover"),
    # ------------------------------------------------------------------------------- reset inside the guest
    _m("reset-unsupported", _VM, By.DEVICE, "Resetting GPU", r"Resetting GPU .*is not supported",
       "this GPU can't be reset from here: in a guest the hypervisor does not allow it",
       "NVIDIA's MIG guide: restart the virtual machine instead", alone=True),
    _m("reset-refused", _GPU, By.DEVICE, "In use by another client", "",
       "the GPU was not reset: something holds it, be it a daemon, persistence mode or nvidia_drm",
       "persistence off for this GPU, then reset, then on again (NVSentinel issue 1690); monitors and nvidia_drm hold it too"),
    _m("reset-refused", _GPU, By.DEVICE, ("is currently in use by another process", "is currently being used by one or more other processes"), "",
       "the GPU was not reset: something uses it",
       "end or stop what holds it, then reset (gpu-operator issue 118)"),
    _m("reset-refused", _GPU, By.DEVICE, "could not be reset", r"GPUs? .*could not be reset",
       "the GPU was not reset",
       "a holder, persistence mode or a missing NVLink peer (nvidia-smi manual)", alone=True),
    # ------------------------------------------------------------------------------- the driver as a whole
    _m("container-lost-gpus", _PROCESS, By.TEXT, "Failed to initialize NVML: Unknown Error", "",
       "NVML says unknown error: a container has lost its device permissions, if the host's own nvidia-smi is well",
       "after systemctl daemon-reload only the container's restart helps (nvidia-container-toolkit issue 48)"),
    _m("driver-mismatch", None, By.TEXT, ("river/library version mismatch", "RIVER/LIBRARY VERSION MISMATCH"), r"(?i)driver/library version mismatch",
       "the NVIDIA library and the loaded module differ in version: nothing is stuck",
       "an upgrade came in while the driver was loaded; running jobs still work (rocker-org/ml issue 28)"),
    _m("driver-mismatch", None, By.TEXT, "API mismatch", r"NVRM: API mismatch",
       "a client and the kernel module differ in version: nothing is stuck",
       "same version in the container or after the next reboot (nvidia-docker issue 365)"),
    _m("driver-not-loaded", _GUEST, By.TEXT, ("couldn't communicate with the NVIDIA driver", "couldn’t communicate with the NVIDIA driver", "nvml error: driver not loaded", "Failed to initialize NVML: Driver Not Loaded"), "",
       "the NVIDIA driver is not loaded",
       "after a VM's start it may still come; else the module is missing for this kernel"),
    _m("gpu-missing", _VM, By.TEXT, ("No devices were found", "no CUDA-capable device is detected", "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice"), "",
       "the driver shows no GPU at all",
       "nvidia-smi exit 6; without root in a container it says the same (lxd issue 4534)"),
    _m("driver-fails", _GUEST, By.TEXT, "CUDA unknown error", r"CUDA initialization: CUDA unknown error",
       "CUDA cannot be initialised on this machine",
       "CUDA error 999: the driver's modules are in a bad state, often after a suspend"),
    _m("fabric-not-ready", None, By.TEXT, ("system not yet initialized", "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady"), "",
       "the NVLink fabric is not ready yet: wait, up to 10 minutes after a start; then look at the fabric manager",
       "CUDA error 802: 120 s were too short, 600 s were enough (nvrc issue 159)"),
    # ------------------------------------------------------------------------------- processes the kernel keeps
    _m("unkillable-process", _GUEST, By.PROCESS, "Processes still around after", r"Processes still around after (?:final )?SIGKILL",
       "processes survived SIGKILL: the kernel keeps them",
       "systemd gave up on the unit; only a new kernel ends such tasks (ollama issue 3489)"),
    _m("unkillable-process", _GUEST, By.PROCESS, ("is zombie and can not be killed", "did not receive an exit event"), "",
       "docker cannot end the container: the kernel keeps one of its processes",
       "killing it again does nothing; its machine must be restarted (vllm issue 25127)"),
    _m("unkillable-process", _GUEST, By.PROCESS, "DUE TO JOB NOT ENDING WITH SIGNALS", "",
       "Slurm could not end a job: the kernel keeps one of its processes",
       "slurmd's step daemon gave up after UnkillableStepTimeout"),
    # ------------------------------------------------------------------------------- memory
    _m("dead-group", _PROCESS, By.PROCESS, "Killed process ", r"Killed process \d+.{0,20} \((?:sglang::|sgl_diffusion|VLLM::|ray::|trtllm)",
       "the kernel killed a rank of the server for want of memory: what is left of it only holds memory",
       "the launcher waits for its first rank for ever (sglang pull request 20287); less host memory must be asked for"),
    _m("oom-kill", None, By.TEXT, "oom-kill:constraint=", "",
       "the kernel killed a process for want of memory: a limit or a size is for a person to change",
       "a server that lost a rank so waits for ever (sglang pull request 20287): end its other ranks before it is started again"),
    _m("oom-kill", None, By.TEXT, ("Out of memory: Killed process", "emory cgroup out of memory: Killed process", "Out of memory: Kill process"), "",
       "the kernel killed a process for want of memory: a limit or a size is for a person to change",
       "a server that lost a rank so waits for ever (sglang pull request 20287): end its other ranks before it is started again"),
    _m("shm-full", _PROCESS, By.TEXT, "No space left on device (28)", "",
       "/dev/shm is full: what dead servers left there must go",
       "NCCL and the engines put their buffers there; leftovers survive a crash (sglang issue 40723, llm-d issue 352)", unless=r"\brsync\b"),
    _m("shm-full", _PROCESS, By.TEXT, "Fatal Python error: Bus error", "",
       "a process died touching shared memory that could not be had: /dev/shm is full",
       "a full tmpfs gives SIGBUS at the first touch (sglang issue 40723)"),
    _m("shm-full", _PROCESS, By.TEXT, "/dev/shm", r"\s100% /dev/shm$",
       "/dev/shm is full",
       "leftovers of dead servers stay there until somebody unlinks them (sglang issue 40723)"),
    # ------------------------------------------------------------------------------- engines, CUDA and NCCL
    _m("hung-group", _PROCESS, By.TEXT, ("atchdog caught collective operation timeout", "cheduler watchdog timeout"), "",
       "a rank waits for the others in vain: the server hangs",
       "the engine's own watchdog fired; all ranks must go together"),
    _m("dead-group", _PROCESS, By.TEXT, ("EngineDeadError", "Engine core proc ", "Worker proc "), r"EngineDeadError|Engine core proc \S+ died|Worker proc \S+ died",
       "a part of the server died: what is left only holds memory",
       "vllm: the engine does not come back by itself"),
    _m("dead-group", _PROCESS, By.TEXT, "scheduler died", r"Rank \d+ scheduler died",
       "a rank of the server died: what is left only holds memory",
       "sglang: exit code -9 is commonly the kernel's OOM killer"),
    _m("fabric-not-ready", _GPU, By.TEXT, "nvls.cc", r"NCCL WARN Cuda failure",
       "NVLink SHARP can't be set up: the fabric manager was restarted without a reset of the GPUs",
       "reset all GPUs between the fabric manager's stop and start (nccl issue 1488)"),
    _m("reset-required", _GPU, By.TEXT, ("uncorrectable NVLink error detected", "cudaErrorNvlinkUncorrectable"), "",
       "CUDA met an uncorrectable NVLink error",
       "NVIDIA's catalogue, Xid 74: a reset of the GPU clears it"),
    _m("program-fault", _PROCESS, By.TEXT, ("an illegal memory access was encountered", "unspecified launch failure", "device-side assert triggered", "an illegal instruction was encountered", "misaligned address", "the launch timed out and was terminated"), r"CUDA|cuda",
       "a CUDA program failed and its context is dead: only its own end frees what it holds",
       "CUDA: after such an error no call of the process works any more"),
    # ------------------------------------------------------------------------------- the host's device
    _m("reset-gave-up", None, By.DEVICE, ("; giving up",), r"not ready \d+ms after [^;]*; giving up",
       "the device did not come back from its reset: no step from here helps, cut its power",
       "Linux drivers/pci/pci.c gives up after 65 s (legacy-rocm-build issue 3414)", alone=True),
    _m("reset-waiting", None, By.DEVICE, ("ms after FLR; waiting", "ms after bus reset; waiting", "ms after resume; waiting"), r"ms after [^;]*; waiting",
       "the device has not come back from its reset yet: wait up to 70 s, start nothing meanwhile",
       "Linux drivers/pci/pci.c: waiting means still trying, giving up is the end"),
    _m("stuck-d3", None, By.DEVICE, "stuck in D3", r"vfio.*stuck in D3|Unable to power on device, stuck in D3",
       "the device does not wake up from its sleep state: the host's power is next",
       "try vfio_pci disable_idle_d3=1 on the host afterwards (vm-curator issue 60)"),
    _m("stuck-d3", None, By.DEVICE, "Unable to change power state from D3", "",
       "the device does not wake up from its sleep state: power cycle the host, cold",
       "inaccessible in D3cold: a warm reboot did not bring such cards back (kata-containers issue 11708)"),
    _m("device-dead", None, By.DEVICE, "pci_irq_handler: Assertion", "",
       "QEMU aborted over a device that does not answer",
       "seen with devices in D3cold (kata-containers issue 11708)"),
    _m("vm-internal-error", _VM, By.TEXT, ("Unrecoverable error detected. Please collect any data possible", "kvm run failed Bad address"), "",
       "QEMU stopped the guest over an error of the device",
       "QEMU hw/vfio/pci.c: the guest must be stopped and started"),
    _m("vm-internal-error", _VM, By.TEXT, "internal-error", r"\bqmpstatus\"?\s*:\s*\"?internal-error",
       "QEMU stopped the guest with an internal error",
       "QEMU run state internal-error: only stop and start lead out of it"),
    _m("vm-io-error", None, By.TEXT, "io-error", r"\bqmpstatus\"?\s*:\s*\"?io-error",
       "QEMU stopped the guest: a disk of it can't be written, its storage may be full",
       "QEMU run state io-error: make room first"),
    _m("transaction-pending", None, By.DEVICE, "timed out waiting for pending transaction", "",
       "the device was reset under traffic", "Linux drivers/pci/pci.c: the reset goes on", note=True),
    # ------------------------------------------------------------------------------- start of a VM with devices
    _m("reset-failed-warn", _DEVICE, By.DEVICE, ("failed to reset PCI device", "can't reset PCI device"), "",
       "the node could not reset the device before the start and went on; if the GPU is not well now, the host must reset it",
       f"{_PCI_PM}: only a warning since 8.2.6, the task still ends OK"),
    _m("reset-failed-warn", _DEVICE, By.DEVICE, "error writing '1' to '/sys/bus/pci/devices/", "",
       "the node could not reset the device before the start and went on; if the GPU is not well now, the host must reset it",
       "pve-common, SysFSTools.pm: only a warning, the task still ends OK"),
    _m("in-use-by-vmid", None, By.DEVICE, "already in use by VMID", "",
       "another guest has the device", f"{_PCI_PM}: a reservation of a running guest; it is not ours to stop"),
    _m("reserved-by-vmid", None, By.DEVICE, "is currently reserved for use by VMID", "",
       "another guest is starting with this device: wait and look again", f"{_PCI_PM}: reservations end with the start"),
    _m("leftover-reservation", None, By.DEVICE, "leftover PCI reservation found", "",
       "a stale reservation was taken over", f"{_PCI_PM}: the start goes on", note=True),
    _m("no-iommu", None, By.TEXT, "IOMMU not present", "",
       "the node has no IOMMU turned on: its firmware or kernel command line is for a person", f"{_PCI_PM}"),
    _m("bind-failed", None, By.DEVICE, ("can't unbind/bind PCI group to VFIO",), "",
       "the device could not be handed to vfio", f"{_PCI_PM}: another driver of the node holds it"),
    _m("no-such-device", None, By.DEVICE, ("no pci device info for device", "no PCI device found for"), "",
       "the device is not on the node's bus any more: reboot the node, or cut its power",
       f"{_PCI_PM}: the function vanished from sysfs (i915-sriov-dkms issue 342)"),
    _m("mapping-invalid", None, By.TEXT, ("PCI device mapping invalid", "PCI device mapping not found"), "",
       "the hardware is not what the PCI mapping says", "pve-guest-common, Mapping/PCI.pm: id, group or address changed"),
    _m("no-free-device", None, By.TEXT, "could not find a free device for", "",
       "no device of the PCI mapping is free", f"{_PCI_PM}"),
    _m("no-host-memory", None, By.TEXT, "hugepage allocation failed", "",
       "the node has not enough free huge pages: they may come back after QEMU's end, wait and look again",
       "pages can return late, or another process has them open (spdk issue 162)"),
    _m("no-host-memory", None, By.TEXT, "Cannot allocate memory", r"kvm.*Cannot allocate memory|unable to map backing store",
       "the node has not enough free memory for the guest", "QEMU: the guest's memory could not be had"),
    _m("group-not-viable", None, By.TEXT, ("is not viable",), r"\bgroup \d+ is not viable",
       "not every device of the IOMMU group is bound to vfio", "QEMU hw/vfio: hand the whole group over, or none of it", alone=True),
    _m("group-not-viable", None, By.TEXT, ("Verify all devices in group", "devices within the iommu_group are bound"), "",
       "not every device of the IOMMU group is bound to vfio", "QEMU hw/vfio: hand the whole group over, or none of it"),
    _m("device-busy", None, By.TEXT, "/dev/vfio/", r"/dev/vfio/\d+: Device or resource busy",
       "something on the node still holds the device", "QEMU hw/vfio: an earlier QEMU or another guest"),
    _m("device-busy", None, By.TEXT, "error getting device from group", r"error getting device from group \d+",
       "the device could not be had from its group", "seen with a mediated device that two guests name (proxmox-vgpu-installer issue 17)"),
    _m("unbind-blocked", None, By.TEXT, "No device request channel registered", "",
       "the device cannot be unbound while it is held", "Linux drivers/vfio: it waits for the user to let go"),
    _m("dma-map-noise", None, By.TEXT, ("VFIO_MAP_DMA failed: Invalid argument",), "",
       "harmless: seen on guests that start fine", "terraform-provider-proxmox issue 1353", note=True),
    _m("leftover-qemu", None, By.GUEST, "timeout waiting on systemd", r"timeout waiting on systemd\s*$|TASK ERROR",
       "an earlier QEMU of this guest has not ended, so it can't be started: the node itself needs a look",
       f"{_QEMU_SERVER}: the guest's scope still has a process, mostly one that the kernel keeps"),
    _m("start-timeout", None, By.GUEST, "got timeout", r"start failed: .*got timeout",
       "QEMU took longer than the start's time-out: give it more, by the guest's memory",
       "qemu-server, Helpers.pm: seconds = GiB of RAM x 4 with passed-through devices"),
    _m("start-failed", None, By.GUEST, "QEMU exited with code", r"QEMU exited with code \d+",
       "QEMU ended at once; the lines before say why", f"{_QEMU_SERVER}", alone=True),
    # ------------------------------------------------------------------------------- stop of a guest, HA, locks
    _m("qemu-killed", None, By.GUEST, "VM still running - terminating now with SIGKILL", "",
       "QEMU had to be killed: see whether the node got its memory back before the next start",
       f"{_QEMU_SERVER}: the task ends OK even if the kernel keeps the process"),
    _m("qemu-slow", None, By.GUEST, "terminating now with SIGTERM", r"VM .*terminating now with SIGTERM",
       "QEMU did not quit when asked", f"{_QEMU_SERVER}: SIGKILL follows after 10 s", note=True),
    _m("shutdown-timeout", _VM, By.GUEST, "VM quit/powerdown failed", "",
       "the guest did not power off in time: stop it by force, then start it", f"{_QEMU_SERVER}: a shutdown never forces by itself"),
    _m("container-stuck", None, By.GUEST, "container did not stop", "",
       "the container's processes do not end: the node's kernel keeps them, and only the node's restart frees them",
       "an LXC container shares the node's kernel (incus issue 2208)"),
    _m("ha-error", None, By.GUEST, ("in error state, must be disabled and fixed first", "is in an error state and needs manual intervention"), "",
       "HA has given up on the guest: disable it, mend the cause, then ask for started",
       "pve-ha-manager: the error state is left by a person only"),
    _m("ha-error", None, By.GUEST, ("(", '"managed"'), r"^service (?:vm|ct):\d+ \([\w.-]+, error\)|\"managed\"\s*:\s*\"?1\b.{0,80}\"state\"\s*:\s*\"error\"|\"state\"\s*:\s*\"error\".{0,80}\"managed\"\s*:\s*\"?1\b",
       "HA has given up on the guest: disable it, mend the cause, then ask for started",
       "pve-ha-manager: the error state is left by a person only"),
    _m("ha-failed", None, By.GUEST, ("unable to start service ", "unable to stop service "), r"unable to (?:start|stop) service '?(?:vm|ct):\d+",
       "HA could not do what it was asked for", "pve-ha-manager, LRM.pm"),
    _m("ha-queued", None, By.GUEST, "Requesting HA ", r"Requesting HA (?:stop|start)|^Requesting HA ",
       "HA was asked; nothing has happened yet: look at the guest's own state", "pve-ha-manager: OK means queued", note=True),
    _m("flock-timeout", None, By.GUEST, "can't lock file", "",
       "another task of this guest was at work: wait for it, never delete the lock file",
       "pve-common: the lock belongs to the running task (terraform-provider-proxmox issue 995)"),
    _m("flock-wait", None, By.GUEST, "trying to acquire lock", "",
       "the task waits for another task of this guest", "pve-common: up to 10 s, then it gives up", unless=r"lock\.{3}\s*OK\b"),
    _m("locked", None, By.GUEST, "is locked (", r"\b(?:VM|CT)(?: \d+)? is locked \(",
       "somebody else works on the guest: wait for that, unlock only if no task runs",
       "pve-guest-common: a backup, snapshot, migration or clone set it"),
    _m("no-quorum", None, By.TEXT, ("no quorum", "Quorate:"), r"cluster not ready - no quorum|no quorum\?|^Quorate:\s+No$",
       "the cluster has no quorum: nothing can be started", "pve-cluster: the configuration is read-only meanwhile"),
    _m("already-running", None, By.GUEST, "already running", r"\b(?:VM|CT) \d+ already running",
       "the guest runs already", f"{_QEMU_SERVER}", note=True, alone=True),
    _m("not-running", None, By.GUEST, "not running", r"\b(?:VM|CT) \d+ (?:is )?not running",
       "the guest does not run", f"{_QEMU_SERVER}", note=True, alone=True),
    _m("warnings", None, By.TEXT, "WARNINGS: ", r"TASK WARNINGS: ?|\"WARNINGS: \d+\"",
       "the task ended well, with warnings that its log shows", "pve-common, UPID.pm: counts as success", note=True),
    _m("worker-died", None, By.TEXT, "unexpected status", r"TASK ERROR: unexpected status|exitstatus\"?\s*:\s*\"?unexpected status",
       "the task's process died: what it did is not known, look at the guest itself", "pve-common, UPID.pm: killed, or the node went down", alone=True),
    # ------------------------------------------------------------------------------- the API
    _m("agent-silent", None, By.TEXT, ("QEMU guest agent is not running", "No QEMU guest agent configured"), "",
       "the guest agent does not answer: ask through SSH", "qemu-server, Agent.pm", note=True),
    _m("not-ha", None, By.TEXT, "no such resource", r"no such resource '?(?:vm|ct):\d+",
       "the guest is not managed by HA, which is fine", "pve-ha-manager answers 500 for that", note=True, alone=True),
    _m("denied", None, By.TEXT, ("ermission check failed",), r"[Pp]ermission check failed",
       "a privilege is missing: the line names it", "pve-access-control: HTTP 403"),
    _m("not-authenticated", None, By.TEXT, ("invalid PVE ticket", "invalid csrf token", "No ticket", "uthentication failure", "Authentication failed!", " 401"),
       r"permission denied - invalid (?:PVE ticket|csrf token)|^(?:HTTP/[\d.]+ )?401(?: |$)|\b401 (?:No ticket|Unauthorized|permission denied|[Aa]uthentication fail)|\bHTTP/[\d.]+ 401\b|(?:HTTP|status(?: code)?)[ :=]+401\b",
       "Proxmox does not know these credentials", "pve-http-server: HTTP 401, after 3 s"),
    _m("api-proxy-error", None, By.TEXT, ("595", "596", "597", "598", "599"),
       r"(?:HTTP(?:/[\d.]+)?|ERROR|[Ee]rror|[Ss]tatus(?: code)?)[ :=]+59[5-9]\b|\b595 (?:No route|Connection (?:refused|timed out))|\b596 (?:Connection timed out|Broken pipe)|\b599 (?:[Tt]oo many redir)",
       "Proxmox could not pass the question on in time: ask again; after an order look for its task, never repeat it blindly",
       "pve-http-server 595 to 599; the start of a big guest goes on meanwhile (terraform-provider-proxmox issue 1353)"),
)
# fmt: on
