"""A guest is greeted while the tool loads: it is asked nothing, the first look goes on from there, or fails as it did.

Planted and seen to fail here: a greeting that failed is not remembered (two logins for one look); one that is old is
taken for the look's answer; a look that does not wait for it (two agents); its agent's death ends the look.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recover.core.config import Config, Ssh, TargetConfig
from recover.edge.actuator.guest import GuestActuator
from recover.edge.shell import SshSettings, SshShell
from recover.edge.steady import SteadyProbe
from recover.edge.store.folder import StateFolder
from recover.model.act import SyncDisks
from recover.model.contact import Failure
from recover.model.guest import Mute
from recover.model.ladder import Limits, Playbook
from recover.model.snapshot import Target
from recover.wiring import App, Flags

from .conftest import HERE, Sshd
from .relay import Relay
from .test_steady import agents, far, look, relay, staying, steady

__all__ = ["far", "relay", "steady"]  # fixtures

KIB = 1024


class Door:
    """Listens and says nothing, or closes at once; counts who came."""

    def __init__(self, silent: bool) -> None:
        self._silent, self._held = silent, list[socket.socket]()
        self.came = 0
        self._server = socket.create_server((HERE, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._open, daemon=True).start()

    def _open(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                who, _ = self._server.accept()
                self.came += 1
                self._held.append(who)
                if not self._silent:
                    who.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        for sock in (self._server, *self._held):
            sock.close()


@pytest.fixture(params=[True, False], ids=["silent", "closes"])
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    one = Door(request.param)
    yield one
    one.close()


@pytest.fixture
def shut(door: Door, tmp_path: Path) -> Iterator[SteadyProbe]:
    (tmp_path / "known_hosts").write_text("")
    shell = SshShell(
        SshSettings(
            HERE, door.port, "root", known_hosts=str(tmp_path / "known_hosts"), ssh_config="/none", banner_timeout=0.5
        )
    )
    yield SteadyProbe(shell)
    shell.close()


def test_the_first_look_goes_on_with_the_agent_that_was_greeted(steady: SteadyProbe, sshd: Sshd, relay: Relay) -> None:
    before = agents(sshd)
    steady.greet(60.0, acts=True)
    agent = staying(sshd, before)
    first = look(steady)
    assert first.complete and staying(sshd, before) == agent
    relay.taken()
    assert GuestActuator(steady).perform(SyncDisks(60.0)).ok
    assert relay.taken() < 10 * KIB, "acts were sent with the greeting"
    assert staying(sshd, before) == agent


def test_where_nothing_will_be_done_a_greeting_is_a_login_and_no_more(steady: SteadyProbe, sshd: Sshd) -> None:
    before, others = agents(sshd), set(sshd.connections())
    steady.greet(60.0, acts=False)
    until = time.monotonic() + 90
    while not (mine := set(sshd.connections()) - others):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert not agents(sshd) - before
    assert look(steady).complete and set(sshd.connections()) - others == mine


@pytest.mark.parametrize("met", [True, False])
def test_a_greeted_agent_that_died_is_replaced_in_the_first_look(steady: SteadyProbe, sshd: Sshd, met: bool) -> None:
    before = agents(sshd)
    steady.greet(60.0, acts=True)
    agent = staying(sshd, before)
    if met and steady._greeting is not None:
        steady._greeting.join(60.0)
    os.kill(agent, signal.SIGKILL)
    assert not any("agent" in gap for gap in look(steady).gaps), "it fell back to the shell's view"


@pytest.mark.parametrize("acts", [True, False])
def test_a_greeting_that_failed_is_how_the_look_failed(shut: SteadyProbe, door: Door, acts: bool) -> None:
    shut.greet(20.0, acts=acts)
    first = shut.look(deadline=20.0)
    assert isinstance(first, Mute) and door.came == 1
    again = shut.look(deadline=20.0)
    assert isinstance(again, Mute) and door.came == 2, "every later look asks by itself"
    assert first.failure is again.failure and first.failure in (Failure.BANNER_SILENCE, Failure.REFUSED)


def test_a_greeting_of_long_ago_tells_nothing_of_now(
    shut: SteadyProbe, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recover.edge.steady._FRESH_S", 0.0)
    shut.greet(20.0, acts=True)
    assert isinstance(shut.look(deadline=20.0), Mute) and door.came == 2


@pytest.mark.parametrize("door", [True], indirect=True)
def test_a_look_waits_for_a_greeting_no_longer_than_it_may_take(shut: SteadyProbe, door: Door) -> None:
    shut._far._settings = SshSettings(HERE, door.port, "root", known_hosts="/none", ssh_config="/none")  # type: ignore[attr-defined]
    shut.greet(20.0, acts=True)
    began = time.monotonic()
    mute = shut.look(deadline=0.5)
    assert isinstance(mute, Mute) and mute.failure is Failure.TIMEOUT and time.monotonic() - began < 10.0


@pytest.mark.parametrize("door", [False], indirect=True)
@pytest.mark.parametrize(
    ("flags", "acts", "comes"),
    [
        (Flags(steady=True), True, 1),
        (Flags(steady=True, dry_run=True), True, 1),
        (Flags(), True, 0),  # one look
        (Flags(steady=True), False, 0),  # a fleet's looks have their own order
        (Flags(steady=True, take_over=True), True, 0),  # another run is waited for first
    ],
)
def test_who_is_greeted(door: Door, tmp_path: Path, flags: Flags, acts: bool, comes: int) -> None:
    ssh = Ssh(user="root", port=door.port, known_hosts="/none")
    app = App(Config(targets={"a": TargetConfig("a", address=HERE, ssh=ssh)}), StateFolder(tmp_path))
    wired = app.wire(Target("a", HERE), Playbook("p", "", Limits(), ()), flags, acts=acts)
    try:
        until = time.monotonic() + (60.0 if comes else 0.3)
        while door.came < comes or (not comes and time.monotonic() < until):
            assert time.monotonic() < until
            time.sleep(0.02)
        assert door.came == comes
    finally:
        wired.close()
