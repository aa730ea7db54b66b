"""The driver's signals, each present and absent: what it says, what is news, and which word outranks which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.past import OwnActs, Past
from recover.core.xid_table import XIDS
from recover.core.xids import cure, is_fault
from recover.model.gpu import Condition, Driver, Gpu, RecoveryAction
from recover.model.guest import GuestIdentity, Mark
from recover.model.hypervisor import GuestKind, HostPci, Hypervisor, VmConfig
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope, State
from tests.core import builders as b
from tests.core import cases
from tests.core.looks import finding, once, signals, stuck

UNKNOWN = Unknown(Why.ABSENT, "no such field")
GSP = "NVRM: Xid (PCI:0000:01:00): 119, pid=1, name=x, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
OFF_BUS = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."


def with_gpu(**changes: object) -> Snapshot:
    return b.healthy_snapshot(gpus=(b.gpu(0, **changes), *b.gpus()[1:]))


def old_driver(*lines: str, **changes: object) -> Snapshot:
    """A driver without field 230: only its log speaks."""
    cards = tuple(replace(g, recovery_action=UNKNOWN) for g in b.gpus())
    return b.healthy_snapshot(gpus=cards, kernel=b.kernel(*lines), **changes)


def action(text: str, number: int) -> str:
    return f"NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to {number:#x} ({text})"


def test_nothing_on_a_healthy_machine() -> None:
    diagnosis = once(b.healthy_snapshot())
    assert (diagnosis.state, diagnosis.findings, diagnosis.symptoms) == (State.HEALTHY, (), ())


@pytest.mark.parametrize(
    ("condition", "signal", "scope"),
    [
        (Condition.HANGS, "nvml-hang", Scope.VM),
        (Condition.LOST, "gpu-lost", Scope.VM),
        (Condition.RESET_REQUIRED, "reset-required", Scope.GPU),
    ],
)
def test_conditions(condition: Condition, signal: str, scope: Scope) -> None:
    found = finding(once(with_gpu(condition=condition)), signal)
    assert (found.cure, found.where) == (scope, b.uuid(0))


def test_an_error_of_a_gpu_ripens_and_a_refusal_is_only_a_gap() -> None:
    assert (
        finding(stuck(with_gpu(condition=Condition.FAILS, detail="999 Unknown Error")), "gpu-fails").cure is Scope.GPU
    )
    denied = stuck(with_gpu(condition=Condition.FAILS, detail="4 No permission"))
    assert (denied.findings, denied.state) == ((), State.UNCERTAIN)


def test_an_adapter_that_could_not_be_brought_up() -> None:
    line = "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:667)"
    snapshot = replace_kernel(with_gpu(condition=Condition.FAILS, detail="999 Unknown Error"), line)
    assert finding(stuck(snapshot), "gpu-init-failed").cure is Scope.VM


def replace_kernel(snapshot: Snapshot, *lines: str) -> Snapshot:
    return replace(snapshot, guest=replace(snapshot.guest, kernel=b.kernel(*lines)))  # type: ignore[type-var]


def test_a_gpu_that_hung_and_was_not_asked_again_is_still_hung() -> None:
    snapshot = with_gpu(condition=Condition.NOT_ASKED)
    assert once(snapshot).state is State.UNCERTAIN
    kept = once(replace(snapshot, unasked_gpus=frozenset({b.uuid(0)})))
    assert finding(kept, "nvml-hang").where == b.uuid(0)


@pytest.mark.parametrize(
    ("said", "scope"),
    [
        (RecoveryAction.GPU_RESET, Scope.GPU),
        (RecoveryAction.NODE_REBOOT, Scope.GUEST),
        (RecoveryAction.DRAIN_AND_RESET, Scope.GPU),
        (RecoveryAction.BUS_RESET, Scope.VM),
        (RecoveryAction.RECOVER_IMEX_DOMAIN, None),
        (RecoveryAction.OTHER, None),
    ],
)
def test_recovery_actions(said: RecoveryAction, scope: Scope | None) -> None:
    diagnosis = once(with_gpu(recovery_action=Known(said)))
    assert [f.cure for f in diagnosis.findings] == [scope]


def test_every_recovery_action_has_a_cure() -> None:
    from recover.core.signals.driver import ACTION_CURES

    assert set(ACTION_CURES) == set(RecoveryAction) - {RecoveryAction.NONE}


# --------------------------------------------------------------------------------------------- the order of trust


def test_off_the_bus_outranks_the_drivers_reset() -> None:
    snapshot = replace_kernel(with_gpu(recovery_action=Known(RecoveryAction.GPU_RESET)), OFF_BUS)
    found = finding(once(snapshot), "gpu-lost")
    assert found.cure is Scope.VM
    assert any("GPU_RESET" in line for line in found.evidence)
    assert "reset-required" not in signals(once(snapshot))


def test_the_drivers_word_outranks_the_table_and_contradictions_are_shown() -> None:
    snapshot = replace_kernel(with_gpu(recovery_action=Known(RecoveryAction.NODE_REBOOT)), GSP)
    found = finding(once(snapshot), "recovery-action")
    assert found.cure is Scope.GUEST
    assert any("Xid 119" in line for line in found.evidence)
    assert once(replace_kernel(with_gpu(), GSP)).state is State.HEALTHY


def test_the_last_154_counts_and_may_take_back() -> None:
    reboot, none = action("Node Reboot Required", 2), action("None", 0)
    assert finding(once(old_driver(GSP, reboot)), "recovery-action").cure is Scope.GUEST
    assert once(old_driver(GSP, reboot, none)).findings == ()
    assert finding(once(old_driver(reboot, none, GSP)), "xid").cure is Scope.GPU


@pytest.mark.parametrize(
    ("case", "address", "code"),
    [
        ("dmesg_xid119_550_6s.txt", "00000000:9b:00.0", 119),
        ("dmesg_xid119_595_45s_xid175.txt", "00000000:01:00.0", 119),
        ("dmesg_xid120_119_515.txt", "00000000:3b:00.0", 120),
        ("dmesg_xid_94_95_mig_form.txt", "00000000:01:00.0", 95),
    ],
)
def test_logs_of_public_reports_ask_for_a_reset(case: str, address: str, code: int) -> None:
    card = b.gpu(0, bus_id=address, recovery_action=UNKNOWN)
    found = finding(
        once(b.healthy_snapshot(gpus=(card,), kernel=cases.kernel(case), baseline=None, pci_gpus=UNKNOWN)), "xid"
    )
    assert found.cure is Scope.GPU
    assert str(code) in " ".join(found.evidence)


def test_a_card_off_its_bus_in_a_public_report() -> None:
    kernel = cases.kernel("dmesg_xid79_595_open.txt")
    snapshot = b.healthy_snapshot(gpus=b.gpus(5), kernel=kernel, baseline=None, pci_gpus=UNKNOWN)
    assert finding(once(snapshot), "gpu-lost").where == "00000000:06:00.0"


def test_a_killed_programs_channels_are_no_fault() -> None:
    assert (
        once(old_driver(*(line.text for line in cases.kernel("dmesg_xid45_then_hung_task.txt").value))).findings == ()
    )


# ------------------------------------------------------------------------------------------------------- news


def test_xids_of_an_older_driver_are_no_news() -> None:
    load = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04"
    assert once(old_driver(GSP, load)).findings == ()
    assert signals(once(old_driver(load, GSP))) == ["xid"]


def test_xids_long_before_the_first_look_are_no_news() -> None:
    old = replace(old_driver(), guest=replace(old_driver().guest, kernel=b.kernel(GSP, uptime_s=b.UPTIME_S - 1900)))  # type: ignore[type-var]
    assert once(old).findings == ()
    assert signals(once(old, Past(first=Mark(b.BOOT, b.UPTIME_S - 200)))) == ["xid"]
    assert signals(once(old, Past(first=Mark("another boot", 10.0)))) == ["xid"]


def test_xids_of_our_own_acts_are_no_news() -> None:
    span = OwnActs(b.BOOT, b.UPTIME_S - 70, b.UPTIME_S - 50)
    assert once(old_driver(GSP), Past(own_acts=(span,))).findings == ()
    assert once(old_driver(GSP), Past(own_acts=(replace(span, until_uptime_s=None),))).findings == ()
    assert signals(once(old_driver(GSP), Past(own_acts=(replace(span, boot_id="x"),)))) == ["xid"]


def test_a_reset_settles_what_its_gpu_said_before() -> None:
    span = OwnActs(b.BOOT, b.UPTIME_S - 20, b.UPTIME_S - 10, frozenset({b.bus(0)}))
    assert once(old_driver(GSP), Past(own_acts=(span,))).findings == ()
    other = replace(span, reset=frozenset({b.bus(1)}))
    assert signals(once(old_driver(GSP), Past(own_acts=(other,)))) == ["xid"]


# -------------------------------------------------------------------------------------------------- the table


def test_every_xid_of_the_catalogue_is_known() -> None:
    assert set(XIDS) == set(range(1, 177))
    assert {code for code in XIDS if is_fault(code) and cure(code) is None} == {54, 64}
    assert {cure(c) for c in (48, 62, 74, 95, 109, 119, 120, 140, 143, 158, 175)} == {Scope.GPU}
    assert (cure(79), cure(151), cure(167)) == (Scope.VM, Scope.VM, Scope.VM)
    assert not any(is_fault(code) for code in (8, 13, 31, 43, 45, 63, 92, 94, 121, 154))
    assert all(not is_fault(code) for code, row in XIDS.items() if row.effect == "legacy")


def test_severity_words_decide_for_nvlink5() -> None:
    assert is_fault(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 08")
    assert not is_fault(149, "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08")


def test_a_failed_row_remap_is_for_a_person_and_a_pending_one_for_a_reset() -> None:
    assert finding(once(with_gpu(remap_failed=Known(True))), "row-remap-failed").cure is None
    assert finding(once(with_gpu(remap_pending=Known(True))), "row-remap-pending").cure is Scope.GPU
    line = "NVRM: Xid (PCI:0000:01:00): 64, Row remapper failure"
    assert finding(once(replace_kernel(with_gpu(), line)), "row-remap-failed").cure is None


# ------------------------------------------------------------------------------------------ driver and count


def driver(**changes: object) -> Snapshot:
    return b.healthy_snapshot(driver=Known(replace(Driver(Condition.FAILS), **changes)))


def test_a_mismatch_is_no_stuck_gpu() -> None:
    found = once(driver(nvml_code=18, detail="Driver/library version mismatch"))
    assert (finding(found, "driver-mismatch").cure, found.state) == (None, State.HOPELESS)


def test_a_missing_module_ripens_into_a_reload() -> None:
    snapshot = driver(nvml_code=9, detail="Driver Not Loaded")
    assert once(snapshot).findings == ()
    assert finding(stuck(snapshot), "driver-not-loaded").cure is Scope.DRIVER


def test_a_denied_driver_is_a_gap() -> None:
    diagnosis = stuck(driver(nvml_code=4, detail="Insufficient Permissions"))
    assert (diagnosis.findings, diagnosis.state) == ((), State.UNCERTAIN)


def test_a_hung_driver() -> None:
    found = finding(once(driver(condition=Condition.HANGS, detail="nvmlInit")), "nvml-hang")
    assert (found.cure, found.where) == (Scope.VM, None)


def test_a_container_that_lost_its_devices() -> None:
    snapshot = driver(nvml_code=999, detail="Unknown Error")
    inside = GuestIdentity("ct", b.BOOT, container=True)
    snapshot = replace(snapshot, guest=replace(snapshot.guest, identity=inside))  # type: ignore[type-var]
    assert finding(stuck(snapshot), "container-lost-gpus").cure is Scope.PROCESS


def test_a_lockup_inside_the_driver_skips_the_guest() -> None:
    head = "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [UVM GPU1 BH:321]"
    trace = ("Modules linked in: nvidia_uvm(OE)", "RIP: 0010:uvm_va_block_evict+0x1/0x2 [nvidia_uvm]")
    hung = (b.gpu(0, condition=Condition.HANGS), *b.gpus()[1:])
    found = finding(once(b.healthy_snapshot(gpus=hung, kernel=b.kernel(head, *trace))), "kernel-lockup")
    assert (found.cure, found.at_least) == (Scope.VM, Scope.VM)
    elsewhere = b.kernel(head.replace("UVM GPU1 BH", "kswapd0"), "RIP: 0010:shrink_node+0x1/0x2")
    assert signals(once(b.healthy_snapshot(gpus=hung, kernel=elsewhere))) == ["nvml-hang"]
    assert once(b.healthy_snapshot(kernel=b.kernel(head, *trace))).findings == ()  # a long pinning looks like this


def missing(cards: tuple[Gpu, ...], **changes: object) -> list[str]:
    return signals(stuck(b.healthy_snapshot(gpus=cards, **changes)))


def test_fewer_gpus_than_the_baseline_the_bus_or_the_configuration_have() -> None:
    seven = b.gpus(7)
    assert missing(seven) == ["gpu-missing"]
    assert missing(seven, baseline=None) == ["gpu-missing"]
    assert missing(seven, baseline=None, pci_gpus=UNKNOWN, target=b.target(expect=(("gpus", 8),))) == ["gpu-missing"]
    assert missing(seven, baseline=None, pci_gpus=UNKNOWN) == []
    assert once(b.healthy_snapshot(gpus=seven)).state is State.UNCERTAIN


def given(*counts: int | None, kind: GuestKind = GuestKind.VM) -> Hypervisor:
    """A VM with one entry for each count; None: nobody can tell what it is."""
    entries = [HostPci(f"hostpci{i}", "x", gpus=Known(n) if n is not None else UNKNOWN) for i, n in enumerate(counts)]
    return b.hypervisor(config=Known(VmConfig("node-174", 1024, hostpci=tuple(entries))), kind=kind)


def test_a_gpu_that_proxmox_passes_through_and_the_bus_lacks() -> None:
    seven = b.gpus(7)
    bus = Known(tuple(g.bus_id for g in seven))

    def seen(hypervisor: Hypervisor, **changes: object) -> list[str]:
        return missing(seven, **{"baseline": None, "pci_gpus": bus, "hypervisor": hypervisor, **changes})

    assert seen(given(*[1] * 8)) == ["gpu-missing"]
    assert seen(given(4, 4, 0)) == ["gpu-missing"]  # two mappings of four, and a network card
    assert seen(given(*[1] * 7)) == seen(given(*[1] * 6)) == []
    assert seen(given(*[1] * 7, None)) == seen(given(*[1] * 8), pci_gpus=UNKNOWN) == []
    assert seen(given(*[1] * 8, kind=GuestKind.CONTAINER)) == []
    assert seen(given(*[1] * 8), baseline=b.baseline()) == ["gpu-missing"]  # and told once


def test_a_guest_whose_driver_sees_nothing_still_has_a_bus() -> None:
    gone = Known(replace(Driver(Condition.FAILS), nvml_code=9, detail="Driver Not Loaded"))
    bare = b.healthy_snapshot(driver=gone, gpus=(), pci_gpus=Known(()), baseline=None, hypervisor=given(1, 1))
    found = finding(stuck(bare), "gpu-missing")
    assert found.cure is Scope.VM and "0 GPUs are on the guest's bus, and Proxmox passes 2" in found.says


def test_a_young_guest_may_still_bring_its_gpus_up() -> None:
    young = b.healthy_snapshot(gpus=b.gpus(7), mark=Mark(b.BOOT, 60.0))
    assert signals(stuck(young, 8)) == []


def test_other_gpus_make_the_baseline_stale_and_nothing_faulty() -> None:
    cards = tuple(replace(g, uuid=Known(f"GPU-new-{g.index}")) for g in b.gpus())
    assert once(b.healthy_snapshot(gpus=cards)).state is State.HEALTHY


def test_an_invalid_io_region_is_a_matter_of_configuration() -> None:
    kernel = cases.kernel("dmesg_io_region_invalid_guest.txt")
    found = finding(stuck(b.healthy_snapshot(gpus=b.gpus(7), kernel=kernel)), "gpu-missing")
    assert found.cure is None


def test_a_narrower_link_is_the_hosts() -> None:
    assert finding(once(with_gpu(link_width=Known(8))), "link-width").cure is Scope.HOST_DEVICE
    assert once(replace(with_gpu(link_width=Known(8)), baseline=None)).findings == ()


def test_nvswitch_errors() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): {}, {}, Link 32 egress error (First)"
    fatal = b.healthy_snapshot(kernel=b.kernel(line.format(12001, "Fatal")))
    assert finding(once(fatal), "sxid").cure is Scope.VM
    assert finding(once(b.healthy_snapshot(kernel=b.kernel(line.format(23001, "Fatal")))), "sxid").cure is None
    assert once(b.healthy_snapshot(kernel=b.kernel(line.format(12001, "Non-fatal")))).findings == ()


@pytest.mark.parametrize(
    ("state", "signal", "cure"),
    [("not started", "fabric-not-ready", None), ("in progress", "fabric-not-ready", None),
     ("failed (NVML 999: unknown error)", "fabric-broken", Scope.GPU)],
)  # fmt: skip
def test_a_fabric_that_is_not_made_keeps_a_gpu_from_cuda(state: str, signal: str, cure: Scope | None) -> None:
    snapshot = with_gpu(fabric=Known(state))
    assert once(snapshot).findings == ()
    assert finding(stuck(snapshot), signal).cure is cure
    young = replace(snapshot, guest=replace(snapshot.guest, mark=Mark(b.BOOT, 60.0)))  # type: ignore[type-var]
    assert signals(stuck(young, 8)) == []


def test_a_fabric_that_is_none_or_made_or_in_use_is_no_fault() -> None:
    for word in ("none", "completed"):
        assert stuck(with_gpu(fabric=Known(word))).findings == ()
    assert stuck(with_gpu(fabric=UNKNOWN)).findings == ()
    serving = tuple(replace(g, fabric=Known("in progress")) for g in b.serving_gpus())
    assert signals(stuck(b.serving_snapshot(gpus=serving))) == []


def test_pages_that_wait_for_a_reset() -> None:
    assert finding(once(with_gpu(pages_pending=Known(True))), "row-remap-pending").cure is Scope.GPU
    assert once(with_gpu(pages_pending=Known(False))).findings == ()
