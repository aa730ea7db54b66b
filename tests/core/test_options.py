"""Each rung says what it offers: a line that does something about a finding, or why not."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.options import DRAIN, Context, options
from recover.core.playbook import parse
from recover.model.act import Line, Pass, Refuse, Signal
from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.guest import Mute
from recover.model.hypervisor import GuestKind
from recover.model.ladder import Playbook, Ready, Rung
from recover.model.process import Health, Owner, OwnerKind
from recover.model.reading import Known
from recover.model.snapshot import Channel
from recover.model.verdict import Diagnosis, Finding, Scope, State
from recover.steps.startable import startable
from recover.steps.table import ALL_STEPS
from tests.core import builders as b
from tests.steps.looks import UNIT, dead, group, vm

ALL = frozenset(str(c) for c in (Channel.GUEST, Channel.HYPERVISOR))
UNOWNED = Finding("ram-unowned", "318 GiB that nobody owns", Scope.VM)


def shipped(name) -> Playbook:
    text = (Path(__file__).parents[2] / "playbooks" / f"{name}.toml").read_text()
    found = parse(tomllib.loads(text))
    assert isinstance(found, Playbook), found
    return found


def diagnosis(*findings, channels=ALL):
    return Diagnosis(State.FAULTY if findings else State.HEALTHY, findings, channels=channels)


def offers(snapshot, *findings, playbook="hung-server", channels=ALL, **context):
    found = options(snapshot, diagnosis(*findings, channels=channels), shipped(playbook), Context(**context))
    return {o.step: o.offer for o in found}


def look(*groups, **changes):
    return b.healthy_snapshot(**{"groups": groups, "hypervisor": vm(), **changes})


def test_a_healthy_machine_is_offered_nothing():
    found = offers(look(group(5000, health=Health.HEALTHY)))
    assert {type(o) for o in found.values()} == {Pass}


def test_one_option_per_rung_in_order():
    found = options(look(), diagnosis(), shipped("hung-server"), Context())
    assert [(o.index, o.step) for o in found] == [
        (0, "stop-service"),
        (1, "end-workers"),
        (2, "release-leftovers"),
        (3, "wake-gpu"),
        (4, "reset-gpu"),
        (5, "reboot-guest"),
        (6, "power-cycle-vm"),
        (7, "restart-container"),
    ]
    assert [o.scope for o in found] == sorted(o.scope for o in found)


def test_a_dead_group_of_a_unit():
    sick = group(5000, owner=UNIT)
    found = offers(look(sick), dead(sick.key))
    assert found["stop-service"].reaches == ("dead-group",)
    assert found["end-workers"].reaches == ("dead-group",)
    assert isinstance(found["reset-gpu"], Pass)
    assert found["power-cycle-vm"].reaches == ("dead-group",)
    assert found["power-cycle-vm"].blast.scope is Scope.VM


def test_one_lost_one_held_by_a_dead_group_six_serving():
    """The dead group can be ended; then the restart is refused, and the six are named."""
    serving = tuple(group(5000 + 10 * i, health=Health.HEALTHY, gpus=frozenset({b.uuid(i)})) for i in range(6))
    sick = group(9000, gpus=frozenset({b.uuid(6)}))
    gpus = (*b.gpus(7), b.gpu(7, condition=Condition.LOST))
    lost = Finding("gpu-lost", "GPU 7 is lost", Scope.VM, b.uuid(7))
    first = offers(look(*serving, sick, gpus=gpus), dead(sick.key), lost)
    assert first["end-workers"].reaches == ("dead-group",)
    then = offers(look(*serving, gpus=gpus), lost)
    assert [type(then[s]) for s in ("stop-service", "end-workers", "reset-gpu")] == [Pass] * 3
    refused = then["power-cycle-vm"]
    assert refused.guard == "bystanders"
    assert all(g.title in refused.why for g in serving)


def test_what_needs_more_is_not_tried_with_less():
    sick = group(5000)
    finding = replace(dead(sick.key), at_least=Scope.GPU)
    assert isinstance(offers(look(sick), finding)["end-workers"], Pass)


def test_no_channel():
    found = offers(look(group(5000)), dead(str(b.pid(5000)), Scope.PROCESS), channels=frozenset({"guest"}))
    assert found["power-cycle-vm"] == Pass("no hypervisor channel")
    muted = look(guest=Mute(Failure.BANNER_SILENCE, ""))
    found = offers(muted, UNOWNED, channels=frozenset({"hypervisor"}))
    assert found["end-workers"] == Pass("no guest channel")
    assert isinstance(found["power-cycle-vm"], Ready)


def test_not_for_containers():
    found = offers(look(target=b.target(kind=GuestKind.CONTAINER)), UNOWNED)
    assert found["power-cycle-vm"] == Pass("not for a container")


def test_the_wrong_guest_outranks_every_other_reason():
    wrong = b.guest(identity=replace(b.guest().identity, dmi_uuid=Known("99999999-8888-7777-6666-555555555555")))
    pod = group(5000, owner=Owner(OwnerKind.KUBERNETES, "0a1b"))
    found = offers(look(pod, guest=wrong), dead(pod.key), UNOWNED)
    assert {found[s].guard for s in ("stop-service", "end-workers", "power-cycle-vm")} == {"identity"}


def test_a_pod_is_refused_by_its_step():
    pod = group(5000, owner=Owner(OwnerKind.KUBERNETES, "0a1b"))
    assert offers(look(pod), dead(pod.key))["end-workers"].guard == "owned-elsewhere"


def test_what_the_person_allowed_reaches_the_steps():
    live = group(5000, health=Health.LIVE)
    sick = group(6000)
    found = offers(look(live, sick), dead(sick.key), evict=True)
    assert {a.do.group for a in found["end-workers"].line.acts if isinstance(a.do, Signal)} == {live.key, sick.key}


def test_drain_node_empties_a_healthy_machine():
    found = offers(look(group(5000, owner=UNIT, health=Health.HEALTHY)), playbook="drain-node")
    assert found["stop-service"].reaches == (DRAIN,)
    assert found["end-workers"].reaches == (DRAIN,)
    assert {type(o) for o in offers(look(), playbook="drain-node").values()} == {Pass}


def test_a_rung_that_is_ready_without_a_finding_it_works_on_reaches_nothing():
    sick, other = group(5000), group(6000, owner=UNIT)
    found = offers(look(sick, other), dead(sick.key), dead(other.key, signal="hung-group"))
    assert found["stop-service"].reaches == ("hung-group",)


@pytest.mark.parametrize("name", ["hung-server", "guest-only", "lost-gpu", "drain-node"])
def test_the_shipped_playbooks_are_whole(name):
    playbook = shipped(name)
    assert playbook.name == name
    assert playbook.about
    assert playbook.rungs


findings = st.lists(
    st.builds(
        Finding,
        signal=st.sampled_from(["a", "b", "c"]),
        says=st.just("wrong"),
        cure=st.sampled_from([None, *Scope]),
        where=st.sampled_from([None, b.uuid(0), str(b.pid(5000)), str(b.pid(6000))]),
        at_least=st.sampled_from([None, *Scope]),
    ),
    max_size=4,
)
EVERY = Playbook("every", "", rungs=tuple(Rung(name) for name in ALL_STEPS))


@given(
    found=findings,
    healths=st.tuples(st.sampled_from(list(Health)), st.sampled_from(list(Health))),
    quorate=st.booleans(),
    mute=st.booleans(),
    evict=st.booleans(),
)
def test_what_is_ready_does_something_about_a_curable_finding_and_nothing_to_the_well(
    found, healths, quorate, mute, evict
):
    groups = (group(5000, health=healths[0], owner=UNIT), group(6000, health=healths[1], gpus=frozenset({b.uuid(0)})))
    hypervisor = vm(quorate=Known(quorate))
    snapshot = look(*groups, hypervisor=hypervisor)
    if mute:
        snapshot = replace(snapshot, guest=Mute(Failure.BANNER_SILENCE, ""), groups=())
    for option in options(snapshot, diagnosis(*found), EVERY, Context(evict=evict)):
        offer = option.offer
        if not isinstance(offer, Ready):
            assert isinstance(offer, (Pass, Refuse))
            continue
        assert isinstance(offer.line, Line)
        assert offer.line.acts
        curable = {f.signal for f in found if f.cure is not None and f.cure <= option.reach}
        assert set(offer.reaches) <= curable
        assert curable
        well = {g.key for g in groups if g.health in (Health.HEALTHY, Health.STARTING)}
        ended = {a.do.group for a in offer.line.acts if isinstance(a.do, Signal)}
        assert option.step == "reset-gpu" or not ended & well
        if option.scope >= Scope.GUEST and not evict and not mute:
            assert {g.health for g in groups} <= {Health.DEAD, Health.HUNG}
        if option.step == "power-cycle-vm":
            assert startable(hypervisor) is None


def test_minutes_are_those_of_past_runs_where_there_are_any():
    snapshot = look(group(5000, health=Health.DEAD))
    plain = options(snapshot, diagnosis(dead(group(5000).key)), shipped("hung-server"), Context())
    known = options(snapshot, diagnosis(dead(group(5000).key)), shipped("hung-server"),
                    Context(took=(("end-workers", 7.5, 3),)))  # fmt: skip
    offers = {o.step: o.offer for o in known}
    assert isinstance(offers["end-workers"], Ready), offers
    assert (offers["end-workers"].blast.minutes, offers["end-workers"].blast.past_runs) == (7.5, 3)
    before = {o.step: o.offer for o in plain}["end-workers"]
    assert isinstance(before, Ready) and before.blast.past_runs == 0
