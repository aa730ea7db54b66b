"""The rules alone: what a figure, a failure and a privilege mean."""

from __future__ import annotations

import pytest

from recover.core.doctor import (
    DAY_S,
    Certificate,
    Refusal,
    Status,
    clock_point,
    expiry_point,
    guest_point,
    ordered,
    playbook_points,
    privilege_points,
    via_api,
)
from recover.core.doctor_guest import AgentSeen, agent_points, baseline_point, node_points, ssh_points, uid_point
from recover.core.privileges import Place, missing, needs, recipe, too_much
from recover.model.contact import Failure
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Playbook, Rung
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Channel
from recover.steps.table import ALL_STEPS


@pytest.mark.parametrize(("ahead", "margin", "status"), [
    (0.4, 1.0, Status.OK), (-5.5, 1.0, Status.OK), (7.0, 1.0, Status.WARN), (-90.0, 1.0, Status.WARN),
    (3600.0, 1.0, Status.FAIL), (-125.0, 10.0, Status.WARN),
])  # fmt: skip
def test_a_clock_is_judged_beyond_what_the_answer_took(ahead: float, margin: float, status: Status) -> None:
    point = clock_point("x", "the clock", ahead, margin)
    assert point.status is status and bool(point.fix) is (status is not Status.OK)
    assert status is Status.OK or ("ahead" in point.says) is (ahead > 0)


@pytest.mark.parametrize(("ends", "pinned", "status"), [
    (300 * DAY_S, False, Status.OK), (13 * DAY_S, False, Status.WARN), (-DAY_S, False, Status.FAIL),
    (-DAY_S, True, Status.WARN), (3600.0, True, Status.WARN),
])  # fmt: skip
def test_a_certificate_that_expires_soon_is_told_before_it_does(ends: float, pinned: bool, status: Status) -> None:
    now = 1_800_000_000.0
    point = expiry_point("x", "pve1", Certificate(now - DAY_S, now + ends, ""), now, pinned=pinned)
    assert point.status is status and bool(point.fix) is (status is not Status.OK)


@pytest.mark.parametrize("failure", list(Failure))
@pytest.mark.parametrize("sudo", [False, True])
def test_every_way_to_fail_to_log_in_has_its_place_and_its_fix(failure: Failure, sudo: bool) -> None:
    if failure is Failure.SUDO and not sudo:
        return
    points = ssh_points("x", "root@x:22", failure, "it said so", sudo=sudo)
    (wrong,) = [p for p in points if p.status is Status.FAIL]
    assert wrong.fix and wrong.costs
    assert all(p.status is Status.OK for p in points[: points.index(wrong)])
    assert all(p.status is Status.SKIP for p in points[points.index(wrong) + 1 :])


def test_what_the_guest_says_is_judged() -> None:
    assert [uid_point("x", uid).status for uid in (0, 1000, None)] == [Status.OK, Status.FAIL, Status.SKIP]
    assert agent_points("x", AgentSeen("3.6.8", True))[0].says == "runs on Python 3.6.8"
    assert agent_points("x", AgentSeen("", True))[0].status is Status.FAIL
    assert agent_points("x", AgentSeen("3.9.2", False))[0].status is Status.WARN
    assert agent_points("x", "timeout")[0].status is Status.FAIL
    assert baseline_point("x", None, "", (), True).status is Status.WARN
    assert baseline_point("x", None, "damaged", (), True).status is Status.FAIL


def test_a_privilege_that_could_not_be_asked_is_not_called_missing() -> None:
    wanted = needs(Place(174, ("pve1",)), ("power-cycle-vm",))
    held = {"/vms/174": Known({"VM.Audit": True}), "/": Unknown(Why.TIMEOUT, "slow")}
    points = privilege_points("x", wanted, held, "a@pve!t")
    (lacks,) = [p for p in points if p.status is Status.FAIL]
    assert lacks.says.startswith("VM.PowerMgmt on /vms/174 is missing")
    assert [p.says for p in points if p.status is Status.SKIP] == [
        "could not be asked: not asked: Sys.Audit on /nodes/pve1, VM.Audit on /vms",
        "could not be asked: slow: Sys.Audit on /",
    ]


