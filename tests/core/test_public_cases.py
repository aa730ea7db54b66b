"""What operators reported in public, as the look that they would have had, with the smallest scope that cured it.

Each case names its public source. Where nothing was wrong, or nothing from here could cure it, the test says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from recover.core.past import Past
from recover.model.gpu import Condition, Driver, GpuProcess, RecoveryAction
from recover.model.guest import GuestIdentity, Mark
from recover.model.hypervisor import HostPci, VmConfig
from recover.model.memory import Leftover, LeftoverKind, MemoryLimit
from recover.model.process import Process
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import Diagnosis
from tests.core import builders as b
from tests.core import cases
from tests.core.looks import follow, stuck

Found = list[tuple[str, str | None]]
VLLM = "/usr/bin/python3 /usr/local/bin/vllm serve m --tensor-parallel-size 8 --port 8000"
CONTAINER = "/system.slice/docker-0123456789abcdef0123456789abcdef.scope"


def told(diagnosis: Diagnosis) -> Found:
    return [(f.signal, f.cure.word if f.cure else None) for f in diagnosis.findings]


def vllm(
    first: int = 5000, *, main: bool = True, core: bool = True, tp: int = 8, **changes: Any
) -> tuple[Process, ...]:
    """vLLM v1: API server, engine core, one worker a GPU; who lost its parent belongs to pid 1."""
    same = {"pgid": first, "sid": first, "cgroup": b.SESSION_CGROUP, **changes}
    api = b.process(first, VLLM, comm="vllm", **{"listens": frozenset({8000}), **same})
    engine = b.process(first + 1, "VLLM::EngineCore", ppid=first if main else 1, comm="VLLM::EngineCor", **same)
    workers = tuple(
        b.process(first + 2 + i, f"VLLM::Worker_TP{i}", ppid=first + 1 if core else 1, comm="VLLM::Worker_TP",
                  **{"holds": b.holding(i), **same})
        for i in range(tp)
    )  # fmt: skip
    return (*((api,) if main else ()), *((engine,) if core else ()), *workers)


def sglang(keep: Callable[[Process], bool] = lambda p: True, **changes: Any) -> tuple[Process, ...]:
    return tuple(p for p in b.sglang_group(**changes) if keep(p))


def orphans(group: tuple[Process, ...], lost: str) -> tuple[Process, ...]:
    """The group without the process of that title; its children belong to pid 1."""
    gone = {p.pid for p in group if lost in p.title}
    return tuple(replace(p, ppid=1 if p.ppid in gone else p.ppid) for p in group if p.pid not in gone)


def rank_lost(index: int, how: Callable[..., Process] = b.zombie) -> tuple[Process, ...]:
    """A server one of whose ranks is a zombie of its main."""
    return tuple(
        how(p.pid, "sglang::schedul", ppid=5000, pgid=5000, sid=5000) if p.title.endswith(f"TP{index}") else p
        for p in b.sglang_group()
    )


def xids(*texts: str, **changes: Any) -> Snapshot:
    lines = (text if text.startswith("NVRM") else f"NVRM: Xid (PCI:0000:01:00): {text}" for text in texts)
    return b.healthy_snapshot(kernel=b.kernel(*lines), **changes)


def one_gpu(**changes: Any) -> Snapshot:
    return b.healthy_snapshot(gpus=(b.gpu(0, **changes), *b.gpus()[1:]))


def no_word(**changes: Any) -> Snapshot:
    """GPUs of a driver before the recovery action (field 230): only the log speaks."""
    silent: Any = Unknown(Why.ABSENT, "not in this library")
    return b.healthy_snapshot(gpus=b.gpus(recovery_action=silent), **changes)


def driver(**changes: Any) -> Snapshot:
    return b.healthy_snapshot(driver=Known(replace(Driver(Condition.FAILS), **changes)), gpus=())


def shm(name: str, mib: int, *, alive: bool | None, mapped: bool | None = False) -> Leftover:
    return Leftover(LeftoverKind.SHM_FILE, name, mib, owner_pid=4242 if alive is not None else None, owner_alive=alive,
                    mapped=mapped, inode=7)  # fmt: skip


ROOM = b.ram(available_mib=430 * 1024, shmem_mib=20 * 1024, cached_mib=21 * 1024, anon_mib=6000, process_anon_mib=6000)

CASES: dict[str, tuple[Snapshot, Found]] = {
    # ---- servers and their ranks
    "sglang PR 16756: ranks outlive a parent that was terminated while they load": (
        b.serving_snapshot(processes=orphans(b.sglang_group(), "launch_server"), servers=()),
        [("dead-group", "process")],
    ),
    "sglang PR 21486: the scheduler aborted, the parent keeps zombies and answers 200": (
        b.healthy_snapshot(
            processes=tuple(
                b.zombie(p.pid, "sglang::schedul", ppid=5000, pgid=5000, sid=5000) if "TP" in p.title else p
                for p in b.sglang_group()
            ),
            servers=(b.answer(200),),
        ),
        [("dead-group", "process")],
    ),
    "sglang PR 20287: the OOM killer took one rank, the launcher waits for ever": (
        b.serving_snapshot(processes=rank_lost(5), servers=(), kernel=cases.kernel("dmesg_oom_variants.txt")),
        [("dead-group", "process")],
    ),
    "a rank's leader is defunct and a thread of it lives on, holding its GPU": (
        b.serving_snapshot(processes=rank_lost(3, b.dead_leader)),
        [("dead-group", "process")],
    ),
    "vllm 55510: SIGKILL of the API server leaves engine core and workers": (
        b.healthy_snapshot(processes=vllm(main=False), gpus=b.serving_gpus()),
        [("dead-group", "process")],
    ),
    "vllm 55510, later: the engine core is gone as well": (
        b.healthy_snapshot(processes=vllm(main=False, core=False), gpus=b.serving_gpus()),
        [("dead-group", "process")],
    ),
    "vllm 25127: the engine core runs with SIGKILL pending, below pid 1": (
        b.healthy_snapshot(
            processes=(b.process(5001, "VLLM::EngineCore", comm="VLLM::EngineCor", state="R", sigkill_pending=True,
                                 wchan="", holds=b.holding(0)),),
            gpus=b.serving_gpus(4999, tp=1),
        ),
        [("dead-group", "guest"), ("unkillable-process", "guest")],
    ),
    "vllm-omni 2317: workers outlive their container": (
        b.healthy_snapshot(processes=vllm(main=False, core=False, cgroup=CONTAINER), gpus=b.serving_gpus()),
        [("dead-group", "process")],
    ),
    "dynamo PR 7122: workers in process groups and sessions of their own": (
        b.healthy_snapshot(
            processes=tuple(replace(p, pgid=p.pid, sid=p.pid) for p in vllm(main=False, core=False, cgroup="/")),
            gpus=b.serving_gpus(),
        ),
        [("dead-group", "process")] * 8,
    ),
    "TensorRT-LLM 18663: all ranks were killed, the front end answers 503 for ever": (
        b.healthy_snapshot(
            processes=(b.process(5000, "/usr/bin/python3 /usr/local/bin/trtllm-serve m --tp_size 8",
                                 comm="trtllm-serve", listens=frozenset({8000})),),
            servers=(b.answer(503, port=8000, tokens=None, running=None, waiting=None),),
        ),
        [("hung-group", "process")],
    ),
    "vllm 20860: Ray actors were detached and outlive the run": (
        b.healthy_snapshot(
            processes=tuple(
                b.process(5000 + i, f"ray::RayWorkerWrapper.execute_method_{i}", comm="ray::RayWorkerW", state="R",
                          holds=b.holding(i), pgid=4000, sid=4000)
                for i in range(8)
            ),
            gpus=b.serving_gpus(4998),
        ),
        [("dead-group", "process")],
    ),
    "plain zombies below a pid 1 that does not reap hold nothing": (
        b.healthy_snapshot(processes=tuple(b.zombie(6000 + i, "python") for i in range(40))),
        [],
    ),
    "nvidia-docker 572: memory and full utilisation, and the listed pid is nobody": (
        b.healthy_snapshot(
            gpus=(b.gpu(0, used_mib=Known(10_151), utilisation_pct=Known(100),
                        processes=[GpuProcess(31794, 10_143, "compute")]), *b.gpus()[1:]),
        ),
        [("gpu-memory-held", "gpu")],
    ),
    "diffusers-workflow 98: a live process keeps pinned RAM without GPU memory": (
        b.healthy_snapshot(
            processes=(b.process(5000, "python3 pipeline.py", rss_mib=15_000, holds=b.holding(0), cgroup="/"),),
            ram=b.ram(available_mib=430 * 1024),
        ),
        [],
    ),
    "sglang 14282: a pinned pool stands under buff/cache, not under used": (
        b.serving_snapshot(ram=b.ram(available_mib=290 * 1024, shmem_mib=160 * 1024, anon_mib=4096,
                                     process_anon_mib=4096, cached_mib=161 * 1024)),
        [],
    ),
    # ---- what is left in /dev/shm
    "sglang 40723: segments whose creator is dead": (
        b.healthy_snapshot(leftovers=Known(tuple(shm(f"sgl_shm_mm_4242_{i}", 18, alive=False) for i in range(852))),
                           ram=ROOM),
        [("leftover-memory", "process")],
    ),
    "sglang 40723: the same segments while their creator lives": (
        b.serving_snapshot(leftovers=Known(tuple(shm(f"sgl_shm_mm_4242_{i}", 18, alive=True) for i in range(852)))),
        [],
    ),
    "vllm PR 51317: a hard exit leaves the whole offload file": (
        b.healthy_snapshot(leftovers=Known((shm("vllm_offload_0b9f1e4c-1111-2222-3333-444455556666.mmap", 18_000,
                                                alive=None),)), ram=ROOM),
        [("leftover-memory", "process")],
    ),
    "names of others are never leftovers of ours": (
        b.healthy_snapshot(leftovers=Known((shm("postgresql.1234", 18_000, alive=None),)), ram=ROOM),
        [],
    ),
    # ---- driver and hardware
    "open-gpu-kernel-modules 446: GSP time-outs": (
        no_word(kernel=cases.kernel("dmesg_xid119_550_6s.txt")), [],  # another slot than any GPU here has
    ),
    "open-gpu-kernel-modules 446, on a GPU of this machine": (
        no_word(kernel=b.kernel("NVRM: Xid (PCI:0000:01:00): 119, pid=7, name=x, Timeout after 6s of waiting for RPC")),
        [("xid", "gpu")],
    ),
    "open-gpu-kernel-modules 1333: after a process ended every NVML call hangs": (
        one_gpu(condition=Condition.HANGS, detail="memory did not come back"), [("nvml-hang", "vm")],
    ),
    "open-gpu-kernel-modules 1223: a stall inside nvidia_uvm": (
        b.healthy_snapshot(
            gpus=(b.gpu(0, condition=Condition.HANGS), *b.gpus()[1:]),
            kernel=b.kernel("rcu: INFO: rcu_preempt self-detected stall on CPU",
                            "RIP: 0010:uvm_va_block_evict+0x1/0x2 [nvidia_uvm]"),
        ),
        [("kernel-lockup", "vm"), ("nvml-hang", "vm")],
    ),
    "Xid 64 of catalogue r590: the memory stays bad after any reset": (
        xids("64, pid='<unknown>', name=<unknown>, Row remapper failure"), [("row-remap-failed", None)],
    ),
    "open-gpu-kernel-modules 1151: off the bus without a precursor, whatever the driver asks for": (
        xids("79, pid=7, name=python3, GPU has fallen off the bus.",
             "154, pid=7, name=python3, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        [("gpu-lost", "vm")],
    ),
    "NVIDIA forum 371272: Xid 62, then the driver asks for a reset": (
        no_word(kernel=b.kernel(
            "NVRM: Xid (PCI:0000:01:00): 62, 0x1 0x2 0x3 0x4",
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
        )),
        [("recovery-action", "gpu")],
    ),
    "open-gpu-kernel-modules 1134: an application's Xid 31, then a node reboot is asked for": (
        no_word(kernel=b.kernel(
            "NVRM: Xid (PCI:0000:01:00): 31, pid=9, name=python3, Ch 00000008, intr 00000000. MMU Fault",
            "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)",
        )),
        [("recovery-action", "guest")],
    ),
    "open-gpu-kernel-modules 847: every field says that the GPU requires a reset": (
        one_gpu(condition=Condition.RESET_REQUIRED, used_mib=Unknown(Why.UNREACHABLE, "NVML 16"),
                recovery_action=Unknown(Why.UNREACHABLE, "NVML 16")),
        [("reset-required", "gpu")],
    ),
    "unattended-upgrades: library and module differ": (
        driver(nvml_code=18, detail="Driver/library version mismatch"), [("driver-mismatch", None)],
    ),
    "nvtrust 128: four of eight GPUs came up at boot, and a later modprobe brings up all": (
        b.healthy_snapshot(
            gpus=tuple(b.gpu(i, condition=Condition.FAILS, detail="Unknown Error") if i >= 4 else b.gpu(i)
                       for i in range(8)),
            kernel=b.kernel("NVRM: RmInitAdapter: osInitNvMapping failed, bailing out of RmInitAdapter",
                            *(f"NVRM: GPU 0000:{i + 1:02x}:00.0: RmInitAdapter failed! (0x22:0x56:763)"
                              for i in range(4, 8)), uptime_s=79.0),
            mark=Mark(b.BOOT, 900.0),
        ),
        [("gpu-init-failed", "driver")] * 4,
    ),
    "nvtrust 128, where the bus of the guest itself has only four": (
        b.healthy_snapshot(
            gpus=b.gpus(4), baseline=None, pci_gpus=Known(tuple(b.bus(i) for i in range(4))),
            hypervisor=b.hypervisor(config=Known(VmConfig("node-174", 1, hostpci=tuple(
                HostPci(f"hostpci{i}", "x", gpus=Known(1)) for i in range(8))))),
        ),
        [("gpu-missing", "vm")],
    ),
    "azhpc-diagnostics 77: ERR! in power on a GPU that works": (
        one_gpu(extra=(("power", "ERR!"),)), [],
    ),
    "Proxmox forum 179366: the guest's PCI I/O region is invalid": (
        b.healthy_snapshot(gpus=b.gpus(7), kernel=cases.kernel("dmesg_io_region_invalid_guest.txt")),
        [("gpu-missing", None)],
    ),
    # ---- containers
    "nvidia-container-toolkit 48: daemon-reload took the devices away": (
        replace(driver(nvml_code=999, detail="Unknown Error"), guest=replace(
            driver(nvml_code=999, detail="Unknown Error").guest,  # type: ignore[type-var]
            identity=GuestIdentity("ct", b.BOOT, container=True))),
        [("container-lost-gpus", "process")],
    ),
    "nvidia-docker 1460: pids of the host in a container are nobody here": (
        b.healthy_snapshot(guest=replace(
            b.guest(gpus=Known(b.serving_gpus(31_000, tp=1))),
            identity=GuestIdentity("ct", b.BOOT, container=True))),
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_public_case(name: str) -> None:
    snapshot, wanted = CASES[name]
    assert told(stuck(snapshot, 40)) == wanted


def test_sglang_pr_31746_unpinning_is_no_fault_while_it_goes_on() -> None:
    """After SIGKILL the scheduler sat in D for tens of seconds, and its memory fell."""

    def at(step: int) -> Snapshot:
        left = 24_000 - step * 2000
        leaving = b.process(5002, "sglang::scheduler_TP0", state="D", sigkill_pending=True, rss_mib=left,
                            cpu_ticks=1000 + 100 * step, holds=b.holding(0), wchan="")  # fmt: skip
        used = Known(left)
        cards = (b.gpu(0, used_mib=used, processes=[5002]), *b.gpus()[1:])
        return b.healthy_snapshot(processes=(leaving,), gpus=cards, mark=Mark(b.BOOT, b.UPTIME_S + 10 * step))

    for diagnosis in follow([at(i) for i in range(10)], 10.0):
        assert not any(f.cure is not None and f.cure.word != "process" for f in diagnosis.findings)


def test_open_gpu_kernel_modules_1134_only_the_last_word_counts() -> None:
    lines = b.kernel(
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
    )
    assert told(stuck(no_word(kernel=lines))) == []


def test_recovery_actions_of_the_driver_itself() -> None:
    for action, cure in ((RecoveryAction.GPU_RESET, "gpu"), (RecoveryAction.NODE_REBOOT, "guest"),
                         (RecoveryAction.DRAIN_P2P, "gpu"), (RecoveryAction.DRAIN_AND_RESET, "gpu")):  # fmt: skip
        assert [c for _, c in told(stuck(one_gpu(recovery_action=Known(action))))] == [cure]


def test_nvrc_159_eight_gpus_need_minutes_after_a_start() -> None:
    """120 s were too short, 600 s were enough: who judges a young guest calls a slow boot a failed recovery."""
    young = b.healthy_snapshot(gpus=b.gpus(4), mark=Mark(b.BOOT, 120.0))
    assert told(stuck(young, 4, past=Past())) == []


def test_sglang_pr_20287_the_memory_limit_is_told_with_the_dead_server() -> None:
    """Who starts it again with the same host memory meets the same limit."""
    snapshot = b.serving_snapshot(processes=rank_lost(5), servers=())
    limit = MemoryLimit(b.UNIT_CGROUP, "/system.slice", 65_536, 65_000, 3)
    limited = replace(snapshot, guest=replace(snapshot.guest, memory_limits=(limit,)))  # type: ignore[type-var]
    (found,) = [f for f in stuck(limited, 2).findings if f.signal == "dead-group"]
    assert "memory limit 64.0 GiB on /system.slice" in found.evidence[-1] and "3 processes" in found.evidence[-1]
    (plain,) = [f for f in stuck(snapshot, 2).findings if f.signal == "dead-group"]
    assert not any("limit" in line for line in plain.evidence)
