"""Commands on a real sshd: what they say, how they end, and how we stop waiting for them."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from recover.edge.shell import LocalShell, Shell, SshShell
from recover.edge.shell.library import paramiko
from recover.edge.shell.transport import Transport
from recover.model.contact import Broken, Failure, Ran

from .conftest import Sshd

HOSTILE = ["a b", "'", '"', "$(id)", "`id`", ";id", "\\", "*", "", "-n", "é\n\tx", "!x", "~", "{a,b}", "&&", "\x1b[m"]


@pytest.fixture(params=["ssh", "local"])
def any_shell(request: pytest.FixtureRequest, sshd: Sshd) -> Shell:
    return LocalShell() if request.param == "local" else sshd.shell()


def test_output_and_success(any_shell: Shell) -> None:
    ran = any_shell.run(["sh", "-c", "echo out; echo err >&2"], deadline=20)
    assert isinstance(ran, Ran)
    assert (ran.code, ran.stdout, ran.stderr, ran.truncated) == (0, b"out\n", b"err\n", False)


@pytest.mark.parametrize("code", [1, 3, 127, 255])
def test_exit_codes(any_shell: Shell, code: int) -> None:
    ran = any_shell.run(["sh", "-c", f"exit {code}"], deadline=20)
    assert isinstance(ran, Ran) and ran.code == code


def test_a_missing_command_is_127(any_shell: Shell) -> None:
    ran = any_shell.run(["no-such-command-at-all"], deadline=20)
    assert isinstance(ran, Ran) and ran.code == 127


@pytest.mark.parametrize("name", ["KILL", "TERM", "SEGV"])
def test_signals_are_negative(any_shell: Shell, name: str) -> None:
    ran = any_shell.run(["sh", "-c", f"kill -{name} $$"], deadline=20)
    assert isinstance(ran, Ran) and ran.code == -signal.Signals[f"SIG{name}"]


def test_stdin_is_fed_whole(any_shell: Shell) -> None:
    data = os.urandom(3 * 1024 * 1024)
    ran = any_shell.run(["cat"], stdin=data, deadline=60)
    assert isinstance(ran, Ran) and ran.stdout == data


def test_stdin_that_nobody_reads(any_shell: Shell) -> None:
    ran = any_shell.run(["true"], stdin=b"x" * 3_000_000, deadline=30)
    assert isinstance(ran, Ran) and ran.code == 0


def test_no_stdin_is_an_end_of_file(any_shell: Shell) -> None:
    assert isinstance(any_shell.run(["cat"], deadline=20), Ran)


def test_arguments_arrive_as_they_are(any_shell: Shell) -> None:
    ran = any_shell.run(["printf", "%s\\0", *HOSTILE], deadline=20)
    assert isinstance(ran, Ran)
    assert ran.stdout.decode().split("\0")[:-1] == HOSTILE


def test_output_is_capped_and_the_command_still_ends(any_shell: Shell) -> None:
    ran = any_shell.run(["sh", "-c", "head -c 5000000 /dev/zero; echo end >&2"], deadline=60, cap=1000)
    assert isinstance(ran, Ran)
    assert (len(ran.stdout), ran.truncated, ran.stderr, ran.code) == (1000, True, b"end\n", 0)


def test_a_silent_command_meets_its_deadline(any_shell: Shell) -> None:
    began = time.monotonic()
    broken = any_shell.run(["sh", "-c", "echo first; exec sleep 60"], deadline=2)
    assert isinstance(broken, Broken)
    assert (broken.failure, broken.started, broken.stdout) == (Failure.TIMEOUT, True, b"first\n")
    assert time.monotonic() - began < 45


def test_a_command_that_keeps_talking_meets_its_deadline(any_shell: Shell) -> None:
    began = time.monotonic()
    broken = any_shell.run(["sh", "-c", "while :; do echo again; sleep 0.05; done"], deadline=2)
    assert isinstance(broken, Broken) and broken.failure is Failure.TIMEOUT
    assert broken.stdout.startswith(b"again\n")
    assert time.monotonic() - began < 45


def test_a_flood_meets_its_deadline(any_shell: Shell) -> None:
    broken = any_shell.run(["cat", "/dev/zero"], deadline=2, cap=100)
    assert isinstance(broken, Broken) and broken.failure is Failure.TIMEOUT and len(broken.stdout) == 100


def test_what_a_command_leaves_behind_does_not_hold_us(any_shell: Shell) -> None:
    began = time.monotonic()
    ran = any_shell.run(["sh", "-c", "sleep 120 & echo $!"], deadline=100)
    assert isinstance(ran, Ran) and ran.code == 0
    assert time.monotonic() - began < 90
    os.kill(int(ran.stdout), signal.SIGKILL)


def test_output_closed_early_is_not_the_end(any_shell: Shell) -> None:
    ran = any_shell.run(["sh", "-c", "exec >&- 2>&-; sleep 1; exit 7"], deadline=20)
    assert isinstance(ran, Ran) and ran.code == 7


def test_one_connection_serves_many_commands(sshd: Sshd, shell: SshShell) -> None:
    before = set(sshd.connections())
    for _ in range(3):
        assert isinstance(shell.run(["true"], deadline=20), Ran)
    assert len(set(sshd.connections()) - before) == 1


def test_after_a_deadline_the_connection_still_serves(sshd: Sshd, shell: SshShell) -> None:
    shell.run(["sleep", "30"], deadline=1)
    connection = sshd.connections()
    assert isinstance(shell.run(["true"], deadline=20), Ran)
    assert sshd.connections() == connection


def test_two_commands_at_once(shell: SshShell) -> None:
    shell.connect(20)
    results: list[Ran | Broken] = []

    def one(number: int) -> None:
        results.append(shell.run(["sh", "-c", f"sleep 0.3; echo {number}"], deadline=20))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(ran.stdout for ran in results) == [b"0\n", b"1\n", b"2\n", b"3\n"]


def test_a_server_out_of_sessions_says_no_and_the_others_go_on(start_sshd, tmp_path) -> None:  # type: ignore[no-untyped-def]
    shell = start_sshd(options=("MaxSessions 1",)).shell()
    shell.connect(20)
    results: list[Ran | Broken] = []
    begun, over = tmp_path / "begun", tmp_path / "over"
    waits = ["sh", "-c", f"touch {begun}; until [ -e {over} ]; do sleep 0.1; done"]
    long = threading.Thread(target=lambda: results.append(shell.run(waits, deadline=120)))
    long.start()
    until = time.monotonic() + 90
    while not begun.exists() and time.monotonic() < until:
        time.sleep(0.02)
    broken = shell.run(["true"], deadline=20)
    over.touch()
    long.join(90)
    assert isinstance(broken, Broken) and not broken.started
    assert isinstance(results[0], Ran)


def test_died_in_the_middle_and_back_at_the_next_run(start_sshd) -> None:  # type: ignore[no-untyped-def]
    server = start_sshd()
    shell = server.shell()
    shell.connect(20)
    (serving,) = server.connections()
    killer = threading.Timer(0.7, os.kill, (serving, signal.SIGKILL))
    killer.start()
    broken = shell.run(["sh", "-c", "echo here; sleep 30"], deadline=25)
    killer.join()
    assert isinstance(broken, Broken)
    assert (broken.failure, broken.started, broken.stdout) == (Failure.DIED, True, b"here\n")
    assert isinstance(shell.run(["true"], deadline=20), Ran)


def test_a_stale_connection_is_replaced_before_anything_is_sent(start_sshd) -> None:  # type: ignore[no-untyped-def]
    server = start_sshd()
    shell = server.shell()
    shell.connect(20)
    for pid in server.connections():
        os.kill(pid, signal.SIGKILL)
    assert isinstance(shell.run(["true"], deadline=20), Ran)


def test_a_connection_that_ends_while_a_channel_is_opened_ends_all_of_it(start_sshd) -> None:  # type: ignore[no-untyped-def]
    """Seen to fail with the library's own map: its thread died of it, and the connection was called active for ever."""
    server, before = start_sshd(), set(threading.enumerate())
    shell = server.shell()
    shell.connect(20)
    (transport,) = (t for t in set(threading.enumerate()) - before if isinstance(t, Transport))
    half_made = paramiko.Channel(999)
    transport._channels.put(999, half_made)  # so far the library is when it ends
    for pid in server.connections():
        os.kill(pid, signal.SIGKILL)
    transport.join(60)
    assert half_made.closed and not transport.active
    assert isinstance(shell.run(["true"], deadline=20), Ran)


def test_forget_drops_and_the_next_run_connects(sshd: Sshd, shell: SshShell) -> None:
    shell.connect(20)
    shell.forget()
    assert isinstance(shell.run(["true"], deadline=20), Ran)


def test_where(sshd: Sshd) -> None:
    assert sshd.shell().where == f"root@127.0.0.1:{sshd.port}"
    assert LocalShell().where == "local"


def test_local_deadline_ends_the_whole_session() -> None:
    broken = LocalShell().run(["sh", "-c", "sleep 300 & echo $!; wait"], deadline=1)
    assert isinstance(broken, Broken)
    pid = int(broken.stdout)
    until = time.monotonic() + 90
    while time.monotonic() < until and os.path.exists(f"/proc/{pid}") and not _dead(pid):
        time.sleep(0.05)
    assert _dead(pid)


def _dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True
