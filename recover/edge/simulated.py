"""A machine that isn't there: it obeys the same ports, has one fault, and knows itself whether it is cured.

Tests and `gpu-recover rehearse` climb against it. Nothing here sleeps: time is the simulated clock's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from recover.model.act import (
    Action,
    AwaitBoot,
    AwaitGone,
    ClearMarker,
    EndMpsClient,
    LoadDriver,
    OnHost,
    Outcome,
    PlaceMarker,
    RebootGuest,
    RemoveLeftovers,
    ResetGpu,
    ResetPci,
    ResetVm,
    RestoreAutostart,
    RestoreResetMethod,
    SetPersistence,
    ShutdownVm,
    Signal,
    StartService,
    StartVm,
    StopService,
    StopVm,
    SuspendAutostart,
    SyncDisks,
    UnloadDriver,
    WakeGpu,
)
from recover.model.contact import Failure
from recover.model.gpu import NOT_ASKED, Condition, Driver, Gpu, GpuProcess, RecoveryAction
from recover.model.guest import (
    BootFacts,
    Guest,
    GuestIdentity,
    Inhibitor,
    Mark,
    Marker,
    Module,
    MpsClient,
    Mute,
    Service,
)
from recover.model.host import Bridge, Holder, Host, PciFunction
from recover.model.hypervisor import (
    AgentState,
    GuestKind,
    HostMemory,
    HostPci,
    Hypervisor,
    Task,
    VmConfig,
)
from recover.model.memory import KernelLine, Leftover, LeftoverKind, Ram
from recover.model.process import Process, ProcessId, ServerAnswer
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Baseline, GpuBaseline, Snapshot, Target
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


class SimulatedClock:
    """Time that moves only when somebody sleeps or an act takes it."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.at = start

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += max(0.0, seconds)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with the machine, as data. Scopes say what cures it; None: nothing does.

    `workers`: healthy | dead | dead-leader | hung | orphaned | loading | none. `vram`: MiB per GPU that no process
    holds. `ram`: MiB that nobody owns. `release_s`: how long memory falls after SIGKILL.
    """

    name: str
    about: str
    workers: str = "dead"
    ignores_term: bool = False
    unkillable: bool = False
    release_s: float = 0.0
    vram: int = 0
    vram_cure: Scope | None = Scope.GPU
    ram: int = 0
    ram_cure: Scope | None = Scope.VM
    gpu_condition: Condition = Condition.ANSWERS  # of GPU 0
    gpu_cure: Scope | None = Scope.VM
    mute: Failure | None = None
    agent_silent: bool = False
    supervised: bool = False  # a systemd unit starts the workers again when they die
    comes_back_sick: bool = False  # and the new ones fail the same way
    vm_status: str = "running"
    lock: str = ""
    wrong_vm: bool = False
    stop_lies: int = 0  # so many stops end OK while the VM runs on
    start_fails: int = 0  # so many starts fail
    stop_unclear: int = 0  # so many stops are done, yet the answer is lost
    denied: tuple[str, ...] = ()  # parts of the look that are denied: "gpus", "processes", "hypervisor"
    old_xid: int = 0  # an Xid from days ago in the kernel log
    remap_failed: bool = False
    reboot_hangs: bool = False  # the guest's shutdown never ends
    new_host_key: bool = False  # it comes back from a reboot with another SSH host key
    inhibitor: str = ""  # who forbids a shutdown
    leftovers: int = 0  # MiB of shared memory of a dead owner, in one file per GPU
    leftovers_open: bool = False  # somebody opens them between the look and the act
    ghost: bool = False  # every GPU says 100 % with nothing on it
    ghost_cure: Scope | None = Scope.GPU
    driver_fails: bool = False
    driver_cure: Scope | None = Scope.GUEST
    unload_stuck: bool = False  # the module's unload never comes back
    mps: bool = False  # the ranks are clients of an MPS server
    criu: bool = False  # the ranks were restored by CRIU
    respawns: bool = False  # something that nobody sees starts the same server whenever it ends
    host: bool = False  # a root shell on the node is configured
    pci_cure: str = "flr"  # the mildest reset that cures what only HOST_DEVICE cures: flr | bus | rescan
    pci_gives_up: bool = False  # the first reset on the node loses the device for good
    pci_hangs: str = ""  # this kind of reset never comes back
    pci_holder: str = ""  # another process of the node has GPU 0's group open
    container: bool = False  # the guest is an LXC container: see simulated_container
    neighbour: str = ""  # another container that runs and is given GPU 0
    stop_hangs: bool = False  # LXC's stop never ends
    container_lost: bool = False  # the container lost its devices' permissions: NVML says unknown error


FAULTS: dict[str, Fault] = {
    f.name: f
    for f in (
        Fault("healthy", "Serving; nothing is wrong.", workers="healthy"),
        Fault("idle", "Nothing runs.", workers="none"),
        Fault("loading", "A server is loading; its memory grows.", workers="loading"),
        Fault("dead-rank", "One TP rank is defunct, seven live on.", workers="dead"),
        Fault("orphaned", "All ranks lost their server and hold the GPUs.", workers="orphaned"),
        Fault("dead-leader", "A defunct leader's live thread holds 80 GiB.", workers="dead-leader"),
        Fault("sigterm-ignored", "Workers ignore SIGTERM.", workers="orphaned", ignores_term=True),
        Fault("slow-release", "Pinned memory falls for 90 s after SIGKILL.", workers="orphaned", release_s=90.0),
        Fault("killed-by-hand", "A person's kill -9 a minute ago; memory still falls.", workers="none", release_s=90.0),
        Fault("vram-held", "80 GiB per GPU held by no process; a GPU reset frees it.", workers="none", vram=HELD_MIB),
        Fault(
            "vram-held-until-power-cycle",
            "80 GiB per GPU held by no process; only a power cycle frees it.",
            workers="none",
            vram=HELD_MIB,
            vram_cure=Scope.VM,
        ),
        Fault(
            "incident",
            "Eight ranks defunct, GPU contexts locked, 318 GiB of RAM unowned until the VM restarts.",
            workers="dead",
            ram=318 * GIB,
        ),
        Fault("nvml-hang", "NVML hangs on one GPU.", workers="none", gpu_condition=Condition.HANGS),
        Fault("gpu-lost", "One GPU fell off the bus.", workers="none", gpu_condition=Condition.LOST),
        Fault("unkillable", "A worker ignores SIGKILL.", workers="orphaned", unkillable=True),
        Fault(
            "mute",
            "SSH accepts and then says nothing; the agent is silent.",
            workers="hung",
            mute=Failure.BANNER_SILENCE,
            agent_silent=True,
        ),
        Fault("route-down", "Only our route to the guest is down.", workers="healthy", mute=Failure.NO_ROUTE),
        Fault("supervised", "A unit starts the dead workers again.", workers="dead", supervised=True),
        Fault("crash-loop", "The same launch fails again.", workers="dead", supervised=True, comes_back_sick=True),
        Fault("wrong-vm", "Another guest answers than the one behind the vmid.", workers="dead", wrong_vm=True),
        Fault("vm-stopped", "A colleague stopped the VM.", workers="none", vm_status="stopped"),
        Fault("vm-locked", "A backup holds the VM.", workers="none", vram=HELD_MIB, vram_cure=Scope.VM, lock="backup"),
        Fault(
            "stop-unclear",
            "The API answers 596; the stop ran.",
            "none",
            vram=HELD_MIB,
            vram_cure=Scope.VM,
            stop_unclear=1,
        ),
        Fault("stop-lies", "Stop ends OK, the VM runs on.", "none", vram=HELD_MIB, vram_cure=Scope.VM, stop_lies=9),
        Fault("start-timeout", "The first start times out.", "none", vram=HELD_MIB, vram_cure=Scope.VM, start_fails=1),
        Fault("row-remap-failed", "A GPU's row remap failed.", workers="none", remap_failed=True),
        Fault(
            "ram-held-until-reboot",
            "318 GiB of RAM unowned until the guest reboots.",
            workers="none",
            ram=318 * GIB,
            ram_cure=Scope.GUEST,
        ),
        Fault(
            "reboot-hangs",
            "The guest's shutdown hangs in the driver.",
            workers="none",
            ram=318 * GIB,
            reboot_hangs=True,
        ),
        Fault(
            "new-host-key",
            "It comes back from its reboot with another host key.",
            workers="none",
            ram=318 * GIB,
            ram_cure=Scope.GUEST,
            new_host_key=True,
        ),
        Fault(
            "inhibitor",
            "An update inside the guest forbids a shutdown.",
            workers="none",
            ram=318 * GIB,
            ram_cure=Scope.GUEST,
            inhibitor="unattended-upgrades",
        ),
        Fault("mps-clients", "The dead server's ranks are clients of an MPS server.", workers="dead", mps=True),
        Fault("criu-restored", "The dead server was restored by CRIU.", workers="dead", criu=True),
        Fault("respawning", "Something unseen starts the same dead server whenever it ends.", "dead", respawns=True),
        Fault(
            "driver-fails",
            "The driver fails until it is loaded anew.",
            workers="none",
            driver_fails=True,
            driver_cure=Scope.DRIVER,
        ),
        Fault(
            "unload-stuck",
            "The driver fails, and its unload hangs in the kernel.",
            workers="none",
            driver_fails=True,
            driver_cure=Scope.VM,
            unload_stuck=True,
            reboot_hangs=True,
        ),
        Fault("ghost-utilisation", "All GPUs say 100 % busy with nothing on them.", workers="none", ghost=True),
        Fault("leftovers", "64 GiB of shared memory of a dead server.", workers="none", leftovers=64 * GIB),
        Fault(
            "leftovers-in-use",
            "They are opened again between the look and the act.",
            workers="none",
            leftovers=64 * GIB,
            leftovers_open=True,
        ),
        Fault(
            "needs-bus-reset",
            "80 GiB per GPU held; only a bus reset on the node frees it.",
            workers="none",
            vram=HELD_MIB,
            vram_cure=Scope.HOST_DEVICE,
            host=True,
            pci_cure="bus",
        ),
        Fault(
            "no-host-shell",
            "Only a reset on the node would free it, and no shell is configured there.",
            workers="none",
            vram=HELD_MIB,
            vram_cure=Scope.HOST_DEVICE,
        ),
        Fault(
            "reset-gives-up",
            "The reset on the node loses a GPU for good.",
            workers="none",
            vram=HELD_MIB,
            vram_cure=Scope.HOST_DEVICE,
            gpu_cure=None,
            host=True,
            pci_gives_up=True,
        ),
        Fault(
            "reset-write-hangs",
            "A write to the bus reset never comes back.",
            workers="none",
            vram=HELD_MIB,
            vram_cure=Scope.HOST_DEVICE,
            host=True,
            pci_cure="rescan",
            pci_hangs="bus",
        ),
        Fault(
            "device-held-on-node",
            "A process of the node has the GPU's group open.",
            workers="none",
            vram=HELD_MIB,
            vram_cure=Scope.HOST_DEVICE,
            host=True,
            pci_holder="python3",
        ),
        Fault(
            "container-dead-rank",
            "In a container one rank is defunct; its node's shell ends the others.",
            workers="orphaned",
            host=True,
            container=True,
        ),
        Fault(
            "container-lost-gpus",
            "A container lost its GPUs (NVML: unknown error) until it restarts.",
            workers="none",
            container=True,
            container_lost=True,
        ),
        Fault(
            "container-stop-hangs",
            "A container that lost its GPUs, and whose stop never ends.",
            workers="none",
            container=True,
            container_lost=True,
            stop_hangs=True,
        ),
        Fault(
            "container-vram-held",
            "80 GiB per GPU of a container held by no process; a reset by the node's driver frees it.",
            workers="none",
            vram=HELD_MIB,
            host=True,
            container=True,
        ),
        Fault(
            "container-neighbour",
            "The same, and another container is given GPU 0.",
            workers="none",
            vram=HELD_MIB,
            host=True,
            container=True,
            neighbour="ct-201",
        ),
        Fault("old-xid", "An Xid 79 from an earlier day; all is well now.", workers="healthy", old_xid=79),
    )
}


@dataclass(slots=True)
class _Rank:
    pid: int
    start: int
    title: str
    ppid: int
    gpu: int | None
    state: str = "S"
    live_threads: int = 1
    dies_at: float | None = None


@dataclass(slots=True)
class _Vm:
    status: str = "running"
    boot: int = 1
    booted_at: float = 0.0
    qemu_at: float = 0.0  # a reboot from inside keeps QEMU, and so its uptime
    started_by: str = "root@pam"
    tasks: list[Task] = field(default_factory=list)


class SimulatedMachine:
    """Observer and Actuator over one fault. `acts` is what was really done, in order."""

    def __init__(self, fault: Fault, clock: SimulatedClock, gpus: int = RANKS, baseline: bool = True) -> None:
        self.fault = fault
        self.clock = clock
        self.gpus = gpus
        self.with_baseline = baseline
        self.acts: list[Action] = []
        self.persistence = [True] * gpus
        self.service = "active" if fault.workers not in ("none",) else "inactive"
        self.marker: Marker | None = None
        self.vm = _Vm(status=fault.vm_status, booted_at=clock.now() - 86400.0, qemu_at=clock.now() - 86400.0)
        self.vram = fault.vram
        self.ram = fault.ram
        self.sick_gpu = fault.gpu_condition
        self.mute = fault.mute
        self.release: list[tuple[float, int]] = []  # (until, MiB per GPU): falls linearly
        self.stop_lies, self.start_fails, self.stop_unclear = fault.stop_lies, fault.start_fails, fault.stop_unclear
        self.next_pid = 4000
        self.ranks: list[_Rank] = []
        self.generation = 0
        self.how = fault.workers
        self.tokens = 1000
        if fault.workers != "none":
            self._launch(fault.workers)
        if fault.workers == "none" and fault.release_s:
            self.release.append((clock.now() + fault.release_s, HELD_MIB))
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

    # what the world does by itself

    def _launch(self, how: str) -> None:
        self.generation += 1
        self.how = how
        start = 100000 + self.generation * 1000
        main = self._pid()
        orphaned = how in ("orphaned", "dead-leader")
        if not orphaned:
            title = f"python3 -m sglang.launch_server --model-path /models/m --tp {self.gpus} --port 30000"
            self.ranks.append(_Rank(main, start, title, 1, None))
        for i in range(self.gpus):
            rank = _Rank(self._pid(), start + 1 + i, f"sglang::scheduler_TP{i}", 1 if orphaned else main, i)
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
            if rank.gpu is not None and self.fault.release_s and not (rank.state == "Z" and rank.live_threads == 0):
                self.release.append((now + self.fault.release_s, HELD_MIB if rank.gpu == 0 else 0))
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
        if scope >= Scope.GUEST:
            self.leftovers = 0
            self.mute = None if self.mute is Failure.BANNER_SILENCE else self.mute

    def _power_cut(self) -> None:
        self.ranks.clear()
        self.release.clear()
        self.marker = None

    def _boot(self) -> None:
        self.vm.boot += 1
        self.vm.status = "running"
        self.vm.booted_at = self.clock.now()
        self.persistence = [True] * self.gpus
        self.loaded, self.unloading = True, False
        if self.shutdown_hung:
            self.shutdown_hung, self.mute = False, None
        if self.fault.supervised and self.autostart == "enabled":
            self.service = "active"

    # Observer

    def acted(self, action: Action) -> None:
        """Nothing to remember: the simulated GPUs may be asked again at no cost."""

    def look(self) -> Snapshot:
        self._tick()
        self.clock.sleep(0.5)
        return Snapshot(
            target=Target(
                name="node-174", address="10.1.230.174", cluster="pve", vmid=174, services=("sglang.service",)
            ),
            at=self.clock.now(),
            wall=self.clock.now(),
            guest=self._guest(),
            hypervisor=self._hypervisor(),
            baseline=self._baseline() if self.with_baseline else None,
            host_shell=self.fault.host,
            host=Known(self._host()) if self.fault.host else NOT_ASKED,
        )

    def _guest(self) -> Guest | Mute:
        if self.vm.status != "running":
            return Mute(Failure.NO_ROUTE, "no route to host")
        if self.mute is not None:
            return Mute(self.mute, _NEW_KEY if self.mute is Failure.CHANGED_KEY else "simulated")
        if self.vm.boot > 1 and self.clock.now() - self.vm.booted_at < BOOT_S:
            return Mute(Failure.REFUSED, "connection refused: the guest boots")
        boot_id = self.boot_id
        uptime = self.clock.now() - self.vm.booted_at
        self.tokens += 50
        return Guest(
            identity=self._identity(boot_id),
            mark=Mark(boot_id, uptime),
            ram=Known(self._ram()),
            driver=Known(self._driver()),
            gpus=self._gpu_reading(),
            processes=Unknown(Why.DENIED, "simulated")
            if "processes" in self.fault.denied
            else Known(self._processes(boot_id)),
            kernel=Known(self._kernel(uptime)),
            services=Known(self._services()),
            servers=self._servers(),
            pci_gpus=Known(tuple(self._bus(i) for i in range(self.gpus))),
            marker=Known(self.marker),
            leftovers=Known(self._leftovers()),
            boot=Known(self._boot_facts()),
            modules=Known(self._modules()),
            mps=tuple(MpsClient(_MPS_PID, r.pid) for r in self.ranks if self._mps_client(r)),
        )

    def _processes(self, boot_id: str) -> tuple[Process, ...]:
        found = tuple(self._process(r, boot_id) for r in self.ranks)
        if not self.fault.mps:
            return found
        server = Process(ProcessId(boot_id, _MPS_PID, 900), 1, _MPS_PID, _MPS_PID, "S", "nvidia-cuda-mps")
        return (*found, replace(server, title="nvidia-cuda-mps-server", argv=Known(("nvidia-cuda-mps-server",))))

    def _mps_client(self, rank: _Rank) -> bool:
        return self.fault.mps and rank.gpu is not None and rank.live_threads > 0 and self.generation == 1

    def _boot_facts(self) -> BootFacts:
        who = (Inhibitor(self.fault.inhibitor, "simulated", "block"),) if self.fault.inhibitor else ()
        return BootFacts("systemd", who, state="running")

    def _driver(self) -> Driver:
        if not self.loaded:
            return Driver(Condition.FAILS, "driver not loaded", nvml_code=9)
        if self.driver_fails:
            return Driver(Condition.FAILS, "simulated: RM failed to initialise", nvml_code=999)
        return Driver(Condition.ANSWERS, version=Known("580.105.08"), library_version=Known("580.105.08"))

    def _gpu_reading(self) -> Known[tuple[Gpu, ...]] | Unknown:
        if "gpus" in self.fault.denied:
            return Unknown(Why.DENIED, "simulated")
        if self.driver_fails or not self.loaded:
            return Unknown(Why.ABSENT, "the driver fails")
        return Known(self._gpus())

    def _modules(self) -> tuple[Module, ...]:
        if not self.loaded:
            return ()
        state = "Unloading" if self.unloading else "Live"
        return (
            Module("nvidia_uvm", 0),
            Module("nvidia_drm", 0),
            Module("nvidia_modeset", 1, ("nvidia_drm",)),
            Module("nvidia", 2, ("nvidia_uvm", "nvidia_modeset"), state),
        )

    def _leftovers(self) -> tuple[Leftover, ...]:
        if not self.leftovers:
            return ()
        each = self.leftovers // self.gpus
        return tuple(
            Leftover(LeftoverKind.SHM_FILE, f"sgl_shm_mm_{3000 + i}_ab12", each, 3000 + i, False, False, 500 + i,
                     folder="/dev/shm")
            for i in range(self.gpus)
        )  # fmt: skip

    @property
    def boot_id(self) -> str:
        return f"boot-{self.vm.boot}"

    def _identity(self, boot_id: str) -> GuestIdentity:
        if self.fault.wrong_vm:
            return GuestIdentity("other", boot_id, Known("00000000-dead-4000-8000-000000000000"), frozenset(), "6.8.0")
        return GuestIdentity("node-174", boot_id, Known(UUID), frozenset({MAC}), kernel="6.8.0")

    def _kernel(self, uptime: float) -> tuple[KernelLine, ...]:
        if not self.fault.old_xid:
            return ()
        text = f"NVRM: Xid (PCI:0000:01:00): {self.fault.old_xid}, pid=1, name=x, old news"
        return (KernelLine(int(max(0.0, uptime - 80000.0) * 1e6), text),)

    @staticmethod
    def _bus(i: int) -> str:
        return f"00000000:{i + 1:02x}:00.0"

    def _ram(self) -> Ram:
        workers = sum(GIB for r in self.ranks if r.live_threads)
        used = BASE_USED_MIB + self.ram + workers + self.leftovers
        free = TOTAL_MIB - used
        return Ram(
            total_mib=TOTAL_MIB,
            available_mib=free,
            free_mib=free,
            anon_mib=workers + BASE_USED_MIB,
            process_anon_mib=workers + BASE_USED_MIB,
            cached_mib=self.leftovers,
            shmem_mib=self.leftovers,
        )

    def _falling(self) -> int:
        now, span = self.clock.now(), self.fault.release_s or 1.0
        return sum(int(mib * (until - now) / span) for until, mib in self.release if until > now)

    def _gpus(self) -> tuple[Gpu, ...]:
        return tuple(self._gpu(i) for i in range(self.gpus))

    def _gpu(self, i: int) -> Gpu:
        uuid, bus = f"GPU-{i:08x}-0000-4000-8000-000000000174", self._bus(i)
        sick = self.sick_gpu if i == 0 else Condition.ANSWERS
        if sick is not Condition.ANSWERS:
            return Gpu(i, bus, Known(uuid), sick, "simulated", minor=Known(i), pci_ids="10de:2bb1")
        holders = [r for r in self.ranks if r.gpu == i and r.live_threads]
        grown = HELD_MIB if self._workers_now() != "loading" else min(HELD_MIB, int(self.clock.now() * 100) % HELD_MIB)
        used = sum(grown for _ in holders) + self.vram + self._falling()
        return Gpu(
            i,
            bus,
            Known(uuid),
            Condition.ANSWERS,
            minor=Known(i),
            name=Known("NVIDIA RTX PRO 6000 Blackwell Server Edition"),
            total_mib=Known(VRAM_MIB),
            reserved_mib=Known(600),
            used_mib=Known(used),
            processes=Known(tuple(GpuProcess(r.pid, grown, "compute") for r in holders)),
            utilisation_pct=Known(100 if self.ghost and not holders else 0),
            recovery_action=Known(RecoveryAction.NONE),
            persistence=Known(self.persistence[i]),
            link_width=Known(16),
            link_width_max=Known(16),
            mig=Known(False),
            remap_failed=Known(self.fault.remap_failed and i == 0),
            remap_pending=Known(False),
            virtualisation=Known("passthrough"),
            pci_ids="10de:2330",
        )

    def _process(self, rank: _Rank, boot_id: str) -> Process:
        holds = (
            frozenset({f"nvidia{rank.gpu}", "nvidiactl"})
            if rank.gpu is not None and rank.live_threads
            else frozenset[str]()
        )
        main = rank.gpu is None
        defunct = rank.state == "Z"
        cgroup = (
            "/system.slice/sglang.service"
            if self.fault.supervised or self.fault.workers in ("healthy", "dead")
            else "/"
        )
        return Process(
            id=ProcessId(boot_id, rank.pid, rank.start),
            ppid=rank.ppid,
            pgid=self.ranks[0].pid,
            sid=self.ranks[0].pid,
            state=rank.state,
            comm="python3" if main else "sglang::schedul",
            title="" if defunct else rank.title,
            argv=Unknown(Why.ABSENT, "defunct") if defunct else Known(tuple(rank.title.split())),
            threads=max(1, rank.live_threads + defunct),
            live_threads=rank.live_threads,
            rss_mib=GIB if rank.live_threads else 0,
            cgroup=cgroup,
            cpu_ticks=int(self.clock.now()) if self._workers_now() in ("healthy", "loading") else 1,
            holds=holds,
            listens=frozenset({30000}) if main else frozenset(),
            criu_restored=self.fault.criu,
        )

    def _services(self) -> tuple[Service, ...]:
        main = next((r.pid for r in self.ranks if r.gpu is None), 0)
        return (
            Service(
                "systemd",
                "sglang.service",
                self.service,
                main,
                "always" if self.fault.supervised else "no",
                self.autostart,
            ),
        )

    def _servers(self) -> tuple[ServerAnswer, ...]:
        url = "http://127.0.0.1:30000/health"
        if not any(r.gpu is None for r in self.ranks):
            return (ServerAnswer(url, "refused"),)
        match self._workers_now():
            case "healthy":
                return (ServerAnswer(url, "answered", 200, 1.0, tokens=self.tokens, running=2, waiting=0),)
            case "loading":
                return (ServerAnswer(url, "answered", 503, 0.1),)
            case _:
                return (ServerAnswer(url, "timeout", None, 25.0, tokens=1000, running=3, waiting=1),)

    def _hypervisor(self) -> Hypervisor:
        host_used = 64 * GIB + (TOTAL_MIB if self.vm.status == "running" else 0)
        total = 512 * GIB + 64 * GIB
        pci = tuple(
            HostPci(f"hostpci{i}", f"0000:{i + 0x41:02x}:00", (f"0000:{i + 0x41:02x}:00.0",), device_ids=("10de:2330",),
                    iommu_groups=(i + 20,), present=Known(True))
            for i in range(self.gpus)
        )  # fmt: skip
        config = VmConfig(
            "node-174", TOTAL_MIB, UUID, frozenset({MAC}), pci, agent=True, nics=1, storages=("local-zfs",)
        )
        return Hypervisor(
            cluster="pve",
            node="pve1",
            vmid=174,
            kind=GuestKind.VM,
            status=self.vm.status,
            qmpstatus=Known(self.vm.status),
            config=Known(config),
            pending=Known(()),
            lock=self.fault.lock,
            ha_state=Known(""),
            quorate=Known(True),
            tasks=Known(tuple(reversed(self.vm.tasks))),
            agent=Known(AgentState.SILENT if self._agent_silent() else AgentState.ANSWERS),
            host_memory=Known(HostMemory(total, host_used, total - host_used)),
            storages=Known((("local-zfs", True),)),
            neighbours=Known(()),
            uptime_s=int(self.clock.now() - self.vm.qemu_at),
            pid=1000 + self.vm.boot,
            name="node-174",
            version="9.1",
            backup_due=Known(False),
            host_uptime_s=Known(int(self.clock.now()) - 1_790_000_000),
            clock_s=int(self.clock.now()),
        )

    @staticmethod
    def _address(i: int) -> str:
        return f"0000:{i + 0x41:02x}:00.0"

    def _host(self) -> Host:
        """The node: each GPU alone below its own port and in its own group."""
        functions = tuple(
            PciFunction(self._address(i), "10de:2330", "030200", "vfio-pci", i + 20, f"0000:40:{i + 1:02x}.1",
                        ("flr", "bus"), True, True, "D0", "active", link_width=16, link_width_max=16,
                        answers=Known(not (self.pci_lost and i == 0)),
                        gave_up=_GAVE_UP if self.pci_lost and i == 0 else "")
            for i in range(self.gpus)
        )  # fmt: skip
        bridges = tuple(Bridge(f.bridge, (f.address,), resets=True) for f in functions)
        running = self.vm.status == "running"
        mine = tuple(Holder(7000, 1, "kvm", f"/dev/vfio/{i + 20}", "vm 174") for i in range(self.gpus) if running)
        other = (Holder(7100, 1, self.fault.pci_holder, "/dev/vfio/20"),) if self.fault.pci_holder else ()
        return Host("pve1", "pve1", HOST_BOOT, "6.8.12-4-pve", 5e6, True, functions, bridges,
                    tuple((i + 20, (self._address(i),)) for i in range(self.gpus)), (*mine, *other),
                    qemu=(7000,) if running else ())  # fmt: skip

    def _agent_silent(self) -> bool:
        return self.shutdown_hung or (self.fault.agent_silent and self.mute is not None)

    def _baseline(self) -> Baseline:
        return Baseline(
            gpus=tuple(
                GpuBaseline(f"GPU-{i:08x}-0000-4000-8000-000000000174", self._bus(i), 0, 16) for i in range(self.gpus)
            ),
            ram_total_mib=TOTAL_MIB,
            ram_available_mib=TOTAL_MIB - BASE_USED_MIB,
            shmem_mib=0,
            hugepages_free=0,
            driver="580.105.08",
            kernel="6.8.0",
            dmi_uuid=UUID,
            macs=frozenset({MAC}),
            hostname="node-174",
            agent_answered=True,
        )

    # Actuator

    def perform(self, action: Action) -> Outcome:
        self._tick()
        self.acts.append(action)
        if isinstance(action, _GUEST_ACTIONS) and isinstance(self._guest(), Mute):
            return Outcome(False, "the guest cannot be reached", changed=False)
        before = self.clock.now()
        outcome = self._perform(action)
        return replace(outcome, seconds=self.clock.now() - before)

    def _perform(self, action: Action) -> Outcome:
        match action:
            case Signal():
                return self._signal(action)
            case AwaitGone():
                return self._await_gone(action)
            case StopService() | StartService():
                return self._service(action)
            case SetPersistence():
                i = next(i for i in range(self.gpus) if self._bus(i) == action.bus_id)
                changed = self.persistence[i] != action.on
                self.persistence[i] = action.on
                return Outcome(True, f"persistence {'on' if action.on else 'off'}", changed)
            case ResetGpu():
                return self._reset_gpu(action)
            case PlaceMarker():
                self.marker = Marker(action.run, action.who, action.host, action.rung, 1e12)
                return Outcome(True, "")
            case ClearMarker():
                self.marker = None
                return Outcome(True, "")
            case SyncDisks():
                return Outcome(True, "synced")
            case AwaitBoot():
                return self._await_boot(action)
            case ShutdownVm() | StopVm() | StartVm() | ResetVm():
                return self._power(action)
            case RebootGuest():
                return self._reboot(action)
            case RemoveLeftovers():
                return self._remove(action)
            case WakeGpu():
                self.clock.sleep(1.0)
                if self.fault.ghost_cure is Scope.GPU:
                    self.ghost = False
                return Outcome(True, "a context was opened and closed")
            case EndMpsClient():
                return self._end_client(action)
            case SuspendAutostart():
                changed, self.autostart = self.autostart != "disabled", "disabled"
                return Outcome(True, "disabled", changed)
            case RestoreAutostart():
                changed, self.autostart = self.autostart != action.was, action.was
                return Outcome(True, action.was, changed)
            case UnloadDriver() | LoadDriver():
                return self._reload(action)
            case ResetPci():
                return self._reset_pci(action)
            case RestoreResetMethod():
                changed = any(method != "default" for method in self.methods)
                self.methods = ["default"] * self.gpus
                return Outcome(True, "reset methods are the kernel's own again", changed)
            case OnHost():
                return self._perform(action.do)

    def _reboot(self, action: RebootGuest) -> Outcome:
        if action.boot_id != self.boot_id:
            return Outcome(True, "it has booted anew already", False)
        if self._workers_now() in ("healthy", "loading") and self.ranks:
            self.touched_healthy = True
        if self.fault.reboot_hangs:
            self.shutdown_hung, self.mute = True, Failure.REFUSED
            return Outcome(True, "systemd was asked to reboot")
        self._power_cut()
        self._clear(Scope.GUEST)
        self._boot()
        if self.fault.new_host_key:
            self.mute = Failure.CHANGED_KEY
        return Outcome(True, "systemd was asked to reboot")

    def _remove(self, action: RemoveLeftovers) -> Outcome:
        if self.fault.leftovers_open or not self.leftovers:
            return Outcome(not self.leftovers, "nothing removed: all are in use", False)
        freed, self.leftovers = self.leftovers, 0
        return Outcome(True, f"{len(action.objects)} removed, {freed} MiB freed")

    def _end_client(self, action: EndMpsClient) -> Outcome:
        hit = [r for r in self.ranks if r.pid == action.client.pid and r.start == action.client.start]
        for rank in hit:
            if not self.fault.unkillable:
                rank.dies_at = self.clock.now() + 1.0
        return Outcome(True, f"MPS client {action.client.pid} ended", bool(hit))

    def _reload(self, action: UnloadDriver | LoadDriver) -> Outcome:
        if isinstance(action, LoadDriver):
            if self.unloading:
                return Outcome(False, "an unload is stuck", False)
            changed, self.loaded = not self.loaded, True
            return Outcome(True, "the driver is loaded", changed)
        if any(r.live_threads and r.gpu is not None for r in self.ranks):
            return Outcome(False, "nvidia is in use", False)
        if self.fault.unload_stuck:
            self.clock.sleep(action.deadline_s)
            self.unloading = True
            return Outcome(False, "the unload did not come back: nvidia is Unloading", clear=False)
        self._clear(Scope.DRIVER)
        self.loaded = False
        return Outcome(True, "unloaded")

    def _reset_pci(self, action: ResetPci) -> Outcome:
        if self.vm.status == "running" or self.fault.pci_holder:
            return Outcome(False, "/dev/vfio/20 is held", False)
        if self.pci_stuck:
            return Outcome(False, "an earlier write still hangs in the kernel", False)
        if self.pci_lost:
            return Outcome(False, f"{self._address(0)} is lost to this node: {_GAVE_UP}", False)
        if action.how != "rescan":
            self.methods = [action.how] * self.gpus
        if self.fault.pci_gives_up:
            self.clock.sleep(66.0)
            self.pci_lost, self.sick_gpu = True, Condition.LOST
            return Outcome(False, f"the kernel: {_GAVE_UP}")
        if self.fault.pci_hangs == action.how:
            self.clock.sleep(75.0)
            self.pci_stuck = True
            return Outcome(False, "the write did not come back within 75 s", clear=False)
        self.clock.sleep(2.0 * len(action.addresses))
        self.methods = ["default"] * self.gpus
        if _HOWS.index(action.how) >= _HOWS.index(self.fault.pci_cure):
            self._clear(Scope.HOST_DEVICE)
        return Outcome(True, f"{action.how} of {len(action.addresses)}")

    def _signal(self, action: Signal) -> Outcome:
        hit = [r for r in self.ranks if any(m.pid == r.pid and m.start == r.start for m in action.members)]
        if self._workers_now() in ("healthy", "loading") and hit:
            self.touched_healthy = True
        deadly = action.signal == "KILL" or not self.fault.ignores_term
        for rank in hit:
            if deadly and not (self.fault.unkillable and rank.gpu == 0):
                rank.dies_at = self.clock.now() + (0.2 if action.signal == "KILL" else 2.0)
        return Outcome(True, f"{action.signal} to {len(hit)}", bool(hit))

    def _await_gone(self, action: AwaitGone) -> Outcome:
        end = self.clock.now() + action.deadline_s
        while self.clock.now() < end:
            self._tick()
            left = [r for r in self.ranks if any(m.pid == r.pid and m.start == r.start for m in action.members)]
            if not left:
                return Outcome(True, "gone", False)
            self.clock.sleep(1.0)
        return Outcome(False, f"{len(left)} still there", False)

    def _service(self, action: StopService | StartService) -> Outcome:
        if isinstance(action, StopService):
            changed = self.service == "active"
            self.service = "inactive"
            for rank in self.ranks:
                rank.dies_at = self.clock.now()
            self._tick()
            return Outcome(True, f"{action.name} is inactive", changed)
        changed = self.service != "active"
        self.service = "active"
        if not self.ranks:
            self._launch("dead" if self.fault.comes_back_sick else "healthy")
        return Outcome(True, f"{action.name} is active", changed)

    def _reset_gpu(self, action: ResetGpu) -> Outcome:
        self.clock.sleep(5.0)
        buses = {bus for _, bus in action.gpus}
        if any(r.gpu is not None and r.live_threads and self._bus(r.gpu) in buses for r in self.ranks):
            return Outcome(False, "In use by another client", False)
        if any(self.persistence[i] for i in range(self.gpus) if self._bus(i) in buses):
            return Outcome(False, "In use by another client", False)
        if self._bus(0) in buses and self.sick_gpu in (Condition.LOST, Condition.HANGS):
            return Outcome(False, "Unable to determine the device handle", False)
        self._clear(Scope.GPU)
        return Outcome(True, "reset")

    def _await_boot(self, action: AwaitBoot) -> Outcome:
        end = self.clock.now() + action.deadline_s
        while self.clock.now() < end:
            guest = self._guest()
            if isinstance(guest, Mute) and guest.failure is Failure.CHANGED_KEY:
                return Outcome(False, guest.detail, False)
            if isinstance(guest, Guest) and guest.mark.boot_id != action.not_boot_id:
                return Outcome(True, f"boot id {guest.mark.boot_id}", False)
            self.clock.sleep(5.0)
        return Outcome(False, "no new boot seen", False)

    def _task(self, kind: str, status: str = "OK") -> None:
        at = int(self.clock.now())
        self.vm.tasks.append(
            Task(f"UPID:pve1:0:0:{at:08X}:{kind}:174:gpu-recover@pve!oncall:", "pve1", kind, 174,
                 "gpu-recover@pve!oncall", at, False, status, at, ours=True)
        )  # fmt: skip

    def _power(self, action: ShutdownVm | StopVm | StartVm | ResetVm) -> Outcome:
        if self.fault.lock:
            return Outcome(False, f"VM is locked ({self.fault.lock})", False)
        if self._workers_now() in ("healthy", "loading") and self.ranks and not isinstance(action, StartVm):
            self.touched_healthy = True
        if isinstance(action, StartVm):
            return self._start()
        if isinstance(action, ResetVm):
            self._power_cut()
            self._clear(Scope.GUEST)
            self._boot()
            self._task("qmreset")
            return Outcome(True, "reset")
        if self.vm.status == "stopped":
            return Outcome(True, "already stopped", False)
        if isinstance(action, ShutdownVm) and self.mute is not None:
            self.clock.sleep(action.deadline_s)
            return Outcome(False, "the guest does not shut down", False)
        self.clock.sleep(20.0)
        self._task("qmshutdown" if isinstance(action, ShutdownVm) else "qmstop")
        if self.stop_lies:
            self.stop_lies -= 1
            return Outcome(False, "the task ended OK and the VM still runs", False)
        self._power_cut()
        self.vm.status = "stopped"
        if self.stop_unclear:
            self.stop_unclear -= 1
            return Outcome(False, "596 and no task seen", clear=False)
        return Outcome(True, "stopped")

    def _start(self) -> Outcome:
        if self.vm.status == "running":
            return Outcome(True, "already running", False)
        self.clock.sleep(30.0)
        if self.start_fails:
            self.start_fails -= 1
            self._task("qmstart", "start failed: got timeout")
            return Outcome(False, "start failed: got timeout", False)
        self._clear(Scope.VM)
        self._boot()
        self.vm.qemu_at = self.clock.now()
        self._task("qmstart")
        return Outcome(True, "started")


_NEW_KEY = (
    "node-174: the host key is now ssh-ed25519 SHA256:new, but known_hosts:1 says ssh-ed25519 SHA256:old. Either the "
    "machine got new keys, or another machine answers"
)
_MPS_PID = 3900
HOST_BOOT = "host-boot-1"
_HOWS = ("flr", "bus", "rescan")
_GAVE_UP = "vfio-pci 0000:41:00.0: not ready 65535ms after FLR; giving up"

_GUEST_ACTIONS = (
    RebootGuest,
    RemoveLeftovers,
    WakeGpu,
    EndMpsClient,
    SuspendAutostart,
    RestoreAutostart,
    UnloadDriver,
    LoadDriver,
    Signal,
    AwaitGone,
    StopService,
    StartService,
    SetPersistence,
    ResetGpu,
    PlaceMarker,
    ClearMarker,
    SyncDisks,
)
