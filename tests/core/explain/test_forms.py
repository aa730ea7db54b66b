# ruff: noqa: E501
"""What is meant is understood, not how one report wrote it: other forms, several kinds mixed, causes over effects."""

from __future__ import annotations

import pytest

from recover.core.explain import explain


def found(text: str) -> list[tuple[str, str | None, int]]:
    return [(t.signal, t.cure.word if t.cure else None, t.line) for t in explain(text) if not t.note]


def xid(code: int, rest: str = "", bdf: str = "0000:41:00") -> str:
    return f"NVRM: Xid (PCI:{bdf}): {code}, {rest or 'pid=1, name=python3, Ch 0000000a'}"


def action(before: str, after: str) -> str:
    return xid(154, f"GPU recovery action changed from {before} to {after}")


NONE, RESET, REBOOT = "0x0 (None)", "0x1 (GPU Reset Required)", "0x2 (Node Reboot Required)"


@pytest.mark.parametrize(
    ("lines", "right"),
    [
        # the last 154 outranks the table, whichever Xids came with it
        ([xid(31), xid(31), action(NONE, REBOOT)], [("recovery-action", "guest", 3)]),
        ([xid(119), action(NONE, RESET), action(RESET, REBOOT), xid(45)], [("recovery-action", "guest", 3)]),
        ([xid(119), action(NONE, RESET)], [("reset-required", "gpu", 2)]),
        ([action(NONE, "0x4 (Drain and Reset)")], [("recovery-action", "gpu", 1)]),
        ([action(NONE, "0x5 (Recover IMEX Domain)")], [("recovery-action", None, 1)]),
        # and takes back
        ([xid(119), action(NONE, RESET), action(RESET, NONE)], []),
        ([action(RESET, NONE), xid(119)], [("xid", "gpu", 2)]),
        # 79 outranks 154, 64 is for a person
        ([action(NONE, RESET), xid(79, "GPU has fallen off the bus.")], [("gpu-lost", "vm", 2)]),
        ([xid(79, "GPU has fallen off the bus."), action(NONE, RESET)], [("gpu-lost", "vm", 1)]),
        ([xid(48), xid(64), action(NONE, RESET)], [("row-remap-failed", None, 2)]),
        # each GPU for itself
        ([xid(79, bdf="0000:01:00"), xid(31, bdf="0000:02:00")], [("gpu-lost", "vm", 1), ("xid", "process", 2)]),
        # the table: a program's, a link's, informational, unknown, legacy
        ([xid(13), xid(13), xid(43), xid(45), xid(63), xid(92)], [("xid", "process", 1)]),
        ([xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)")], [("xid", "gpu", 1)]),
        ([xid(149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x004505c6 0x0)")], []),
        ([xid(151)], [("xid", "vm", 1)]),
        ([xid(54)], [("xid", None, 1)]),
        ([xid(199)], [("xid", None, 1)]),
        (["NVRM: Xid (0000:03:00): 62, 0000(0000) 00000000"], [("xid", "gpu", 1)]),
        (["NVRM: Xid (PCI:0000:03:00): 95, pid='<unknown>', name=<unknown>, Uncontained"], [("xid", "gpu", 1)]),
        # off the bus without an Xid
        (["NVRM: GPU 0000:18:00.0: GPU has fallen off the bus."], [("gpu-lost", "vm", 1)]),
        (
            [
                "NVRM: The NVIDIA GPU 0000:b3:00.0",
                "NVRM: (PCI ID: 10de:26b5) installed in this system has",
                "NVRM: fallen off the bus and is not responding to commands.",
            ],
            [("gpu-lost", "vm", 3)],
        ),
        # before the driver was loaded anew is old news
        (
            ["[  100.000000] " + xid(119), "[  900.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.1.2"],
            [],
        ),
        # switches
        (["nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error"], []),
        (["nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"], [("sxid", "vm", 1)]),
        (["nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 22003, Fatal, Link 1 Minion Halt"], [("sxid", None, 1)]),
    ],
)
def test_kernel_log(lines: list[str], right: list[tuple[str, str | None, int]]) -> None:
    assert found("\n".join(lines)) == right


@pytest.mark.parametrize(
    ("trace", "signal", "cure"),
    [
        (
            "Call Trace:\n <TASK>\n __schedule+0x2eb/0x9f0\n os_acquire_mutex+0x3c/0x70 [nvidia]",
            "stuck-process",
            "guest",
        ),
        (" __schedule+0x2eb/0x9f0\n rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]", "storage-hang", None),
        (" __schedule+0x2eb/0x9f0", "stuck-process", "guest"),
    ],
)
def test_a_hung_task_by_its_trace(trace: str, signal: str, cure: str | None) -> None:
    assert found(f"INFO: task python3:4242 blocked for more than 241 seconds.\n{trace}") == [(signal, cure, 1)]


def test_a_task_of_a_file_system_is_storage() -> None:
    assert found("INFO: task jbd2/sda1-8:312 blocked for more than 120 seconds.") == [("storage-hang", None, 1)]


def test_lockups_inside_the_driver() -> None:
    text = "rcu: INFO: rcu_preempt self-detected stall on CPU\nRIP: 0010:uvm_va_block_evict_chunks+0x3/0x9 [nvidia_uvm]"
    assert found(text) == [("kernel-lockup", "vm", 1)]


NEW_REFUSAL = """\
The following GPUs could not be reset:
  GPU 00000000:41:00.0: In use by another client

1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application).
"""
LOST_TABLE = """\
|   2  NVIDIA H100 80GB HBM3          On  |   00000000:3A:00.0 Off |                 ERR! |
| ERR!  ERR! ERR!            ERR! /  700W |          GPU is lost   |     ERR!     Default |
|                                         |                        |                 ERR! |
"""
QUERY = """\
==============NVSMI LOG==============
Driver Version                            : 580.105.08
GPU 00000000:02:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    GPU Recovery Action                   : {action}
    FB Memory Usage
        Used                              : {used}
    Remapped Rows
        Pending                           : {pending}
        Remapping Failure Occurred        : {failed}
"""
XML = """\
<nvidia_smi_log>
	<gpu id="00000000:C1:00.0">
		<gpu_recovery_action>{action}</gpu_recovery_action>
		<fb_memory_usage>
			<used>{used}</used>
		</fb_memory_usage>
		<remapped_rows>
			<remapped_row_pending>{pending}</remapped_row_pending>
			<remapped_row_failure>{failed}</remapped_row_failure>
		</remapped_rows>
"""
CSV = """\
index, pci.bus_id, memory.used [MiB], gpu_recovery_action, remapped_rows.pending, remapped_rows.failure
0, 00000000:41:00.0, {used}, {action}, {pending}, {failed}
"""


@pytest.mark.parametrize("form", [QUERY, XML, CSV])
@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({}, []),
        ({"action": "N/A", "used": "N/A", "pending": "N/A", "failed": "N/A"}, []),
        ({"action": "Reset"}, [("reset-required", "gpu")]),
        ({"action": "Reboot"}, [("recovery-action", "guest")]),
        ({"action": "Drain P2P"}, [("recovery-action", "gpu")]),
        ({"action": "Something New"}, [("recovery-action", None)]),
        ({"action": "Requested functionality has been deprecated"}, []),
        ({"used": "GPU is lost", "action": "GPU is lost"}, [("gpu-lost", "vm")]),
        ({"used": "GPU requires reset"}, [("reset-required", "gpu")]),
        ({"used": "Unknown Error"}, [("gpu-fails", "gpu")]),
        ({"pending": "Yes"}, [("row-remap-pending", "gpu")]),
        ({"failed": "Yes", "pending": "Yes"}, [("row-remap-failed", None)]),
    ],
)
def test_nvidia_smi_in_any_form(form: str, changes: dict[str, str], right: list[tuple[str, str | None]]) -> None:
    values = {"action": "None", "used": "3 MiB", "pending": "No", "failed": "No"} | changes
    assert [(signal, cure) for signal, cure, _ in found(form.format(**values))] == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (NEW_REFUSAL, [("reset-refused", "gpu", 2)]),
        (LOST_TABLE, [("gpu-lost", "vm", 2)]),
        ("Unable to determine the device handle for GPU0000:3D:00.0: Unknown Error", [("gpu-lost", "vm", 1)]),
        ("        Reset Required                    : Yes", [("reset-required", "gpu", 1)]),
        (
            "nvidia-container-cli: initialization error: nvml error: driver/library version mismatch",
            [("driver-mismatch", None, 1)],
        ),
        ("0, GPU-1, [GPU requires reset], 30", [("reset-required", "gpu", 1)]),
        ("Failed to initialize NVML: Insufficient Permissions", []),
    ],
)
def test_nvidia_smi_by_line(text: str, right: list[tuple[str, str | None, int]]) -> None:
    assert found(text) == right


