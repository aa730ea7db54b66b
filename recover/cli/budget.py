"""`gpu-recover budget`: the sum before a launch, from figures that a person gives; no machine is asked anything."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recover.cli.common import emit, emit_json, places

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recover.core.budget.model import Facts, Launch, ModelConfig, Verdict
    from recover.core.budget.version import Version

# What `--size` is of each engine, as the command line has it.
_MAIN = {"sglang": "hicache-size", "vllm": "kv-offloading-size"}
_LARGEST_FILE = 64 << 20


@click.command()
@places
@click.option("--available", metavar="SIZE", required=True, help="Memory that is available, as 445GiB.")
@click.option("--loading", metavar="SIZE", help="What loading takes besides, as 40GiB; else 5 GiB per rank.")
@click.option("--margin", metavar="SIZE", help="What is to stay free, as 25GiB; else 25 GiB.")
@click.option("--ranks", metavar="N", help="Ranks on the host: tp x pp x plain dp.")
@click.option("--engine", metavar="NAME[==VERSION]", help="sglang or vllm, best with its version: sglang==0.5.9.")
@click.option("--model-config", metavar="FILE", help="The model's config.json: bytes per token, side pools.")
@click.option("--draft-config", metavar="FILE", help="The draft model's config.json.")
@click.option("--device-tokens", metavar="N", help="max_total_num_tokens of a server of this model that ran.")
@click.option("--shm", metavar="SIZE", help="Free space in /dev/shm: vLLM 0.33 keeps its pool there.")
@click.option("--hicache-size", "--size", "size", metavar="N", help="A size to judge; else the largest is sought.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, amounts in bytes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def budget(
    available: str,
    loading: str | None,
    margin: str | None,
    ranks: str | None,
    engine: str | None,
    model_config: str | None,
    draft_config: str | None,
    device_tokens: str | None,
    shm: str | None,
    size: str | None,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """How large a host cache may be: the figures, the formula, the largest safe value.

    \b
      gpu-recover budget --available 445GiB --loading 40GiB --margin 25GiB --ranks 8 --engine sglang==0.5.9
    """
    from recover.core.budget import beside
    from recover.core.budget.model import Problem

    try:
        facts = _facts(available, loading, margin, device_tokens, shm)
        launches = _launches(engine, ranks, size, command)
        config, draft = _config(model_config), _config(draft_config)
        verdicts = beside.together(
            launches, facts, lambda one, left: _judged(one, left, config, draft, sought=size is None and not command)
        )
        if not command:  # figures are no command that could be pasted
            verdicts = tuple(replace(verdict, corrected="") for verdict in verdicts)
    except Problem as problem:
        raise click.UsageError("; ".join(problem.problems) + (f" ({problem.hint})" if problem.hint else "")) from None
    return _said(launches, verdicts, as_json)


def _said(launches: Sequence[Launch], verdicts: Sequence[Verdict], as_json: bool) -> int:
    from recover.core.budget import words

    if as_json:
        plain = [words.as_json(verdict) for verdict in verdicts]
        emit_json(plain if len(plain) > 1 else plain[0])
    else:
        texts = ["\n".join(words.verdict_lines(verdict)) for verdict in verdicts]
        heads = [f"{launch.where or launch.engine}:\n" if len(texts) > 1 else "" for launch in launches]
        emit("\n\n".join(head + text for head, text in zip(heads, texts, strict=True)))
    return max(words.exit_code(verdict) for verdict in verdicts)


def _facts(
    available: str, loading: str | None, margin: str | None, device_tokens: str | None, shm: str | None
) -> Facts:
    from recover.core.budget.model import NOT_READ, Facts, Shm
    from recover.core.budget.sizes import count, size
    from recover.model.reading import Known

    room = size(shm, "--shm") if shm is not None else None
    return Facts(
        Known(size(available, "--available")),
        shm=Known(Shm(room, room)) if room is not None else NOT_READ,
        loading=size(loading, "--loading") if loading is not None else None,
        margin=size(margin, "--margin") if margin is not None else None,
        device_tokens=Known(count(device_tokens, "--device-tokens", most=1 << 40)) if device_tokens else NOT_READ,
    )


def _launches(engine: str | None, ranks: str | None, size: str | None, command: tuple[str, ...]) -> tuple[Launch, ...]:
    """The launch that the figures describe, or those that were given."""
    from recover.core.budget.launch import parse
    from recover.core.budget.model import Launch, Option, Problem
    from recover.core.budget.rewrite import with_value
    from recover.core.budget.sizes import count

    name, version = _engine(engine)
    if command:
        text, files = launch_text(command)
        found = parse(text, files=files, version=version, engine=name)
        return tuple(with_value(f, _MAIN[f.engine], size) if size and f.engine in _MAIN else f for f in found)
    if not name:
        raise Problem("which engine? --engine sglang==0.5.9, or the command after --")
    if ranks is None:
        raise Problem("how many ranks? --ranks N, or the command after --")
    tp = {"sglang": "tp-size", "vllm": "tensor-parallel-size"}[name]
    options = [Option(tp, str(count(ranks, "--ranks", most=1024)), "--ranks")]
    if name == "sglang":
        options.append(Option("enable-hierarchical-cache", None, "--enable-hierarchical-cache"))
    options.append(
        Option(_MAIN[name], str(count(size, "--hicache-size", most=10**15)) if size else "1", "--hicache-size")
    )
    return (Launch(name, version, tuple(options)),)


def _engine(text: str | None) -> tuple[str, Version | None]:
    from recover.core.budget.model import Problem
    from recover.core.budget.version import version
    from recover.core.clean import clean

    if text is None:
        return "", None
    name, equals, said = text.partition("==")
    name = name.strip().lower()
    if name not in _MAIN:
        raise Problem(f"--engine {clean(text, 60)!r}: not known; known are {', '.join(_MAIN)}")
    found = version(said) if equals else None
    if equals and found is None:
        raise Problem(f"--engine {clean(text, 60)!r}: {clean(said, 40)!r} is no version")
    return name, found


def launch_text(command: tuple[str, ...], folder: str = "", *, here: bool = True) -> tuple[str, Mapping[str, str]]:
    """What follows after `--`: words, one quoted command, or the name of a file, whose own files lie beside it.

    `here`: the launch is for this machine, so that the files that it names by their whole path are those of this one.
    """
    from recover.core.budget.launch import LONGEST
    from recover.core.budget.preflight import command_text

    path = Path(command[0])
    if len(command) > 1 or "\0" in command[0] or not path.is_file():
        return command_text(command), Files(folder) if here else {}
    drop_ins = sorted(Path(f"{path}.d").glob("*.conf")) if path.suffix == ".service" else []
    return "\n".join(_text(str(part), LONGEST) for part in (path, *drop_ins)), Files(str(path.parent), beside=not here)


class Files(dict[str, str]):
    """Files that a launch names, read when they are asked for; what can't be read is not there."""

    def __init__(self, folder: str = "", *, beside: bool = False) -> None:
        super().__init__()
        self._folder, self._beside = folder, beside

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or not name or "\0" in name or (self._beside and os.path.isabs(name)):
            return False
        path = Path(self._folder, name)
        return path.is_file() and os.access(path, os.R_OK)

    def __missing__(self, name: str) -> str:
        return _text(str(Path(self._folder, name)))


