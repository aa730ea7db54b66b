"""Every public report of tests/data/cases/raw with what is to be found in it; some are right when nothing is."""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.core.explain import explain

RAW = Path(__file__).parents[2] / "data" / "cases" / "raw"

# file -> (signal, cure or None, the line on which it stands); the header lines are taken off first.
RIGHT: dict[str, list[tuple[str, str | None, int]]] = {
    "ci_gpu_idle_wait_hicache": [],  # still unpinning: it ends by itself
    "dmesg_io_region_invalid_guest": [("gpu-missing", None, 1)],
    "dmesg_not_ready_after_resume_d3cold": [
        ("reset-gave-up", None, 4),
        ("stuck-d3", None, 5),
        ("gpu-init-failed", None, 6),
    ],
    "dmesg_oom_variants": [("oom-kill", None, 2)],
    "dmesg_xid119_550_6s": [("xid", "gpu", 3), ("reset-required", "gpu", 5)],
    "dmesg_xid119_595_45s_xid175": [("xid", "gpu", 1)],
    "dmesg_xid120_119_515": [("xid", "gpu", 2), ("xid", "gpu", 3)],
    "dmesg_xid45_then_hung_task": [("stuck-process", "guest", 3)],
    "dmesg_xid79_595_open": [("gpu-lost", "vm", 3)],
    "dmesg_xid_94_95_mig_form": [("xid", "process", 1), ("xid", "gpu", 3)],
    "free_h_before_after_driver_leak": [("ram-unowned", "guest", 7)],
    "fuser_vllm_truncated_comm": [],  # it holds a GPU, as a server does
    "gpustat_ghost_null_process": [("gpu-memory-held", "gpu", 1)],
    "libvirt_remove_device_nonzero_usage": [("device-in-use", "process", 1)],
    "lspci_a100_hgx_with_nvswitch": [],
    "meminfo_128g_host": [],
    "nvidia_modeset_dead_gpu_unload_hang": [("gpu-fails", "vm", 1)],
    "proc_stack_uvm_spin_loop": [("unkillable-process", "guest", 1)],
    "ps_nvidia_tools_in_D": [("nvml-hang", "vm", 1)],
    "ps_sglang_reparented_to_init": [("dead-group", "process", 2)],
    "ps_vllm_R_state_unkillable": [("dead-group", "process", 2)],  # R alone is no proof that it ignores a kill
    "ps_vllm_omni_stage_engines": [],
    "pve_api_500_lock": [("flock-timeout", None, 1)],
    "pve_api_500_no_such_ha_resource": [],
    "pve_api_599_during_big_vm_start": [("api-proxy-error", None, 1)],
    "pve_ha_lrm_messages": [("ha-error", None, 1), ("ha-failed", None, 3)],
    "pve_host_log_bus_reset_stuck_d3": [("stuck-d3", None, 3), ("reset-gave-up", None, 4)],
    "pve_host_vfio_dma_map_einval_noise": [],
    "pve_start_pci_messages": [
        ("reset-failed-warn", "host-device", 1),
        ("in-use-by-vmid", None, 3),
        ("reserved-by-vmid", None, 4),
        ("no-iommu", None, 6),
        ("bind-failed", None, 7),
        ("no-such-device", None, 8),
        ("mapping-invalid", None, 9),
        ("no-host-memory", None, 10),
    ],
    "pve_stop_escalation_messages": [
        ("qemu-killed", None, 2),
        ("shutdown-timeout", "vm", 5),
        ("leftover-qemu", None, 8),
    ],
    "pve_task_lock_timeout": [("flock-timeout", None, 2)],
    "qemu_group_not_viable": [("group-not-viable", None, 1)],
    "shm_names_seen": [],
    "smi_535_idle_nonzero_4MiB_no_mig": [],
    "smi_550_vllm_holds_memory_100util": [],  # a busy server looks the same
    "smi_container_memory_used_no_process_390": [],  # no process panel was pasted
    "smi_csv_not_available_variants": [],
    "smi_gpu_is_lost": [("gpu-lost", "vm", 1), ("gpu-lost", "vm", 2)],
    "smi_mig_535_enabled": [],
    "smi_mig_pending_disabled_star": [("mig-pending", "gpu", 7)],
    "smi_misc_failures": [
        ("container-lost-gpus", "process", 1),
        ("driver-mismatch", None, 2),
        ("driver-not-loaded", "guest", 4),
        ("gpu-missing", "vm", 5),
    ],
    "smi_process_unknown_error": [],  # a name that cannot be told
    "smi_processes_none_vs_blank": [],
    "smi_q_reset_status_deprecated_575": [],
    "smi_reset_refused_older_wording": [("reset-refused", "gpu", 1), ("reset-unsupported", "vm", 9)],
    "smi_sglang_orphans_table": [],  # whose they are is not said
    "systemd_processes_still_around_after_sigkill": [("unkillable-process", "guest", 9)],
}

