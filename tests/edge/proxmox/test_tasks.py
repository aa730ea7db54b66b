from __future__ import annotations

import time
from typing import Any

import pytest

from recover.core.read.pve_tasks import parse_upid
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.errors import ApiError, Kind
from recover.edge.proxmox.tasks import (
    NotStarted,
    Reconciled,
    Started,
    StillRunning,
    TaskEnd,
    Tasks,
    Unresolved,
    is_ok,
    upid_of,
)
from recover.model.hypervisor import GuestKind
from tests.edge.proxmox.conftest import Lab


def tasks_of(server: Lab, kind: type[Client] = Client, look_s: float = 2.0) -> Tasks:
    return Tasks(server.client(kind), sleep=lambda seconds: time.sleep(min(seconds, 0.05)), look_s=look_s)


def act(tasks: Tasks, verb: str) -> Any:
    return tasks.power(GuestKind.VM, "pve1", 174, verb)


def run(tasks: Tasks, verb: str, deadline: float = 30.0) -> TaskEnd:
    started = act(tasks, verb)
    assert isinstance(started, Started), started
    end = tasks.wait("pve1", started.upid, deadline)
    assert isinstance(end, TaskEnd), end
    return end


def posts(server: Lab, verb: str) -> int:
    return sum(r["method"] == "POST" and r["path"].endswith(f"/status/{verb}") for r in server.requests())


def test_a_task_is_followed_to_its_end_with_its_log(lab):
    server = lab()
    end = run(tasks_of(server), "stop")
    assert end.ok and end.exitstatus == "OK" and end.log[-1] == "TASK OK"
    assert server.state()["vms"]["174"]["status"] == "stopped"


def test_a_task_that_fails_says_why(lab):
    server = lab()
    server.inject("flock", action="stop", vmid=174)
    end = run(tasks_of(server), "stop")
    assert not end.ok
    assert end.exitstatus == "can't lock file '/var/lock/qemu-server/lock-174.conf' - got timeout"
    assert end.log[-1].startswith("TASK ERROR: can't lock file")


def test_warnings_are_a_success_and_a_killed_worker_is_not(lab):
    server = lab()
    server.inject("warnings", action="stop", vmid=174, count=2)
    assert run(tasks_of(server), "stop").ok
    server.inject("killed", action="start", vmid=174)
    end = run(tasks_of(server), "start")
    assert (end.ok, end.exitstatus) == (False, "unexpected status")


def test_a_task_that_goes_on_longer_than_we_wait(lab):
    server = lab()
    server.inject("hang", action="stop", vmid=174)
    tasks = tasks_of(server)
    started = act(tasks, "stop")
    assert isinstance(tasks.wait("pve1", started.upid, 0.3), StillRunning)
    assert tasks.running(started.upid) is True


def test_polls_without_an_answer_are_borne(lab):
    server = lab(vms=[{"vmid": 174, "name": "node-174", "stop_secs": 50}])
    server.inject("http", path="*/tasks/*/status", times=5)
    assert run(tasks_of(server), "stop").ok


def test_an_api_that_never_answers_is_said_and_no_task_is_invented(lab):
    server = lab()
    tasks = tasks_of(server)
    upid = act(tasks, "stop").upid
    server.inject("http", path="*/tasks/*/status", times=None)
    end = tasks.wait("pve1", upid, 0.2)
    assert isinstance(end, ApiError) and end.kind is Kind.UNCLEAR
    assert tasks.running(upid) is None
    assert tasks.running("garbage") is None


@pytest.mark.parametrize(
    ("verb", "ha", "kind"),
    [
        ("shutdown", None, "qmshutdown"),
        ("shutdown", "started", "hastop"),
        ("reset", None, "qmreset"),
        ("start", "stopped", "hastart"),
    ],
)
def test_every_power_action_is_recognised_by_its_task(lab, verb, ha, kind):
    running = "stopped" if verb == "start" else "running"
    server = lab(vms=[{"vmid": 174, "name": "node-174", "ha": ha, "status": running}])
    server.inject("http", action=verb, vmid=174, when="after")
    posted = act(tasks_of(server), verb)
    assert isinstance(posted, Reconciled), posted
    assert upid_of(posted).type == kind


