"""What a simulated machine is and what becomes of it by itself: ranks that end, memory that falls, units that start."""

from __future__ import annotations

from dataclasses import dataclass, field

from recover.edge.simulated.fault import Fault
from recover.model.act import (
    Action,
)
from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.guest import (
    Marker,
)
from recover.model.hypervisor import (
    Task,
)
from recover.model.verdict import Scope

GIB = 1024
UUID = "5f1c1f3e-0000-4000-8000-000000000174"
MAC = "bc:24:11:00:01:74"
BOOT_S = 40.0
TOTAL_MIB = 449 * GIB
BASE_USED_MIB = 4 * GIB
VRAM_MIB = 97871
HELD_MIB = 80123
RANKS = 8
HOST_BOOT = "host-boot-1"
GAVE_UP = "vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up"


class SimulatedClock:
    """Time that moves only when somebody sleeps or an act takes it."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.at = start

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += max(0.0, seconds)


@dataclass(slots=True)
class Rank:
    pid: int
    start: int
    title: str
    ppid: int
    gpu: int | None
    state: str = "S"
    live_threads: int = 1
    dies_at: float | None = None


@dataclass(slots=True)
class Vm:
    status: str = "running"
    boot: int = 1
    booted_at: float = 0.0
    qemu_at: float = 0.0  # a reboot from inside keeps QEMU, and so its uptime
    started_by: str = "root@pam"
    tasks: list[Task] = field(default_factory=list)


class State:
    """One fault in time. `acts` is what was really done, in order."""

    def __init__(self, fault: Fault, clock: SimulatedClock, gpus: int = RANKS, baseline: bool = True) -> None:
        self.fault = fault
        self.clock = clock
        self.gpus = gpus
        self.with_baseline = baseline
        self.acts: list[Action] = []
        self.persistence = [True] * gpus
        self.service = "active" if fault.workers not in ("none",) and not fault.kept_dead else "inactive"
        self.marker: Marker | None = None
        self.vm = Vm(status=fault.vm_status, booted_at=clock.now() - 86400.0, qemu_at=clock.now() - 86400.0)
        self.vram = fault.vram
        self.ram = fault.ram
        self.sick_gpu = fault.gpu_condition
        self.mute = fault.mute
        self.release: list[tuple[float, int]] = []  # (until, MiB per GPU): falls linearly
        self.stop_lies, self.start_fails, self.stop_unclear = fault.stop_lies, fault.start_fails, fault.stop_unclear
        self.next_pid = 4000
        self.ranks: list[Rank] = []
        self.generation = 0
        self.how = fault.workers
        self.tokens = 1000
        if fault.workers != "none":
            self._launch(fault.workers)
        if fault.workers == "none" and fault.release_s:
            self.release.append((clock.now() + fault.release_s, HELD_MIB))
        self.script = fault.kept_dead  # it runs
        self.zombies: list[Rank] = []  # that it keeps
        self.fabric = "active" if fault.fabric else ""
        self.resets_to_fail = fault.reset_fails
        self.gpus_failed = self.fabric_on_failed = False
        self.touched_healthy = False
        self.shutdown_hung = False
        self.leftovers = fault.leftovers
        self.ghost = fault.ghost
        self.driver_fails = fault.driver_fails
        self.loaded = True
        self.unloading = False
        self.autostart = "enabled"
        self.methods = ["default"] * gpus  # the node's choice of a reset, per GPU
        self.pci_lost = self.pci_stuck = False
        self.pci_off = bool(fault.pci_off)

    def _launch(self, how: str) -> None:
        self.generation += 1
        self.how = how
        start = 100000 + self.generation * 1000
        main = self._pid()
        orphaned = how in ("orphaned", "dead-leader")
        if not orphaned:
            title = f"python3 -m sglang.launch_server --model-path /models/m --tp {self.gpus} --port 30000"
            self.ranks.append(Rank(main, start, title, 1, None))
        for i in range(self.gpus):
            rank = Rank(self._pid(), start + 1 + i, f"sglang::scheduler_TP{i}", 1 if orphaned else main, i)
            if how == "dead" and i == 3:
                rank.state, rank.live_threads = "Z", 0
            if how == "dead-leader" and i == 0:
                rank.state, rank.live_threads = "Z", 1
            self.ranks.append(rank)

    def _pid(self) -> int:
        self.next_pid += 1
        return self.next_pid

    def _tick(self) -> None:
        now = self.clock.now()
        for rank in [r for r in self.ranks if r.dies_at is not None and r.dies_at <= now]:
            self.ranks.remove(rank)
            if rank.gpu is None and self.script:
                self.zombies.append(rank)
            if rank.gpu is not None and self.fault.release_s and not (rank.state == "Z" and rank.live_threads == 0):
                self.release.append((now + self.fault.release_s, HELD_MIB if rank.gpu == 0 else 0))
        if not any(r.gpu is None for r in self.ranks) and self.how not in ("orphaned", "dead-leader"):
            self.ranks = [r for r in self.ranks if r.live_threads]  # init reaps what its main had not
        self.release = [(until, mib) for until, mib in self.release if until > now]
        if not self.ranks and self.service == "active" and self.fault.supervised and self.vm.status == "running":
            self._launch("dead" if self.fault.comes_back_sick else "healthy")
        if not self.ranks and self.fault.respawns and self.vm.status == "running" and self.vm.boot == 1:
            self._launch(self.fault.workers)

    def _workers_now(self) -> str:
        """What runs now, or ran last: a server that was started again need not be like the one that failed."""
        return self.how

    @property
    def cured(self) -> bool:
        """Whether the fault is really gone: the machine's own word, not the tool's."""
        self._tick()
        sick = any(r.state == "Z" for r in self.ranks) or (
            self.ranks and self._workers_now() not in ("healthy", "loading")
        )
        bad = self.vram or self.ram or self.sick_gpu is not Condition.ANSWERS or self.fault.remap_failed
        # A ghost is load with nothing on the GPU: under a server that works there is none to be cured.
        ghost = self.ghost and not any(r.gpu is not None and r.live_threads for r in self.ranks)
        bad = bad or self.leftovers or ghost or self.driver_fails or not self.loaded or self.shutdown_hung
        return not (sick or bad or self.release or self.vm.status != "running")

    def _clear(self, scope: Scope) -> None:
        def gone(cure: Scope | None) -> bool:
            return cure is not None and cure <= scope

        if gone(self.fault.vram_cure):
            self.vram = 0
        if gone(self.fault.ram_cure):
            self.ram = 0
        if gone(self.fault.gpu_cure):
            self.sick_gpu = Condition.ANSWERS
        if gone(self.fault.ghost_cure):
            self.ghost = False
        if gone(self.fault.driver_cure):
            self.driver_fails = False
        if scope >= Scope.DRIVER:
            self.gpus_failed = False
        if scope >= Scope.GUEST:
            self.leftovers = 0
            self.mute = None if self.mute is Failure.BANNER_SILENCE else self.mute

    def _power_cut(self) -> None:
        self.ranks.clear()
        self.zombies.clear()
        self.script = False
        self.release.clear()
        self.marker = None

    def _boot(self) -> None:
        self.vm.boot += 1
        self.vm.status = "running"
        self.vm.booted_at = self.clock.now()
        self.persistence = [True] * self.gpus
        self.loaded, self.unloading = True, False
        self.fabric = "active" if self.fault.fabric else ""
        self.gpus_failed = False
        if self.shutdown_hung:
            self.shutdown_hung, self.mute = False, None
        if self.fault.supervised and self.autostart == "enabled":
            self.service = "active"

    @property
    def boot_id(self) -> str:
        return f"boot-{self.vm.boot}"

    def _agent_silent(self) -> bool:
        return self.shutdown_hung or (self.fault.agent_silent and self.mute is not None)

    @staticmethod
    def _bus(i: int) -> str:
        return f"00000000:{i + 1:02x}:00.0"

    @staticmethod
    def _address(i: int) -> str:
        return f"0000:{i + 0x41:02x}:00.0"

    def _task(self, kind: str, status: str = "OK") -> None:
        at = int(self.clock.now())
        self.vm.tasks.append(
            Task(f"UPID:pve1:0:0:{at:08X}:{kind}:174:gpu-recover@pve!oncall:", "pve1", kind, 174,
                 "gpu-recover@pve!oncall", at, False, status, at, ours=True)
        )  # fmt: skip
