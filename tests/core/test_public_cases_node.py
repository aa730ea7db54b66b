"""Public reports of nodes, firmware and containers, as the look that their operators would have had.

Beside test_public_cases.py; where nothing from here could cure it, the cure is none, and a person is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recover.model.act import Line
from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.guest import GuestIdentity, Module, Mute
from recover.model.host import Host, HostGpu, PciFunction
from recover.model.hypervisor import AgentState, GuestKind, Hypervisor, NoHypervisor
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from recover.model.verdict import State
from tests.core import builders as b
from tests.core import cases
from tests.core.looks import stuck
from tests.core.test_public_cases import Found, driver, no_word, one_gpu, told
from tests.steps.looks import node, pci, plan, vm


def on_slot(name: str, was: str) -> Any:
    """A published kernel log as if it were of this machine's first GPU."""
    lines = cases.kernel(name).value
    return Known(tuple(replace(line, text=line.text.replace(was, "0000:01:00")) for line in lines))


def first(host: Host, **changes: Any) -> tuple[PciFunction, ...]:
    return (replace(host.functions[0], **changes), *host.functions[1:])


def on_node(functions: tuple[PciFunction, ...], seen: Hypervisor | None = None, **changes: Any) -> Snapshot:
    """The node's root shell is configured, and shows these functions; of a VM that is off no QEMU is left."""
    seen = seen or vm()
    host = node(functions=functions, **({"qemu": (), "holders": ()} if seen.status == "stopped" else {}))
    return b.healthy_snapshot(**{"hypervisor": seen, "host": Known(host), "host_shell": True, **changes})


def off_the_bus(**changes: Any) -> Hypervisor:
    """Proxmox does not find the first device either."""
    return vm({"hostpci": (pci(0, present=Known(False)), *(pci(i) for i in range(1, b.GPUS)))}, **changes)


def lost(words: str, seen: Hypervisor | None = None, **changes: Any) -> Snapshot:
    """The kernel of the node gave the first GPU up with these words."""
    return on_node(first(node(), answers=Known(False), gave_up=words), seen, **changes)


def within(snapshot: Snapshot, **changes: Any) -> Snapshot:
    return replace(snapshot, guest=replace(snapshot.guest, **changes))


def contained(snapshot: Snapshot) -> Snapshot:
    """The same look from inside a container of the node."""
    identity = GuestIdentity("ct", b.BOOT, container=True)
    hypervisor = replace(b.hypervisor(), kind=GuestKind.CONTAINER)
    return replace(within(snapshot, identity=identity), hypervisor=hypervisor)


def upgraded(snapshot: Snapshot) -> Snapshot:
    """The node booted a new kernel since the baseline, and nothing in the container has a GPU open."""
    guest: Any = snapshot.guest
    free = tuple(p for p in guest.processes.value if not p.holds)
    return within(snapshot, identity=replace(guest.identity, kernel="6.14.8-2-pve"), processes=Known(free))


SEVEN: dict[str, Any] = {"gpus": b.gpus(7), "pci_gpus": Known(tuple(b.bus(i) for i in range(7)))}
SILENT = Mute(Failure.CONNECT_TIMEOUT, "no answer")
KEPT = b.process(1675, "", comm="ollama", state="D", sigkill_pending=True, wchan="uvm_va_space_destroy",
                 holds=b.holding(0), cgroup="/system.slice/ollama.service")  # fmt: skip

