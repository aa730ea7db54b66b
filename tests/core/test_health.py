"""The health of a group: what each verdict needs, and what it must not be taken from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from recover.core.diagnose import assess
from recover.core.groups import fingerprint
from recover.core.past import OwnActs, Past
from recover.model.guest import Mark
from recover.model.ladder import Limits
from recover.model.process import Group, Health, Process
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope, State
from tests.core import builders as b
from tests.core.looks import LIMITS, finding, follow, once, signals, stuck

LOADING = (b.answer(None, outcome="refused", tokens=None, running=None, waiting=None),)


def health(snapshot: Snapshot, past: Past | None = None) -> Health:
    return server(snapshot, past).health


def server(snapshot: Snapshot, past: Past | None = None) -> Group:
    (group,) = [g for g in assess(snapshot, past or Past(), Limits())[0].groups if not g.protected]
    return group


def without(processes: Iterable[Process], *titles: str) -> tuple[Process, ...]:
    return tuple(p for p in processes if p.title not in titles)


def busy(tokens: int, running: int = 12, status: int | None = 200, outcome: str = "answered") -> Snapshot:
    return b.serving_snapshot(servers=(b.answer(status, outcome=outcome, tokens=tokens, running=running),))


def test_idle_and_answered_is_healthy_and_the_machine_is_well() -> None:
    assert health(b.serving_snapshot()) is Health.HEALTHY
    assert once(b.serving_snapshot()).state is State.HEALTHY


def test_counters_that_move_are_healthy_and_need_two_looks() -> None:
    first, second, third = follow([busy(100), busy(200), busy(300)])
    assert (first.state, second.state, third.state) == (State.UNCERTAIN, State.HEALTHY, State.HEALTHY)


def test_running_requests_and_counters_that_stand_still_are_hung_after_the_limit() -> None:
    looks = follow([busy(100)] * 6)
    assert [d.state for d in looks] == [State.UNCERTAIN] * 4 + [State.FAULTY] * 2
    hung = finding(looks[-1], "hung-group")
    assert (hung.cure, hung.where) == (Scope.PROCESS, "5000@50000")


def test_one_token_restarts_the_clock() -> None:
    assert signals(follow([busy(100)] * 4 + [busy(101)] * 4)[-1]) == []


def test_busy_servers_may_leave_the_health_question_unanswered() -> None:
    looks = follow([busy(100 * i, status=None, outcome="timeout") for i in range(8)])
    assert [signals(d) for d in looks] == [[]] * 8


def test_silence_without_counters_is_hung_after_the_limit_unless_something_grows() -> None:
    silent = b.serving_snapshot(servers=(b.answer(None, outcome="timeout", tokens=None, running=None),))
    assert signals(stuck(silent, 4)) == []
    assert signals(stuck(silent, 6)) == ["hung-group"]
    growing = [replace_rss(silent, 4000 + 100 * i) for i in range(8)]
    assert signals(follow(growing)[-1]) == []


def replace_rss(snapshot: Snapshot, rss: int) -> Snapshot:
    guest = snapshot.guest
    processes = tuple(replace(p, rss_mib=rss) for p in guest.processes.value)  # type: ignore[union-attr]
    return replace(snapshot, guest=replace(guest, processes=Known(processes)))  # type: ignore[type-var]


def test_an_answer_of_200_alone_proves_nothing() -> None:
    answer = b.answer(200, tokens=None, running=None, waiting=None, seconds=0.05)
    assert health(b.serving_snapshot(servers=(answer,))) is Health.LIVE
    assert once(b.serving_snapshot(servers=(answer,))).state is State.UNCERTAIN


def test_sglang_generates_a_token_for_its_health_question() -> None:
    answer = b.answer(200, tokens=None, running=None, waiting=None, seconds=1.2)
    assert health(b.serving_snapshot(servers=(answer,))) is Health.HEALTHY


def test_node_ranks_above_zero_always_say_200() -> None:
    launch = (*b.LAUNCH, "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:5000", "--tp", "16")
    assert health(b.serving_snapshot(processes=b.sglang_group(launch=launch))) is Health.LIVE


def test_a_young_server_that_grows_is_starting_and_spared() -> None:
    def loading(rss: int) -> Snapshot:
        processes = b.sglang_group(first=5000, listens=frozenset(), rss_mib=rss)
        young = tuple(replace(p, id=b.pid(p.pid, int(b.UPTIME_S * 100) - 3000 + p.pid)) for p in processes)
        return b.serving_snapshot(processes=young, servers=LOADING)

    looks = follow([loading(1000 + 20 * i) for i in range(20)])
    assert {s for d in looks for s in signals(d)} == set()
    assert looks[-1].state is State.HEALTHY  # it grows, and nothing is wrong
    assert signals(stuck(loading(1000), 12)) == ["hung-group"]  # the incident: it stops while it pins memory


def test_503_of_a_server_that_no_longer_works_ripens() -> None:
    sick = b.serving_snapshot(servers=(b.answer(503, tokens=None, running=None),))
    assert signals(stuck(sick, 9)) == []
    assert signals(stuck(sick, 12)) == ["hung-group"]


def test_a_health_question_that_fails_on_our_side_is_no_evidence() -> None:
    """A wrong scheme, a wrong port or a proxy: the server may be well."""
    odd = b.answer(None, outcome="error", tokens=None, running=None, detail="not HTTP")
    assert signals(stuck(b.serving_snapshot(servers=(odd,)), 20)) == []
    wrong_port = b.answer(None, outcome="refused", tokens=None, running=None, port=9999)
    unseen = b.sglang_group(listens=frozenset(), holds_known=False)
    assert signals(stuck(b.serving_snapshot(processes=unseen, servers=(wrong_port,)), 20)) == []


def test_vllm_on_ray_has_its_ranks_elsewhere() -> None:
    raylet = b.process(4000, "/opt/ray/raylet --node-ip x", comm="raylet")
    workers = tuple(
        b.process(4001 + i, "ray::RayWorkerWrapper.execute_method", ppid=4000, holds=b.holding(i)) for i in range(8)
    )
    launch = ("vllm", "serve", "m", "--tensor-parallel-size", "8", "--distributed-executor-backend", "ray")
    main = b.process(5000, " ".join(launch), argv=Known(launch), listens=frozenset({b.PORT}))
    core = b.process(5001, "VLLM::EngineCore", ppid=5000)
    snapshot = b.serving_snapshot(processes=(raylet, *workers, main, core), gpus=b.gpus())
    assert signals(stuck(snapshot)) == []


def test_a_parent_that_is_not_shown_may_live() -> None:
    orphans = tuple(replace(p, ppid=77_777) for p in b.sglang_group()[2:])
    assert signals(stuck(b.serving_snapshot(processes=orphans))) == []


def test_a_server_in_a_container_that_was_not_asked_is_only_live() -> None:
    processes = b.sglang_group(listens=frozenset(), cgroup="/system.slice/docker-0123456789abcdef.scope")
    snapshot = b.serving_snapshot(processes=processes, servers=())
    assert signals(stuck(snapshot, 20)) == []
    assert health(snapshot) is Health.LIVE


def test_who_refuses_on_a_port_that_a_server_listens_on_is_somebody_else() -> None:
    """A bridged container's port is not the guest's, and a server may listen on one address only."""
    for cgroup in ("/system.slice/docker-0123456789abcdef.scope", b.UNIT_CGROUP):
        snapshot = b.serving_snapshot(processes=b.sglang_group(cgroup=cgroup), servers=LOADING)
        assert signals(stuck(snapshot, 20)) == []
        assert health(snapshot) is Health.LIVE


def test_what_was_asked_in_the_network_of_a_container_is_its_own_answer() -> None:
    """Both listen on the same port, each in its own network: one is hung, the other works."""
    boxes = [f"/system.slice/docker-{letter * 12}.scope" for letter in "ab"]
    one = b.sglang_group(5000, tp=4, cgroup=boxes[0], launch=(*b.LAUNCH[:5], "--tp", "4"))
    two = b.sglang_group(6000, tp=4, gpu0=4, cgroup=boxes[1], launch=(*b.LAUNCH[:5], "--tp", "4", "--x"))
    answers = (replace(b.answer(tokens=7, running=3), pid=5000), replace(b.answer(), pid=6000))
    snapshot = b.serving_snapshot(processes=(*one, *two), gpus=b.gpus(), servers=answers)
    assert [f.where for f in stuck(snapshot, 6).findings] == ["5000@50000"]
    groups = {g.key: g.health for g in assess(snapshot, Past(), Limits())[0].groups}
    assert groups["6000@60000"] is Health.HEALTHY


def test_a_refusal_in_its_own_network_proves_nothing() -> None:
    box = "/system.slice/docker-0123456789abcdef.scope"
    refused = tuple(replace(a, pid=5000) for a in LOADING)
    snapshot = b.serving_snapshot(processes=b.sglang_group(cgroup=box), servers=refused)
    assert signals(stuck(snapshot, 20)) == [] and health(snapshot) is Health.LIVE


def test_one_answer_is_not_two_servers_health() -> None:
    """Containers have networks of their own, in which all may listen on the same port."""

    def seen(cgroup: str, other: str, *more: Process) -> list[str]:
        one = b.sglang_group(5000, tp=4, cgroup=cgroup, launch=(*b.LAUNCH[:5], "--tp", "4"))
        two = b.sglang_group(6000, tp=4, gpu0=4, cgroup=other, launch=(*b.LAUNCH[:5], "--tp", "4", "--x"))
        snapshot = b.serving_snapshot(processes=(*one, *two, *more), gpus=b.gpus(), servers=(b.answer(running=3),))
        return [str(f.where) for f in stuck(snapshot, 6).findings]

    boxes = [f"/system.slice/docker-{letter * 12}.scope" for letter in "ab"]
    proxy = b.process(900, "/usr/bin/docker-proxy", comm="docker-proxy", listens=frozenset({b.PORT}))
    assert seen(boxes[0], boxes[1], proxy) == []
    assert seen(b.UNIT_CGROUP, "/system.slice/other.service") == []
    assert seen(b.UNIT_CGROUP, boxes[1]) == ["5000@50000"]
    lone = b.serving_snapshot(processes=(*b.sglang_group(cgroup=boxes[0]), proxy), servers=(b.answer(running=3),))
    assert signals(stuck(lone, 6)) == ["hung-group"]


@pytest.mark.parametrize(
    "command",
    [
        "python3 offline.py",
        "python3 -m vllm.entrypoints.openai.run_batch -i in -o out --model m",
        "/usr/bin/python3 /usr/bin/vllm run-batch -i in -o out --model m",
        "/usr/bin/python3 /usr/bin/vllm serve m --headless",
        "/usr/bin/python3 /usr/bin/vllm serve m --uds /run/vllm.sock",
    ],
)
def test_an_engine_that_serves_no_port_is_not_hung_for_that(command: str) -> None:
    main = b.process(5000, command, comm="python3")
    core = b.process(5001, "VLLM::EngineCore", ppid=5000, holds=b.holding(0))
    snapshot = b.serving_snapshot(processes=(main, core), gpus=b.serving_gpus(4999, tp=1), servers=())
    assert signals(stuck(snapshot, 20)) == []


def test_ranks_that_listen_for_each_other_serve_nobody() -> None:
    """Without `--port` too: the engine's own default is what was asked."""
    launch = tuple(word for word in b.LAUNCH if word not in ("--port", "30000"))
    main, *rest = b.sglang_group(launch=launch, listens=frozenset())
    ranks = tuple(replace(p, listens=frozenset({23456})) if p.title.endswith("TP0") else p for p in rest)
    for servers in (LOADING, ()):
        snapshot = b.serving_snapshot(processes=(main, *ranks), servers=servers)
        assert signals(stuck(snapshot, 5)) == []
        assert signals(stuck(snapshot, 20)) == ["hung-group"]


