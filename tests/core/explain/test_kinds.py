# ruff: noqa: E501
"""Kinds of text that machines print, one small one each, and beside each kind the text that looks like it and is well."""

from __future__ import annotations

import pytest

from recover.core.explain import explain
from tests.core.explain.test_forms import found, xid

Right = list[tuple[str, str | None, int]]

RESET = "GPU 00000000:41:00.0 was successfully reset.\nAll done."

KERNEL: dict[str, tuple[str, Right]] = {
    "channels end for an NVLink error": (
        xid(45, "pid=7, name=rank3, Ch 00000002 caused by previous Xid 145"),
        [("xid", "gpu", 1)],
    ),
    "a fatal error of the port above": (
        ("nvidia 0000:21:00.0: AER: can't recover (no error_detected callback)\n"
        "pcieport 0000:20:01.0: AER: Uncorrected (Fatal) error received: 0000:20:01.0\n"
        "nvidia 0000:21:00.0: AER: can't recover (no error_detected callback)"),
        [("gpu-fails", "vm", 3)],
    ),
    "one that is not fatal": (
        ("pcieport 0000:20:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:21:00.0\n"
        "nvidia 0000:21:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)\n"
        "nvidia 0000:21:00.0: AER: can't recover (no error_detected callback)"),
        [],
    ),
    "no answer to AMD's IOMMU": (
        ("AMD-Vi: Completion-Wait loop timed out\n"
        "iommu ivhd2: AMD-Vi: Event logged [IOTLB_INV_TIMEOUT device=0000:61:00.0 address=0x1001]"),
        [("device-dead", None, 2)],
    ),
    "no answer to Intel's": (
        ("DMAR: VT-d detected Invalidation Time-out Error: SID 6100\n"
        "DMAR: VT-d detected Invalidation Time-out Error: SID ffff"),
        [("device-dead", None, 1)],
    ),
    "page faults of both": (
        ("DMAR: [DMA Write NO_PASID] Request device [61:00.0] fault addr 0x9000 [fault reason 0x05] PTE Write access is not set\n"
        "vfio-pci 0000:61:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0001 address=0x9000 flags=0x0000]"),
        [],
    ),
    "a GPU that was reset since": (xid(119, "pid=7, name=rank3, Timeout") + "\n" + RESET, []),
    "a GPU that failed again after its reset": (RESET + "\n" + xid(119, "pid=7, name=rank3, Timeout"), [("xid", "gpu", 3)]),
    "another GPU was reset": (xid(119, "pid=7, name=rank3, Timeout") + "\n" + RESET.replace("41", "42"), [("xid", "gpu", 1)]),
    "a reset that is over": (
        "vfio-pci 0000:61:00.0: not ready 2047ms after bus reset; waiting\nvfio-pci 0000:61:00.0: ready 4095ms after bus reset",
        [],
    ),
    "a reset of which only another is over": (
        "vfio-pci 0000:61:00.0: not ready 2047ms after bus reset; waiting\nvfio-pci 0000:62:00.0: ready 4095ms after bus reset",
        [("reset-waiting", None, 1)],
    ),
    "a card of the network sleeps": (
        ("iwlwifi 0000:72:00.0: Unable to change power state from D3hot to D0, device inaccessible\n"
        "nvme 0000:73:00.0: not ready 65535ms after FLR; giving up\n"
        "xhci_hcd 0000:61:00.2: Unable to change power state from D3cold to D0, device inaccessible\n"
        "igc 0000:74:00.0: Unable to change power state from D3cold to D0, device inaccessible"),
        [("stuck-d3", None, 3)],
    ),
    "the VM of a graphics driver is locked": ("At this point the VM is locked (by its root directory), so wait.", []),
    "an idle helper is no rank": (
        "Memory cgroup out of memory: Killed process 77 (ray::IDLE) total-vm:9kB, anon-rss:3kB",
        [("oom-kill", None, 1)],
    ),
    "lockups of no CPU in particular": (
        "[<time>] watchdog: BUG: soft lockup - CPU#X stuck for Y seconds!\nIf you see BUG: soft lockup, wait.", []
    ),
    "the console sits on the card": (
        "vfio-pci 0000:61:00.0: BAR 1: can't reserve [mem 0xd0000000-0xdfffffff 64bit pref]",
        [("device-busy", None, 1)],
    ),
    "a file server is gone": ("nfs: server store7 not responding, still trying", [("storage-hang", None, 1)]),
    "and came back": ("nfs: server store7 not responding, still trying\nnfs: server store7 OK", []),
    "who waits for it is told instead": (
        ("nfs: server store7 not responding, still trying\nINFO: task python3:77 blocked for more than 120 seconds.\n"
        " __schedule+0x2/0x9\n rpc_wait_bit_killable+0x2/0x9 [sunrpc]"),
        [("storage-hang", None, 2)],
    ),
    "another server's word": (
        ("Lustre: work-OST0001-osc: Connection to work-OST0001 (at 10.0.0.1@tcp) was lost; in progress operations wait\n"
        "Lustre: work-OST0002-osc: Connection restored to 10.0.0.2@tcp"),
        [("storage-hang", None, 1)],
    ),
    "the device plugin": (
        "I0101 10:00:00.1 1 health.go:219] XidCriticalError: Xid=79 on Device=GPU-aa-bb; marking device as unhealthy.",
        [("gpu-lost", "vm", 1)],
    ),
    "the device plugin beside the kernel": (
        "XidCriticalError: Xid=119 on Device=GPU-aa-bb; marking device as unhealthy.\n" + xid(119),
        [("xid", "gpu", 2)],
    ),
    "DCGM's last Xid": (
        'DCGM_FI_DEV_XID_ERRORS{gpu="2",UUID="GPU-aa",pci_bus_id="00000000:41:00.0",device="nvidia2"} 95',
        [("xid", "gpu", 1)],
    ),
    "of a program long gone": (
        ('DCGM_FI_DEV_XID_ERRORS{gpu="2",UUID="GPU-aa",pci_bus_id="00000000:41:00.0"} 31\n'
        'DCGM_FI_DEV_XID_ERRORS{gpu="3",UUID="GPU-ab",pci_bus_id="00000000:51:00.0"} 0'),
        [],
    ),
    "DCGM's remaps": (
        ('DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="1",pci_bus_id="00000000:31:00.0"} 0\n'
        'DCGM_FI_DEV_ROW_REMAP_FAILURE{gpu="2",pci_bus_id="00000000:41:00.0"} 1\n'
        'DCGM_FI_DEV_ROW_REMAP_PENDING{gpu="3",pci_bus_id="00000000:51:00.0"} 2'),
        [("row-remap-failed", None, 2), ("row-remap-pending", "gpu", 3)],
    ),
}  # fmt: skip
SMI: dict[str, tuple[str, Right]] = {
    "a fabric that is being made": (
        "GPU 00000000:19:00.0\n    Fabric\n        State                 : Not Started\n        Status                : N/A",
        [("fabric-not-ready", None, 3)],
    ),
    "made, with an error": (
        "GPU 00000000:19:00.0\n    Fabric\n        State                 : Completed\n        Status                : Unknown Failure",
        [("fabric-broken", "gpu", 4)],
    ),
    "made, and sick since": (
        ("GPU 00000000:19:00.0\n    Fabric\n        State                 : Completed\n        Status                : Success\n"
        "        Health\n            Summary           : Unhealthy\n            Route Unhealthy   : True"),
        [("fabric-broken", "gpu", 6)],
    ),
    "made, or not needed": (
        ("index, pci.bus_id, fabric.state, fabric.status\n0, 00000000:19:00.0, Completed, Success\n1, 00000000:29:00.0, N/A, N/A\n"
        "2, 00000000:39:00.0, Not Supported, Success"),
        [],
    ),
    "repairs of Blackwell": (
        ("GPU 00000000:19:00.0\n    ECC Errors\n        Channel Repair Pending                  : Yes\n        TPC Repair Pending                      : No\n"
        "        Unrepairable Memory                     : No"),
        [("row-remap-pending", "gpu", 3)],
    ),
    "memory beyond repair": (
        ("<gpu id=\"00000000:19:00.0\">\n<ecc_errors>\n<channel_repair_pending>No</channel_repair_pending>\n"
        "<unrepairable_memory>Yes</unrepairable_memory>\n</ecc_errors>"),
        [("row-remap-failed", None, 4)],
    ),
    "nothing but errors": (
        ("|   3  NVIDIA L40S                 On  | 00000000:19:00.0 Off |                 ERR! |\n"
        "| ERR! ERR! ERR!    ERR! / 350W |      1MiB / 46068MiB |    ERR!      Default |"),
        [("gpu-fails", "gpu", 1)],
    ),
    "an error in power": (
        ("|   3  NVIDIA L40S                 On  | 00000000:19:00.0 Off |                    0 |\n"
        "| ERR!  31C   P8    ERR! / 350W |      1MiB / 46068MiB |      0%      Default |"),
        [],
    ),
    "drivers that say MB": (
        ("|   1  Tesla K40c          Off  | 0000:07:00.0     Off |                    0 |\n"
        "| 30%   32C    P0    46W / 235W |     9011MB / 11519MB |      0%      Default |\n"
        "| Compute processes:                                               GPU Memory |\n"
        "|  No running compute processes found                                         |"),
        [("gpu-memory-held", "gpu", 2)],
    ),
    "a desktop, which such do not list": (
        ("|   1  Quadro K4000        Off  | 0000:07:00.0      On |                  N/A |\n"
        "| 30%   32C    P8    16W / 235W |     1211MB /  3071MB |      3%      Default |\n"
        "| Compute processes:                                               GPU Memory |\n"
        "|  No running compute processes found                                         |"),
        [],
    ),
    "a report of dcgmi": (
        ("| Health Monitor Report                              |\n| Overall Health | Failure                           |\n"
        "|                | GPU 5: GPU has fallen off the bus |"),
        [("gpu-lost", "vm", 3)],
    ),
    "the same words in a page's table": ("| Xid 79 | GPU has fallen off the bus | cut its power |", []),
}  # fmt: skip
PROCESSES: dict[str, tuple[str, Right]] = {
    "stat of an orphan": (
        "812 (VLLM::EngineCor) S 1 700 700 0 -1 4194624 9 0 0 0 9 8 0 0 20 0 44 0 12 99 88",
        [("dead-group", "process", 1)],
    ),
    "stat of a rank whose server is pid 1": (
        "812 (VLLM::EngineCor) S 1 1 1 0 -1 4194624 9 0 0 0 9 8 0 0 20 0 44 0 12 99 88",
        [],
    ),
    "stat of a defunct leader": (
        "812 (sglang::schedul) Z 700 700 700 0 -1 4194624 9 0 0 0 9 8 0 0 20 0 3 0 12 0 0",
        [("dead-group", "process", 1)],
    ),
    "stat of any other": ("812 (a) b) D 1 700 700 0 -1 4194624 9 0 0 0 9 8 0 0 20 0 3 0 12 0 0", []),
    "status of a defunct leader": (
        "Name:\tsglang::schedul\nState:\tZ (zombie)\nPid:\t812\nPPid:\t700\nThreads:\t2",
        [("dead-group", "process", 1)],
    ),
    "status of a rank that lives": (
        "Name:\tsglang::schedul\nState:\tS (sleeping)\nPid:\t812\nPPid:\t1\nThreads:\t90\nNSsid:\t1",
        [],
    ),
}
PVE: dict[str, tuple[str, Right]] = {
    "a container that is not killed": (
        "TASK ERROR: command 'lxc-stop -n 301 --kill' failed: exit code 1",
        [("container-stuck", None, 1)],
    ),
    "one that does not shut down": (
        "TASK ERROR: command 'lxc-stop -n 301 --nokill --timeout 90' failed: exit code 1",
        [("shutdown-timeout", "vm", 1)],
    ),
    "a disk that is not there": (
        "TASK ERROR: timeout: no zvol device link for 'vm-301-disk-1' found after 300 sec.",
        [("storage", None, 1)],
    ),
    "a task whose log is empty": (
        '{"data":{"exitstatus":"unable to read tail (got 0 bytes)"}}',
        [("worker-died", None, 1)],
    ),
    "a lock in the status": ('{"data":{"status":"running","lock":"migrate","vmid":301}}', [("locked", None, 1)]),
    "a paused guest": ('{"data":{"status":"running","qmpstatus":"suspended"}}', [("vm-paused", None, 1)]),
    "qm list": (
        "       301 node-301             internal-error 65536             64.00 4711\n       302 node-302             running    65536             64.00 4712",
        [("vm-internal-error", "vm", 1)],
    ),
    "no IOMMU group": (
        "kvm: -device vfio-pci,host=0000:61:00.0: vfio 0000:61:00.0: no iommu_group found: No such file or directory",
        [("no-iommu", None, 1)],
    ),
    "QEMU's hint below an error of a group": (
        "vfio 0000:61:00.0: error getting device from group 9: Input/output error\nVerify all devices in group 9 are bound to vfio-<bus>",
        [("device-busy", None, 1)],
    ),
    "monitors that are late": (
        (
            "pvestatd[99]: VM 301 qmp command failed - unable to connect to VM 301 qmp socket - timeout after 51 retries\n"
            "pvedaemon[98]: VM 301 qmp command 'guest-ping' failed - got timeout"
        ),
        [],
    ),
}

