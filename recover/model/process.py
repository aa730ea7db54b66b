"""Processes, the groups they form and who owns them. A process is its boot id + pid + start time, never its pid."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from recover.model.gpu import NOT_ASKED
from recover.model.reading import Reading


@dataclass(frozen=True, slots=True, order=True)
class ProcessId:
    """`start` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    boot_id: str
    pid: int
    start: int

    def __str__(self) -> str:
        return f"{self.pid}@{self.start}"


class Rank(StrEnum):
    """The part that a process plays in an inference server."""

    MAIN = "main"  # launcher / API server
    WORKER = "worker"  # a TP x PP rank: holds a GPU
    HELPER = "helper"  # detokenizer, tokenizer worker, resource tracker, router: holds none
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc shows it. Memory is MiB. `holds`: device nodes held open or mapped by any of its threads."""

    id: ProcessId
    ppid: int
    pgid: int
    sid: int
    state: str  # R S D Z T t X I as in /proc/PID/stat
    comm: str  # at most 15 bytes
    title: str = ""  # cmdline joined by spaces, cleaned; empty for a zombie or where it could not be read
    argv: Reading[tuple[str, ...]] = NOT_ASKED
    uid: int = 0
    threads: int = 1
    live_threads: int = 1  # threads that are not zombies; 0 for a plain zombie
    rss_mib: int = 0  # of the process and of live threads of a dead leader
    shmem_mib: int = 0
    cgroup: str = ""
    wchan: str = ""
    thread_wchans: tuple[str, ...] = ()
    sigkill_pending: bool = False
    cpu_ticks: int = 0  # utime + stime of all threads: movement tells R that works from R that spins
    io_bytes: int = 0
    holds: frozenset[str] = frozenset()  # "nvidia0", "nvidiactl", "nvidia-uvm", ...
    holds_known: bool = True  # False: the children that look at fds or maps did not come back
    listens: frozenset[int] = frozenset()  # TCP ports
    peers: frozenset[str] = frozenset()  # remote addresses of established connections outside this machine
    in_our_pid_namespace: bool = True
    ns_pids: tuple[int, ...] = ()
    tty: int = 0
    criu_restored: bool = False
    ours: bool = False  # the probe itself, its ancestors, its sshd

    @property
    def pid(self) -> int:
        return self.id.pid

    @property
    def plain_zombie(self) -> bool:
        """Holds nothing: only its parent must reap it."""
        return self.state in "ZX" and self.live_threads == 0

    @property
    def dead_leader(self) -> bool:
        """Defunct to `ps`, yet a thread lives on and holds everything (facts: /proc/PID/task)."""
        return self.state in "ZX" and self.live_threads > 0

    @property
    def waits(self) -> tuple[str, ...]:
        """The kernel functions in which its tasks sleep, its own first."""
        return tuple(w for w in (self.wchan, *self.thread_wchans) if w)


class OwnerKind(StrEnum):
    """Who would start the group again, and so who must be asked to stop it."""

    SYSTEMD = "systemd"
    SYSTEMD_USER = "systemd-user"
    DOCKER = "docker"
    PODMAN = "podman"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"
    SUPERVISORD = "supervisord"
    TERMINAL = "terminal"  # tmux, screen, a login shell
    JUPYTER = "jupyter"
    SHELL = "shell"  # a parent that is a shell or script and may start it again
    NONE = "none"  # orphaned: nothing owns it


@dataclass(frozen=True, slots=True)
class Owner:
    kind: OwnerKind
    name: str = ""  # unit, container id or name, job id
    detail: str = ""


class Health(StrEnum):
    """What a group is found to be; see core/signals/server for the evidence that each needs."""

    HEALTHY = "healthy"
    STARTING = "starting"
    HUNG = "hung"
    DEAD = "dead"
    LIVE = "live"  # alive, no evidence either way


@dataclass(frozen=True, slots=True)
class Group:
    """All processes of one server (or of one other GPU user), with what is known of its health."""

    key: str  # stable across looks of one boot: the smallest ProcessId of its members, as text
    engine: str  # sglang | vllm | trtllm | ... | other
    members: tuple[ProcessId, ...]
    owner: Owner
    health: Health
    why: str  # the evidence for `health`, in words
    title: str = ""  # of its main process, cleaned
    launch: tuple[str, ...] = ()  # argv of the main process, secrets redacted
    tp: int | None = None
    gpus: frozenset[str] = frozenset()  # UUIDs (or bus ids) held or listed
    distributed: bool = False
    peer_hosts: frozenset[str] = frozenset()
    protected: str = ""  # why it may never be ended: protect list, monitor, login session ...
    supervised_again: bool = False  # it came back after we ended it
    url: str = ""  # its health question, where that was answered with 200
    listeners: tuple[ProcessId, ...] = ()  # members that listen on the port of `url`, in their network


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """One health question, asked from inside the guest. `status` None: connected, no answer in time."""

    url: str
    outcome: str  # answered | refused | timeout | error
    status: int | None = None
    seconds: float = 0.0
    detail: str = ""
    tokens: int | None = None  # sum of the engine's token and iteration counters
    running: int | None = None  # requests running
    waiting: int | None = None
    pid: int = 0  # the process in whose own network it was asked, or whose answer a forwarded port gives; 0: the guest
