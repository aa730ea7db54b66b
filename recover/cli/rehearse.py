"""`gpu-recover rehearse`: the whole climb against a simulated machine; no configuration, no state, no time passes."""

from __future__ import annotations

import click

from recover.cli.common import emit, emit_json, emit_verdict, places


@click.command()
@click.argument("playbook", default="hung-server")
@click.option("--fault", metavar="F", help="What is wrong with the machine; without it the faults are listed.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
@click.option("--report", metavar="FILE", help="Also its report: a page, or Markdown if FILE ends in .md.")
@click.option("-q", "--quiet", is_flag=True, help="Only the result.")
@click.option("-v", "--verbose", is_flag=True, help="Every look and act.")
@places
def rehearse(playbook: str, fault: str | None, as_json: bool, report: str | None, quiet: bool, verbose: bool) -> int:
    """Climb PLAYBOOK (a name or a file) against a machine that has fault F and isn't there."""
    from recover.core.report.words import columns
    from recover.edge.playbooks import read_playbook
    from recover.edge.simulated import FAULTS
    from recover.wiring import UsageProblem

    ladder = read_playbook(playbook)
    if fault is None:
        emit("Faults to rehearse with --fault:\n" + "\n".join(columns([[f.name, f.about] for f in FAULTS.values()])))
        return 0
    if fault not in FAULTS:
        from recover.core.config_table import nearest

        close = nearest(fault, tuple(FAULTS))
        meant = f"; did you mean {close}?" if close else ""
        raise UsageProblem((f"--fault {fault}: there is none{meant}",), f"there are {', '.join(FAULTS)}")
    return _rehearse(ladder, FAULTS[fault], as_json, report, quiet, verbose)


def _rehearse(ladder: object, fault: object, as_json: bool, report: str | None, quiet: bool, verbose: bool) -> int:
    from recover.cli.plain import PlainView, SilentView, elapsed_stamp
    from recover.core.report.result import exit_code, result
    from recover.core.report.text import text
    from recover.edge.gate import FlagGate
    from recover.edge.simulated import Fault
    from recover.model.ladder import Playbook
    from recover.model.verdict import Scope
    from recover.wiring.rehearsal import rehearse as climb

    assert isinstance(ladder, Playbook) and isinstance(fault, Fault)
    view = SilentView() if quiet else PlainView(stamp=elapsed_stamp, verbose=verbose, beat=False)
    with view:
        ended = climb(ladder, fault, view, FlagGate("node-174", approve=max(Scope)))
    code = exit_code(ended.closed)
    if report is not None:
        from recover.cli.report import write_rehearsal

        write_rehearsal(ended.entries, report)
    if as_json:
        emit_json(result(ended.entries, ended.journal))
    else:
        emit_verdict(text(ended.entries, ended.journal) + "\n(a rehearsal: nothing real was touched)", code)
    return code
