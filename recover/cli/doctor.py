"""`gpu-recover doctor`: whether a recovery could be done, checked before it has to be; each failure with its fix.

It looks and changes nothing, but that the state folder is made where there is none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from recover.cli.common import app, emit, emit_json, places, resolve

if TYPE_CHECKING:
    from recover.core.doctor import Point, Status
    from recover.edge.doctor import ApiSeen, ClusterSeen, ShellSeen
    from recover.edge.notify import Sent
    from recover.model.hypervisor import GuestKind
    from recover.model.ladder import Playbook
    from recover.model.snapshot import Target
    from recover.wiring import App

DEADLINE_S = 150.0
WIDTH = 24
Job = Callable[[float], bool]  # puts what it saw into `Seen`
_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red", "not asked": "bright_black"}


@dataclass(slots=True)
class Seen:
    """All answers of one call, by what they are about; one that is missing here was late."""

    clusters: dict[str, ClusterSeen] = field(default_factory=dict)
    hosts: dict[str, ShellSeen] = field(default_factory=dict)
    guests: dict[str, ShellSeen] = field(default_factory=dict)
    apis: dict[str, ApiSeen] = field(default_factory=dict)
    told: dict[str, Sent] = field(default_factory=dict)
    late: list[Point] = field(default_factory=list)


@click.command()
@click.argument("target", required=False, metavar="[TARGET]")
@click.option("--playbook", metavar="NAME or FILE", help="For this ladder (default: the target's, else hung-server).")
@click.option(
    "--deadline",
    type=click.FloatRange(min=5.0),
    metavar="S",
    default=DEADLINE_S,
    show_default=True,
    help="Seconds for all of it.",
)
@click.option("--recipe", is_flag=True, help="Also the commands that give the token all that it needs.")
@click.option("--json", "as_json", is_flag=True, help="The checks as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def doctor(target: str | None, playbook: str | None, deadline: float, recipe: bool, as_json: bool, quiet: bool) -> int:
    """Check all that a recovery of TARGET, or of every configured target, depends on.

    Configuration, names, certificates, the token and its privileges, host keys, login, root, the agent, clocks,
    baseline, playbook, state folder, who is told, hooks. Each failure comes with its fix. Changes nothing.

    Exit code: 0 nothing failed, 1 something did, 2 the configuration cannot be used.
    """
    from recover.cli.doctor_points import judged
    from recover.core.doctor import exit_code, ordered
    from recover.core.report.doctor import data, recipes_text, table

    began = time.monotonic()
    opened = app()
    targets = resolve(opened, (target,)) if target else _configured(opened)
    books = {one.name: _playbook(opened, one, playbook) for one in targets}
    seen = _ask(opened, targets, books, deadline, quiet=quiet)
    points = ordered(judged(opened, targets, books, seen))
    recipes = _recipes(opened, targets, seen, everything=recipe)
    if as_json:
        emit_json(data(points, recipes, time.monotonic() - began))
    else:
        emit(table(points, _paint) + ("\n" + recipes_text(recipes) if recipes else ""))
    return exit_code(points)


def _configured(opened: App) -> tuple[Target, ...]:
    return resolve(opened, tuple(opened.config.targets)) if opened.config.targets else ()


def _playbook(opened: App, target: Target, given: str | None) -> Playbook | tuple[tuple[str, ...], str]:
    """The playbook, or its problems and the hint."""
    from recover.wiring import DEFAULT_PLAYBOOK, UsageProblem

    try:
        return opened.playbook(given or target.playbook or DEFAULT_PLAYBOOK)
    except UsageProblem as error:
        return error.problems, error.hint


# --- asking


def _ask(
    opened: App, targets: tuple[Target, ...], books: dict[str, Playbook | tuple[tuple[str, ...], str]],
    deadline: float, *, quiet: bool,
) -> Seen:  # fmt: skip
    from recover.cli.views import working
    from recover.core.doctor import late
    from recover.edge.fleet import Failed, Late, at_once

    seen = Seen()
    jobs = _jobs(opened, targets, books, seen)
    what = f"checking {', '.join(dict.fromkeys(about for about, _, _ in jobs[:6]))}" + (
        " and more" if len(jobs) > 6 else ""
    )
    with working(what, quiet=quiet):
        answers = at_once([job for _, _, job in jobs], WIDTH, deadline, deadline)
    for (about, check, _), answer in zip(jobs, answers, strict=True):
        if isinstance(answer, Failed):
            raise answer.error  # a bug of ours: told as one
        if isinstance(answer, Late):
            seen.late.append(late(about, check, answer.seconds, answer.began))
    return seen


def _jobs(
    opened: App, targets: tuple[Target, ...], books: dict[str, Playbook | tuple[tuple[str, ...], str]], seen: Seen
) -> list[tuple[str, str, Job]]:
    config = opened.config
    asked = {one.cluster for one in targets if one.cluster} or set(config.clusters)
    jobs: list[tuple[str, str, Job]] = []
    for name in sorted(asked & set(config.clusters)):
        jobs.append((f"cluster {name}", "API", _cluster_job(opened, name, seen)))
    jobs += [(f"node {name}", "connection", _host_job(opened, name, seen)) for name in sorted(config.hosts)]
    for one in targets:
        jobs.append((one.name, "guest", _guest_job(opened, one, seen)))
        if one.cluster in config.clusters and one.vmid is not None:
            jobs.append((one.name, "Proxmox guest", _api_job(opened, one, books[one.name], seen)))
    jobs += [(f"notify {name}", "message", _told_job(opened, name, seen)) for name in config.notify]
    return jobs


def _told_job(opened: App, name: str, seen: Seen) -> Job:
    from recover.edge.notify import unsent

    def job(left: float) -> bool:
        seen.told[name] = unsent(opened.config.notify[name], left)
        return True

    return job


def _cluster_job(opened: App, name: str, seen: Seen) -> Job:
    from recover.edge.doctor import see_cluster

    def job(left: float) -> bool:
        seen.clusters[name] = see_cluster(opened.config.clusters[name], left)
        return True

    return job


def _host_job(opened: App, name: str, seen: Seen) -> Job:
    from recover.edge.doctor import see_host

    def job(left: float) -> bool:
        seen.hosts[name] = see_host(name, opened.config.hosts[name], left)
        return True

    return job


def _guest_job(opened: App, target: Target, seen: Seen) -> Job:
    from recover.core.config import TargetConfig
    from recover.edge.doctor import see_guest

    settings = opened.config.targets.get(target.name) or TargetConfig(target.name, ssh=opened.config.ssh)

    def job(left: float) -> bool:
        seen.guests[target.name] = see_guest(opened.config, settings, target, left)
        return True

    return job


def _api_job(opened: App, target: Target, book: Playbook | tuple[tuple[str, ...], str], seen: Seen) -> Job:
    from recover.core.doctor import via_api
    from recover.edge.connections import cluster_client
    from recover.edge.doctor import see_api
    from recover.steps.table import ALL_STEPS

    found = () if isinstance(book, tuple) else book

    def rungs(kind: GuestKind) -> tuple[str, ...]:
        return via_api(found, ALL_STEPS, kind)

    def job(left: float) -> bool:
        client = cluster_client(opened.config.clusters[target.cluster])
        try:
            assert target.vmid is not None
            seen.apis[target.name] = see_api(client, target.cluster, target.vmid, rungs, left)
        finally:
            client.close()
        return True

    return job


# --- recipes and colour


def _recipes(opened: App, targets: tuple[Target, ...], seen: Seen, *, everything: bool) -> dict[str, tuple[str, ...]]:
    """For whom a privilege is missing, or for all where that was asked; of an unknown release both."""
    from recover.core.doctor import privilege_points
    from recover.core.privileges import Place, recipe

    found: dict[str, tuple[str, ...]] = {}
    for target in targets:
        if target.cluster not in opened.config.clusters or target.vmid is None:
            continue
        api = seen.apis.get(target.name)
        token = opened.config.clusters[target.cluster].token_id
        lacks = api is not None and any(p.fix for p in privilege_points("", api.wanted, api.held, token) if p.costs)
        if not (everything or lacks):
            continue
        place = api.place if api is not None else Place(target.vmid)
        for release, title in ((9, "Proxmox VE 9"), (8, "Proxmox VE 7 and 8")):
            if everything or not place.release or (place.release >= 9) == (release == 9):
                asked = place.release if place.release == 7 and release == 8 else release
                found[f"{target.name} on {target.cluster}, {title}"] = recipe(asked, token, place)
    return found


def _paint(text: str, status: Status) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return click.style(text, fg=_COLOURS[str(status)], bold=str(status) == "failed")