Found = list[tuple[str, str | None, int]]


def text_of(name: str) -> list[str]:
    return [line for line in (RAW / f"{name}.txt").read_text().splitlines() if not line.startswith("# ")]


def found(lines: list[str]) -> Found:
    return [(t.signal, t.cure.word if t.cure else None, t.line) for t in explain("\n".join(lines)) if not t.note]


def test_every_report_has_its_findings_here() -> None:
    assert {path.stem for path in RAW.glob("*.txt")} == set(RIGHT)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_report(name: str) -> None:
    assert found(text_of(name)) == RIGHT[name]


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_where_says_the_line(name: str) -> None:
    lines = text_of(name)
    for told in explain("\n".join(lines)):
        assert " ".join(told.text.split()).rstrip("…") in " ".join(lines[told.line - 1].split())
        assert told.says and told.fact


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_other_numbers_mean_the_same(name: str, seed: int) -> None:
    """Other PIDs, bus numbers, guests and driver versions."""
    rng = random.Random(seed)
    buses = rng.sample(range(2, 250), 248)

    def bus(match: re.Match[str]) -> str:
        upper = match[2].upper() == match[2] and not match[2].isdecimal()
        return f"{match[1]}{buses[int(match[2], 16) % 248]:02{'X' if upper else 'x'}}:"

    pids: dict[str, str] = {}
    text = "\n".join(text_of(name))
    text = re.sub(r"\b(0000(?:0000)?:)([0-9a-fA-F]{2}):", bus, text)
    text = re.sub(r"(?<=pid=)\d+|(?<=pid:)\d+", lambda m: pids.setdefault(m[0], str(rng.randrange(2, 4194304))), text)
    text = re.sub(
        r"\b(?:535|550|565|575|390|595)\.\d{2,3}(?:\.\d{2})?", rng.choice(["325.15", "470.82.01", "610.43.02"]), text
    )
    text = (
        re.sub(r"(lock-|fig-)\d{3}(?=\.)", r"\g<1>9174", text).replace("vm:100", "vm:9174").replace("VM 100", "VM 9174")
    )
    assert found(text.split("\n")) == RIGHT[name]


BEFORE: dict[str, Callable[[int, str], str]] = {
    "syslog": lambda i, line: f"Jul 23 18:05:{i % 60:02d} node-174 app[123]: {line}",
    "journal": lambda i, line: f"Jul  3 18:05:{i % 60:02d} pve kernel: {line}",
    "iso": lambda i, line: f"2026-03-01T12:00:{i % 60:02d}.123456+01:00 node kernel: {line}",
    "iso with a blank": lambda i, line: f"2026-03-01 12:00:{i % 60:02d},123 {line}",
    "kubernetes": lambda i, line: f"2026-03-01T12:00:{i % 60:02d}.123456789Z {line}",
    "root prompt": lambda i, line: f"root@pve:~# {line}",
    "mail": lambda i, line: f"> {line}",
    "crlf": lambda i, line: line + "\r",
    "colours": lambda i, line: f"\x1b[33m{line}\x1b[0m",
    "since boot": lambda i, line: f"[{i + 100:5d}.123456] {line}",
    "dmesg -T": lambda i, line: f"[Sun Feb 23 16:24:18 2025] {line}",
    "short-monotonic": lambda i, line: f"[{i + 100:5d}.123456] node kernel: {line}",
    "indented": lambda i, line: "    " + line,
    "priority": lambda i, line: "<6>" + line,
    "compose": lambda i, line: f"vllm-1  | {line}",
    "grep -n": lambda i, line: f"{i + 1}:{line}",
}


@pytest.mark.parametrize("before", sorted(BEFORE))
@pytest.mark.parametrize("name", sorted(RIGHT))
def test_what_stands_before_a_line_changes_nothing(name: str, before: str) -> None:
    assert found([BEFORE[before](i, line) for i, line in enumerate(text_of(name))]) == RIGHT[name]


TABLES = ("smi_535", "smi_550", "smi_container", "smi_mig", "smi_process", "smi_q", "smi_sglang", "smi_csv")
WRAPPED = [
    name
    for name in sorted(RIGHT)
    if not name.startswith((*TABLES, "ps_", "lspci", "free", "gpustat", "fuser", "meminfo", "shm"))
]


@pytest.mark.parametrize("width", [72, 80, 100, 132])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_terminal_or_a_mail_may_have_wrapped_it(name: str, width: int) -> None:
    lines = text_of(name)
    cut = [line[i : i + width] for line in lines for i in range(0, max(1, len(line)), width)]
    soft = [part for line in lines for part in (textwrap.wrap(line, width) or [""])]
    right = [(signal, cure) for signal, cure, _ in RIGHT[name]]
    assert [(signal, cure) for signal, cure, _ in found(cut)] == right
    assert [(signal, cure) for signal, cure, _ in found(soft)] == right