def table(
    used: int, util: int, mig: str = "Disabled", panel: str = "No running processes found", persistence: str = "On"
) -> str:
    return (
        f"|   0  NVIDIA H100 80GB HBM3         {persistence:>3}  |   00000000:18:00.0 Off |                    0 |\n"
        f"| N/A   30C    P0             70W /  700W | {used:>7}MiB /  81559MiB |    {util:>3}%      Default |\n"
        f"|                                         |                        |             {mig:>8} |\n"
        "+-----------------------------------------+------------------------+----------------------+\n"
        "| Processes:                                                                              |\n"
        f"|  {panel:<87}|\n"
    )


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (table(71234, 0), [("gpu-memory-held", "gpu", 2)]),
        (table(71234, 100, panel=""), []),  # blank: they cannot be told here
        (table(71234, 100, panel="  0   N/A  N/A      4242      C   python3        71200MiB"), []),
        (table(4, 0), []),
        (table(75, 0, mig="Enabled"), []),
        (table(1, 100), [("ghost-utilisation", "gpu", 2)]),
        (table(1, 100, persistence="Off"), []),  # its own initialisation shows as load
        (table(1, 0, mig="Enabled*"), [("mig-pending", "gpu", 3)]),
    ],
)
def test_the_plain_table(text: str, right: list[tuple[str, str | None, int]]) -> None:
    assert found(text) == right


