"""A container is stopped and started by its own calls, never by a VM's; a stop that hangs ends by our own deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from recover.edge.actuator.hypervisor import HypervisorActuator
from recover.edge.boot import BootWatch
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.tasks import Tasks
from recover.model.act import Action, AwaitBoot, Outcome, ShutdownVm, StartVm, StopVm, VmRef
from recover.model.guest import Guest
from tests.core import builders as b
from tests.edge.actuator.vm_bench import SleptClock
from tests.edge.proxmox.conftest import SECRET, TOKEN, settings

CT = VmRef("pve", 200, "", "ct-200", container=True)
STOP, START, SHUTDOWN = StopVm(CT, 180.0), StartVm(CT, 120), ShutdownVm(CT, 60.0)
pytestmark = pytest.mark.fakepve(time_scale=0.01)


@pytest.fixture
def ct(fakepve: Any) -> Any:
    fakepve.apitokens[TOKEN] = SECRET
    fakepve.grant(TOKEN, "/", "VM.Audit", "Sys.Audit", "VM.PowerMgmt")
    return fakepve.add_ct(200, "ct-200", node="pve1", status="running")


@pytest.fixture
def act(ct: Any, fakepve: Any, fakepve_cafile: str) -> Iterator[Callable[[Action], Outcome]]:
    with ExitStack() as stack:
        client = Client(settings(fakepve.url, ca_file=fakepve_cafile), sleep=lambda _: None)
        stack.callback(client.close)

        fast = SleptClock(0.02)
        tasks = Tasks(client, sleep=fast.sleep, clock=fast.passed)
        hands = HypervisorActuator(
            client, tasks, "pve", clock=fast.passed, sleep=fast.sleep, await_boot=lambda a: Outcome(True, "up")
        )
        yield hands.perform


def posts(fakepve: Any) -> list[str]:
    return [r[1] for r in fakepve.requests if r[0] == "POST"]


def test_it_is_stopped_and_started_by_lxc_s_calls(act, ct, fakepve) -> None:
    stopped = act(STOP)
    assert stopped.ok and stopped.changed and ct.status == "stopped", stopped
    assert act(STOP).changed is False, "an ensure verb"
    started = act(START)
    assert started.ok and started.changed and ct.status == "running", started
    assert [path.partition("/nodes/pve1")[2] for path in posts(fakepve)] == [
        "/lxc/200/status/stop", "/lxc/200/status/start"
    ]  # fmt: skip


def test_a_shutdown_is_asked_and_never_forced(act, ct) -> None:
    outcome = act(SHUTDOWN)
    assert outcome.ok and ct.status == "stopped", outcome


def test_another_name_is_another_container(act, ct, fakepve) -> None:
    outcome = act(StopVm(VmRef("pve", 200, "", "other", container=True)))
    assert (outcome.ok, outcome.changed) == (False, False) and "identity" in outcome.detail
    as_vm = act(StopVm(VmRef("pve", 200, "", "ct-200")))
    assert not as_vm.ok and "is a container" in as_vm.detail
    assert ct.status == "running" and not posts(fakepve)


def test_a_new_init_is_a_new_boot_of_a_container() -> None:
    guest = b.healthy_snapshot().guest
    assert isinstance(guest, Guest)
    looks = iter([7, 7, 8])

    def look(_: float) -> Guest:
        return replace(guest, identity=replace(guest.identity, container=True, init_start=next(looks)))

    watch = BootWatch(look, lambda: None, every_s=0.0, sleep=lambda _: None)
    outcome = watch(AwaitBoot("", 0, 60.0, not_init_start=7))
    assert outcome.ok and next(looks, None) is None
