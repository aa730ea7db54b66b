"""Where in a command the engine begins: everything before it is a wrapper that is read, everything after is its own."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from recover.core.budget.options import Word
from recover.core.budget.sizes import container_size
from recover.core.budget.version import Version, version

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
}
_PROGRAMS = {"trtllm-serve": "trtllm", "llama-server": "llama.cpp", "lmcache_server": "lmcache"}
_SUBCOMMANDS = {"sglang": "sglang", "vllm": "vllm", "lmcache": "lmcache"}  # PROGRAM serve / server
_IMAGES = (
    (re.compile(r"(^|/)vllm-openai\b|(^|/)vllm/|(^|/)vllm:"), "vllm"),
    (re.compile(r"(^|/)sglang\b"), "sglang"),
    (re.compile(r"tensorrt-llm/"), "trtllm"),
    (re.compile(r"(^|/)llama\.cpp:(server|full)"), "llama.cpp"),
)
# Images whose entrypoint is the server itself, so that what follows the image are its options.
_SERVES = re.compile(r"(^|/)vllm-openai\b|(^|/)llama\.cpp:server")
_TAG = re.compile(r":v?(\d+\.\d+\.\d+(?:\.?(?:post|rc|a|b|dev)\d+)*)(?:$|[-_+@.])")
_MENTION = re.compile(r"sglang|vllm|trtllm-serve|llama-server|lmcache")
_CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl"})
_DOCKER_SWITCHES = frozenset(
    (
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--privileged", "--init", "--read-only"),
        *("--no-healthcheck", "-P", "--publish-all", "--oom-kill-disable", "--sig-proxy", "-q", "--quiet"),
        *("--disable-content-trust", "--replace", "--tls-verify", "--help"),
    )
)


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


def find(words: list[Word]) -> Found | None:
    """The engine that a command starts, if it starts one."""
    if (contained := _container(words)) is not None:
        return contained
    return find_inner(words)


def shell_text(words: list[Word]) -> Word | None:
    """The text that a shell gets as one word: `bash -c TEXT`, `tmux new -d TEXT`, `ssh HOST TEXT`."""
    for i, word in enumerate(words[:-1]):
        if base(word.text) in {"bash", "sh", "dash", "zsh", "ash", "su", "runuser"}:
            for j in range(i + 1, min(i + 5, len(words) - 1)):
                if re.fullmatch(r"-[a-z]*c|--command", words[j].text):
                    return words[j + 1]
        if base(word.text) in {"tmux", "screen", "ssh", "eval"}:
            return next((w for w in words[i + 1 :] if " " in w.text and _MENTION.search(w.text)), None)
    return None


def base(word: str) -> str:
    return word.rsplit("/", 1)[-1]


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
    """Environment assignments and bindings before the engine."""
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
        if binds and re.match(r"--membind\b|-m$", word.text):
            found.membind = word.text.partition("=")[2] or (words[i + 1].text if i + 1 < len(words) else "")


# --- containers ---------------------------------------------------------------------------------------------------


def _container(words: list[Word]) -> Found | None:
    texts = [w.text for w in words]
    tool = next((i for i, t in enumerate(texts) if base(t) in _CONTAINER_TOOLS), None)
    if tool is None:
        return None
    run = next((i for i in range(tool + 1, min(tool + 6, len(texts))) if texts[i] in {"run", "create", "exec"}), None)
    if run is None:
        return None
    state = Found("", [], wrapper="docker")
    entrypoint: list[Word] = []
    at = run + 1
    while at < len(words) and texts[at].startswith("-"):
        at = _docker_option(words, at, state, entrypoint)
    if at >= len(words):
        return None
    return contained(words[at].text, entrypoint, words[at + 1 :], state)


def contained(image: str, entrypoint: list[Word], command: list[Word], state: Found) -> Found | None:
    """What a container of `image` runs."""
    state.image = image
    script = shell_text([*entrypoint, *command])
    inner = find_inner([*entrypoint, *command])
    if script is not None:
        state.script = script
    elif inner is not None:
        state.engine, state.words, state.interpreter = inner.engine, inner.words, inner.interpreter
        state.env += inner.env
        state.membind = inner.membind
    elif (engine := image_engine(image)) and _SERVES.search(image) and not entrypoint:
        state.engine, state.words = engine, command
    else:
        return None
    state.version = image_version(image, state.engine)
    return state


def find_inner(words: list[Word]) -> Found | None:
    """The engine where no container is between."""
    at = _engine_at(words)
    if at is None:
        return None
    engine, start, interpreter = at
    found = Found(engine, words[start:], interpreter)
    _wrappers(words[:start], found)
    return found


def image_engine(image: str) -> str:
    return next((engine for pattern, engine in _IMAGES if pattern.search(image)), "")


def image_version(image: str, engine: str) -> Version | None:
    """The engine's version out of an image tag, if the image is one of that engine."""
    found = _TAG.search(image)
    return version(found[1]) if found is not None and image_engine(image) == engine else None


def _docker_option(words: list[Word], at: int, state: Found, entrypoint: list[Word]) -> int:
    """One option of docker's; gives the place after it."""
    said, equals, value = words[at].text.partition("=")
    if said in _DOCKER_SWITCHES or re.fullmatch(r"-[ditPq]{2,5}", said):
        return at + 1
    unclear = words[at].unclear
    if not equals:
        short = re.fullmatch(r"(-[eumhpvwl])(.+)", said)
        if short is not None and not said.startswith("--"):
            said, value = short[1], short[2]
        elif at + 1 < len(words):
            at += 1
            value, unclear = words[at].text, words[at].unclear
    if unclear:
        if said in {"-e", "--env", "-m", "--memory", "--shm-size"}:
            state.unclear.append((f"{said} {value}", unclear))
        return at + 1
    if said in {"-e", "--env"}:
        name, has, content = value.partition("=")
        if has:
            state.env.append((name, content))
    elif said == "--env-file":
        state.env_files.append(value)
    elif said in {"-m", "--memory"}:
        state.memory_limit = container_size(value)
    elif said == "--shm-size":
        state.shm_size = container_size(value)
    elif said == "--entrypoint":
        entrypoint.append(Word(value))
    return at + 1
