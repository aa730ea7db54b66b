"""What a memory budget is made of: a launch, the facts of a machine, what a size means, and the verdict.

All amounts are whole bytes. What is not known is `None` or `Unknown`, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from recover.core.budget.version import Version
from recover.model.reading import Reading, Unknown, Why

GB = 1_000_000_000
MIB = 1 << 20
GIB = 1 << 30

NOT_READ = Unknown(Why.ABSENT, "not read")


class Problem(Exception):
    """Wrong input of a person: every problem with its place, in words."""

    def __init__(self, *problems: str, hint: str = "") -> None:
        super().__init__("; ".join(problems))
        self.problems = problems
        self.hint = hint


# --- the launch ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of the engine. `value` is None for a bare switch. `span` is the value's place in `Launch.text`."""

    name: str  # canonical, with dashes: "hicache-size", whatever alias or abbreviation was written
    value: str | None
    said: str  # the option as written: "--hicache-si"
    source: str = "command line"  # or "FILE line 3", "environment"
    span: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Something in the launch that could not be read for certain. `matters`: it may change the host memory asked."""

    word: str
    why: str
    matters: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One server as it would be started.

    `version` is None unless the command itself names one (an image tag, `--engine sglang==0.5.9`).
    `interpreter` is the program whose environment holds the engine: "/opt/venv/bin/python", "vllm", "" in an image.
    `files` are names of files that the launch refers to and that were not given to the parser.
    """

    engine: str  # "sglang", "vllm", "trtllm", "llama.cpp", "lmcache"
    version: Version | None = None
    options: tuple[Option, ...] = ()
    positional: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    unresolved: tuple[Unresolved, ...] = ()
    assumed: tuple[str, ...] = ()
    argv: tuple[str, ...] = ()  # the engine's own words, after shells and wrappers
    interpreter: str = ""
    wrapper: str = ""  # "", "docker", "compose", "systemd", "script"
    where: str = ""  # "service sglang", "line 4"
    image: str = ""
    text: str = ""  # what was parsed, with the spans of `options` in it; "" if it has none
    memory_limit: int | None = None  # --memory, mem_limit, MemoryMax
    shm_size: int | None = None  # --shm-size, shm_size; with --ipc=host the machine's
    membind: str = ""  # numactl --membind
    files: tuple[str, ...] = ()
    copies: int = 1  # servers of this kind that are started: a loop, replicas of a service
    stays: bool = False  # it goes on while what follows it in its text is started
    arms: tuple[tuple[int, int], ...] = ()  # alternatives of a script that it stands in: which, and which arm of it

    def option(self, name: str) -> Option | None:
        """The setting that counts: the last one of the command line, else the file's."""
        return next((o for o in reversed(self.options) if o.name == name), None)

    def value(self, name: str) -> str | None:
        found = self.option(name)
        return found.value if found is not None else None

    def has(self, name: str) -> bool:
        return self.option(name) is not None

    def variable(self, name: str) -> str | None:
        return dict(self.env).get(name)

    @property
    def model(self) -> str:
        """The model's name or folder, as written."""
        for name in ("model-path", "model"):
            if said := self.value(name):
                return said
        return self.positional[0] if self.positional else ""


# --- the machine --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    total: int
    free: Reading[int] = NOT_READ
    numa: int | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class NumaNode:
    number: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class HugePages:
    """Pages of one size. They are taken out of MemAvailable when reserved, not when used."""

    size: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Shm:
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A machine on which a launch is judged. `available` is MemAvailable; a limit of None is no limit."""

    available: Reading[int]
    total: Reading[int] = NOT_READ
    cgroup_room: Reading[int | None] = NOT_READ  # the smallest limit minus its use, over all levels
    numa: tuple[NumaNode, ...] = ()
    shm: Reading[Shm] = NOT_READ
    hugepages: tuple[HugePages, ...] = ()
    balloon_target: Reading[int] = NOT_READ  # what the hypervisor may leave the guest with
    vm_memory: Reading[int] = NOT_READ  # what the VM is configured with
    gpus: tuple[Gpu, ...] = ()
    weights: Reading[int] = NOT_READ  # bytes of the model's weight files
    files: tuple[tuple[str, int], ...] = ()  # sizes of other files that a launch names (a GGUF)
    device_tokens: Reading[int] = NOT_READ  # the device KV pool's size where a server of it runs or ran
    numactl: Reading[bool] = NOT_READ  # the binary exists: SGLang 0.5.18+ binds ranks hard only then
    others: tuple[Launch, ...] = ()  # servers that run already: what they hold is out of `available`
    loading: int | None = None  # measured; None: the default is taken, and said
    margin: int | None = None


# --- what a size means --------------------------------------------------------------------------------------------


class Unit(StrEnum):
    BYTES = "bytes"
    MIB = "MiB"
    GB = "GB"
    GIB = "GiB"
    RATIO = "x the device KV pool"
    FRACTION = "of the host's memory"

    @property
    def bytes(self) -> int | None:
        return {"bytes": 1, "MiB": MIB, "GB": GB, "GiB": GIB}.get(self.value)


class Scope(StrEnum):
    RANK = "per rank"
    ENGINE = "per engine replica, summed over its ranks"
    SERVER = "per server"
    PROCESS = "per server process"


class Pages(StrEnum):
    """How a token count becomes whole pages."""

    NONE = "not rounded"
    DOWN = "down to whole pages"
    UP = "up, always one page more"


class Pinning(StrEnum):
    """What the allocator takes for n bytes."""

    EXACT = "exactly as asked"
    POWER_OF_TWO = "rounded up to a power of two"


class Check(StrEnum):
    """The engine's own test against the available memory, before it allocates."""

    NONE = "none"
    EACH = "each rank alone against all of the available memory less 10 GiB"
    SPLIT = "each rank against its share of the available memory less 10 GiB"
    SPLIT_CGROUP = "each rank against its share of the available memory, cgroup limits included, less 10 GiB"
    UNKNOWN = "not known: it may be any of them"


