"""What each serving engine's processes are called, as a table: a new engine is a row here and nothing else.

Sources: sglang `srt/managers/scheduler.py` (setproctitle), vllm `v1/engine/core.py` and `utils/system_utils.py`,
`ollama runner`, `llama-server`, `tritonserver`, `text-generation-server`, `lmdeploy`, `trtllm-serve`; the kernel cuts
comm to 15 bytes, and a zombie has nothing but its comm.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from recover.model.process import Process, Rank


@dataclass(frozen=True, slots=True)
class Engine:
    """`main`: patterns over the command line. `ranks`, `helpers`: prefixes of the title, also of the cut comm.

    `orphans_die`: a rank without its main is of no use to anybody. `serves`: it answers HTTP, so health can be asked.
    `port`: where it does, if its flags do not say. `inner`: helpers between a main and its ranks, no use without it.
    `lone`: each rank is somebody's own, and none is missed by the others. `lazy`: holds no GPU until it is asked.
    """

    name: str
    main: tuple[str, ...]
    ranks: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    tp_flags: tuple[str, ...] = ()
    pp_flags: tuple[str, ...] = ()
    orphans_die: bool = False
    serves: bool = True
    port: int = 0
    inner: tuple[str, ...] = ()
    lone: bool = False
    lazy: bool = False


ENGINES: tuple[Engine, ...] = (
    Engine(
        "sglang",
        main=(
            r"\bsglang\.launch_server\b",
            r"(^|/)sglang serve\b",
            r"\bsglang\.cli\.main serve\b",
            r"\bsglang\.srt\.entrypoints\b",
        ),
        ranks=("sglang::scheduler", "sgl_diffusion::scheduler"),
        helpers=(
            "sglang::detokenizer",
            "sglang::data_parallel_controller",
            "sglang::tokenizer",
            "sglang::router",
            "sglang::server",
        ),
        tp_flags=("--tp-size", "--tensor-parallel-size", "--tp"),
        pp_flags=("--pp-size", "--pipeline-parallel-size", "--pp"),
        orphans_die=True,
        port=30000,
        inner=("sglang::data_parallel_controller",),
    ),
    Engine(
        "vllm",
        main=(r"(^|/)vllm serve\b", r"\bvllm\.entrypoints\b", r"\bvllm_omni\.entrypoints\b"),
        ranks=("VLLM::Worker", "VLLM::EngineCore", "VLLM::StageEngineCore"),
        helpers=("VLLM::APIServer", "VLLM::DPCoordinator"),
        tp_flags=("--tensor-parallel-size", "-tp"),
        pp_flags=("--pipeline-parallel-size", "-pp"),
        orphans_die=True,
        port=8000,
    ),
    Engine(
        "trtllm",
        main=(r"\btrtllm-serve\b", r"\btensorrt_llm\.commands\.serve\b"),
        ranks=("trtllm-llmapi-launch",),
        tp_flags=("--tp_size",),
        pp_flags=("--pp_size",),
        orphans_die=True,
        port=8000,
        inner=("orted",),
    ),
    Engine(
        "ray",
        main=(r"(^|/)raylet\b",),
        ranks=("ray::",),
        helpers=("ray::IDLE", "gcs_server"),
        orphans_die=True,
        serves=False,
        lone=True,
    ),
    Engine(
        "ollama",
        main=(r"(^|/)ollama serve\b",),
        ranks=("ollama runner", "ollama_llama_se"),
        orphans_die=True,
        port=11434,
        lazy=True,
    ),
    Engine("llama.cpp", main=(r"(^|/)llama-server\b", r"(^|/)llama_cpp\.server\b")),
    Engine("triton", main=(r"(^|/)tritonserver\b",), helpers=("triton_python_backend_stub",)),
    Engine("tgi", main=(r"(^|/)text-generation-launcher\b",), ranks=("text-generation-server",)),
    Engine("lmdeploy", main=(r"(^|/|-m )lmdeploy serve\b",), tp_flags=("--tp",)),
)
BY_NAME = {engine.name: engine for engine in ENGINES}
OTHER = Engine("other", main=(), serves=False)

# Programs that take in orphans or start others: to be their child says nothing about belonging together.
_INITS = ("systemd", "init", "tini", "dumb-init", "docker-init", "catatonit", "s6-svscan", "s6-supervise", "runit")
_SUPERVISORS = (
    "runsv",
    "containerd-shim",
    "conmon",
    "supervisord",
    "slurmstepd",
    "cron",
    "crond",
    "at",
    "atd",
    "pause",
)
_SHELLS = ("bash", "sh", "dash", "zsh", "fish", "ksh", "ash", "busybox", "su", "sudo", "nohup", "timeout", "setsid")
_LOGINS = ("sshd", "sshd-session", "login", "tmux", "screen", "(sd-pam)", "kthreadd", "lxc-start")
REAPERS = frozenset((*_INITS, *_SUPERVISORS, *_SHELLS, *_LOGINS))
SHELLS = frozenset(_SHELLS)

# May hold a GPU while idle; never ended by a signal: SIGKILL on DCGM froze an A100 (dcgm-exporter issue 84).
HOLDERS: tuple[tuple[str, str], ...] = (
    (r"(^|/)nv-hostengine\b", "monitor (DCGM)"),
    (r"(^|/)dcgm", "monitor (DCGM)"),
    (r"(^|/)nvidia-persistenced\b", "persistence daemon"),
    (r"(^|/)nv-fabricmanager\b|(^|/)nvidia-fabricmanager\b", "fabric manager"),
    (r"(^|/)nvidia-imex\b", "IMEX daemon"),
    (r"(^|/)nvidia-cuda-mps-(control|server)\b", "MPS daemon"),
    (r"(^|/)nvsm", "monitor (NVSM)"),
    (r"(^|/)nvidia-device-plugin\b|(^|/)gpu-feature-discovery\b", "Kubernetes GPU plug-in"),
    (r"(^|/)nvidia[-_]gpu[-_]exporter\b|(^|/)nvidia_smi_exporter\b", "monitor"),
    (r"(^|/)Xorg\b|(^|/)X\b|(^|/)Xwayland\b|(^|/)gdm|(^|/)gnome-shell\b|(^|/)kwin_", "display"),
    (r"\bweight_cache\.daemon\b|\bweight_cache[./]", "weight cache daemon"),
    (r"(^|/)lmcache_server\b|\blmcache\.v1\.multiprocess\b", "cache server"),
    (r"(^|/)mooncake_master\b", "cache server"),
)

_MAIN = tuple((engine, re.compile("|".join(engine.main))) for engine in ENGINES)
_ANY_MAIN = re.compile("|".join(f"(?:{pattern})" for engine in ENGINES for pattern in engine.main))
_PREFIXES = tuple(prefix for engine in ENGINES for prefix in (*engine.helpers, *engine.ranks))
_INNER = tuple(prefix for engine in ENGINES for prefix in engine.inner)
_HOLDERS = tuple((re.compile(pattern), why) for pattern, why in HOLDERS)
_READERS = re.compile(
    r"^(\S*/)?(vim?|nano|less|more|tail|head|cat|grep|pgrep|pkill|ssh|journalctl|watch|man|emacs|tee)\s"
)
_OFFLINE = re.compile(r"\.run_batch\b|\brun-batch\b|\bvllm\.entrypoints\.cli\.main (?!serve\b)")  # no servers
# vLLM's VLLM_PROCESS_NAME_PREFIX takes any word before the colons; comm cuts the end off.
_RENAMED = re.compile(r"^[\w.@-]+::(EngineCore?|Worker|APIServer|DPCoord(?:inator)?)(?:_[A-Z]*\d*)*$")
_MPI_RANK = re.compile(r"^\S*python[\d.]* -m mpi4py\.futures\.server\b")
_SPAWN = re.compile(r"multiprocessing\.(spawn|forkserver)\b")


def words_of(process: Process) -> str:
    """What to match: the title, or the comm of what has none."""
    return process.title or process.comm


def classify(process: Process) -> tuple[Engine, Rank] | None:
    """The engine that a process belongs to by its own name, and its part there; None if its name says nothing."""
    return _classified(process.title, process.comm)


@lru_cache(maxsize=4096)  # of a node's thousand processes few are new, and the nodes of a fleet are alike
def _classified(title: str, comm: str) -> tuple[Engine, Rank] | None:
    words = title or comm
    for engine in ENGINES if _starts(title, comm, _PREFIXES) else ():
        if _starts(title, comm, engine.helpers):
            return engine, Rank.HELPER
        if _starts(title, comm, engine.ranks):
            return engine, Rank.WORKER
    if renamed := _RENAMED.match(words):
        return BY_NAME["vllm"], Rank.WORKER if renamed[1][0] in "EW" else Rank.HELPER
    if not _ANY_MAIN.search(words) or _READERS.match(words) or _name_of(title, comm) in REAPERS:
        return None  # an editor, a grep or `bash -c "… sglang.launch_server …"` only mentions the words
    for engine, pattern in _MAIN:
        if pattern.search(words) and not _OFFLINE.search(words):
            return engine, Rank.MAIN
    return None


def _starts(title: str, comm: str, prefixes: tuple[str, ...]) -> bool:
    """A title starts with a prefix; where only comm is left, it starts with the first 15 bytes of one."""
    if title:
        program, _, rest = title.partition(" ")
        name = program.rpartition("/")[2]
        script = rest.partition(" ")[0].rpartition("/")[2] if name.startswith("python") else ""
        return script in prefixes or title.startswith(prefixes) or f"{name} {rest}".startswith(prefixes)
    return comm.startswith(_cut(prefixes))


@lru_cache(maxsize=64)
def _cut(prefixes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix[:15] for prefix in prefixes if "::" in prefix or len(prefix) > 8)


def is_inner(process: Process) -> bool:
    """A helper that stands between a main and its ranks, and is of no use without it."""
    return _starts(process.title, process.comm, _INNER)


def mpi_rank(process: Process) -> bool:
    """A rank that `trtllm-serve` has MPI start for it; who else uses mpi4py has the same."""
    return _MPI_RANK.match(process.title) is not None


def notebook(process: Process) -> bool:
    return "ipykernel" in process.title


def program(process: Process) -> str:
    """What an interpreter runs, else the program itself; empty for what has no title."""
    words = process.title.split()
    if not words or not words[0].rsplit("/", 1)[-1].startswith("python"):
        return words[0] if words else ""
    options = iter(words[1:])
    for word in options:
        if word in ("-m", "-c"):
            return "" if word == "-c" else next(options, "")
        if not word.startswith("-"):
            return word
    return words[0]


def ranks_asked(argv: tuple[str, ...], engine: Engine) -> int | None:
    """How many ranks the flags ask for over all hosts; None where they leave it open, as with data parallelism."""
    tp = number(argv, engine.tp_flags)
    if tp is None or any(word.startswith(("--dp", "-dp", "--data-parallel")) for word in argv):
        return None
    return tp * (number(argv, engine.pp_flags) or 1)


def _name_of(title: str, comm: str) -> str:
    first = title.split(" ", maxsplit=1)[0].rsplit("/", 1)[-1].lstrip("-").rstrip(":")
    return first if first in REAPERS else comm


def is_reaper(process: Process) -> bool:
    return (
        process.pid == 1
        or process.comm in REAPERS
        or _name_of(process.title, process.comm) in REAPERS
        or process.comm.startswith(("containerd-shim", "tmux", "screen"))
    )


def legitimate_holder(process: Process) -> str:
    """Why a process may hold a GPU although no server runs; empty if there is no known reason."""
    words = words_of(process)
    if process.comm in {"nvidia-persiste", "nv-hostengine", "nvidia-cuda-mps"}:
        words = {"nvidia-persiste": "nvidia-persistenced", "nvidia-cuda-mps": "nvidia-cuda-mps-server"}.get(
            process.comm, process.comm
        )
    head = words.split(" ", maxsplit=1)[0] if not words.startswith(("python", "/")) else words
    return next((why for pattern, why in _HOLDERS if pattern.search(head)), "")


def spawned_child(process: Process) -> bool:
    """A Python child whose title is not set yet (or never will be)."""
    return _SPAWN.search(process.title) is not None


def flag(argv: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The value of a flag given as `--flag value` or `--flag=value`; the last one wins, as argparse has it."""
    found = None
    for i, word in enumerate(argv):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (argv[i + 1] if i + 1 < len(argv) else None)
    return found


def number(argv: tuple[str, ...], names: tuple[str, ...]) -> int | None:
    text = flag(argv, names)
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None