@pytest.mark.parametrize("wchan", ["rpc_wait_bit_killable", "folio_wait_bit_common", "ceph_mdsc_wait_request"])
def test_a_server_whose_storage_pauses_is_not_hung(wchan: str) -> None:
    main, *rest = b.sglang_group(listens=frozenset())
    ranks = tuple(replace(p, state="D", wchan=wchan) if "scheduler" in p.title else p for p in rest)
    found = stuck(b.serving_snapshot(processes=(main, *ranks), servers=LOADING), 20)
    assert set(signals(found)) == {"storage-hang"}
    assert {f.cure for f in found.findings} == {None}
    assert found.ripening == ()  # nobody waits for what cannot get better by waiting


# ------------------------------------------------------------------------------------- what the kernel keeps

IN_DRIVER = {"state": "D", "wchan": "os_acquire_mutex"}


def kept(*processes: Process, looks: int = 5, **changes: object) -> list[str]:
    return signals(stuck(b.serving_snapshot(processes=processes, servers=(), **changes), looks))


@pytest.mark.parametrize(
    "changes", [IN_DRIVER, {**IN_DRIVER, "sigkill_pending": True}, {"state": "R", "sigkill_pending": True}]
)
def test_what_the_kernel_keeps_is_nobodys_work_that_a_restart_would_end(changes: dict[str, Any]) -> None:
    """A stuck nvidia-smi, or a job that ignores SIGKILL, was a bystander of the restart that alone ends it."""
    smi = b.process(7000, "/usr/bin/nvidia-smi", holds=b.holding(0), holds_known="wchan" not in changes, **changes)
    assert "hung-group" in kept(smi)
    assert "hung-group" not in kept(smi, looks=2)


