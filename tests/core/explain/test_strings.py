# ruff: noqa: E501
"""Every row of tests/data/strings with the finding that its class asks for, in a line as a machine prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.core.explain import explain

_FILE = Path(__file__).parents[2] / "data" / "strings" / "strings.tsv"
_ROWS = [line.split("\t") for line in _FILE.read_text().splitlines()[1:]]

# What each class asks for: (cure) of a finding, or nothing at all.
NOTHING = "nothing"
BY_CLASS: dict[str, str | None] = {
    "container-restart": "process",
    "not-stuck": None,
    "driver-not-loaded": "guest",
    "gpu-missing": "vm",
    "gpu-lost": "vm",
    "reset-required": "gpu",
    "unknown-value": NOTHING,
    "note-only": NOTHING,
    "no-process": NOTHING,
    "mig": NOTHING,
    "mig-pending": "gpu",
    "obey": "gpu",
    "reset-refused": "gpu",
    "reset-unsupported": "vm",
    "reset-ok": NOTHING,
    "ok": NOTHING,
    "wait": None,
    "xid": "gpu",
    "gpu-init-failed": "vm",
    "config": None,
    "config-or-host": None,
    "holders": "process",
    "wedged-task": "guest",
    "wedged-kernel": "vm",
    "oom": None,
    "shm-full": "process",
    "terminal-host": None,
    "stop": None,
    "warn": "host-device",
    "start-failed": None,
    "suspect": None,
    "stop-failed": "vm",
    "stop-or-wait": None,
    "ok-if-wanted": NOTHING,
    "ha": NOTHING,
    "ha-error": None,
    "ok-with-warnings": NOTHING,
    "unknown": None,
    "fallback-ssh": NOTHING,
    "not-ha": NOTHING,
    "auth": None,
    "retry-get": None,
}
# Rows whose words alone are not the whole line that a machine prints.
LINES = {
    "Unable to determine the device handle for GPU": "{}0: 0000:41:00.0: Unknown Error",
    "GPU is lost": "        Used                              : {}",
    "Unknown Error": "|    0     31794    C   {}                                 5371MiB |",
    "[N/A]": "0, {}, 3 MiB",
    "ERR!": "| {}   41C    P0             14W /  600W |       3MiB /  97887MiB |      0%      Default |",
    "Disabled*": "|   7  A100-SXM4-40GB      On   | 00000000:BD:00.0 Off |                   On |\n"
    "| N/A   34C    P0    69W / 400W |      0MiB / 40537MiB |     N/A      Default |\n"
    "|                               |                      |            {} |",
    "GPU Recovery Action": "    {}                   : Reset",
    "could not be reset": "The following GPUs {}:",
    "Resetting GPU": "{} 00000000:01:00.0 is not supported.",
    "busy or unavailable": "RuntimeError: CUDA error: all CUDA-capable devices are {}",
    "NVRM: Xid (PCI:": "{}0000:9b:00): 119, pid=7, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4",
    "GPU recovery action changed from": "NVRM: Xid (PCI:0000:9b:00): 154, {} 0x0 (None) to 0x1 (GPU Reset Required)",
    "GPU has fallen off the bus": "NVRM: GPU 0000:06:00.0: {}.",
    "Attempting to remove device": "NVRM: {} 0000:07:00.0 with non-zero usage count!",
    "blocked for more than": "INFO: task cache_mgr_event:620917 {} 120 seconds.",
    "soft lockup": "watchdog: BUG: {} - CPU#3 stuck for 22s! [python3:123]",
    "; giving up": "vfio-pci 0000:84:00.0: not ready 65535ms after FLR{}",
    "is not viable": "vfio 0000:01:00.0: group 1 {}",
    "QEMU exited with code": "TASK ERROR: start failed: {} 1",
    "VM is locked (": "TASK ERROR: {}backup)",
    "already running": "VM 174 {}",
    "not running": "VM 174 {}",
    "unexpected status": "TASK ERROR: {}",
    "no such resource": "HTTP/1.1 500 {} 'vm:174'",
    "401": "HTTP/1.1 {} No ticket",
    "595": "HTTP/1.1 {} No route to host",
    "596": "HTTP/1.1 {} Connection timed out",
    "599": "ERROR {}: too many redirections",
}


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row[1][:50])
def test_row(row: list[str]) -> None:
    words, kind = row[1], row[2]
    told = [t for t in explain(LINES.get(words, "{}").replace("{}", words)) if not t.note]
    if BY_CLASS[kind] == NOTHING:
        assert told == []
    else:
        assert [t.cure.word if t.cure else None for t in told] == [BY_CLASS[kind]]


def test_every_class_is_known() -> None:
    assert {row[2] for row in _ROWS} == set(BY_CLASS)