DCGM: dict[str, tuple[str, Right]] = {
    "a diagnostic breaks where its cell is full": (
        (
            "|-----  Deployment  --------+------------------------------------------------|\n"
            "| Error                     | GPU 5 has uncorrectable memory errors and row  |\n"
            "|                           |  remappings are pen                            |\n"
            "|                           | ding                                           |\n"
            "| Warning                   | GPU 6 had uncorrectable memory errors and row  |\n"
            "|                           | remapping failed.                              |"
        ),
        [("row-remap-pending", "gpu", 2), ("row-remap-failed", None, 5)],
    ),
    "a health watch": (
        (
            "| GPU 3              | Driver:  Failure                                      |\n"
            "|                    |   GPU 3 requires a reset to recover from a fault.     |\n"
            "|                    |   Recovery action: 1 (GPU_RESET).                     |"
        ),
        [("reset-required", "gpu", 2)],
    ),
    "one that wants the node": (
        "GPU 3 requires a reboot to recover from a fault. Recovery action: 2 (NODE_REBOOT).",
        [("recovery-action", "guest", 1)],
    ),
    "faults of two GPUs": (
        "Detected XID 95 for GPU 0\nDetected XID 95 for GPU 4\nDetected XID 95 for GPU 4",
        [("xid", "gpu", 1), ("xid", "gpu", 2)],
    ),
    "the same by its address": (xid(95) + "\nDetected XID 95 for GPU 0", [("xid", "gpu", 1)]),
    "a program's": ("Detected XID 31 for GPU 0", []),
    "of a switch": (
        "Detected fatal NvSwitch SXID 24007\nDetected fatal NvSwitch SXID 23001",
        [("sxid", "vm", 1), ("sxid", None, 2)],
    ),
    "what can wait": (
        (
            "| Warning                   | GPU 0 Thermal violations totaling 13.3 second  |\n"
            "|                           | s started at 9.7 seconds into the test         |\n"
            "| Memory                    | Pass - All                                     |"
        ),
        [],
    ),
}


