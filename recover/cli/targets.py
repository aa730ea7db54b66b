"""`gpu-recover targets`: which guests with GPUs there are on the clusters, and under which name they are configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from recover.cli.common import app, emit, emit_json, note, places

if TYPE_CHECKING:
    from recover.core.targets import Answers, GpuGuest
    from recover.edge.proxmox.errors import ApiError
    from recover.wiring import App

DEADLINE_S = 60.0


@click.command()
@click.option("--deadline", type=click.FloatRange(min=1.0), metavar="S", default=DEADLINE_S, show_default=True,
              help="Seconds for all of it.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def targets(deadline: float, as_json: bool, quiet: bool) -> int:
    """GPU guests on the clusters: vmid, name, host, status, address, devices, neighbours, configured name.

    Exit code: 0, or 1 where a cluster could not be asked.
    """
    from recover.core.targets import data, table
    from recover.wiring import UsageProblem

    opened = app()
    if not opened.config.clusters:
        raise UsageProblem((f"{opened.config.source}: no cluster is configured",), "add a [clusters.NAME] table")
    found, said, failed = _listed(opened, deadline, quiet=quiet)
    if as_json:
        emit_json(data(found, said))
    else:
        none = "no GPU guest was seen: not every cluster could be asked" if failed else "no GPU guest was found"
        emit(table(found) if found else none)
        for text in said:
            note(f"gpu-recover: {text}")
    return int(failed)


def _listed(opened: App, deadline: float, *, quiet: bool) -> tuple[list[GpuGuest], list[str], bool]:
    """The guests, what is not shown, and whether a cluster could not be asked."""
    from recover.cli.views import working
    from recover.core.clean import clean
    from recover.core.targets import gpu_guests, notes
    from recover.edge.fleet import Failed, Late, at_once
    from recover.edge.proxmox.errors import ApiError

    clusters = sorted(opened.config.clusters)
    names = {(t.cluster, t.vmid): t.name for t in opened.config.targets.values() if t.vmid is not None}
    jobs = [_job(opened, name) for name in clusters]
    with working(f"asking {', '.join(clusters)}", quiet=quiet):
        answers = at_once(jobs, len(jobs), deadline, deadline)
    found: list[GpuGuest] = []
    said: list[str] = []
    failed = False
    for name, answer in zip(clusters, answers, strict=True):
        if isinstance(answer, Failed):
            raise answer.error
        if isinstance(answer, (Late, ApiError)):
            why = answer.message if isinstance(answer, ApiError) else f"no answer within {deadline:g} s"
            said.append(clean(f"{name}: could not be asked: {why} (gpu-recover doctor tells more)", 400))
            failed = True
            continue
        found += gpu_guests(answer, names)
        said += notes(answer)
        said += _missing(opened, name, answer)
    lone = [t.name for t in opened.config.targets.values() if t.vmid is None]
    said += [f"configured without a cluster, so not asked about: {', '.join(lone)}"] if lone else []
    return found, said, failed


def _job(opened: App, name: str) -> Callable[[float], Answers | ApiError]:
    from recover.edge.connections import cluster_client
    from recover.edge.targets import see_targets

    def job(left: float) -> Answers | ApiError:
        client = cluster_client(opened.config.clusters[name])
        try:
            return see_targets(client, name, 0.9 * left)
        finally:
            client.close()

    return job


def _missing(opened: App, cluster: str, answer: Answers) -> list[str]:
    """Configured guests that the cluster does not show."""
    there = {row.vmid for row in answer.rows}
    lost = [
        t for t in opened.config.targets.values() if t.cluster == cluster and t.vmid is not None and t.vmid not in there
    ]
    return [f"{cluster}: {t.name} ({t.vmid}) is configured and not shown: gone, or VM.Audit on /vms/{t.vmid} is missing"
            for t in lost]  # fmt: skip
