"""reboot-guest asks the guest's own init, unless somebody objects; a reboot that hangs is a finding for the VM."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.diagnose import _look
from recover.core.guards import Context, refusal
from recover.core.past import Past, Reboot
from recover.core.signals.reboot import reboot_hangs
from recover.model.act import AwaitBoot, Pass, RebootGuest, Refuse, StopService, SuspendAutostart, SyncDisks
from recover.model.contact import Failure
from recover.model.guest import BootFacts, Inhibitor, Module, Mute, Service
from recover.model.hypervisor import AgentState
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from recover.steps.table import ALL_STEPS
from tests.core import builders as b
from tests.core.looks import LIMITS
from tests.steps.looks import UNIT, acts, dead, group, must, plan, vm

STUCK = dead(None, Scope.GUEST, "ram-unowned")
SYSTEMD = BootFacts("systemd", state="running")
UPDATE = Inhibitor("apt (pid 7)", "packages are unpacked", "block")


def look(facts=SYSTEMD, **changes):
    snapshot = b.healthy_snapshot(**changes)
    return replace(snapshot, guest=replace(snapshot.guest, boot=Known(facts)))


def test_disks_first_then_the_reboot_then_its_proof():
    line = plan("reboot-guest", look(), STUCK)
    assert acts(line) == [SyncDisks(), RebootGuest(b.BOOT, 900.0), AwaitBoot(b.BOOT, b.GPUS, 900.0)]
    assert must(line) == [False, True, True]


@pytest.mark.parametrize("facts", [BootFacts("openrc-init"), BootFacts("python3"), BootFacts("systemd (not booted)")])
def test_another_init_is_passed_over(facts):
    assert isinstance(plan("reboot-guest", look(facts), STUCK), Pass)


def test_what_is_not_known_is_passed_over():
    snapshot = look()
    unknown = replace(snapshot, guest=replace(snapshot.guest, boot=Unknown(Why.TIMEOUT, "no word")))
    assert isinstance(plan("reboot-guest", unknown, STUCK), Pass)
    user = replace(snapshot, guest=replace(snapshot.guest, root=False))
    assert isinstance(plan("reboot-guest", user, STUCK), Pass)
    assert isinstance(plan("reboot-guest", b.mute_snapshot(Mute(Failure.REFUSED, "x")), STUCK), Pass)


def test_who_forbids_a_shutdown_is_named_and_stops_the_climb():
    refused = plan("reboot-guest", look(replace(SYSTEMD, inhibitors=(UPDATE,))), STUCK)
    assert isinstance(refused, Refuse) and "apt (pid 7)" in refused.why and refused.guard == "inhibitor"
    late = replace(SYSTEMD, inhibitors=(replace(UPDATE, mode="delay"),))
    assert not isinstance(plan("reboot-guest", look(late), STUCK), Refuse)
    assert not isinstance(plan("reboot-guest", look(replace(SYSTEMD, inhibitors=(UPDATE,))), STUCK, evict=True), Refuse)


def test_the_power_cycle_does_not_go_over_an_inhibitor():
    held = look(replace(SYSTEMD, inhibitors=(UPDATE,)), hypervisor=vm(), groups=(), gpus=(), processes=())
    assert refusal(held, ALL_STEPS["power-cycle-vm"], Context(approved=Scope.VM)).guard == "inhibitor"
    assert refusal(held, ALL_STEPS["power-cycle-vm"], Context(approved=Scope.VM, evict=True)) is None


def test_autostart_is_suspended_only_on_request():
    services = Known((Service("systemd", "sglang.service", "active", enabled="enabled", restart="always"),))
    sick = look(services=services, groups=(group(700, owner=UNIT),))
    assert not [a for a in acts(plan("reboot-guest", sick, STUCK)) if isinstance(a, StopService | SuspendAutostart)]
    done = acts(plan("reboot-guest", sick, STUCK, suspend_autostart=True))
    assert [type(a) for a in done[:3]] == [StopService, SuspendAutostart, SyncDisks]
    assert done[1] == SuspendAutostart("systemd", "sglang.service", "enabled")


def test_a_reboot_does_not_wait_for_an_unload_that_hangs():
    seen = look()
    stuck = Known((Module("nvidia", 0, (), "Unloading"),))
    offered = plan("reboot-guest", replace(seen, guest=replace(seen.guest, modules=stuck)), STUCK)
    assert isinstance(offered, Pass) and "hangs" in offered.why


ASKED = Past(reboot=Reboot(b.BOOT, 1000.0, 900.0, sure=True))


def hangs(snapshot, past=ASKED):
    return list(reboot_hangs(_look(snapshot, past, LIMITS)))


@pytest.mark.parametrize(
    ("failure", "at", "found"),
    [
        (Failure.REFUSED, 1900.0, "Finding"),
        (Failure.CONNECT_TIMEOUT, 1900.0, "Finding"),
        (Failure.REFUSED, 1899.0, "Watch"),
        (Failure.CHANGED_KEY, 1900.0, "Gap"),
        (Failure.AUTH, 1900.0, ""),
        (Failure.DNS, 1900.0, ""),
        (Failure.PROXY, 1900.0, ""),
    ],
)
def test_only_what_the_machine_itself_does_bears_witness(failure, at, found):
    silent = b.hypervisor(agent=Known(AgentState.SILENT))
    snapshot = replace(b.mute_snapshot(Mute(failure, "x"), hypervisor=silent), at=at)
    signs = hangs(snapshot)
    assert [type(s).__name__ for s in signs] == ([found] if found else [])
    if found == "Finding":
        assert signs[0].cure is Scope.VM and signs[0].at_least is Scope.VM


def test_an_agent_that_answers_makes_it_a_gap():
    answers = b.hypervisor(agent=Known(AgentState.ANSWERS))
    snapshot = replace(b.mute_snapshot(Mute(Failure.REFUSED, "x"), hypervisor=answers), at=1900.0)
    assert [type(s).__name__ for s in hangs(snapshot)] == ["Gap"]


@pytest.mark.parametrize(
    ("state", "sure", "hung"),
    [("stopping", False, True), ("running", True, False), ("", True, True), ("", False, False)],
)
def test_a_guest_that_is_still_up_hangs_only_if_it_is_going_down(state, sure, hung):
    past = Past(reboot=replace(ASKED.reboot, sure=sure))
    snapshot = replace(look(BootFacts("systemd", state=state)), at=1900.0)
    assert bool(hangs(snapshot, past)) == hung


def test_another_boot_is_the_end_of_it():
    snapshot = replace(b.healthy_snapshot(), at=1900.0)
    assert hangs(snapshot, Past(reboot=replace(ASKED.reboot, boot_id="the one before"))) == []
