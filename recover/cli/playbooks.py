"""`gpu-recover playbooks`: what may be climbed; a broken playbook shows all of its problems at once."""

from __future__ import annotations

import click

from recover.cli.common import emit, places


@click.group(invoke_without_command=True)
@places
@click.pass_context
def playbooks(ctx: click.Context) -> int | None:
    """The playbooks: list (the default), show, check."""
    return _list() if ctx.invoked_subcommand is None else None


@playbooks.command("list")
@places
def list_() -> int:
    """The playbooks that are shipped."""
    return _list()


def _list() -> int:
    from recover.core.report.words import columns
    from recover.edge.playbooks import shipped_playbooks

    emit("\n".join(columns([[p.name, p.about] for p in shipped_playbooks()], "")))
    return 0


@playbooks.command()
@click.argument("playbook", metavar="NAME|FILE")
@places
def show(playbook: str) -> int:
    """A playbook's ladder, with every parameter that counts, given or default."""
    from recover.cli.playbook_text import playbook_text
    from recover.edge.playbooks import read_playbook

    emit(playbook_text(read_playbook(playbook)))
    return 0


@playbooks.command()
@click.argument("playbook", metavar="NAME|FILE", nargs=-1, required=True)
@places
def check(playbook: tuple[str, ...]) -> int:
    """Whether each playbook can be used; all problems of all of them, each with its path."""
    from recover.cli.trouble import say_problems
    from recover.edge.playbooks import PlaybookProblem, read_playbook

    code = 0
    for name in playbook:
        try:
            found = read_playbook(name)
        except PlaybookProblem as error:
            say_problems(error.problems, error.hint)
            code = 2
        else:
            emit(f"{name}: ok, {len(found.rungs)} rungs up to scope {found.limits.max_scope.word}")
    return code
