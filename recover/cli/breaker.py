"""`gpu-recover breaker`: whether anything is still done with nobody there, why not, and a person's word that it may."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from recover.cli.common import app, emit, emit_json, local_time, note, places, state
from recover.cli.views import working
from recover.core.clean import clean

if TYPE_CHECKING:
    from recover.edge.store.folder import StateFolder
    from recover.model.watch import Breaker, Ledger

OPEN, UNKNOWN = 1, 3
_SHOWN = 10


@click.group(invoke_without_command=True)
@places
@click.pass_context
def breaker(ctx: click.Context) -> int | None:
    """The breaker of unattended recovery: show (the default), close.

    It opens by itself on the first failure that nothing explains, and only a person closes it.
    """
    return _show(as_json=False) if ctx.invoked_subcommand is None else None


@breaker.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@places
def show(as_json: bool) -> int:
    """Whether it is open, since when and why. Exit code: 0 closed, 1 open, 3 it can't be told."""
    return _show(as_json)


@breaker.command()
@click.option("--why", metavar="TEXT", default="", help="What was found, for those who read it later.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@places
def close(why: str, as_json: bool) -> int:
    """Allow unattended recovery again. Who closed it, when and why is kept, and messages tell of it."""
    from recover.core.fleet import closed, open_breaker
    from recover.edge.store.ledger import FileLedger
    from recover.ports import Lost
    from recover.wiring.run import who

    def shut(ledger: Ledger) -> tuple[Ledger, tuple[Ledger, Breaker | None]]:
        now = time.time()
        before = _settled(ledger, now)
        after = closed(before, now, who(), clean(why, 300))
        return after, (after, open_breaker(before))

    book = FileLedger(state())
    answer = book.change(shut)
    if isinstance(answer, Lost):
        return _lost(answer.why, as_json)
    ledger, was = answer
    if as_json:
        emit_json(_data(ledger))
    elif was is None:
        emit("the breaker was closed already")
    else:
        emit(f"closed: it was open since {local_time(was.opened_at)}: {clean(was.target)}: {clean(was.why)}")
    if was is not None:
        for said in _announce(was, ledger.breakers[-1]):
            note(f"gpu-recover breaker: {clean(said, 600)}")
    return 0


def _announce(was: Breaker, now: Breaker) -> tuple[str, ...]:
    """Who was told that it opened hears that it is closed; that nobody can be told keeps it from nothing."""
    from recover.model.notice import Event, Notice
    from recover.wiring import UsageProblem

    try:
        herald = app().herald()
    except UsageProblem as error:
        return (f"nobody is told that it is closed: {'; '.join(error.problems)}",)
    why = f": {now.closed_why}" if now.closed_why else ""
    what = f"{now.closed_by} closed it{why}. It was open since {local_time(was.opened_at)}: {was.target}: {was.why}"
    with working("telling people"):
        return herald.announce(Notice(now.closed_at, Event.BREAKER, was.target, what, over=True))


def _show(as_json: bool) -> int:
    from recover.core.fleet import open_breaker
    from recover.edge.store.ledger import FileLedger
    from recover.ports import Lost

    ledger = FileLedger(state()).read()
    if isinstance(ledger, Lost):
        return _lost(ledger.why, as_json)
    ledger = _settled(ledger, time.time())
    if as_json:
        emit_json(_data(ledger))
    else:
        emit("\n".join(_lines(ledger)))
    return OPEN if open_breaker(ledger) is not None else 0


def is_open(folder: StateFolder) -> bool | None:
    """None where it can't be told. For whoever only shows it, and may not use a command's context."""
    from recover.core.fleet import open_breaker
    from recover.edge.store.ledger import FileLedger
    from recover.ports import Lost

    ledger = FileLedger(folder).read()
    return None if isinstance(ledger, Lost) else open_breaker(_settled(ledger, time.time())) is not None


def _settled(ledger: Ledger, now: float) -> Ledger:
    """A run whose process is gone has opened it, although nobody has written that down yet."""
    from recover.core.fleet import KEPT_S, settled
    from recover.edge.store.ledger import LocalControllers

    return settled(ledger, now, KEPT_S, LocalControllers().lives)


def _lost(why: str, as_json: bool) -> int:
    if as_json:
        emit_json({"schema": 1, "state": None, "why": clean(why, 600), "breakers": [], "runs": []})
    note(f"gpu-recover breaker: {clean(why, 600)}")
    return UNKNOWN


def _lines(ledger: Ledger) -> list[str]:
    from recover.core.fleet import open_breaker

    found = open_breaker(ledger)
    lines = ["closed: unattended recovery may act, within its limits"]
    if found is not None:
        lines = [
            f"OPEN since {local_time(found.opened_at)}: nothing is recovered unattended",
            f"  {clean(found.target)}: {clean(found.why)}",
            f"Next: gpu-recover history {clean(found.target)}, mend it, then gpu-recover breaker close --why TEXT",
        ]
    for permit in ledger.permits:
        if not permit.ended:
            lines.append(f"at work: {clean(permit.target)} since {local_time(permit.began)} (pid {permit.holder.pid})")
    for permit in ledger.permits[-_SHOWN:]:
        if permit.ended:
            lines.append(f"acted on: {clean(permit.target)} {local_time(permit.began)}, {clean(permit.end)}")
    for past in reversed([b for b in ledger.breakers if b.closed_at][-5:]):
        why = f": {clean(past.closed_why)}" if past.closed_why else ""
        lines.append(f"was open {local_time(past.opened_at)} ({clean(past.target)}), "
                     f"closed {local_time(past.closed_at)} by {clean(past.closed_by)}{why}")  # fmt: skip
    return lines


def _data(ledger: Ledger) -> dict[str, Any]:
    from recover.core.fleet import open_breaker

    found = open_breaker(ledger)
    return {
        "schema": 1,
        "state": "open" if found is not None else "closed",
        "why": clean(f"{found.target}: {found.why}", 600) if found is not None else None,
        "breakers": [
            {
                "opened_at": b.opened_at,
                "target": clean(b.target),
                "why": clean(b.why),
                "closed_at": b.closed_at or None,
                "closed_by": clean(b.closed_by) or None,
                "closed_why": clean(b.closed_why) or None,
            }
            for b in ledger.breakers
        ],
        "runs": [
            {
                "target": clean(p.target),
                "began": p.began,
                "ended": p.ended or None,
                "end": p.end or None,
                "tried": p.tried,
            }
            for p in ledger.permits
        ],
    }
