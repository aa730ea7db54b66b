"""end-workers ends what is dead or hung: asked first, killed second, and nothing else is ever signalled."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.model.act import AwaitGone, EndMpsClient, Pass, Refuse, Signal
from recover.model.guest import MpsClient
from recover.model.process import Health, Owner, OwnerKind
from recover.model.reading import Known, Unknown, Why
from tests.core import builders as b
from tests.steps.looks import acts, dead, group, must, plan, plan_for, signalled


def server(*, tp: int = 2, first: int = 5000, **changes):
    processes = b.sglang_group(first, tp=tp, **changes)
    return processes, group(*(p.pid for p in processes))


def look(processes, *groups, **changes):
    return b.healthy_snapshot(processes=tuple(processes), groups=groups, **changes)


def test_term_to_the_main_then_quit_then_kill_to_all():
    processes, sick = server()
    line = plan_for("end-workers", look(processes, sick), term_deadline=20.0, kill_deadline=40.0)
    everyone = tuple(p.id for p in processes)
    main = everyone[:1]
    assert acts(line) == [
        Signal(sick.key, main, "TERM", descendants=False),
        AwaitGone(sick.key, everyone, 20.0),
        Signal(sick.key, main, "QUIT", descendants=False),
        AwaitGone(sick.key, everyone, 5.0),
        Signal(sick.key, everyone, "KILL"),
        AwaitGone(sick.key, everyone, 40.0),
    ]
    assert must(line) == [False] * 5 + [True]
    assert line.worst_case_s >= 65


def test_orphaned_ranks_are_each_asked_and_get_no_quit():
    ranks = [b.process(5000 + i, f"sglang::scheduler_TP{i}", ppid=1, comm="sglang::schedul") for i in range(3)]
    line = plan_for("end-workers", look(ranks, group(5000, 5001, 5002)))
    assert acts(line)[0].members == tuple(r.id for r in ranks)
    assert {do.signal for do in acts(line) if isinstance(do, Signal)} == {"TERM", "KILL"}


def test_vllm_gets_no_quit():
    processes, sick = server()
    line = plan_for("end-workers", look(processes, replace(sick, engine="vllm")))
    assert "QUIT" not in {do.signal for do in acts(line) if isinstance(do, Signal)}


def test_groups_are_waited_for_together():
    one, first = server()
    two, second = server(first=7000)
    line = plan_for("end-workers", look((*one, *two), first, second))
    waits = [do for do in acts(line) if isinstance(do, AwaitGone)]
    assert len(waits) == 3
    assert set(waits[0].members) == {p.id for p in (*one, *two)}


def test_a_plain_zombie_holds_nothing_and_its_parent_is_named():
    parent = b.process(4000, "bash", comm="bash")
    offered = plan_for("end-workers", look([parent, b.zombie(5000, "sglang::schedul", ppid=4000)], group(5000)))
    assert isinstance(offered, Pass)
    assert "pid 4000 (bash)" in offered.why


def test_a_dead_leader_with_a_live_thread_is_killed():
    leader = b.dead_leader(5000, "sglang::schedul")
    assert signalled(plan_for("end-workers", look([leader], group(5000)))) == {leader.id}


def test_zombies_of_a_group_that_lives_are_not_signalled():
    processes = [b.zombie(5000, "python3"), b.process(5001, "sglang::scheduler_TP0", comm="sglang::schedul")]
    assert signalled(plan_for("end-workers", look(processes, group(5000, 5001)))) == {b.pid(5001)}


def test_what_criu_restored_is_refused():
    processes, sick = server(criu_restored=True)
    offered = plan_for("end-workers", look(processes, sick))
    assert isinstance(offered, Refuse)
    assert offered.guard == "criu-restored"


def test_a_pod_is_refused_with_its_command_but_others_end_first():
    pod = group(7000, owner=Owner(OwnerKind.KUBERNETES, "0a1b"))
    processes, sick = server()
    pod_process = b.process(7000, "python3")
    assert signalled(plan_for("end-workers", look([*processes, pod_process], sick, pod))) == {p.id for p in processes}
    offered = plan_for("end-workers", look([pod_process], pod))
    assert isinstance(offered, Refuse)
    assert "kubectl delete pod <its pod, uid 0a1b>" in offered.lift


def test_what_came_back_after_its_end_is_refused():
    processes, sick = server()
    offered = plan_for("end-workers", look(processes, replace(sick, supervised_again=True)))
    assert isinstance(offered, Refuse)
    assert offered.guard == "supervised"


# MPS


def with_mps(snapshot, *rows):
    return replace(snapshot, guest=replace(snapshot.guest, mps=tuple(MpsClient(*row) for row in rows)))


def clients_of(line):
    return [(a.do.server.pid, a.do.client.pid, a.must) for a in line.acts if isinstance(a.do, EndMpsClient)]


def test_clients_of_mps_end_the_mps_way_before_any_signal():
    processes, sick = server()
    daemon = b.process(400, "nvidia-cuda-mps-server", comm="nvidia-cuda-mps")
    line = plan_for("end-workers", with_mps(look((*processes, daemon), sick), (400, 5001), (400, 5002)))
    assert clients_of(line) == [(400, 5001, False), (400, 5002, False)]
    kinds = [type(do) for do in acts(line)]
    assert kinds.index(Signal) > max(i for i, kind in enumerate(kinds) if kind is EndMpsClient)
    assert "QUIT" not in {do.signal for do in acts(line) if isinstance(do, Signal)}


def test_where_the_server_has_other_clients_nothing_is_killed_unless_it_let_go():
    processes, sick = server()
    daemon = b.process(400, "nvidia-cuda-mps-server", comm="nvidia-cuda-mps")
    other = b.process(900, "python3 train.py")
    line = plan_for("end-workers", with_mps(look((*processes, daemon, other), sick), (400, 5001), (400, 900)))
    assert clients_of(line) == [(400, 5001, True)]


# Shell loops


def loop(*argv, **changes):
    given = {"comm": "bash", "argv": Known(argv or ("bash", "serve.sh")), **changes}
    return b.process(4900, "bash serve.sh", **given)


def looped(shell, *more, again=True):
    processes, sick = server()
    processes = tuple(replace(p, ppid=4900) if p.pid == 5000 else p for p in processes)
    owner = Owner(OwnerKind.SHELL, "bash", "pid 4900")
    return look((*processes, shell, *more), replace(sick, owner=owner, supervised_again=again))


def test_a_shell_loop_ends_with_what_it_started_again():
    line = plan_for("end-workers", looped(loop()))
    assert acts(line)[0] == Signal("5000@50000", (b.pid(4900),), "KILL", descendants=False)
    assert "starts it again" in line.words[0]
    first = plan_for("end-workers", looped(loop(), again=False))
    assert b.pid(4900) not in signalled(first)


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        (loop("-bash"), ()),
        (loop("bash"), ()),
        (loop("bash", "-i"), ()),
        (loop("bash", "--login", "x.sh"), ()),
        (loop(ours=True), ()),
        (loop(comm="tmux: server"), ()),
        (loop(), (b.process(4950, "vim notes", ppid=4900),)),
    ],
    ids=["login", "interactive", "-i", "--login", "ours", "no-shell", "other-child"],
)
def test_somebodys_shell_is_never_ended(shell, more):
    offered = plan_for("end-workers", looped(shell, *more))
    assert isinstance(offered, Refuse) and offered.guard == "supervised"


def test_what_a_member_started_and_others_own_is_spared():
    processes, sick = server()
    mine = b.process(6000, "sglang::detokenizer", ppid=5000)
    other = group(6000, health=Health.HEALTHY)
    line = plan_for("end-workers", look((*processes, mine), sick, other))
    kills = [do for do in acts(line) if isinstance(do, Signal) and do.signal == "KILL"]
    assert [do.spare for do in kills] == [(b.pid(6000),)]


@pytest.mark.parametrize("health", [Health.HEALTHY, Health.STARTING, Health.LIVE])
def test_a_finding_alone_never_ends_what_is_not_sick(health):
    processes, sick = server()
    well = replace(sick, health=health)
    assert isinstance(plan("end-workers", look(processes, well), dead(well.key)), Pass)


def test_evict_adds_what_shows_no_health_and_drain_adds_all():
    processes, sick = server()
    live, well = replace(sick, health=Health.LIVE), replace(sick, health=Health.HEALTHY)
    assert signalled(plan("end-workers", look(processes, live), evict=True))
    assert not signalled(plan("end-workers", look(processes, well), evict=True))
    assert signalled(plan("end-workers", look(processes, well), drain=True))


def test_without_a_process_table_the_members_that_are_known_are_ended():
    snapshot = b.healthy_snapshot(groups=(group(5000),), processes=Unknown(Why.TIMEOUT))
    assert signalled(plan_for("end-workers", snapshot)) == {b.pid(5000)}


HEALTHS = st.sampled_from(list(Health))


@given(
    healths=st.lists(HEALTHS, min_size=1, max_size=5),
    protected=st.sets(st.integers(0, 4)),
    named=st.sets(st.integers(0, 4)),
    ours=st.sets(st.integers(0, 4)),
    overlap=st.booleans(),
    evict=st.booleans(),
)
def test_what_is_well_protected_or_ours_is_never_signalled(healths, protected, named, ours, overlap, evict):
    processes, groups = [], []
    for i, health in enumerate(healths):
        first = 5000 + 100 * i
        members = [first, first + 1] + ([5000 + 100 * ((i + 1) % len(healths))] if overlap else [])
        processes += [b.process(p, "python3", ours=i in ours) for p in (first, first + 1)]
        groups.append(group(*members, health=health, protected="monitor" if i in protected else ""))
    findings = [dead(groups[i].key) for i in named if i < len(groups)]
    snapshot = look(processes, *groups)
    hit = signalled(plan("end-workers", snapshot, *findings, evict=evict))
    for i, one in enumerate(groups):
        allowed = {Health.DEAD, Health.HUNG} | ({Health.LIVE} if evict else set())
        if one.protected or one.health not in allowed:
            assert not hit & set(one.members)
        if i in ours:
            assert not hit & {b.pid(5000 + 100 * i), b.pid(5001 + 100 * i)}
    assert not hit & {p.id for p in b.system_processes()}
