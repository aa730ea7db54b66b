"""`gpu-recover probe`: one look as JSON, with nothing left out but the raw report; nothing is changed."""

from __future__ import annotations

import click

from recover.cli.common import app, emit_json, places, playbook_of, resolve


@click.command()
@click.argument("target")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def probe(target: str, quiet: bool) -> int:
    """One look at TARGET from all sides, as JSON."""
    from recover.cli.views import working
    from recover.core.codec import encode
    from recover.core.diagnose import assess
    from recover.core.past import Past
    from recover.wiring import Flags

    opened = app()
    (found,) = resolve(opened, (target,))
    wired = opened.wire(found, playbook_of(opened, found, None), Flags())
    try:
        with working(f"looking at {found.name}", quiet=quiet):
            snapshot, _ = assess(wired.look(), Past(), wired.playbook.limits)
    finally:
        wired.close()
    emit_json(encode(snapshot))
    return 0