@pytest.mark.parametrize(("kind", "answers", "status", "fix"), [
    ("not-found", True, Status.FAIL, "VM.Audit"), ("unreachable", True, Status.FAIL, "is the node"),
    ("garbled", True, Status.FAIL, "pvesh"), ("auth", True, Status.FAIL, "VM.Audit"),
    *[(kind, False, Status.SKIP, "") for kind in ("auth", "tls", "unreachable", "no-secret", "garbled")],
])  # fmt: skip
def test_a_guest_is_not_blamed_for_an_api_that_is_not_there(kind: str, answers: bool, status: Status, fix: str) -> None:
    point = guest_point("x", 174, Refusal(kind, "it said so"), answers=answers)
    assert point.status is status and fix in point.fix and bool(point.fix) is answers


@pytest.mark.parametrize(
    ("hostname", "python", "status"),
    [
        ("pve1", "Python 3.11.2", [Status.OK, Status.OK]),
        ("PVE1.example.org", "Python 3.13.5", [Status.OK, Status.OK]),
        ("pve2", "Python 3.11.2", [Status.FAIL, Status.OK]),
        ("pve1", "sh: 1: python3: not found", [Status.OK, Status.FAIL]),
        ("", "", [Status.SKIP]),
    ],
)
def test_a_nodes_shell_is_on_that_node_and_can_start_the_agent(
    hostname: str, python: str, status: list[Status]
) -> None:
    points = node_points("pve1", hostname, python)
    assert [p.status for p in points] == status
    assert all(p.fix for p in points if p.status is Status.FAIL)


def test_a_rung_counts_for_the_kind_of_guest_that_it_is_for() -> None:
    book = Playbook("x", "", rungs=(Rung("end-workers"), Rung("power-cycle-vm"), Rung("reset-vm")))
    assert via_api(book, ALL_STEPS, GuestKind.VM) == ("power-cycle-vm", "reset-vm")
    assert via_api(book, ALL_STEPS, GuestKind.CONTAINER) == ()
    (point,) = playbook_points("x", Playbook("x", "", rungs=(Rung("end-workers"),)), "", ALL_STEPS, [Channel.GUEST])
    assert point.status is Status.OK
    wrong = playbook_points("x", book, "", ALL_STEPS, [Channel.GUEST])
    assert [p.status for p in wrong] == [Status.FAIL, Status.FAIL] and all("vmid" in p.fix for p in wrong)


def test_a_privilege_that_stays_on_its_path_does_not_cover_what_is_below() -> None:
    (vms,) = [n for n in needs(Place(174), ()) if n.path == "/vms"]
    assert missing(vms, {"VM.Audit": False}) and not missing(vms, {"VM.Audit": True})
    assert too_much({"Sys.Audit": True, "Sys.Modify": False}) == ("Sys.Modify",)


def test_recipes_quote_what_comes_from_machines() -> None:
    place = Place(174, ("pve1; reboot",), ("a b",), ("$(x)",), ha=True)
    text = "\n".join(recipe(9, "rec@pve!gpu", place))
    assert "'/nodes/pve1; reboot'" in text and "'/storage/a b'" in text and "'/mapping/pci/$(x)'" in text
    assert "'rec@pve!gpu'" in text and "VM.Monitor" not in text
    assert "VM.Monitor" in "\n".join(recipe(8, "rec@pve!gpu", place))


def test_nothing_that_a_machine_said_steers_a_terminal() -> None:
    (point,) = ordered([clock_point("a\x1b[2J", "b\x07", 999.0, 0.0)])
    assert point.about == "a" and point.says.startswith("b")
