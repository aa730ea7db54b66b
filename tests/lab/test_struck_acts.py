"""Acts of the guest rungs on a real guest over real SSH, struck in their middle: the tool killed, the connection lost.

Each act is held at the tool that it calls, so that "in the middle" is no matter of luck. Then it is asked again and has
to end right, whatever came of those before it. Works, refused and hangs of each act alone: see tests/guest.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from recover.edge.actuator.guest import _HARMLESS, GuestActuator
from recover.edge.probe import GuestProbe
from recover.edge.shell import SshSettings, SshShell
from recover.model import act
from recover.model.process import ProcessId
from tests.lab.driver.state import gpu
from tests.lab.lab import Lab
from tests.lab.test_scenarios import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]
LONG_S = 60.0
MODULES = ("nvidia_uvm", "nvidia_modeset", "nvidia")
MONITOR = "nvidia-dcgm.service"
HOLD = """#!/bin/sh
case " $* " in {when}) echo $$ >>/run/lab/strike/{name}; while [ -e /run/lab/strike/hold ]; do sleep 0.05; done;; esac
/run/lab/real/{name} "$@"; code=$?
echo $$ >>/run/lab/strike/{name}.done; exit $code
"""
TOOLS = {"systemctl": '*" start "*|*" stop "*', "nvidia-smi": '*" --gpu-reset "*', "rmmod": "*", "ipcrm": "*"}
LEFT = "for p in $(cat /run/lab/strike/*[a-z]); do [ -e /proc/$p ] && exit; done; echo none"
AGENTS = "grep -l '[z]lib.decompress' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
MAKE = """import ctypes, os
ctypes.CDLL(None).shmget(0x77, 4096, 0o1600)
print(os.getpid())
"""


@dataclass
class Guest:
    lab: Lab
    acts: dict[str, act.Action] = field(default_factory=dict)
    open: list[SshShell] = field(default_factory=list)

    @property
    def strike(self) -> Path:
        return self.lab.folder / "world/strike"

    def shell(self) -> SshShell:
        at, data = self.lab.folder, self.lab.data()
        keys = str(at / "id_ed25519"), str(at / "known_hosts")
        return SshShell(SshSettings(data["address"], data["ssh_port"], "root", *keys, ssh_config="/nonexistent"))

    def perform(self, *names: str) -> dict[str, act.Outcome]:
        """All of them at once, each over a connection of its own."""
        found: dict[str, act.Outcome] = {}

        def one(name: str) -> None:
            shell = self.shell()
            self.open.append(shell)
            found[name] = GuestActuator(GuestProbe(shell)).perform(self.acts[name])
            shell.close()

        threads = [threading.Thread(target=one, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG_S * 2)
        return found

    def cut(self) -> None:
        """Each connection ends as by the network: what runs in the guest hears of it when it speaks."""
        for shell in self.open:
            shell.forget()

    def lines(self, name: str) -> int:
        path = self.strike / name
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    with Lab.up("driver-reload", tmp_path / "lab") as lab:
        world = lab.folder / "world"
        (world / "strike").mkdir()
        (world / "real").mkdir()
        for name, when in TOOLS.items():
            tool = world / "bin" / name
            if tool.exists() or tool.is_symlink():
                tool.rename(world / "real" / name)
            else:
                (world / "real" / name).symlink_to(f"/usr/bin/{name}")
            tool.write_text(HOLD.format(name=name, when=when))
            tool.chmod(0o755)
        yield Guest(lab)


def prepared(guest: Guest) -> dict[str, act.Action]:
    """The monitor is stopped and persistence off; a process that ignores SIGTERM; a segment of a dead owner."""
    make = (
        f"systemctl stop {MONITOR}; nvidia-smi -pm 0 >/dev/null; cat /proc/sys/kernel/random/boot_id; "
        "(trap '' TERM; exec setsid sleep 600) >/dev/null 2>&1 & echo $!; cut -d' ' -f22 /proc/$!/stat; "
        f"python3 -c '{MAKE}'; tail -1 /proc/sysvipc/shm"
    )
    said = guest.lab.ssh(make).stdout.split()
    boot, pid, start, creator, segment = said[0], int(said[1]), int(said[2]), int(said[3]), said[5]
    leaking, other = gpu(3), gpu(5)
    return {
        "start-service": act.StartService("systemd", MONITOR, LONG_S),
        "await-gone": act.AwaitGone("g", (ProcessId(boot, pid, start),), LONG_S),
        "kill": act.Signal("g", (ProcessId(boot, pid, start),), "KILL"),
        "release-leftovers": act.RemoveLeftovers((act.MemoryObject("sysv", segment, owner_pid=creator),), LONG_S),
        "wake-gpu": act.WakeGpu(other["uuid"], other["bus_id"], LONG_S),
        "reset-gpu": act.ResetGpu(((leaking["uuid"], leaking["bus_id"]),), LONG_S),
        "unload-driver": act.UnloadDriver(MODULES, boot, LONG_S),
        "load-driver": act.LoadDriver(tuple(reversed(MODULES)), boot, LONG_S),
        "stop-service": act.StopService("systemd", MONITOR, LONG_S),
        "reboot-guest": act.RebootGuest(boot, LONG_S),
    }


STRUCK = ("start-service", "await-gone", "release-leftovers", "wake-gpu", "reset-gpu", "unload-driver")


def strike(guest: Guest, names: tuple[str, ...], tools: tuple[str, ...]) -> None:
    """All of `names` at once by a tool that is killed, and once more over connections that are lost."""
    before = {tool: guest.lines(tool) for tool in tools}

    def held(times: int) -> bool:
        return all(guest.lines(tool) == before[tool] + times for tool in tools)

    (guest.strike / "hold").touch()
    killed = os.fork()
    if killed == 0:
        guest.perform(*names)
        os._exit(0)
    until("all are held", lambda: held(1))
    os.kill(killed, signal.SIGKILL)
    os.waitpid(killed, 0)

    lost: dict[str, act.Outcome] = {}
    asking = threading.Thread(target=lambda: lost.update(guest.perform(*names)))
    asking.start()
    until("all are held again, beside those of the run that was killed", lambda: held(2))
    guest.cut()
    asking.join(LONG_S)
    assert set(lost) == set(names), "each comes back when its connection is lost"
    for name, outcome in lost.items():
        harmless = isinstance(guest.acts[name], _HARMLESS)
        assert not outcome.ok and outcome.clear is harmless, (name, outcome)


def let_go(guest: Guest) -> None:
    (guest.strike / "hold").unlink()
    until("what was begun has ended", lambda: guest.lab.ssh(LEFT).stdout.split() == ["none"])


def done(guest: Guest, *names: str) -> None:
    for name, outcome in guest.perform(*names).items():
        assert outcome.ok and outcome.clear, (name, outcome)


def test_struck_in_its_middle_each_act_is_unclear_and_ends_right_when_asked_again(guest: Guest) -> None:
    guest.acts = prepared(guest)
    guest.lab.do(do="gpu", gpu=5, set={"hang": 2})
    strike(guest, STRUCK, tuple(TOOLS))
    assert guest.lines("rmmod.done") == 0, "nothing was done yet"
    guest.lab.do(do="gpu", gpu=5, set={"hang": 0})
    let_go(guest)
    for names in (("kill", "stop-service"), ("load-driver",), ("reset-gpu", "await-gone"), ("wake-gpu",),
                  ("unload-driver", "release-leftovers"), ("load-driver",), ("start-service",)):  # fmt: skip
        done(guest, *names)
    state = guest.lab.state()
    assert state["gpus"][3]["used_mib"] == 0 and state["units"][MONITOR]["state"] == "active"

    strike(guest, ("stop-service",), ("systemctl",))
    let_go(guest)
    done(guest, "stop-service")
    assert guest.lab.state()["units"][MONITOR]["state"] == "inactive"

    until("no agent is left", lambda: guest.lab.ssh(AGENTS).stdout.split() == ["0"])
    first = guest.perform("reboot-guest")["reboot-guest"]  # it ends its own connection, mostly before it can answer
    assert first.ok or not first.clear, first
    until("it is up again", lambda: guest.lab.ssh("true").returncode == 0)
    again = guest.perform("reboot-guest")["reboot-guest"]
    assert again.ok and not again.changed, again
    assert guest.lab.state()["vm"]["guest_reboots"] == 1