@pytest.mark.parametrize(("text", "right"), [*DCGM.values()], ids=[*DCGM])
def test_dcgm(text: str, right: Right) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("text", "right"), [*KERNEL.values()], ids=[*KERNEL])
def test_kernel(text: str, right: Right) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("text", "right"), [*SMI.values()], ids=[*SMI])
def test_driver_tools(text: str, right: Right) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("text", "right"), [*PROCESSES.values()], ids=[*PROCESSES])
def test_proc_files(text: str, right: Right) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("text", "right"), [*PVE.values()], ids=[*PVE])
def test_proxmox(text: str, right: Right) -> None:
    assert found(text) == right


def test_the_modules_that_are_loaded_are_no_trace() -> None:
    head = "watchdog: BUG: soft lockup - CPU#9 stuck for 26s! [java:99]\n"
    listed = "Modules linked in: veth nvidia_uvm(OE) nvidia_drm(POE) nvidia(POE)\nRIP: 0010:clear_page_erms+0x7/0x10"
    (told,) = explain(head + listed)
    assert "NVIDIA" not in told.says
    (told,) = explain(head + "RIP: 0010:uvm_spin_loop+0x7/0x10 [nvidia_uvm]")
    assert "NVIDIA" in told.says


OOPS = "BUG: unable to handle page fault for address: ffffa0\n#PF: supervisor write access in kernel mode\nOops: 0002 [#1] SMP\nModules linked in: nvidia(POE)\n"


@pytest.mark.parametrize(
    ("frame", "right"),
    [
        ("RIP: 0010:nvidia_dev_get+0x1e/0x40 [nvidia]", [("driver-fails", "guest", 1)]),
        ("RIP: 0010:sysrq_handle_crash+0x16/0x20", []),
    ],
)
def test_an_error_in_the_kernel_is_the_drivers_by_its_frames(frame: str, right: Right) -> None:
    assert found(OOPS + frame) == right
