"""Where in a command the engine begins: everything before it is a wrapper that is read, everything after is its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from recover.core.budget.options import Word
from recover.core.budget.sizes import container_size
from recover.core.budget.version import Version

_PYTHON = re.compile(r"(?:pypy|python)[\d.]*")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)

# (module after -m, engine). Sources: the packages' entry points, serving.md B1.
_MODULES = {
    "sglang.launch_server": "sglang",
    "sglang.srt.entrypoints.http_server": "sglang",
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "tensorrt_llm.commands.serve": "trtllm",
    "lmcache.v1.multiprocess.server": "lmcache",
    "lmcache.v1.multiprocess.http_server": "lmcache",
    "dynamo.sglang": "sglang",  # these take the engine's own options and some of theirs
    "dynamo.vllm": "vllm",
    "sglang_router.launch_server": "sglang",
}
_PROGRAMS = {"trtllm-serve": "trtllm", "llama-server": "llama.cpp", "lmcache_server": "lmcache"}
_SUBCOMMANDS = {"sglang": "sglang", "vllm": "vllm", "lmcache": "lmcache"}  # PROGRAM serve / server
MENTION = re.compile(r"sglang|vllm|trtllm-serve|llama-server|lmcache")
# Variables that bear on memory; the others, which may be secrets, are not kept.
HEARD = (
    *("SGLANG_HUGEPAGE", "SGLANG_AUTO_NUMA", "SGLANG_HICACHE", "SGLANG_HOST", "LMCACHE_", "MOONCAKE_GLOBAL_SEGMENT"),
    *("VLLM_USE_SIMPLE_KV", "VLLM_CPU_", "VLLM_KV_OFFLOAD", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("LLAMA_ARG_CACHE_RAM", "LLAMA_ARG_MLOCK", "LLAMA_ARG_NO_MMAP", "LLAMA_ARG_LOAD_MODE", "LLAMA_ARG_MODEL"),
)
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ash", "ksh"})
_BEFORE = frozenset({"sudo", "env", "exec", "nohup", "setsid", "time", "nice", "stdbuf", "command", "source", "."})
CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl"})


@dataclass(slots=True)
class Found:
    """An engine's own words, and what the wrapper said."""

    engine: str
    words: list[Word]
    interpreter: str = ""
    env: list[tuple[str, str]] = field(default_factory=list)
    image: str = ""
    version: Version | None = None
    wrapper: str = ""
    memory_limit: int | None = None
    shm_size: int | None = None
    membind: str = ""
    unclear: list[tuple[str, str]] = field(default_factory=list)
    env_files: list[str] = field(default_factory=list)
    script: Word | None = None  # what a container's shell gets; the engine is in there
    own_shm: bool = False  # its /dev/shm is the machine's, or a mount
    passed: list[str] = field(default_factory=list)  # variables that it gets from around it: `-e NAME`


def shell_text(words: list[Word]) -> Word | None:
    """The text that a shell gets as one word: `bash -c TEXT`, `tmux new -d TEXT`, `ssh HOST TEXT`. What is not known in
    it stays as it is written."""
    for i, word in enumerate(words[:-1]):
        if base(word.text) in {*SHELLS, "su", "runuser"}:
            for j in range(i + 1, min(i + 5, len(words) - 1)):
                if re.fullmatch(r"-[a-z]*c|--command", words[j].text):
                    return _known(words[j + 1])
        if base(word.text) in {"tmux", "screen", "ssh", "eval"}:
            texts = (_known(w) for w in words[i + 1 :])
            return next((w for w in texts if " " in w.text and MENTION.search(w.text)), None)
    return None


def _known(word: Word) -> Word:
    return Word(word.partial) if word.unclear and word.partial else word


