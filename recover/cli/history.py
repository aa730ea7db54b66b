"""`gpu-recover history`: the past runs as their journals tell them; needs no configuration."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from recover.cli.common import emit, emit_json, note, places, state, target_name


@click.command()
@click.argument("target", required=False)
@click.option("--limit", metavar="N", type=click.IntRange(1), default=50, show_default=True, help="So many at most.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, one line per run.")
@places
def history(target: str | None, limit: int, as_json: bool) -> int:
    """Past runs, the newest first: when, how they ended, what was tried, how long, by whom."""
    from recover.cli.runs import past_runs
    from recover.core.report.words import columns, span

    store = state()
    names = [target_name(target)] if target is not None else store.target_names()
    found = sorted(past_runs(store, names), key=lambda p: (p.began, p.run), reverse=True)[:limit]
    if as_json:
        for past in found:
            emit_json(asdict(past))
        return 0
    if not found:
        emit("no runs" + (f" of {target}" if target else "") + f" in {store.root}")
        return 0
    rows = [["when", "target", "end", "tried", "took", "by", "run"]]
    for past in found:
        took = span(past.ended - past.began) if past.ended is not None else "?"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(past.began)) if past.began else "?"
        tried = ", ".join(past.tried) or "nothing"
        end = past.end + (" (service not back)" if past.code == 15 else "")
        rows.append([when, past.target, end, tried, took, past.who, past.run])
    emit("\n".join(columns(rows, "")))
    for past in found:
        if past.broken:
            note(f"gpu-recover: {past.broken}")
    return 0
