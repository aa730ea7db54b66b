"""`gpu-recover baseline`: saved only from an idle look without gaps; a refusal gives every reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recover.cli.common import app, emit, emit_json, local_time, places, playbook_of, resolve

if TYPE_CHECKING:
    from recover.model.snapshot import Baseline, Target
    from recover.wiring import App

NOT_IDLE = 1


@click.group()
@places
def baseline() -> None:
    """How a target looks when nothing runs on it: what recovered is measured against."""


@baseline.command()
@click.argument("target")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def save(target: str, quiet: bool) -> int:
    """Look at TARGET and save its baseline, if it is idle and everything could be seen."""
    opened = app()
    (found,) = resolve(opened, (target,))
    made, reasons = _look(opened, found, quiet)
    if made is None:
        return _refused(found.name, reasons)
    path = opened.save_baseline(found, made)
    emit(f"{_words(found.name, made)}\nsaved in {path}")
    return 0


@baseline.command()
@click.argument("target")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@places
def propose(target: str, quiet: bool) -> int:
    """Look at TARGET and show the baseline that would be saved, beside the one that is."""
    opened = app()
    (found,) = resolve(opened, (target,))
    made, reasons = _look(opened, found, quiet)
    if made is None:
        return _refused(found.name, reasons)
    saved = opened.baseline(found)
    emit(_words(found.name, made) + ("\n\nSaved now:\n" + _words(found.name, saved) if saved is not None else ""))
    emit(f"Next: gpu-recover baseline save {found.name}")
    return 0


@baseline.command()
@click.argument("target")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@places
def show(target: str, as_json: bool) -> int:
    """The saved baseline of TARGET; nothing is looked at."""
    from recover.core.codec import encode

    opened = app()
    (found,) = resolve(opened, (target,))
    saved = opened.baseline(found)
    if as_json:
        emit_json(encode(saved))
    elif saved is None:
        emit(f"{found.name}: no baseline saved; defaults are used\nNext: gpu-recover baseline save {found.name}")
    else:
        emit(_words(found.name, saved))
    return 0 if saved is not None else NOT_IDLE


def _look(opened: App, target: Target, quiet: bool) -> tuple[Baseline | None, tuple[str, ...]]:
    from recover.cli.views import working
    from recover.core.baseline import idle
    from recover.core.diagnose import assess
    from recover.core.past import Past
    from recover.wiring import Flags

    wired = opened.wire(target, playbook_of(opened, target, None), Flags())
    try:
        with working(f"looking at {target.name}", quiet=quiet):
            return idle(*assess(wired.look(), Past(), wired.playbook.limits))
    finally:
        wired.close()


def _refused(name: str, reasons: tuple[str, ...]) -> int:
    from recover.core.clean import clean

    lines = "\n".join(f"  {clean(reason)}" for reason in dict.fromkeys(reasons))
    emit(f"{name}: not saved: a baseline needs an idle guest of which everything was seen:\n{lines}")
    return NOT_IDLE


def _words(name: str, saved: Baseline) -> str:
    from recover.core.clean import clean
    from recover.core.report.words import columns, count, size

    when = local_time(saved.saved_at) if saved.saved_at else "?"
    rows = [
        [gpu.bus_id, gpu.uuid, size(gpu.used_mib) + " used", f"x{gpu.link_width}" if gpu.link_width else "width ?"]
        for gpu in saved.gpus
    ]
    head = [
        f"{name}: baseline of {when}, {clean(saved.hostname)}",
        f"  driver {clean(saved.driver)}, kernel {clean(saved.kernel)}",
        f"  RAM {size(saved.ram_available_mib)} available of {size(saved.ram_total_mib)}",
        f"  {count(len(rows), 'GPU')}:",
    ]
    return "\n".join([*head, *columns(rows, "    ")])
