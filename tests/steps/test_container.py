"""A container's restart and its GPUs' reset: by the API and by the node, and only where nobody else is on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recover.core.identity import identity
from recover.core.read.pve_config import vm_config
from recover.model.act import (
    AwaitBoot,
    AwaitGone,
    OnHost,
    Pass,
    Refuse,
    ResetGpu,
    SetPersistence,
    ShutdownVm,
    Signal,
    StartService,
    StartVm,
    StopService,
    StopVm,
    VmRef,
)
from recover.model.contact import Failure
from recover.model.guest import Guest, Mute
from recover.model.host import CtProcess, Holder, Host, HostGpu
from recover.model.hypervisor import GuestKind, Hypervisor, Neighbour, Pending, VmConfig
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import IdentityProof, Snapshot
from recover.model.verdict import Finding, Scope
from tests.core import builders as b
from tests.steps.looks import acts, group, must, plan, plan_for

LOST = Finding("container-lost-gpus", "lost its GPUs", Scope.PROCESS)
CT = VmRef("pve", 174, "", "node-174", container=True)


def hypervisor(**changes: Any) -> Hypervisor:
    config = Known(VmConfig("node-174", b.RAM_MIB, "", frozenset({b.MAC})))
    return replace(b.hypervisor(config=config), kind=GuestKind.CONTAINER, **changes)


def node(**changes: Any) -> Host:
    gpus = tuple(HostGpu(f"0000:{i + 1:02x}:00.0", uuid(i), i) for i in range(b.GPUS))
    return replace(Host("pve1", "pve1", b.BOOT, "6.8.12-4-pve", 5e6, gpus=gpus, init_start=77), **changes)


def uuid(index: int) -> str:
    gpu = b.gpu(index)
    assert isinstance(gpu.uuid, Known)
    return gpu.uuid.value


def look(host: Host | None = None, api: Hypervisor | None = None, **changes: Any) -> Snapshot:
    base = b.healthy_snapshot(hypervisor=api or hypervisor(), host=Known(host or node()), host_shell=True, **changes)
    if isinstance(base.guest, Guest):
        who = replace(base.guest.identity, container=True, init_start=77)
        base = replace(base, guest=replace(base.guest, identity=who))
    return replace(base, target=replace(base.target, kind=GuestKind.CONTAINER))


def held(index: int = 0) -> Finding:
    return Finding("gpu-memory-held", "held", Scope.GPU, uuid(index))


# the restart


@pytest.mark.parametrize(("there", "gone"), [
    (None, ""), (("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm"), ""),
    (("/dev/nvidia0", "/dev/nvidiactl"), "/dev/nvidia1, /dev/nvidia-uvm"), ((), "/dev/nvidia0, /dev/nvidia1, /dev/nv"),
])  # fmt: skip
def test_a_container_whose_device_files_are_gone_is_not_stopped(there: tuple[str, ...] | None, gone: str):
    """It would not start again. Without the node's shell that can't be told, and its devices answer inside."""
    raw = {"hostname": "ct", "memory": 1024, "dev0": "/dev/nvidia0,mode=0666", "dev1": "path=/dev/nvidia1",
           "dev2": "/dev/nvidia-uvm", "dev3": "/dev/fuse"}  # fmt: skip
    api = hypervisor(config=Known(vm_config(raw, "pve1")))
    made = plan("restart-container", look(node(device_files=there), api), LOST)
    assert isinstance(made, Refuse) is bool(gone)
    if isinstance(made, Refuse):
        assert (
            made.guard == "device"
            and gone in made.why
            and "/dev/fuse" not in made.why
            and "nvidia-modprobe" in made.lift
        )


def test_shut_down_stop_start_and_a_new_init():
    line = plan("restart-container", look(), LOST)
    assert acts(line) == [
        ShutdownVm(CT, 60.0, 120), StopVm(CT, 180.0, 120), StartVm(CT, 120),
        AwaitBoot("", b.GPUS, 900.0, not_init_start=77),
    ]  # fmt: skip
    assert must(line) == [False, True, True, True]


def test_a_mute_container_is_stopped_at_once():
    done = acts(plan("restart-container", look(guest=Mute(Failure.BANNER_SILENCE, "")), LOST))
    assert [type(d) for d in done] == [StopVm, StartVm, AwaitBoot] and done[-1].not_init_start == 0


def test_it_is_passed_where_the_stop_would_hang():
    stuck = b.process(900, state="D", sigkill_pending=True, comm="python3")
    passed = plan("restart-container", look(processes=(stuck,)), LOST)
    assert isinstance(passed, Pass) and "ignores SIGKILL" in passed.why


def test_it_needs_to_be_startable():
    refused = plan("restart-container", look(api=hypervisor(pending=Known((Pending("memory", "1", "2"),)))), LOST)
    assert isinstance(refused, Refuse) and refused.guard == "pending"
    stopped = plan("restart-container", look(api=hypervisor(status="stopped")), LOST)
    assert isinstance(stopped, Refuse) and "pct start" in stopped.lift


# the reset


def test_only_the_gpus_that_findings_name_are_reset_on_the_node():
    done = acts(plan("reset-host-gpu", look(), held(2)))
    assert all(isinstance(d, OnHost) and (d.node, d.boot_id) == ("pve1", b.BOOT) for d in done)
    inner = [d.do for d in done]
    assert [type(d) for d in inner] == [SetPersistence, ResetGpu, SetPersistence]
    assert [u for u, _ in inner[1].gpus] == [uuid(2)]


def test_monitors_of_the_node_are_stopped_for_it_and_started_again():
    monitor = Holder(50, 1, "nvidia-persiste", "/dev/nvidia2", "", "nvidia-persistenced.service")
    inner = [d.do for d in acts(plan("reset-host-gpu", look(node(holders=(monitor,))), held(2)))]
    assert inner[0] == StopService("systemd", "nvidia-persistenced.service", monitor=True)
    assert inner[-1] == StartService("systemd", "nvidia-persistenced.service", monitor=True)


@pytest.mark.parametrize(
    ("host", "api", "names"),
    [
        (node(holders=(Holder(9, 1, "python3", "/dev/nvidia2", "ct 201"),)), None, "python3 (pid 9, ct 201)"),
        (node(holders=(Holder(9, 1, "Xorg", "/dev/nvidia2", "", "gdm.service"),)), None, "gdm.service"),
        (None, hypervisor(neighbours=Known((Neighbour(201, "other", GuestKind.CONTAINER, "running",
                                                      ("/dev/nvidia2",)),))), "other (201)"),
        (None, hypervisor(neighbours=Known((Neighbour(201, "all", GuestKind.CONTAINER, "running",
                                                      ("/dev/nvidia*",)),))), "all (201)"),
        (None, hypervisor(neighbours=Unknown(Why.DENIED, "403")), "not known"),
    ],
)  # fmt: skip
def test_whoever_else_is_on_the_gpu_is_named_and_nothing_is_done(host, api, names):
    refused = plan("reset-host-gpu", look(host, api), held(2))
    assert isinstance(refused, Refuse) and names in refused.why, refused


def test_who_is_on_another_gpu_does_not_matter():
    other = Holder(9, 1, "python3", "/dev/nvidia3", "ct 201")
    near = Neighbour(201, "other", GuestKind.CONTAINER, "running", ("/dev/nvidia3",))
    assert acts(plan("reset-host-gpu", look(node(holders=(other,)), hypervisor(neighbours=Known((near,)))), held(2)))


def test_its_own_processes_must_be_gone_first():
    own = Holder(9, 1, "python3", "/dev/nvidia2", "ct 174")
    assert isinstance(plan("reset-host-gpu", look(node(holders=(own,))), held(2)), Pass)


# its processes by their numbers on the node


def test_workers_are_ended_by_their_numbers_on_the_node():
    one = group(10, 11)
    rows = tuple(b.process(p) for p in (10, 11))
    seen = tuple(CtProcess(p.pid + 5000, p.id.start, p.pid) for p in rows)
    snapshot = replace(look(node(container=seen), processes=rows), groups=(one,))
    done = acts(plan_for("end-workers", snapshot))
    assert all(isinstance(d, OnHost) for d in done)
    assert {m.pid for d in done for m in d.do.members} == {5010, 5011}
    assert {type(d.do) for d in done} == {Signal, AwaitGone}
    unmapped = replace(look(node(container=seen[:1]), processes=rows), groups=(one,))
    assert not any(isinstance(d, OnHost) for d in acts(plan_for("end-workers", unmapped)))


def test_a_container_is_known_by_its_init():
    assert identity(look()) is IdentityProof.PROVED
    assert identity(look(node(init_start=78))) is IdentityProof.PROVED, "its MAC still proves it"
    nameless = hypervisor(config=Known(VmConfig("node-174", b.RAM_MIB)))
    assert identity(look(node(init_start=78), nameless)) is IdentityProof.UNPROVED
    assert identity(look(api=nameless)) is IdentityProof.PROVED
