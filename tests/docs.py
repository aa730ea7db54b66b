"""What the pages say about commands, steps and settings, made from the code; `python -m tests.docs` writes it anew.

A page holds such a part between `<!-- NAME: … -->` and `<!-- end -->`; all else in it is written by hand.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from recover.cli.main import cli, with_default
from recover.model.ladder import Param, Step
from recover.steps.table import ALL_STEPS

ROOT = Path(__file__).resolve().parent.parent
PART = re.compile(r"(<!-- ([\w-]+)(?: ([\w-]+))?: kept by python -m tests\.docs -->\n)(.*?)(<!-- end -->)", re.S)
BOTH = ("config", "state_dir")  # taken by every command


def pages() -> tuple[Path, ...]:
    return (ROOT / "README.md", ROOT / "THIRD-PARTY.md", *sorted((ROOT / "docs").glob("*.md")))


def renewed(text: str) -> str:
    """The page with its made parts as the code has them now."""
    return PART.sub(lambda m: m[1] + MAKERS[m[2]](m[3] or "") + m[5], text)


# -- steps


def step_table(name: str) -> str:
    step = ALL_STEPS[name]
    lines = [
        "| scope | reach | through | for |",
        "|---|---|---|---|",
        f"| {step.scope.word} | {step.reach.word} | {_words(step.via)} | {_words(step.kinds)} |",
        "",
        step.doc,
        "",
    ]
    return "\n".join([*lines, *_params(step)]) + "\n"


def _words(values: frozenset[str]) -> str:
    return ", ".join(sorted(str(value) for value in values))


def _params(step: Step) -> list[str]:
    if not step.params:
        return ["No parameters."]
    rows = [f"| `{p.name}` | {_value(p, p.default)} | {_range(p)} | {p.doc} |" for p in step.params]
    return ["| parameter | default | allowed | meaning |", "|---|---|---|---|", *rows]


def _value(param: Param, value: object) -> str:
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f'`"{_duration(float(value))}"`' if param.unit == "s" and isinstance(value, (int, float)) else f"`{value}`"


def _duration(seconds: float) -> str:
    """As it is written in a playbook."""
    return f"{seconds / 60:g}m" if seconds >= 60 and seconds % 60 == 0 else f"{seconds:g}s"


def _range(param: Param) -> str:
    if isinstance(param.default, bool):
        return "`true`, `false`"
    if param.least is None or param.most is None:
        return "any"
    if param.unit == "s":
        return f"{_duration(param.least)} to {_duration(param.most)}"
    return f"{param.least:g} to {param.most:g}"


# -- commands


def walk(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        if words:
            yield words, command
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from walk(inner, (*words, name))
    else:
        yield words, command


def options_of(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option) and p.name not in BOTH]


def command_list(_: str) -> str:
    return "\n".join(_command(words, command) for words, command in walk(cli)) + "\n"


def _command(words: tuple[str, ...], command: click.Command) -> str:
    arguments = " ".join(
        a.make_metavar(click.Context(command)) for a in command.params if isinstance(a, click.Argument)
    )
    about = re.sub(r"\s+", " ", (command.help or "").replace("\b", "")).strip()
    lines = [f"## `gpu-recover {' '.join(words)}`", "", about, ""]
    if arguments:
        lines += [f"`gpu-recover {' '.join(words)} {arguments}`", ""]
    if options_of(command):
        lines += ["| option | meaning |", "|---|---|"]
        lines += [f"| {_option(o)} | {(o.help or '').replace('|', ' or ')} |" for o in options_of(command)]
        lines.append("")
    return "\n".join(lines)


def _metavar(option: click.Option) -> str:
    """What stands behind the option: its own word, SCOPE, the choices, or a number."""
    if option.metavar:
        return option.metavar.replace("|", " or ")
    if isinstance(option.type, click.Choice):
        return "SCOPE" if "host-device" in option.type.choices else " or ".join(option.type.choices)
    return "N" if isinstance(option.type, click.types.IntParamType) else "VALUE"


def _option(option: click.Option) -> str:
    value = "" if option.is_flag else f" {_metavar(option)}"
    return ", ".join(f"`{name}{value}`" for name in sorted(option.opts, key=len, reverse=True))


# -- calls that stand in the pages


def calls(text: str) -> Iterator[list[str]]:
    """The words of every `gpu-recover …` in code of a page: lines of code blocks and code within text."""
    blocks = re.findall(r"```[a-z]*\n(.*?)```", text, re.S)
    rest = re.sub(r"```[a-z]*\n.*?```", "", text, flags=re.S)
    pieces = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    pieces += re.findall(r"`([^`\n]+)`", rest)
    for piece in pieces:
        if piece.startswith("gpu-recover ") or piece == "gpu-recover":
            yield shlex.split(piece.partition("  #")[0].replace("…", "X"), comments=True)[1:]


def unknown_in(words: list[str]) -> list[str]:
    """What a call names that the command line does not have."""
    words = words[: words.index("--")] if "--" in words else words  # what follows is somebody else's command
    words = with_default([w for w in words if not w.startswith("[") and w not in ("|", "...")])
    command: click.Command = cli
    names = {name for p in cli.params for name in p.opts}
    wrong: list[str] = []
    for word in words:
        inner = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if inner is not None:
            command = inner
            names |= {name for p in command.params for name in p.opts} | {"--help", "-h"}
        elif word.startswith("-") and word.partition("=")[0] not in names | {"--help", "-h"}:
            wrong.append(word)
    return wrong


MAKERS = {"step": step_table, "commands": command_list}


def main() -> int:
    for page in pages():
        text = page.read_text()
        new = renewed(text)
        if new != text:
            page.write_text(new)
            print(f"{page.relative_to(ROOT)}: written anew")
    return 0


if __name__ == "__main__":
    sys.exit(main())
