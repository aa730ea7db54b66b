"""Groups: all of one server together, two servers apart, and who owns them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core import engines
from recover.core.groups import fingerprint, form
from recover.core.owners import by_cgroup, container_of
from recover.core.redact import redact
from recover.model.process import Group, OwnerKind, Process, Rank
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from tests.core import builders as b
from tests.core import cases

POD = "0a1b2c3d_0000_1111_2222_333344445555"


def servers(*processes: Process, **changes: object) -> list[Group]:
    snapshot = b.healthy_snapshot(processes=tuple(processes), **changes)
    return [g for g in form(snapshot) if not g.protected]


def pids(group: Group) -> set[int]:
    return {member.pid for member in group.members}


def test_a_server_is_one_group_with_all_its_processes() -> None:
    (group,) = servers(*b.sglang_group(5000))
    assert pids(group) == set(range(5000, 5011))
    assert (group.engine, group.tp, group.key, group.owner.name) == ("sglang", 8, "5000@50000", "sglang.service")


def test_gpus_come_from_the_drivers_list_before_open_nodes() -> None:
    everything = frozenset(f"nvidia{i}" for i in range(8))
    processes = b.sglang_group(5000, tp=2, holds=everything)
    (group,) = servers(*processes, gpus=b.serving_gpus(5000, tp=2))
    assert group.gpus == {b.uuid(0), b.uuid(1)}
    (group,) = servers(*processes)
    assert len(group.gpus) == 8


def test_two_servers_from_one_script_stay_two_groups() -> None:
    common = {"pgid": 4000, "sid": 4000, "cgroup": b.SESSION_CGROUP}
    one = b.sglang_group(5000, tp=2, **common)
    two = b.sglang_group(6000, tp=2, gpu0=2, **common)
    groups = servers(b.process(4000, "bash run.sh", cgroup=b.SESSION_CGROUP), *one, *two)
    assert [len(g.members) for g in groups] == [5, 5]


def test_orphans_of_a_killed_server_are_a_group_of_their_own_beside_its_successor() -> None:
    """Same unit, same engine, same titles: the old ranks are older than the new main."""
    old = tuple(replace(p, ppid=1) for p in b.sglang_group(5000)[2:])
    groups = servers(*old, *b.sglang_group(6000))
    assert [len(g.members) for g in groups] == [9, 11]
    assert 6000 not in pids(groups[0])


def test_ranks_reparented_to_init_while_they_load_join_their_younger_fellows_main() -> None:
    """sglang pull request 31645: schedulers leave the launcher's tree during start."""
    main, *rest = b.sglang_group(5000)
    (group,) = servers(main, *(replace(p, ppid=1) for p in rest if "scheduler" in p.title))
    assert len(group.members) == 9


def test_a_zombie_main_is_found_by_its_process_group() -> None:
    ranks = tuple(replace(p, ppid=1) for p in b.sglang_group(5000)[2:])
    (group,) = servers(b.zombie(5000, "python3", pgid=5000, sid=5000), *ranks)
    assert 5000 in pids(group)


def test_plain_zombies_alone_are_no_group() -> None:
    assert servers(b.zombie(5002, "sglang::scheduler_TP0"), b.zombie(5003, "sglang::scheduler_TP1")) == []


def test_truncated_comm_of_a_dead_leader_is_enough() -> None:
    (group,) = servers(b.dead_leader(5000, "VLLM::Worker_TP0"))
    assert group.engine == "vllm"


def test_a_rank_without_title_is_known_by_its_gpu() -> None:
    """Untitled ranks show multiprocessing's spawn, a forked one its parent's command line."""
    main = b.process(5000, " ".join(b.LAUNCH), pgid=5000, sid=5000)
    spawned = b.process(
        5001, "python3 -c from multiprocessing.spawn import spawn_main", ppid=5000, holds=b.holding(0), pgid=5000
    )
    forked = b.process(5002, main.title, ppid=5000, holds=b.holding(1), pgid=5000)
    (group,) = servers(main, spawned, forked)
    assert (pids(group), group.gpus) == ({5000, 5001, 5002}, {b.uuid(0), b.uuid(1)})


