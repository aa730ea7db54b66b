"""The harness leaves nothing running, whatever becomes of us, and says what a machine lacks instead of skipping."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from . import kernel
from .machine import Machine
from .qemu import QemuError

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(600), pytest.mark.xdist_group("vm-node")]

STARTS_AND_STAYS = """
import sys, time
from pathlib import Path
from tests.vm import kinds
from tests.vm.machine import Machine
vm = Machine(Path(sys.argv[1]), kinds.node(), "pve1")
vm.prepare()
vm.start()
print(vm.monitor.pid, flush=True)
time.sleep(600)
"""


def test_a_qemu_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", STARTS_AND_STAYS, str(tmp_path / "vm")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        assert "qemu-system" in Path(f"/proc/{pid}/cmdline").read_text()
        os.kill(child.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end, f"QEMU {pid} still runs"
        time.sleep(0.05)


def test_what_is_missing_is_named_by_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel, "PATH", str(tmp_path))
    with pytest.raises(kernel.Missing, match="install the Debian package qemu-system-x86"):
        kernel.tool("qemu-system-x86_64")
    monkeypatch.setattr(kernel, "BOOT", tmp_path)
    with pytest.raises(kernel.Missing, match="install the Debian package linux-image-amd64"):
        kernel.kernel()


def test_a_qemu_that_does_not_start_is_told_with_its_last_words(node: Machine) -> None:
    argv = node.argv()
    argv[argv.index("-machine") + 1] = "no-such-machine"
    with pytest.raises(QemuError, match="unsupported machine type"):
        node.launch(argv)
