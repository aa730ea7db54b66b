"""`gpu-recover notify`: a message to try the way, and what stands open at each destination; no target is looked at."""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import TYPE_CHECKING

import click

from recover.cli.common import app, emit, emit_json, local_time, note, places

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recover.core.config_notify import Destination
    from recover.model.notice import Notebook
    from recover.wiring import App

NOT_TOLD = 1
DEADLINE_S = 30.0


@click.group()
@places
def notify() -> None:
    """Who is told when a target's state changes or a run ends: try it, and see what was told."""


@notify.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="As JSON, one line per destination.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def test(names: tuple[str, ...], as_json: bool, quiet: bool) -> int:
    """Send a test message to each destination NAME, or to all. Nothing else is run and no target is looked at.

    Exit code: 0 all were accepted, 1 one was not, 2 the configuration cannot be used.
    """
    from recover.cli.views import working
    from recover.core.report.message import trial
    from recover.edge.fleet import at_once
    from recover.edge.notify import send

    chosen = _chosen(app(), names)
    host, now = socket.gethostname(), time.time()
    jobs = [(lambda left, to=to: send(to, trial(to.name, host, now), DEADLINE_S)) for to in chosen.values()]
    with working(f"telling {', '.join(chosen)}", quiet=quiet):
        answers = at_once(jobs, len(jobs), DEADLINE_S + 5, DEADLINE_S + 5)
    worst = 0
    for name, answer in zip(chosen, answers, strict=True):
        why, warnings = _told(answer)
        worst = max(worst, NOT_TOLD if why else 0)
        if as_json:
            emit_json({"to": name, "ok": not why, "why": why or None, "warnings": list(warnings)})
        else:
            emit(f"{name}: " + (_paint(f"NOT told: {why}", "red") if why else _paint("accepted", "green")))
            for warning in warnings:
                note(f"gpu-recover: {warning}")
    return worst


def _told(answer: object) -> tuple[str, tuple[str, ...]]:
    from recover.edge.fleet import Failed
    from recover.edge.notify import Sent

    if isinstance(answer, Failed):
        raise answer.error  # a bug of ours: told as one
    if isinstance(answer, Sent):
        return answer.why, answer.warnings
    return f"no answer within {DEADLINE_S:g} s", ()


def _chosen(opened: App, names: tuple[str, ...]) -> Mapping[str, Destination]:
    """The destinations that were named, or all; a wrong name is told with what it may have meant."""
    from recover.core.config_table import nearest
    from recover.wiring import UsageProblem

    known = opened.config.notify
    if not known:
        raise UsageProblem(
            ("nobody would be told: the configuration has no [notify.NAME]",),
            'write one: [notify.oncall] with url = { file = "PATH" } (docs/notifications.md)',
        )
    problems = []
    for name in names:
        if name not in known:
            close = nearest(name, list(known))
            problems.append(f"{name}: no such destination" + (f"; did you mean {close}?" if close else ""))
    if problems:
        raise UsageProblem(tuple(problems), f"there are {', '.join(known)}")
    return {name: known[name] for name in (names or known)}


@notify.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="As JSON, one line per destination.")
@places
def list_(as_json: bool) -> int:
    """The destinations: what each hears of, what stands open there, and what could not be delivered."""
    from recover.edge.store.notebook import NotebookFile

    opened = app()
    file = NotebookFile(opened.state.root / "notify")
    book = file.read()
    for sentence in file.trouble():
        note(f"gpu-recover: {sentence}")
    rows = [_row(to, book) for to in opened.config.notify.values()]
    if as_json:
        for row in rows:
            emit_json(row)
        return 0
    if not rows:
        emit("nobody is told: the configuration has no [notify.NAME]")
    for row in rows:
        emit("\n".join(_lines(row)))
    _hooks(opened)
    return 0


def _row(to: Destination, book: Notebook) -> dict[str, object]:
    from recover.edge.notify import MISSING, installed

    silence = next((s for s in book.silent if s.to == to.name), None)
    return {
        "to": to.name,
        "installed": installed(),
        "problem": None if installed() else MISSING,
        "events": sorted(to.events),
        "at_least": to.at_least.name,
        "remind_s": to.remind_s,
        "open": [
            {"target": t.target, "state": t.status.name, "signals": list(t.signals), "told_at": t.at, "since": t.since}
            for t in book.told
            if t.to == to.name
        ],
        "undelivered": sum(p.to == to.name for p in book.pending),
        "silent_since": silence.since if silence is not None else None,
        "why_silent": silence.why if silence is not None else None,
    }


def _lines(row: dict[str, object]) -> list[str]:
    from recover.core.clean import clean
    from recover.core.report.words import span

    remind = row["remind_s"]
    events, opened = row["events"], row["open"]
    assert isinstance(events, list) and isinstance(opened, list)
    again = f", again every {span(remind)}" if isinstance(remind, float) else ""
    lines = [f"{row['to']}: hears of {', '.join(events)}; states from {row['at_least']} on{again}"]
    if row["problem"]:
        lines.append("  " + _paint(f"NOT told: {row['problem']}", "red"))
    if row["why_silent"]:
        since = row["silent_since"]
        ago = span(time.time() - since) if isinstance(since, float) else "?"
        lines.append("  " + _paint(f"not reached for {ago}: {clean(str(row['why_silent']))}", "red"))
    if row["undelivered"]:
        lines.append(f"  not delivered yet: {row['undelivered']} (tried again at the next check)")
    lines += [
        f"  open: {clean(o['target'])} {o['state']} {', '.join(o['signals'])} (told {local_time(o['told_at'])})"
        for o in opened
    ]
    return lines


def _hooks(opened: App) -> None:
    """The hooks, and targets on which a before-disruption is open."""
    from recover.core.clean import clean
    from recover.core.report.words import span
    from recover.edge.hooks import left_open

    for event, hook in opened.config.hooks.items():
        emit(f"hook {event.value}: {clean(hook.command[0])}, at most {span(hook.deadline_s)}")
    for name in opened.state.target_names() if opened.config.hooks else ():
        if left_open(opened.state, name):
            emit(
                _paint(f"open: before-disruption was run on {clean(name)}, and nothing has followed yet", "yellow")
                + f"\n  Next: gpu-recover {clean(name)}   (its end runs after-recovery or gave-up)"
            )


def _paint(text: str, colour: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=colour)
