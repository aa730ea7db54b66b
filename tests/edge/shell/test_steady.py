"""An agent that stays on a real sshd: the same looks for fewer bytes, and replaced when it dies, stalls or lies."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.shell import SshShell
from recover.edge.shell.talk import Conversation
from recover.edge.steady import SteadyProbe
from recover.model.contact import Broken, Ran
from recover.model.guest import Guest, Mute
from recover.model.reading import Known

from .conftest import HERE, Sshd, public
from .relay import Relay

KIB = 1024


@pytest.fixture
def relay(sshd: Sshd) -> Iterator[Relay]:
    with Relay(sshd.port) as passed:
        yield passed


@pytest.fixture
def far(sshd: Sshd, relay: Relay, tmp_path: Path) -> Iterator[SshShell]:
    known = tmp_path / "known_hosts"
    known.write_text(f"[{HERE}]:{relay.port} {public(sshd.host_keys[0])}\n")
    shell = sshd.shell(port=relay.port, known_hosts=str(known))
    yield shell
    shell.close()


@pytest.fixture
def steady(far: SshShell) -> Iterator[SteadyProbe]:
    probe = SteadyProbe(far)
    yield probe
    probe.close()


def look(probe: GuestProbe) -> Guest:
    guest = probe.look(health=False, deadline=120.0)
    assert isinstance(guest, Guest), guest
    return guest


def agents(sshd: Sshd) -> set[int]:
    """The processes below this server that run our loader."""
    found = set()
    for pid in _below(sshd.process.pid):
        with contextlib.suppress(OSError):
            if b"b.read(int(b.readline()))" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 4)[-1]:
                found.add(pid)
    return found


def staying(sshd: Sshd, before: set[int]) -> int:
    """The one that stays: the child that looked for it may still be ending."""
    until = time.monotonic() + 90
    while len(found := agents(sshd) - before) != 1:
        assert time.monotonic() < until, found
        time.sleep(0.02)
    return found.pop()


def _below(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found |= {int(child)} | _below(int(child))
    return found


def pids(guest: Guest) -> set[int]:
    assert isinstance(guest.processes, Known)
    return {p.pid for p in guest.processes.value}


def test_the_first_look_is_small_and_later_ones_are_tiny(steady: SteadyProbe, relay: Relay) -> None:
    first = look(steady)
    assert first.complete and relay.taken() <= 100 * KIB
    for _ in range(3):
        again = look(steady)
        assert again.complete and os.getpid() in pids(again)
        assert relay.taken() <= 15 * KIB


def test_one_exec_is_small_as_well(far: SshShell, relay: Relay) -> None:
    assert look(GuestProbe(far)).complete and relay.taken() <= 100 * KIB


def test_a_later_look_sees_what_is_new_and_misses_what_is_gone(
    steady: SteadyProbe, start_sleeper: Callable[[], int]
) -> None:
    before = look(steady)
    pid = start_sleeper()
    between = look(steady)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    after = look(steady)
    assert pid not in pids(before) and pid in pids(between) and pid not in pids(after)
    assert isinstance(between.processes, Known)
    (row,) = [p for p in between.processes.value if p.pid == pid]
    assert row.title.startswith("sleep 9999") and row.holds_known


@pytest.fixture
def start_sleeper() -> Iterator[Callable[[], int]]:
    begun: list[int] = []

    def begin() -> int:
        begun.append(os.posix_spawn("/bin/sleep", ["sleep", "9999"], {}))
        return begun[-1]

    yield begin
    for pid in begun:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_both_ways_tell_the_same(far: SshShell) -> None:
    one, steady = GuestProbe(far), SteadyProbe(far)
    look(steady)
    later, plain = look(steady), look(one)
    steady.close()
    assert later.identity == plain.identity and later.kernel == plain.kernel
    assert later.leftovers == plain.leftovers and later.services == plain.services


def test_an_agent_that_died_is_replaced_in_the_same_look(steady: SteadyProbe, sshd: Sshd) -> None:
    before = agents(sshd)
    look(steady)
    agent = staying(sshd, before)
    os.kill(agent, signal.SIGKILL)
    assert look(steady).complete
    assert agents(sshd) - before - {agent}


def test_an_agent_that_stalls_is_replaced_in_the_same_look(
    steady: SteadyProbe, sshd: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recover.edge.steady._FIRST_WORD_S", 1.0)
    before = agents(sshd)
    look(steady)
    agent = staying(sshd, before)
    os.kill(agent, signal.SIGSTOP)
    try:
        assert look(steady).complete
    finally:
        os.kill(agent, signal.SIGKILL)


def test_a_connection_that_was_cut_is_made_anew(steady: SteadyProbe, relay: Relay) -> None:
    look(steady)
    relay.cut()
    assert look(steady).complete


def _cut_in_the_middle(steady: SteadyProbe, sshd: Sshd) -> bool:
    """Ask for a look and end the child that makes it. False: it was over before we met it."""
    before = agents(sshd)
    steady.close()
    look(steady)
    agent = staying(sshd, before)
    os.kill(agent, signal.SIGSTOP)
    talk = steady._talk
    assert isinstance(talk, Conversation)
    said = talk.ask(b'{"do":"look","stay":true,"health_ports":false}\n', lambda data: True, 0.2)
    assert isinstance(said, Broken)  # the question waits in its pipe
    os.kill(agent, signal.SIGCONT)
    until = time.monotonic() + 3
    while time.monotonic() < until:
        if child := next((pid for pid in agents(sshd) - before if pid != agent), None):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                return True
    return False


def test_a_look_that_breaks_off_is_a_guest_with_gaps(steady: SteadyProbe, sshd: Sshd) -> None:
    """Its child is killed in the middle of the look; the next look is whole again."""
    assert any(_cut_in_the_middle(steady, sshd) for _ in range(20)), "no look's child was ever met"
    partial = steady.look(health=False, deadline=60.0)
    assert isinstance(partial, (Guest, Mute))
    assert look(steady).complete


def test_no_agent_outlives_its_connection(far: SshShell, sshd: Sshd) -> None:
    before = agents(sshd)
    probe = SteadyProbe(far)
    look(probe)
    assert agents(sshd) - before
    probe.close()
    far.close()
    until = time.monotonic() + 90
    while agents(sshd) - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not agents(sshd) - before


def test_without_python_there_is_still_a_view(far: SshShell) -> None:
    probe = SteadyProbe(far, ProbeSettings(pythons=("no-such-python",)))
    guest = look(probe)
    probe.close()
    assert any("no Python" in gap for gap in guest.gaps)


def test_a_python_without_bz2_is_asked_in_another_packing(far: SshShell, tmp_path: Path) -> None:
    fake = tmp_path / "python-minimal"
    block = "import sys; sys.modules['bz2'] = None; exec(sys.argv.pop(4))"
    fake.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S -c "{block}" "$1" "$2" "$3" "$4"\n')
    fake.chmod(0o755)
    probe = SteadyProbe(far, ProbeSettings(pythons=(str(fake),)))
    assert look(probe).complete and look(probe).complete
    probe.close()


def test_a_server_that_refuses_is_mute(sshd: Sshd) -> None:
    probe = SteadyProbe(sshd.shell(port=1))
    assert isinstance(probe.look(deadline=20.0), Mute)


def test_a_command_is_asked_several_times_and_its_end_is_told(sshd: Sshd) -> None:
    talk = sshd.shell().converse(["sh", "-c", "read a; echo 1$a; read b; echo 2$b >&2; exit 7"], 20.0)
    assert isinstance(talk, Conversation)
    heard: list[bytes] = []

    def hear(data: bytes) -> bool:
        heard.append(data)
        return data.endswith(b"\n")

    assert talk.ask(b"x\n", hear, 20.0) is None and heard == [b"1x\n"]
    assert isinstance(talk.ask(b"", hear, 0.3), Broken)
    ended = talk.ask(b"y\n", hear, 20.0)
    assert isinstance(ended, Ran) and (ended.code, ended.stderr) == (7, b"2y\n")
    talk.close()
