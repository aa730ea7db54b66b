"""What the node shows of devices: gone is curable on the node, given up is nobody's, and a leftover QEMU is named."""

from __future__ import annotations

from dataclasses import replace

from recover.model.reading import Known, Unknown, Why
from recover.model.verdict import Scope, State
from tests.core import builders as b
from tests.core.looks import once
from tests.steps.looks import node, vm


def seen(host, **changes):
    return once(b.healthy_snapshot(hypervisor=vm(**changes), host=Known(host), host_shell=True))


def first(**changes):
    functions = node().functions
    return node(functions=(replace(functions[0], **changes), *functions[1:]))


def test_a_node_that_is_well_changes_nothing():
    assert seen(node()).state is State.HEALTHY
    assert "host" in seen(node()).channels


def test_a_device_that_does_not_answer_is_cured_on_the_node():
    (finding,) = seen(first(answers=Known(False))).findings
    assert (finding.signal, finding.cure, finding.where) == ("pci-device-gone", Scope.HOST_DEVICE, None)
    assert "0000:41:00.0" in finding.says


def test_a_device_that_is_not_on_the_bus_is_looked_for_on_the_node():
    (finding,) = seen(node(functions=node().functions[1:])).findings
    assert (finding.signal, finding.cure, finding.where) == ("pci-device-gone", Scope.HOST_DEVICE, None)
    assert finding.says == "0000:41:00.0 is not on the bus of pve1"
    assert not seen(node(functions=())).findings, "a list that was not told is not an empty bus"


def test_a_device_that_the_kernel_gave_up_is_a_person_s():
    gave_up = "vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up"
    diagnosis = seen(first(answers=Known(False), gave_up=gave_up))
    (finding,) = diagnosis.findings
    assert (finding.signal, finding.cure, finding.evidence) == ("pci-device-dead", None, (gave_up,))
    assert diagnosis.state is State.HOPELESS


def test_one_that_answers_again_was_not_given_up_for_good():
    assert not seen(first(gave_up="not ready 65535ms after FLR; giving up")).findings


def test_devices_of_others_are_not_the_guest_s_trouble():
    other = replace(node().functions[0], address="0000:99:00.0", answers=Known(False))
    assert not seen(node(functions=(*node().functions, other))).findings


def test_a_qemu_that_outlived_its_stop():
    diagnosis = seen(node(qemu=(7000,)), status="stopped")
    assert "leftover-qemu" in {f.signal for f in diagnosis.findings}


def test_a_shell_that_is_not_to_be_had_is_a_gap_and_no_more():
    shell = Unknown(Why.UNREACHABLE, "refused")
    diagnosis = once(b.healthy_snapshot(hypervisor=vm(), host=shell))
    assert diagnosis.state is State.HEALTHY and any("root shell" in gap for gap in diagnosis.gaps)
