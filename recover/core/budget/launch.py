"""A launch is read from what people write: what can't be read for certain is named in it, and nothing is made up.

`parse` takes text (a command, a script, a systemd unit, a compose file), `from_argv` the words of a process. Files that
a launch names are given by the caller as texts; those that are missing are listed in `Launch.files`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from recover.core.budget import compose, settings, systemd
from recover.core.budget.commands import Found, base, find, image_version, shell_text
from recover.core.budget.model import Launch, Option, Problem, Unresolved
from recover.core.budget.options import SIZING, Word, read_options
from recover.core.budget.shell import Lexer
from recover.core.budget.version import Version

Files = Mapping[str, str]
LONGEST = 1_000_000
DEEPEST = 3  # shells in shells


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a command was found."""

    wrapper: str = ""
    where: str = ""
    text: str = ""
    env: tuple[tuple[str, str], ...] = ()
    memory_limit: int | None = None
    shm_size: int | None = None
    assumed: tuple[str, ...] = ()
    unresolved: tuple[Unresolved, ...] = ()


def parse(
    text: str,
    *,
    files: Files | None = None,
    env: Mapping[str, str] | None = None,
    version: Version | None = None,
) -> tuple[Launch, ...]:
    """Every server that the text would start. Raises Problem for broken text and for text that starts none."""
    if len(text) > LONGEST:
        raise Problem("the launch text is longer than 1 MB")
    given = files or {}
    around = env or {}
    if systemd.is_unit(text):
        found = _unit(text, given, version)
    elif compose.is_compose(text):
        found = _compose(text, given, around, version)
    else:
        found = _script(text, given, around, version)
    if not found:
        raise Problem("no command here starts a server that is known", hint=KNOWN)
    return tuple(found)