def test_one_rank_that_the_kernel_keeps_hangs_its_server_and_no_other_job() -> None:
    ranks = tuple(replace(p, **IN_DRIVER) if p.title.endswith("TP3") else p for p in b.sglang_group())
    assert "hung-group" in kept(*ranks)
    one = b.process(7001, "python3 train.py", ppid=7000, holds=b.holding(1), **IN_DRIVER)
    two = b.process(7002, "python3 train.py", ppid=7000, holds=b.holding(2))
    assert "hung-group" not in kept(b.process(7000, "python3 sweep.py"), one, two)


def test_a_server_that_answers_is_not_hung_by_one_look_at_a_wait() -> None:
    ranks = tuple(replace(p, **IN_DRIVER) if p.title.endswith("TP3") else p for p in b.sglang_group())
    assert "hung-group" not in signals(stuck(b.serving_snapshot(processes=ranks), 5))


# ---------------------------------------------------------------------------------------------------- dead


def dead(processes: tuple[Process, ...], **changes: object) -> str:
    snapshot = b.serving_snapshot(processes=processes, **changes)
    group = server(snapshot)
    assert group.health is Health.DEAD, group.why
    found = finding(once(snapshot), "dead-group")
    assert (found.cure, found.where) == (Scope.PROCESS, group.key)
    return group.why


