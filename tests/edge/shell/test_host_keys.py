"""Whom we believe: every line of known_hosts counts, and a refusal says what was seen, what disagreed and the fix."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.edge.shell.known_hosts import KnownHosts, Mark, fingerprint, matches, parse
from recover.model.contact import Broken, Failure, Ran

from .conftest import HERE, Sshd, keygen, new_key, public

Start = Callable[..., Sshd]
WithCert = Callable[..., tuple[Sshd, Path]]


def seen(server: Sshd, lines: str, **changes: object) -> Broken | None:
    server.known_hosts.write_text(lines)
    return server.shell(**changes).connect(30)


def print_of(key: Path) -> str:
    told = subprocess.run(["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True)
    return told.stdout.split()[1]


def test_unknown(start_sshd: Start) -> None:
    server = start_sshd()
    broken = seen(server, "")
    assert isinstance(broken, Broken) and broken.failure is Failure.UNKNOWN_KEY
    assert print_of(server.host_keys[0]) in broken.detail
    assert f"ssh-keyscan -t ed25519 -p {server.port} 127.0.0.1 >> {server.known_hosts}" in broken.detail
    assert "compare the fingerprint" in broken.detail


def test_a_missing_file_knows_nobody(start_sshd: Start) -> None:
    broken = start_sshd().shell(known_hosts="/nonexistent/known_hosts").connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.UNKNOWN_KEY


def test_changed(start_sshd: Start, tmp_path: Path) -> None:
    server = start_sshd()
    other = new_key(tmp_path / "other")
    broken = seen(server, f"# a comment\n{server.name} {public(other)}\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.CHANGED_KEY
    for words in (f"{server.known_hosts}:2", print_of(other), print_of(server.host_keys[0]), "ssh-keygen -R"):
        assert words in broken.detail


def test_revoked_outranks_known(start_sshd: Start) -> None:
    server = start_sshd()
    key = public(server.host_keys[0])
    broken = seen(server, f"{server.name} {key}\n@revoked * {key}\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.REVOKED_KEY
    assert f"{server.known_hosts}:2" in broken.detail


def test_hashed(start_sshd: Start) -> None:
    server = start_sshd()
    keygen("-H", "-f", server.known_hosts)
    assert server.known_hosts.read_text().startswith("|1|")
    assert server.shell().connect(30) is None


@pytest.mark.parametrize(
    ("patterns", "fine"),
    [
        ("[127.0.0.*]:{p}", True),
        ("[127.0.0.?]:*", True),
        ("other,[127.0.0.1]:{p}", True),
        ("*", True),
        ("127.0.0.1", True),  # the bare name is asked for second, as OpenSSH does
        ("[*]:*,![127.0.0.1]:{p}", False),
        ("[127.0.0.2]:{p}", False),
    ],
)
def test_patterns(start_sshd: Start, patterns: str, fine: bool) -> None:
    server = start_sshd()
    broken = seen(server, f"{patterns.format(p=server.port)} {public(server.host_keys[0])}\n")
    assert (broken is None) == fine


def test_negation() -> None:
    assert not matches("a.example.org", ["*.example.org", "!a.example.org"])
    assert matches("b.example.org", ["*.example.org", "!a.example.org"])


def test_broken_lines_vouch_for_nobody() -> None:
    junk = "@unknown h ssh-ed25519 AAAA\nh ssh-ed25519\nh ssh-ed25519 !!!\n|1|x h y\n\n"
    junk += "h ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAIA==\n"  # it says RSA, it holds Ed25519
    assert KnownHosts(tuple(parse(junk, "f")), ("f",)).of(Mark.HOST, "h", 22) == ()


@pytest.mark.parametrize("known", [0, 1, 2])
def test_the_known_type_is_asked_for(start_sshd: Start, known: int) -> None:
    server = start_sshd(kinds=("ed25519", "ecdsa", "rsa"))
    assert seen(server, f"{server.name} {public(server.host_keys[known])}\n") is None


def test_a_host_known_by_another_type_only(start_sshd: Start, tmp_path: Path) -> None:
    server = start_sshd()
    broken = seen(server, f"{server.name} {public(new_key(tmp_path / 'rsa', 'rsa'))}\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.CHANGED_KEY


# Certificates


@pytest.fixture
def with_cert(tmp_path: Path, start_sshd: Start) -> Callable[..., tuple[Sshd, Path]]:
    """A server whose host key is certified as the test wishes, known only through its authority."""

    def make(*how: str | Path, kind: str = "ed25519", ca_kind: str = "ed25519") -> tuple[Sshd, Path]:
        ca = new_key(tmp_path / "ca", ca_kind)
        key = new_key(tmp_path / "host", kind)
        keygen("-s", ca, "-I", "node-174", "-h", *how, f"{key}.pub")
        server = start_sshd(options=(f"HostKey {key}", f"HostCertificate {key}-cert.pub"), kinds=())
        server.host_keys.append(key)
        server.known_hosts.write_text(f"@cert-authority [127.0.0.*]:* {public(ca)}\n")
        return server, ca

    return make


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
@pytest.mark.parametrize("ca_kind", ["ed25519", "rsa", "ecdsa"])
def test_certified(with_cert: WithCert, kind: str, ca_kind: str) -> None:
    server, _ = with_cert("-n", HERE, "-V", "-1h:+1d", kind=kind, ca_kind=ca_kind)
    assert isinstance(server.shell().run(["true"], deadline=30), Ran)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (("-n", "other.example.org"), "not for 127.0.0.1"),
        (("-n", HERE, "-V", "20200101:20200102"), "expired on 2020-01-02"),
        (("-n", HERE, "-V", "20990101:20990102"), "not valid before 2099-01-01"),
    ],
)
def test_a_certificate_that_does_not_prove_it(with_cert: WithCert, how: tuple[str, ...], says: str) -> None:
    server, _ = with_cert(*how)
    broken = server.shell().connect(30)
    assert isinstance(broken, Broken) and broken.failure is Failure.UNKNOWN_KEY
    assert says in broken.detail and "'node-174'" in broken.detail


def test_a_stranger_s_authority(with_cert: WithCert, tmp_path: Path) -> None:
    server, ca = with_cert("-n", HERE)
    broken = seen(server, f"@cert-authority * {public(new_key(tmp_path / 'another'))}\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.UNKNOWN_KEY
    assert print_of(ca) in broken.detail and print_of(server.host_keys[0]) in broken.detail


def test_an_authority_for_other_hosts(with_cert: WithCert) -> None:
    server, ca = with_cert("-n", HERE)
    broken = seen(server, f"@cert-authority *.example.org {public(ca)}\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.UNKNOWN_KEY


@pytest.mark.parametrize("whose", ["authority", "key"])
def test_revoked_certificates(with_cert: WithCert, whose: str) -> None:
    server, ca = with_cert("-n", HERE)
    bad = public(ca if whose == "authority" else server.host_keys[0])
    broken = seen(server, server.known_hosts.read_text() + f"@revoked * {bad}\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.REVOKED_KEY


def test_the_plain_key_of_a_certified_host_may_be_known(with_cert: WithCert) -> None:
    server, _ = with_cert("-n", "wrong.example.org")
    assert seen(server, f"{server.name} {public(server.host_keys[0])}\n") is None


def test_a_user_certificate_is_no_host_certificate(tmp_path: Path) -> None:
    from recover.edge.shell.host_key import _Certificate
    from recover.edge.shell.known_hosts import parse as lines

    ca, key = new_key(tmp_path / "ca"), new_key(tmp_path / "key")
    keygen("-s", ca, "-I", "u", "-n", HERE, f"{key}.pub")
    (line,) = lines("h " + " ".join(Path(f"{key}-cert.pub").read_text().split()[:2]), "f")
    assert _Certificate(line.blob).fault(HERE) == "it is not a host certificate"


def test_a_forged_signature(tmp_path: Path) -> None:
    from recover.edge.shell.host_key import _Certificate

    ca, key = new_key(tmp_path / "ca"), new_key(tmp_path / "key")
    keygen("-s", ca, "-h", "-I", "genuine", "-n", HERE, f"{key}.pub")
    (line,) = parse("h " + " ".join(Path(f"{key}-cert.pub").read_text().split()[:2]), "f")
    assert _Certificate(line.blob).fault(HERE) is None
    assert _Certificate(line.blob.replace(b"genuine", b"forgery")).fault(HERE) == "its signature is wrong"


def test_fingerprints_are_openssh_s(tmp_path: Path) -> None:
    key = new_key(tmp_path / "key")
    (line,) = parse(f"h {public(key)}", "f")
    assert fingerprint(line.blob) == print_of(key)
