"""`gpu-recover preflight`: would this launch fit that machine? Exit 0 lets it start, 1 does not; nothing is changed."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from recover.cli.budget import launch_text
from recover.cli.common import app, emit, emit_json, places, playbook_of, resolve, state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from recover.core.budget.model import Facts
    from recover.core.budget.preflight import Preflight
    from recover.core.budget.preflight_report import Gathered
    from recover.core.read.report import Report
    from recover.edge.shell.port import Shell

_LAUNCH = "recover.launch"


class _UpToDashes(click.Command):
    """Everything after the first `--` is the launch, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_LAUNCH] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "TARGET|--here|--facts FILE", "-- COMMAND..."]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a person said."""

    text: str
    loading: int | None
    margin: int | None
    model_config: str | None
    paths: tuple[str, ...]
    env: dict[str, str] | None
    files: Mapping[str, str]  # texts that lie here


@click.command(cls=_UpToDashes)
@click.argument("target", required=False)
@click.option("--here", is_flag=True, help="This machine, without any configuration: for ExecStartPre.")
@click.option("--facts", "facts_file", metavar="FILE", help="Facts that --save-facts wrote; no machine is asked.")
@click.option("--save-facts", metavar="FILE", help="Keep what was read.")
@click.option("--follow", "log", metavar="LOG", help="Then sum the engine's allocation lines in LOG (- is stdin).")
@click.option("--for", "minutes", type=click.FloatRange(0.1, 600), default=60, show_default=True, metavar="MINUTES",
              help="How long --follow waits for the start to end.")  # fmt: skip
@click.option("--loading", metavar="SIZE", help="What loading takes besides, as 40GiB; else measured or assumed.")
@click.option("--margin", metavar="SIZE", help="What is to stay free, as 25GiB.")
@click.option("--model-config", metavar="FILE", help="The model's config.json, where the machine has none.")
@click.option("--cwd", metavar="DIR", help="Where the command would be started: a source checkout may lie there.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, amounts in bytes.")
@places
def preflight(
    target: str | None,
    here: bool,
    facts_file: str | None,
    save_facts: str | None,
    log: str | None,
    minutes: float,
    loading: str | None,
    margin: str | None,
    model_config: str | None,
    cwd: str | None,
    as_json: bool,
) -> int:
    """Judge a launch on a machine before it is started.

    \b
      gpu-recover preflight node-174 -- python -m sglang.launch_server --tp 8 --hicache-size 300
      ExecStartPre=gpu-recover preflight --here -- /opt/venv/bin/python -m sglang.launch_server ...
    """
    from recover.core.budget.model import Problem

    words = click.get_current_context().meta.get(_LAUNCH, ())
    if sum((target is not None, here, facts_file is not None)) != 1:
        raise click.UsageError("one of TARGET, --here and --facts FILE, then -- and the command")
    if log is not None and log != "-" and facts_file is not None:
        raise click.UsageError("--follow needs a machine: TARGET or --here")
    try:
        asked = _asked(words, loading, margin, model_config, cwd, here=here)
        with _shell(target) if target is not None else nullcontext((_local(), None, None)) as (shell, about, name):
            report = _report(shell if facts_file is None else None, facts_file, save_facts, asked)
            ran = _ran(name, facts_file)
            results = _judged(report, asked, about, ran)
            _say(results, as_json)
            code = max(result.exit_code for result in results)
            return code if log is None else max(code, _follow(shell, log, minutes * 60, results))
    except Problem as problem:
        raise click.UsageError("; ".join(problem.problems) + (f" ({problem.hint})" if problem.hint else "")) from None


def _asked(
    words: tuple[str, ...], loading: str | None, margin: str | None, config: str | None, cwd: str | None, *, here: bool
) -> _Asked:
    from recover.core.budget.model import Problem
    from recover.core.budget.sizes import size

    if not words:
        raise Problem("which launch? Its command follows after --")
    text, files = launch_text(words, cwd or "", here=here)
    paths = [cwd] if cwd is not None else [os.getcwd()] if here else []
    paths += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p] if here else []
    return _Asked(
        text,
        size(loading, "--loading") if loading is not None else None,
        size(margin, "--margin") if margin is not None else None,
        config,
        tuple(paths),
        dict(os.environ) if here else None,
        files,
    )


def _read(path: str) -> str:
    """A model's config.json, up to the length of a launch text."""
    from recover.core.budget.launch import LONGEST
    from recover.core.budget.model import Problem

    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(LONGEST + 1)
    except OSError as error:
        raise Problem(f"{path}: {error.strerror}") from None


# --- the machine --------------------------------------------------------------------------------------------------


def _local() -> Shell:
    from recover.edge.shell.local import LocalShell

    return LocalShell()


