"""A VM is stopped only when its start is proved, and every line that stops it starts it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.model.act import AwaitBoot, Line, Pass, Refuse, ResetVm, ShutdownVm, StartVm, StopVm, SyncDisks, VmRef
from recover.model.contact import Failure
from recover.model.guest import Mute
from recover.model.hypervisor import AgentState, HostMemory, Pending, Task
from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope
from recover.steps.power import start_timeout_s
from recover.steps.startable import startable
from tests.core import builders as b
from tests.steps.looks import acts, dead, must, node, pci, plan, vm

STUCK = dead(None, Scope.VM, "unowned-memory")
VM = VmRef("pve", 174, b.SMBIOS, "node-174")
MUTE = Mute(Failure.BANNER_SILENCE, "accepts, then says nothing")
DENIED = Unknown(Why.DENIED, "403")


def look(hypervisor=None, **changes):
    return b.healthy_snapshot(hypervisor=hypervisor or vm(), **changes)


@pytest.mark.parametrize(
    ("memory_gib", "devices", "nics", "hugepages", "seconds"),
    [
        (32, 1, 1, "", 133),
        (512, 8, 1, "", 2053),
        (2048, 1, 1, "", 8197),
        (16, 0, 0, "", 30),
        (16, 0, 1, "1024", 155),
    ],
)
def test_the_time_that_proxmox_itself_allows(memory_gib, devices, nics, hugepages, seconds):
    assert start_timeout_s(memory_gib * 1024, devices, nics, hugepages) == seconds


def test_shut_down_stop_start_wait():
    line = plan("power-cycle-vm", look(), STUCK)
    timeout = start_timeout_s(b.RAM_MIB, 8, 1)
    assert acts(line) == [
        SyncDisks(),
        ShutdownVm(VM, 180.0, timeout),
        StopVm(VM, 180.0, timeout, b.RAM_MIB),
        StartVm(VM, timeout),
        AwaitBoot(b.BOOT, 8, 900.0),
    ]
    assert must(line) == [False, False, True, True, True]
    assert line.worst_case_s == 35 + (180 + 30 + 180) + (180 + 180) + 2 * (timeout + 60) + 180 + 900 + 65


def test_a_mute_guest_with_a_silent_agent_is_stopped_at_once():
    snapshot = look(vm(agent=Known(AgentState.SILENT)), guest=MUTE)
    done = acts(plan("power-cycle-vm", snapshot, STUCK))
    assert [type(d) for d in done] == [StopVm, StartVm, AwaitBoot]
    assert done[-1].not_boot_id == ""


def test_a_mute_guest_whose_agent_answers_is_asked_first():
    assert isinstance(acts(plan("power-cycle-vm", look(guest=MUTE), STUCK))[0], ShutdownVm)


def test_no_shutdown_where_the_playbook_says_so():
    assert not [d for d in acts(plan("power-cycle-vm", look(), STUCK, shutdown_first=0.0)) if isinstance(d, ShutdownVm)]


def test_the_configured_number_of_gpus_must_be_back():
    snapshot = look(target=b.target(expect=(("gpus", 4),)))
    assert acts(plan("power-cycle-vm", snapshot, STUCK))[-1].gpus == 4


def test_reset_keeps_qemu():
    assert [type(d) for d in acts(plan("reset-vm", look(), STUCK))] == [SyncDisks, ResetVm, AwaitBoot]


@pytest.mark.parametrize("step", ["reset-vm", "power-cycle-vm"])
def test_a_vm_that_somebody_stopped_is_refused_and_who_is_named(step):
    task = Task("UPID:x", "pve1", "qmstop", 174, "kim@pve", 1, False, "OK")
    offered = plan(step, look(vm(status="stopped", tasks=Known((task,)))), STUCK)
    assert isinstance(offered, Refuse)
    assert (offered.guard, "kim@pve" in offered.why) == ("vm-stopped", True)


@pytest.mark.parametrize("step", ["reset-vm", "power-cycle-vm"])
def test_of_no_use(step):
    assert isinstance(plan(step, look()), Pass)
    assert isinstance(plan(step, look(b.no_hypervisor()), STUCK), Pass)


UNSTARTABLE = [
    ("config", {"config": DENIED}),
    ("quorum", {"quorate": Known(False)}),
    ("quorum", {"quorate": DENIED}),
    ("storage", {"storages": Known((("local-lvm", True), ("nfs", False)))}),
    ("storage", {"storages": DENIED}),
    ("host-memory", {"host_memory": DENIED}),
    ("host-memory", {"host_memory": Known(HostMemory(b.RAM_MIB - 1, b.RAM_MIB - 1, 0))}),
    ("host-memory", {"host_memory": Known(HostMemory(2 * b.RAM_MIB, 1000, 1000))}),
    ("tasks", {"tasks": DENIED}),
    ("backup", {"tasks": Known((Task("UPID:v", "pve1", "vzdump", 174, "root@pam", 1, True),))}),
    ("backup-due", {"backup_due": Known(True)}),
    ("backup-due", {"backup_due": DENIED}),
    ("pending", {"pending": Known((Pending("memory", "1", "2"),))}),
    ("pending", {"pending": Known((Pending("ciuser", "a", "b"),))}),
    ("pending", {"pending": DENIED}),
]
UNSTARTABLE_CONFIG = [
    ("template", {"template": True}),
    ("device", {"hostpci": (pci(present=Known(False)),)}),
    ("device", {"hostpci": (pci(present=DENIED),)}),
    ("device", {"hostpci": (pci(addresses=()),)}),
]


@pytest.mark.parametrize(("guard", "changes"), UNSTARTABLE)
def test_no_stop_without_a_proved_start(guard, changes):
    offered = plan("power-cycle-vm", look(vm(**changes)), STUCK)
    assert isinstance(offered, Refuse)
    assert offered.guard == guard
    assert offered.lift


@pytest.mark.parametrize(("guard", "config"), UNSTARTABLE_CONFIG)
def test_no_stop_with_a_configuration_that_would_not_start(guard, config):
    offered = plan("power-cycle-vm", look(vm(config)), STUCK)
    assert isinstance(offered, Refuse)
    assert offered.guard == guard


@pytest.mark.parametrize("field", ["config", "quorate", "storages", "host_memory", "tasks", "backup_due", "pending"])
@pytest.mark.parametrize("why", list(Why))
def test_an_open_question_refuses_and_a_denied_one_names_the_privilege(field, why):
    offered = startable(vm(**{field: Unknown(why, "said so")}))
    assert isinstance(offered, Refuse)
    assert "udit on " in offered.lift
    assert ("give the token" in offered.lift) == (why is Why.DENIED)


def test_no_stop_with_a_device_that_the_kernel_gave_up():
    """CloudRift's reports, vm-curator 60, legacy-rocm-build 3414: what works on the other GPUs would be lost too."""
    first = replace(node().functions[0], gave_up="vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up")

    def offered(function):
        functions = (function, *node().functions[1:])
        return plan("power-cycle-vm", look(host=Known(node(functions=functions)), host_shell=True), STUCK)

    refused = offered(replace(first, answers=Known(False)))
    assert isinstance(refused, Refuse) and refused.guard == "device-dead" and "reboot pve1" in refused.lift
    assert "giving up" in refused.why
    assert isinstance(offered(replace(first, answers=Known(True))), Line), "it came back"
    others = replace(first, address="0000:99:00.0", answers=Known(False))
    shown = node(functions=(*node().functions, others))
    assert isinstance(plan("power-cycle-vm", look(host=Known(shown), host_shell=True), STUCK), Line)


