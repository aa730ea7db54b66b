"""The tool against a real kernel: a worker that nothing can kill holds the GPU, and only power frees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recover.edge.shell.ssh import SshShell
from tests.lab.driver.state import State
from tests.lab.pve.server import PveServer

from . import inside, power
from .machine import Machine

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(600), pytest.mark.xdist_group("vm-guest")]
ROOT = Path(__file__).parents[2]
HELD_MIB = 88000
LONGEST_S = 500.0

PLAYBOOK = """
name = "vm"
about = "hung-server with the time of an emulated guest"
[limits]
max_scope = "vm"
patience = "4s"
confirm = 2
confirm_every = "1s"
disruptions_per_day = 5
ripens = "2s"
hung_after = "2s"
[[rung]]
step = "end-workers"
settle = "1s"
term_deadline = "1s"
kill_deadline = "3s"
[[rung]]
step = "reset-gpu"
settle = "1s"
[[rung]]
step = "power-cycle-vm"
settle = "1s"
shutdown_first = "5s"
boot_deadline = "300s"
"""

# A rank whose server is gone: titled as SGLang titles it, on a read that the device does not answer.
RANK = (
    """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from labproc import set_title
set_title('sglang::scheduler_TP0')
"""
    + inside.READER
)


def config(folder: Path, vm: Machine, server: PveServer) -> Path:
    (folder / "playbook.toml").write_text(PLAYBOOK)
    path = folder / "config.toml"
    path.write_text(f"""
[clusters.pve]
urls = ["{server.url}"]
token_id = "{server.token_id}"
token_secret = {{ file = "{folder / "secret"}" }}
ca_file = "{server.ca_file}"
[ssh]
user = "root"
port = {vm.port}
identity_file = "{vm.folder / "id_ed25519"}"
known_hosts = "{vm.folder / "known_hosts"}"
[targets.node-174]
cluster = "pve"
vmid = {power.VMID}
address = "127.0.0.1"
playbook = "{folder / "playbook.toml"}"
[targets.node-174.expect]
gpus = 1
""")
    (folder / "secret").write_text(server.secret)
    (folder / "secret").chmod(0o600)
    return path


def tool(path: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    argv = [sys.executable, "-m", "recover.cli.main", "--config", str(path), "--state-dir", str(path.parent / "state")]
    done = subprocess.run(
        [*argv, *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("obeys_within_s", [4.0])
def test_a_rank_in_d_state_is_freed_by_power_alone(
    guest: Machine, shell: SshShell, pve: PveServer, device: State, tmp_path: Path
) -> None:
    path = config(tmp_path, guest, pve)
    before, qemu = boot_id(shell), guest.monitor.pid
    guest.hold_read()
    rank = inside.start(shell, RANK, str(ROOT / "tests/lab/guest/engine"))
    device.attach(rank, HELD_MIB, 0)
    code, report, said = tool(path, "run", "node-174", "--yes", "--approve", "vm", "--json")

    assert (code, report["end"]) == (0, "recovered"), said
    assert [t["step"] for t in report["tries"]] == ["end-workers", "power-cycle-vm"], report["tries"]
    assert f"pid {rank} (sglang::schedul) ignores SIGKILL in state D (in submit_bio_wait)" in said, said
    assert "did not power off" in said, "its kernel waits for the disk too"
    assert guest.ends[-1] == "killed", "QEMU could not quit with the disk's request stuck"
    assert guest.monitor.pid != qemu
    shell.forget()
    assert boot_id(shell) != before
    assert device.used_mib(0) == 0
    (one,) = report["gpus"]
    assert (one["used_mib_before"], one["used_mib_after"]) == (HELD_MIB, 0)


def boot_id(shell: SshShell) -> str:
    return inside.run(shell, "cat /proc/sys/kernel/random/boot_id")
