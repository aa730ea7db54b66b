"""Hand-made looks: every builder gives a healthy thing, and a test names only what differs.

The machine that they build has eight 96 GiB GPUs, 460 GiB of RAM and nothing on it. Times: the guest is up for
`UPTIME_S`, process starts are clock ticks (100 per second), the engine's clock stands at `AT`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recover.model.gpu import Condition, Driver, Gpu, GpuProcess, RecoveryAction
from recover.model.guest import Guest, GuestIdentity, Mark, Mute
from recover.model.hypervisor import AgentState, Hypervisor, NoHypervisor, VmConfig
from recover.model.memory import KernelLine, Ram
from recover.model.process import Process, ProcessId, ServerAnswer
from recover.model.reading import Known
from recover.model.snapshot import Baseline, GpuBaseline, Snapshot, Target

BOOT = "11111111-2222-3333-4444-555555555555"
UPTIME_S = 100_000.0
AT = 1_000_000.0
GPUS = 8
GPU_MIB = 97_887
RAM_MIB = 460 * 1024
IDLE_AVAILABLE_MIB = 450 * 1024
SMBIOS = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
MAC = "bc:24:11:00:01:74"
PORT = 30000
LAUNCH = ("python3", "-m", "sglang.launch_server", "--model-path", "/models/m", "--tp", "8", "--port", "30000")
UNIT_CGROUP = "/system.slice/sglang.service"
SESSION_CGROUP = "/user.slice/user-0.slice/session-3.scope"


def pid(number: int, start: int = 0, boot: str = BOOT) -> ProcessId:
    return ProcessId(boot, number, start or number * 10)


def uuid(index: int) -> str:
    return f"GPU-0000000{index}-0000-0000-0000-000000000000"


def bus(index: int) -> str:
    return f"00000000:{index + 1:02x}:00.0"


def gpu(index: int = 0, **changes: Any) -> Gpu:
    """An idle GPU that answers. `processes` may be given as plain pids."""
    rows = changes.pop("processes", None)
    base = Gpu(
        index=index,
        bus_id=bus(index),
        uuid=Known(uuid(index)),
        condition=Condition.ANSWERS,
        minor=Known(index),
        name=Known("NVIDIA RTX PRO 6000 Blackwell Server Edition"),
        total_mib=Known(GPU_MIB),
        reserved_mib=Known(600),
        used_mib=Known(0),
        processes=Known(()),
        utilisation_pct=Known(0),
        recovery_action=Known(RecoveryAction.NONE),
        persistence=Known(True),
        link_width=Known(16),
        link_width_max=Known(16),
        mig=Known(False),
        remap_pending=Known(False),
        remap_failed=Known(False),
        ecc_uncorrected=Known(0),
        virtualisation=Known("passthrough"),
        pci_ids="10de:2bb5",
    )
    if isinstance(rows, (list, tuple)):
        rows = Known(tuple(r if isinstance(r, GpuProcess) else GpuProcess(r, None, "compute") for r in rows))
    return replace(base, **({"processes": rows} if rows is not None else {}), **changes)


def gpus(count: int = GPUS, **changes: Any) -> tuple[Gpu, ...]:
    return tuple(gpu(i, **changes) for i in range(count))


def process(number: int, title: str = "python3 job.py", *, ppid: int = 1, start: int = 0, **changes: Any) -> Process:
    """A sleeping process in a session of its own; comm, argv, pgid and sid follow from title and pid."""
    base = Process(
        id=pid(number, start),
        ppid=ppid,
        pgid=changes.pop("pgid", number),
        sid=changes.pop("sid", number),
        state="S",
        comm=title.split(" ", maxsplit=1)[0].rsplit("/", 1)[-1][:15] or "python3",
        title=title,
        argv=Known(tuple(title.split())),
        cgroup=UNIT_CGROUP,
        cpu_ticks=1000,
        rss_mib=500,
    )
    return replace(base, **changes)


def zombie(number: int, comm: str, *, ppid: int = 1, **changes: Any) -> Process:
    """A plain zombie: one dead thread, nothing held, no command line."""
    return process(
        number, "", ppid=ppid, **{"state": "Z", "comm": comm[:15], "live_threads": 0, "rss_mib": 0, **changes}
    )


def dead_leader(number: int, comm: str, *, ppid: int = 1, **changes: Any) -> Process:
    """`<defunct>` to ps, but one thread lives and holds everything."""
    return process(
        number,
        "",
        ppid=ppid,
        **{"state": "Z", "comm": comm[:15], "threads": 2, "live_threads": 1, "rss_mib": 40_000, **changes},
    )


def holding(index: int) -> frozenset[str]:
    return frozenset({f"nvidia{index}", "nvidiactl", "nvidia-uvm"})


def system_processes() -> tuple[Process, ...]:
    """What every guest has: init, kernel threads' parent, sshd and a persistence daemon that holds the GPUs."""
    return (
        process(1, "/sbin/init", ppid=0, start=1, cgroup="/init.scope", comm="systemd"),
        process(2, "", ppid=0, start=1, cgroup="/", comm="kthreadd", rss_mib=0),
        process(600, "sshd: /usr/sbin/sshd -D", cgroup="/system.slice/ssh.service", comm="sshd"),
        process(
            700,
            "/usr/bin/nvidia-persistenced --user nvidia-persistenced",
            cgroup="/system.slice/nvidia-persistenced.service",
            comm="nvidia-persiste",
            holds=frozenset({"nvidiactl"}) | {f"nvidia{i}" for i in range(GPUS)},
        ),
    )


