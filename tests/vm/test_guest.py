"""The agent on a real kernel: what only a kernel can do to a process is seen as what it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.probe import GuestProbe
from recover.edge.shell.ssh import SshShell
from recover.model.act import AwaitGone, Outcome, Signal
from recover.model.guest import Guest
from recover.model.process import Process, ProcessId
from recover.model.reading import Known
from tests.guest.conftest import DEAD_LEADER, PLAIN, ZOMBIE

from . import inside
from .machine import MAC, Machine

pytestmark = [pytest.mark.lab, pytest.mark.vm, pytest.mark.timeout(600), pytest.mark.xdist_group("vm-guest")]


def processes(guest: Guest) -> dict[int, Process]:
    assert isinstance(guest.processes, Known)
    return {p.pid: p for p in guest.processes.value}


@dataclass
class Sick:
    """Processes in every bad way, started once; `seen` is one look at them all."""

    reader: int
    leader: int
    zombies: int
    plain: int
    seen: Guest
    shell: SshShell

    @property
    def rows(self) -> dict[int, Process]:
        return processes(self.seen)

    def id(self, pid: int) -> ProcessId:
        return self.rows[pid].id


@pytest.fixture(scope="module")
def sick(guest_machine: Machine) -> Iterator[Sick]:
    guest_machine.ensure_up()
    shell = guest_machine.shell()
    guest_machine.hold_read()
    try:
        reader, leader, zombies, plain = (
            inside.start(shell, code) for code in (inside.READER, DEAD_LEADER, ZOMBIE, PLAIN)
        )
        yield Sick(reader, leader, zombies, plain, inside.look(shell), shell)
        inside.run(shell, 'kill -9 "$@" 2>/dev/null; true', str(leader), str(zombies), str(plain))
    finally:
        guest_machine.release_read()
        shell.close()


def act(shell: SshShell, action: Signal | AwaitGone) -> Outcome:
    return GuestActuator(GuestProbe(shell)).perform(action)


def test_it_is_the_kernels_own_identity(sick: Sick, guest_machine: Machine) -> None:
    who = sick.seen.identity
    ours = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert who.boot_id != ours
    assert (who.hostname, who.macs) == ("node-174", frozenset({MAC}))
    assert who.dmi_uuid == Known(guest_machine.uuid)
    assert who.kernel != os.uname().release
    assert not who.container


def test_a_zombie_holds_nothing_and_its_parent_is_named(sick: Sick) -> None:
    zombie = next(p for p in sick.rows.values() if p.ppid == sick.zombies)
    assert zombie.plain_zombie
    assert not zombie.holds


def test_a_defunct_leader_with_a_live_thread_is_no_zombie(sick: Sick) -> None:
    leader = sick.rows[sick.leader]
    assert leader.dead_leader
    assert not leader.plain_zombie
    assert leader.rss_mib >= 32, "what its thread still holds"


def test_a_read_that_the_device_keeps_is_d_state_with_its_wchan(sick: Sick) -> None:
    reader = sick.rows[sick.reader]
    assert reader.state == "D"
    assert "io" in reader.wchan or "bio" in reader.wchan, reader.wchan
    assert reader.holds == {"nvidia0"}
    assert not reader.sigkill_pending


def test_only_what_can_die_dies_and_the_survivor_is_named(sick: Sick, guest_machine: Machine) -> None:
    shell = sick.shell
    members = tuple(sick.id(pid) for pid in (sick.reader, sick.leader, sick.plain))
    assert act(shell, Signal("sick", members, "KILL")).ok, "a signal that is sent is sent, also to D"
    waited = act(shell, AwaitGone("sick", members, 4.0))
    assert not waited.ok
    assert waited.seconds >= 4.0, "its whole deadline"
    assert waited.clear
    assert waited.detail == "1 of 3 still run"
    (word,) = waited.log
    assert word.startswith(f"{sick.id(sick.reader)} python3"), word
    assert "state D" in word, word
    assert "stack" in word and "bio" in word, word

    rows = processes(inside.look(shell))
    assert sick.leader not in rows and sick.plain not in rows
    assert (rows[sick.reader].state, rows[sick.reader].sigkill_pending) == ("D", True)
    assert rows[sick.reader].holds == {"nvidia0"}, "the device node stays open until the kernel lets go"

    guest_machine.release_read()
    gone = act(shell, AwaitGone("sick", members, 30.0))
    assert gone.ok, gone
    assert sick.reader not in processes(inside.look(shell))


def test_a_look_does_not_wait_for_what_hangs(sick: Sick) -> None:
    assert not sick.seen.gaps, sick.seen.gaps