# Variables that bear on memory; the others, which may be secrets, are not kept.
HEARD = (
    *("SGLANG_HUGEPAGE", "SGLANG_AUTO_NUMA", "SGLANG_HICACHE", "SGLANG_HOST", "LMCACHE_", "MOONCAKE_GLOBAL_SEGMENT"),
    *("VLLM_USE_SIMPLE_KV", "VLLM_CPU_", "VLLM_KV_OFFLOAD", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
)
LMCACHE_SIZE = "LMCACHE_MAX_LOCAL_CPU_SIZE"
KNOWN = "known: python -m sglang.launch_server, sglang serve, vllm serve, trtllm-serve, llama-server, lmcache server"


def from_argv(
    argv: Iterable[str],
    *,
    files: Files | None = None,
    env: Mapping[str, str] | None = None,
    version: Version | None = None,
) -> Launch | None:
    """The server that these words start; None if they start none that is known. Total."""
    words = [Word(w) for w in argv]
    origin = Origin(env=tuple((env or {}).items()))
    try:
        return next(iter(_command(words, origin, files or {}, version, depth=0)), None)
    except Problem:
        return None  # the text after `bash -c` is broken: a shell would not start it either


# --- one command --------------------------------------------------------------------------------------------------


def _command(words: list[Word], origin: Origin, files: Files, version: Version | None, depth: int) -> list[Launch]:
    found = find(words)
    if found is not None:
        return _found(found, origin, files, version, depth)
    inner = shell_text(words)
    if inner is None or inner.unclear or depth > DEEPEST:
        return []
    around = {**dict(origin.env), **_assignments(words)}
    return _text(inner.text, replace(origin, text=""), files, around, version, depth + 1)


def _found(found: Found, origin: Origin, files: Files, version: Version | None, depth: int) -> list[Launch]:
    if found.script is None:
        return [build(found, origin, files, version)]
    if found.script.unclear or depth > DEEPEST:
        return []
    inside = _text(found.script.text, replace(origin, text=""), files, {}, version, depth + 1)
    return [_contained(launch, found, files) for launch in inside]


def _contained(launch: Launch, found: Found, files: Files) -> Launch:
    """What a container's shell starts, with what the container gives it."""
    env, missing = dict(found.env), list(launch.files)
    for name in found.env_files:
        _env_file(name, env, files, missing)
    return replace(
        launch,
        version=image_version(found.image, launch.engine) or launch.version,
        env=(*((n, v) for n, v in env.items() if n.startswith(HEARD)), *launch.env),
        image=found.image,
        wrapper=found.wrapper,
        memory_limit=found.memory_limit or launch.memory_limit,
        shm_size=found.shm_size or launch.shm_size,
        unresolved=(*launch.unresolved, *(Unresolved(word, why, matters=True) for word, why in found.unclear)),
        files=tuple(missing),
    )


def _assignments(words: list[Word]) -> dict[str, str]:
    pairs = (w.text.partition("=") for w in words if not w.unclear and not w.text.startswith("-"))
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def build(found: Found, origin: Origin, files: Files, version: Version | None) -> Launch:
    """The launch of an engine that was found in a command."""
    counted = found.version or version
    env = dict([*origin.env, *found.env])
    missing: list[str] = []
    unresolved = [Unresolved(word, why, matters=True) for word, why in found.unclear]
    for name in found.env_files:
        _env_file(name, env, files, missing)
    read = read_options(found.engine, counted, found.words)
    options, more = settings.from_files(found.engine, counted, read.options, env, files, missing)
    unresolved += [*origin.unresolved, *read.unresolved, *more]
    unresolved += [Unresolved(name, "the file was not read", matters=True) for name in missing]
    return Launch(
        engine=found.engine,
        version=counted,
        options=tuple(options),
        positional=tuple(read.positional),
        env=tuple((name, value) for name, value in env.items() if name.startswith(HEARD)),
        unresolved=tuple(unresolved),
        assumed=origin.assumed,
        argv=tuple(w.text for w in found.words),
        interpreter=found.interpreter,
        wrapper=found.wrapper or origin.wrapper,
        where=origin.where,
        image=found.image,
        text=origin.text,
        memory_limit=found.memory_limit or origin.memory_limit,
        shm_size=found.shm_size or origin.shm_size,
        membind=found.membind,
        files=tuple(missing),
    )


def _env_file(name: str, env: dict[str, str], files: Files, missing: list[str]) -> None:
    if name not in files:
        missing.append(name)
        return
    for key, value in systemd.environment_lines(files[name]):
        env.setdefault(key, value)


# --- texts --------------------------------------------------------------------------------------------------------


def _script(text: str, files: Files, env: Mapping[str, str], version: Version | None) -> list[Launch]:
    return _text(text, Origin(text=text), files, env, version, 0)


def _text(
    text: str, origin: Origin, files: Files, env: Mapping[str, str], version: Version | None, depth: int
) -> list[Launch]:
    commands = Lexer(text, env, files).read()
    wrapper = origin.wrapper or ("script" if len(commands) > 1 and depth == 0 else "")
    found: list[Launch] = []
    for command in commands:
        where = origin.where or (f"line {command.line}" if len(commands) > 1 else "")
        own = replace(
            origin,
            wrapper=wrapper,
            where=where,
            env=(*env.items(), *origin.env, *command.env),
            assumed=(*origin.assumed, *command.assumed),
        )
        found += _command(command.words, own, files, version, depth)
    return found


def _unit(text: str, files: Files, version: Version | None) -> list[Launch]:
    unit = systemd.read(text, files)
    found: list[Launch] = []
    for line, words in unit.starts:
        origin = Origin(
            "systemd",
            f"ExecStart, line {line}",
            text,
            env=tuple(unit.env.items()),
            memory_limit=unit.memory_limit,
            unresolved=tuple(Unresolved(name, "the file was not read", matters=True) for name in unit.missing),
        )
        for launch in _command(words, origin, files, version, 0):
            found.append(replace(launch, files=(*launch.files, *unit.missing)))
    return found


def _compose(text: str, files: Files, env: Mapping[str, str], version: Version | None) -> list[Launch]:
    found: list[Launch] = []
    for service in compose.read(text, files, env):
        origin = Origin("compose", f"service {service.name}", assumed=tuple(service.assumed))
        if (state := service.found()) is not None:
            found += _found(state, origin, files, version, 1)
    return found


# --- the command again --------------------------------------------------------------------------------------------


def with_value(launch: Launch, name: str, value: str) -> Launch:
    """The launch with one setting changed or added. Its text is changed in place where the value stands there."""
    if name == "max-local-cpu-size":  # LMCache has no option of its own on an engine's command line
        env = {**dict(launch.env), LMCACHE_SIZE: value}
        return replace(launch, env=tuple(env.items()), text="")
    if name == "host-cache-size":  # it stands in a YAML file
        inner = f"kv-cache-config.{name}"
        kept = tuple(o for o in launch.options if not o.name.endswith((".host-cache-size", "-host-memory-bytes")))
        return replace(launch, options=(*kept, Option(inner, value, inner)), text="")
    old = launch.option(name)
    word = f"--{name}" if launch.engine != "trtllm" else f"--{name.replace('-', '_')}"
    if old is None:
        return replace(
            launch,
            options=(*launch.options, Option(name, value, word)),
            argv=(*launch.argv, word, value),
            text="",
        )
    options = tuple(replace(o, value=value) if o is old else o for o in launch.options)
    text, span = launch.text, old.span
    if text and span is not None and text[span[0] : span[1]] == old.value:
        text = text[: span[0]] + value + text[span[1] :]
        options = tuple(_moved(o, span[0], len(value) - (span[1] - span[0])) for o in options)
    else:
        text = ""
    return replace(launch, options=options, argv=_replaced(launch.argv, old, value), text=text)


def _moved(option: Option, at: int, by: int) -> Option:
    """The option where its value stands after a value at `at` has become longer."""
    if option.span is None or option.span[0] < at:
        return option
    start = option.span[0] + (by if option.span[0] > at else 0)
    return replace(option, span=(start, option.span[1] + by))


def _replaced(argv: tuple[str, ...], old: Option, value: str) -> tuple[str, ...]:
    """The words with the last occurrence of the option's value changed."""
    for i in range(len(argv) - 1, -1, -1):
        if argv[i] == f"{old.said}={old.value}":
            return (*argv[:i], f"{old.said}={value}", *argv[i + 1 :])
        if argv[i] == old.said and i + 1 < len(argv) and argv[i + 1] == old.value:
            return (*argv[: i + 1], value, *argv[i + 2 :])
    return (*argv, old.said, value)  # it stood in a file: the command line wins over it


def command_of(launch: Launch) -> str:
    """The command as text: the text it came from where that still holds, else its words put together anew."""
    if launch.text:
        return launch.text
    heads = {"sglang": ("python3", "-m", "sglang.launch_server"), "vllm": ("vllm", "serve")}
    own = {"trtllm": ("trtllm-serve",), "llama.cpp": ("llama-server",), "lmcache": ("lmcache", "server")}
    head: tuple[str, ...] = heads.get(launch.engine) or own[launch.engine]
    if launch.interpreter and launch.engine == "sglang" and base(launch.interpreter) != "sglang":
        head = (launch.interpreter, "-m", "sglang.launch_server")
    elif launch.interpreter and base(launch.interpreter) == "sglang":
        head = (launch.interpreter, "serve")
    size = launch.variable(LMCACHE_SIZE)
    before = f"{LMCACHE_SIZE}={shlex.quote(size)} " if size is not None else ""
    return before + shlex.join((*head, *launch.argv))


def sizing_options(launch: Launch) -> tuple[Option, ...]:
    """The settings of the launch that bear on host memory."""
    return tuple(o for o in launch.options if o.name in SIZING[launch.engine])