def test_any_other_gpu_user_is_a_group_with_its_parents_and_children() -> None:
    job = b.process(7100, "python3 train.py", pgid=7100, sid=7100)
    ranks = tuple(b.process(7101 + i, "python3 train.py", ppid=7100, holds=b.holding(i), pgid=7100) for i in range(2))
    loader = b.process(7110, "python3 train.py", ppid=7101, pgid=7100)
    (group,) = servers(job, *ranks, loader)
    assert (group.engine, pids(group)) == ("other", {7100, 7101, 7102, 7110})


def test_words_in_an_editor_or_a_shell_do_not_make_a_server() -> None:
    assert servers(b.process(7000, "vim sglang.launch_server.md")) == []
    assert servers(b.process(7000, "bash -c python3 -m sglang.launch_server --tp 8", comm="bash")) == []
    assert servers(b.process(7000, "grep VLLM:: log", comm="grep")) == []


def test_an_engine_inside_a_script_has_that_script_as_main() -> None:
    script = b.process(5000, "python3 batch.py", pgid=5000, sid=5000)
    core = b.process(5001, "VLLM::EngineCore", ppid=5000, pgid=5000, holds=b.holding(0))
    (group,) = servers(b.process(4000, "bash", comm="bash", tty=34816), script, core)
    assert (group.engine, pids(group), group.title) == ("vllm", {5000, 5001}, "python3 batch.py")


@pytest.mark.parametrize(
    ("title", "comm"),
    [
        ("/usr/bin/nv-hostengine -n", "nv-hostengine"),
        ("/usr/bin/nvidia-persistenced", "nvidia-persiste"),
        ("/usr/lib/xorg/Xorg :0", "Xorg"),
        ("nvidia-cuda-mps-server", "nvidia-cuda-mps"),
        ("python3 -m sglang.srt.weight_cache.daemon --tp 8", "python3"),
        ("/usr/bin/nv-fabricmanager -c x", "nv-fabricmanage"),
    ],
)
def test_rightful_holders_are_protected(title: str, comm: str) -> None:
    held = b.process(7000, title, comm=comm, holds=b.holding(0))
    (group,) = [g for g in form(b.healthy_snapshot(processes=(held,))) if 7000 in pids(g)]
    assert group.protected


def test_the_protect_list_names_programs_and_units() -> None:
    held = b.process(7000, "/opt/exporter --all", comm="exporter", holds=b.holding(0), cgroup="/system.slice/x.service")
    for name in ("exporter", "x.service", "x"):
        snapshot = b.healthy_snapshot(processes=(held,), target=b.target(protect=(name,)))
        assert [g.protected for g in form(snapshot) if 7000 in pids(g)] == [f"protect: {name}"]


def test_our_own_probe_is_in_no_group() -> None:
    assert servers(b.process(7000, "python3 -", holds=b.holding(0), ours=True)) == []


def test_a_distributed_server_names_its_peers() -> None:
    launch = (*b.LAUNCH, "--nnodes", "2", "--node-rank", "1", "--dist-init-addr", "10.1.0.5:5000")
    (group,) = servers(*b.sglang_group(5000, launch=launch, peers=frozenset({"10.1.0.5"})))
    assert group.distributed
    assert group.peer_hosts == {"10.1.0.5"}


def test_secrets_of_a_launch_are_gone_and_do_not_change_its_fingerprint_word() -> None:
    launch = (*b.LAUNCH, "--api-key", "s3cret", "--hf-token=hf_abcdefghijklmnopqrstu", "https://u:pw@host/")
    (group,) = servers(*b.sglang_group(5000, launch=launch))
    text = repr(group)
    assert not any(word in text for word in ("s3cret", "hf_abc", "pw@"))
    assert fingerprint(group)
    assert redact(("--tokenizer", "path", "--max-total-tokens", "9")) == (
        "--tokenizer",
        "path",
        "--max-total-tokens",
        "9",
    )