def sglang_group(
    first: int = 5000, *, tp: int = GPUS, launch: tuple[str, ...] = LAUNCH, gpu0: int = 0, **changes: Any
) -> tuple[Process, ...]:
    """A server as SGLang starts it: main, resource tracker, `tp` schedulers that hold a GPU each, detokenizer.

    `changes` apply to all of its processes.
    """
    common = {"pgid": first, "sid": first, **changes}
    spawned = "/usr/bin/python3 -c from multiprocessing.resource_tracker import main;main(40)"
    main = process(
        first,
        " ".join(launch),
        **{"argv": Known(launch), "listens": frozenset({PORT}), "comm": "python3", **common},
    )
    tracker = process(first + 1, spawned, ppid=first, **common)
    ranks = tuple(
        process(
            first + 2 + i,
            f"sglang::scheduler_TP{i}" if tp > 1 else "sglang::scheduler",
            ppid=first,
            **{"holds": holding(gpu0 + i), "rss_mib": 4000, "comm": "sglang::schedul", **common},
        )
        for i in range(tp)
    )
    detokenizer = process(first + 2 + tp, "sglang::detokenizer", ppid=first, **{"comm": "sglang::detoken", **common})
    return (main, tracker, *ranks, detokenizer)


def serving_gpus(first: int = 5000, *, tp: int = GPUS, used_mib: int = 80_000, gpu0: int = 0) -> tuple[Gpu, ...]:
    """The GPUs while `sglang_group(first)` runs on them."""
    busy = range(gpu0, gpu0 + tp)
    return tuple(
        gpu(i, used_mib=Known(used_mib), processes=[first + 2 + i - gpu0]) if i in busy else gpu(i) for i in range(GPUS)
    )


def ram(available_mib: int = IDLE_AVAILABLE_MIB, unowned_mib: int = 2048, **changes: Any) -> Ram:
    """RAM whose figures add up: what is neither free nor unowned belongs to live processes."""
    base = Ram(
        total_mib=RAM_MIB,
        available_mib=available_mib,
        free_mib=available_mib,
        buffers_mib=64,
        cached_mib=1024,
        shmem_mib=64,
        slab_mib=1024,
    )
    owned = max(0, RAM_MIB - available_mib - 64 - 1024 - 1024 - unowned_mib)
    return replace(base, **{"anon_mib": owned, "process_anon_mib": owned, **changes})


def answer(status: int | None = 200, *, outcome: str = "answered", port: int = PORT, **changes: Any) -> ServerAnswer:
    return replace(
        ServerAnswer(f"http://127.0.0.1:{port}/health", outcome, status, seconds=1.1, tokens=10, running=0, waiting=0),
        **changes,
    )


def kernel(*texts: str, uptime_s: float = UPTIME_S - 60) -> Known[tuple[KernelLine, ...]]:
    return Known(tuple(KernelLine(int((uptime_s + i * 0.001) * 1e6), text) for i, text in enumerate(texts)))