def _text(name: str, most: int = _LARGEST_FILE) -> str:
    from recover.core.budget.model import Problem
    from recover.core.clean import clean

    try:
        with Path(name).open("rb") as stream:
            data = stream.read(most + 1)
    except OSError as error:
        raise Problem(f"{clean(name, 120)}: {error.strerror}") from None
    if len(data) > most:
        raise Problem(f"{clean(name, 120)}: larger than {most >> 20 or 1} MiB")
    return data.decode("utf-8", "replace")


def _config(name: str | None) -> ModelConfig | None:
    from recover.core.budget.bytes_per_token import read_config

    return read_config(_text(name), name) if name is not None else None


def _judged(
    launch: Launch, facts: Facts, config: ModelConfig | None, draft: ModelConfig | None, *, sought: bool
) -> Verdict:
    """The launch as given, or with the largest size that is safe."""
    from recover.core.budget.rewrite import with_value
    from recover.core.budget.solve import judge

    plain = config is None
    found = judge(launch, facts, config, draft=draft, plain=plain)
    best = next((s.value for s in found.safe if s.flag == _MAIN.get(launch.engine)), None)
    if sought and best is not None:
        found = judge(with_value(launch, _MAIN[launch.engine], str(best)), facts, config, draft=draft, plain=plain)
    if sought and best is None:
        from recover.core.budget.model import Fit

        return replace(found, fit=Fit.NOT if found.fit is not Fit.CANNOT_TELL else found.fit)
    return found