@pytest.mark.parametrize(
    ("cgroup", "kind", "name"),
    [
        ("/system.slice/sglang.service", OwnerKind.SYSTEMD, "sglang.service"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service",
            OwnerKind.SYSTEMD_USER,
            "vllm.service",
        ),
        ("/system.slice/docker-0123456789abcdef.scope", OwnerKind.DOCKER, "0123456789abcdef"),
        ("/docker/0123456789abcdef", OwnerKind.DOCKER, "0123456789abcdef"),
        ("/machine.slice/libpod-0123456789abcdef.scope", OwnerKind.PODMAN, "0123456789abcdef"),
        (
            f"/kubepods.slice/kubepods-besteffort-pod{POD}.slice/cri-containerd-0123456789abcdef.scope",
            OwnerKind.KUBERNETES,
            "0a1b2c3d-0000-1111-2222-333344445555",
        ),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", OwnerKind.SLURM, "42"),
    ],
)
def test_owners_by_control_group(cgroup: str, kind: OwnerKind, name: str) -> None:
    owner = by_cgroup(cgroup)
    assert owner is not None
    assert (owner.kind, owner.name) == (kind, name)


def test_a_pod_is_called_by_its_namespace_and_name() -> None:
    uid = POD.replace("_", "-")
    cgroup = f"/kubepods.slice/kubepods-pod{POD}.slice/cri-containerd-0123456789abcdef.scope"
    snapshot = b.serving_snapshot(processes=b.sglang_group(cgroup=cgroup))
    named = replace(snapshot, guest=replace(snapshot.guest, pods=((uid, "team-a/vllm-0"),)))  # type: ignore[type-var]
    assert [g.owner.name for g in form(named) if not g.protected] == ["team-a/vllm-0"]
    assert [g.owner.name for g in form(snapshot) if not g.protected] == [uid]


def test_a_slurm_job_without_a_step_of_its_own_is_over_and_owns_nobody() -> None:
    """sglang issue 23627: schedulers ran on below pid 1 after Slurm had ended their job; scancel reaches nobody."""
    job = "/system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
    left = tuple(replace(p, ppid=1) for p in b.sglang_group(cgroup=job) if "TP" in p.title)
    step = b.process(900, "slurmstepd: [77.0]", comm="slurmstepd", cgroup=job)
    other = b.process(901, "slurmstepd: [7.0]", comm="slurmstepd")

    def owner(*steps: Process) -> OwnerKind:
        (group,) = servers(*steps, *left)
        return group.owner.kind

    assert owner() is owner(other) is OwnerKind.NONE
    assert owner(step) is OwnerKind.SLURM
    (hidden,) = form(b.healthy_snapshot(processes=Known(left)))  # not even init is shown: nobody is known to be gone
    assert hidden.owner.kind is OwnerKind.SLURM


def test_a_login_is_no_unit() -> None:
    assert by_cgroup(b.SESSION_CGROUP) is None
    assert by_cgroup("/system.slice/ssh.service") is None
    assert container_of(b.UNIT_CGROUP) == ""


def owner_below(*above: Process) -> OwnerKind:
    parent = above[-1].pid if above else 1
    main, *rest = b.sglang_group(5000, cgroup=b.SESSION_CGROUP)
    (group,) = servers(*above, replace(main, ppid=parent), *rest)
    return group.owner.kind


def test_owners_by_parents() -> None:
    tmux = b.process(4000, "tmux: server", comm="tmux: server", cgroup=b.SESSION_CGROUP)
    shell = b.process(4001, "-bash", ppid=4000, comm="bash", cgroup=b.SESSION_CGROUP)
    assert owner_below(tmux, shell) is OwnerKind.TERMINAL
    supervisor = b.process(4000, "/usr/bin/python3 /usr/bin/supervisord", comm="supervisord")
    assert owner_below(supervisor) is OwnerKind.SUPERVISORD
    assert owner_below() is OwnerKind.NONE


def test_a_kernel_of_a_notebook_owns_what_it_started() -> None:
    kernel = b.process(4000, "python3 -m ipykernel_launcher -f k.json", cgroup=b.SESSION_CGROUP)
    (group,) = servers(kernel, b.process(4001, "VLLM::EngineCore", ppid=4000, holds=b.holding(0)))
    assert group.owner.kind is OwnerKind.JUPYTER


