"""No act takes longer than its worst case, whatever the API or the agent does with the time that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Any, get_args

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.actuator.host import HostActuator
from recover.edge.actuator.hypervisor import HypervisorActuator
from recover.edge.actuator.starts import CheckedStarts
from recover.edge.boot import BootWatch
from recover.edge.probe import GuestProbe
from recover.edge.proxmox.client import CONNECT_SECONDS, Client, ClusterSettings
from recover.edge.proxmox.errors import ApiError, Kind
from recover.edge.proxmox.tasks import Tasks
from recover.edge.simulated import SimulatedClock
from recover.model import act as a
from recover.model.contact import Broken, Failure
from recover.model.guest import Mute
from recover.model.process import ProcessId
from recover.steps.bounds import power_limit_s, worst_case_s

TOKEN = "gpu-recover@pve!oncall"
SEEDS = 400
VM = a.VmRef("pve", 174, "", "node-174")
POWER: list[Any] = [a.StopVm(VM, 200.0, memory_mib=65536), a.ShutdownVm(VM, 60.0), a.StartVm(VM, 300),
                    a.ResetVm(VM, 60.0)]  # fmt: skip
OURS = (ProcessId("boot", 4001, 100),)
OBJECT = a.MemoryObject("shm-file", "x")
TP8 = ("python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp", "8", "--hicache-size", "300")
REST: list[Any] = [
    a.StopService("systemd", "x.service", 90.0), a.StartService("systemd", "x.service", 90.0),
    a.StartService("systemd", "x.service", 90.0, launch=TP8), a.Signal("g", OURS, "TERM"), a.AwaitGone("g", OURS, 30.0),
    a.SetPersistence("GPU-0", "0000:01:00.0", on=False), a.ResetGpu((("GPU-0", "0000:01:00.0"),), 120.0),
    a.PlaceMarker("r", "kim", "ctl", "reset-gpu", 900.0), a.ClearMarker("r"), a.SyncDisks(20.0),
    a.RebootGuest("boot", 300.0), a.RemoveLeftovers((OBJECT,)), a.WakeGpu("GPU-0", "0000:01:00.0"),
    a.EndMpsClient("g", OURS[0], OURS[0]), a.EndZombieParent("g", OURS[0], OURS), a.AskServer(("http://127.0.0.1:1/",)),
    a.SuspendAutostart("systemd", "x.service", "enabled"),
    a.RestoreAutostart("systemd", "x.service", "enabled"), a.UnloadDriver(("nvidia",), "boot"),
    a.LoadDriver(("nvidia",), "boot"), a.AwaitBoot("boot", 8, 900.0),
    a.ResetPci(VM, "pve1", ("0000:41:00.0",), "flr", "h"),
    a.RescanPci("pve1", ("0000:41:00.0",), "h"), a.RestoreResetMethod("pve1", ("0000:41:00.0",), "h"),
    a.OnHost("pve1", "h", a.AwaitGone("g", OURS, 30.0)),
    a.OnHost("pve1", "h", a.StopService("systemd", "x.service", 90.0)),
    a.OnHost("pve1", "h", a.ResetGpu((("GPU-0", "0000:01:00.0"),))),
]  # fmt: skip


class Hostile(Client):
    """An API that takes of each call's time what it likes, and says what keeps us waiting."""

    def __init__(self, clock: SimulatedClock, chance: Random) -> None:
        super().__init__(ClusterSettings(("https://pve1:8006",), TOKEN, lambda: "s"))
        self.clock, self.chance = clock, chance
        self.status = chance.choice(["running", "stopped"])
        self.ha = chance.choice(["", "started", "stopped", "request_stop"])
        self.ends = [chance.choice(END) for _ in range(3)]
        self.slow = chance.choice([0.0, 0.02, 0.9])  # of the time that a call may take
        self.lost = chance.choice([0.0, 0.03, 0.3])  # calls without an answer
        self.posts = 0

    def _takes(self, most: float, where: str) -> ApiError | None:
        lost = self.chance.random() < self.lost
        self.clock.sleep(most if lost else most * self.slow)
        return ApiError(Kind.UNCLEAR, None, "no answer", False, where) if lost else None

    def get(self, where: str, *, deadline: float | None = None, **params: Any) -> Any:
        late = self._takes(deadline or 2 * self.settings.timeout + CONNECT_SECONDS, where)
        return late or self._answer(where)

    def post(self, where: str, *, deadline: float | None = None, **params: Any) -> Any:
        self.posts += 1
        late = self._takes(deadline or self.settings.timeout + CONNECT_SECONDS, where)
        if late or self.chance.random() < 0.5:
            self.status = self.chance.choice(["running", "stopped"])
        return late or self._upid(where.rpartition("/")[2])

    def _upid(self, verb: str, user: str = TOKEN) -> str:
        return f"UPID:pve1:00000001:00000001:{int(self.clock.now()):08X}:qm{verb}:174:{user}:"

    def _answer(self, where: str) -> Any:
        if where.endswith("/log"):
            return [{"n": 1, "t": self.chance.choice(LOGS)}]
        if "/tasks/" in where:
            end = self.ends[min(self.posts, 2)]
            return {"status": "running"} if end == "" else {"status": "stopped", "exitstatus": end}
        if where.endswith("/tasks"):
            busy = self.chance.choice([0, 0, 1])
            verb = self.chance.choice(["stop", "start", "shutdown"])
            return [{"upid": self._upid(verb), "node": "pve1", "type": f"qm{verb}", "id": "174", "user": TOKEN,
                     "starttime": int(self.clock.now()), "status": "RUNNING"}] * busy  # fmt: skip
        if where.endswith("/current"):
            status = {"status": self.status, "qmpstatus": self.status, "name": "node-174", "pid": 7}
            return {**status, "ha": {"managed": 1, "state": self.ha} if self.ha else {"managed": 0}}
        if where.endswith("/resources"):
            return [{"type": "qemu", "vmid": 174, "node": "pve1", "name": "node-174", "status": self.status}]
        if where.endswith("/status"):
            return {"memory": {"free": 1 << 30, "total": 1 << 40, "used": 1 << 39}}
        return {"version": "9.1.1", "name": "node-174", "memory": 65536}


