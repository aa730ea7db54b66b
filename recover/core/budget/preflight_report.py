"""What the agent said of a machine, as the facts that a launch is judged on; what it could not read stays unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from recover.core.budget.bytes_per_token import read_config
from recover.core.budget.launch import from_argv
from recover.core.budget.model import Facts, Gpu, HugePages, Launch, ModelConfig, NumaNode, Problem, Shm
from recover.core.budget.proof import Proof, prove
from recover.core.budget.version import Version, version
from recover.core.clean import clean
from recover.core.read.report import Report
from recover.core.read.rows import Row
from recover.model.process import ProcessId
from recover.model.reading import Known, Reading, Unknown

_SETTINGS = (".yaml", ".yml", ".json", ".toml")


@dataclass(frozen=True, slots=True)
class Installed:
    """The engine that the command's interpreter would start."""

    engine: str
    version: Version | None
    said: str  # the version as it was found, also where it is none
    origin: str
    kind: str  # installed | editable | checkout
    commit: str
    python: str

    def __str__(self) -> str:
        how = "" if self.kind == "installed" else f", {self.kind}" + (f" at {self.commit[:12]}" if self.commit else "")
        return f"{self.engine} {self.said or 'of unknown version'} in {self.origin}{how}, by {self.python}"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs there. `anon`: bytes of private memory of all its processes; `tokens`: its device pool."""

    launch: Launch
    pid: int
    anon: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """What a server's processes held beside its pools when it ran. `amount`: bytes; `day`: as 2026-11-30."""

    engine: str
    model: str
    amount: int
    day: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that is known before a launch is judged. `files`: texts that the launch names, by those names."""

    facts: Facts
    installed: Installed | None = None
    proofs: tuple[Proof, ...] = ()
    config: ModelConfig | None = None
    files: tuple[tuple[str, str], ...] = ()
    gaps: tuple[str, ...] = ()
    running: tuple[Running, ...] = ()
    ran: tuple[Loading, ...] = ()  # measured earlier, the newest last


def gathered(report: Report) -> Gathered:
    """The agent's report as facts. Every part may be missing."""
    installed = _installed(report)
    gaps = [_gap(gap) for gap in report.gaps()]
    config = _config(report, gaps)
    if report.one("end") is None:
        gaps.append("the report broke off: what came last is missing")
    proofs: tuple[Proof, ...] = ()
    if installed is not None:
        sources = {row.text("path"): row.whole("text") for row in report.all("budget-source") if "text" in row}
        missing = [f"{r.text('path')} ({r.text('missing')})" for r in report.all("budget-source") if "missing" in r]
        proofs = prove(installed.engine, installed.said, sources, missing)
    files = tuple((row.text("name"), row.whole("text")) for row in report.all("budget-text"))
    return Gathered(_facts(report), installed, proofs, config, files, tuple(gaps), tuple(_others(report)))


def _gap(text: str) -> str:
    return text.removeprefix("budget-")


def _facts(report: Report) -> Facts:
    memory, model = report.one("budget-memory"), report.one("budget-model")
    numactl = report.one("budget-numactl")
    return Facts(
        available=_bytes(report, memory, "budget-memory", "available"),
        total=_bytes(report, memory, "budget-memory", "total"),
        cgroup_room=_cgroup(report),
        numa=tuple(NumaNode(*_three(r, "node")) for r in _rows(report, "numa", "nodes")),
        shm=_shm(report),
        hugepages=tuple(HugePages(*_three(r, "size")) for r in _rows(report, "hugepages", "sizes")),
        gpus=_gpus(report),
        weights=_bytes(report, model, "budget-model", "weights"),
        files=_sizes(model),
        numactl=Known(bool(numactl.text("path"))) if numactl is not None else report.missing("budget-numactl"),
        others=tuple(other.launch for other in _others(report)),
    )


def _three(row: Row, first: str) -> tuple[int, int, int]:
    return row.number(first), row.number("total"), row.number("free")


def _rows(report: Report, kind: str, key: str) -> list[Row]:
    row = report.one(f"budget-{kind}")
    return row.rows(key) if row is not None else []


