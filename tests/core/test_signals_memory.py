"""Memory signals, each present and absent: what nobody owns ripens, what somebody owns is never residual."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.diagnose import assess
from recover.core.past import Past
from recover.model.gpu import GpuProcess
from recover.model.guest import GuestIdentity
from recover.model.ladder import Limits
from recover.model.memory import Leftover, LeftoverKind, Ram
from recover.model.process import Process
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope, State
from tests.core import builders as b
from tests.core import cases
from tests.core.looks import finding, follow, once, signals, stuck


def held(used: int = 70_000, **changes: object) -> Snapshot:
    """GPU 2 uses memory, and nothing runs on it."""
    return b.healthy_snapshot(
        gpus=tuple(b.gpu(i, **({"used_mib": Known(used)} if i == 2 else {})) for i in range(8)), **changes
    )


def test_memory_without_an_owner_ripens_into_a_reset() -> None:
    first, second, third = follow([held()] * 3)
    assert (first.state, second.findings) == (State.UNCERTAIN, ())
    found = finding(third, "gpu-memory-held")
    assert (found.cure, found.where) == (Scope.GPU, b.uuid(2))


def test_memory_that_falls_slowly_never_ripens() -> None:
    """Unpinning 439 GB takes a minute or more after the processes are gone."""
    looks = follow([held(90_000 - 300 * i) for i in range(40)])
    assert {s for d in looks for s in signals(d)} == set()


@pytest.mark.parametrize("used", [0, 1, 4, 8, 13, 16])
def test_what_idle_cards_show_is_nothing(used: int) -> None:
    assert once(held(used)).state is State.HEALTHY


def test_the_baseline_and_mig_move_the_threshold() -> None:
    saved = b.baseline()
    saved = replace(saved, gpus=tuple(replace(g, used_mib=400) for g in saved.gpus))
    assert once(held(400, baseline=saved)).state is State.HEALTHY
    assert signals(stuck(held(401, baseline=saved))) == ["gpu-memory-held"]
    mig = tuple(b.gpu(i, mig=Known(True), used_mib=Known(77)) for i in range(8))
    assert once(b.healthy_snapshot(gpus=mig)).state is State.HEALTHY


def test_memory_of_a_living_job_is_its_own() -> None:
    job = b.process(7100, "python3 train.py", holds=b.holding(2))
    assert once(held(processes=(job,))).state is State.HEALTHY
    listed = tuple(b.gpu(i, **({"used_mib": Known(70_000), "processes": [7100]} if i == 2 else {})) for i in range(8))
    plain = b.process(7100, "python3 train.py")
    assert once(b.healthy_snapshot(gpus=listed, processes=(plain,))).state is State.HEALTHY


def test_a_daemon_that_keeps_the_node_open_owns_nothing() -> None:
    """The builders' own persistence daemon holds all nodes."""
    assert signals(stuck(held())) == ["gpu-memory-held"]


def test_memory_of_a_dead_group_is_that_groups() -> None:
    main, *rest = b.sglang_group()
    zombies = tuple(b.zombie(p.pid, p.comm, ppid=main.pid, pgid=main.pgid) for p in rest)
    diagnosis = stuck(b.serving_snapshot(processes=(main, *zombies)))
    assert signals(diagnosis) == ["dead-group"]


def test_a_listed_process_that_does_not_exist_is_a_ghost() -> None:
    cards = (b.gpu(0, used_mib=Known(10_151), processes=[GpuProcess(999_999, None, "compute")]), *b.gpus()[1:])
    found = finding(stuck(b.healthy_snapshot(gpus=cards)), "gpu-memory-held")
    assert "999999" in found.evidence[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"used_mib": Unknown(Why.DENIED)},
        {"processes": Unknown(Why.DENIED)},
        {"shares_system_memory": True},
        {"virtualisation": Known("vgpu")},
    ],
)
def test_what_can_not_be_decided_is_a_gap(changes: dict[str, object]) -> None:
    card = replace(b.gpu(0, used_mib=Known(5000)), **changes)  # type: ignore[arg-type]
    diagnosis = stuck(b.healthy_snapshot(gpus=(card, *b.gpus()[1:])))
    assert (diagnosis.findings, diagnosis.state) == ((), State.UNCERTAIN)


