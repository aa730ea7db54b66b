"""Becoming root by the real sudo, in a mount namespace with its own users and sudoers; the machine's stay untouched."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from recover.edge.shell import SudoPassword
from recover.edge.shell.session import Root
from recover.edge.shell.talk import Conversation
from recover.model.contact import Broken, Failure, Ran

from .conftest import Sshd, sshd_in

pytestmark = pytest.mark.lab

PASSWORD = "pass $(word) 'é"
USERS = {"freely": "NOPASSWD: ALL", "asked": "ALL", "never": ""}


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # sshd reads authorized_keys as the user
        server = sshd_in(folder / "sshd", inside=("unshare", "--mount", "--propagation", "private", str(_etc(folder))))
        yield server
        server.stop()


def _etc(folder: Path) -> Path:
    """A script that puts our users and sudoers over the machine's, for itself only, and execs what it is given."""
    openssl = ["openssl", "passwd", "-6", "-stdin"]
    crypt = subprocess.run(openssl, input=PASSWORD + "\n", text=True, capture_output=True, check=True)
    passwd, shadow = Path("/etc/passwd").read_text(), Path("/etc/shadow").read_text()
    sudoers = "Defaults lecture=always\n"
    for number, (user, rule) in enumerate(USERS.items(), 54321):
        passwd += f"{user}:x:{number}:{number}::/tmp:/bin/sh\n"
        shadow += f"{user}:{crypt.stdout.strip()}:19000:0:99999:7:::\n"
        sudoers += f"{user} ALL=(ALL) {rule}\n" if rule else ""
    script = "#!/bin/sh -e\n"
    for name, text, mode in (("passwd", passwd, 0o644), ("shadow", shadow, 0o640), ("sudoers", sudoers, 0o440)):
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
        script += f"mount --bind {folder / name} /etc/{name}\n"
    (folder / "inside").write_text(script + 'exec "$@"\n')
    (folder / "inside").chmod(0o755)
    return folder / "inside"


def right() -> SudoPassword:
    return SudoPassword(lambda: PASSWORD)


def as_user(server: Sshd, user: str, sudo: bool | SudoPassword, *argv: str, stdin: bytes = b"") -> Ran | Broken:
    return server.shell(user=user, sudo=sudo).run(argv or ("id", "-u"), stdin=stdin, deadline=40)


def test_without_sudo(server: Sshd) -> None:
    ran = as_user(server, "freely", False)
    assert isinstance(ran, Ran) and ran.stdout == b"54321\n"


@pytest.mark.parametrize(("user", "sudo"), [("freely", True), ("freely", right()), ("asked", right())])
def test_root(server: Sshd, user: str, sudo: bool | SudoPassword) -> None:
    ran = as_user(server, user, sudo, "sh", "-c", "id -u; cat; echo err >&2; exit 3", stdin=b"payload" * 100_000)
    assert isinstance(ran, Ran) and ran.code == 3
    assert ran.stdout == b"0\n" + b"payload" * 100_000 and ran.stderr == b"err\n"


def test_a_password_that_nobody_asks_for_never_reaches_the_command(server: Sshd) -> None:
    ran = as_user(server, "freely", right(), "cat")
    assert isinstance(ran, Ran) and ran.stdout == b"" and ran.stderr == b""


def test_arguments_survive_sudo(server: Sshd) -> None:
    words = ["a b", "$(id)", "'", '"', "", "\\", "%s"]
    ran = as_user(server, "freely", True, "printf", "%s\\0", *words)
    assert isinstance(ran, Ran) and ran.stdout.decode().split("\0")[:-1] == words


@pytest.mark.parametrize(
    ("user", "sudo"),
    [("asked", True), ("never", True), ("never", right()), ("asked", SudoPassword(lambda: "wrong"))],
)
def test_refused(server: Sshd, user: str, sudo: bool | SudoPassword) -> None:
    broken = as_user(server, user, sudo, "touch", "/tmp/should-not-exist-54321", stdin=b"guess\nguess\n")
    assert isinstance(broken, Broken) and broken.failure is Failure.SUDO and not broken.started
    assert "ask-" not in broken.detail and PASSWORD not in broken.detail and "wrong" not in broken.detail
    assert not Path("/tmp/should-not-exist-54321").exists()


def test_a_vault_that_is_down_tells_no_secret(server: Sshd) -> None:
    def ask() -> str:
        raise RuntimeError("token s3cr3t expired")

    broken = as_user(server, "asked", SudoPassword(ask))
    assert isinstance(broken, Broken) and broken.failure is Failure.SUDO and "s3cr3t" not in broken.detail


def test_a_command_that_fails_like_sudo_is_a_command_that_failed(server: Sshd) -> None:
    ran = as_user(server, "freely", True, "sh", "-c", "echo 'sudo: a password is required' >&2; exit 1")
    assert isinstance(ran, Ran) and ran.code == 1


def test_only_the_prompt_is_answered() -> None:
    """Whatever else sudo says before (a warning, a lecture) is no question."""
    root = Root(right())
    prompt = next(word for word in root.wrap(["true"]).split() if word.startswith("ask-")).encode()
    assert root.hear(b"sudo: unable to resolve host node-174\n") == (b"", b"")
    assert root.hear(prompt[:7]) == (b"", b"")
    assert root.hear(prompt[7:]) == (b"", PASSWORD.encode() + b"\n")
    assert root.hear(prompt) == (b"", b"") and root.refused


def test_no_secret_in_what_is_shown() -> None:
    assert PASSWORD not in repr(right())


@pytest.mark.parametrize(("user", "sudo"), [("freely", True), ("asked", right())])
def test_a_command_that_stays_is_root_and_hears_no_password(server: Sshd, user: str, sudo: bool | SudoPassword) -> None:
    talk = server.shell(user=user, sudo=sudo).converse(["sh", "-c", 'id -u; while read a; do echo "<$a>"; done'], 40.0)
    assert isinstance(talk, Conversation)
    heard = bytearray()

    def hear(data: bytes) -> bool:
        heard.extend(data)
        return heard.endswith(b">\n")

    for word in (b"one", b"two"):
        assert talk.ask(word + b"\n", hear, 40.0) is None
    assert heard == b"0\n<one>\n<two>\n"
    talk.close()


def test_a_command_that_stays_and_may_not_be_root(server: Sshd) -> None:
    talk = server.shell(user="never", sudo=True).converse(["cat"], 40.0)
    assert isinstance(talk, Conversation)
    said = talk.ask(b"x\n", lambda data: True, 40.0)
    assert isinstance(said, Broken) and said.failure is Failure.SUDO
    talk.close()