def guest(**changes: Any) -> Guest:
    base = Guest(
        identity=GuestIdentity("node-174", BOOT, Known(SMBIOS), frozenset({MAC}), "6.8.0-60-generic", "m", 1),
        mark=Mark(BOOT, UPTIME_S),
        ram=Known(ram()),
        driver=Known(
            Driver(
                Condition.ANSWERS,
                version=Known("595.45.04"),
                library_version=Known("595.45.04"),
                modules=("nvidia", "nvidia_uvm"),
            )
        ),
        gpus=Known(gpus()),
        processes=Known(system_processes()),
        kernel=Known(()),
        leftovers=Known(()),
        services=Known(()),
        pci_gpus=Known(tuple(bus(i) for i in range(GPUS))),
        marker=Known(None),
    )
    return replace(base, **changes)


def target(**changes: Any) -> Target:
    return replace(Target("node-174", "10.1.230.174", cluster="pve", vmid=174), **changes)


def hypervisor(**changes: Any) -> Hypervisor:
    base = Hypervisor(
        cluster="pve",
        node="pve1",
        vmid=174,
        kind=target().kind,
        status="running",
        qmpstatus=Known("running"),
        config=Known(VmConfig("node-174", RAM_MIB, SMBIOS, frozenset({MAC}), agent=True)),
        pending=Known(()),
        ha_state=Known(""),
        quorate=Known(True),
        tasks=Known(()),
        agent=Known(AgentState.ANSWERS),
        storages=Known((("local-lvm", True),)),
        neighbours=Known(()),
        uptime_s=int(UPTIME_S),
        pid=4242,
        name="node-174",
        version="9.1",
        backup_due=Known(False),
    )
    return replace(base, **changes)


def baseline(**changes: Any) -> Baseline:
    base = Baseline(
        gpus=tuple(GpuBaseline(uuid(i), bus(i), 0, 16) for i in range(GPUS)),
        ram_total_mib=RAM_MIB,
        ram_available_mib=IDLE_AVAILABLE_MIB,
        shmem_mib=64,
        hugepages_free=0,
        driver="595.45.04",
        kernel="6.8.0-60-generic",
        dmi_uuid=SMBIOS,
        macs=frozenset({MAC}),
        hostname="node-174",
        agent_answered=True,
    )
    return replace(base, **changes)


def healthy_snapshot(**changes: Any) -> Snapshot:
    """An idle guest, seen from both sides, with its baseline. Keywords replace fields of the snapshot;

    `at`, `hypervisor`, `baseline`, `target`, `guest` … and, for short, fields of its guest: `gpus=`, `processes=`
    (added to the system's own), `ram=`, `kernel=`, `servers=`, `driver=`, `leftovers=`.
    """
    inner: dict[str, Any] = {}
    for name in ("gpus", "ram", "kernel", "servers", "driver", "leftovers", "services", "pci_gpus", "complete", "mark"):
        if name in changes:
            inner[name] = changes.pop(name)
    if "processes" in changes:
        extra = changes.pop("processes")
        inner["processes"] = Known((*system_processes(), *extra)) if isinstance(extra, tuple) else extra
    for name in ("gpus", "ram"):
        if name in inner and not hasattr(inner[name], "why") and not isinstance(inner[name], Known):
            inner[name] = Known(inner[name])
    base = Snapshot(
        target=target(),
        at=AT,
        guest=guest(**inner),
        hypervisor=hypervisor(),
        baseline=baseline(),
        wall=1_790_000_000.0,
        expected_dmi_uuid=SMBIOS,
    )
    return replace(base, **changes)


def serving_snapshot(*, used_mib: int = 80_000, **changes: Any) -> Snapshot:
    """A guest on which one SGLang server with eight ranks serves and is healthy."""
    defaults: dict[str, Any] = {
        "gpus": serving_gpus(used_mib=used_mib),
        "processes": sglang_group(),
        "servers": (answer(),),
        "ram": ram(available_mib=380 * 1024),
    }
    return healthy_snapshot(**{**defaults, **changes})


def mute_snapshot(mute: Mute, **changes: Any) -> Snapshot:
    """A guest that did not answer."""
    return healthy_snapshot(guest=mute, **changes)


def no_hypervisor() -> NoHypervisor:
    return NoHypervisor("not-configured", "no cluster is configured for this target")
