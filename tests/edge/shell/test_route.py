"""The way to a machine: the ssh configuration is honoured, settings outrank it, jumps and proxies carry the blame."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.edge.shell import SshSettings
from recover.edge.shell.failures import ShellError
from recover.edge.shell.route import Hop, plan
from recover.model.contact import Broken, Failure, Ran

from .conftest import HERE, Sshd, free_port, new_key

Start = Callable[..., Sshd]
EVERYONES = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


def hops(tmp_path: Path, text: str, host: str = "node", **settings: object) -> tuple[Hop, ...]:
    (tmp_path / "config").write_text(text)
    return plan(SshSettings(host, ssh_config=str(tmp_path / "config"), **settings))  # type: ignore[arg-type]


def test_the_configuration_is_honoured(tmp_path: Path) -> None:
    (hop,) = hops(tmp_path, """
        Host node
          HostName 10.1.2.3
          Port 2222
          User ops
          IdentityFile /keys/%h-%r
          CertificateFile /keys/%n-cert.pub
          IdentitiesOnly yes
          UserKnownHostsFile /k1 "/k 2"
          HostKeyAlias node-alias
          IdentityAgent none
    """)  # fmt: skip
    assert (hop.address, hop.port, hop.user) == ("10.1.2.3", 2222, "ops")
    assert (hop.key_name, hop.key_port) == ("node-alias", None)
    assert (hop.identities, hop.certificates) == (("/keys/10.1.2.3-ops",), ("/keys/node-cert.pub",))
    assert hop.only_these
    assert hop.known_hosts == ("/k1", "/k 2", *EVERYONES) and hop.agent is None


def test_settings_win(tmp_path: Path) -> None:
    text = "Host node\n  Port 2222\n  User ops\n  IdentityFile /a\n  UserKnownHostsFile /k\n"
    text += "  ProxyCommand nc %h %p %r %%\n"
    (hop,) = hops(tmp_path, text, port=22, user="root", identity_file="/b", known_hosts="/l")
    assert (hop.port, hop.user, hop.identities, hop.known_hosts) == (22, "root", ("/b",), ("/l", *EVERYONES))
    assert hop.command == "nc node 22 root %"


def test_included_files_count(tmp_path: Path) -> None:
    (tmp_path / "more").write_text("Host node\n  User included\n")
    (hop,) = hops(tmp_path, f"Include {tmp_path}/mo*\nHost other\n  User other\n")
    assert hop.user == "included"


def test_match_lines_count(tmp_path: Path) -> None:
    text = "Match originalhost node !user x\n User a\nMatch host other\n User b\nMatch all\n Port 23\n"
    (hop,) = hops(tmp_path, text)
    assert (hop.user, hop.port) == ("a", 23)


def test_chains_of_jumps(tmp_path: Path) -> None:
    way = hops(tmp_path, "Host node\n ProxyJump me@a:2201,b\nHost b\n HostName 10.0.0.2\n ProxyJump never\n")
    assert [(hop.user, hop.address, hop.port) for hop in way[:1]] == [("me", "a", 2201)]
    assert [hop.address for hop in way] == ["a", "10.0.0.2", "node"]


def test_a_jump_has_its_own_jump(tmp_path: Path) -> None:
    way = hops(tmp_path, "Host node\n ProxyJump a\nHost a\n ProxyJump ssh://x@[::1]:99\nHost *\n ProxyJump none\n")
    assert [(hop.address, hop.port) for hop in way] == [("::1", 99), ("a", 22), ("node", 22)]


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("Host *\n ProxyJump again\n", "node"),
        ("Host node\n Port many\n", "node"),
        ("Host 'node\n", "node"),
        ("just words\n", "-oProxyCommand=id"),
        ("Match host node localnetwork 10.0.0.0/8\n User x\n", "node"),
        ("Host node\n HostName $(id)\n", "node"),
        ("Host node\n HostName -oProxyCommand=id\n", "node"),
        ("", "a;id"),
        ("", "$(id)"),
        ("Host node\n User $(id)\n", "node"),
    ],
)
def test_what_we_do_not_use(tmp_path: Path, text: str, host: str) -> None:
    with pytest.raises(ShellError) as caught:
        hops(tmp_path, text, host)
    assert caught.value.broken.failure is Failure.CONFIG


def test_an_unreadable_configuration_is_a_value(sshd: Sshd, tmp_path: Path) -> None:
    broken = sshd.shell(ssh_config=str(tmp_path)).connect(10)
    assert isinstance(broken, Broken) and broken.failure is Failure.CONFIG


# On real servers


@pytest.fixture
def jumped(start_sshd: Start, tmp_path: Path) -> Callable[..., tuple[Sshd, Sshd, Path]]:
    def make(**jump: object) -> tuple[Sshd, Sshd, Path]:
        key = new_key(tmp_path / "key")
        first, last = start_sshd("first", user_key=key, **jump), start_sshd("last", user_key=key)
        last.known_hosts.write_text(last.known_hosts.read_text() + first.known_hosts.read_text())
        config = tmp_path / "config"
        config.write_text(f"Host jump\n HostName {HERE}\n Port {first.port}\n User root\n ProxyJump none\n"
                          "Host *\n ProxyJump jump\n")  # fmt: skip
        return first, last, config

    return make


def test_through_a_jump_host(jumped: Callable[..., tuple[Sshd, Sshd, Path]]) -> None:
    first, last, config = jumped()
    shell = last.shell(ssh_config=str(config))
    ran = shell.run(["sh", "-c", "cat; echo $SSH_CONNECTION"], stdin=b"x" * 300_000 + b"\n", deadline=40)
    assert isinstance(ran, Ran) and ran.stdout.startswith(b"xxx") and str(last.port).encode() in ran.stdout
    assert first.connections()
    shell.close()


def test_the_machine_refuses_behind_the_jump(jumped: Callable[..., tuple[Sshd, Sshd, Path]]) -> None:
    _, last, config = jumped()
    broken = last.shell(ssh_config=str(config), port=free_port()).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.REFUSED and "jump host" in broken.detail


def test_the_jump_forbids(jumped: Callable[..., tuple[Sshd, Sshd, Path]]) -> None:
    _, last, config = jumped(options=("AllowTcpForwarding no",))
    broken = last.shell(ssh_config=str(config)).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.PROXY


def test_the_jump_is_down(jumped: Callable[..., tuple[Sshd, Sshd, Path]]) -> None:
    first, last, config = jumped()
    config.write_text(config.read_text().replace(str(first.port), str(free_port())))
    broken = last.shell(ssh_config=str(config)).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.PROXY


def test_the_jump_is_a_stranger(jumped: Callable[..., tuple[Sshd, Sshd, Path]]) -> None:
    first, last, config = jumped()
    last.known_hosts.write_text(last.known_hosts.read_text().splitlines()[0] + "\n")
    broken = last.shell(ssh_config=str(config)).connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.UNKNOWN_KEY
    assert broken.detail.startswith("jump host") and str(first.port) in broken.detail


RELAY = """
import os, socket, sys, threading
far = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def up():
    while data := os.read(0, 65536):
        far.sendall(data)
    far.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := far.recv(65536):
    os.write(1, data)
