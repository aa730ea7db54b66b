"""What serves here is kept from starting at the next boot only by the playbook's word, whichever manager starts it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.model.act import ResetVm, ShutdownVm, StopService, StopVm, SuspendAutostart, SyncDisks
from recover.model.contact import Failure
from recover.model.guest import Mute, Service
from recover.model.process import Owner, OwnerKind
from recover.model.reading import Known
from recover.model.verdict import Scope
from tests.core import builders as b
from tests.steps.looks import UNIT, acts, dead, group, must, plan, vm

STUCK = dead(None, Scope.VM, "unowned-memory")
SGLANG = Service("systemd", "sglang.service", "active", enabled="enabled", restart="always")
BOX = Service("docker", "llm", "running", restart="on-failure:5", id="ab" * 32)
PROGRAM = Service("supervisord", "llm", "RUNNING", main_pid=5000)
SUPERVISOR = Service("systemd", "supervisor.service", "active", enabled="enabled")


def look(*services, owner=UNIT, **changes):
    changes.setdefault("target", b.target(services=("sglang.service", "llm")))
    groups = changes.pop("groups", (group(5000, owner=owner),))
    return b.healthy_snapshot(hypervisor=vm(), services=Known(services), groups=groups, **changes)


@pytest.mark.parametrize("step", ["power-cycle-vm", "reset-vm"])
def test_before_the_vm_stops_and_never_in_its_way(step):
    assert SuspendAutostart not in {type(a) for a in acts(plan(step, look(SGLANG), STUCK))}
    line = plan(step, look(SGLANG), STUCK, suspend_autostart=True)
    held = [StopService("systemd", "sglang.service", 120.0), SuspendAutostart("systemd", "sglang.service", "enabled")]
    assert acts(line)[:2] == held and must(line)[:2] == [False, False]
    assert isinstance(acts(line)[2], SyncDisks) and isinstance(acts(line)[3], ShutdownVm | ResetVm)
    assert "sglang.service does not start at the next boot; that is put back at the end" in line.words


def test_a_mute_guest_is_not_asked():
    mute = replace(look(SGLANG), guest=Mute(Failure.BANNER_SILENCE, "silent"))
    done = acts(plan("power-cycle-vm", mute, STUCK, suspend_autostart=True))
    assert not {type(a) for a in done} & {StopService, SuspendAutostart} and StopVm in {type(a) for a in done}


@pytest.mark.parametrize("restart", ["always", "unless-stopped", "on-failure:5"])
def test_a_containers_policy_is_remembered_as_it_is(restart):
    done = acts(plan("power-cycle-vm", look(replace(BOX, restart=restart)), STUCK, suspend_autostart=True))
    assert done[1] == SuspendAutostart("docker", "llm", restart)


def test_what_does_not_start_by_itself_is_left():
    for one in (replace(BOX, restart="no"), replace(SGLANG, enabled="disabled")):
        done = acts(plan("power-cycle-vm", look(one), STUCK, suspend_autostart=True))
        assert SuspendAutostart not in {type(a) for a in done}


def test_what_is_stopped_already_would_start_too():
    done = acts(
        plan("power-cycle-vm", look(replace(SGLANG, state="inactive"), groups=()), STUCK, suspend_autostart=True)
    )
    assert done[0] == SuspendAutostart("systemd", "sglang.service", "enabled")
    assert StopService not in {type(a) for a in done}


def supervised(*services):
    daemon = b.process(400, "/usr/bin/python3 /usr/bin/supervisord -n", comm="supervisord",
                       cgroup="/system.slice/supervisor.service")  # fmt: skip
    member = b.process(5000, "python3 -m sglang.launch_server", ppid=400, cgroup="/system.slice/supervisor.service")
    return look(*services, owner=Owner(OwnerKind.SUPERVISORD), processes=(daemon, member))


def test_supervisord_that_runs_nothing_else_is_kept_from_starting_itself():
    done = acts(plan("reboot-guest", rebooting(supervised(PROGRAM, SUPERVISOR)), STUCK, suspend_autostart=True))
    assert done[:2] == [
        StopService("systemd", "supervisor.service", 120.0),
        SuspendAutostart("systemd", "supervisor.service", "enabled"),
    ]


def test_supervisord_that_runs_other_programs_too_is_left_and_that_is_said():
    other = Service("supervisord", "web", "RUNNING", main_pid=900)
    line = plan("power-cycle-vm", supervised(PROGRAM, other, SUPERVISOR), STUCK, suspend_autostart=True)
    assert SuspendAutostart not in {type(a) for a in acts(line)}
    assert line.words[0] == "llm: supervisord starts it at boot all the same, its configuration is not edited"


def rebooting(snapshot):
    from tests.steps.test_boot import SYSTEMD

    return replace(snapshot, guest=replace(snapshot.guest, boot=Known(SYSTEMD)))
