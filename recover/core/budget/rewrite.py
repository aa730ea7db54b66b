"""A launch with one of its sizes changed, and its command as text again: what is advised can be pasted.

Where the value stands in the text as it is, only it is changed there; else the command is put together anew.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from recover.core.budget.commands import base
from recover.core.budget.model import Launch, Option
from recover.core.budget.options import SIZING

LMCACHE_SIZE = "LMCACHE_MAX_LOCAL_CPU_SIZE"


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
