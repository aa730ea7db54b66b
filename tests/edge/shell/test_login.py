"""Logging in: files, agents and certificates as OpenSSH uses them, and never a question to the person."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recover.model.contact import Broken, Failure, Ran

from .conftest import Sshd, keygen, new_key, public

Start = Callable[..., Sshd]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    sock = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL)
    while not sock.exists() and process.poll() is None:
        time.sleep(0.02)
    yield sock
    process.terminate()
    process.wait(10)


def ssh_add(agent: Path, *words: str | Path) -> None:
    env = {**os.environ, "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", *map(str, words)], env=env, check=True, timeout=20, capture_output=True)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_every_kind_of_key(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    key = new_key(tmp_path / "key", kind)
    with sshd.authorized.open("a") as file:
        file.write(public(key) + "\n")
    assert isinstance(sshd.shell(identity_file=str(key)).run(["true"], deadline=30), Ran)


def test_a_key_that_is_not_wanted(sshd: Sshd, tmp_path: Path) -> None:
    key = new_key(tmp_path / "stranger")
    broken = sshd.shell(identity_file=str(key)).run(["true"], deadline=30)
    assert isinstance(broken, Broken) and broken.failure is Failure.AUTH and not broken.started
    assert str(key) in broken.detail


def test_no_key_at_all(sshd: Sshd, tmp_path: Path) -> None:
    broken = sshd.shell(identity_file=str(tmp_path / "nothing")).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.AUTH


def test_a_locked_file_names_the_way_out(sshd: Sshd, tmp_path: Path) -> None:
    key = new_key(tmp_path / "locked", phrase="secret words")
    broken = sshd.shell(identity_file=str(key)).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.AUTH
    assert "ssh-add" in broken.detail


def test_a_file_that_is_no_key(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk\n")
    broken = sshd.shell(identity_file=str(tmp_path / "junk")).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.AUTH and "can't be read" in broken.detail


def test_an_agent_opens_what_a_locked_file_does_not(
    start_sshd: Start, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = new_key(tmp_path / "key")
    server = start_sshd(user_key=key)
    ssh_add(agent, key)
    keygen("-p", "-P", "", "-N", "secret words", "-f", key)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    assert server.shell().connect(30) is None


@pytest.mark.parametrize("kind", ["ed25519", "rsa"])
def test_agent_keys_without_a_file(
    start_sshd: Start, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    key = new_key(tmp_path / "key", kind)
    server = start_sshd(user_key=key)
    ssh_add(agent, key)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    assert server.shell(identity_file=str(tmp_path / "nothing")).connect(30) is None


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("where", ["beside", "agent", "file"])
def test_user_certificates(
    start_sshd: Start, tmp_path: Path, agent: Path, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    ca, key = new_key(tmp_path / "ca"), new_key(tmp_path / "key", kind)
    server = start_sshd(options=(f"TrustedUserCAKeys {ca}.pub",))
    server.authorized.write_text("")
    keygen("-s", ca, "-I", "me", "-n", "root", "-V", "-1h:+1h", f"{key}.pub")
    cert = tmp_path / "key-cert.pub"
    config = tmp_path / "config"
    config.write_text(f"Host *\n  IdentityFile {key}\n")
    if where == "agent":
        ssh_add(agent, key)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        config.write_text(f"Host *\n  IdentityFile {tmp_path}/nothing\n")
    if where == "file":
        cert.rename(tmp_path / "elsewhere")
        config.write_text(f"Host *\n  IdentityFile {key}\n  CertificateFile {tmp_path}/elsewhere\n")
    broken = server.shell(identity_file=None, ssh_config=str(config)).connect(30)
    assert broken is None, broken


def test_a_mute_agent_is_passed_over(sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "mute"))
        assert sshd.shell(auth_timeout=6.0).connect(30) is None


def test_more_than_a_key_is_wanted(start_sshd: Start) -> None:
    server = start_sshd(options=("AuthenticationMethods publickey,password", "PasswordAuthentication yes"))
    broken = server.shell().connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.AUTH and "also wants password" in broken.detail


def test_too_many_keys(start_sshd: Start, tmp_path: Path) -> None:
    server = start_sshd(options=("MaxAuthTries 2",))
    keys = [new_key(tmp_path / f"key{number}") for number in range(4)]
    (tmp_path / "config").write_text("Host *\n" + "".join(f"  IdentityFile {key}\n" for key in keys))
    broken = server.shell(identity_file=None, ssh_config=str(tmp_path / "config")).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.AUTH and "IdentitiesOnly" in broken.detail


def test_killed_while_logging_in_is_not_a_refusal(start_sshd: Start) -> None:
    slow = ("AuthorizedKeysCommand /bin/sleep 5", "AuthorizedKeysCommandUser root")
    server = start_sshd(options=("LoginGraceTime 1", *slow))
    server.authorized.write_text("")
    broken = server.shell().connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.DIED
