"""Every act against the real HTTPS API of the lab: sent once, to the right guest, and proved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recover.edge.proxmox.client import Client
from recover.edge.proxmox.errors import ApiError, Kind
from recover.edge.proxmox.tasks import StillRunning, Tasks
from recover.model.act import AwaitBoot, StartVm, StopVm, SyncDisks, VmRef
from tests.edge.actuator.vm_bench import (
    DOWN,
    REF,
    RESET,
    SHUTDOWN,
    START,
    STOP,
    UUID,
    after_post,
    four,
)
from tests.edge.proxmox.conftest import GPU, VM


@pytest.mark.parametrize(
    ("message", "final"),
    [
        ("vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up", True),
        ("no PCI device found for '0000:41:00'", True),
        ("PCI device '0000:41:00.0' already in use by VMID '101'", True),
        ("cluster not ready - no quorum?", False),
        ("timeout waiting on systemd", False),
        ("VM is locked (backup)", False),
    ],
)
def test_a_start_that_a_device_forbids_is_not_tried_again(lab, message, final):
    """Each start resets the devices again: what was given up is left alone, what may pass is not."""
    server = lab(DOWN)
    server.inject(kind="task-error", action="start", message=message, times=None)
    outcome = server.act(START)
    assert not outcome.ok and outcome.final is final, outcome


# the good paths


def test_a_stop_is_sent_once_and_proved_by_state_and_host_memory(lab):
    server = lab()
    outcome = server.act(STOP)
    assert (outcome.ok, outcome.changed, outcome.clear) == (True, True, True), outcome
    assert server.vm["status"] == "stopped" and server.sent() == ["stop"]
    assert "65536 MiB came free" in outcome.log[-1] and "TASK OK" in outcome.log


def test_a_start_has_its_time_out_in_it_and_is_proved_by_qemu_s_own_state(lab):
    server = lab(DOWN)
    outcome = server.act(START)
    assert outcome.ok and outcome.changed, outcome
    assert server.vm["qmpstatus"] == "running" and server.sent() == ["start"]
    assert server.params()["timeout"] == "300"


def test_a_shutdown_is_never_forced(lab):
    server = lab()
    outcome = server.act(SHUTDOWN)
    assert outcome.ok and outcome.changed and server.vm["status"] == "stopped"
    assert server.sent() == ["shutdown"]
    assert (server.params()["forceStop"], server.params()["timeout"]) == ("0", "60")


def test_a_reset_keeps_the_process(lab):
    server = lab()
    pid = server.vm["pid"]
    outcome = server.act(RESET)
    assert outcome.ok and outcome.changed and server.vm["resets"] == 1
    assert server.vm["pid"] == pid and server.sent() == ["reset"]


def test_a_boot_is_awaited_by_whom_it_is_given_to(lab):
    server = lab()
    assert server.act(AwaitBoot("x", 8, 60.0)).detail == "8 GPUs"
    assert not server.act(SyncDisks()).ok
    other = server.act(StopVm(VmRef("lab2", 174, UUID)))
    assert (other.ok, other.changed) == (False, False) and "lab2" in other.detail
    assert not server.requests()


@pytest.mark.parametrize(("action", "vm"), [(STOP, DOWN), (SHUTDOWN, DOWN), (START, VM)])
def test_what_holds_already_is_not_done(lab, action, vm):
    server = lab(vm)
    outcome = server.act(action)
    assert (outcome.ok, outcome.changed) == (True, False) and "already" in outcome.detail
    assert not server.sent()


# whom it is sent to, and when not


@four
@pytest.mark.parametrize(
    "ref",
    [
        VmRef("pve", 174, "11111111" + UUID[8:], "node-174"),
        VmRef("pve", 174, "", "node-175"),
        VmRef("pve", 174, ""),
    ],
)
def test_another_guest_behind_the_number_is_left_alone(lab, action, vm, ref):
    server = lab(vm)
    outcome = server.act(replace(action, vm=ref))
    assert (outcome.ok, outcome.changed) == (False, False) and outcome.detail.startswith("identity: ")
    assert not server.sent()


def test_what_is_only_pending_is_not_yet_the_guest(lab):
    server = lab({**VM, "pending": {"smbios1": "uuid=11111111-0000-4000-8000-000000000174"}})
    assert server.act(RESET).ok


def test_without_a_uuid_the_name_tells(lab):
    assert lab().act(StopVm(VmRef("pve", 174, "", "node-174"))).ok


@four
def test_a_lock_is_somebody_at_work(lab, action, vm):
    server = lab({**vm, "lock": "backup"})
    outcome = server.act(action)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True)
    assert "VM 174 is locked (backup)" in outcome.detail and not server.sent()


@four
def test_a_task_of_somebody_else_is_not_disturbed(lab, action, vm):
    server = lab(vm, tasks=[{"type": "vzdump", "vmid": 174, "user": "kim@pam", "status": "running"}])
    outcome = server.act(action)
    assert (outcome.ok, outcome.changed) == (False, False)
    assert "vzdump by kim@pam" in outcome.detail and not server.sent()


def test_an_open_console_and_an_ended_backup_are_no_obstacle(lab):
    tasks = [{"type": "vncproxy", "vmid": 174, "user": "kim@pam", "status": "running"},
             {"type": "vzdump", "vmid": 174, "user": "kim@pam", "status": "OK"}]  # fmt: skip
    assert lab(tasks=tasks).act(STOP).ok


@four
def test_a_missing_privilege_is_named(lab, action, vm):
    server = lab(vm)
    server.call("deny", priv="VM.PowerMgmt")
    outcome = server.act(action)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True)
    assert "needs VM.PowerMgmt on /vms/174" in outcome.detail and len(server.sent()) == 1


def test_an_api_that_is_not_there_or_refuses_us_changes_nothing(lab):
    server = lab()
    server.call("token", revoke=True)
    refused = server.act(STOP)
    assert (refused.ok, refused.changed, refused.clear) == (False, False, True) and "auth" in refused.detail
    server.call("listener", index=0, up=False)
    gone = server.act(STOP)
    assert (gone.ok, gone.changed, gone.clear) == (False, False, True) and "unreachable" in gone.detail
    assert not server.sent()


def test_a_guest_that_is_not_there_or_not_shown(lab):
    outcome = lab().act(StopVm(VmRef("pve", 999, UUID)))
    assert (outcome.ok, outcome.changed) == (False, False) and "VM.Audit" in outcome.detail


def test_a_hostile_name_reaches_no_terminal(lab):
    server = lab()
    server.set_vm(174, name="evil\x1b[2J")
    assert server.act(StopVm(VmRef("pve", 174, "", "node-174"))).detail.startswith("identity: ")


def test_a_guest_that_moves_between_the_look_and_the_act_is_followed(lab):
    server = lab(nodes=[{"name": "pve1", "pci": [GPU]}, {"name": "pve2", "pci": [GPU]}])

    class Moving(Client):
        def post(self, where: str, **params: Any) -> Any:
            server.set_vm(174, node="pve2")
            return super().post(where, **params)

    outcome = server.act(STOP, Moving)
    assert outcome.ok and "on pve2 is stopped" in outcome.detail and server.sent() == ["stop", "stop"]


def test_a_list_that_lags_behind_is_asked_again(lab):
    server = lab()
    gone = "Configuration file 'nodes/pve1/qemu-server/174.conf' does not exist"
    server.inject("http", method="GET", path="*/status/current", status=500, message=gone)
    assert server.act(STOP).ok


# answers that are lost


@four
@pytest.mark.parametrize("kind", ["http", "cut"])
def test_a_lost_answer_whose_task_ran_is_found_and_not_sent_again(lab, action, vm, kind):
    server = lab(vm)
    server.inject(kind, path="/nodes/*/status/*", method="POST", when="after")
    outcome = server.act(action)
    assert outcome.ok and outcome.changed, outcome
    assert len(server.sent()) == 1


@four
def test_a_lost_answer_without_a_task_stays_unclear_and_is_not_sent_again(lab, action, vm):
    server = lab(vm)
    server.inject("http", path="/nodes/*/status/*", method="POST", when="before")
    outcome = server.act(action)
    assert (outcome.ok, outcome.clear) == (False, False) and "was lost" in outcome.detail
    assert server.vm["status"] == vm.get("status", "running") and len(server.sent()) == 1


@pytest.mark.parametrize(("action", "vm", "then"), [(STOP, VM, "stopped"), (START, DOWN, "running")])
def test_a_lost_answer_is_settled_by_the_state(lab, action, vm, then):
    server = lab(vm)
    server.inject("http", path="/nodes/*/status/*", method="POST", when="before")
    outcome = server.act(action, after_post(server, ("vm", {"vmid": 174, "set": {"status": then}})))
    assert outcome.ok and outcome.changed and "seen by its state" in outcome.detail
    assert len(server.sent()) == 1


def test_an_api_that_is_away_for_a_while_is_borne(lab):
    server = lab({**VM, "stop_secs": 20})
    server.inject("http", method="GET", path="/nodes/*", during="qmstop", vmid=174, times=6)
    outcome = server.act(STOP)
    assert outcome.ok and server.sent() == ["stop"], outcome


def test_an_api_that_stays_away_leaves_it_unclear_with_the_task_s_name(lab):
    server = lab()
    outcome = server.act(StopVm(REF), after_post(server, ("listener", {"index": 0, "up": False})))
    assert (outcome.ok, outcome.clear) == (False, False) and outcome.busy.startswith("UPID:pve1:")
    assert "could not be followed" in outcome.detail


@four
def test_a_task_without_an_end_is_named_and_left_alone(lab, action, vm):
    server = lab(vm)
    server.inject("hang", vmid=174)
    short = {StartVm: lambda: StartVm(REF, 60), StopVm: lambda: StopVm(REF)}
    outcome = server.act(short.get(type(action), lambda: type(action)(REF, 60.0))())
    assert (outcome.ok, outcome.clear) == (False, False) and outcome.busy.startswith("UPID:pve1:")
    assert len(server.sent()) == 1 and all(r["method"] != "DELETE" for r in server.requests())


def test_a_state_that_looks_right_is_not_settled_while_our_task_has_the_lock_file(lab):
    server = lab()
    server.inject("hang", vmid=174)
    outcome = server.act(StopVm(REF), after_post(server, ("vm", {"vmid": 174, "set": {"status": "stopped"}})))
    assert (outcome.ok, outcome.clear) == (False, False) and outcome.busy


# stops that are none


def test_a_stop_that_ends_ok_while_the_guest_runs_on(lab):
    server = lab({**VM, "stop_how": "still-runs"})
    outcome = server.act(STOP)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True)
    assert "the stop task ended OK and the VM still runs" in outcome.detail and server.sent() == ["stop"]


def test_a_killed_qemu_whose_memory_does_not_come_back(lab):
    server = lab({**VM, "stop_how": "zombie"})
    outcome = server.act(STOP)
    assert (outcome.ok, outcome.changed) == (False, True)
    assert outcome.detail.startswith("leftover QEMU suspected: ")
    assert any("terminating now with SIGKILL" in line for line in outcome.log)


@pytest.mark.parametrize("how", ["sigterm", "sigkill"])
def test_a_killed_qemu_whose_memory_came_back(lab, how):
    outcome = lab({**VM, "stop_how": how}).act(STOP)
    assert outcome.ok and any(f"with {how.upper()}" in line for line in outcome.log), outcome
    assert "QEMU" in outcome.detail and "came free" in outcome.log[-1]


def test_without_a_look_at_the_host_the_memory_is_not_provable(lab):
    server = lab({**VM, "stop_how": "zombie"})
    server.call("deny", priv="Sys.Audit", path="/nodes")
    outcome = server.act(STOP)
    assert outcome.ok and "not provable (needs Sys.Audit on /nodes/pve1)" in outcome.log[-1]


def test_a_stop_that_fails_says_so_in_pve_s_words(lab):
    server = lab()
    server.inject("task-error", action="stop", message="unable to stop service vm:174")
    outcome = server.act(STOP)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True)
    assert "ha-failed" in outcome.detail and "unable to stop service vm:174" in outcome.detail
    assert server.sent() == ["stop"]


def test_a_stop_whose_worker_died_is_unclear_unless_the_state_tells(lab):
    server = lab()
    server.inject("killed", action="stop")
    outcome = server.act(STOP)
    assert (outcome.ok, outcome.clear) == (False, False) and "worker-died" in outcome.detail
    server.inject("task-error", action="stop", when="after", message="cleanup failed")
    outcome = server.act(STOP)
    assert outcome.ok and "although the stop task ended: cleanup failed" in outcome.detail


# shutdown, and the stop after it


def test_a_guest_that_does_not_obey_is_no_alarm_and_may_still_go_down(lab):
    server = lab({**VM, "obeys_shutdown": False})
    outcome = server.act(SHUTDOWN)
    assert (outcome.ok, outcome.changed, outcome.clear, outcome.busy) == (False, False, False, "")
    assert "did not power off within 60 s" in outcome.detail
    assert server.act(STOP).ok and server.sent() == ["shutdown", "stop"]


def test_a_paused_guest_is_not_shut_down(lab):
    server = lab({**VM, "qmpstatus": "paused"})
    outcome = server.act(SHUTDOWN)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True) and "paused" in outcome.detail


@pytest.mark.parametrize(("version", "overruled"), [("9.2.6", True), ("8.1.1", False)])
def test_our_own_shutdown_that_still_runs_does_not_block_the_stop(lab, version, overruled):
    server = lab({**VM, "obeys_shutdown": False}, version=version)
    server.client().post("/nodes/pve1/qemu/174/status/shutdown", timeout=200, forceStop=0)
    outcome = server.act(STOP)
    assert outcome.ok and server.vm["status"] == "stopped", outcome
    assert server.sent() == ["shutdown", "stop"]
    assert (server.params().get("overrule-shutdown") == "1") is overruled
    ends = [t["exitstatus"] for t in server.state()["tasks"] if t["type"] == "qmshutdown"]
    assert ends == ["received interrupt" if overruled else "VM quit/powerdown failed - got timeout"]


def test_a_version_that_does_not_know_the_parameter_after_all(lab):
    server = lab({**VM, "obeys_shutdown": False})
    server.client().post("/nodes/pve1/qemu/174/status/shutdown", timeout=100, forceStop=0)
    server.inject("http", action="stop", vmid=174, status=400, message="Parameter verification failed.")
    assert server.act(STOP).ok and server.sent() == ["shutdown", "stop", "stop"]
    assert "overrule-shutdown" not in server.params()


def test_a_shutdown_of_somebody_else_is_not_overruled(lab):
    server = lab(tasks=[{"type": "qmshutdown", "vmid": 174, "user": "kim@pam", "status": "running"}])
    assert "qmshutdown by kim@pam" in server.act(STOP).detail and not server.sent()


# the guest's lock file


def test_a_lock_file_that_could_not_be_had_once_allows_one_more(lab):
    server = lab()
    server.inject("flock", action="stop")
    outcome = server.act(STOP)
    assert outcome.ok and server.sent() == ["stop", "stop"], outcome


def test_and_not_a_third(lab):
    server = lab()
    server.inject("flock", action="stop", times=None)
    outcome = server.act(STOP)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True)
    assert "flock-timeout" in outcome.detail and server.sent() == ["stop", "stop"]


def test_whoever_has_the_lock_file_is_waited_for_and_then_named(lab):
    server = lab()
    server.inject("flock", action="stop")
    theirs = {"type": "vzdump", "vmid": 174, "user": "kim@pam", "status": "running"}
    outcome = server.act(STOP, after_post(server, ("task", theirs)))
    assert (outcome.ok, outcome.changed) == (False, False) and "vzdump by kim@pam" in outcome.detail
    assert server.sent() == ["stop"]


# starts


@pytest.mark.parametrize(("comes_up", "times", "sent", "ok"), [
    (True, 1, 1, True), (False, 1, 2, True), (False, 2, 2, False), (False, None, 2, False),
])  # fmt: skip
def test_a_start_that_got_a_time_out_is_looked_at_and_sent_once_more_at_most(lab, comes_up, times, sent, ok):
    server = lab(DOWN)
    server.inject("kvm-timeout", action="start", comes_up=comes_up, times=times)
    outcome = server.act(START)
    assert outcome.ok is ok, outcome
    assert server.sent() == ["start"] * sent
    assert (server.vm["status"] == "running") is ok
    if not ok:
        assert (outcome.changed, outcome.clear) == (False, True) and "start-timeout" in outcome.detail


def test_a_start_that_got_a_time_out_is_not_sent_again_unseen(lab):
    server = lab(DOWN)
    server.inject("kvm-timeout", action="start")

    class Blind(Client):
        """From the POST on, the guest can't be found."""

        def get(self, where: str, **params: Any) -> Any:
            if where == "/cluster/resources" and server.sent():
                return ApiError(Kind.UNREACHABLE, None, "no route", True, where)
            return super().get(where, **params)

    outcome = server.act(START, Blind)
    assert (outcome.ok, outcome.clear) == (False, False) and "start-timeout" in outcome.detail
    assert server.sent() == ["start"]