def test_in_a_container_the_drivers_numbers_are_the_hosts() -> None:
    cards = (b.gpu(0, used_mib=Known(10_151), processes=[999_999]), *b.gpus()[1:])
    snapshot = b.healthy_snapshot(gpus=cards)
    inside = GuestIdentity("ct", b.BOOT, container=True)
    snapshot = replace(snapshot, guest=replace(snapshot.guest, identity=inside))  # type: ignore[type-var]
    diagnosis = stuck(snapshot)
    assert (diagnosis.findings, diagnosis.state) == ((), State.UNCERTAIN)


def test_the_same_number_in_a_container_is_another_process() -> None:
    innocent = b.process(4242, "python3 web.py")
    cards = (b.gpu(0, used_mib=Known(10_151), processes=[4242]), *b.gpus()[1:])
    snapshot = b.healthy_snapshot(gpus=cards, processes=(innocent,), ram=lost(100))
    inside = GuestIdentity("ct", b.BOOT, container=True)
    snapshot = replace(snapshot, guest=replace(snapshot.guest, identity=inside))  # type: ignore[type-var]
    seen, diagnosis = assess(snapshot, Past(), Limits())
    assert not any(innocent.id in g.members for g in seen.groups)
    assert "ram-unowned" not in signals(stuck(snapshot))
    assert diagnosis.state is State.UNCERTAIN


def test_ghost_utilisation() -> None:
    busy = b.healthy_snapshot(gpus=(b.gpu(0, utilisation_pct=Known(100)), *b.gpus()[1:]))
    assert finding(stuck(busy), "ghost-utilisation").cure is Scope.GPU
    job = b.process(7100, "python3 train.py", holds=b.holding(0))
    working = b.healthy_snapshot(gpus=(b.gpu(0, utilisation_pct=Known(100)), *b.gpus()[1:]), processes=(job,))
    assert stuck(working).state is State.HEALTHY


# --------------------------------------------------------------------------------------------------------- RAM


def with_ram(ram: Ram, **changes: object) -> Snapshot:
    return b.healthy_snapshot(ram=ram, **changes)


def lost(gib: int) -> Ram:
    return b.ram(available_mib=b.IDLE_AVAILABLE_MIB - gib * 1024, unowned_mib=2048 + gib * 1024)


def test_the_incidents_318_gb_that_nobody_owns() -> None:
    found = finding(stuck(with_ram(lost(296))), "ram-unowned")
    assert (found.cure, found.where) == (Scope.GUEST, None)


def test_unowned_ram_that_comes_back_slowly_never_ripens() -> None:
    looks = follow([with_ram(lost(296 - 3 * i)) for i in range(80)])
    assert {s for d in looks for s in signals(d)} == set()
    assert looks[-1].state is not State.HEALTHY


def test_without_a_baseline_only_a_large_loss_counts() -> None:
    assert once(with_ram(lost(12), baseline=None)).state is State.HEALTHY
    assert signals(stuck(with_ram(lost(30), baseline=None))) == ["ram-unowned"]
    assert signals(stuck(with_ram(lost(30)))) == ["ram-unowned"]


def test_a_living_server_may_have_it_pinned() -> None:
    assert once(b.serving_snapshot(ram=lost(200))).state is State.HEALTHY


def test_ram_of_living_processes_is_owned() -> None:
    owned = b.ram(available_mib=b.IDLE_AVAILABLE_MIB - 200 * 1024)
    assert once(with_ram(owned)).state is State.HEALTHY


def test_a_balloon_is_the_hypervisors() -> None:
    assert once(with_ram(replace(lost(100), balloon_mib=Known(100 * 1024)), baseline=None)).state is State.HEALTHY


def test_less_available_than_when_idle_though_the_kernel_names_it() -> None:
    cached = b.ram(available_mib=b.IDLE_AVAILABLE_MIB - 60 * 1024, anon_mib=0, process_anon_mib=0)
    cached = replace(cached, slab_mib=cached.slab_mib + 60 * 1024, cached_mib=cached.cached_mib + 8 * 1024)
    assert finding(stuck(with_ram(cached)), "ram-below-baseline").cure is Scope.GUEST
    assert once(with_ram(cached, baseline=None)).state is State.HEALTHY


