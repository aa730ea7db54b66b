"""`gpu-recover budget`: the sum before a launch, from figures that a person gives; no machine is asked anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recover.cli.common import emit, emit_json, places

if TYPE_CHECKING:
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
    from recover.core.budget.model import Problem

    try:
        facts = _facts(available, loading, margin, device_tokens, shm)
        launch = _launch(engine, ranks, size, command)
        config, draft = _config(model_config), _config(draft_config)
        verdict = _judged(launch, facts, config, draft, sought=size is None and not command)
        if not command:
            verdict = replace(verdict, corrected="")  # figures are no command that could be pasted
    except Problem as problem:
        raise click.UsageError("; ".join(problem.problems) + (f" ({problem.hint})" if problem.hint else "")) from None
    return _said(verdict, as_json)


def _said(verdict: Verdict, as_json: bool) -> int:
    from recover.core.budget import words

    if as_json:
        emit_json(words.as_json(verdict))
    else:
        emit("\n".join(words.verdict_lines(verdict)))
    return words.exit_code(verdict)


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


def _launch(engine: str | None, ranks: str | None, size: str | None, command: tuple[str, ...]) -> Launch:
    """The launch that the figures describe, or the one that was given."""
    from recover.core.budget.launch import KNOWN, from_argv
    from recover.core.budget.model import Launch, Option, Problem
    from recover.core.budget.rewrite import with_value
    from recover.core.budget.sizes import count

    name, version = _engine(engine)
    if command:
        found = from_argv(command, files=_Files(), version=version)
        if found is None:
            raise Problem("the command starts no server that is known", hint=KNOWN)
        return with_value(found, _MAIN[found.engine], size) if size is not None and found.engine in _MAIN else found
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
    return Launch(name, version, tuple(options))


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


class _Files(dict[str, str]):
    """Files that a command names, read when they are asked for."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and Path(name).is_file()

    def __missing__(self, name: str) -> str:
        return _text(name)


def _text(name: str) -> str:
    from recover.core.budget.model import Problem
    from recover.core.clean import clean

    try:
        with Path(name).open("rb") as stream:
            data = stream.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise Problem(f"{clean(name, 120)}: {error.strerror}") from None
    if len(data) > _LARGEST_FILE:
        raise Problem(f"{clean(name, 120)}: larger than 64 MiB")
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
