"""Each guard refuses by its own name, only where it applies, and says how it is lifted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.guards import GUARDS, Context, refusal
from recover.core.identity import identity, same_uuid
from recover.model.contact import Failure
from recover.model.gpu import NOT_ASKED
from recover.model.guest import Marker, Mute
from recover.model.host import HugePages
from recover.model.hypervisor import GuestKind, Neighbour, NumaNode, Task
from recover.model.process import Health
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import IdentityProof
from recover.model.verdict import Scope
from recover.steps.table import ALL_STEPS
from tests.core import builders as b
from tests.steps import looks
from tests.steps.looks import group, pci, vm

DENIED = Unknown(Why.DENIED, "403")
MUTE = Mute(Failure.BANNER_SILENCE, "accepts, then says nothing")
OTHER = "99999999-8888-7777-6666-555555555555"
NOW = 1_790_000_000
CYCLE, KILL, RESET = (ALL_STEPS[name] for name in ("power-cycle-vm", "end-workers", "reset-gpu"))


def look(of_config=None, /, *, groups=(), guest=None, baseline=b.baseline(), processes=(), **hypervisor):
    made = b.healthy_snapshot(
        hypervisor=vm(of_config, **hypervisor), groups=groups, baseline=baseline, processes=tuple(processes)
    )
    return replace(made, guest=guest) if guest is not None else made


def task(kind, age_s, *, user="kim@pve", running=False, ours=False):
    return Task(f"UPID:{kind}", "pve1", kind, 174, user, NOW - age_s, running, "OK", ours=ours)


def named(snapshot, step=CYCLE, **context):
    found = refusal(snapshot, step, Context(**context))
    assert found is None or found.lift
    return found.guard if found is not None else ""


def test_nothing_forbids_a_restart_of_a_guest_that_is_ours_alone():
    assert named(look()) == ""


def test_every_guard_has_a_word_of_its_own_and_a_reason():
    assert len({g.name for g in GUARDS}) == len(GUARDS)
    assert all(g.why for g in GUARDS)


# Identity


def of(uuid=b.SMBIOS, macs=(b.MAC,)):
    return b.guest(identity=replace(b.guest().identity, dmi_uuid=Known(uuid) if uuid else DENIED, macs=frozenset(macs)))


@pytest.mark.parametrize(
    ("snapshot", "proof"),
    [
        (look(), IdentityProof.PROVED),
        (look(guest=of("AAAAAAAA-BBBB-CCCC-DDDD-EEEEEEEEEEEE")), IdentityProof.PROVED),
        (look(guest=of(OTHER)), IdentityProof.WRONG),
        (look(guest=of(OTHER, [b.MAC])), IdentityProof.WRONG),
        (look(guest=of("", ["BC:24:11:00:01:74", "02:42:00:00:00:01"])), IdentityProof.PROVED),
        (look(guest=of("", ["02:42:00:00:00:01"])), IdentityProof.WRONG),
        (look(guest=of("", [])), IdentityProof.UNPROVED),
        (look({"smbios_uuid": "", "macs": frozenset()}, kind=GuestKind.CONTAINER), IdentityProof.UNPROVED),
        (look(guest=MUTE), IdentityProof.PROVED),
        (look(guest=MUTE, baseline=None), IdentityProof.UNPROVED),
        (look(guest=MUTE, baseline=b.baseline(dmi_uuid=OTHER)), IdentityProof.WRONG),
        (look(guest=MUTE, baseline=b.baseline(dmi_uuid="")), IdentityProof.PROVED),
        (b.healthy_snapshot(hypervisor=b.no_hypervisor()), IdentityProof.UNPROVED),
    ],
)
def test_who_it_is(snapshot, proof):
    assert identity(snapshot) is proof


def test_a_container_shows_its_hosts_dmi_so_its_mac_counts():
    assert identity(look(guest=of(OTHER), kind=GuestKind.CONTAINER)) is IdentityProof.PROVED


def test_the_first_three_fields_may_stand_in_the_other_byte_order():
    assert same_uuid("00112233-4455-6677-8899-aabbccddeeff", "33221100-5544-7766-8899-AABBCCDDEEFF")
    assert not same_uuid("00112233-4455-6677-8899-aabbccddeeff", "33221100-5544-7766-8899-aabbccddeefe")


@pytest.mark.parametrize("step", [CYCLE, KILL, RESET])
def test_the_wrong_guest_is_never_touched(step):
    assert named(look(guest=of(OTHER)), step, trust_vmid=True) == "identity"


def test_an_unproved_guest_is_not_stopped_unless_somebody_vouches_for_it():
    snapshot = look(guest=MUTE, baseline=None)
    assert named(snapshot) == "identity-unproved"
    assert named(snapshot, trust_vmid=True) == ""
    assert named(look(guest=of("", [])), KILL) == ""


# Others at work


@pytest.mark.parametrize("step", [CYCLE, KILL])
@pytest.mark.parametrize(("run", "left_s", "guard"), [("theirs", 60, "held"), ("theirs", -1, ""), ("mine", 60, "")])
def test_a_marker_of_another_run(step, run, left_s, guard):
    marker = Marker(run, "kim", "desk", "reset-gpu", b.UPTIME_S + left_s)
    assert named(look(guest=b.guest(marker=Known(marker))), step, run="mine") == guard


@pytest.mark.parametrize(("over", "guard"), [(("theirs",), ""), (("another",), "held"), ((), "held")])
def test_a_marker_of_a_run_that_is_provably_over_holds_nobody(over, guard):
    marker = Marker("theirs", "kim", "desk", "reset-gpu", b.UPTIME_S + 60)
    assert named(look(guest=b.guest(marker=Known(marker))), KILL, run="mine", over=frozenset(over)) == guard


@pytest.mark.parametrize("step", [CYCLE, KILL])
def test_the_tag_of_its_owner(step):
    assert named(look(tags=("gpu", "do-not-recover")), step) == "tag"


@pytest.mark.parametrize(
    ("tasks", "guard"),
    [
        ((task("qmstop", 600),), "foreign-task"),
        ((task("qmstop", 3600),), ""),
        ((task("qmstop", 600, ours=True),), ""),
        ((task("qmconfig", 600),), ""),
        ((task("qmigrate", 600, running=True),), "running-task"),
        ((task("vzdump", 7200, running=True),), "running-task"),
        ((task("qmstart", 500, user="root@pam"), task("hastart", 520, ours=True)), ""),
        ((task("qmstart", 500, user="root@pam"), task("hastart", 1200, ours=True)), "foreign-task"),
    ],
)
def test_somebody_else_is_at_work(tasks, guard):
    assert named(look(tasks=Known(tasks))) == guard
    assert named(look(tasks=Known(tasks)), KILL) == ""


@pytest.mark.parametrize(
    ("changes", "guard"),
    [
        ({"lock": "backup"}, "lock"),
        ({"ha_state": Known("error")}, "ha-error"),
        ({"ha_state": Known("migrate")}, "ha-busy"),
        ({"ha_state": Known("started")}, ""),
        ({"ha_state": DENIED}, "ha"),
        ({"tasks": DENIED}, "tasks"),
        ({"config": DENIED}, "config"),
        ({"neighbours": DENIED}, "shared-device"),
        ({"qmpstatus": DENIED}, "qmpstatus"),
        *[({"qmpstatus": Known(s)}, "qmpstatus") for s in ("io-error", "paused", "suspended", "prelaunch", "save-vm")],
        *[({"qmpstatus": Known(s)}, "") for s in ("running", "internal-error", "guest-panicked", "watchdog")],
    ],
)
def test_what_proxmox_says(changes, guard):
    assert named(look(**changes)) == guard
    assert named(look(**changes), KILL) == ""


def test_without_the_nodes_clock_no_task_is_old_enough():
    found = refusal(look(tasks=Known((task("qmstop", 90_000),)), clock_s=0), CYCLE, Context())
    assert found.guard == "foreign-task" and "can't be told" in found.why and "Sys.Audit" in found.lift


def test_a_denied_question_names_the_privilege():
    found = refusal(look(tasks=DENIED), CYCLE, Context())
    assert "Sys.Audit on /nodes/pve1" in found.lift


def test_a_host_that_rebooted_meanwhile():
    booted = NOW - 5_000_000
    assert named(look(), host_booted_at=booted) == ""
    assert named(look(host_uptime_s=Known(300)), host_booted_at=booted) == "host-rebooted"


# Devices


@pytest.mark.parametrize(
    ("config", "guard"),
    [
        ({"hostpci": (pci(mapping="gpu", choices=2),)}, "mapping-choices"),
        ({"hostpci": (pci(driver="keep"),)}, "driver-keep"),
        ({"hostpci": (pci(mdev="nvidia-259"),)}, "vgpu"),
        ({"args": "-device vfio-pci,host=01:00.0"}, "args"),
        ({"args": "-cpu host"}, ""),
        ({"hostpci": (pci(device_ids=("10DE:2BB1",)),)}, "fragile-device"),
        ({"hostpci": (pci(device_ids=("10de:2b85", "10de:22e8")),)}, "fragile-device"),
    ],
)
def test_what_its_devices_are(config, guard):
    assert named(look(config)) == guard


def test_a_fragile_card_is_reset_when_somebody_approved_that_scope():
    snapshot = look({"hostpci": (pci(device_ids=("10de:2bb1",)),)})
    assert named(snapshot, approved=Scope.VM) == ""
    assert named(snapshot, approved=Scope.GPU) == "fragile-device"


def test_huge_pages_that_a_stop_gives_back_must_be_found_again():
    for size in ("2", "1024", "any"):
        assert named(look({"hugepages": size})) == "hugepages"
    assert named(look({"hugepages": "1024", "keeps_hugepages": True})) == ""
    assert named(look({"hugepages": "1024"}), approved=Scope.VM) == ""
    assert named(look({"hugepages": "1024"}), ALL_STEPS["reset-vm"]) == ""


def test_huge_pages_are_asked_for_unless_the_nodes_own_pools_are_seen_to_have_them():
    nodes = tuple(NumaNode(b.RAM_MIB // 2, n, bound=True) for n in (0, 1))
    seen = look({"hugepages": "1024", "numa": True, "numa_nodes": nodes})
    pages = b.RAM_MIB // 2048
    pools = [HugePages(n, 1 << 20, pages, 0, 0) for n in (0, 1)]
    for host, missing in (
        (NOT_ASKED, (0, 1)),
        (Known(looks.node()), (0, 1)),
        (Known(looks.node(hugepages=tuple(pools))), ()),
        (Known(looks.node(hugepages=(pools[0], replace(pools[1], surplus=3)))), (1,)),
    ):
        found = refusal(replace(seen, host=host), CYCLE, Context())
        if not missing:
            assert found is None
            continue
        assert found.guard == "hugepages" and "--approve vm" in found.lift
        assert [n for n in (0, 1) if f"{pages} of 1 GiB on NUMA node {n}" in found.why] == list(missing), found
    assert named(look({"hugepages": "1024", "numa": True, "plugs_memory": True})) == "hugepages"


@pytest.mark.parametrize(
    ("status", "shares", "guard"),
    [("running", ("0000:41:00.0",), "shared-device"), ("stopped", ("iommu group 3",), ""), ("running", (), "")],
)
def test_a_neighbour_on_the_same_device(status, shares, guard):
    near = Neighbour(175, "other", GuestKind.VM, status, shares)
    assert named(look(neighbours=Known((near,)))) == guard


# Bystanders


@pytest.mark.parametrize("health", [Health.HEALTHY, Health.STARTING, Health.LIVE])
def test_whoever_is_well_in_the_guest_is_named(health):
    groups = (*(group(5000 + 10 * i, health=health) for i in range(6)), group(9000))
    found = refusal(look(groups=groups), CYCLE, Context())
    assert found.guard == "bystanders"
    assert all(f"server-{5000 + 10 * i}" in found.why for i in range(6))
    assert "server-9000" not in found.why
    assert named(look(groups=groups), evict=True) == ""
    assert refusal(look(groups=groups), CYCLE, Context(), evict=True) is None


def test_dead_groups_and_monitors_are_no_bystanders():
    assert named(look(groups=(group(5000), group(700, health=Health.LIVE, protected="monitor")))) == ""


@pytest.mark.parametrize(
    "process",
    [
        b.process(900, "tmux", comm="tmux: server"),
        b.process(900, "-bash", comm="bash", tty=34816),
        b.process(900, "python3 -m ipykernel_launcher -f k.json"),
        b.process(900, "slurmstepd: [7.0]", comm="slurmstepd"),
        b.process(900, "postgres", cgroup="/system.slice/docker-0123456789abcdef.scope"),
    ],
)
def test_sessions_and_foreign_containers_are_bystanders(process):
    assert named(look(processes=[process])) == "bystanders"
    assert named(look(processes=[process]), evict=True) == ""
    assert named(look(processes=[replace(process, ours=True)])) == ""
    assert named(look(processes=[process]), KILL) == ""


def test_who_works_there_must_be_told_where_it_could_be():
    assert named(look(guest=b.guest(processes=DENIED))) == "bystanders"
    assert named(look(guest=b.guest(processes=Unknown(Why.TIMEOUT)))) == ""
    assert named(look(guest=MUTE)) == ""


def test_a_protected_guest_is_asked_for_by_name():
    assert named(look({"protection": True})) == "protection"
    assert named(look({"protection": True}), approved=Scope.VM) == ""
    assert named(look({"protection": True}), KILL) == ""
