from __future__ import annotations

from pathlib import Path

import pytest

from recover.core.read.task_log import MESSAGES, Meaning, TaskClass, classify, classify_line, gravest

DATA = Path(__file__).parents[2] / "data" / "pve"
K = TaskClass


def case(name: str) -> list[str]:
    lines = (DATA / name).read_text().splitlines()
    return [line for line in lines if not line.startswith("# ")]


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("pve_api_500_lock.txt", {K.FLOCK_TIMEOUT}),
        ("pve_task_lock_timeout.txt", {K.FLOCK_WAIT, K.FLOCK_TIMEOUT}),
        ("pve_ha_lrm_messages.txt", {K.HA_ERROR, K.HA_FAILED}),
        ("pve_host_log_bus_reset_stuck_d3.txt", {K.RESET_WAITING, K.STUCK_D3, K.RESET_GAVE_UP}),
        ("pve_host_vfio_dma_map_einval_noise.txt", {K.DMA_MAP_NOISE}),
        (
            "pve_start_pci_messages.txt",
            {
                K.RESET_FAILED_WARN, K.IN_USE_BY_VMID, K.RESERVED_BY_VMID, K.LEFTOVER_RESERVATION, K.NO_IOMMU,
                K.BIND_FAILED, K.NO_SUCH_DEVICE, K.MAPPING_INVALID, K.NO_HOST_MEMORY,
            },
        ),
        (
            "pve_stop_escalation_messages.txt",
            {K.SIGTERMED, K.SIGKILLED, K.SHUTDOWN_TIMEOUT, K.LEFTOVER_QEMU, K.HA_QUEUED},
        ),
        ("qemu_group_not_viable.txt", {K.GROUP_NOT_VIABLE}),
    ],
)  # fmt: skip
def test_real_logs(name, kinds):
    assert {note.kind for note in classify(case(name))} == kinds


@pytest.mark.parametrize(
    ("line", "kind", "meaning"),
    [
        ("TASK ERROR: start failed: command '/usr/bin/kvm -id 174' failed: got timeout", K.START_TIMEOUT, "retry-once"),
        ("TASK ERROR: start failed: QEMU exited with code 1", K.START_FAILED, "terminal"),
        ("VM quit/powerdown failed - terminating now with SIGTERM", K.SIGTERMED, "note"),
        ("TASK ERROR: VM is locked (backup)", K.LOCKED, "terminal"),
        ("kvm: vfio 0000:01:00.0: failed to open /dev/vfio/12: Device or resource busy", K.DEVICE_BUSY, "terminal"),
        ("TASK ERROR: cluster not ready - no quorum?", K.NO_QUORUM, "terminal"),
        ("TASK ERROR: no PCI device found for '0000:41:00'", K.NO_SUCH_DEVICE, "terminal"),
        ("TASK ERROR: VM 174 already running", K.ALREADY_RUNNING, "note"),
        ("TASK WARNINGS: 2", K.WARNINGS, "note"),
        ("unexpected status", K.WORKER_DIED, "wait"),
        ("vfio-pci 0000:84:00.0: not ready 65535ms after FLR; giving up", K.RESET_GAVE_UP, "terminal"),
        ("TASK ERROR: can't reset PCI device '0000:41:00.0'", K.RESET_FAILED, "terminal"),
    ],
)
def test_lines_and_what_they_mean(line, kind, meaning):
    note = classify_line(line)
    assert note is not None
    assert (note.kind, note.meaning) == (kind, meaning)


@pytest.mark.parametrize(
    "line", ["TASK OK", "", "no content", "generating cloud-init ISO", "QEMU guest agent is not running"]
)
def test_lines_that_say_nothing(line):
    assert classify_line(line) is None


def test_a_line_tells_whom_it_is_about():
    note = classify_line("PCI device '0000:01:00.0' already in use by VMID '101'")
    assert (note.device, note.vmid) == ("0000:01:00.0", 101)
    assert classify_line("TASK ERROR: VM is locked (snapshot-delete)").lock == "snapshot-delete"
    assert classify_line("can't lock file '/run/lock/lxc/pve-config-100.lock' - got timeout").vmid == 100


def test_the_two_lines_of_one_failed_reset_are_one_note_per_device():
    lines = [
        line
        for n in (1, 2)
        for line in (
            f"error writing '1' to '/sys/bus/pci/devices/0000:4{n}:00.0/reset': Inappropriate ioctl for device",
            f"failed to reset PCI device '0000:4{n}:00.0', but trying to continue as not all devices need a reset",
        )
    ]
    assert [note.device for note in classify(lines)] == ["0000:41:00.0", "0000:42:00.0"]


def test_the_gravest_note_decides():
    notes = classify(["VM still running - terminating now with SIGKILL", "TASK ERROR: timeout waiting on systemd"])
    assert gravest(notes).kind is K.LEFTOVER_QEMU
    assert gravest(()) is None


def test_every_row_can_be_reached_and_every_class_is_used():
    for parts, kind, meaning, _ in MESSAGES:
        note = classify_line(" ".join(parts))
        assert note is not None and (note.kind, note.meaning) == (kind, meaning), parts
    assert {row[1] for row in MESSAGES} == set(TaskClass)
    assert {row[2] for row in MESSAGES} == set(Meaning)
