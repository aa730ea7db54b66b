"""A parent that keeps its dead is ended for real, and nobody who reaps, works, or is another by now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guest.conftest import BOOT, PLAIN, STUBBORN, ZOMBIE, member, start_of

# It keeps one dead child; a second one lives. And one that reaps after a moment.
BUSY = ZOMBIE.replace("print(", "if os.fork() == 0: time.sleep(600)\nprint(")
REAPS = ZOMBIE.replace("time.sleep(600)", "time.sleep(2); os.wait(); time.sleep(600)")
KEEPS_ON = STUBBORN.replace("import signal,time", "import os,signal,time\nif os.fork() == 0: os._exit(0)")


def child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def ask(agent, parent, child, **more):
    who = [BOOT, parent.pid, start_of(parent.pid)]
    words = {"parent": who, "members": [[BOOT, child, start_of(child)]], "deadline": 3.0, "grace": 0.3, **more}
    return agent("end_zombie_parent", **words).one("done")


@pytest.mark.parametrize("code", [ZOMBIE, KEEPS_ON], ids=["asked", "killed"])
def test_a_parent_that_keeps_its_dead_ends_and_they_are_reaped(code, start, agent):
    parent = start(code)
    child = child_of(parent.pid)
    done = ask(agent, parent, child)
    assert done.flag("ok") and done.flag("changed"), done.raw
    assert parent.wait(30) in (-15, -9)


def test_one_that_reaps_is_left(start, agent):
    parent = start(REAPS)
    done = ask(agent, parent, child_of(parent.pid), grace=20.0, deadline=30.0)
    assert done.flag("ok") and not done.flag("changed") and parent.poll() is None, done.raw


def test_one_that_has_other_work_is_left(start, agent):
    parent = start(BUSY)
    done = ask(agent, parent, child_of(parent.pid))
    assert not done.flag("ok") and not done.flag("changed") and "other children" in done.text("detail")
    assert parent.poll() is None


def test_a_protected_one_is_left(start, agent):
    parent = start(ZOMBIE)
    done = ask(agent, parent, child_of(parent.pid), protect_pids=[parent.pid])
    assert not done.flag("ok") and parent.poll() is None and "protected" in done.text("detail")


def test_another_process_behind_the_number_or_a_living_child_is_no_reason(start, agent):
    parent, other = start(ZOMBIE), start(PLAIN)
    child = child_of(parent.pid)
    wrong = [BOOT, parent.pid, start_of(parent.pid) - 1]
    for who, kid in ((wrong, member(child)), ([BOOT, parent.pid, start_of(parent.pid)], member(other.pid))):
        members = [[kid.boot_id, kid.pid, kid.start]]
        done = agent("end_zombie_parent", parent=who, members=members, deadline=4.0).one("done")
        assert done.flag("ok") and not done.flag("changed")
    assert parent.poll() is None and other.poll() is None
