"""`gpu-recover history`: the past runs as their journals tell them, one by one or added up; needs no configuration."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recover.cli.common import emit, emit_json, local_time, note, places, state, target_name

if TYPE_CHECKING:
    from recover.core.lookback import HookTold, Told
    from recover.core.report.lookback import Table

COLOURS = {"good": "green", "warn": "yellow", "bad": "red", "plain": None}


@click.command()
@click.argument("target", required=False)
@click.option("--summary", is_flag=True, help="Added up, per target and for all: how often, what cured, how long.")
@click.option("--since", metavar="WHEN", help="Runs that began after: 7d, 24h, 2026-11-30, 2026-11-30T12:21.")
@click.option("--until", metavar="WHEN", help="Runs that began before.")
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, show_default=True,
              help="So many runs at most are listed; --summary counts all.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON: one line per run, or one object with --summary.")
@places
def history(target: str | None, summary: bool, since: str | None, until: str | None, limit: int, as_json: bool) -> int:
    """Past runs, the newest first: when, how they ended, what was tried, how long, by whom.

    With --summary, what they add up to: how often, which rung cured, minutes lost, time to recover.
    """
    from recover.cli.runs import newest_first, past_runs

    store, now = state(), time.time()
    begin, end = _when("--since", since, now), _when("--until", until, now)
    folders = store.runs(target_name(target)) if target is not None else store.all_runs()
    found = past_runs(newest_first(folders), begin, end)
    if summary:
        return _add_up(found, begin, end, now, as_json, len(folders))
    runs = sorted(islice(found, limit), key=lambda run: (run.began, run.run), reverse=True)
    if as_json:
        for run in runs:
            emit_json(_line(run))
    elif runs:
        _show([_list(runs)])
    else:
        emit(_none(target, begin, end, store.root))
    _name_broken((run.run, run.broken) for run in runs)
    return 0


def _when(option: str, text: str | None, now: float) -> float | None:
    from recover.core.moments import FORMS, moment
    from recover.wiring import UsageProblem

    if text is None:
        return None
    at = moment(text, now)
    if at is None:
        raise UsageProblem((f"{option} {text}: this is no moment",), f"write {FORMS}")
    return at


def _none(target: str | None, begin: float | None, end: float | None, root: Path) -> str:
    span = " in that time" if begin is not None or end is not None else ""
    return "no runs" + (f" of {target}" if target else "") + span + f" in {root}"


def _line(run: Told) -> dict[str, object]:
    from recover.core.clean import clean

    line = asdict(run)
    del line["tries"]
    return {**line, "broken": clean(run.broken)}


def _list(runs: Sequence[Told]) -> Table:
    from recover.core.report.lookback import Table, tone
    from recover.core.report.words import span

    rows = []
    hooked = any(run.hooks for run in runs)
    for run in runs:
        took = span(run.ended - run.began) if run.ended is not None else "?"
        when = local_time(run.began) if run.began else "?"
        end = run.end + (" (service not back)" if run.code == 15 else "")
        said = [when, run.target, ", ".join(run.tried) or "nothing", took, run.who, run.run]
        cells = [(text, "plain") for text in said]
        cells.insert(2, (end, tone(run.end, run.code)))
        if hooked:
            cells.insert(4, hook_cell(run.hooks))
        rows.append(tuple(cells))
    heading = ("when", "target", "end", "tried", *(("hooks",) if hooked else ()), "took", "by", "run")
    return Table("", heading, tuple(rows), frozenset({len(heading) - 3}), frozenset({len(heading) - 1}))


def hook_cell(hooks: Sequence[HookTold]) -> tuple[str, str]:
    """Each with how it ended, and how long it took where that is a second or more; nothing to say is good."""
    from recover.core.report.words import span

    said = []
    for (event, ok), alike in groupby(hooks, key=lambda hook: (hook.event, hook.ok)):
        times = [hook.seconds or 0.0 for hook in alike]
        often = f" {len(times)} times" if len(times) > 1 else ""
        end = "" if ok else " FAILED" if ok is not None else " has no end"
        took = f" ({span(sum(times))})" if sum(times) >= 1 else ""
        said.append(f"{event}{end}{often}{took}")
    return ", ".join(said) or "none", "plain" if all(hook.ok for hook in hooks) else "bad"


def _add_up(
    runs: Iterable[Told], begin: float | None, end: float | None, now: float, as_json: bool, folders: int
) -> int:
    from recover.cli.views import working
    from recover.core.lookback import look_back
    from recover.core.report.lookback import data, headline, lines, tables

    with working(f"reading the journals of {folders} runs"):
        back = look_back(runs, begin, end, now)
    if as_json:
        emit_json(data(back))
        return 0
    emit(headline(back))
    if back.fleet.runs:
        emit("\n".join(lines(back)))
        _show(tables(back))
    _name_broken(back.broken)
    return 0


def _name_broken(broken: Iterable[tuple[str, str]]) -> None:
    from recover.core.clean import clean

    for run, why in broken:
        if why:
            note(f"gpu-recover: {clean(run)} is not counted: {clean(why)}")


def _show(tables: Iterable[Table]) -> None:
    """Coloured and folded to the width on a terminal; plain columns elsewhere."""
    from recover.core.report.words import columns

    for table in tables:
        if sys.stdout.isatty():
            _draw(table)
            continue
        title = [f"\n{table.title}"] if table.title else []
        rows = [table.heading, *([text for text, _ in row] for row in table.rows)]
        emit("\n".join([*title, *columns(rows, "  " if table.title else "")]))


def _draw(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    from recover.core.clean import clean

    drawn = Drawn(title=table.title or None, box=None, title_justify="left", title_style="bold", header_style="dim",
                  pad_edge=False)  # fmt: skip
    for i, name in enumerate(table.heading):
        folds = i not in table.right | table.whole
        drawn.add_column(name, justify="right" if i in table.right else "left", overflow="fold", no_wrap=not folds)
    for row in table.rows:
        drawn.add_row(*(Text(clean(text), style=COLOURS[tone] or "") for text, tone in row))
    if table.title:
        emit("")
    Console(highlight=False).print(drawn)
