"""Whoever a line stops is named, and nobody else."""

from __future__ import annotations

from dataclasses import replace

from recover.core.blast import blast
from recover.core.guards import Context, refusal
from recover.model.act import Act, Line, MemoryObject, RemoveLeftovers
from recover.model.guest import Service
from recover.model.hypervisor import GuestKind, Neighbour
from recover.model.process import Health
from recover.model.reading import Known
from recover.model.verdict import Scope
from recover.steps.table import ALL_STEPS
from tests.core import builders as b
from tests.steps.looks import UNIT, dead, group, pci, plan, plan_for, vm


def hits(snapshot, line, scope=Scope.VM):
    assert isinstance(line, Line)
    return {(h.kind, h.name) for h in blast(snapshot, scope, line).hits}


def test_only_the_groups_that_are_ended():
    snapshot = b.healthy_snapshot(groups=(group(5000), group(6000, health=Health.HEALTHY)))
    found = hits(snapshot, plan_for("end-workers", snapshot))
    assert [kind for kind, _ in found] == ["group"]
    assert all("server-5000" in name for _, name in found)


def test_a_service_and_what_it_serves():
    snapshot = b.healthy_snapshot(groups=(group(5000, owner=UNIT),))
    assert {kind for kind, _ in hits(snapshot, plan_for("stop-service", snapshot))} == {"service", "group"}


def test_a_reset_hits_its_gpus_and_their_monitor():
    persistenced = group(700, health=Health.LIVE, protected="monitor", gpus=frozenset({b.uuid(2)}))
    snapshot = b.healthy_snapshot(groups=(persistenced,))
    line = plan("reset-gpu", snapshot, dead(b.uuid(2), Scope.GPU))
    assert hits(snapshot, line) == {
        ("service", "nvidia-persistenced.service"),
        ("device", f"GPU {b.uuid(2)} ({b.bus(2)})"),
    }


def test_a_restart_hits_all_that_is_in_the_guest_and_beside_it():
    near = Neighbour(175, "other", GuestKind.VM, "stopped", ("iommu group 3",))
    snapshot = b.healthy_snapshot(
        groups=(group(5000, health=Health.HEALTHY), group(700, protected="monitor")),
        processes=(b.process(900, "tmux", comm="tmux: server"),),
        hypervisor=vm(neighbours=Known((near,)), invisible_guests=True),
    )
    found = hits(snapshot, plan("power-cycle-vm", snapshot, dead(None, Scope.VM)))
    assert [kind for kind, _ in sorted(found)] == ["device", "group", "guest", "neighbour", "neighbour", "session"]
    assert ("guest", "node-174 (174)") in found
    assert ("neighbour", "other (175)") in found


def test_its_devices_and_its_services_are_named():
    served = (Service("systemd", "sglang.service", "active"), Service("systemd", "cron.service", "active"))
    snapshot = b.healthy_snapshot(hypervisor=vm(), services=Known(served))
    snapshot = replace(snapshot, target=replace(snapshot.target, services=("sglang.service", "gone.service")))
    found = hits(snapshot, plan("power-cycle-vm", snapshot, dead(None, Scope.VM)))
    assert ("device", "8 passed-through devices (0000:41:00.0, …, 0000:48:00.0)") in found
    assert {name for kind, name in found if kind == "service"} == {"sglang.service"}
    reset = hits(snapshot, plan("reset-vm", snapshot, dead(None, Scope.GUEST)))
    assert not [kind for kind, _ in reset if kind == "device"], "QEMU and its devices stay as they are"
    one = b.healthy_snapshot(hypervisor=vm({"hostpci": (pci(0),)}))
    assert ("device", "passed-through device (0000:41:00.0)") in hits(
        one, plan("power-cycle-vm", one, dead(None, Scope.VM))
    )


def test_minutes_grow_with_what_must_be_unpinned_and_stay_below_the_worst_case():
    def minutes(memory_mib):
        snapshot = b.healthy_snapshot(hypervisor=vm({"memory_mib": memory_mib}))
        line = plan("power-cycle-vm", snapshot, dead(None, Scope.VM))
        found = blast(snapshot, Scope.VM, line).minutes
        assert 0 < found < line.worst_case_s / 60
        return found

    assert minutes(32 * 1024) < minutes(b.RAM_MIB)


def test_the_scope_is_said():
    snapshot = b.healthy_snapshot(groups=(replace(group(5000)),))
    assert blast(snapshot, Scope.PROCESS, plan_for("end-workers", snapshot)).scope is Scope.PROCESS


def test_an_nvlink_that_may_be_there_is_told_and_forbids_nothing():
    joined, stopped, other = (
        Neighbour(175 + n, f"node-{175 + n}", GuestKind.VM, status, (), models)
        for n, (status, models) in enumerate((("running", ("A40",)), ("stopped", ("A40",)), ("running", ())))
    )
    snapshot = b.healthy_snapshot(hypervisor=vm(neighbours=Known((joined, stopped, other))))
    made = blast(snapshot, Scope.VM, plan("power-cycle-vm", snapshot, dead(b.uuid(2), Scope.VM)))
    (link,) = [h for h in made.hits if h.kind == "link"]
    assert link.name == "to node-175 (175)" and "both have A40" in link.how and "can't be seen" in link.how
    assert refusal(snapshot, ALL_STEPS["power-cycle-vm"], Context(evict=True)) is None


def test_sockets_that_go_are_named_a_few_one_by_one_and_of_many_the_first():
    memory = MemoryObject("shm-file", "psm_1a2b3c4d", "/dev/shm", 1, 2048)
    for count, names in ((2, {"/tmp/s0", "/tmp/s1"}), (9, {"/tmp/s0, /tmp/s1, /tmp/s2, /tmp/s3 and 5 more sockets"})):
        sockets = tuple(MemoryObject("ipc-socket", f"s{i}", "/tmp", 10 + i) for i in range(count))
        line = Line((Act(RemoveLeftovers((memory, *sockets))),))
        found = hits(b.healthy_snapshot(), line, Scope.PROCESS)
        assert found == {("memory", "psm_1a2b3c4d"), *(("memory", name) for name in names)}
