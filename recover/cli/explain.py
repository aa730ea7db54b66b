"""`gpu-recover explain`: what pasted text says, and the rung that cures each; it reads text and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from recover.cli.common import emit, emit_json, places

if TYPE_CHECKING:
    from recover.core.explain import Told


@click.command()
@click.argument("source", metavar="[FILE|-]", default="-")
@click.option("--json", "as_json", is_flag=True, help="The findings as JSON.")
@places
def explain(source: str, as_json: bool) -> int:
    """Paste any kernel log, nvidia-smi output, ps, /proc file, PVE task log or API error, in any mixture.

    \b
      dmesg | gpu-recover explain
      gpu-recover explain incident.txt

    Says what is wrong by it, with the smallest scope known to cure each. Nothing is asked of any machine, and lines
    that mean nothing here are left alone. Exit code 0, also when something was found.
    """
    from recover.core.explain import explain as explained

    told = explained(_read(source))
    findings = [one for one in told if not one.note]
    if as_json:
        emit_json([_json(one) for one in findings])
    elif sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and findings:
        _show_table(findings, [one for one in told if one.note])
    else:
        emit("\n".join(_plain(findings, [one for one in told if one.note])))
    return 0


def _read(source: str) -> str:
    """All of it; bytes that are no text become marks."""
    if source == "-":
        if sys.stdin.isatty():
            click.echo("paste the text, then Ctrl-D", err=True)
        data = sys.stdin.buffer.read()
    else:
        try:
            with open(source, "rb") as file:
                data = file.read()
        except OSError as error:
            raise click.BadParameter(f"{source}: {error.strerror}", param_hint="FILE") from None
    text = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    return data.decode(text, "replace")


def _json(one: Told) -> dict[str, Any]:
    return {
        "signal": one.signal,
        "says": one.says,
        "cure": one.cure.word if one.cure is not None else None,
        "where": {"line": one.line, "text": one.text},
    }


def _plain(findings: Sequence[Told], notes: Sequence[Told]) -> list[str]:
    from recover.core.report.words import count

    out = [count(len(findings), "finding") if findings else "nothing in this text says that something is wrong"]
    for one in findings:
        out += [
            "",
            f"{one.signal}: {one.says}",
            f"  cure: {one.rung}",
            f"  why:  {one.fact}",
            f"  line {one.line}: {one.text}",
        ]
    if notes:
        out += ["", "beside that:", *(f"  line {one.line}: {one.says} ({one.fact})" for one in notes)]
    return out


def _show_table(findings: Sequence[Told], notes: Sequence[Told]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 1, 0), expand=True)
    for head, ratio in (("finding", None), ("cure", None), ("what and why", 1)):
        table.add_column(head, ratio=ratio, no_wrap=ratio is None, overflow="fold")
    for one in findings:
        colour = "red" if one.cure is None else "yellow"
        about = Text(one.says)
        about.append(f"\n{one.fact}", style="dim")
        about.append(f"\nline {one.line}: {one.text}", style="cyan")
        table.add_row(Text(one.signal, style="bold"), Text(one.rung, style=colour), about)
    console.print(table)
    for one in notes:
        console.print(Text(f"beside that, line {one.line}: {one.says}", style="dim"))