@dataclass(frozen=True, slots=True)
class Semantics:
    """What the number of one sizing flag means, and how it is known.

    `proved_by` quotes the installed source as "path:line"; empty: the table's row, whose `source` it is.
    `assumed` says that neither speaks of this version, so that the worst row was taken.
    """

    engine: str
    flag: str  # canonical: "hicache-size"
    unit: Unit
    scope: Scope
    pages: Pages = Pages.NONE
    pinning: Pinning = Pinning.EXACT
    check: Check = Check.NONE
    source: str = ""
    proved_by: str = ""
    assumed: str = ""


# --- the verdict --------------------------------------------------------------------------------------------------


class Fit(StrEnum):
    FITS = "fits"
    TIGHT = "tight"
    NOT = "does-not-fit"
    CANNOT_TELL = "cannot-tell"


class Place(StrEnum):
    RAM = "host memory"
    SHM = "/dev/shm"
    HUGE = "hugepages"


@dataclass(frozen=True, slots=True)
class Demand:
    """Host memory that one thing takes. `high` is None where no upper bound is known; `low` == `high` where exact."""

    flag: str  # canonical name of the setting behind it, "" for none
    what: str
    low: int  # bytes per share
    high: int | None
    shares: int  # ranks or replicas or processes on this host
    share: str  # "rank"
    formula: tuple[str, ...]
    place: Place = Place.RAM
    source: str = ""
    needs: str = ""  # what would make it exact

    @property
    def total_low(self) -> int:
        return self.low * self.shares

    @property
    def total_high(self) -> int | None:
        return None if self.high is None else self.high * self.shares


@dataclass(frozen=True, slots=True)
class OwnCheck:
    """The engine's own check for the size asked. `certain`, `possible`: bytes per rank that pass for all, for some."""

    kind: Check
    certain: int
    possible: int
    asked: int  # at the most
    formula: tuple[str, ...]
    least: int | None = None  # where less may be asked

    @property
    def passes(self) -> bool:
        return self.asked <= self.certain

    @property
    def refuses(self) -> bool:
        return (self.asked if self.least is None else self.least) > self.possible


@dataclass(frozen=True, slots=True)
class Safe:
    """The largest value of one sizing flag. `value` fits and starts for certain; `fits` is the largest that fits the
    host, which may be more where the engine's own check may refuse it by chance. None: no value does."""

    flag: str
    unit: Unit
    scope: Scope
    value: int | None
    fits: int | None
    per_share: int = 0
    total: int = 0
    tokens: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is asked of the host, what there is, and what to change."""

    fit: Fit
    reasons: tuple[str, ...]
    available: int | None = None
    loading: int = 0
    margin: int = 0
    ranks: int = 0
    demands: tuple[Demand, ...] = ()
    checks: tuple[OwnCheck, ...] = ()
    safe: tuple[Safe, ...] = ()
    semantics: tuple[Semantics, ...] = ()
    bytes_per_token: int | None = None
    corrected: str = ""
    notes: tuple[str, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()

    @property
    def total_low(self) -> int:
        return sum(d.total_low for d in self.demands)

    @property
    def total_high(self) -> int | None:
        highs = [d.total_high for d in self.demands]
        return None if None in highs else sum(h for h in highs if h is not None)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model's config.json, parsed, with the name under which it is spoken of."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