def _shell(name: str) -> Any:
    """The target's shell, what its hypervisor knows of its memory, and its name."""
    from recover.wiring import Flags

    opened = app()
    (found,) = resolve(opened, (name,))
    wired = opened.wire(found, playbook_of(opened, found, None), Flags())
    about = None
    cluster = opened.config.clusters.get(found.cluster)
    if cluster is not None and found.vmid is not None:
        from recover.edge.connections import cluster_client
        from recover.edge.proxmox.reads import look

        with closing(cluster_client(cluster)) as client:
            about = look(client, found.cluster, found.vmid)
    return _Held(wired, (wired.connections.shell(), about, found.name))


class _Held:
    """What is closed at the end of the command."""

    def __init__(self, wired: Any, value: tuple[Shell, Any, str]) -> None:
        self._wired, self._value = wired, value

    def __enter__(self) -> tuple[Shell, Any, str]:
        return self._value

    def __exit__(self, *_: object) -> None:
        self._wired.close()


def _report(shell: Shell | None, facts_file: str | None, save: str | None, asked: _Asked) -> Report:
    """One question for the first server of the launch: all of them are started on the same machine."""
    from recover.core.budget.launch import parse
    from recover.core.budget.preflight_report import wanted
    from recover.edge.preflight import load_facts, question, save_facts

    launch = parse(asked.text, env=asked.env, files=asked.files)[0]
    request = wanted(launch, asked.paths)
    if shell is None:
        assert facts_file is not None
        return load_facts(facts_file)
    report = question(shell, request)
    if save is not None:
        save_facts(save, report, request)
    return report


def _ran(name: str | None, facts_file: str | None) -> Path | None:
    """Where it is kept what loading took on this machine. Facts of a file are of another machine, or of another day."""
    from recover.edge.store.loadings import place

    return place(state(), name) if facts_file is None else None


def _remembered(found: Gathered, ran: Path | None) -> Gathered:
    """With what was measured here before; what is measured now is kept. Neither may hinder the judgement."""
    from recover.core.budget.learned import measured
    from recover.edge.store.loadings import keep_loadings, load_loadings

    if ran is None:
        return found
    try:
        before = load_loadings(ran)
        keep_loadings(ran, measured(found, time.strftime("%Y-%m-%d")))
    except (OSError, ValueError) as error:
        return replace(found, gaps=(*found.gaps, f"{ran}: what loading took before: {error}"))
    return replace(found, ran=before)


def _judged(report: Report, asked: _Asked, about: Any, ran: Path | None) -> tuple[Preflight, ...]:
    from recover.core.budget.bytes_per_token import read_config
    from recover.core.budget.preflight import preflight as judged
    from recover.core.budget.preflight_report import gathered

    found = _remembered(gathered(report), ran)
    found = replace(found, facts=_facts(found.facts, asked, about))
    if asked.model_config is not None:
        found = replace(found, config=read_config(_read(asked.model_config), asked.model_config))
    return judged(asked.text, found, asked.env, asked.files)


def _facts(facts: Facts, asked: _Asked, about: Any) -> Facts:
    """With what a person and the hypervisor say."""
    from recover.core.budget.model import MIB
    from recover.model.hypervisor import Hypervisor
    from recover.model.reading import Known

    facts = replace(facts, loading=asked.loading, margin=asked.margin)
    if isinstance(about, Hypervisor) and isinstance(about.config, Known):
        config = about.config.value
        facts = replace(facts, vm_memory=Known(config.memory_mib * MIB))
        if config.balloon_mib:  # 0 switches ballooning off
            facts = replace(facts, balloon_target=Known(config.balloon_mib * MIB))
    return facts


# --- the answer ---------------------------------------------------------------------------------------------------


def _say(results: tuple[Preflight, ...], as_json: bool) -> None:
    from recover.core.budget.preflight import as_json as plain
    from recover.core.budget.preflight import lines

    if as_json:
        emit_json([plain(r) for r in results] if len(results) > 1 else plain(results[0]))
        return
    for at, result in enumerate(results):
        where = f"{result.launch.where}:\n" if result.launch.where and len(results) > 1 else ""
        emit(("\n" if at else "") + where + "\n".join(lines(result)).rstrip())


def _follow(shell: Shell, log: str, seconds: float, results: tuple[Preflight, ...]) -> int:
    """1 as soon as what the ranks allocate can't fit, 0 when the server is up or the log has ended."""
    from recover.core.budget.preflight import tally
    from recover.core.budget.preflight_follow import Course
    from recover.core.clean import clean
    from recover.edge.preflight import follow, lines_of

    count = tally(results[0])
    if count is None:
        click.echo("the log can't be judged: the memory available or the ranks are not known", err=True)
        return 1
    rows: Iterator[str] = lines_of(sys.stdin) if log == "-" else follow(shell, log, seconds=seconds)
    for row in rows:
        said = count.line(row)
        if said is None:
            continue
        course, words = said
        click.echo(f"{course}: {clean(words, 500)}", err=True)
        if course is not Course.GOES_ON:
            return 1 if course is Course.TOO_MUCH else 0
    click.echo(f"the log told no end of the start; {count.said} pools so far", err=True)
    return 0