@pytest.mark.parametrize(
    "changes",
    [
        {"shmem_mib": 200 * 1024, "cached_mib": 201 * 1024},  # somebody's tmpfs, mounted anywhere
        {"hugepages_total": 100_000, "hugepages_free": 100_000},  # a pool that was made after the baseline
        {"cache_mib": 200 * 1024},  # ZFS ARC, zswap, zram
        {"balloon_mib": Known(200 * 1024), "unowned_mib": 202 * 1024},
    ],
)
def test_ram_that_somebody_has_taken_on_purpose_is_nothing_that_a_restart_cures(changes: dict[str, object]) -> None:
    taken = b.ram(available_mib=250 * 1024, **{"anon_mib": 0, "process_anon_mib": 0, **changes})
    for saved in (b.baseline(), None):
        diagnosis = stuck(with_ram(taken, baseline=saved))
        assert (signals(diagnosis), diagnosis.state) == ([], State.HEALTHY)
    huge = b.ram(available_mib=250 * 1024, hugepages_total=100_000, anon_mib=0, process_anon_mib=0)
    assert signals(stuck(with_ram(huge))) == ["ram-below-baseline"]  # a pool in use, and by nobody


def test_files_in_memory_are_said() -> None:
    taken = b.ram(available_mib=250 * 1024, shmem_mib=200 * 1024, cached_mib=201 * 1024, anon_mib=0, process_anon_mib=0)
    assert any("files in memory" in gap for gap in once(with_ram(taken)).gaps)


def test_who_only_asks_nvml_owns_no_memory() -> None:
    """nvtop and exporters have each GPU's node open, CUDA's never; a CUDA program that the driver lists late has it."""
    nodes = frozenset({"nvidiactl", *(f"nvidia{i}" for i in range(8))})
    cards = tuple(b.gpu(i, used_mib=Known(80_000 if i == 2 else 0)) for i in range(8))
    watcher = b.process(7100, "nvtop", holds=nodes)
    assert signals(stuck(b.healthy_snapshot(gpus=cards, processes=(watcher,)))) == ["gpu-memory-held"]
    for changes in ({"holds": nodes | {"nvidia-uvm"}}, {"holds_known": False}):
        job = replace(watcher, **changes)
        assert "gpu-memory-held" not in signals(stuck(b.healthy_snapshot(gpus=cards, processes=(job,))))


def test_the_configuration_overrides_the_baseline() -> None:
    little = b.ram(available_mib=400 * 1024, anon_mib=0, process_anon_mib=0, slab_mib=58 * 1024)
    said = b.target(expect=(("ram_available", 395 * 1024),))
    assert once(with_ram(little, target=said)).state is State.HEALTHY
    assert signals(stuck(with_ram(little))) == ["ram-below-baseline"]


def shm(name: str, size: int, **changes: object) -> Leftover:
    return replace(Leftover(LeftoverKind.SHM_FILE, name, size, 4711, False, False), **changes)  # type: ignore[arg-type]


def test_shared_memory_of_dead_owners_is_unlinked_by_a_step() -> None:
    files = Known((shm("sgl_shm_mm_4711_a", 18_000), shm("psm_1234", 10)))
    assert finding(stuck(b.healthy_snapshot(leftovers=files)), "leftover-memory").cure is Scope.PROCESS


@pytest.mark.parametrize("changes", [{"owner_alive": True}, {"mapped": True}, {"mapped": None}])
def test_shared_memory_that_somebody_may_use_is_left_alone(changes: dict[str, object]) -> None:
    files = Known((shm("sgl_shm_mm_4711_a", 18_000, **changes),))
    assert stuck(b.healthy_snapshot(leftovers=files)).state is State.HEALTHY


def test_a_real_servers_meminfo_has_no_unowned_memory() -> None:
    seen = cases.meminfo("meminfo_128g_host.txt")
    ram = Ram(
        total_mib=seen["MemTotal"],
        available_mib=seen["MemAvailable"],
        free_mib=seen["MemFree"],
        buffers_mib=seen["Buffers"],
        cached_mib=seen["Cached"],
        shmem_mib=seen["Shmem"],
        anon_mib=seen["AnonPages"],
        slab_mib=seen["Slab"],
        page_tables_mib=seen["PageTables"],
        swap_cached_mib=seen["SwapCached"],
        process_anon_mib=seen["AnonPages"],
    )
    assert once(with_ram(ram, baseline=None)).state is State.HEALTHY


def test_a_real_driver_leak_is_found() -> None:
    """llama.cpp 9988: `free -h` before and after, and no process owns the difference of 36 GiB."""
    rows = [line.split() for line in cases.text("free_h_before_after_driver_leak.txt").splitlines() if "Mem:" in line]
    (total, _, free, shared, cache, available) = (_mib(word) for word in rows[1][1:])
    ram = Ram(total, available, free_mib=free, cached_mib=cache, shmem_mib=shared)
    found = stuck(with_ram(ram, baseline=None))
    assert signals(found) == ["ram-unowned"]
    (total, _, free, shared, cache, available) = (_mib(word) for word in rows[0][1:])
    before = Ram(
        total, available, free_mib=free, cached_mib=cache, shmem_mib=shared, anon_mib=5600, process_anon_mib=5600
    )
    assert once(with_ram(before, baseline=None)).state is State.HEALTHY