PS = "    PID    PPID STAT CMD\n"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        # ranks under an init or a shell, with all below them
        (
            PS + " 1 0 Ss /sbin/init\n 500 1 Sl VLLM::EngineCore\n 501 500 Sl VLLM::Worker_TP0\n",
            [("dead-group", "process", 3)],
        ),
        (PS + " 81 80 S -bash\n 500 81 Sl VLLM::EngineCore\n", [("dead-group", "process", 3)]),
        # as pid 1 of a container the server is their parent; with a main they may only be detached
        (PS + " 1 0 Ssl python3 -m sglang.launch_server --tp 2\n 500 1 Rl sglang::scheduler_TP0\n", []),
        (PS + " 1 0 Ssl python3 /app/serve.py\n 500 1 Rl VLLM::EngineCore\n", []),
        (PS + " 9 8 Ssl python3 -m sglang.launch_server --tp 2\n 500 1 Rl sglang::scheduler_TP0\n", []),
        # defunct ranks of a living server, and zombies that hold nothing
        (
            PS + " 9 8 Ssl python3 -m sglang.launch_server\n 50 9 Z [sglang::schedul] <defunct>\n",
            [("dead-group", "process", 3)],
        ),
        (PS + " 1 0 Ss tail -f /dev/null\n 50 1 Z [python] <defunct>\n 51 1 Z [ray::IDLE] <defunct>\n", []),
        (PS + " 50 1 Zl [sglang::schedul] <defunct>\n", [("dead-group", "process", 2)]),
        # D: the driver's tools, never a single other process without its wait channel
        (PS + " 50 49 D nvidia-smi\n", [("nvml-hang", "vm", 2)]),
        (PS + " 50 49 R nvidia-smi\n", []),
        (PS + " 50 49 D sglang::scheduler_TP0\n", []),
        ("PID S WCHAN COMMAND\n50 D nfs_wait_bit_killable sglang::scheduler_TP0\n", [("storage-hang", None, 2)]),
        ("PID S WCHAN COMMAND\n50 D nvidia_close python3 train.py\n", [("stuck-process", "guest", 2)]),
        # a grep for the words is none of them
        (PS + " 50 49 S grep --color=auto GPU has fallen off the bus\n", []),
    ],
)
def test_process_tables(text: str, right: list[tuple[str, str | None, int]]) -> None:
    assert found(text) == right