CASES: dict[str, tuple[Snapshot, Found]] = {
    # ---- servers
    "ollama 3489: systemd gives up on a process that stays after SIGKILL": (
        b.healthy_snapshot(processes=(KEPT,), gpus=(b.gpu(0, used_mib=Known(9000), processes=[1675]), *b.gpus()[1:])),
        [("hung-group", "guest"), ("unkillable-process", "guest")],
    ),
    "sglang 22779: the restarted server answers 200, and its requests stand still": (
        b.serving_snapshot(servers=(b.answer(200, running=4, waiting=9),)),
        [("hung-group", "process")],
    ),
    # ---- driver and firmware
    "dcgm-exporter 84: an exporter was killed, Xid 120 and 119, every tool hangs": (
        b.healthy_snapshot(gpus=(b.gpu(0, condition=Condition.HANGS), *b.gpus()[1:]),
                           kernel=on_slot("dmesg_xid120_119_515.txt", "0000:3b:00")),
        [("nvml-hang", "vm")],
    ),
    "dcgm-exporter 84, earlier: the log speaks, and the GPU still answers": (
        no_word(kernel=on_slot("dmesg_xid120_119_515.txt", "0000:3b:00")), [("xid", "gpu")],
    ),
    "open-gpu-kernel-modules 1134, later: the reset hangs on the same lock": (
        one_gpu(condition=Condition.HANGS, detail="nvidia-smi -r did not return"), [("nvml-hang", "vm")],
    ),
    "open-gpu-kernel-modules PR 1252: the unload of a module never ends on a GPU that is off the bus": (
        within(one_gpu(condition=Condition.LOST),
               modules=Known((Module("nvidia_drm", 1, (), "Unloading"), Module("nvidia", 3)))),
        [("gpu-lost", "vm"), ("unload-stuck", "vm")],
    ),
    "open-gpu-kernel-modules 1111: SSH and the console are dead, and the log says nothing": (
        b.mute_snapshot(SILENT, hypervisor=b.hypervisor(agent=Known(AgentState.SILENT))), [("guest-mute", "vm")],
    ),
    "nccl 1488: the fabric manager was restarted and no GPU was reset in between": (
        b.healthy_snapshot(gpus=b.gpus(fabric=Known("failed (NVML 999: unknown error)"))),
        [("fabric-broken", "gpu")] * 8,
    ),
    "nvrc 159: CUDA answers 802 while the fabric is still made": (
        b.healthy_snapshot(gpus=b.gpus(fabric=Known("in progress"))), [("fabric-not-ready", None)] * 8,
    ),
    # ---- the node
    "shine-cluster 172: all functions read ff, seven GPUs are left": (
        on_node(first(node(), answers=Known(False)), **SEVEN),
        [("pci-device-gone", "host-device"), ("gpu-missing", "host-device")],
    ),
    "CloudRift reports: the card is silent after its function reset": (
        lost("vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up", **SEVEN),
        [("pci-device-dead", None), ("gpu-missing", None)],
    ),
    "docs.herro.me: lspci shows nothing where the GPU was": (
        on_node(node().functions[1:], off_the_bus(), **SEVEN),
        [("pci-device-gone", "host-device"), ("gpu-missing", "host-device")],
    ),
    "docs.herro.me, while it is still listed: it does not leave D3cold": (
        lost("vfio-pci 0000:41:00.0: Unable to change power state from D3cold to D0, device inaccessible"),
        [("pci-device-dead", None)],
    ),
    "vm-curator 60: the device is stuck in D3 when the VM is to start": (
        lost("vfio-pci 0000:41:00.0: vfio: Unable to power on device, stuck in D3", vm(status="stopped"), guest=SILENT),
        [("vm-stopped", None), ("pci-device-dead", None)],
    ),
    "legacy-rocm-build 3414: the VM crashed, and the bus reset gave up": (
        lost("vfio-pci 0000:41:00.0: not ready 65535ms after bus reset; giving up",
             vm(qmpstatus=Known("internal-error")), guest=SILENT),
        [("vm-internal-error", "vm"), ("pci-device-dead", None)],
    ),
    "gpu-passthrough-tutorial 39: not ready after a resume, then RmInitAdapter failed": (
        b.healthy_snapshot(
            gpus=(b.gpu(0, condition=Condition.FAILS, detail="Unknown Error"), *b.gpus()[1:]),
            kernel=on_slot("dmesg_not_ready_after_resume_d3cold.txt", "0000:01:00"),
        ),
        [("gpu-init-failed", "vm")],
    ),
    "zen-kernel 380: a VM that stopped, and a device that no reset brings back since the node's new kernel": (
        lost("vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up", vm(status="stopped"), guest=SILENT),
        [("vm-stopped", None), ("pci-device-dead", None)],
    ),
    "i915-sriov-dkms 342: the function vanished when its VM stopped": (
        on_node(node().functions[1:], off_the_bus(status="stopped"), guest=SILENT),
        [("vm-stopped", None), ("pci-device-gone", "host-device")],
    ),
    # ---- containers
    "proxmox-setup-scripts 7: the devices' major numbers changed, and its control group allows the old ones": (
        upgraded(contained(driver(nvml_code=999, detail="Unknown Error"))), [("container-lost-gpus", None)],
    ),
    "proxmox-setup-scripts 7: the devices were not there yet when the container began": (
        contained(driver(nvml_code=9, detail="Driver Not Loaded")), [("container-lost-gpus", None)],
    ),
    "proxmox-setup-scripts 7: the node's root shell shows that its driver has the devices by now": (
        replace(contained(driver(nvml_code=9, detail="Driver Not Loaded")),
                host=Known(node(functions=(), gpus=(HostGpu(b.bus(0), b.uuid(0), 0),))), host_shell=True),
        [("container-lost-gpus", "process")],
    ),
    "charmed-kubernetes 284: the container's library is of another version than the node's module": (
        contained(driver(nvml_code=18, detail="Driver/library version mismatch")), [("driver-mismatch", None)],
    ),
    "lxd 9755: memory is used, and the driver lists nobody to a container": (
        contained(b.healthy_snapshot(gpus=(b.gpu(0, used_mib=Known(40_000)), *b.gpus()[1:]))), [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_public_case(name: str) -> None:
    snapshot, wanted = CASES[name]
    assert told(stuck(snapshot, 40)) == wanted


def test_open_gpu_kernel_modules_853_a_node_that_froze_is_no_verdict_on_its_guest() -> None:
    """The API and the guest are silent at once: whatever froze, nothing from here may be tried."""
    frozen = b.mute_snapshot(SILENT, hypervisor=NoHypervisor("unreachable", "timed out"))
    diagnosis = stuck(frozen, 40)
    assert (told(diagnosis), diagnosis.state) == ([], State.UNCERTAIN)


@pytest.mark.parametrize(
    "name", [name for name in CASES if name.startswith(("CloudRift", "docs.herro", "legacy-rocm"))]
)
def test_a_vm_is_not_stopped_whose_start_its_device_forbids(name: str) -> None:
    snapshot = CASES[name][0]
    found = stuck(snapshot, 40).findings
    offered = plan("power-cycle-vm", snapshot, *(f for f in found if f.cure is not None))
    assert not isinstance(offered, Line)
