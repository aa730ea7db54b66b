"""Who holds how much RAM and GPU memory at a given moment: pure arithmetic over owners, no I/O and no clock of its own.

An owner grows while it loads, holds while it lives, and after its death gives back at once, over `release_s`,
or (its `leak_*` part) never.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB_KB = 1 << 20


@dataclass
class Owner:
    pid: int
    start: str
    kind: str
    group: str
    rank: int | None
    gpus: dict[int, int]
    ram_gib: float
    load_s: float = 0.0
    release_s: float = 0.0
    shmem: bool = False
    leak_vram_mib: int = 0
    leak_ram_gib: float = 0.0
    util: int | None = None
    born: float = 0.0
    died: float | None = None
    share_at_death: float = 1.0
    shown: tuple[bool, float] | None = None
    void_gpus: set[int] = field(default_factory=set)

    @classmethod
    def from_row(cls, row: dict[str, Any], now: float) -> Owner:
        known = {
            "pid",
            "start",
            "kind",
            "group",
            "rank",
            "ram_gib",
            "load_s",
            "release_s",
            "shmem",
            "leak_vram_mib",
            "leak_ram_gib",
            "util",
        }
        picked = {key: value for key, value in row.items() if key in known}
        return cls(gpus={int(k): int(v) for k, v in row.get("gpus", {}).items()}, born=now, **picked)

    def loaded(self, now: float) -> float:
        return 1.0 if self.load_s <= 0 else max(0.02, min(1.0, (now - self.born) / self.load_s))

    def share(self, now: float) -> float:
        """The part of what it declared that it holds now."""
        if self.died is None:
            return self.loaded(now)
        if self.release_s <= 0:
            return 0.0
        return self.share_at_death * max(0.0, 1.0 - (now - self.died) / self.release_s)

    def die(self, now: float) -> None:
        self.share_at_death = self.loaded(now)
        self.died = now

    def spent(self, now: float) -> bool:
        return self.died is not None and self.share(now) <= 0.0


def status(text: str, owner: Owner, now: float) -> str:
    """A /proc/PID/status with the sizes that its owner declared; a dead one has none, like a zombie's."""
    if owner.died is not None:
        return "".join(line for line in text.splitlines(True) if not line.startswith(("Vm", "Rss", "HugetlbPages")))
    kb = int(owner.ram_gib * owner.share(now) * GIB_KB)
    sizes = {"RssAnon": 0 if owner.shmem else kb, "RssShmem": kb if owner.shmem else 0, "VmRSS": kb, "VmHWM": kb}
    lines = []
    for line in text.splitlines():
        name = line.partition(":")[0]
        lines.append(f"{name}:\t{sizes[name]:>11} kB" if name in sizes else line)
    return "\n".join(lines) + "\n"


@dataclass
class Ledger:
    total_gib: float = 449.0
    base_gib: float = 4.0
    owners: list[Owner] = field(default_factory=list)
    ram_leak_gib: float = 0.0

    def alive(self) -> list[Owner]:
        return [owner for owner in self.owners if owner.died is None]

    def rows(self, now: float) -> dict[tuple[int, int], int]:
        """(gpu, pid) -> MiB of the living."""
        return {(gpu, o.pid): int(mib * o.share(now)) for o in self.alive() for gpu, mib in o.gpus.items()}

    def releasing(self, now: float) -> dict[int, int]:
        """gpu -> MiB that the dead have not given back yet."""
        out: dict[int, int] = {}
        for owner in self.owners:
            if owner.died is not None:
                for gpu, mib in owner.gpus.items():
                    if gpu not in owner.void_gpus:
                        out[gpu] = out.get(gpu, 0) + int(mib * owner.share(now))
        return out

    def forget_spent(self, now: float) -> None:
        self.owners = [owner for owner in self.owners if not owner.spent(now)]

    def reboot(self, keeps_leak: bool) -> None:
        """All processes are gone with their kernel, and so is what was still being unpinned."""
        self.owners = []
        if not keeps_leak:
            self.ram_leak_gib = 0.0

    def ram(self, now: float) -> dict[str, float]:
        anon = sum(o.ram_gib * o.share(now) for o in self.alive() if not o.shmem)
        shmem = sum(o.ram_gib * o.share(now) for o in self.alive() if o.shmem)
        going = sum(o.ram_gib * o.share(now) for o in self.owners if o.died is not None)
        return {"anon": anon, "shmem": shmem, "unowned": going + self.ram_leak_gib}

    def available_gib(self, now: float) -> float:
        return max(0.3, self.total_gib - self.base_gib - sum(self.ram(now).values()))

    def meminfo(self, now: float) -> str:
        """/proc/meminfo in the kernel's form and a constant length, so that it can be rewritten in place."""
        ram = self.ram(now)
        base = {
            "file": 1.9,
            "buffers": 0.1,
            "anon": 0.05,
            "shmem": 0.02,
            "slab_r": 0.6,
            "slab_u": 1.0,
            "tables": 0.15,
            "stacks": 0.03,
            "percpu": 0.1,
        }
        file, buffers = base["file"], base["buffers"]
        available = self.available_gib(now)
        free = max(0.2, available - (file + buffers + base["slab_r"]) * 0.9)
        kb = {
            "MemTotal": self.total_gib,
            "MemFree": free,
            "MemAvailable": available,
            "Buffers": buffers,
            "Cached": file + ram["shmem"] + base["shmem"],
            "SwapCached": 0.0,
            "Active": file * 0.6,
            "Inactive": base["anon"] + ram["anon"] + ram["shmem"],
            "Active(anon)": 0.01,
            "Inactive(anon)": base["anon"] + ram["anon"] + ram["shmem"],
            "Active(file)": file * 0.6,
            "Inactive(file)": file * 0.4,
            "Unevictable": 0.0,
            "Mlocked": 0.0,
            "SwapTotal": 0.0,
            "SwapFree": 0.0,
            "Zswap": 0.0,
            "Zswapped": 0.0,
            "Dirty": 0.0,
            "Writeback": 0.0,
            "AnonPages": base["anon"] + ram["anon"],
            "Mapped": 0.3,
            "Shmem": ram["shmem"] + base["shmem"],
            "KReclaimable": base["slab_r"],
            "Slab": base["slab_r"] + base["slab_u"],
            "SReclaimable": base["slab_r"],
            "SUnreclaim": base["slab_u"],
            "KernelStack": base["stacks"],
            "PageTables": base["tables"],
            "SecPageTables": 0.0,
            "NFS_Unstable": 0.0,
            "Bounce": 0.0,
            "WritebackTmp": 0.0,
            "CommitLimit": self.total_gib / 2,
            "Committed_AS": 8.0,
            "VmallocTotal": 32767.0,
            "VmallocUsed": 0.3,
            "VmallocChunk": 0.0,
            "Percpu": base["percpu"],
            "HardwareCorrupted": 0.0,
            "AnonHugePages": 0.0,
            "ShmemHugePages": 0.0,
            "ShmemPmdMapped": 0.0,
            "FileHugePages": 0.0,
            "FilePmdMapped": 0.0,
        }
        lines = [f"{name + ':':<16}{int(value * GIB_KB):>11} kB" for name, value in kb.items()]
        pages = [
            f"{name + ':':<16}{0:>8}"
            for name in ("HugePages_Total", "HugePages_Free", "HugePages_Rsvd", "HugePages_Surp")
        ]
        return (
            "\n".join(
                [
                    *lines,
                    *pages,
                    "Hugepagesize:         2048 kB",
                    "Hugetlb:               0 kB",
                    "DirectMap4k:      524288 kB",
                ]
            )
            + "\n"
        )