def _mib(word: str) -> int:
    return int(float(word.rstrip("GMi").replace(",", ".")) * (1024 if "G" in word else 1))


# --------------------------------------------------------------------------------------------------- processes


def rank(**changes: object) -> tuple[Process, ...]:
    main, *rest = b.sglang_group()
    return (main, *(replace(p, **changes) if "TP3" in p.title else p for p in rest))  # type: ignore[arg-type]


def ticking(state: str, step: int, **changes: object) -> list[Snapshot]:
    return [b.serving_snapshot(processes=rank(state=state, cpu_ticks=1000 + step * i, **changes)) for i in range(6)]


def test_d_without_progress_is_stuck_and_with_progress_is_not() -> None:
    wchan = {"wchan": "os_acquire_mutex"}
    assert finding(follow(ticking("D", 0, **wchan))[-1], "stuck-process").cure is Scope.PROCESS
    assert follow(ticking("D", 200, **wchan))[-1].findings == ()


def test_one_look_at_a_process_in_d_is_no_doubt() -> None:
    assert once(b.serving_snapshot(processes=rank(state="D"))).state is State.HEALTHY


def test_r_that_ignores_sigkill_needs_a_new_kernel() -> None:
    """vllm 25127: R in uvm_spin_loop with all its CPU time; SIGKILL does nothing."""
    waits = cases.text("proc_stack_uvm_spin_loop.txt").split()[1].partition("+")[0]
    found = finding(follow(ticking("R", 3000, sigkill_pending=True, wchan=waits))[-1], "unkillable-process")
    assert (found.cure, found.at_least) == (Scope.GUEST, Scope.GUEST)
    assert "uvm_spin_loop" in found.says
    assert follow(ticking("R", 3000))[-1].findings == ()


def test_unpinning_after_sigkill_is_progress() -> None:
    assert follow(ticking("D", 2000, sigkill_pending=True))[-1].findings == ()
    assert "unkillable-process" in signals(follow(ticking("D", 0, sigkill_pending=True))[-1])


@pytest.mark.parametrize(
    "wchan", ["nfs_wait_bit_killable", "rpc_wait_bit_killable", "request_wait_answer", "ceph_mdsc_wait"]
)
def test_dead_storage_is_nothing_that_a_step_cures(wchan: str) -> None:
    diagnosis = follow(ticking("D", 0, wchan=wchan))[-1]
    assert signals(diagnosis) == ["storage-hang"]
    assert finding(diagnosis, "storage-hang").cure is None


def test_somebody_elses_d_state_is_not_ours() -> None:
    other = b.process(8000, "df -h", state="D", wchan="nfs_wait_bit_killable", comm="df")
    assert stuck(b.healthy_snapshot(processes=(other,))).state is State.HEALTHY


def test_nvidia_tools_in_d_are_a_group_that_can_be_ended() -> None:
    smi = b.process(935, "/usr/bin/nvidia-smi", state="D", wchan="nvidia_ioctl", holds_known=False, comm="nvidia-smi")
    found = finding(stuck(b.healthy_snapshot(processes=(smi,))), "stuck-process")
    assert (found.cure, found.where) == (Scope.PROCESS, str(smi.id))


def test_our_own_abandoned_probe_is_not_evidence() -> None:
    probe = b.process(9000, "python3 -", state="D", wchan="nvidia_ioctl", ours=True, holds=b.holding(0))
    assert stuck(b.healthy_snapshot(processes=(probe,))).state is State.HEALTHY


def test_after_a_try_it_needs_more_than_an_owner() -> None:
    """Whatever it was for: a server on that GPU that explains only a part of its memory is no proof."""
    cards = tuple(
        b.gpu(i, **({"used_mib": Known(80_000), "processes": [GpuProcess(7100, 1000, "compute")]} if i == 2 else {}))
        for i in range(8)
    )
    snapshot = b.healthy_snapshot(gpus=cards, processes=(b.process(7100, "python3 train.py", holds=b.holding(2)),))
    assert once(snapshot).state is State.HEALTHY
    assert once(snapshot, Past(tries=1)).state is State.UNCERTAIN