def test_what_survives_a_kill_in_the_same_text() -> None:
    text = (
        "root@n:~# ps -o pid,ppid,stat,cmd -p 77637\n"
        "    PID    PPID STAT CMD\n  77637       1 R    VLLM::EngineCore\n"
        "root@n:~# sudo kill -9 77637\n"
        "root@n:~# ps -o pid,ppid,stat,cmd -p 77637\n"
        "    PID    PPID STAT CMD\n  77637       1 R    VLLM::EngineCore\n"
    )
    assert ("unkillable-process", "guest", 7) in found(text)


def test_a_pending_sigkill() -> None:
    status = "Name:\tVLLM::EngineCor\nState:\t{}\nPid:\t77\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"
    assert found(status.format("R (running)")) == [("unkillable-process", "guest", 5)]
    assert found(status.format("Z (zombie)")) == []
    assert found(status.format("S (sleeping)").replace("100", "000")) == []


@pytest.mark.parametrize(
    ("frames", "right"),
    [
        (["os_acquire_semaphore+0x3c/0x60 [nvidia]", "rm_ioctl+0x10/0x20 [nvidia]"], [("stuck-process", "guest", 1)]),
        (["nfs_wait_bit_killable+0x1e/0xa0 [nfs]"], [("storage-hang", None, 1)]),
        (["down_interruptible+0x4c/0x60", "_main_loop+0x8a/0x150 [nvidia_modeset]"], []),
        (["do_sys_poll+0x4c/0x60", "x64_sys_call+0x1/0x2"], []),
    ],
)
def test_stacks(frames: list[str], right: list[tuple[str, str | None, int]]) -> None:
    assert found("\n".join(f"[<0>] {frame}" for frame in frames)) == right


MEMINFO = """\
MemTotal:       471859200 kB
MemFree:        {free} kB
MemAvailable:   {free} kB
Buffers:           10240 kB
Cached:           512000 kB
SwapCached:            0 kB
AnonPages:      {anon} kB
Shmem:            102400 kB
Slab:            1048576 kB
PageTables:       204800 kB
"""


def test_meminfo_that_nothing_accounts_for() -> None:
    assert found(MEMINFO.format(free=136314880, anon=2097152)) == [("ram-unowned", "guest", 1)]
    assert found(MEMINFO.format(free=136314880, anon=330301440)) == []
    assert found(MEMINFO.format(free=136314880, anon=2097152).replace("AnonPages", "Anon")) == []


def test_free_that_shrinks_while_a_server_lives_is_no_leak() -> None:
    head = "               total        used        free      shared  buff/cache   available\n"
    first = head + "Mem:           450Gi       5.0Gi       440Gi        27Mi       5.0Gi       444Gi\n"
    second = head + "Mem:           450Gi       320Gi       120Gi        27Mi       5.0Gi       125Gi\n"
    assert found(f"$ free -h\n{first}$ free -h\n{second}") == []
    assert found(f"$ free -h\n{first}$ free -h  # after kill -9\n{second}") == [("ram-unowned", "guest", 6)]


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ('{"data":null,"message":"VM 100 is locked (backup)\\n"}', [("locked", None, 1)]),
        ('{"data":{"exitstatus":"unexpected status","status":"stopped"}}', [("worker-died", None, 1)]),
        ('{"data":{"exitstatus":"WARNINGS: 2","status":"stopped"}}', []),
        ('{"data":{"qmpstatus":"internal-error"}}', [("vm-internal-error", "vm", 1)]),
        ('{"data":{"qmpstatus":"io-error"}}', [("vm-io-error", None, 1)]),
        ('{"data":null,"message":"Permission check failed (/vms/100, VM.PowerMgmt)\\n"}', [("denied", None, 1)]),
        ("HTTP/1.1 401 No ticket", [("not-authenticated", None, 1)]),
        ("401 Unauthorized: permission denied - invalid PVE ticket", [("not-authenticated", None, 1)]),
        ("Couldn't authenticate user: root@pam to https://pve1:8006/api2/json/access/ticket", [("not-authenticated", None, 1)]),
        ("    if response.status == 401:", []),
        ("service vm:174 (pve1, error)", [("ha-error", None, 1)]),
        ("service vm:174 (pve1, started)", []),
        ("TASK ERROR: start failed: command '/usr/bin/kvm -id 100' failed: got timeout", [("start-timeout", None, 1)]),
        ("trying to acquire lock...\n OK\nTASK OK", []),
        ("kvm: -device vfio-pci,host=0000:41:00.0: vfio 0000:41:00.0: failed to open /dev/vfio/12: Device or resource busy",
         [("device-busy", None, 1)]),
        ("vfio-pci 0000:41:00.0: not ready 1023ms after FLR; waiting", [("reset-waiting", None, 1)]),
        ("vfio-pci 0000:41:00.0: not ready 1023ms after FLR; waiting\nvfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up",
         [("reset-gave-up", None, 2)]),
        ("0000:0a:00.0 VGA compatible controller: NVIDIA Corporation TU102 [GeForce RTX 2080 Ti] (rev ff)", [("gpu-lost", None, 1)]),
        ("0000:0a:00.0 VGA compatible controller: NVIDIA Corporation TU102 [GeForce RTX 2080 Ti] (rev a1)", []),
        ("tmpfs            64M   64M     0 100% /dev/shm", [("shm-full", "process", 1)]),
        ("tmpfs           225G   18G  208G   8% /dev/shm", []),
        ("rsync: [receiver] write failed: No space left on device (28)", []),
        ("Memory cgroup out of memory: Killed process 77 (sglang::schedul) total-vm:1kB", [("dead-group", "process", 1)]),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", [("program-fault", "process", 1)]),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", []),
        ("root@pve:~# grep 'GPU is lost' /var/log/kern.log", []),
    ],
)  # fmt: skip
def test_single_lines(line: str, right: list[tuple[str, str | None, int]]) -> None:
    assert found(line) == right


