"""What is seen from inside a simulated guest."""

from __future__ import annotations

from dataclasses import replace

from recover.edge.simulated.state import (
    BASE_USED_MIB,
    BOOT_S,
    GIB,
    HELD_MIB,
    MAC,
    TOTAL_MIB,
    UUID,
    VRAM_MIB,
    Rank,
    State,
)
from recover.model.contact import Failure
from recover.model.gpu import Condition, Driver, Gpu, GpuProcess, RecoveryAction
from recover.model.guest import (
    BootFacts,
    Guest,
    GuestIdentity,
    Inhibitor,
    Mark,
    Module,
    MpsClient,
    Mute,
    Service,
)
from recover.model.memory import KernelLine, Leftover, LeftoverKind, Ram
from recover.model.process import Process, ProcessId, ServerAnswer
from recover.model.reading import Known, Unknown, Why

_NEW_KEY = (
    "node-174: the host key is now ssh-ed25519 SHA256:new, but known_hosts:1 says ssh-ed25519 SHA256:old. Either the "
    "machine got new keys, or another machine answers"
)
_MPS_PID = 3900
SCRIPT_PID = 3950
FABRIC = "nvidia-fabricmanager.service"


class Inside(State):
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

    def _identity(self, boot_id: str) -> GuestIdentity:
        if self.fault.wrong_vm:
            return GuestIdentity("other", boot_id, Known("00000000-dead-4000-8000-000000000000"), frozenset(), "6.8.0")
        return GuestIdentity("node-174", boot_id, Known(UUID), frozenset({MAC}), kernel="6.8.0")

    def _boot_facts(self) -> BootFacts:
        who = (Inhibitor(self.fault.inhibitor, "simulated", "block"),) if self.fault.inhibitor else ()
        return BootFacts("systemd", who, state="running")

    def _kernel(self, uptime: float) -> tuple[KernelLine, ...]:
        if not self.fault.old_xid:
            return ()
        text = f"NVRM: Xid (PCI:0000:01:00): {self.fault.old_xid}, pid=1, name=x, old news"
        return (KernelLine(int(max(0.0, uptime - 80000.0) * 1e6), text),)

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

    def _driver(self) -> Driver:
        if not self.loaded:
            return Driver(Condition.FAILS, "driver not loaded", nvml_code=9)
        if self.driver_fails:
            return Driver(Condition.FAILS, "simulated: RM failed to initialise", nvml_code=999)
        return Driver(Condition.ANSWERS, version=Known("580.105.08"), library_version=Known("580.105.08"))

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

    def _services(self) -> tuple[Service, ...]:
        main = next((r.pid for r in self.ranks if r.gpu is None), 0)
        fabric = (Service("systemd", FABRIC, self.fabric, 880, "no", "enabled"),) if self.fabric else ()
        return (
            *fabric,
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

    def _processes(self, boot_id: str) -> tuple[Process, ...]:
        found = tuple(self._process(r, boot_id) for r in self.ranks)
        if self.script:
            shell = Process(ProcessId(boot_id, SCRIPT_PID, 950), 1, SCRIPT_PID, SCRIPT_PID, "S", "bash")
            dead = (Process(ProcessId(boot_id, z.pid, z.start), SCRIPT_PID, z.pid, z.pid, "Z", "python3",
                            live_threads=0) for z in self.zombies)  # fmt: skip
            found += (replace(shell, title="bash serve.sh", argv=Known(("bash", "serve.sh"))), *dead)
        if not self.fault.mps:
            return found
        server = Process(ProcessId(boot_id, _MPS_PID, 900), 1, _MPS_PID, _MPS_PID, "S", "nvidia-cuda-mps")
        return (*found, replace(server, title="nvidia-cuda-mps-server", argv=Known(("nvidia-cuda-mps-server",))))

    def _mps_client(self, rank: Rank) -> bool:
        return self.fault.mps and rank.gpu is not None and rank.live_threads > 0 and self.generation == 1

    def _process(self, rank: Rank, boot_id: str) -> Process:
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
            ppid=SCRIPT_PID if main and self.script else rank.ppid,
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

    def _gpu_reading(self) -> Known[tuple[Gpu, ...]] | Unknown:
        if "gpus" in self.fault.denied:
            return Unknown(Why.DENIED, "simulated")
        if self.driver_fails or not self.loaded:
            return Unknown(Why.ABSENT, "the driver fails")
        return Known(self._gpus())

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

    def _falling(self) -> int:
        now, span = self.clock.now(), self.fault.release_s or 1.0
        return sum(int(mib * (until - now) / span) for until, mib in self.release if until > now)
