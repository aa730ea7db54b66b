"""`gpu-recover follow` and `abort`: a run is watched through its journal and stopped by a request; never by force."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recover.cli.common import emit, emit_verdict, note, places, state, target_name

if TYPE_CHECKING:
    from recover.edge.store.folder import StateFolder
    from recover.model.record import Entry

POLL_S = 0.5
OUT_OF_TIME = 13
CUT = 12  # the run ended without an end: a person looks, and the next run pays what it owes


@click.command()
@click.argument("target")
@click.option("-q", "--quiet", is_flag=True, help="Only the result.")
@click.option("-v", "--verbose", is_flag=True, help="Every look and act, as plain lines.")
@places
def follow(target: str, quiet: bool, verbose: bool) -> int:
    """Watch the run that goes on on TARGET, or see how the last one went. The exit code is that of the run."""
    from recover.cli.runs import goes_on, journal_of
    from recover.cli.views import view_for
    from recover.core.fold import fold
    from recover.core.report.result import exit_code
    from recover.core.report.text import text
    from recover.edge.store.journal import read_entries

    name = target_name(target)
    folder = _newest(state(), name)
    alive = goes_on(folder)
    if not alive:
        note(f"no run goes on on {name}; this is the last one, {folder.name}:")
    entries = list(read_entries(journal_of(folder)))
    with view_for(_ladder(entries), quiet=quiet, verbose=verbose or not alive) as view:
        for entry in _tail(folder):
            view.entry(entry)
    entries = list(read_entries(journal_of(folder)))
    closed = fold(entries).closed  # hooks may have been run after it
    if closed is None:
        emit(f"{name}: run {folder.name} was cut: nobody works on it.\nNext: gpu-recover {name}   (goes on with it)")
        return CUT
    code = exit_code(closed)
    emit_verdict(text(entries, str(journal_of(folder))), code)
    return code


def _newest(store: StateFolder, name: str) -> Path:
    """The run that goes on, else the last."""
    from recover.cli.runs import goes_on
    from recover.wiring import UsageProblem

    folders = store.runs(name)
    if not folders:
        raise UsageProblem((f"{name}: there has been no run yet",), f"gpu-recover {name} begins one")
    return next((f for f in reversed(folders) if goes_on(f)), folders[-1])


def _ladder(entries: list[Entry]) -> Any:
    """The playbook that the run climbs, for the view; only its rungs count."""
    from recover.edge.playbooks import PlaybookProblem, read_playbook
    from recover.model.ladder import Playbook, Rung
    from recover.model.record import Opened, Saw

    name = next((e.playbook for e in entries if isinstance(e, Opened)), "")
    options = next((e.options for e in reversed(entries) if isinstance(e, Saw)), ())
    if options:
        return Playbook(name, "", rungs=tuple(Rung(o.step) for o in options))
    try:
        return read_playbook(name)
    except PlaybookProblem:
        return Playbook(name, "")


def _tail(folder: Path) -> Iterator[Entry]:
    """Entries as they are written, until the run is closed or nobody works on it any more."""
    from recover.cli.runs import goes_on, journal_of
    from recover.edge.store.journal import follow_entries
    from recover.model.record import Closed, Hooking, Opened

    position, closed, hooking = 0, False, False
    while True:
        alive = goes_on(folder)  # asked before reading: what it wrote last is still read
        found, position = follow_entries(journal_of(folder), position)
        for entry in found:
            closed = isinstance(entry, Closed) or (closed and not isinstance(entry, Opened))
            hooking = isinstance(entry, Hooking)
            yield entry
        if not found and ((closed and not hooking) or not alive):
            return
        if not found:
            time.sleep(POLL_S)


@click.command()
@click.argument("run")
@click.option("--wait", "wait_s", metavar="SECONDS", type=click.FloatRange(0), default=60.0, show_default=True,
              help="How long to wait until the run says that it heard.")  # fmt: skip
@places
def abort(run: str, wait_s: float) -> int:
    """Ask RUN (its id, or the target on which it goes on) to stop in good order.

    The act that is under way is finished, what was changed is put back, and then it ends.
    """
    from recover.cli.runs import goes_on, journal_of
    from recover.cli.views import working
    from recover.edge.store.folder import write_atomically
    from recover.edge.store.journal import follow_entries
    from recover.wiring import UsageProblem
    from recover.wiring.run import who

    store = state()
    folder = store.find_run(run) or next((f for f in reversed(store.runs(run)) if goes_on(f)), None)
    if folder is None:
        known = [f.name for t in store.target_names() for f in store.runs(t) if goes_on(f)]
        raise UsageProblem((f"{run}: there is no such run",), f"going on: {', '.join(known) or 'none'}")
    if not goes_on(folder):
        raise UsageProblem(
            (f"{folder.name}: this run does not go on any more",), "gpu-recover history shows how it ended"
        )
    _, position = follow_entries(journal_of(folder), 0)
    request = json.dumps({"who": who(), "at": time.time()}).encode()
    write_atomically(folder / "abort", request + b"\n")
    with working(f"waiting until {folder.name} says that it heard"):
        code, says = _heard(folder, position, time.monotonic() + wait_s)
    emit(f"{folder.name} {says}")
    return code


def _heard(folder: Path, position: int, until: float) -> tuple[int, str]:
    """Wait until the run's journal says that it was interrupted."""
    from recover.cli.runs import goes_on, journal_of
    from recover.edge.store.journal import follow_entries
    from recover.model.record import Closed, Interrupted

    while time.monotonic() < until:
        alive = goes_on(folder)
        found, position = follow_entries(journal_of(folder), position)
        if any(isinstance(e, (Interrupted, Closed)) for e in found):
            return 0, "heard: it finishes what is under way, puts back what it changed, and ends"
        if not alive:
            return CUT, "ended without saying that it heard: gpu-recover history shows how"
        time.sleep(POLL_S / 2)
    return OUT_OF_TIME, (
        "was asked to stop and has not answered yet: an act is under way, and it stops after that\n"
        f"Next: gpu-recover follow {folder.parent.parent.name}"
    )
