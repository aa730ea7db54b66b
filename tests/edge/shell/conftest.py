"""A real sshd on loopback, with its own keys, configuration and folder; every test's children end with it.

Others may use it: `sshd_in(folder, **options)` starts one, `Sshd` tells where it listens and holds what a client needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recover.edge.shell import SshSettings, SshShell

HERE = "127.0.0.1"
# bash reads ~/.bashrc for a command of sshd's only at the first shell level. Whose tests run here must not matter: what
# is ended in the middle of it leaves pyenv's lock behind, and then each later command waits a minute for that.
NO_STARTUP_FILES = "SHLVL=2"


def keygen(*words: str | Path) -> None:
    subprocess.run(["ssh-keygen", "-q", *map(str, words)], check=True, stdin=subprocess.DEVNULL, timeout=30)


def new_key(path: Path, kind: str = "ed25519", phrase: str = "") -> Path:
    bits = ("-b", "2048") if kind == "rsa" else ()
    keygen("-t", kind, *bits, "-N", phrase, "-C", path.name, "-f", path)
    return path


def public(key: Path) -> str:
    """`type base64`, as known_hosts and authorized_keys want it."""
    return " ".join(Path(f"{key}.pub").read_text().split()[:2])


@dataclass
class Sshd:
    """One server that we started."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    host_keys: list[Path]
    user_key: Path
    known_hosts: Path
    authorized: Path
    shells: list[SshShell] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"[{HERE}]:{self.port}"

    def settings(self, **changes: Any) -> SshSettings:
        base: dict[str, Any] = {
            "host": HERE,
            "port": self.port,
            "user": "root",
            "identity_file": str(self.user_key),
            "known_hosts": str(self.known_hosts),
            "ssh_config": str(self.folder / "no-such-config"),
        }
        return SshSettings(**{**base, **changes})

    def shell(self, **changes: Any) -> SshShell:
        shell = SshShell(self.settings(**changes))
        self.shells.append(shell)
        return shell

    def connections(self) -> list[int]:
        """Pids of the children that serve one connection each."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            return [int(pid) for pid in file.read().split()]

    def stop(self) -> None:
        for shell in self.shells:
            shell.close()
        for pid in self.connections() if self.process.poll() is None else []:
            end_tree(pid)
        until = time.monotonic() + 90
        while self.process.poll() is None and self.connections() and time.monotonic() < until:
            time.sleep(0.02)  # it reaps them
        self.process.terminate()
        self.process.wait(10)


def end_tree(pid: int) -> None:
    """End a process that descends from one of ours, its children first."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            for child in file.read().split():
                end_tree(int(child))
        os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((HERE, 0))
        return int(sock.getsockname()[1])


def sshd_in(
    folder: Path,
    *,
    options: tuple[str, ...] = (),
    kinds: tuple[str, ...] = ("ed25519",),
    user_key: Path | None = None,
    inside: tuple[str, ...] = (),
) -> Sshd:
    """Start an sshd whose whole state is in `folder`; `inside` is what execs it. The caller stops it."""
    folder.mkdir(parents=True, exist_ok=True)
    host_keys = [new_key(folder / f"host_{kind}", kind) for kind in kinds]
    key = user_key or new_key(folder / "user_ed25519")
    authorized = folder / "authorized_keys"
    authorized.write_text(public(key) + "\n")
    port = free_port()
    known = folder / "known_hosts"
    known.write_text("".join(f"[{HERE}]:{port} {public(host)}\n" for host in host_keys))
    config = folder / "sshd_config"
    env = [option for option in options if option.startswith("SetEnv ")]
    rest = [option for option in options if not option.startswith("SetEnv ")]
    config.write_text("\n".join([
        " ".join([*(env or ["SetEnv"]), NO_STARTUP_FILES]), *rest,
        f"ListenAddress {HERE}:{port}", *(f"HostKey {host}" for host in host_keys), "UsePAM no",
        "StrictModes no", f"AuthorizedKeysFile {authorized}", f"PidFile {folder}/sshd.pid", "PasswordAuthentication no",
        "KbdInteractiveAuthentication no", "PermitRootLogin yes", "MaxStartups 500:30:1000", "LogLevel VERBOSE", "",
    ]))  # fmt: skip
    Path("/run/sshd").mkdir(exist_ok=True)
    log = (folder / "log").open("wb")
    command = [*inside, "/usr/sbin/sshd", "-D", "-e", "-f", str(config)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log)
    log.close()
    server = Sshd(folder, port, process, host_keys, key, known, authorized)
    _await_listening(server)
    return server


def _await_listening(server: Sshd) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until and server.process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((HERE, server.port), 1):
            return
        time.sleep(0.05)
    server.process.kill()
    raise RuntimeError((server.folder / "log").read_text())


def _children() -> set[int]:
    return {int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()}


@pytest.fixture(scope="package", autouse=True)
def _no_orphans() -> Iterator[None]:
    """A command outlives its connection, and would outlive these tests: orphans come to us and are ended here."""
    prctl = ctypes.CDLL(None).prctl
    set_child_subreaper = 36  # linux/prctl.h
    before = _children()
    prctl(set_child_subreaper, 1, 0, 0, 0)
    yield
    for pid in _children() - before:
        end_tree(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.fixture(scope="package")
def sshd(_no_orphans: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """The server that most tests share. Tests that need another configuration start their own by `start_sshd`."""
    server = sshd_in(tmp_path_factory.mktemp("sshd"))
    yield server
    server.stop()


@pytest.fixture
def start_sshd(tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    started: list[Sshd] = []

    def start(name: str = "server", **how: Any) -> Sshd:
        started.append(sshd_in(tmp_path / name, **how))
        return started[-1]

    yield start
    for server in reversed(started):
        server.stop()


@pytest.fixture
def shell(sshd: Sshd) -> Iterator[SshShell]:
    shell = SshShell(sshd.settings())
    yield shell
    shell.close()


@pytest.fixture(autouse=True)
def _no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of whoever runs the tests is not asked."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