def script_file(words: list[Word]) -> tuple[str, list[str]] | None:
    """What may be a script that a command runs, and what it is given: `bash -x run.sh 8`, `./run.sh`."""
    at = 0
    while at < len(words) and (base(words[at].text) in _BEFORE or _ASSIGN.fullmatch(words[at].text)):
        at += 1
    if at < len(words) and base(words[at].text) in SHELLS:
        at += 1
        while at < len(words) and words[at].text.startswith("-"):
            at += 1
    if at >= len(words) or words[at].unclear or not re.search(r"[/.]", words[at].text):
        return None
    given = words[at + 1 :]
    return words[at].text, [] if any(w.unclear for w in given) else [w.text for w in given]


def takes_stdin(words: list[Word]) -> bool:
    """Whether what the command is given on stdin is a script: `bash -s`, `ssh HOST`, `docker exec -i C bash`."""
    return any(base(w.text) in {*SHELLS, "ssh"} for w in words)


def detached(words: list[Word]) -> bool:
    """Whether the command ends while the server runs."""
    texts = [w.text for w in words]
    if any(base(t) in CONTAINER_TOOLS for t in texts):
        return any(t in {"-d", "--detach"} or re.fullmatch(r"-[it]*d[it]*", t) for t in texts)
    return any(base(t) in {"tmux", "screen", "daemonize", "systemd-run"} for t in texts) or "setsid" in texts


def base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def find_inner(words: list[Word]) -> Found | None:
    """The engine where no container is between."""
    at = _engine_at(words)
    if at is None:
        return None
    engine, start, interpreter = at
    found = Found(engine, words[start:], interpreter)
    _wrappers(words[:start], found)
    return found


def _engine_at(words: list[Word]) -> tuple[str, int, str] | None:
    """Engine, where its own words start, and the program that holds it."""
    texts = [w.text for w in words]
    for i, text in enumerate(texts):
        following = texts[i + 1] if i + 1 < len(texts) else ""
        if text == "-m" and following in _MODULES:
            python = next((t for t in reversed(texts[:i]) if _PYTHON.fullmatch(base(t))), "")
            start = i + 2 + (following == "vllm.entrypoints.cli.main" and texts[i + 2 : i + 3] == ["serve"])
            return _MODULES[following], start, python
        if text.endswith("sglang/launch_server.py"):
            return "sglang", i + 1, next((t for t in reversed(texts[:i]) if _PYTHON.fullmatch(base(t))), "")
        program = base(text)
        if program in _PROGRAMS and not _argument(texts, i):
            return _PROGRAMS[program], i + 1 + (program == "trtllm-serve" and following == "serve"), text
        if program in _SUBCOMMANDS and following in {"serve", "server"} and not _argument(texts, i):
            return _SUBCOMMANDS[program], i + 2, text
    return None


def _argument(texts: list[str], at: int) -> bool:
    """Whether the word is only looked for or looked at: `pkill -f llama-server`, `systemctl stop vllm`."""
    readers = {
        "pkill",
        "pgrep",
        "killall",
        "grep",
        "echo",
        "systemctl",
        "which",
        "man",
        "tail",
        "pip",
        "apt",
        "service",
    }
    return any(base(t) in readers for t in texts[:at])


def _wrappers(words: list[Word], found: Found) -> None:
    """Environment assignments, limits and bindings before the engine."""
    binds = False
    for i, word in enumerate(words):
        name = base(word.text)
        if _PYTHON.fullmatch(name):
            binds = False  # its -m is another
        elif name == "numactl":
            binds = True
        assign = _ASSIGN.fullmatch(word.text)
        if assign is not None and not word.unclear:
            found.env.append((assign[1], assign[2]))
        elif word.unclear and word.partial.startswith(HEARD):
            found.unclear.append((word.text, word.unclear))
        if binds and re.match(r"--membind\b|-m$", word.text):
            found.membind = word.text.partition("=")[2] or (words[i + 1].text if i + 1 < len(words) else "")
        if (limit := re.fullmatch(r"(?:--property=|-p)?Memory(?:Max|High|Limit)=(.+)", word.text)) is not None:
            found.memory_limit = container_size(limit[1]) or found.memory_limit  # systemd-run
