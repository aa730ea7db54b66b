"""With HA a task's OK only means that the wish was taken: what counts is the state, rounds later, on whatever node."""

from __future__ import annotations

from typing import Any

import pytest

from recover.edge.actuator.sight import Sight
from recover.edge.proxmox.client import Client
from recover.model.act import StartVm, StopVm
from tests.edge.actuator.vm_bench import DOWN, HA, REF, SHUTDOWN, START, STOP
from tests.edge.proxmox.conftest import GPU, VM


def test_ha_stops_a_round_later_and_starts_elsewhere(lab):
    server = lab({**HA, "ha_node": "pve2"}, nodes=[{"name": "pve1", "pci": [GPU]}, {"name": "pve2", "pci": [GPU]}])
    down = server.act(STOP)
    assert down.ok and server.vm["status"] == "stopped", down
    assert server.act(STOP).changed is False
    up = server.act(START)
    assert up.ok and "VM 174 on pve2 is running" in up.detail, up
    assert server.sent() == ["stop", "start"]


def test_ha_whose_own_stop_had_to_kill(lab):
    outcome = lab({**HA, "stop_how": "zombie"}).act(STOP)
    assert outcome.detail.startswith("leftover QEMU suspected: "), outcome


def test_ha_that_takes_the_wish_and_does_nothing(lab):
    server = lab(HA)
    server.inject("stop", how="still-runs")
    outcome = server.act(StopVm(REF))
    assert (outcome.ok, outcome.changed, outcome.clear) == (False, True, False)
    assert "HA took the stop" in outcome.detail and server.sent() == ["stop"]


def test_ha_that_still_means_to_stop_it_is_told_to_start_it(lab):
    server = lab({**VM, "ha": "stopped"})
    assert server.act(START).ok and server.sent() == ["start"]
    assert server.vm["ha"] == "started"


def test_ha_that_gave_up_is_not_asked_twice(lab):
    server = lab({**DOWN, "ha": "error"})
    outcome = server.act(START)
    assert not outcome.ok and "ha-error" in outcome.detail and server.sent() == ["start"]


def test_ha_whose_start_fails_is_not_waited_for_to_the_end(lab):
    server = lab({**DOWN, "ha": "stopped"})
    server.inject("kvm-timeout", action="start")
    outcome = server.act(StartVm(REF, 5000))
    assert not outcome.ok and outcome.seconds < 2000 and server.sent() == ["start"], outcome


@pytest.mark.parametrize("ours", [False, True])
def test_a_shutdown_under_ha_is_waited_for_and_not_overruled(lab, ours):
    server = lab(HA)
    user = server.token_id if ours else "root@pam"
    upid = server.call("task", type="qmshutdown", vmid=174, user=user, status="running")
    outcome = server.act(StopVm(REF))
    assert (outcome.ok, outcome.clear, outcome.busy) == (False, False, upid) and not server.sent()


def test_ha_shuts_down_in_its_own_round(lab):
    server = lab(HA)
    assert server.act(SHUTDOWN).ok and server.vm["status"] == "stopped" and server.sent() == ["shutdown"]


def test_a_guest_that_is_off_and_that_ha_would_start_again_is_stopped_for_good(lab):
    server = lab({**DOWN, "ha": "started"})
    outcome = server.act(STOP)
    assert outcome.ok and outcome.changed and server.sent() == ["stop"] and server.vm["ha"] == "stopped"


def test_a_running_guest_that_ha_was_just_told_to_stop_is_not_taken_for_started(lab):
    server = lab(HA, tasks=[{"type": "hastop", "vmid": 174, "user": "rec@pve!oncall", "status": "OK"}])
    looks = 0

    class Rounds(Client):
        """HA acts between the second look and the third."""

        def get(self, where: str, **params: Any) -> Any:
            nonlocal looks
            looks += where == "/cluster/resources"
            if looks == 3 and where == "/cluster/resources":
                server.set_vm(174, status="stopped", ha="stopped")
            return super().get(where, **params)

    outcome = server.act(START, Rounds)
    assert outcome.ok and outcome.changed and server.sent() == ["start"]


def test_a_wish_of_long_ago_is_no_reason_to_wait(lab):
    server = lab(HA, tasks=[{"type": "hastop", "vmid": 174, "status": "OK", "age_s": 3600}])
    assert server.act(START).changed is False and not server.sent()


def test_how_long_ago_ha_was_told_goes_by_the_clock_of_the_guests_node(lab):
    """Caught, planted: the date of whatever node answers. By it the wish looks old, and a VM about to stop looks up."""

    class Elsewhere(Client):
        def _note_time(self, response: Any, *args: Any, **kwargs: Any) -> None:
            super()._note_time(response)
            self.server_time += 3600

    told = {"type": "hastop", "vmid": 174, "user": "gpu-recover@pve!oncall", "age_s": 5, "status": "OK"}
    sight = Sight(lab(HA, tasks=[told]).client(Elsewhere))
    vm = sight.see(174)
    age = sight.ha_stop_age_s(vm)
    assert age is not None and 4 <= age < 120