def _bytes(report: Report, row: Row | None, kind: str, key: str) -> Reading[int]:
    value = row.maybe(key) if row is not None else None
    return Known(value) if value is not None and value >= 0 else report.missing(kind)


def _cgroup(report: Report) -> Reading[int | None]:
    row = report.one("budget-cgroup")
    if row is None:
        return report.missing("budget-cgroup")
    rooms = [room for level in row.rows("levels") if (room := level.maybe("room")) is not None]
    return Known(min(rooms, default=None))


def _shm(report: Report) -> Reading[Shm]:
    row = report.one("budget-shm")
    total, free = (row.maybe("total"), row.maybe("free")) if row is not None else (None, None)
    return Known(Shm(total, free)) if total is not None and free is not None else report.missing("budget-shm")


def _gpus(report: Report) -> tuple[Gpu, ...]:
    found = []
    for row in _rows(report, "gpus", "gpus"):
        total, free = row.maybe("total"), row.maybe("free")
        unknown: Unknown = report.missing("budget-gpus")
        left: Reading[int] = Known(free) if free is not None else unknown
        found.append(Gpu(row.number("index"), total or 0, left, row.maybe("numa"), row.text("uuid")))
    return tuple(found)


def _sizes(row: Row | None) -> tuple[tuple[str, int], ...]:
    sizes = row.row("files").raw if row is not None else {}
    return tuple((name, size) for name, size in sizes.items() if isinstance(name, str) and isinstance(size, int))


def _others(report: Report) -> list[Running]:
    found = []
    for row in _rows(report, "others", "servers"):
        env = dict(pair.split("=", 1) for pair in row.texts("env") if "=" in pair)
        says = row.row("says")
        launch = from_argv(row.texts("argv"), env=env, version=version(says.text("version", limit=80)))
        if launch is not None:
            found.append(Running(launch, row.number("pid"), row.maybe("anon"), says.maybe("max_total_num_tokens")))
    return found


def _installed(report: Report) -> Installed | None:
    row = report.one("budget-engine")
    if row is None or not row.text("origin"):
        return None
    said = row.text("version", limit=80)
    return Installed(
        row.text("engine", limit=40), version(said), said, row.text("origin", limit=300), row.text("install", limit=20),
        row.text("commit", limit=40), row.text("asked", limit=300),
    )  # fmt: skip


def _config(report: Report, gaps: list[str]) -> ModelConfig | None:
    row = report.one("budget-model")
    if row is None or not row.text("model"):
        return None
    if not row.whole("config"):
        gaps.append(f"model: no config.json of {row.text('model', limit=200)} was found: bytes per token are not known")
        return None
    try:
        return read_config(row.whole("config"), f"{row.text('folder', limit=300)}/config.json")
    except Problem as problem:
        gaps.extend(f"model: {clean(p, 300)}" for p in problem.problems)
        return None


def records(report: Report) -> tuple[dict[str, object], ...]:
    """What --save-facts keeps: the report, without the agent's own figures."""
    return tuple({**row.raw, "k": kind} for kind, rows in report.kinds.items() for row in rows)


def wanted(
    launch: Launch, paths: Sequence[str] = (), members: Iterable[ProcessId] = (), container: str = ""
) -> dict[str, object]:
    """What to ask the agent for a launch. `members`: processes of the server, if it runs; `container`: where it did.

    An engine inside an image or a container is read where that lies on the machine.
    """
    image = container or launch.image
    inside = launch.wrapper in ("docker", "compose") or bool(image)
    return {
        "do": "budget",
        "engine": "" if inside and not image else launch.engine,
        "image": image,
        "members": [(member.pid, member.start) for member in members],
        "interpreter": launch.interpreter or {"vllm": "vllm", "sglang": "python3"}.get(launch.engine, "python3"),
        "model": launch.model,
        "files": [launch.model] if launch.model.endswith(".gguf") else [],
        "texts": [name for name in launch.files if name.startswith("/") or name.endswith(_SETTINGS)],
        "paths": list(paths),
    }
