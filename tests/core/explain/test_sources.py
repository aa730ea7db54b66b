# ruff: noqa: E501
"""Who says it: an engine, a manager, a log of two boots, a wrapped line; and who only speaks of it: code, rules, advice."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.explain import boots, explain
from recover.core.explain.lines import read_lines
from recover.core.explain.message_table import MESSAGES
from recover.core.explain.needles import hits, may_be_cut
from tests.core.explain import healthy
from tests.core.explain.test_forms import found, xid
from tests.core.explain.test_raw import RIGHT, text_of

Right = list[tuple[str, str | None, int]]

ENGINES: dict[str, tuple[str, Right]] = {
    "vllm gave a call up": (
        ("(EngineCore pid=9) ERROR 01-02 10:00:00 [core.py:1] EngineCore encountered a fatal error.\n"
        "(EngineCore pid=9) ERROR 01-02 10:00:00 [core.py:1] TimeoutError: RPC call to execute_model timed out."),
        [("dead-group", "process", 1), ("hung-group", "process", 2)],
    ),
    "vllm compiles": (
        "(EngineCore pid=9) INFO 01-02 10:00:00 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds.",
        [],
    ),
    "vllm could not start": (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        [("dead-group", "process", 1)],
    ),
    "a part that ends with a server that was asked to": (
        ("(APIServer pid=1) INFO 01-02 10:00:00 [launcher.py:1] Shutting down FastAPI HTTP server.\n"
        "ERROR 01-02 10:00:01 [core_client.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client."),
        [],
    ),
    "a part that ends by itself": (
        "ERROR 01-02 10:00:01 [core_client.py:1] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        [("dead-group", "process", 1)],
    ),
    "sglang's watchdog of old": (
        "[2026-01-02 10:00:00 TP1] Watchdog timeout (self.watchdog_timeout=300)",
        [("hung-group", "process", 1)],
    ),
    "sglang's host pool": (
        "ValueError: Not enough host memory available. Requesting 90.00 GB but only have 12.00 GB free.",
        [("no-host-memory", None, 1)],
    ),
    "torch's": (
        "RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes.",
        [("no-host-memory", None, 1)],
    ),
    "llama.cpp does without": (
        ("ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory\n"
        "warning: failed to mlock 8192-byte buffer (after previously locking 0 bytes): Cannot allocate memory"),
        [],
    ),
    "torch's monitor": (
        "[rank1]:[F1 ProcessGroupNCCL.cpp:1] [PG 0 Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress",
        [("hung-group", "process", 1)],
    ),
    "TensorRT-LLM": ("[TRT-LLM] [E] Hang detected on rank 3 in PyExecutor.", [("hung-group", "process", 1)]),
    "an error by its name": ("Check failed: e == cudaSuccess (719 vs. 0) : cudaErrorLaunchFailure", [("program-fault", "process", 1)]),
    "NVLS without memory": ("n:1:2 [0] transport/nvls.cc:9 NCCL WARN Cuda failure 2 'out of memory'", []),
    "NCCL without shared memory": (
        "n:1:2 [0] misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-aBcDeF (size 9637888)",
        [("shm-full", "process", 1)],
    ),
    "NCCL's other warnings": (
        "n:1:2 [0] misc/ibvwrap.cc:9 NCCL WARN Call to ibv_create_qp failed\nn:1:2 [0] NCCL WARN socketProgress: Connection closed by remote peer n2<5>",
        [],
    ),
    "the fabric manager": (
        "nv-fabricmanager[9]: fabric manager NVIDIA GPU driver interface version 550.1 don't match with driver version 550.2.",
        [("driver-mismatch", None, 1)],
    ),
}  # fmt: skip
MANAGERS: dict[str, tuple[str, Right]] = {
    "a pod": ("    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", [("oom-kill", None, 2)]),
    "the list of pods": ("engine-0   0/1   OOMKilled   3   9m\nengine-1   1/1   Running     0   9m", [("oom-kill", None, 1)]),
    "docker": ('"OOMKilled": true,', [("oom-kill", None, 1)]),
    "docker of another end": ('"OOMKilled": false,', []),
    "systemd": ("systemd[1]: engine.service: Failed with result 'oom-kill'.", [("oom-kill", None, 1)]),
    "a stop that was planned": ("systemd[1]: engine.service: Failed with result 'timeout'.\nsystemd[1]: Stopped engine.service.", []),
    "a step of Slurm": ("slurmstepd: error: Detected 2 oom_kill events in StepId=7.0. Some of the step tasks have been OOM Killed.", [("oom-kill", None, 1)]),
    "Slurm's drain": ("Kill task failed     root      2026-01-02T10:00:00 n7", [("unkillable-process", "guest", 1)]),
    "no GPU is free": ("Warning  FailedScheduling  9s  default-scheduler  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", []),
    "MIG that something holds": ("Unable to enable MIG Mode for GPU 00000000:17:00.0: In use by another client", [("device-in-use", "process", 1)]),
}  # fmt: skip


@pytest.mark.parametrize(("text", "right"), [*ENGINES.values()], ids=[*ENGINES])
def test_engines(text: str, right: Right) -> None:
    assert found(text) == right


@pytest.mark.parametrize(("text", "right"), [*MANAGERS.values()], ids=[*MANAGERS])
def test_managers(text: str, right: Right) -> None:
    assert found(text) == right


# ------------------------------------------------------------------------------------------------ two boots

LOST = xid(79, "GPU has fallen off the bus.")
START = "Linux version 6.8.0-60-generic (buildd@x) #63"


def journal(*said: tuple[str, str], host: str = "n7") -> str:
    return "\n".join(f"Jan 02 {when} {host} kernel: {text}" for when, text in said)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (journal(("10:00:00", LOST), ("10:09:00", START), ("10:09:09", "eth0: link up")), []),
        (journal(("10:00:00", LOST), ("10:09:00", START), ("10:30:00", LOST)), [3]),
        (journal(("10:00:00", LOST), ("10:09:00", "INFO: task a:7 blocked for more than 120 seconds."), ("10:10:00", START)), []),
        (f"{journal(('10:00:00', LOST))}\n-- Boot {'0a' * 16} --\n{journal(('10:09:00', 'eth0: link up'))}", []),
        (f"{journal(('10:00:00', LOST))}\n-- Reboot --\n{journal(('10:09:00', LOST))}", [3]),
        (f"[  900.000001] {LOST}\n[    0.000000] {START}\n[    9.000001] eth0: link up", []),
        (f"[    0.000000] {START}\n[  900.000001] {LOST}", [2]),
        # another machine, or something between them
        (f"{journal(('10:00:00', LOST))}\n{journal(('10:09:00', START), host='n8')}", [1]),
        (f"{LOST}\n{journal(('10:09:00', START))}", [1]),
        (f"[  900.000001] {LOST}\nroot@pve:~# dmesg\n[    0.000000] {START}", [1]),
        # the driver alone was loaded anew
        (journal(("10:00:00", LOST), ("10:09:00", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.1")), []),
        (journal(("10:00:00", LOST)) + "\n" + journal(("10:09:00", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.1"), host="n8"), [1]),
    ],
)  # fmt: skip
def test_what_an_earlier_boot_logged_is_old(text: str, lines: list[int]) -> None:
    assert [line for _, _, line in found(text)] == lines


@given(st.lists(st.sampled_from([LOST, START, "eth0: link up", "-- Reboot --"]), max_size=12), st.data())
@settings(max_examples=150, deadline=None)
def test_only_what_stands_before_a_start_is_ever_old(said: list[str], data: st.DataObject) -> None:
    """Seen to fail with the walk turned round, and with the last start left out."""
    stamped = [text if text.startswith("--") else journal((f"10:00:{i:02}", text)) for i, text in enumerate(said)]
    lines = read_lines("\n".join(stamped))
    left = boots.without_earlier_boots(lines)
    starts = [i for i, text in enumerate(said) if text == START or text.startswith("--")]
    assert [i for i, line in enumerate(left) if line.text == "" != lines[i].text] == list(
        range(starts[-1] if starts else 0)
    )
    assert [line.number for line in left] == [line.number for line in lines]


# ------------------------------------------------------------------------------------------------ what stands before

BEFORE = {
    "docker's file": '{"log":"%s\\n","stream":"stderr","time":"2026-01-02T10:00:00Z"}',
    "journalctl -o json": '{"_HOSTNAME":"n7","MESSAGE":"%s","PRIORITY":"3"}',
    "containerd's file": "2026-01-02T10:00:00.000000001Z stderr F %s",
    "RFC 5424": "<3>1 2026-01-02T10:00:00.000000Z n7 kernel - - - %s",
    "short-full": "Fri 2026-01-02 10:00:00 CET n7 kernel: %s",
    "a service without a number": "engine     | %s",
    "a swarm": "stack_engine.1.ab3@n7    | %s",
    "vllm": "(Worker_TP0 pid=7) ERROR 01-02 10:00:00 [worker.py:7] %s",
    "ray": "(EngineCore_DP0 pid=7, ip=10.0.0.7) %s",
    "torchrun": "[rank3]: %s",
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=[*BEFORE])
@pytest.mark.parametrize(
    "name", ["dmesg_xid79_595_open", "ps_nvidia_tools_in_D", "pve_task_lock_timeout", "proc_stack_uvm_spin_loop"]
)
def test_a_line_in_a_wrapper_means_the_same(name: str, before: str) -> None:
    wrapped = [
        before.replace("%s", line.replace('"', '\\"') if before.startswith("{") else line) for line in text_of(name)
    ]
    assert found("\n".join(wrapped)) == RIGHT[name]


# ------------------------------------------------------------------------------------------------ code, rules, advice

SPOKEN = [
    'if "GPU is lost" in line or "Unable to determine the device handle for GPU" in line:',
    '    raise RuntimeError("Engine core initialization failed. "',
    '    "GPU has fallen off the bus",',
    "SICK = (\n    'No devices were found'\n)",
    'readonly SIGN="RmInitAdapter failed"',
    "hint='RmInitAdapter failed'",
    'klog.Errorf("GPU requires reset: %s", id)',
    'assert!(text.contains("fallen off the bus, says NVRM"));',
    '    (RuntimeError("CUDA error: an illegal memory access was encountered"), Kind.FAULT),',
    "    return NV_ERR_GPU_IS_LOST;",
    "#define NV_ERR_RESET_REQUIRED 0x62",
    "sudo journalctl -k | grep -c 'RmInitAdapter failed'",
    'if dmesg | grep -q "GPU has fallen off the bus"; then',
    "  - alert: Lost\n    summary: GPU is lost\n    expr: up == 0",
    "#NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
    "## When the GPU is lost",
    "- **GPU is lost**: cut its power\n- `No devices were found`: load the driver",
    "Exit codes: 6 = No devices were found, 15 = GPU is lost",
    "  'gpu-lost': 'kernel: NVRM: GPU 0000:41:00.0: GPU has fallen off the bus.',",
    "  oom: 'kernel: Out of memory: Killed process 7 (python) total-vm:1kB',",
    'read(\n    "NVRM: Xid (PCI:0000:41:00): 119, \\\n     Timeout"\n)',
    "If nvidia-smi says that the GPU is lost, cut its power.",
    "Look for Processes still around after SIGKILL in the journal.",
    "An error such as CUDA error: unspecified launch failure ends the program.",
    "- **GPU is lost**",
    "warning: failed to mlock 4096-byte buffer (after previously locking 0 bytes): Cannot allocate memory",
    "NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    '    ("lost", r"GPU is lost|fallen off the bus, says NVRM"),',
    '        (("no PCI device found for",), Kind.GONE, True, "a person must look"),',
    '    "GPU is lost", "No devices were found", "RmInitAdapter failed",',
    '    show(a, b=log("RmInitAdapter failed")),',
    'kernel=log("RmInitAdapter failed"),',
    '    ({"driver": 0}, 9, "No devices were found"),',
    'log_unit_warning(UNIT(n), "Processes still around after SIGKILL. Ignoring.");',
    '\t79: {"critical", "GPU has fallen off the bus"},',
    "the launcher refuses a card that reads `[N/A]` or `[GPU requires reset]`",
    "Look for:\n\n```\nGPU is lost\nNo devices were found\n```",
    "You may see one of these in the log:\nGPU is lost\nNo devices were found",
    "code,name,action\n79,GPU has fallen off the bus,RESTART_BM",
    "Programs will fail with `CUDA_ERROR_SYSTEM_NOT_READY` until then.",
    'python tool.py --json "NVRM: Xid (PCI:0000:41:00): 79, pid=7, GPU has fallen off the bus"',
]  # fmt: skip
SAID = [
    ("- nvidia-smi: `No devices were found`", "gpu-missing"),
    ('nvidia-smi says "Unable to determine the device handle for GPU0000:4F:00.0: Unknown Error" since today', "gpu-lost"),
    ("2026-01-02 10:00:00,1 ERROR worker: RuntimeError('CUDA error: an illegal memory access was encountered')", "program-fault"),
    ('time="2026-01-02T10:00:00Z" level=error msg="cannot stop container: tried to kill container, but did not receive an exit event"', "unkillable-process"),
    ('{"level":"warn","msg":"NVRM: Xid (PCI:0000:41:00): 119, pid=7, name=x, Timeout after 6s of waiting"}', "xid"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "program-fault"),
    ("        message: 'nvidia-container-cli: initialization error: nvml error: driver not loaded'", "driver-not-loaded"),
    ("vfio 0000:01:00.0: group 1 is not viable. Please ensure all devices within the iommu_group are bound", "group-not-viable"),
    ("- `EngineDeadError: EngineCore encountered an issue`", "dead-group"),
    ("OSError: [Errno 12] Cannot allocate memory", "no-host-memory"),
    ("-bash: fork: Cannot allocate memory", "no-host-memory"),
    ("ValueError: Free memory on device (9.3/79.1 GiB) on startup is less than desired GPU memory utilization (0.9, 71.2 GiB).", "gpu-memory-held"),
    ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. pre_model_load_memory=7.3", "gpu-memory-held"),
    ("Look for:\n```\nNo devices were found\n```\nand this is ours:\nGPU is lost", "gpu-lost"),
    ("You may see one of these:\nNo devices were found\n\nGPU is lost", "gpu-lost"),
    ("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", "shm-full"),
    ("RuntimeError: Rank 2 scheduler died during initialization (exit code: -9). If exit code is -9, it was the OOM killer.", "dead-group"),
]  # fmt: skip


@pytest.mark.parametrize("text", SPOKEN)
def test_who_only_speaks_of_it_has_no_trouble(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("text", SPOKEN)
def test_what_is_only_spoken_of_does_not_join_the_words_before_it(text: str) -> None:
    assert found("This is what we look at\n" + text) == []


@pytest.mark.parametrize(("text", "signal"), SAID)
def test_who_says_it_has(text: str, signal: str) -> None:
    assert [signal for signal, _, _ in found(text)] == [signal]


# ------------------------------------------------------------------------------------------------ the search

_NEEDLES = [needle for message in MESSAGES for needle in message.needles]


@given(st.sampled_from(_NEEDLES), st.text(alphabet="ab :(|", max_size=20), st.text(alphabet="ab :)|", max_size=20))
@settings(max_examples=300, deadline=None)
def test_every_needle_is_found_wherever_it_stands(needle: str, before: str, after: str) -> None:
    """Seen to fail with the words taken from the needle's ends, and with a text split at commas."""
    line = f"{before}{needle}{after}"
    held = hits(line)
    assert [(place, word) for place, word, _ in held] == [
        (place, word) for place, message in enumerate(MESSAGES) for word in message.needles if word in line
    ]


