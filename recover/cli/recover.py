"""`gpu-recover TARGET...`: everything that was said is checked before anything is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from recover.cli.common import app, command_hint, emit_json, emit_verdict, note, places, playbook_of, resolve
from recover.core.duration import duration
from recover.model.verdict import Scope

if TYPE_CHECKING:
    from recover.model.ladder import Playbook
    from recover.model.snapshot import Target
    from recover.wiring import App, Flags, Result, Wired

SCOPES = click.Choice([scope.word for scope in Scope])
NEEDS_HUMAN, HELD = 12, 20


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    seconds = duration(value)
    if not seconds:
        raise click.BadParameter(f'{value!r} is no duration: write it like "45m", "2h" or "90s"')
    return seconds


def _scope(ctx: click.Context, param: click.Parameter, value: str | None) -> Scope | None:
    return Scope.of(value) if value is not None else None


@click.command()
@click.argument("targets", nargs=-1, required=True, metavar="TARGET...")
@click.option(
    "--playbook", metavar="NAME|FILE", help="Which ladder to climb (default: the target's, else hung-server)."
)
@click.option("--max-scope", type=SCOPES, callback=_scope, help="Stop below anything that disturbs more.")
@click.option("--start-at", metavar="STEP", help="Begin at this rung.")
@click.option("--only", metavar="STEP", help="Try only this rung.")
@click.option("--yes", is_flag=True, help="Consent up to scope gpu: processes ended, GPUs reset.")
@click.option("--approve", type=SCOPES, callback=_scope, help="Consent up to this scope.")
@click.option("--evict", is_flag=True, help="Also end what lives and may be in use.")
@click.option("--assume-hung", is_flag=True, help="A guest that cannot be reached is taken for hung.")
@click.option("--trust-vmid", is_flag=True, help="Go on where the guest behind the vmid cannot be proved.")
@click.option("--apply-pending", is_flag=True, help="A restart may apply pending changes of the VM.")
@click.option("--no-restart", is_flag=True, help="Leave services that we stopped stopped.")
@click.option("--take-over", is_flag=True, help="Have an unattended run on the target stop in good order, then begin.")
@click.option("--deadline", metavar="45m", callback=_seconds, help="End after this time (default: from the target).")
@click.option("--dry-run", is_flag=True, help="Stop where the first act would begin, and show it.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON, one line per target.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("-v", "--verbose", is_flag=True, help="Every look and act, as plain lines.")
@places
def run(targets: tuple[str, ...], playbook: str | None, as_json: bool, quiet: bool, verbose: bool, **said: Any) -> int:
    """Bring each TARGET back, one after the other; the first that fails ends it.

    A target is a name from the configuration, a Proxmox guest's name, a vmid or an address.
    """
    opened = _app(targets)
    flags = _flags(said, as_json)
    found = resolve(opened, targets)
    ladders = [playbook_of(opened, target, playbook) for target in found]
    for ladder in ladders:
        _steps_exist(ladder, flags)
    if not flags.dry_run:
        opened.state.ready()
    worst = 0
    for number, (target, ladder) in enumerate(zip(found, ladders, strict=True)):
        worst = _one(opened, target, ladder, flags, quiet, verbose)
        left = found[number + 1 :]
        if worst and left:
            note(f"not begun, since {target.name} ended with {worst}: {' '.join(t.name for t in left)}")
        if worst:
            break
    return worst


def _app(targets: tuple[str, ...]) -> App:
    """The configuration; where there is none, a mistyped command is still told from a target."""
    from recover.wiring import UsageProblem

    try:
        return app()
    except UsageProblem as error:
        hint = command_hint(targets)
        raise UsageProblem((*error.problems, hint) if hint else error.problems, error.hint) from None


def _flags(said: dict[str, Any], as_json: bool) -> Flags:
    from recover.wiring import Flags

    return Flags(
        yes=said["yes"],
        approve=said["approve"],
        evict=said["evict"],
        assume_hung=said["assume_hung"],
        trust_vmid=said["trust_vmid"],
        apply_pending=said["apply_pending"],
        no_restart=said["no_restart"],
        deadline_s=said["deadline"],
        dry_run=said["dry_run"],
        take_over=said["take_over"],
        max_scope=said["max_scope"],
        start_at=said["start_at"] or "",
        only=said["only"] or "",
        json=as_json,
        steady=True,
    )


def _steps_exist(ladder: Playbook, flags: Flags) -> None:
    from recover.core.config_table import nearest
    from recover.wiring import UsageProblem

    steps = tuple(dict.fromkeys(r.step for r in ladder.rungs))
    wrong = [(option, s) for option, s in (("--start-at", flags.start_at), ("--only", flags.only)) if s]
    problems = tuple(
        f"{option} {step}: playbook {ladder.name} has no such rung"
        + (f"; did you mean {nearest(step, steps)}?" if nearest(step, steps) else "")
        for option, step in wrong
        if step not in steps
    )
    if problems:
        raise UsageProblem(problems, f"its rungs are {', '.join(steps)}")


def _one(opened: App, target: Target, ladder: Playbook, flags: Flags, quiet: bool, verbose: bool) -> int:
    """Recover one target and give its exit code."""
    wired = opened.wire(target, ladder, flags)
    from recover.cli.views import view_for
    from recover.core.report.result import held
    from recover.edge.gate import gate_for
    from recover.wiring import Held, held_end

    view = view_for(wired.playbook, quiet=quiet, verbose=verbose, now=wired.clock.now)

    def aborted() -> str:
        asked = view.run and (opened.state.run(target.name, view.run) / "abort").exists()
        return "an abort was asked for" if asked else ""

    try:
        with view:
            result = opened.recover_untold(wired, gate_for(target.name, flags.yes, flags.approve, aborted), view, flags)
    except Held as busy:
        end = held_end(busy)
        if flags.json:
            emit_json(held(target.name, end.why, end.next))
        else:
            emit_verdict(_held_text(busy), HELD)
        return HELD
    except OSError as error:
        if not view.run:
            raise
        return _cut(target.name, error)
    finally:
        wired.close()
    code = _report(wired, result, flags)
    _tell(opened, result, quiet)
    return code


def _tell(opened: App, result: Result, quiet: bool) -> None:
    """After the verdict: nobody waits for it because a pager does not answer."""
    from recover.cli.views import working

    said = result.unheard
    if result.notice is not None:
        with working("telling people", quiet=quiet):
            said += opened.herald().announce(result.notice)
    for sentence in said:
        note(f"gpu-recover: {sentence}")


def _held_text(busy: Any) -> str:
    import time

    from recover.core.clean import clean

    since = time.strftime("%H:%M:%S", time.localtime(busy.holder.since))
    return (
        f"{clean(busy.target)}: HELD by another run, nothing was done: run {clean(busy.holder.run)}, by "
        f"{clean(busy.holder.who)} on {clean(busy.holder.host)}, at {clean(busy.rung)}, since {since}\n"
        + (
            f"It is unattended and yields to you.\nNext: gpu-recover {clean(busy.target)} --take-over"
            if busy.holder.unattended
            else f"Next: gpu-recover follow {clean(busy.target)}"
        )
    )


def _cut(name: str, error: OSError) -> int:
    """What can't be written isn't done: the journal failed in the middle of a run."""
    from recover.cli.trouble import say_problems

    what = f"{name}: the run ended at once, since its journal cannot be written: {error.strerror or error}"
    say_problems((what,), f"free some space, then: gpu-recover {name}   (it first puts back what this run owes)")
    return NEEDS_HUMAN


def _report(wired: Wired, result: Result, flags: Flags) -> int:
    from recover.core.report import result as data
    from recover.core.report.text import text
    from recover.model.record import EndKind

    code = data.exit_code(result.closed)
    if flags.json:
        emit_json(data.result(result.entries, result.journal))
    elif result.closed.end.kind is EndKind.PLANNED:
        from recover.core.report.plan import plan_text, planned

        emit_verdict(plan_text(planned(result.entries)), code)
    else:
        emit_verdict(text(result.entries, result.journal), code)
    return code