def test_a_start_with_a_failed_device_reset_is_told(lab):
    server = lab({**DOWN, "hostpci": [{**GPU, "reset": "fails"}]})
    outcome = server.act(START)
    assert outcome.ok and "could not reset the device" in outcome.detail and "0000:41:00.0" in outcome.detail
    assert any("failed to reset PCI device" in line for line in outcome.log)


def test_a_device_that_another_guest_has_is_not_tried_again(lab):
    server = lab(DOWN, {"vmid": 101, "name": "other", "hostpci": ["0000:41:00.0"]})
    outcome = server.act(START)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True)
    assert "in-use-by-vmid" in outcome.detail and "VMID '101'" in outcome.detail and server.sent() == ["start"]


def test_a_device_that_is_gone_and_a_qemu_that_is_left(lab):
    server = lab(DOWN)
    server.call("device", node="pve1", bdf=GPU["bdf"], set={"gone": True})
    assert "no-such-device" in server.act(START).detail
    server.call("device", node="pve1", bdf=GPU["bdf"], set={"gone": False})
    server.set_vm(174, zombie=True)
    assert "leftover-qemu" in server.act(START).detail and server.sent() == ["start", "start"]


def test_a_start_without_quorum_starts_nothing(lab):
    outcome = lab(DOWN, quorate=False).act(START)
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, False, True) and "quorum" in outcome.detail


