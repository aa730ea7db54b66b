"""What a signal may use: one look with its groups, what earlier looks left behind, and the limits. Nothing else.

A signal gives findings, watches (symptoms with their say) and gaps; it decides nothing and remembers nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from recover.core.groups import gpus_of, in_container, processes_of
from recover.core.kinship import Part
from recover.core.news import Fault, faults
from recover.core.past import Past, ripe
from recover.core.read.kernel_log import Event
from recover.model.gpu import Driver, Gpu, uuid_of
from recover.model.guest import Guest
from recover.model.ladder import Limits
from recover.model.memory import KernelLine, Ram
from recover.model.process import Group, Health, Process, ProcessId
from recover.model.reading import Known
from recover.model.snapshot import Baseline, Snapshot
from recover.model.verdict import Finding, Scope, Symptom

TICKS = 100  # USER_HZ: what /proc counts in, on every architecture that has these GPUs
BOOT_S = 600.0  # eight GPUs behind a slow start needed up to ten minutes (nvrc issue 159)
GPU_TOLERANCE_MIB = 16  # idle figures of 0 to 14 MiB were seen on healthy cards
TICKS_QUANTUM = 10  # 0.1 s of CPU: unpinning and pinning burn more than that in any second
_ENDED = 10**12  # more ticks than any process burns: the end of one is progress, whatever it had burnt
MIG_TOLERANCE_MIB = 128  # an empty MIG instance shows about 11 MiB, seven fit on a card

ONLY_NODE = "a container has the kernel and the driver of its node: only the node's restart brings them back"


@dataclass(frozen=True, slots=True)
class Watch:
    """A symptom. `worrying` False: it is only kept so that the next look can tell progress."""

    symptom: Symptom
    worrying: bool = True


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that is not known. `matters`: without it nobody can call the machine healthy."""

    says: str
    matters: bool = True


Sign = Finding | Watch | Gap
Signs = Iterable[Sign]


@dataclass(frozen=True, slots=True)
class Look:
    """`baseline` is None where there is none or where it is stale; `parts` has the members of each group by key."""

    snapshot: Snapshot
    past: Past
    limits: Limits
    groups: tuple[Group, ...]
    parts: Mapping[str, tuple[Part, ...]]
    baseline: Baseline | None
    news: tuple[KernelLine, ...] = ()  # of the kernel log, what still counts
    events: tuple[Event, ...] = ()
    watches: tuple[Watch, ...] = ()  # what judging the groups left to watch

    @property
    def guest(self) -> Guest | None:
        return self.snapshot.guest if isinstance(self.snapshot.guest, Guest) else None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return gpus_of(self.snapshot)

    @property
    def processes(self) -> tuple[Process, ...]:
        return processes_of(self.snapshot)

    @property
    def processes_known(self) -> bool:
        return self.guest is not None and isinstance(self.guest.processes, Known)

    @property
    def hidden(self) -> bool:
        """Whether processes of others may be there that we are not shown: `hidepid`, and no root."""
        guest = self.guest
        return guest is not None and not guest.root and not any(p.pid == 1 for p in self.processes)

    @property
    def driver(self) -> Driver | None:
        guest = self.guest
        return guest.driver.value if guest is not None and isinstance(guest.driver, Known) else None

    @property
    def ram(self) -> Ram | None:
        guest = self.guest
        return guest.ram.value if guest is not None and isinstance(guest.ram, Known) else None

    @property
    def kernel(self) -> tuple[KernelLine, ...]:
        """This boot's whole log, also what is no news."""
        guest = self.guest
        return guest.kernel.value if guest is not None and isinstance(guest.kernel, Known) else ()

    @property
    def uptime_s(self) -> float:
        return self.guest.mark.uptime_s if self.guest is not None else 0.0

    def ripens(self, least: float | None = None) -> float:
        """How long without progress a symptom of a GPU or the driver waits: never ripe while the guest is young.

        Who is younger than that has not waited so long either, whenever the first look was.
        """
        return boot_patience(self.uptime_s, self.limits.ripens_s if least is None else least)

    def ripe(self, symptom: Symptom) -> bool:
        return ripe(self.past.anchors, symptom, self.snapshot.at)

    def moved(self, symptom: Symptom) -> bool:
        """Whether it made progress since the look before."""
        before = self.past.anchors.get(symptom.key)
        return before is not None and symptom.level <= before.level - symptom.quantum

    def group_of(self, process: ProcessId) -> Group | None:
        return next((g for g in self.groups if process in g.members), None)

    def groups_on(self, uuid: str) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if uuid in g.gpus)

    @property
    def working(self) -> tuple[Group, ...]:
        """Groups that rightly own what they hold."""
        alive = {Health.HEALTHY, Health.STARTING, Health.LIVE}
        return tuple(g for g in self.groups if g.health in alive and not g.protected)

    @property
    def broken(self) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if g.health in {Health.DEAD, Health.HUNG})

    def idle_mib(self, gpu: Gpu) -> int:
        """What may be used on a GPU on which nothing runs."""
        mig = isinstance(gpu.mig, Known) and gpu.mig.value
        tolerance = MIG_TOLERANCE_MIB if mig else GPU_TOLERANCE_MIB
        if self.baseline is None:
            return tolerance
        saved = next((b.used_mib for b in self.baseline.gpus if b.uuid == uuid_of(gpu)), 0)
        return max(saved, tolerance)

    def listed(self, gpu: Gpu) -> tuple[Process, ...]:
        """Living processes that the driver lists on a GPU."""
        if in_container(self.snapshot) or not isinstance(gpu.processes, Known):
            return ()
        rows = {row.pid for row in gpu.processes.value}
        return tuple(p for p in self.processes if p.pid in rows)

    @property
    def faults(self) -> tuple[Fault, ...]:
        return faults(self.events)


def boot_patience(uptime_s: float, ripens_s: float) -> float:
    return max(ripens_s, BOOT_S) if uptime_s < BOOT_S else ripens_s


def age_s(process: Process, uptime_s: float) -> float:
    return max(0.0, uptime_s - process.id.start / TICKS)


def d_symptom(process: Process, ripens_s: float, finding: Finding) -> Symptom:
    """D without any CPU time used."""
    return Symptom(f"d:{process.id}", -process.cpu_ticks, TICKS_QUANTUM, ripens_s, finding)


def kill_symptom(look: Look, process: Process, ripens_s: float, finding: Finding) -> Symptom:
    """A pending SIGKILL that does nothing. R may spin: its CPU time proves nothing.

    Who dies in the driver gives back its memory under a lock: the others stand still in D until it is their turn, so
    the progress of one of them, or its end, is everybody's.
    """
    dying = [p for p in look.processes if p.sigkill_pending and p.state == "D"]
    level = len(dying) * _ENDED - sum(p.cpu_ticks for p in dying) if process.state == "D" else process.rss_mib
    return Symptom(f"kill:{process.id}", level, TICKS_QUANTUM, ripens_s, finding)


def watch(key: str, level: int, quantum: int, ripens_s: float, finding: Finding) -> Watch:
    return Watch(Symptom(key, level, quantum, ripens_s, finding))


def gib(mib: int) -> str:
    return f"{mib / 1024:.1f} GiB" if mib >= 1024 else f"{mib} MiB"


def on_gpu(signal: str, gpu: Gpu, says: str, cure: Scope | None, *evidence: str) -> Finding:
    """A finding on one GPU; its name stands in the sentence."""
    return Finding(signal, f"GPU {gpu.index} ({gpu.bus_id}) {says}", cure, uuid_of(gpu), tuple(evidence))