@pytest.mark.parametrize(
    ("case", "engine", "titles"),
    [
        ("ps_sglang_reparented_to_init.txt", "sglang", {"sglang::scheduler_DP0_TP0_EP0"}),
        ("ps_vllm_R_state_unkillable.txt", "vllm", {"VLLM::EngineCore"}),
        ("ps_vllm_omni_stage_engines.txt", "vllm", {"VLLM::StageEngineCoreProc_DP0"}),
    ],
)
def test_process_tables_of_public_reports(case: str, engine: str, titles: set[str]) -> None:
    rows = cases.ps(case)
    table = tuple(b.process(pid, title, ppid=ppid) for pid, ppid, title in rows if pid > 1)
    (group,) = servers(*table)
    assert group.engine == engine
    named = {p.title for p in table if p.id in group.members}
    assert titles <= named


def test_the_key_is_stable_and_equal_launches_have_equal_fingerprints() -> None:
    (one,), (two,) = servers(*b.sglang_group(5000)), servers(*b.sglang_group(6000))
    (again,) = servers(*reversed(b.sglang_group(5000)))
    assert one == again
    assert one.key != two.key
    assert fingerprint(one) == fingerprint(two) != ""


def test_unknown_processes_make_no_group() -> None:
    from recover.model.reading import Unknown, Why

    snapshot: Snapshot = b.healthy_snapshot(processes=Unknown(Why.DENIED))
    assert form(snapshot) == ()
    assert isinstance(b.healthy_snapshot().guest.processes, Known)  # type: ignore[union-attr]


# ------------------------------------------------------------------------ what is started side by side ends apart


def apart(*processes: Process) -> list[set[int]]:
    return [pids(g) for g in servers(*processes)]


def test_notebooks_of_one_jupyter_are_nobodys_ranks() -> None:
    lab = b.process(4000, "/usr/bin/python3 /usr/bin/jupyter-lab")
    kernels = [b.process(n, f"python3 -m ipykernel_launcher -f {n}.json", ppid=4000) for n in (4001, 4002)]
    ranks = [b.process(n + 10, "sglang::scheduler", ppid=n, holds=b.holding(n - 4001)) for n in (4001, 4002)]
    assert apart(lab, *kernels, *ranks) == [{4001, 4011}, {4002, 4012}]


@pytest.mark.parametrize("rank", ["VLLM::EngineCore", "sglang::scheduler"])
def test_scripts_of_one_launcher_have_an_engine_each(rank: str) -> None:
    launcher = b.process(4000, "python3 run_all.py")
    scripts = [b.process(n, "python3 job.py", ppid=4000) for n in (4001, 4002)]
    cores = [b.process(n + 10, rank, ppid=n, holds=b.holding(n - 4001)) for n in (4001, 4002)]
    assert apart(launcher, *scripts, *cores) == [{4001, 4011}, {4002, 4012}]


def test_an_engine_in_an_actor_of_ray_is_not_all_of_ray() -> None:
    raylet = b.process(4000, "/opt/ray/raylet --x", comm="raylet")
    actors = [b.process(n, "ray::Server.run", ppid=4000, holds=b.holding(n - 4001)) for n in (4001, 4002)]
    core = b.process(4011, "VLLM::EngineCore", ppid=4001, holds=b.holding(0))
    assert apart(raylet, *actors, core) == [{4000, 4002}, {4001, 4011}]


def test_programs_of_one_launcher_are_jobs_and_ranks_of_one_program_are_one_job() -> None:
    manager = b.process(4000, "PM2 v5: God Daemon", comm="PM2")
    jobs = [b.process(4001 + i, f"python3 -u {name}.py", ppid=4000, holds=b.holding(i)) for i, name in enumerate("ab")]
    assert apart(manager, *jobs) == [{4001}, {4002}]
    torchrun = b.process(4000, "python3 /usr/bin/torchrun train.py")
    ranks = [
        b.process(4001 + i, f"python3 -u train.py --local-rank={i}", ppid=4000, holds=b.holding(i)) for i in range(2)
    ]
    assert apart(torchrun, *ranks) == [{4000, 4001, 4002}]


