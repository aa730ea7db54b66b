"""The simulated machine as an LXC container: boot id and GPUs are those of its node, and each start has an init."""

from __future__ import annotations

from dataclasses import replace

from recover.edge.simulated.fault import Fault
from recover.edge.simulated.machine import SimulatedMachine
from recover.edge.simulated.state import HOST_BOOT, MAC, TOTAL_MIB, SimulatedClock
from recover.model.act import (
    Action,
    AwaitBoot,
    AwaitGone,
    OnHost,
    Outcome,
    ResetVm,
    ShutdownVm,
    Signal,
    StartVm,
    StopVm,
)
from recover.model.contact import Failure
from recover.model.gpu import Condition, Driver, Gpu
from recover.model.guest import Guest, GuestIdentity, Mute
from recover.model.host import CtProcess, Holder, Host, HostGpu
from recover.model.hypervisor import AgentState, GuestKind, Hypervisor, Neighbour, Task, VmConfig
from recover.model.process import ProcessId
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import Scope

_SHIFT = 100_000  # a process's number on the node, above its number inside
_BOOT_S = 5.0


class SimulatedContainer(SimulatedMachine):
    def __init__(self, fault: Fault, clock: SimulatedClock, gpus: int = 8, baseline: bool = True) -> None:
        super().__init__(fault, clock, gpus, baseline)
        self.lost = fault.container_lost
        self.stopping = False

    @property
    def boot_id(self) -> str:
        return HOST_BOOT

    @property
    def init_start(self) -> int:
        return 5000 + self.vm.boot

    @property
    def cured(self) -> bool:
        return super().cured and not self.lost

    def look(self) -> Snapshot:
        seen = super().look()
        return replace(seen, target=replace(seen.target, kind=GuestKind.CONTAINER))

    def _guest(self) -> Guest | Mute:
        if self.vm.status == "running" and self.vm.boot > 1 and self.clock.now() - self.vm.booted_at < _BOOT_S:
            return Mute(Failure.REFUSED, "connection refused: the container starts")
        at, self.vm.booted_at = self.vm.booted_at, self.clock.now() - 1e6  # its uptime is its node's
        guest = super()._guest()
        self.vm.booted_at = at
        return guest

    def _identity(self, boot_id: str) -> GuestIdentity:
        return GuestIdentity("node-174", boot_id, Unknown(Why.ABSENT, "a container's DMI is its host's"),
                             frozenset({MAC}), "6.8.0", init_start=self.init_start, container=True)  # fmt: skip

    def _driver(self) -> Driver:
        if self.lost:
            return Driver(Condition.FAILS, "Failed to initialize NVML: Unknown Error", nvml_code=999)
        return super()._driver()

    def _gpu_reading(self) -> Known[tuple[Gpu, ...]] | Unknown:
        return Unknown(Why.ABSENT, "NVML: Unknown Error") if self.lost else super()._gpu_reading()

    def _hypervisor(self) -> Hypervisor:
        config = VmConfig("node-174", TOTAL_MIB, "", frozenset({MAC}), nics=1, storages=("local-zfs",))
        near = Neighbour(201, self.fault.neighbour, GuestKind.CONTAINER, "running", ("/dev/nvidia0",))
        return replace(
            super()._hypervisor(),
            kind=GuestKind.CONTAINER,
            config=Known(config),
            qmpstatus=Unknown(Why.ABSENT, "no qmpstatus"),
            agent=Known(AgentState.OFF),
            neighbours=Known((near,) if self.fault.neighbour else ()),
        )

    def _host(self) -> Host:
        gpus = tuple(HostGpu(self._bus(i)[4:], f"GPU-{i:08x}-0000-4000-8000-000000000174", i) for i in range(self.gpus))
        ranks = [r for r in self.ranks if r.live_threads]
        return Host(
            "pve1", "pve1", HOST_BOOT, "6.8.12-4-pve", 5e6,
            gpus=gpus,
            holders=tuple(Holder(r.pid + _SHIFT, r.start, "sglang::schedul", f"/dev/nvidia{r.gpu}", "ct 174")
                          for r in ranks if r.gpu is not None),
            container=tuple(CtProcess(r.pid + _SHIFT, r.start, r.pid, "python3", r.state) for r in self.ranks),
            init_start=self.init_start,
        )  # fmt: skip

    def _perform(self, action: Action) -> Outcome:
        if isinstance(action, OnHost) and isinstance(action.do, Signal | AwaitGone):
            inside = tuple(ProcessId(m.boot_id, m.pid - _SHIFT, m.start) for m in action.do.members)
            return super()._perform(replace(action.do, members=inside))
        return super()._perform(action)

    def _await_boot(self, action: AwaitBoot) -> Outcome:
        end = self.clock.now() + action.deadline_s
        while self.clock.now() < end:
            if isinstance(self._guest(), Guest) and self.init_start != action.not_init_start:
                return Outcome(True, f"init {self.init_start}", False)
            self.clock.sleep(5.0)
        return Outcome(False, "no new init seen", False)

    def _power(self, action: ShutdownVm | StopVm | StartVm | ResetVm) -> Outcome:
        if self.fault.stop_hangs and not isinstance(action, StartVm):
            if isinstance(action, ShutdownVm):
                self.clock.sleep(action.deadline_s)
                return Outcome(False, "container did not stop", clear=False)
            self.clock.sleep(action.deadline_s)
            at = int(self.clock.now())
            upid = f"UPID:pve1:0:0:{at:08X}:vzstop:174:gpu-recover@pve!oncall:"
            self.vm.tasks.append(Task(upid, "pve1", "vzstop", 174, "gpu-recover@pve!oncall", at, True, ours=True))
            return Outcome(False, "the stop task still runs after 180 s", clear=False, busy=upid)
        return super()._power(action)

    def _start(self) -> Outcome:
        if self.vm.status == "running":
            return Outcome(True, "already running", False)
        self.clock.sleep(5.0)
        self._clear(Scope.PROCESS)
        self.lost = False
        self._boot()
        self._task("vzstart")
        return Outcome(True, "started")
