"""`gpu-recover exporter`: looks at targets again and again and serves what it saw to Prometheus; it can change nothing.

Looks follow its own period and never a scrape. It is given eyes only: there is no actuator to be had from here.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from recover.cli.common import app, chosen, note, places

if TYPE_CHECKING:
    from recover.core.report.check.verdict import Checked
    from recover.edge.exporter import Board
    from recover.edge.fleet import Failed, Late
    from recover.edge.patrol import Patrol, Post
    from recover.edge.store.folder import StateFolder
    from recover.watcher import Watcher
    from recover.wiring import App

WIDTH = 32
_TOLD = 1000
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Address(click.ParamType[tuple[str, int]]):
    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        host, colon, port = str(value).rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        good = bool(colon and bare) and port.isascii() and port.isdigit() and int(port) < 65536
        if not good or (":" in bare and not host.startswith("[")):
            self.fail(f"{value}: expected HOST:PORT, like 127.0.0.1:9835 or [::1]:9835", param, ctx)
        return bare, int(port)


class Seconds(click.ParamType[float]):
    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from recover.core.duration import duration

        seconds = value if isinstance(value, float) else duration(value)
        if seconds is None or not 1.0 <= seconds <= 86_400.0:
            self.fail(f"{value}: expected a time of 1s to 24h, like 60s or 5m", param, ctx)
        return seconds


@click.command()
@click.argument("targets", nargs=-1, metavar="[TARGET...]")
@click.option("--all", "every_target", is_flag=True, help="All targets of the configuration.")
@click.option(
    "--listen",
    type=Address(),
    default="127.0.0.1:9835",
    show_default=True,
    help="Where to serve; no password is asked.",
)
@click.option("--period", type=Seconds(), default="60s", show_default=True, help="Each target is looked at so often.")
@click.option("--jobs", type=click.IntRange(1, 1024), default=WIDTH, show_default=True, help="Looks at a time.")
@click.option("-q", "--quiet", is_flag=True, help="No word about targets whose state changes.")
@places
def exporter(
    targets: tuple[str, ...], every_target: bool, listen: tuple[str, int], period: float, jobs: int, quiet: bool
) -> int:
    """Look at each TARGET once a period, and serve what was seen to Prometheus. Changes nothing.

    GET /metrics and /healthz are all that it serves. SIGHUP reads the configuration anew, SIGTERM ends it.
    """
    try:
        import prometheus_client  # noqa: F401  # it is an extra
    except ImportError:
        from recover.wiring import UsageProblem

        raise UsageProblem(
            ("the exporter needs the Python package prometheus_client",), "pip install 'gpu-recover[exporter]'"
        ) from None
    with _signals() as asked:
        return _Exporter(targets, every_target, period, jobs, quiet).serve(listen, asked)


@contextmanager
def _signals() -> Iterator[queue.SimpleQueue[int]]:
    """Signals in the order in which they came. Its `put` may be called by a handler, whatever the thread waits for."""
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()

    def handler(number: int, frame: FrameType | None) -> None:
        asked.put(number)

    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield asked
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _next(asked: queue.SimpleQueue[int]) -> int:
    """The next signal. A wait without end would miss one whose handler has not run yet when the wait begins."""
    while True:
        with contextlib.suppress(queue.Empty):
            return asked.get(timeout=0.5)


@dataclass(slots=True)
class _Exporter:
    """One process of it, from its first look to its end."""

    names: tuple[str, ...]
    every_target: bool
    period: float
    jobs: int
    quiet: bool
    good: bool = True  # the configuration could be read when it was asked for last
    words: dict[str, str] = field(default_factory=dict)  # what was last said of each target
    told: set[str] = field(default_factory=set)  # complaints
    watcher: Watcher | None = None
    folder: StateFolder | None = None

    def serve(self, listen: tuple[str, int], asked: queue.SimpleQueue[int]) -> int:
        from recover.cli.posts import LOOK_S
        from recover.edge.exporter import Board, Server
        from recover.edge.patrol import Patrol

        opened = app()
        self.folder = opened.state
        posts = self._posts(opened)
        self.watcher = opened.watcher(opened.herald())
        board = Board(lambda: self._own(patrol))
        patrol: Patrol[Checked] = Patrol(
            self.period, LOOK_S, self.jobs, lambda name, answer: self._said(board, name, answer)
        )
        server = _listen(lambda: Server(*listen, board, lambda: self._trouble(patrol)), listen)
        patrol.post(posts)
        thread = threading.Thread(target=patrol.run, daemon=True, name="patrol")
        thread.start()
        note(f"gpu-recover exporter: {server.url}/metrics, {self._about(len(posts))}")
        try:
            while _next(asked) == signal.SIGHUP:
                opened = self._reload(opened, patrol, board)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):  # whoever asks twice wants it at once
                signal.signal(number, signal.SIG_DFL)
            server.close()
            left = patrol.stop()
            thread.join(5.0)
            opened.close()
        note("gpu-recover exporter: ended" + (f"; {left} looks that hang were left behind" if left else ""))
        return 0

    def _about(self, targets: int) -> str:
        from recover.core.report.words import count

        return f"{count(targets, 'target')}, each looked at every {self.period:g} s, {self.jobs} at a time"

    def _posts(self, opened: App) -> list[Post[Checked]]:
        """All wired before anything is looked at. Raises UsageProblem."""
        from recover.cli.posts import post_of
        from recover.edge.fleet import descriptors

        found = chosen("exporter", opened, self.names, self.every_target)
        room = descriptors(len(found), self.jobs)
        if room.says:
            note(f"gpu-recover exporter: {room.says}")
        self.jobs = room.jobs
        return [post_of(opened, target, self.period, keeps=room.keeps) for target in found]

    def _reload(self, opened: App, patrol: Patrol[Checked], board: Board) -> App:
        """The configuration anew, whole or not at all."""
        from recover.cli.trouble import expected

        try:
            fresh = app()
            posts = self._posts(fresh)
        except Exception as error:
            if expected(error) is None:
                raise
            self.good = False
            note("gpu-recover exporter: the changed configuration can't be used; the one before goes on")
            return opened
        self.good = True
        self.told.clear()
        self.watcher = fresh.watcher(fresh.herald())
        board.keep(post.name for post in posts)  # before: a look of a target that goes may still be told
        patrol.post(posts)
        if fresh is not opened:
            opened.close()
        note(f"gpu-recover exporter: configuration read anew, {self._about(len(posts))}")
        return fresh

    def _said(self, board: Board, name: str, answer: Checked | Failed | Late) -> None:
        from recover.cli.posts import unjudged_of
        from recover.core.report.check.prometheus import lasts, samples
        from recover.core.report.check.verdict import Checked

        one = answer if isinstance(answer, Checked) else unjudged_of(name, answer)
        board.put(name, samples(one))
        if not self.quiet:
            self._tell(one)
        # In this target's own thread: a message that takes its time delays no other target.
        if self.watcher is not None:
            watched, failed = self.watcher.checked(one, shown=lambda s: board.stands(name, lasts(s)))
            self._complain([*(said for each in watched for said in each.trouble), *failed])

    def _complain(self, sentences: list[str]) -> None:
        """Each once, or a full disk would be told for each target in each period."""
        from recover.core.clean import clean

        for said in sentences:
            if said not in self.told and len(self.told) < _TOLD:
                self.told.add(said)
                note(f"gpu-recover exporter: {clean(said, 500)}")

    def _tell(self, one: Checked) -> None:
        """A line for the log where a target's state is another than before."""
        from recover.core.clean import clean

        before, now = self.words.get(one.target), one.status.name
        self.words[one.target] = now
        if before != now and (before is not None or now != "OK"):
            note(clean(f"{one.target}: {now}, was {before or 'not seen yet'}: {one.why}", 1000))

    def _own(self, patrol: Patrol[Checked]) -> Iterator[tuple[str, float]]:
        from recover.cli.breaker import is_open

        seen = patrol.figures()
        yield "gpu_recover_exporter_targets", seen.targets
        yield "gpu_recover_exporter_period_seconds", self.period
        if seen.last_period_s is not None:
            yield "gpu_recover_exporter_last_period_seconds", seen.last_period_s
        yield "gpu_recover_exporter_looks_in_flight", seen.in_flight
        yield "gpu_recover_exporter_looks_hanging", seen.hanging
        yield "gpu_recover_exporter_looks_total", seen.looks
        yield "gpu_recover_exporter_periods_missed_total", seen.missed
        yield "gpu_recover_exporter_configuration_ok", self.good
        breaker = is_open(self.folder) if self.folder is not None else None
        if breaker is not None:
            yield "gpu_recover_breaker_open", breaker

    @staticmethod
    def _trouble(patrol: Patrol[Checked]) -> str:
        return "" if patrol.figures().alive else "no look is begun any more"


def _listen(make: Callable[[], Any], listen: tuple[str, int]) -> Any:
    from recover.wiring import UsageProblem

    try:
        return make()
    except OSError as error:
        where = f"{listen[0]}:{listen[1]}"
        raise UsageProblem((f"--listen {where}: {error.strerror or error}",), "is another exporter running?") from None