def test_jobs_of_one_shell_script_share_its_process_group_and_nothing_else() -> None:
    shell = b.process(4000, "bash run.sh", comm="bash", sid=4000)
    common = {"ppid": 4000, "pgid": 4000, "sid": 4000}
    a, c = (b.process(n, f"python3 {n}.py", holds=b.holding(n - 4001), **common) for n in (4001, 4002))
    unread = b.dead_leader(4003, "python3", holds=b.holding(3), **common)
    assert apart(shell, a, c, unread) == [{4001}, {4002}, {4003}]
    orphans = [b.process(5000 + i, "python3 train.py", pgid=4000, sid=4000, holds=b.holding(i)) for i in range(2)]
    assert apart(*orphans) == [{5000, 5001}]


def test_a_rank_too_many_is_of_another_server() -> None:
    """Also in the same session: it would be spared with the one that is well, and hold its GPU for ever."""
    launch = ("python3", "-m", "sglang.launch_server", "--tp", "2")
    well = b.sglang_group(5000, tp=2, launch=launch)
    stray = b.process(5100, "sglang::scheduler_TP3", pgid=5000, sid=5000, holds=b.holding(3))
    assert apart(*well, stray)[1] == {5100}
    detached = [replace(p, ppid=1) if p.title.endswith("TP1") else p for p in well]
    assert apart(*detached) == [{p.pid for p in well}]


def test_renamed_ranks_of_vllm_are_its_ranks() -> None:
    for title in ("prod::EngineCore", "prod::Worker_DP0_TP3", "prod::EngineCore_DP1"):
        (group,) = servers(b.process(5000, title, holds=b.holding(0)))
        assert group.engine == "vllm"
    (group,) = servers(b.process(5000, "", comm="prod::EngineCor", holds=b.holding(0)))
    assert group.engine == "vllm"
    (group,) = servers(b.process(5000, "game::EngineRoom", holds=b.holding(0)))
    assert group.engine == "other"


def test_mpi_itself_is_no_engine() -> None:
    mpirun = b.process(4000, "mpirun -n 2 python3 train.py", comm="mpirun")
    ranks = [b.process(4001 + i, "python3 train.py", ppid=4000, holds=b.holding(i)) for i in range(2)]
    (group,) = servers(mpirun, *ranks)
    assert group.engine == "other"


@pytest.mark.parametrize(
    ("title", "engine", "rank"),
    [
        ("/opt/conda/bin/python3.11 /opt/conda/bin/text-generation-server serve m --sharded", "tgi", Rank.WORKER),
        ("text-generation-launcher --model-id m --num-shard 2", "tgi", Rank.MAIN),
        ("/opt/venv/bin/python -m lmdeploy serve api_server m --tp 2", "lmdeploy", Rank.MAIN),
        ("/usr/bin/python3 /usr/local/bin/lmdeploy serve api_server m", "lmdeploy", Rank.MAIN),
        ("python3 -m sglang.cli.main serve m", "sglang", Rank.MAIN),
        ("./llama-server -m m.gguf", "llama.cpp", Rank.MAIN),
        ("/tmp/ollama1/runners/cuda_v12/ollama_llama_server --model m", "ollama", Rank.WORKER),
        ("VLLM::Worker_DP0_TP3_EP3", "vllm", Rank.WORKER),
        ("sglang::scheduler_DP1_TP0_EP0", "sglang", Rank.WORKER),
    ],
)
def test_engines_by_the_commands_that_start_them(title: str, engine: str, rank: Rank) -> None:
    found = engines.classify(b.process(50, title))
    assert found is not None and (found[0].name, found[1]) == (engine, rank)


@pytest.mark.parametrize("title", ["vim text-generation-server", "python3 /srv/text-generation-server-tests.py",
                                   "tail -f /var/log/lmdeploy serve.log"])  # fmt: skip
def test_who_only_mentions_an_engine_is_none(title: str) -> None:
    assert engines.classify(b.process(50, title)) is None