"""


def proxied(server: Sshd, tmp_path: Path, command: str, **changes: object) -> Broken | Ran:
    (tmp_path / "config").write_text(f"Host *\n ProxyCommand {command}\n")
    return server.shell(ssh_config=str(tmp_path / "config"), **changes).run(["echo", "hi"], deadline=30)


def test_through_a_proxy_command(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    ran = proxied(sshd, tmp_path, f"{sys.executable} {tmp_path}/relay.py %h %p")
    assert isinstance(ran, Ran) and ran.stdout == b"hi\n"


def test_a_proxy_command_that_fails_says_why(sshd: Sshd, tmp_path: Path) -> None:
    broken = proxied(sshd, tmp_path, "sh -c 'echo no tunnel today >&2; exit 1'")
    assert isinstance(broken, Broken) and broken.failure is Failure.PROXY and "no tunnel today" in broken.detail


def test_silence_of_a_proxy_command_is_no_witness(sshd: Sshd, tmp_path: Path) -> None:
    broken = proxied(sshd, tmp_path, "sleep 60", banner_timeout=1.0)
    assert isinstance(broken, Broken) and broken.failure is Failure.PROXY


def test_a_proxy_command_ends_with_its_connection(sshd: Sshd, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    proxied(sshd, tmp_path, f"sh -c 'echo $$ > {pid}; exec sleep 60'", banner_timeout=1.0)
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
