"""The guest's RAM, split so that what nobody owns can be seen. All sizes are MiB."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recover.model.gpu import NOT_ASKED
from recover.model.reading import Reading


@dataclass(frozen=True, slots=True)
class Ram:
    """Figures of /proc/meminfo; `process_mib` sums what live processes own (PSS where readable, else RSS - shared)."""

    total_mib: int
    available_mib: int
    free_mib: int = 0
    buffers_mib: int = 0
    cached_mib: int = 0  # includes shmem
    shmem_mib: int = 0
    anon_mib: int = 0
    slab_mib: int = 0
    page_tables_mib: int = 0
    kernel_stack_mib: int = 0
    vmalloc_mib: int = 0
    percpu_mib: int = 0
    swap_cached_mib: int = 0
    hugepages_total: int = 0
    hugepages_free: int = 0
    hugepage_kib: int = 2048
    process_anon_mib: int = 0  # sum of RssAnon over live processes and live threads of dead leaders
    balloon_mib: Reading[int] = NOT_ASKED
    cache_mib: int = 0  # of the kernel, outside of meminfo's own: ZFS ARC, zswap's and zram's compressed pages

    @property
    def hugetlb_mib(self) -> int:
        return self.hugepages_total * self.hugepage_kib // 1024

    @property
    def unowned_mib(self) -> int:
        """RAM that no process, file, slab or known kernel pool accounts for (the incident's 318 GB).

        Total - free - everything the kernel can name; anonymous pages that no living process maps count as unowned too.
        """
        named = (
            self.free_mib
            + self.buffers_mib
            + self.cached_mib
            + self.swap_cached_mib
            + min(self.anon_mib, self.process_anon_mib)
            + self.slab_mib
            + self.page_tables_mib
            + self.kernel_stack_mib
            + self.vmalloc_mib
            + self.percpu_mib
            + self.hugetlb_mib
            + self.cache_mib
        )
        return max(0, self.total_mib - named)


class LeftoverKind(StrEnum):
    SHM_FILE = "shm-file"
    HUGETLB_FILE = "hugetlb-file"
    SYSV = "sysv"
    SOCKET = "ipc-socket"  # holds no memory


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a process may leave in the guest's own name space. `owner_pid` from its name, None where that has none."""

    kind: LeftoverKind
    name: str
    size_mib: int
    owner_pid: int | None
    owner_alive: bool | None
    mapped: bool | None  # by any living process, or a socket is bound to it; None = not known
    inode: int = 0
    mtime_s: float = 0.0
    folder: str = ""
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One line of the kernel log with its own time: microseconds since boot."""

    usec: int
    text: str


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The tightest memory limit over a control group: that of itself or of one above it."""

    cgroup: str
    path: str  # whose limit it is
    limit_mib: int
    used_mib: int
    oom_kills: int  # how many processes below `path` the kernel's OOM killer has ended
