"""Services and restarts by a real systemd as pid 1: what its manager says is what became of them.

One machine for all: the tests that restart it come last, in their order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.boot import BootWatch
from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.shell.ssh import SshShell
from recover.model.act import (
    Action,
    AwaitBoot,
    Outcome,
    RebootGuest,
    RestoreAutostart,
    StartService,
    StopService,
    SuspendAutostart,
)
from recover.model.guest import Guest, Mute, Service
from recover.model.reading import Known
from recover.steps.boot import objection

from . import inside, kinds
from .machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(900), pytest.mark.xdist_group("vm-systemd")]

INHIBIT = ("systemd-inhibit --what=shutdown --mode=block --who=apt --why='an update runs' /run/vm/busybox "
           "sleep 600 >/dev/null 2>&1 & echo $! >/run/inhibits;")  # fmt: skip


@dataclass
class Booted:
    vm: Machine
    shell: SshShell
    probe: GuestProbe

    def act(self, action: Action) -> Outcome:
        return GuestActuator(self.probe).perform(action)

    def look(self) -> Guest:
        assert self.shell.connect(240.0, patient=True) is None
        seen = self.probe.look(deadline=240.0)
        assert isinstance(seen, Guest), seen
        return seen

    def service(self, name: str) -> Service:
        seen = self.look().services
        assert isinstance(seen, Known), seen
        return next(s for s in seen.value if s.name == name)

    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id")

    def run(self, script: str) -> str:
        return inside.run(self.shell, script, deadline=120.0)


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with Machine.up(tmp_path_factory.mktemp("systemd"), kinds.systemd()) as vm:
        shell = vm.shell()
        settings = ProbeSettings(services=("llm.service", "llm.slice", "stuck.service"), health_ports=False)
        found = Booted(vm, shell, GuestProbe(shell, settings))
        until(lambda: found.run("systemctl is-system-running || true") == "running")
        found.run("systemctl enable --quiet llm.service")
        yield found


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_a_unit_with_restart_always_stays_stopped_and_starts_again(booted: Booted) -> None:
    before = booted.service("llm.service")
    assert (before.state, before.restart, before.enabled, before.within) == ("active", "always", "enabled", "llm.slice")
    stopped = booted.act(StopService("systemd", "llm.service", 60.0))
    assert stopped.ok and stopped.changed, stopped
    assert booted.run("sleep 1; systemctl is-active llm.service || true") == "inactive"
    assert booted.run("cat /sys/fs/cgroup/llm.slice/llm.service/cgroup.procs 2>/dev/null || true") == ""
    started = booted.act(StartService("systemd", "llm.service", 60.0))
    assert started.ok and started.changed, started
    assert booted.run("systemctl show -p MainPID --value llm.service") not in ("0", str(before.main_pid))


def test_a_killed_main_is_started_again_by_its_manager_which_is_why_it_is_asked(booted: Booted) -> None:
    again = booted.run("old=$(systemctl show -p MainPID --value llm.service); kill -9 $old; for i in $(seq 100); do "
                       "new=$(systemctl show -p MainPID --value llm.service); [ $new -gt 0 ] && [ $new != $old ] && "
                       "break; sleep 0.1; done; systemctl show -p ActiveState,NRestarts --value llm")  # fmt: skip
    assert sorted(again.split()) == ["1", "active"]


def test_a_users_own_unit_is_stopped_through_his_manager(booted: Booted) -> None:
    done = booted.act(StopService("systemd-user", "llm-user.service", 60.0, uid=1000))
    assert done.ok and done.changed, done
    assert booted.run("runuser -u llm -- env XDG_RUNTIME_DIR=/run/user/1000 "
                      "systemctl --user is-active llm-user.service || true") == "inactive"  # fmt: skip
    assert booted.act(StartService("systemd-user", "llm-user.service", 60.0, uid=1000)).changed


def test_autostart_is_suspended_by_disable_never_by_a_mask_and_comes_back(booted: Booted) -> None:
    off = booted.act(SuspendAutostart("systemd", "llm.service", "enabled"))
    assert off.ok and off.changed, off
    said = "systemctl is-enabled llm.service || true; systemctl is-active llm.service"
    assert booted.run(said).split() == ["disabled", "active"], "it runs on"
    back = booted.act(RestoreAutostart("systemd", "llm.service", "enabled"))
    assert back.ok and back.changed
    assert booted.run("systemctl is-enabled llm.service; readlink /etc/systemd/system/llm.service || true") == "enabled"


def test_a_stop_that_hangs_is_said_at_its_deadline(booted: Booted) -> None:
    booted.run("systemctl start stuck.service; sleep 0.5")
    try:
        for _ in range(10):  # on a busy machine systemd itself is reached only after some deadlines
            done = booted.act(StopService("systemd", "stuck.service", 3.0))
            if "still active" not in done.detail:
                break
        assert not done.ok and done.clear and "deactivating" in done.detail, done
    finally:  # else it would hold up the reboot of the tests that follow
        booted.run("systemctl kill -s KILL stuck.service; for i in $(seq 50); do systemctl is-failed -q stuck.service "
                   "&& break; sleep 0.1; done; systemctl reset-failed stuck.service || true")  # fmt: skip


def test_who_forbids_a_shutdown_is_seen_named_and_obeyed(booted: Booted) -> None:
    booted.run(INHIBIT + " for i in $(seq 100); do [ -e /run/systemd/inhibit/1 ] && break; sleep 0.1; done")
    seen = booted.look()
    refused = objection(seen)
    assert refused is not None and refused.guard == "inhibitor", seen.boot
    assert "apt" in refused.why and "an update runs" in refused.why
    done = booted.act(RebootGuest(seen.identity.boot_id, 300.0))
    assert not done.ok and done.clear and not done.changed and "apt" in done.detail, done
    assert booted.boot_id() == seen.identity.boot_id
    gone = "for i in $(seq 100); do [ -e /run/systemd/inhibit/1 ] || break; sleep 0.1; done"
    booted.run("kill $(cat /run/inhibits); " + gone)


def watch(booted: Booted) -> BootWatch:
    def look(left: float) -> Guest | Mute:
        return booted.probe.look(deadline=left)

    return BootWatch(look, booted.shell.forget, every_s=0.5)


def test_a_clean_reboot_is_another_boot_asked_for_once(booted: Booted) -> None:
    old = booted.boot_id()
    asked = booted.act(RebootGuest(old, 300.0))
    assert asked.ok and asked.changed, asked
    back = watch(booted)(AwaitBoot(old, 0, 400.0))
    assert back.ok, (back, booted.vm.console()[-2000:])
    new = booted.boot_id()
    assert new != old and booted.run("systemctl is-active llm.service") == "active", "what is wanted started by itself"
    again = booted.act(RebootGuest(old, 300.0))
    assert again.ok and not again.changed and booted.boot_id() == new, "of the boot that was meant, and no other"


def test_a_reboot_that_a_unit_holds_up_never_becomes_another_boot(booted: Booted) -> None:
    """The next rung is the VM's: nothing inside is asked again."""
    booted.run("systemctl start stuck.service; sleep 0.5")
    old = booted.boot_id()
    asked = booted.act(RebootGuest(old, 300.0))
    assert asked.ok and asked.changed, asked
    hung = watch(booted)(AwaitBoot(old, 0, 8.0))
    assert not hung.ok and "no new boot within 8 s" in hung.detail, hung
    assert booted.vm.monitor.alive, "QEMU runs on, as Proxmox sees it"
