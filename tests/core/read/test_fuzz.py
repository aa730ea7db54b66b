"""Readers that no other file fuzzes: any text in, no exception, nothing that was not said."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recover.core.read import agent_system, pve_config, pve_tasks, task_log
from recover.core.read.bare import SCRIPT, read_bare
from recover.core.read.host import read_host
from recover.core.read.procfs import bus_id, meminfo, module_version, ram
from recover.core.read.report import Report
from recover.core.read.rows import Row
from recover.model.reading import Known, Unknown, Why

BOOT = "11111111-2222-3333-4444-555555555555"
_QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_STAT = "4242 (py) thon) R 1 4242 4242 0 -1 4194304 1 0 0 0 5 6 0 0 20 0 3 0 999 1000 77 1"
_WELL = (
    *(f"=== {word}" for word in SCRIPT.replace(";", " ").split() if word.isalpha() and word.islower()), BOOT, _STAT,
    "MemTotal:       482344960 kB", "MemAvailable: 1 kB", "12345.67 1.0",
    "[    1.000001] NVRM: Xid (PCI:0000:01:00): 79",
    "0000:41:00.0", "41:00;42:00", "mapping=one,pcie=1", "GPU UUID: \t GPU-1", "²", "9" * 5000, "-" * 30,
    "=== smi-exit",
    "TASK ERROR: VM is locked (backup)", "UPID:pve1:0000A:0B:65000000:qmstart:174:root@pam:",
    "4242 sglang serve", "\x1b[31m",
)  # fmt: skip
_TEXT = st.lists(st.one_of(st.sampled_from(_WELL), st.text(max_size=40)), max_size=25).map("\n".join)
_ANY: st.SearchStrategy[object] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(_WELL) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(
        ("id", "map", "path", "node", "vendor", "device", "class", "iommugroup", "address", "list", "name", "pid",
         "state",
         "upid", "type", "inhibitors", "path", "waiting", "methods", "hw", "group", "members", "below", "user",
         "starttime"),
    ), inner, max_size=6),
    max_leaves=12,
)  # fmt: skip


@given(_TEXT)
@_QUICK
def test_a_view_without_python(text: str) -> None:
    guest = read_bare(text.encode("utf-8", "replace"), "no Python")
    assert guest is None or (not guest.complete or "=== end" in text)
    full = read_bare(f"=== boot\n{BOOT}\n=== stat\n{text}\n=== meminfo\n{text}\n=== cmdline\n{text}".encode(), "x")
    assert full is None or (isinstance(full.gpus, Unknown) and not any(p.holds_known for p in _of(full.processes)))


def _of(reading: object) -> tuple:  # type: ignore[type-arg]
    return reading.value if isinstance(reading, Known) else ()


@given(_TEXT)
@_QUICK
def test_files_of_proc(text: str) -> None:
    meminfo(text), module_version(text), bus_id(text)
    seen = ram(text, 0)
    assert isinstance(seen, Unknown) or "MemTotal" in text


@given(st.lists(_TEXT, max_size=6))
@_QUICK
def test_logs_of_tasks(texts: list[str]) -> None:
    notes = task_log.classify(texts)
    assert task_log.gravest(notes) is None or notes
    for text in texts:
        task_log.classify_line(text), pve_tasks.parse_upid(text)


@given(
    st.dictionaries(
        st.sampled_from(
            (
                "hostpci0",
                "hostpci1",
                "hostpci",
                "memory",
                "net0",
                "agent",
                "smbios1",
                "balloon",
                "scsi0",
                "lxc",
                "dev0",
                "cores",
            )
        ),
        _ANY,
        max_size=6,
    ),
    _ANY,
    _ANY,
)
@_QUICK
def test_configurations(config: dict[str, object], devices: object, mappings: object) -> None:
    bus = Known(pve_config.pci_devices(devices))
    for there in (bus, Unknown(Why.DENIED, "x")):
        found = pve_config.vm_config(config, "pve1", there, Known(mappings))
        assert all(isinstance(d.gpus, Unknown) or d.gpus.value <= len(d.addresses) for d in found.hostpci)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                (
                    "host",
                    "holders",
                    "reservations",
                    "qemu",
                    "functions",
                    "bridges",
                    "groups",
                    "host-gpus",
                    "container",
                    "boot",
                    "driver-modules",
                    "mps",
                    "fuse",
                    "services",
                    "end",
                )
            ),
            st.dictionaries(
                st.sampled_from(("list", "hostname", "boot_id", "init", "inhibitors", "pids", "state")),
                _ANY,
                max_size=4,
            ),
        ),
        max_size=8,
    )
)
@_QUICK
def test_a_nodes_report_and_the_system_rows(lines: list[tuple[str, dict[str, object]]]) -> None:
    report = Report()
    for kind, fields in lines:
        report.add(kind, Row(fields))
    read_host(report, "pve1")
    agent_system.boot(report), agent_system.modules(report), agent_system.mps(report), agent_system.stuck_fuse(report)
