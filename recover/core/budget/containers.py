"""A server in a container: what docker, podman or nerdctl are told, and what the image adds to it.

Source: docker-run(1), the images' own entrypoints.
"""

from __future__ import annotations

import re

from recover.core.budget.commands import CONTAINER_TOOLS, HEARD, Found, base, find_inner, shell_text
from recover.core.budget.options import Word
from recover.core.budget.sizes import container_size
from recover.core.budget.version import Version, version

_IMAGES = (
    (re.compile(r"(^|/)vllm-openai\b|(^|/)vllm/|(^|/)vllm:"), "vllm"),
    (re.compile(r"(^|/)sglang\b"), "sglang"),
    (re.compile(r"tensorrt-llm/"), "trtllm"),
    (re.compile(r"(^|/)llama\.cpp:(server|full)"), "llama.cpp"),
)
# Images whose entrypoint is the server itself, so that what follows the image are its options.
_SERVES = re.compile(r"(^|/)vllm-openai\b|(^|/)llama\.cpp:server")
# Images whose tag is the engine's version; others (Dynamo's, LMCache's) count their own.
_COUNTED = re.compile(r"(?:^|/)(?:sglang(?:-rocm)?|vllm-openai|vllm|release|llama\.cpp)(?=:|$)")
_TAG = re.compile(r":v?(\d+\.\d+\.\d+(?:\.?(?:post|rc|a|b|dev)\d+)*)(?:$|[-_+@.])")
# What a container has of /dev/shm where nobody says otherwise: docker run(1) --shm-size, the Compose specification.
CONTAINER_SHM = 64 << 20
PRIVATE_IPC = frozenset({"", "private", "shareable", "none"})  # with any other, /dev/shm is not the container's own
_DOCKER_SWITCHES = frozenset(
    (
        *("-d", "--detach", "-i", "--interactive", "-t", "--tty", "--rm", "--privileged", "--init", "--read-only"),
        *("--no-healthcheck", "-P", "--publish-all", "--oom-kill-disable", "--sig-proxy", "-q", "--quiet"),
        *("--disable-content-trust", "--replace", "--tls-verify", "--help"),
    )
)


def find(words: list[Word]) -> Found | None:
    """The engine that a command starts, if it starts one."""
    return _container(words) or find_inner(words)


def _container(words: list[Word]) -> Found | None:
    texts = [w.text for w in words]
    tool = next((i for i, t in enumerate(texts) if base(t) in CONTAINER_TOOLS), None)
    if tool is None:
        return None
    run = next((i for i in range(tool + 1, min(tool + 6, len(texts))) if texts[i] in {"run", "create", "exec"}), None)
    if run is None:
        return None
    state = Found("", [], wrapper="docker")
    entrypoint: list[Word] = []
    at = run + 1
    while at < len(words) and (texts[at].startswith("-") or _more_options(words, at)):
        if words[at].unclear and not texts[at].startswith("-"):
            state.unclear.append((texts[at], words[at].unclear))
            at += 1
        else:
            at = _docker_option(words, at, state, entrypoint)
    if at >= len(words):
        return None
    if state.shm_size is None and not state.own_shm and texts[run] != "exec":
        state.shm_size = CONTAINER_SHM
    return contained(words[at].text, entrypoint, words[at + 1 :], state)


def _more_options(words: list[Word], at: int) -> bool:
    """Whether an unknown word before the image holds options, as `$ARGS`, rather than being the image."""
    if not (words[at].unclear and words[at].many) or re.search(r"im(?:age|g)", words[at].text, re.IGNORECASE):
        return False
    following = words[at + 1].text if at + 1 < len(words) else ""
    return following.startswith("-") or bool(re.search(r"[/:]", following))


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
        state.unclear += inner.unclear
        state.membind = inner.membind
    elif (engine := image_engine(image)) and _SERVES.search(image) and not entrypoint:
        state.engine, state.words = engine, command
    else:
        return None
    state.version = image_version(image, state.engine)
    return state


def image_engine(image: str) -> str:
    return next((engine for pattern, engine in _IMAGES if pattern.search(image)), "")


def image_version(image: str, engine: str) -> Version | None:
    """The engine's version out of an image tag, if the image is one of that engine."""
    found = _TAG.search(image) if _COUNTED.search(image) and "lmcache/" not in image else None
    return version(found[1]) if found is not None and image_engine(image) == engine else None


def _docker_option(words: list[Word], at: int, state: Found, entrypoint: list[Word]) -> int:
    """One option of docker's; gives the place after it."""
    said, equals, value = words[at].text.partition("=")
    if said in _DOCKER_SWITCHES or re.fullmatch(r"-[ditPq]{2,5}", said):
        return at + 1
    unclear, shown = words[at].unclear, words[at].partial.partition("=")[2]
    if not equals:
        short = re.fullmatch(r"(-[eumhpvwl])(.+)", said)
        if short is not None and not said.startswith("--"):
            said, value = short[1], short[2]
        elif at + 1 < len(words):
            at += 1
            value, unclear, shown = words[at].text, words[at].unclear, words[at].partial
    if unclear:
        if said in {"-m", "--memory", "--shm-size"} or (said in {"-e", "--env", "--env-file"} and _heard(shown)):
            state.unclear.append((f"{said} {value}", unclear))
        return at + 1
    if said in {"-e", "--env"}:
        name, has, content = value.partition("=")
        if has:
            state.env.append((name, content))
        else:
            state.passed.append(name)
    elif said == "--env-file":
        state.env_files.append(value)
    elif said in {"-m", "--memory"}:
        state.memory_limit = container_size(value)
    elif said == "--shm-size":
        state.shm_size = container_size(value)
    elif said == "--ipc":
        state.own_shm = value not in PRIVATE_IPC
    elif said in {"-v", "--volume", "--mount", "--tmpfs"} and "/dev/shm" in value:
        state.own_shm = True
    elif said == "--entrypoint":
        entrypoint.append(Word(value))
    return at + 1


def _heard(assignment: str) -> bool:
    """Whether an assignment that is not known bears on memory, or may."""
    name = assignment.partition("=")[0]
    return not re.fullmatch(r"[A-Za-z_]\w*", name) or name.startswith(HEARD)