@given(st.sampled_from(_NEEDLES), st.data())
@settings(max_examples=300, deadline=None)
def test_every_cut_of_a_needle_is_seen(needle: str, data: st.DataObject) -> None:
    """Seen to fail with the longer half taken for the shorter."""
    at = data.draw(st.integers(1, max(1, len(needle) - 1)))
    head, tail = needle[:at].rstrip(), needle[at:].lstrip()
    if head.strip() and tail.strip():
        assert may_be_cut(f"x {head}" if head != needle[:at].lstrip() else head, tail + " y")


@pytest.mark.parametrize(
    "name", sorted(name for name in RIGHT if name.startswith(("dmesg", "pve", "qemu", "smi", "libvirt", "nvidia")))
)
def test_what_is_pasted_twice_is_told_once(name: str) -> None:
    text = "\n".join(text_of(name))
    assert found(f"{text}\n{text}") == RIGHT[name]


def test_a_long_log_costs_what_its_lines_cost() -> None:
    """Not the square of them: the tool is asked in steps, not by a clock."""
    lines = [
        f"[{i}.000001] Memory cgroup out of memory: Killed process {i} (sglang::schedul) total-vm:1kB"
        for i in range(3000)
    ]
    assert len(explain("\n".join([*lines, *healthy.dmesg(10, 1)]))) == 3000
