"""Every form of the driver's log lines that public reports show."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.read.kernel_log import ActionEvent, KernelEvent, SxidEvent, XidEvent, events, last_load, lines_of
from recover.model.gpu import RecoveryAction
from recover.model.memory import KernelLine

DATA = Path(__file__).parents[2] / "data" / "kernel"


def one(text: str):
    found = events([KernelLine(7, text)])
    assert len(found) == 1, found
    return found[0]


def read(name: str):
    text = "\n".join(line for line in (DATA / f"{name}.txt").read_text().splitlines() if not line.startswith("# "))
    return events(lines_of(text))


@pytest.mark.parametrize(
    ("line", "xid", "pid", "name", "mig"),
    [
        (
            "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
            79,
            1234,
            "python3",
            "",
        ),
        ("NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.", 79, 0, "", ""),
        ("NVRM: Xid (PCI:0000:41:00 GPU-I:05): 94, pid=7194, Contained: CE (0x9). RST: No", 94, 7194, "", "GI 5"),
        ("NVRM: Xid (PCI:0000:41:00 GPU-I:05 GPU-CI:00): 94, pid=7, name=a b, c, Contained", 94, 7, "a b", "GI 5 CI 0"),
        ("NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen", 79, 0, "", ""),
        ("NVRM: Xid (0000:41:00): 14, Channel 00000001", 14, 0, "", ""),
        ("NVRM: Xid (PCI:0000:41:00): 45, pid=9, name=x, Ch 0000000a caused by previous Xid 31", 45, 9, "x", ""),
        ("[12345.678901] NVRM: Xid (PCI:0000:41:00): 8, pid=1, Channel 1", 8, 1, "", ""),
    ],
)
def test_xid_forms(line, xid, pid, name, mig):
    event = one(line)
    assert isinstance(event, XidEvent)
    assert (event.xid, event.pid, event.name, event.mig) == (xid, pid, name, mig)
    assert event.bdf == "00000000:41:00.0" and event.usec == 7


def test_the_drivers_own_verdict():
    event = one(
        "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    )
    assert event == ActionEvent(7, "00000000:9b:00.0", RecoveryAction.NONE, RecoveryAction.GPU_RESET)
    event = one("NVRM: Xid (PCI:0000:9b:00): 154, pid=3, name=x, GPU recovery action changed from 0x1 (GPU Reset "
                "Required) to 0x77 (Something New)")  # fmt: skip
    assert isinstance(event, ActionEvent) and event.after is RecoveryAction.OTHER


def test_switches():
    event = one(
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"
    )
    assert isinstance(event, SxidEvent)
    assert (event.bdf, event.sxid, event.fatal) == ("00000000:05:00.0", 12028, False)


def test_a_process_name_can_not_forge_an_event():
    event = one("NVRM: Xid (PCI:0000:41:00): 31, pid=5, name=NVRM: Xid (PCI:0000:99:00): 79, MMU fault")
    assert isinstance(event, XidEvent) and event.xid == 31 and event.bdf == "00000000:41:00.0"


FILES = {
    "dmesg_xid119_550_6s": [119, 119, 119],
    "dmesg_xid119_595_45s_xid175": [119, 119],
    "dmesg_xid120_119_515": [120, 119],
    "dmesg_xid45_then_hung_task": [45, 45],
    "dmesg_xid79_595_open": [79],
    "dmesg_xid_94_95_mig_form": [94, 94, 95],
}


@pytest.mark.parametrize("name", FILES)
def test_real_logs(name):
    assert [e.xid for e in read(name) if isinstance(e, XidEvent)] == FILES[name]


KINDS = {
    "dmesg_xid119_550_6s": {"gpu-uuid", "rpc-limited"},
    "dmesg_xid45_then_hung_task": {"hung-task", "hung-state"},
    "dmesg_xid79_595_open": {"gpu-uuid", "off-bus"},
    "dmesg_io_region_invalid_guest": {"io-region-invalid", "probe-failed", "init-failed"},
    "dmesg_not_ready_after_resume_d3cold": {"pci-not-ready", "pci-d3cold", "init-failed"},
    "dmesg_oom_variants": {"oom-reaped", "oom-kill"},
    "libvirt_remove_device_nonzero_usage": {"remove-in-use"},
}


@pytest.mark.parametrize("name", KINDS)
def test_other_kinds_in_real_logs(name):
    assert {e.kind for e in read(name) if isinstance(e, KernelEvent)} == KINDS[name]


def test_times_and_owners_of_printed_lines():
    found = lines_of(
        "[  388.565288] NVRM: x\nOct  1 10:00:00 host kernel: [    1.000002] y\n2025-01-21T08:41:30,28+00:00 z"
    )
    assert [(line.usec, line.text) for line in found] == [(388565288, "NVRM: x"), (1000002, "y"), (0, "z")]
    oom = [e for e in read("dmesg_oom_variants") if isinstance(e, KernelEvent) and e.pid]
    assert [(e.pid, e.name) for e in oom] == [(345646, "vector"), (123, "httpd")]


def test_older_than_the_driver_is_seen():
    text = "[1.0] x\n[  5.000001] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.148.08\n"
    assert last_load(events(lines_of(text))) == 5000001
    assert last_load(()) == 0


@given(st.lists(st.text()))
def test_nothing_makes_it_raise(texts):
    events(KernelLine(0, text) for text in texts)
    lines_of("\n".join(texts))


@pytest.mark.parametrize("text", [
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "rcu: INFO: rcu_sched detected stalls on CPUs/tasks:",
    "INFO: rcu_sched self-detected stall on CPU { 3}  (t=15000 jiffies g=1 c=2 q=3)",
    "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... } 21 jiffies s: 5 root: 0x8/.",
    "INFO: rcu_tasks detected stalls on tasks:",
])  # fmt: skip
def test_a_stall_of_rcu_whatever_the_kernel_is_built_for(text: str) -> None:
    assert [e.kind for e in events([KernelLine(1, text)])] == ["rcu-stall"]
    assert events([KernelLine(1, "rcu: INFO: stall warnings are configured for 60 s")]) == ()
