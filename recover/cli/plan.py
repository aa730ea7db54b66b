"""`gpu-recover plan`: what would be done now, why and to whom; nothing is changed and nothing is locked."""

from __future__ import annotations

import time

import click

from recover.cli.common import app, emit_json, emit_verdict, places, playbook_of, resolve


@click.command()
@click.argument("target")
@click.option("--playbook", metavar="NAME|FILE", help="Which ladder to climb.")
@click.option("--evict", is_flag=True, help="As if --evict were given.")
@click.option("--assume-hung", is_flag=True, help="As if --assume-hung were given.")
@click.option("--trust-vmid", is_flag=True, help="As if --trust-vmid were given.")
@click.option("--apply-pending", is_flag=True, help="As if --apply-pending were given.")
@click.option("--json", "as_json", is_flag=True, help="The plan as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def plan(
    target: str,
    playbook: str | None,
    evict: bool,
    assume_hung: bool,
    trust_vmid: bool,
    apply_pending: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """What would be done about TARGET now, why and to whom; then the rungs that may follow.

    Exit code 0: nothing to do; 1: it would act; else the code with which a run would end.
    """
    from recover.wiring import Flags

    opened = app()
    (found,) = resolve(opened, (target,))
    ladder = playbook_of(opened, found, playbook)
    flags = Flags(
        evict=evict, assume_hung=assume_hung, trust_vmid=trust_vmid, apply_pending=apply_pending,
        dry_run=True, steady=True,
    )  # fmt: skip
    wired = opened.wire(found, ladder, flags)
    from recover.cli.planning import plan_of
    from recover.cli.views import working
    from recover.core.report.plan import exit_code, plan_json, plan_text
    from recover.edge.store.cases import to_resume

    try:
        case = to_resume(opened.state, found.name, time.time())
        with working(f"looking at {found.name}", quiet=quiet):
            made = plan_of(wired, case.history if case is not None else None)
    finally:
        wired.close()
    code = exit_code(made)
    if as_json:
        emit_json(plan_json(made))
    else:
        emit_verdict(plan_text(made), code)
    return code