def test_ranks_without_their_main() -> None:
    orphans = tuple(replace(p, ppid=1) for p in b.sglang_group()[2:])
    assert "without a main" in dead(orphans)


def test_orphans_under_the_shell_that_started_them() -> None:
    """vllm 55510: a killed API server leaves its engine to the launching shell, not to pid 1."""
    shell = b.process(4000, "-bash", comm="bash", tty=34816)
    core = b.process(5001, "VLLM::EngineCore", ppid=4000, holds=b.holding(0))
    worker = b.process(5002, "VLLM::Worker_TP0", ppid=5001, holds=b.holding(1))
    assert "without a main" in dead((shell, core, worker), servers=())


def test_defunct_ranks_below_a_living_main() -> None:
    main, tracker, *ranks, detokenizer = b.sglang_group()
    gone = tuple(b.zombie(p.pid, p.comm, ppid=main.pid, pgid=main.pgid, sid=main.sid) for p in ranks)
    assert "8 of 8 ranks are defunct" in dead((main, tracker, *gone, detokenizer))


def test_a_defunct_leader_with_a_living_thread_is_dead_and_holds_everything() -> None:
    main, tracker, first, *rest = b.sglang_group()
    stuck_leader = b.dead_leader(
        first.pid, first.comm, ppid=main.pid, pgid=main.pgid, thread_wchans=("os_acquire_mutex",)
    )
    assert "os_acquire_mutex" in dead((main, tracker, stuck_leader, *rest))


def test_a_defunct_main() -> None:
    main, _, *ranks = b.sglang_group()
    gone = b.zombie(main.pid, main.comm, pgid=main.pgid, sid=main.sid)
    assert dead((gone, *(replace(p, ppid=1) for p in ranks)))