def test_a_gpu_that_does_not_come_back_is_for_a_person_whatever_else_is_said_of_it() -> None:
    text = (
        "vfio-pci 0000:41:00.0: not ready 65535ms after bus reset; giving up\n"
        "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x22:0x56:667)\n"
        "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n"
    )
    assert {cure for _, cure, _ in found(text)} == {None}


def test_a_watch_on_time_that_nvidia_smi_did_not_keep() -> None:
    assert found("root@n:~# timeout 20 nvidia-smi; echo $?\n124") == [("nvml-hang", "vm", 2)]
    assert found("root@n:~# timeout 20 nvidia-smi; echo $?\n0") == []


def test_free_without_units() -> None:
    head = "              total        used        free      shared  buff/cache   available\n"
    first = head + "Mem:         460800        5000      450000          27        5800      455000\n"
    second = head + "Mem:         460800      325000      120000          27        5800      130000\n"
    assert found(f"$ free -m\n{first}$ pkill -9 sglang\n$ free -m\n{second}") == [("ram-unowned", "guest", 7)]


def test_a_holder_that_does_not_exist() -> None:
    text = (
        "$ nvidia-smi --query-compute-apps=pid,used_memory --format=csv\npid, used_gpu_memory [MiB]\n12345, 10151 MiB\n"
        "$ kill -9 12345\nbash: kill: (12345) - No such process\n"
    )
    assert found(text) == [("gpu-memory-held", "gpu", 3)]
    assert found(text.replace("(12345)", "(12346)")) == []


@pytest.mark.parametrize(
    ("name", "trace", "cure"),
    [
        ("reboot", " nv_pci_shutdown+0x3/0x10 [nvidia]", "vm"),
        ("systemd-shutdow", "", "vm"),
        ("rmmod", " drm_client_release+0x1/0x2 [nvidia_drm]", "vm"),
        ("modprobe", "", "guest"),
    ],
)
def test_a_reboot_or_an_unload_that_hangs_needs_the_vm(name: str, trace: str, cure: str) -> None:
    assert found(f"INFO: task {name}:99 blocked for more than 120 seconds.\n{trace}") == [("stuck-process", cure, 1)]


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("[Feb 27 2025 15:10:02] [ERROR] [tid 1] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0", []),
        ("[Feb 27 2025 15:10:02] [ERROR] [tid 1] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0", [("sxid", "vm", 1)]),
        ("[Feb 27 2025 15:10:02] [ERROR] [tid 1] detected NVSwitch fatal error 22003 on fid 0 on NVSwitch pci bus id 00000000:86:00.0", [("sxid", None, 1)]),
        ("6,3973,227996636,-;NVRM: Xid (PCI:0000:41:00): 119, pid=1, name=x, Timeout after 6s", [("xid", "gpu", 1)]),
        ("6,3973,227996636,-;nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing", []),
        ("NVRM: Xid (PCI:0000:05:00): 63, pid=9, name=x, Row Remapper: New row marked for remapping, reset gpu to activate.",
         [("row-remap-pending", "gpu", 1)]),
    ],
)  # fmt: skip
def test_other_logs(line: str, right: list[tuple[str, str | None, int]]) -> None:
    assert found(line) == right


