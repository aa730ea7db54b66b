"""Who keeps a dead group in the process table is ended only by the word of the playbook, and only without other work.

Seen to catch: the look for other children, or for a container's init, left out of the planner.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.blast import blast
from recover.model.act import EndZombieParent, Line, Pass
from recover.model.process import Health
from recover.model.reading import Known
from recover.model.verdict import Scope
from tests.core import builders as b
from tests.steps.looks import acts, group, plan_for


def script(*argv, **changes):
    given = {"title": "bash serve.sh", "comm": "bash", "argv": Known(argv or ("bash", "serve.sh")), **changes}
    return b.process(4900, **given)


def below(shell, *more, **changes):
    """A dead server that `shell` started."""
    ranks = b.sglang_group(5000, tp=2)
    ranks = tuple(replace(p, ppid=shell.pid) if p.pid == 5000 else p for p in ranks)
    target = changes.pop("target", b.target())
    return b.healthy_snapshot(
        processes=(*ranks, shell, *more), groups=(group(*(p.pid for p in ranks)),), target=target, **changes
    )


def keepers(snapshot, **params):
    return [do for do in acts(plan_for("end-workers", snapshot, **params)) if isinstance(do, EndZombieParent)]


def test_a_script_that_may_keep_its_dead_is_ended_last_and_named():
    snapshot = below(script())
    (found,) = keepers(snapshot, end_zombie_parents=True)
    assert found.parent == b.pid(4900) and found.children == (b.pid(5000),)
    line = plan_for("end-workers", snapshot, end_zombie_parents=True)
    assert isinstance(line, Line) and line.acts[-1].do == found and not line.acts[-1].must
    assert "pid 4900 (bash) is ended too if it does not reap what is dead" in line.words
    assert ("process", "bash serve.sh (pid 4900)") in {
        (h.kind, h.name) for h in blast(snapshot, Scope.PROCESS, line).hits
    }


def test_without_the_playbooks_word_nobody_is():
    assert keepers(below(script())) == []


def test_where_only_zombies_are_left_their_parent_is_all_that_is_ended():
    rank = b.zombie(5000, "sglang::schedul", ppid=4900)
    snapshot = b.healthy_snapshot(processes=(script(), rank), groups=(group(5000),))
    assert isinstance(plan_for("end-workers", snapshot), Pass)
    assert acts(plan_for("end-workers", snapshot, end_zombie_parents=True)) == [
        EndZombieParent("5000@50000", b.pid(4900), (b.pid(5000),))
    ]


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        (script("-bash"), ()),
        (script("bash", "-i"), ()),
        (script(tty=34816, sid=4900), ()),
        (script(ours=True), ()),
        (script(comm="tmux: server"), ()),
        (script(comm="docker-init"), ()),
        (script(comm="containerd-shim"), ()),
        (script(comm="supervisord"), ()),
        (script(ns_pids=(4900, 1)), ()),
        (script(comm="python3", title="python3 -m ipykernel_launcher"), ()),
        (script(), (b.process(4950, "vim notes", ppid=4900),)),
    ],
    ids=["login", "interactive", "tty", "ours", "tmux", "docker-init", "shim", "supervisord", "init", "kernel", "work"],
)
def test_somebodys_process_is_only_named(shell, more):
    assert keepers(below(shell, *more), end_zombie_parents=True) == []


def test_what_protect_names_is_spared():
    assert keepers(below(script(), target=b.target(protect=("bash",))), end_zombie_parents=True) == []


def test_pid_1_and_a_healthy_server_are_spared():
    assert keepers(below(b.process(1, "/sbin/init", ppid=0, comm="bash")), end_zombie_parents=True) == []
    snapshot = below(script())
    well = replace(snapshot, groups=(*snapshot.groups, group(4900, health=Health.HEALTHY)))
    assert keepers(well, end_zombie_parents=True) == []


SHELL = st.builds(
    dict,
    comm=st.sampled_from(["bash", "python3", "sshd", "tmux: server", "tini", "systemd", "launcher"]),
    ours=st.booleans(),
    tty=st.sampled_from([0, 34816]),
    ns_pids=st.sampled_from([(), (4900,), (4900, 7), (4900, 1)]),
    state=st.sampled_from(["S", "D", "R"]),
)


@given(
    shell=SHELL, busy=st.booleans(), sick=st.sampled_from(list(Health)), protected=st.booleans(), member=st.booleans()
)
def test_never_one_that_is_ours_of_others_an_init_or_at_work(shell, busy, sick, protected, member):
    parent = script(**shell)
    more = (b.process(4950, "python3 train.py", ppid=4900),) if busy else ()
    snapshot = below(parent, *more)
    if member:
        other = group(4900, health=sick, protected="protect: x" if protected else "")
        snapshot = replace(snapshot, groups=(*snapshot.groups, other))
    for found in keepers(snapshot, end_zombie_parents=True):
        assert not (parent.ours or busy or parent.tty)
        assert parent.comm not in ("sshd", "tmux: server", "tini", "systemd") and parent.ns_pids[-1:] != (1,)
        assert not (member and (protected or sick not in (Health.DEAD, Health.HUNG)))
        assert found.parent == parent.id