def test_a_missing_rank_is_dead_when_it_stays_missing() -> None:
    seven = b.serving_snapshot(processes=without(b.sglang_group(), "sglang::scheduler_TP3"))
    assert signals(once(seven)) == []
    assert signals(stuck(seven)) == ["dead-group"]


def test_a_rank_that_the_kernel_killed_is_dead_at_once() -> None:
    line = "Out of memory: Killed process 5005, UID 0, (sglang::schedul) total-vm:1kB"
    assert "for want of memory" in dead(without(b.sglang_group(), "sglang::scheduler_TP3"), kernel=b.kernel(line))


def test_a_rank_killed_before_this_server_began_is_old() -> None:
    line = "Out of memory: Killed process 1234, UID 0, (sglang::schedul) total-vm:1kB"
    snapshot = b.serving_snapshot(
        processes=without(b.sglang_group(), "sglang::scheduler_TP3"), kernel=b.kernel(line, uptime_s=400)
    )
    past = Past(first=Mark(b.BOOT, 300.0))
    assert signals(once(snapshot, past)) == []


def test_missing_ranks_are_not_concluded_from_a_table_that_broke_off() -> None:
    orphans = tuple(replace(p, ppid=1) for p in b.sglang_group()[2:])
    snapshot = b.serving_snapshot(processes=orphans, complete=False)
    assert signals(once(snapshot)) == []
    assert once(snapshot).state is State.UNCERTAIN


@pytest.mark.parametrize("flags", [("--tp", "16", "--nnodes", "2"), ("--tp-size=8",), ("--tensor-parallel-size", "8")])
def test_expected_ranks_are_counted_per_host(flags: tuple[str, ...]) -> None:
    launch = ("python3", "-m", "sglang.launch_server", *flags, "--port", "30000")
    assert signals(stuck(b.serving_snapshot(processes=b.sglang_group(launch=launch)))) == []


def test_zombie_helpers_are_no_dead_ranks() -> None:
    zombie = b.zombie(5020, "python3", ppid=5000, pgid=5000, sid=5000)
    assert health(b.serving_snapshot(processes=(*b.sglang_group(), zombie))) is Health.HEALTHY


def test_a_controller_between_is_no_main() -> None:
    """sglang 23627: with data parallelism the controller outlives the killed main, and its ranks with it."""
    controller = b.process(5001, "sglang::data_parallel_controller", pgid=5000, sid=5000, comm="sglang::data_pa")
    ranks = tuple(replace(p, ppid=5001) for p in b.sglang_group()[2:10])
    assert "without a main" in dead((controller, *ranks), servers=())


def trtllm(orted: str, ppid: int) -> tuple[Process, ...]:
    daemon = b.process(5001, orted, ppid=ppid, comm="orted")
    title = "/usr/bin/python3 -m mpi4py.futures.server"
    return (daemon, *(b.process(5002 + i, title, ppid=5001, pgid=5001, holds=b.holding(i)) for i in range(8)))


def test_ranks_that_mpi_started_for_a_server_that_is_gone() -> None:
    local = "orted --hnp --set-sid --report-uri 12 --singleton-died-pipe 13"
    assert "without a main" in dead(trtllm(local, 1), servers=())
    main = b.process(5000, "python3 /usr/bin/trtllm-serve m --tp_size 8", listens=frozenset({8000}))
    assert signals(stuck(b.serving_snapshot(processes=(main, *trtllm(local, 5000)), servers=()))) == []
    # Their job's main may be on another host.
    remote = b.serving_snapshot(processes=trtllm("orted -mca ess env -mca orte_hnp_uri 1.0", 1), servers=())
    assert signals(stuck(remote)) == []


def test_what_a_rank_forks_is_no_rank() -> None:
    """A defunct child of a living rank is its own business, and a living one stands in for none that is missing."""
    common = {"ppid": 5002, "pgid": 5000, "sid": 5000}
    ranks = b.sglang_group()
    assert health(b.serving_snapshot(processes=(*ranks, b.zombie(6000, "sglang::schedul", **common)))) is Health.HEALTHY
    fork = b.process(6000, "sglang::scheduler_TP0", comm="sglang::schedul", **common)
    seven = b.serving_snapshot(processes=(*without(ranks, "sglang::scheduler_TP3"), fork))
    assert "dead-group" in signals(stuck(seven))