END = ["", "OK", "start failed: command 'kvm' failed: got timeout", "can't lock file 'x' - got timeout",
       "unexpected status", "WARNINGS: 1"]  # fmt: skip
LOGS = ["VM still running - terminating now with SIGKILL", "vfio-pci 0000:41:00.0: not ready 1023ms after FLR; waiting",
        "TASK OK"]  # fmt: skip


def hands(seed: int, action: Any) -> tuple[float, Any]:
    """How long it took on a clock that moves only with waiting, and how it ended."""
    clock = SimulatedClock()
    client = Hostile(clock, Random(seed))
    tasks = Tasks(client, sleep=clock.sleep, clock=clock.now)
    power = HypervisorActuator(
        client, tasks, "pve", clock=clock.now, sleep=clock.sleep, await_boot=lambda _: a.Outcome(True)
    )
    began = clock.now()
    outcome = power.perform(action)
    assert client.posts <= 2
    return clock.now() - began, outcome


def within(bound: Callable[[Any], float], action: Any, seeds: Iterable[int]) -> None:
    for seed in seeds:
        took, outcome = hands(seed, action)
        assert took <= bound(action), (seed, took, bound(action), outcome)


@pytest.mark.parametrize("action", POWER, ids=lambda action: type(action).__name__)
def test_a_power_act_ends_within_its_worst_case(action: Any) -> None:
    within(worst_case_s, action, range(SEEDS))


@pytest.mark.parametrize("action", POWER, ids=lambda action: type(action).__name__)
def test_a_worst_case_that_is_too_short_is_caught(action: Any) -> None:
    """The property seen to fail: by the act's own limit alone, as if nothing had to be found out after it."""
    with pytest.raises(AssertionError):
        within(power_limit_s, action, range(SEEDS))


class Slow:
    """A shell that uses all the time that it is given, and says nothing."""

    where = "node-174"

    def __init__(self) -> None:
        self.clock = SimulatedClock()

    def run(self, argv: Any, *, stdin: bytes = b"", deadline: float, **_: Any) -> Broken:
        self.clock.sleep(deadline)
        return Broken(Failure.TIMEOUT, "no word", started=True)


@pytest.mark.parametrize("action", REST, ids=lambda action: type(action).__name__)
def test_every_other_act_ends_within_its_worst_case(action: Any) -> None:
    shell: Any = Slow()
    guest = CheckedStarts(GuestActuator(GuestProbe(shell)), lambda: shell, lambda: 449 << 30)
    boot = BootWatch(lambda s: shell.run([], deadline=s) and Mute(Failure.TIMEOUT, "no word"), lambda: None,
                     clock=shell.clock.now, sleep=shell.clock.sleep)  # fmt: skip
    host = HostActuator(lambda node: shell)
    began = shell.clock.now()
    hand = boot if isinstance(action, a.AwaitBoot) else host.perform if hasattr(action, "node") else guest.perform
    outcome = hand(action)
    took = shell.clock.now() - began
    assert not outcome.ok and 0 < took <= worst_case_s(action), (took, outcome)


def test_no_kind_of_act_is_left_out() -> None:
    assert {type(x) for x in POWER + REST} == set(get_args(a.Action))
    assert worst_case_s(replace(POWER[0], deadline_s=1.0)) == worst_case_s(a.StopVm(VM)), "PVE takes its time anyway"
