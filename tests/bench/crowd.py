"""Idle processes by the thousand, and loopback nodes by the dozen: started here, ended here, also if the bench dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Its own process group; whoever lets go of its stdin ends all of it.
_FORKER = """
import os, signal, sys
for _ in range(int(sys.argv[1])):
    os.posix_spawn("/bin/sleep", ["sleep", "1800"], {})
print("ready", flush=True)
sys.stdin.read()
os.killpg(0, signal.SIGKILL)
"""


@contextmanager
def sleepers(count: int) -> Iterator[None]:
    """So many idle processes for as long as the body runs."""
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FORKER, str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        if child.stdout.readline() != b"ready\n":
            raise OSError(f"{count} processes can't be started here")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # not reaped yet: the group is ours
        child.wait(60)
        time.sleep(0.5)  # they are reaped by pid 1


@dataclass(frozen=True, slots=True)
class Nodes:
    """Addresses on which sshd listens, and what a client needs."""

    addresses: tuple[str, ...]
    port: int
    key: Path
    known_hosts: Path
    servers: tuple[int, ...]

    def ssh(self) -> list[str]:
        """OpenSSH's client without its host."""
        words = ["ssh", "-F", "none", "-T", "-i", str(self.key), "-p", str(self.port), "-l", "root"]
        for option in (f"UserKnownHostsFile={self.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"):
            words += ["-o", option]
        return words

    def config(self, count: int | None = None) -> str:
        """Of the first so many."""
        lines = ["[ssh]", 'user = "root"', f"port = {self.port}", f'identity_file = "{self.key}"',
                 f'known_hosts = "{self.known_hosts}"']  # fmt: skip
        for number, address in enumerate(self.addresses[:count]):
            lines += [f"[targets.node-{number}]", f'address = "{address}"']
        return "\n".join(lines) + "\n"


_EACH = 16  # the most listen addresses of one sshd


@contextmanager
def nodes(folder: Path, count: int) -> Iterator[Nodes]:
    """sshd on 127.0.10.1 and up, one port; its own keys and files, and none of what root's own shell starts with."""
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", folder / name],
            check=True, stdin=subprocess.DEVNULL, timeout=30,
        )  # fmt: skip
    (folder / "authorized_keys").write_text((folder / "user.pub").read_text())
    addresses = tuple(f"127.0.{10 + number // 250}.{number % 250 + 1}" for number in range(count))
    port = _free(addresses[0])
    host = " ".join((folder / "host.pub").read_text().split()[:2])
    known = folder / "known_hosts"
    known.write_text("".join(f"[{address}]:{port} {host}\n" for address in addresses))
    running: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(0, count, _EACH):
            running.append(_sshd(folder, addresses[first : first + _EACH], port, first))
        for address in addresses[::_EACH]:
            _await(address, port)
        yield Nodes(addresses, port, folder / "user", known, tuple(one.pid for one in running))
    finally:
        for one in running:
            one.terminate()
            one.wait(30)


def _sshd(folder: Path, addresses: tuple[str, ...], port: int, number: int) -> subprocess.Popen[bytes]:
    config = folder / f"sshd_config_{number}"
    config.write_text("\n".join([
        *(f"ListenAddress {address}:{port}" for address in addresses), f"HostKey {folder}/host", "UsePAM no",
        "StrictModes no", f"AuthorizedKeysFile {folder}/authorized_keys", f"PidFile {folder}/sshd_{number}.pid",
        "PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin yes",
        "MaxStartups 500:30:1000", "LogLevel ERROR",
        "Subsystem sftp internal-sftp",
        "SetEnv SHLVL=2",  # bash reads start-up files for a first shell alone: they would be most of what is measured
        "",
    ]))  # fmt: skip
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _free(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def _await(address: str, port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
            return
        time.sleep(0.05)
    raise OSError(f"no sshd on {address}:{port}")