def test_a_guest_that_somebody_else_just_started(lab):
    server = lab(DOWN)
    server.inject("task-error", action="start", message="VM 174 already running")
    outcome = server.act(START, after_post(server, ("vm", {"vmid": 174, "set": {"status": "running"}})))
    assert (outcome.ok, outcome.changed) == (True, False)


@pytest.mark.parametrize("state", ["paused", "internal-error", "io-error"])
def test_a_guest_that_qemu_holds_is_not_running(lab, state):
    server = lab({**VM, "qmpstatus": state})
    outcome = server.act(START)
    assert (outcome.ok, outcome.changed) == (False, False) and state in outcome.detail and not server.sent()


def test_a_device_that_comes_back_from_its_reset_is_waited_for(lab):
    class Waiting(Tasks):
        """Our time is over while the log says that the kernel still waits."""

        late = False

        def wait(self, node: str, upid: str, deadline: float) -> Any:
            if not self.late:
                self.late = True
                return StillRunning(upid, ("vfio-pci 0000:41:00.0: not ready 32767ms after FLR; waiting",), 1.0)
            return super().wait(node, upid, deadline)

    outcome = lab(DOWN).act(START, tasks_kind=Waiting)
    assert outcome.ok, outcome


# reset


def test_a_reset_that_would_end_the_guest_or_has_none(lab):
    server = lab({**VM, "config": {"reboot": "0"}})
    assert "`reboot: 0`" in server.act(RESET).detail
    server.set_vm(174, status="stopped", config={"reboot": None})
    assert "nothing to reset" in server.act(RESET).detail
    assert not server.sent()


def test_a_reset_after_which_qemu_is_gone(lab):
    server = lab()
    outcome = server.act(RESET, after_post(server, ("vm", {"vmid": 174, "set": {"status": "stopped"}})))
    assert (outcome.ok, outcome.changed) == (False, True) and "QEMU ended at the reset" in outcome.detail