def test_defunct_ranks_beside_all_that_were_asked_for_are_replaced() -> None:
    gone = b.zombie(4990, "sglang::schedul", ppid=5000, pgid=5000, sid=5000)
    assert health(b.serving_snapshot(processes=(*b.sglang_group(), gone))) is Health.HEALTHY


def test_the_workers_of_ray_do_not_die_together() -> None:
    raylet = b.process(4000, "/opt/ray/raylet --x", comm="raylet")
    actor = b.process(4002, "ray::Trainer", ppid=4000, holds=b.holding(0))
    stuck_one = b.dead_leader(4003, "ray::Actor", ppid=4000, thread_wchans=("os_acquire_mutex",))
    for other in (b.zombie(4001, "ray::Actor", ppid=4000), stuck_one):
        snapshot = b.healthy_snapshot(processes=(raylet, actor, other), gpus=b.serving_gpus(4000, tp=1))
        assert "dead-group" not in signals(stuck(snapshot))


def test_who_uses_no_gpu_is_no_doubt() -> None:
    """A router beside recovered GPUs, and an ollama that nobody asks, whose /health is a 404."""
    router = b.process(5000, "sglang::router", listens=frozenset({b.PORT}))
    ollama = b.process(5001, "/usr/bin/ollama serve", listens=frozenset({11434}))
    found = b.answer(404, port=11434, tokens=None, running=None, waiting=None)
    seen = once(b.healthy_snapshot(processes=(router, ollama), servers=(found,)))
    assert seen.state is State.HEALTHY
    assert len(seen.gaps) == 2  # and said all the same
    loaded = b.process(5002, "/usr/bin/ollama runner --model x", ppid=5001, holds=b.holding(0))
    snapshot = b.healthy_snapshot(processes=(ollama, loaded), servers=(found,), gpus=b.serving_gpus(5000, tp=1))
    assert once(snapshot).state is State.UNCERTAIN


# ----------------------------------------------------------------------------------------------- crash loop


def test_the_same_launch_failing_again_under_a_new_key_is_a_crash_loop() -> None:
    seen, _ = assess(b.serving_snapshot(processes=zombie_ranks(5000)), Past(), LIMITS)
    (group,) = [g for g in seen.groups if not g.protected]
    ended = Past(ended=frozenset({(group.key, fingerprint(group))}), first=Mark(b.BOOT, b.UPTIME_S))
    assert "crash-loop" not in signals(once(b.serving_snapshot(processes=zombie_ranks(5000)), ended))
    again = once(b.serving_snapshot(processes=zombie_ranks(6000)), ended)
    assert "crash-loop" in signals(again)
    assert finding(again, "crash-loop").cure is None
    well = b.serving_snapshot(processes=b.sglang_group(6000), gpus=b.serving_gpus(6000))
    assert once(well, ended).state is State.HEALTHY
    assert server(well, ended).supervised_again
    other = zombie_ranks(6000, (*b.LAUNCH, "--context-length", "1024"))
    assert "crash-loop" not in signals(once(b.serving_snapshot(processes=other), ended))


def zombie_ranks(first: int, launch: tuple[str, ...] = b.LAUNCH) -> tuple[Process, ...]:
    main, *rest = b.sglang_group(first, launch=launch)
    return (main, *(b.zombie(p.pid, p.comm, ppid=first, pgid=first, sid=first) for p in rest))


def test_our_own_acts_kill_is_not_the_kernels() -> None:
    line = "Out of memory: Killed process 5005, UID 0, (sglang::schedul) total-vm:1kB"
    past = Past(first=Mark(b.BOOT, b.UPTIME_S - 100), own_acts=(OwnActs(b.BOOT, b.UPTIME_S - 90, b.UPTIME_S - 10),))
    snapshot = b.serving_snapshot(processes=without(b.sglang_group(), "sglang::scheduler_TP3"), kernel=b.kernel(line))
    assert signals(once(snapshot, past)) == []