def test_xml_with_every_kind_of_line_in_it() -> None:
    text = (
        '<gpu id="0000:0A:00.0">\n\t<mig_devices>\n\t\tNone\n\t</mig_devices>\n\t<platformInfo>\n\t\t<host_id>1</host_id>\n'
        "\t</platformInfo>\n\t<remapped_rows>\n\t\t<remapped_row_failure>Yes</remapped_row_failure>\n\t</remapped_rows>\n"
    )
    assert found(text) == [("row-remap-failed", None, 9)]


def test_a_report_as_people_write_one() -> None:
    """Prose, bullets and three kinds of output without prompts."""
    text = (
        "The vLLM server often fails to exit cleanly and I cannot kill the process, even kill -9 does not work.\n"
        "  • OS: Ubuntu 20.04\n\n"
        "      PID  PPID STAT                  STARTED CMD\n"
        "      77637     1 R    Wed Sep 17 12:51:13 2025 VLLM::EngineCore\n\n"
        "      sudo kill -9 77637\n"
        "      PID  PPID STAT                  STARTED CMD\n"
        "      77637     1 R    Wed Sep 17 12:51:13 2025 VLLM::EngineCore\n\n"
        "      sudo cat /proc/77637/stack\n"
        "      [<0>] uvm_spin_loop+0xb4/0x100 [nvidia_uvm]\n"
    )
    assert {(signal, cure) for signal, cure, _ in found(text)} == {
        ("dead-group", "process"),
        ("unkillable-process", "guest"),
    }


OLD_TRACE = """\
[  721.028170] INFO: task nvc:[driver]:5403 blocked for more than 120 seconds.
[  721.028229]       Tainted: P           O    4.4.146-1.el7.elrepo.x86_64 #1
[  721.028273] "echo 0 > /proc/sys/kernel/hung_task_timeout_secs" disables this message.
[  721.028323] nvc:[driver]    D ffff883f2cc43bd8     0  5403   5396 0x00000084
[  721.028346] Call Trace:
[  721.028360]  [<ffffffff8170e16e>] ? schedule_preempt_disabled+0xe/0x10
[  721.028368]  [<ffffffff8170de85>] schedule+0x35/0x80
[  721.028422]  [<ffffffffa09c376e>] uvm_gpu_retain_by_uuid+0x1e/0x40 [nvidia_uvm]
"""
SHOWN = """\
[  +0.000049] task:{name}      state:D stack:    0 pid:15277 ppid: 15257 flags:0x00000002
[  +0.000006] Call Trace:
[  +0.000003]  <TASK>
[  +0.000005]  mutex_lock+0x34/0x40
[  +0.000005]  {frame}
"""


def test_traces_of_old_kernels_and_of_blocked_tasks() -> None:
    assert found(OLD_TRACE) == [("stuck-process", "guest", 1)]
    uvm = "uvm_page_tree_get_ptes_async+0x93/0x970 [nvidia_uvm]"
    assert found(SHOWN.format(name="python3.11", frame=uvm)) == [("stuck-process", "guest", 1)]
    assert found(SHOWN.format(name="python3.11", frame="do_wait+0x1/0x2")) == []
    two = SHOWN.format(name="a", frame="do_wait+0x1/0x2") + SHOWN.format(name="b", frame=uvm).replace("15277", "15278")
    assert found(two) == [("stuck-process", "guest", 6)]


def test_channels_torn_down_by_another_xid() -> None:
    line = xid(45, "pid=9, name=x, Ch 0000000a caused by previous Xid {}")
    assert found(line.format(119)) == [("xid", "gpu", 1)]
    assert found(line.format(43)) == []
    assert found(xid(95) + "\n" + line.format(95)) == [("xid", "gpu", 1)]


def test_of_two_cures_for_the_same_thing_the_gravest_counts() -> None:
    text = "No devices were found\nNVRM: This PCI I/O region assigned to your NVIDIA device is invalid\n"
    assert found(text) == [("gpu-missing", None, 2)]
