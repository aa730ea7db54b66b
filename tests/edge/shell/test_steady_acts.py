"""Acts through the agent that stays: each is asked once, and one whose end was not heard is unclear, never repeated."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.shell import SshShell
from recover.edge.steady import SteadyProbe
from recover.model.act import AwaitGone, Signal, SyncDisks
from recover.model.contact import Ran
from recover.model.guest import Guest
from recover.model.process import ProcessId

from .conftest import Sshd
from .relay import Relay
from .test_steady import agents, far, look, relay, start_sleeper, staying, steady

__all__ = ["far", "relay", "start_sleeper", "steady"]  # fixtures

KIB = 1024
STOPPED = "T"


@pytest.fixture
def stubborn() -> Iterator[Callable[[], ProcessId]]:
    """A process of ours as the guest names it."""
    begun: list[int] = []

    def begin() -> ProcessId:
        pid = os.posix_spawn("/bin/sleep", ["sleep", "9999"], {})
        begun.append(pid)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return ProcessId(boot, pid, int(fields[19]))

    yield begin
    for pid in begun:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def kill(who: ProcessId) -> Signal:
    return Signal("g", (who,), "KILL", descendants=False)


def gone(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG) != (0, 0)


def alive(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG) == (0, 0)


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 90
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_looks_and_acts_share_one_agent(
    steady: SteadyProbe, sshd: Sshd, relay: Relay, stubborn: Callable[[], ProcessId]
) -> None:
    hand, who, before = GuestActuator(steady), stubborn(), agents(sshd)
    look(steady)
    agent = staying(sshd, before)
    relay.taken()
    assert hand.perform(kill(who)).ok
    until(lambda: gone(who.pid))
    assert hand.perform(AwaitGone("g", (who,), 20.0)).ok and hand.perform(SyncDisks(60.0)).ok
    first = relay.taken()
    assert first <= 60 * KIB  # with the sources of all acts
    assert hand.perform(AwaitGone("g", (who,), 20.0)).ok
    assert relay.taken() <= 4 * KIB
    look(steady)
    assert relay.taken() <= 15 * KIB  # acts between two looks do not make the later one large
    assert staying(sshd, before) == agent


def test_before_the_first_look_an_act_has_an_agent_of_its_own(steady: SteadyProbe) -> None:
    assert GuestActuator(steady).perform(SyncDisks(60.0)).ok and steady._talk is None


def test_an_agent_that_died_before_the_act_is_noticed_and_another_acts(
    steady: SteadyProbe, sshd: Sshd, stubborn: Callable[[], ProcessId]
) -> None:
    before, who = agents(sshd), stubborn()
    look(steady)
    agent = staying(sshd, before)
    os.kill(agent, signal.SIGKILL)
    assert GuestActuator(steady).perform(kill(who)).ok
    until(lambda: gone(who.pid))


def test_a_connection_that_was_cut_before_the_act_is_made_anew(
    steady: SteadyProbe, relay: Relay, stubborn: Callable[[], ProcessId]
) -> None:
    who = stubborn()
    look(steady)
    relay.cut()
    assert GuestActuator(steady).perform(kill(who)).ok
    until(lambda: gone(who.pid))


def test_an_agent_that_stalls_before_the_act_is_left_and_never_acts_later(
    steady: SteadyProbe, sshd: Sshd, monkeypatch: pytest.MonkeyPatch, stubborn: Callable[[], ProcessId]
) -> None:
    monkeypatch.setattr("recover.edge.steady._FIRST_WORD_S", 1.0)
    before, who = agents(sshd), stubborn()
    look(steady)
    agent = staying(sshd, before)
    os.kill(agent, signal.SIGSTOP)
    assert GuestActuator(steady).perform(SyncDisks(60.0)).ok
    os.kill(agent, signal.SIGCONT)
    until(lambda: agent not in agents(sshd))
    assert alive(who.pid)


@pytest.mark.parametrize("how", ["agent", "connection"])
def test_an_act_whose_end_is_not_heard_is_unclear_and_not_repeated(
    steady: SteadyProbe, sshd: Sshd, relay: Relay, far: SshShell, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The act has begun when the line to it goes: a wait for a process that lives."""
    before = agents(sshd)
    guest = look(steady)
    assert isinstance(guest, Guest)
    agent = staying(sshd, before)
    asked: list[object] = []
    monkeypatch.setattr("recover.edge.probe.ask", lambda *args, **kw: asked.append(args))
    ask = steady._rest

    def cut(talk, data, ends, began):
        if b'"await_gone"' in data:
            talk._stdin = memoryview(bytes(talk._stdin) + data)
            talk._feed()
            until(lambda: len(agents(sshd) - before) > 1)
            if how == "agent":
                os.kill(agent, signal.SIGKILL)
            else:
                relay.cut()
            data = b""
        return ask(talk, data, ends, began)

    monkeypatch.setattr(steady, "_rest", cut)
    me = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    done = GuestActuator(steady).perform(AwaitGone("g", (ProcessId(boot, os.getpid(), int(me[19])),), 30.0))
    assert not done.ok and done.changed and asked == []


@pytest.mark.parametrize("code", [-9, 0, 5])
def test_an_agent_that_ended_without_a_word_leaves_the_act_unclear(
    steady: SteadyProbe, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Its child may have begun: what it said is lost with the one who passes it on."""
    look(steady)
    rest = steady._rest

    def lost(talk, data, ends, began):
        if b'"signal"' not in data:
            return rest(talk, data, ends, began)
        steady.close()
        return Ran(code, b"", b"", 0.1)

    monkeypatch.setattr(steady, "_rest", lost)
    done = GuestActuator(steady).perform(kill(ProcessId("boot", 4194303, 1)))
    assert (done.ok, done.changed, done.clear) == (False, True, False)