def test_pending_changes_can_be_allowed():
    hypervisor = vm(pending=Known((Pending("memory", "1", "2"),)))
    assert isinstance(plan("power-cycle-vm", look(hypervisor), STUCK, apply_pending=True), Line)


def test_a_pending_change_of_identity_is_refused_even_when_pending_changes_are_allowed() -> None:
    hypervisor = vm(pending=Known((Pending("smbios1", "uuid=a", "uuid=b"),)))
    found = plan("power-cycle-vm", look(hypervisor), STUCK, apply_pending=True)
    assert isinstance(found, Refuse)
    assert found.guard == "pending"


readings = {
    "quorate": st.sampled_from([Known(True), Known(False), DENIED]),
    "storages": st.sampled_from([Known((("a", True),)), Known((("a", False),)), DENIED]),
    "backup_due": st.sampled_from([Known(False), Known(True), DENIED]),
    "pending": st.sampled_from([Known(()), Known((Pending("x", "1", "2"),)), DENIED]),
    "agent": st.sampled_from([Known(a) for a in AgentState]),
    "status": st.sampled_from(["running", "stopped"]),
}


@settings(deadline=None)
@given(changes=st.fixed_dictionaries(readings), mute=st.booleans(), present=st.sampled_from([Known(True), DENIED]))
def test_every_stop_is_followed_by_a_start_of_the_same_vm_and_was_startable(changes, mute, present):
    hypervisor = vm({"hostpci": (pci(present=present),)}, **changes)
    snapshot = look(hypervisor, **({"guest": MUTE} if mute else {}))
    offered = plan("power-cycle-vm", snapshot, STUCK)
    if not isinstance(offered, Line):
        return
    assert startable(hypervisor) is None
    assert hypervisor.status == "running"
    done = acts(offered)
    for i, act in enumerate(done):
        if isinstance(act, (StopVm, ShutdownVm)):
            assert any(isinstance(later, StartVm) and later.vm == act.vm for later in done[i + 1 :])


def test_a_vm_without_smbios_uuid_is_still_named():
    hypervisor = vm({"smbios_uuid": ""})
    stop = next(d for d in acts(plan("power-cycle-vm", look(hypervisor), STUCK)) if isinstance(d, StopVm))
    assert stop.vm == replace(VM, smbios_uuid="")
