"""`gpu-recover check`: looks at one or many targets and ends with a monitoring plugin's code, of what was seen last.

It is given eyes only: no actuator is made, no lock is taken and no file is written. Only --watch writes, how targets
stand, and only --recover acts: both in `attended`, which is not even loaded without them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from recover.cli.common import app, chosen, emit, note, places, playbook_of

if TYPE_CHECKING:
    from recover.cli.attended import Attention
    from recover.core.past import Past
    from recover.core.report.check.verdict import Checked
    from recover.edge.fleet import Failed, Late
    from recover.model.snapshot import Target
    from recover.model.watch import Status
    from recover.wiring import App

UNKNOWN = 3
WIDTH = 32
DEADLINE_S = 60.0
SECOND_LOOK_S = 5.0
_FORMATS = ("table", "json", "nagios", "prometheus")
_AT_TERMINAL = {0: "green", 1: "yellow", 2: "red", 3: "magenta"}


class Plugin(click.Command):
    """Bad words end with 3: for a monitoring system the usual 2 would be CRITICAL."""

    def make_context(self, *args: object, **kwargs: object) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)  # type: ignore[arg-type]
        except click.ClickException as error:
            error.exit_code = UNKNOWN  # type: ignore[misc]  # of this error only
            raise


@dataclass(frozen=True, slots=True)
class Plan:
    """How often to look. `looks` None: a second time where only that can tell a working server from a hung one."""

    looks: int | None
    every_s: float
    deadline_s: float


@click.command(cls=Plugin)
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--all", "every_target", is_flag=True, help="All targets of the configuration.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="table", show_default=True, help="How it says it."
)
@click.option("--jobs", type=click.IntRange(1, 1024), default=WIDTH, show_default=True, help="Looks at a time.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=1.0),
    metavar="S",
    help="Seconds for all of it.  [default: 60 and what --looks takes]",
)
@click.option(
    "--looks", type=click.IntRange(1, 1000), metavar="N", help="Looks at each target: what does not move ripens."
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    metavar="S",
    default=SECOND_LOOK_S,
    show_default=True,
    help="Seconds between looks.",
)
@click.option("--watch", is_flag=True, help="Remember how each target stands, and tell what changes.")
@click.option("--recover", "acts", is_flag=True, help="Also act, as far as the playbook watch and the limits allow.")
@click.option("--dry-run", is_flag=True, help="With --recover: only say what would be done, and why nothing would.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def check(
    targets: tuple[str, ...],
    every_target: bool,
    form: str,
    jobs: int,
    deadline: float | None,
    looks: int | None,
    every: float,
    watch: bool,
    acts: bool,
    dry_run: bool,
    quiet: bool,
) -> int:
    """Look at each TARGET, in parallel, and say how it is. Changes nothing but with --recover.

    Exit code: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, also where the configuration is wrong.
    """
    began = time.monotonic()
    try:
        opened = app()
        found = chosen("check", opened, targets, every_target)
        attends = _attention(opened, watch, acts, dry_run, quiet)
        plan = Plan(looks, every, deadline if deadline is not None else DEADLINE_S + ((looks or 2) - 1) * every)
        looking = [_looker(opened, target, plan, attends) for target in found]
    except Exception as error:
        return _refused(error, form)
    seen = _look_at_all(found, looking, jobs, plan, quiet)
    if attends is not None:
        try:
            seen = attends(found, seen, lambda some: _again(opened, some, plan, jobs, quiet, attends))
        except Exception as error:
            return _refused(error, form)
    opened.close()
    return _say(seen, form, time.monotonic() - began, attends)


def _attention(opened: App, watch: bool, acts: bool, dry_run: bool, quiet: bool) -> Attention | None:
    from recover.wiring import UsageProblem

    if dry_run and not acts:
        raise UsageProblem(("check: --dry-run goes with --recover: without it nothing is done anyway",))
    if not (watch or acts):
        return None
    from recover.cli.attended import Wish, attention

    return attention(opened, Wish(watch, acts, dry_run), quiet=quiet)


def _again(
    opened: App, targets: list[Target], plan: Plan, jobs: int, quiet: bool, attends: Attention | None
) -> list[Checked]:
    """What was acted on is looked at once more: the exit code is how it is now."""
    return _look_at_all(targets, [_looker(opened, target, plan, attends) for target in targets], jobs, plan, quiet)


def _refused(error: Exception, form: str) -> int:
    """What is wrong, once on stderr and for a monitoring system on stdout. A bug stays a bug."""
    from recover.cli.trouble import expected
    from recover.core.report.check.nagios import trouble

    problems = expected(error)
    if problems is None:
        raise error
    if form == "nagios":
        emit(trouble(problems))
    return UNKNOWN


def _looker(opened: App, target: Target, plan: Plan, attends: Attention | None) -> Callable[[float], Checked]:
    """Wired now, so that a damaged baseline or playbook is told before anything is looked at."""
    from recover.looking import Manner, examine

    pauses = ((plan.looks or 2) - 1) * plan.every_s
    # A tenth is left, so that a look which had to be given up still tells what it saw.
    wanted = 0.9 * max(plan.deadline_s - pauses, plan.deadline_s / 2)
    eyes = opened.eyes(target, playbook_of(opened, target, None), wanted)
    before: Past | None = attends.before(target.name) if attends is not None else None

    def job(left: float) -> Checked:
        ends, manner = time.monotonic() + left, Manner(plan.looks, plan.every_s)
        try:
            return examine(
                target.name, eyes.observer, eyes.limits, eyes.clock, manner, lambda: ends - time.monotonic(), before
            ).checked
        finally:
            eyes.close()

    return job


def _look_at_all(
    targets: Sequence[Target], looking: list[Callable[[float], Checked]], jobs: int, plan: Plan, quiet: bool
) -> list[Checked]:
    from recover.cli.views import working
    from recover.core.report.check.verdict import Checked, unjudged
    from recover.edge.fleet import at_once, descriptors

    room = descriptors(len(targets), jobs)
    if room.says and not quiet:
        note(f"gpu-recover check: {room.says}")
    patience = min(20.0, plan.deadline_s / 4)
    what = f"{len(targets)} targets" if len(targets) > 1 else targets[0].name
    with working(f"looking at {what}", quiet=quiet):
        answers = at_once(looking, room.jobs, plan.deadline_s, patience)
    return [
        answer if isinstance(answer, Checked) else unjudged(target.name, _excuse(answer, plan), answer.seconds)
        for target, answer in zip(targets, answers, strict=True)
    ]


def _excuse(answer: Late | Failed, plan: Plan) -> str:
    from recover.edge.fleet import Failed

    if isinstance(answer, Failed):
        return f"the look failed by a fault of gpu-recover ({type(answer.error).__name__})"
    if not answer.began:
        return (
            f"not looked at: the total deadline of {plan.deadline_s:g} s was over (give a longer one, or more --jobs)"
        )
    return f"the look did not end within the total deadline of {plan.deadline_s:g} s"


def _say(seen: list[Checked], form: str, seconds: float, attends: Attention | None) -> int:
    from recover.core.report.check.verdict import worst

    if attends is not None and form in ("nagios", "prometheus"):
        for line in attends.lines():
            note(f"gpu-recover check: {line}")
    if form == "json":
        from recover.cli.common import emit_json
        from recover.core.report.check.data import data

        emit_json(data(seen, seconds, attends.more if attends is not None else None))
    elif form == "nagios":
        from recover.core.report.check.nagios import nagios

        emit(nagios(seen))
    elif form == "prometheus":
        from recover.core.report.check.prometheus import prometheus

        standings = attends.standings() if attends is not None else None
        emit((prometheus(seen, standings) + (attends.metrics() if attends is not None else "")).rstrip("\n"))
    else:
        from recover.core.report.check.table import table

        emit("\n".join([table(seen, _paint), *(attends.lines() if attends is not None else [])]))
    return int(worst(one.status for one in seen))


def _paint(text: str, status: Status) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=_AT_TERMINAL[int(status)], bold=True)
