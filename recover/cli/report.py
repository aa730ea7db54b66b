"""`gpu-recover report`: one run as a page or as Markdown, out of its journal; looks at no machine, changes no run."""

from __future__ import annotations

import time
from datetime import datetime, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recover.cli.common import emit, note, places, state, target_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recover.core.report.headline import Record
    from recover.edge.store.folder import StateFolder
    from recover.model.record import Entry
    from recover.wiring import UsageProblem

LATEST = "latest"
STDOUT = "-"
NAME = "report.html"


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--format", "form", type=click.Choice(["html", "markdown"]),
              help="As what (default: by the file's name, else html).")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Where to; - is stdout.  [default: html beside the run's journal, "
              "markdown to stdout]")  # fmt: skip
@places
def report(run: str, form: str | None, output: str | None) -> int:
    """What RUN did, as a page that needs nothing but itself, or as Markdown for a ticket.

    RUN is a run's id or the beginning of one, a target (its run that goes on, else its last), or `latest`.
    """
    from recover.edge.store.cases import recorded

    folder = _find(state(), run)
    found = recorded(folder)
    form = form or _form_of(output)
    place = Path(output) if output not in (None, STDOUT) else folder / NAME if form == "html" and not output else None
    record = _record(folder, place, found.damage, found.entries)
    text = _render(found.entries, record, form, folder.name)
    if place is None:
        emit(text.rstrip("\n"))
    else:
        _write(text, place)
    if found.damage:
        from recover.core.clean import clean

        note(f"gpu-recover: the report is not whole: {clean(found.damage)}")
    return 0


def _form_of(output: str | None) -> str:
    return "markdown" if output is not None and output.lower().endswith((".md", ".markdown")) else "html"


def write_rehearsal(entries: Sequence[Entry], output: str) -> None:
    """The report of a run that never was; it says so. Raises UsageProblem."""
    from recover.core.report.headline import Record

    now = time.time()
    record = Record(now=now, zone=_zone(now), rehearsal=True)
    _write(_render(entries, record, _form_of(output), "rehearsal"), Path(output), say=note)


def _write(text: str, place: Path, say: Callable[[str], None] = emit) -> None:
    from recover.edge.report_file import write_report
    from recover.wiring import UsageProblem

    try:
        write_report(place, text)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        problem = f"{place}: {error.strerror}: {error.filename}"
        raise UsageProblem((problem,), "name a file in a folder that is there") from None
    if place.is_file():
        say(str(place))


def _render(entries: Sequence[Entry], record: Record, form: str, name: str) -> str:
    from recover.core.report.story import story
    from recover.wiring import UsageProblem

    try:
        told = story(entries, record)
    except ValueError as error:
        why = record.damage or str(error)
        raise UsageProblem((f"{name}: nothing can be told of this run: {why}",)) from None
    if form == "markdown":
        from recover.core.report.markdown import markdown

        return markdown(told, record)
    from recover.core.report.page import page

    return page(told, record)


def _record(folder: Path, place: Path | None, damage: str, entries: Sequence[Entry]) -> Record:
    """What lies on disk. Where the page goes to stdout, its links are those of a page beside the journal."""
    from recover.cli.runs import goes_on, journal_of
    from recover.core.report.headline import File, Record
    from recover.core.report.result import opened_at
    from recover.edge.report_file import way
    from recover.edge.store.cases import kept_files

    page = place if place is not None else folder / NAME
    began = opened_at(entries) or time.time()
    evidence = folder / "evidence"
    return Record(
        now=time.time(),
        zone=_zone(began),
        alive=goes_on(folder),
        damage=damage,
        journal=File(journal_of(folder).name, _size(journal_of(folder)), way(page, journal_of(folder))),
        evidence=str(evidence) if evidence.is_dir() else "",
        files=tuple(File(name, size, way(page, evidence / name)) for name, size in kept_files(evidence)),
        gpu_baseline=_gpu_baseline(folder.parent.parent, began),
    )


def _zone(at: float) -> tzinfo:
    """The local zone, as it was then."""
    zone = datetime.fromtimestamp(at).astimezone().tzinfo
    assert zone is not None, "astimezone gives one"
    return zone


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def _gpu_baseline(target: Path, began: float) -> dict[str, int] | None:
    """What was saved before the run; a later one is not what it was measured against."""
    from recover.edge.store.baselines import load_baseline
    from recover.edge.store.folder import StateFolder, StateProblem, plain_name

    try:
        base = load_baseline(StateFolder(target.parent.parent), plain_name(target.name))
    except StateProblem:
        return None
    if base is None or base.saved_at > began:
        return None
    return {name: gpu.used_mib for gpu in base.gpus for name in (gpu.uuid, gpu.bus_id) if name}


def _find(store: StateFolder, word: str) -> Path:
    """The run that is meant. Raises UsageProblem with what there is."""
    from recover.cli.runs import goes_on, newest_first
    from recover.edge.store.folder import plain_name

    runs = newest_first(store.all_runs())
    if word == LATEST and runs:
        return runs[0]
    exact = [f for f in runs if plain_name(f.name) == word]
    if exact:
        return exact[0]
    of_target = newest_first(store.runs(word))
    if of_target:
        return next((f for f in of_target if goes_on(f)), of_target[0])
    begun = [f for f in runs if plain_name(f.name).startswith(word)] if word else []
    if len(begun) == 1:
        return begun[0]
    if begun:
        raise _ambiguous(word, begun)
    return _by_other_name(store, word, runs)


def _ambiguous(word: str, begun: Sequence[Path]) -> UsageProblem:
    from recover.wiring import UsageProblem

    some = ", ".join(f.name for f in begun[:5]) + (" …" if len(begun) > 5 else "")
    return UsageProblem((f"{word}: {len(begun)} runs begin so: {some}",), "give more of the id")


def _by_other_name(store: StateFolder, word: str, runs: Sequence[Path]) -> Path:
    """A vmid, an address or a Proxmox name, by the configuration; else what was probably meant."""
    from recover.cli.runs import goes_on, newest_first
    from recover.core.config_table import nearest
    from recover.wiring import UsageProblem

    if not runs:
        raise UsageProblem((f"{word}: there has been no run yet in {store.root}",), "gpu-recover TARGET begins one")
    try:
        found = newest_first(store.runs(target_name(word)))
        if found:
            return next((f for f in found if goes_on(f)), found[0])
    except UsageProblem:
        pass
    close = nearest(word, (LATEST, *store.target_names(), *(f.name for f in runs)))
    newest = ", ".join(f.name for f in runs[:3])
    meant = f"did you mean {close}?" if close else f"the newest are {newest}"
    raise UsageProblem((f"{word}: no run and no target with runs; {meant}",), "gpu-recover history lists the runs")
