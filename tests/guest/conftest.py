"""Real processes of this machine as the guest; the fake driver under the real pynvml. What a test starts, it ends."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from recover.core.read.agent import parse_lines
from recover.core.read.report import Report
from recover.edge.probe import ask
from recover.edge.shell.local import LocalShell
from recover.model.process import ProcessId
from tests.lab.driver.build import Built, build
from tests.lab.driver.state import State, gpu

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()

ZOMBIE = "import os,time,sys\nif os.fork() == 0: os._exit(0)\nprint('ready', flush=True)\ntime.sleep(600)"
DEAD_LEADER = """
import ctypes, threading, time
block = bytearray(32 << 20)
held = open('/dev/null')
def hold():
    print('ready', flush=True)
    time.sleep(600)
threading.Thread(target=hold).start()
time.sleep(0.1)
ctypes.CDLL(None).syscall(60, 0)
"""
STUBBORN = "import signal,time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
PLAIN = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
PARENT = "import os,time\nif os.fork() == 0:\n  print('ready', flush=True)\n  time.sleep(600)\ntime.sleep(600)"


def pythons() -> list[str]:
    """This interpreter and every other version from 3.6 that is found."""
    root = Path(os.environ.get("PYENV_ROOT", "/root/.pyenv")) / "versions"
    found = {f"3.{sys.version_info.minor}": sys.executable}
    for minor in range(6, 15):
        there = sorted(root.glob(f"3.{minor}.*/bin/python3")) if root.is_dir() and os.access(root, os.X_OK) else []
        path = str(there[-1]) if there else shutil.which(f"python3.{minor}")
        if path and "shims" not in path:
            found.setdefault(f"3.{minor}", path)
    return list(found.values())


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def member(pid: int) -> ProcessId:
    return ProcessId(BOOT, pid, start_of(pid))


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts Python code in its own session and returns when it said that it is ready."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(code: str, *words: str, argv: list[str] | None = None) -> subprocess.Popen[bytes]:
        command = argv or [sys.executable, "-I", "-S", "-c", code, *words]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        running.append(child)
        assert child.stdout is not None
        assert select.select([child.stdout], [], [], 60)[0], "the process did not get ready"
        assert child.stdout.readline() == b"ready\n"
        return child

    yield begin
    for child in running:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)
        if child.stdout:
            child.stdout.close()


@pytest.fixture
def agent() -> Callable[..., Report]:
    """One request to the agent through the local shell; gives its lines."""

    def send(do: str, python: str = sys.executable, **fields: Any) -> Report:
        ran = ask(LocalShell(), {"do": do, **fields}, 120.0, (python,))
        report = parse_lines(ran.stdout)
        assert report.one("end") is not None, (ran.stdout[-2000:], ran.stderr[-2000:])
        return report

    return send


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("driver"))


class Machine:
    """Eight fake GPUs, with the driver's files under a root folder."""

    def __init__(self, root: Path, count: int = 8) -> None:
        self.root = root
        self.dev = root / "dev"
        self.dev.mkdir(parents=True)
        for name in ("nvidiactl", *(f"nvidia{i}" for i in range(count))):
            (self.dev / name).touch()
        rows = [gpu(i) for i in range(count)]
        self.state = State.create(root / "state", rows)
        version = root / "proc/driver/nvidia/version"
        version.parent.mkdir(parents=True)
        version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.148.08  Release Build\n")
        for row in rows:
            self._files(row)

    def _files(self, row: dict[str, Any]) -> None:
        bus = row["bus_id"].lower()[4:]
        info = self.root / "proc/driver/nvidia/gpus" / bus / "information"
        info.parent.mkdir(parents=True)
        info.write_text(f"Model: \t {row['name']}\nGPU UUID: \t {row['uuid']}\nDevice Minor: \t {row['minor']}\n")
        slot = self.root / "sys/bus/pci/devices" / bus
        slot.mkdir(parents=True)
        for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("device", "0x2bb5"),
                           ("current_link_width", "16"), ("max_link_width", "16")):  # fmt: skip
            (slot / name).write_text(text + "\n")


@pytest.fixture
def machine(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine(tmp_path / "machine")
    for name, value in built.env(found.root / "state", found.dev).items():
        monkeypatch.setenv(name, value)
    yield found
    for slot in range(8):
        found.state.release(slot)
        found.state.set(slot, reset_mode=0)
    found.state.hang_init(False)
    found.state.close()
