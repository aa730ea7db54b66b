"""One guest and one node for all tests of a worker: a boot by emulation takes 10 s, so nobody boots without need."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recover.edge.shell.ssh import SshShell
from tests.lab.driver.state import State
from tests.lab.pve.server import PveServer

from . import gpu, kinds, power
from .machine import Machine


@pytest.fixture(scope="session")
def guest_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("guest")
    with Machine.up(folder, kinds.guest(folder)) as vm:
        yield vm


@pytest.fixture
def guest(guest_machine: Machine) -> Machine:
    guest_machine.ensure_up()
    return guest_machine


@pytest.fixture
def shell(guest: Machine) -> Iterator[SshShell]:
    shell = guest.shell()
    yield shell
    shell.close()


@pytest.fixture
def device(guest_machine: Machine) -> Iterator[State]:
    """The GPU, seen from outside the guest; nothing is on it yet."""
    with gpu.state(guest_machine.folder) as state:
        state.cure("host-reset")
        yield state


@pytest.fixture
def obeys_within_s() -> float:
    return 60.0


@pytest.fixture
def pve(guest: Machine, obeys_within_s: float, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PveServer]:
    with power.api(guest, tmp_path_factory.mktemp("pve"), obeys_within_s) as server:
        yield server


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with Machine.up(tmp_path_factory.mktemp("node"), kinds.node(), "pve1") as vm:
        yield vm


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy set in the environment is the user's wish in production and in the way on loopback."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,::1")