@pytest.mark.parametrize("kind", ["http", "cut"])
def test_an_unclear_post_whose_task_ran_is_found_and_sent_only_once(lab, kind):
    server = lab()
    tasks = tasks_of(server)
    run(tasks, "stop")
    run(tasks, "start")  # older tasks of ours, of the same types
    server.inject(kind, action="stop", vmid=174, when="after")
    posted = act(tasks, "stop")
    assert isinstance(posted, Reconciled), posted
    assert posts(server, "stop") == 2
    end = tasks.wait("pve1", posted.upid, 30)
    assert isinstance(end, TaskEnd) and end.ok
    assert server.state()["vms"]["174"]["status"] == "stopped"
    assert upid_of(posted).type == "qmstop"


def test_an_unclear_post_whose_task_never_ran_stays_unresolved(lab):
    server = lab(tasks=[{"type": "qmstop", "vmid": 174, "user": "root@pam", "age_s": 1, "status": "OK"}])
    server.inject("http", action="stop", vmid=174, when="before")
    posted = act(tasks_of(server, look_s=0.3), "stop")
    assert isinstance(posted, Unresolved) and posted.error.kind is Kind.UNCLEAR
    assert upid_of(posted) is None
    assert posts(server, "stop") == 1
    assert server.state()["vms"]["174"]["status"] == "running"


def test_an_older_task_of_ours_is_not_taken_for_the_lost_one(lab):
    server = lab()
    tasks = tasks_of(server, look_s=0.3)
    run(tasks, "stop")
    server.inject("http", action="stop", vmid=174, when="before")
    assert isinstance(act(tasks, "stop"), Unresolved)


def test_tasks_of_others_are_never_taken_for_ours(lab):
    server = lab()
    server.inject("http", action="stop", vmid=174, when="before")

    class Racing(Client):
        """While our POST is lost, a colleague's stop appears."""

        def post(self, where: str, **params: Any) -> Any:
            answer = super().post(where, **params)
            server.call("task", type="qmstop", vmid=174, user="kim@pam", status="OK", log=["TASK OK"])
            server.call("task", type="vzdump", vmid=174, user=server.token_id, status="OK", log=["TASK OK"])
            return answer

    assert isinstance(act(tasks_of(server, Racing, look_s=0.3), "stop"), Unresolved)


def test_refusals_start_nothing(lab):
    server = lab()
    server.call("deny", priv="VM.PowerMgmt")
    posted = act(tasks_of(server), "stop")
    assert isinstance(posted, NotStarted) and posted.error.privilege == "VM.PowerMgmt on /vms/174"
    assert upid_of(posted) is None
    server.call("quorum", value=False)
    server.call("allow", priv="VM.PowerMgmt")
    assert "quorum" in act(tasks_of(server), "start").error.message


def test_nothing_is_sent_when_it_could_not_be_reconciled(lab):
    server = lab()
    server.inject("http", path="/nodes/*/tasks", times=None)
    assert isinstance(act(tasks_of(server), "stop"), NotStarted)
    assert posts(server, "stop") == 0


def test_an_answer_that_is_no_task_is_reconciled(lab):
    server = lab()

    class Odd(Client):
        def post(self, where: str, **params: Any) -> Any:
            super().post(where, **params)
            return None

    posted = act(tasks_of(server, Odd), "stop")
    assert isinstance(posted, Reconciled)


def test_a_managed_guest_ends_ok_when_it_is_only_queued(lab):
    server = lab(vms=[{"vmid": 174, "name": "node-174", "ha": "started"}])
    end = run(tasks_of(server), "stop")
    assert end.ok and parse_upid(end.upid).type == "hastop"
    assert "Requesting HA stop for VM 174" in end.log


def test_what_pve_calls_ok():
    assert [is_ok(s) for s in ("OK", "WARNINGS: 2", "WARNINGS: many", "unexpected status", "")] == [
        True, True, False, False, False,
    ]  # fmt: skip
