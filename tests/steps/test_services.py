"""stop-service asks the owner of what is dead, and never one that also serves what is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.model.act import EndMpsClient, Pass, Refuse, StopService
from recover.model.guest import MpsClient, Service
from recover.model.process import Health, Owner, OwnerKind
from recover.model.reading import Known
from tests.core import builders as b
from tests.steps.looks import UNIT, acts, group, must, plan, plan_for


def look(*groups, **changes):
    return b.healthy_snapshot(groups=groups, **changes)


def test_the_unit_of_a_dead_group_is_stopped():
    line = plan_for("stop-service", look(group(5000, owner=UNIT)), deadline=90.0)
    assert acts(line) == [StopService("systemd", "sglang.service", 90.0)]
    assert must(line) == [True]
    assert line.worst_case_s == 90 + 20 + 15  # the state read back, and the connection


def test_a_container_is_stopped_by_docker():
    owner = Owner(OwnerKind.DOCKER, "0123456789ab")
    assert acts(plan_for("stop-service", look(group(5000, owner=owner)))) == [
        StopService("docker", "0123456789ab", 120)
    ]


def test_two_dead_groups_of_one_unit_stop_it_once():
    line = plan_for("stop-service", look(group(5000, owner=UNIT), group(6000, owner=UNIT, health=Health.HUNG)))
    assert len(acts(line)) == 1


@pytest.mark.parametrize("health", [Health.HEALTHY, Health.STARTING, Health.LIVE])
def test_a_unit_that_serves_something_else_is_left_alone(health):
    snapshot = look(group(5000, owner=UNIT), group(6000, owner=UNIT, health=health))
    offered = plan_for("stop-service", snapshot)
    assert isinstance(offered, Pass)
    assert "also serves server-6000" in offered.why


@pytest.mark.parametrize(
    ("kind", "name", "command"),
    [
        (OwnerKind.KUBERNETES, "0a1b", "kubectl delete pod <its pod, uid 0a1b>"),
        (OwnerKind.KUBERNETES, "team-a/vllm-0", "kubectl delete pod --namespace team-a vllm-0"),
        (OwnerKind.SLURM, "4711", "scancel 4711"),
        (OwnerKind.SUPERVISORD, "", "supervisorctl stop <its name>"),
    ],
)
def test_owners_that_only_a_person_may_ask(kind, name, command):
    offered = plan_for("stop-service", look(group(5000, owner=Owner(kind, name))))
    assert isinstance(offered, Refuse)
    assert offered.guard == "owned-elsewhere"
    assert offered.lift == command


def test_a_users_own_manager_is_asked_as_that_user():
    owner = Owner(OwnerKind.SYSTEMD_USER, "s.service", "uid 1000")
    line = plan_for("stop-service", look(group(5000, owner=owner)))
    assert acts(line) == [StopService("systemd-user", "s.service", 120, uid=1000)]


ROOTLESS = "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-abc.scope"


@pytest.mark.parametrize(
    ("cgroup", "unit", "asked"),
    [
        ("/machine.slice/libpod-abc.scope", "", ("podman", "abcabcabcabc", None)),
        (ROOTLESS, "", ("podman", "abcabcabcabc", 1000)),
        ("/machine.slice/libpod-abc.scope", "vllm.service", ("systemd", "vllm.service", None)),
        (ROOTLESS, "vllm.service", ("systemd-user", "vllm.service", 1000)),
    ],
)
def test_podman_is_asked_unless_a_unit_would_start_it_again(cgroup, unit, asked):
    uid = 1000 if "1000" in cgroup else None
    box = Service("podman", "vllm", "running", uid=uid, unit=unit, id="abcabcabcabc0123")
    snapshot = look(group(5000, owner=Owner(OwnerKind.PODMAN, "abcabcabcabc", cgroup)), services=Known((box,)))
    manager, name, whose = asked
    assert acts(plan_for("stop-service", snapshot)) == [StopService(manager, name, 120, uid=whose)]


def test_a_stopped_container_is_known_by_its_id():
    box = Service("docker", "vllm", "exited", id="0123456789abcdef")
    owner = Owner(OwnerKind.DOCKER, "0123456789abcdef")
    snapshot = look(group(5000, owner=owner), services=Known((box,)))
    assert plan_for("stop-service", snapshot) == Pass("already stopped: 0123456789abcdef")


def test_a_container_that_its_own_stop_deletes_is_said():
    box = Service("docker", "vllm", "running", id="0123456789abcdef", enabled="auto-remove")
    owner = Owner(OwnerKind.DOCKER, "0123456789abcdef")
    line = plan_for("stop-service", look(group(5000, owner=owner), services=Known((box,))))
    assert "can't be started again" in line.words[0]


def test_a_program_of_supervisord_is_known_by_its_process():
    programs = Known((Service("supervisord", "llm:sglang", "RUNNING", 5000), Service("supervisord", "b", "RUNNING", 7)))
    owner = Owner(OwnerKind.SUPERVISORD, "", "supervisord, pid 90")
    line = plan_for("stop-service", look(group(5000, owner=owner), services=programs))
    assert acts(line) == [StopService("supervisord", "llm:sglang", 120)]


def test_all_that_stands_in_a_configured_slice_is_meant():
    tries = Known((Service("systemd", "a.service", "activating", within="llm.slice"),))
    snapshot = look(group(5000), services=tries, target=b.target(services=("llm.slice",)))
    assert acts(plan_for("stop-service", snapshot)) == [StopService("systemd", "a.service", 120)]


def test_what_can_be_stopped_is_stopped_before_a_refusal():
    pod = group(6000, owner=Owner(OwnerKind.KUBERNETES, "0a1b"))
    assert len(acts(plan_for("stop-service", look(group(5000, owner=UNIT), pod)))) == 1


@pytest.mark.parametrize("kind", [OwnerKind.NONE, OwnerKind.TERMINAL, OwnerKind.JUPYTER, OwnerKind.SHELL])
def test_nobody_to_ask(kind):
    assert isinstance(plan_for("stop-service", look(group(5000, owner=Owner(kind, "bash")))), Pass)


@pytest.mark.parametrize("unit", ["sshd.service", "docker.service", "session-3.scope", "user.slice", "user@0.service"])
def test_what_the_guest_needs_is_never_stopped(unit):
    owner = Owner(OwnerKind.SYSTEMD, unit)
    assert isinstance(plan_for("stop-service", look(group(5000, owner=owner))), Pass)


def test_a_stopped_unit_is_not_stopped_again():
    services = Known((Service("systemd", "sglang.service", "failed"),))
    offered = plan_for("stop-service", look(group(5000, owner=UNIT), services=services))
    assert offered == Pass("already stopped: sglang.service")


def test_a_configured_unit_that_keeps_trying_is_stopped_although_it_owns_nothing():
    services = Known((Service("systemd", "sglang.service", "activating", restarts=7),))
    snapshot = look(group(5000), services=services, target=b.target(services=("sglang.service",)))
    assert acts(plan_for("stop-service", snapshot)) == [StopService("systemd", "sglang.service", 120)]


def test_no_finding_no_stop():
    assert isinstance(plan("stop-service", look(group(5000, owner=UNIT))), Pass)


def test_healthy_services_stop_only_to_drain():
    snapshot = look(group(5000, owner=UNIT, health=Health.HEALTHY))
    assert isinstance(plan("stop-service", snapshot, evict=True), Pass)
    assert len(acts(plan("stop-service", snapshot, drain=True))) == 1


def test_protected_groups_stay_even_to_drain():
    assert isinstance(plan("stop-service", look(group(5000, owner=UNIT, protected="protect: x")), drain=True), Pass)


def test_a_manager_kills_as_well_so_mps_clients_go_first_and_criu_is_refused():
    processes = b.sglang_group(5000, tp=2)
    daemon = b.process(400, "nvidia-cuda-mps-server", comm="nvidia-cuda-mps")
    sick = group(*(p.pid for p in processes), owner=UNIT)
    seen = look(sick, processes=(*processes, daemon))
    seen = replace(seen, guest=replace(seen.guest, mps=(MpsClient(400, 5001),)))
    assert [type(a) for a in acts(plan_for("stop-service", seen))] == [EndMpsClient, StopService]
    restored = tuple(replace(p, criu_restored=p.pid == 5001) for p in processes)
    offered = plan_for("stop-service", look(sick, processes=restored))
    assert isinstance(offered, Refuse) and offered.guard == "criu-restored"
