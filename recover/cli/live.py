"""The live view: the ladder, what goes on, and how far memory has fallen; what is not known is said, never drawn."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from recover.core.clean import clean
from recover.core.fold import after
from recover.core.history import Attempt, History
from recover.core.report.lines import action_words, line
from recover.core.report.words import about, base_words, count, size, span
from recover.core.sentences import grouped
from recover.model import record
from recover.model.act import Pass, Refuse
from recover.model.ladder import Playbook, Ready

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

BAR = 30
IDLE_MIB = 64  # a GPU at or below is drawn as empty
_FIGURES = re.compile(r"\d+(?:[.:]\d+)*")
_KEPT_LINES = (
    record.Opened,
    record.Consented,
    record.Declined,
    record.Interrupted,
    record.Kept,
    record.Began,
    record.Ended,
    record.Hooked,
)  # they stay above the view


class LiveView:
    """Redrawn four times a second from the history so far. `now` is the clock that the entries were stamped with."""

    def __init__(self, console: Console, playbook: Playbook, now: Callable[[], float] = time.time) -> None:
        self._console, self._playbook, self._now = console, playbook, now
        self._history = History()
        self._began: float | None = None
        self._doing = "looking"
        self._doing_since = now()
        self._stopping = ""
        self._seen: record.Saw | None = None  # the last look that reached the guest
        self._lock = threading.RLock()
        self._live = self._fresh()
        self.run = ""

    def _fresh(self) -> Live:
        """A live display that knows of nothing above it: one that is started again would erase what stands there."""
        from rich.live import Live

        return Live(
            get_renderable=self._render_anyway, console=self._console, refresh_per_second=4, transient=True,
            redirect_stderr=False, redirect_stdout=False,
        )  # fmt: skip

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def entry(self, entry: record.Entry) -> None:
        with self._lock:
            self._history = after(self._history, entry)
            self._began = entry.at if self._began is None else self._began
            if isinstance(entry, record.Opened):
                self.run = entry.run
            if isinstance(entry, record.Saw) and entry.vitals.gpus:
                self._seen = entry
            self._note(entry)
        if isinstance(entry, _KEPT_LINES):
            from rich.text import Text

            stamp = time.strftime("%H:%M:%S", time.localtime(entry.at))
            self._console.print(Text(f"{stamp} {line(entry)}", style="dim"))

    def _note(self, entry: record.Entry) -> None:
        """What goes on now, for the line that a person reads first."""
        match entry:
            case record.Acting(action=action, restores=restores):
                self._do(("putting back: " if restores else "") + action_words(action), entry.at)
            case record.Decided(decision=record.Wait(seconds=seconds, why=why)):
                self._do(why if seconds > 0 else "looking", entry.at)
            case record.Decided(decision=record.Try(step=step)):
                self._do(f"about to try {step}", entry.at)
            case record.Decided(decision=record.Restore(duty=duty)):
                self._do(f"putting back {duty.key}", entry.at)
            case record.Hooking(event=event):
                self._do(f"running the hook {event}", entry.at)
            case record.Acted() | record.Ended():
                self._do("looking", entry.at)
            case record.Closed():
                self._do("done", entry.at)

    def _do(self, what: str, at: float) -> None:
        """The same wait with other figures is still the same wait."""
        if _FIGURES.sub("#", what) != _FIGURES.sub("#", self._doing):
            self._doing_since = at
        self._doing = what

    def asking(self, asking: bool) -> None:
        """While a question stands, nothing may be redrawn over it."""
        if asking:
            self._live.stop()
        else:
            self._live = self._fresh()
            self._live.start()

    def told(self, who: str) -> None:
        self._stopping = who

    def waiting(self, what: str) -> None:
        self._do(what, self._now())

    def _render_anyway(self) -> RenderableType:
        """Called from the redrawing thread, where nobody would catch what goes wrong."""
        try:
            return self.render()
        except Exception as error:
            from rich.text import Text

            return Text(f"(this view has failed: {type(error).__name__}; the run goes on)", style="yellow")

    def render(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            history, doing, since, seen = self._history, self._doing, self._doing_since, self._seen
        rows: list[RenderableType] = [self._head(history)]
        now = Text.assemble(("  now  ", "bold"), f"({span(self._now() - since)}) ", (clean(doing), "bold cyan"))
        now.no_wrap, now.overflow = True, "ellipsis"
        rows.append(now)
        stopping = history.interrupted.by if history.interrupted is not None else self._stopping
        if stopping:
            rows.append(
                Text(f"  stopping ({clean(stopping)}): what was changed is put back first", style="bold yellow")
            )
        rows += [*self._findings(history), Text(""), self._ladder(history), Text("")]
        rows += self._machine(history, seen)
        return Group(*rows)

    def _head(self, history: History) -> Text:
        from rich.text import Text

        opened = history.opened
        if opened is None:
            return Text("looking …", style="bold")
        ran = self._now() - (self._began or opened.at)
        left = history.deadline_at - self._now()
        return Text.assemble(
            (clean(opened.target), "bold"), f"  playbook {clean(opened.playbook)}  {span(ran)} so far",
            f", at most {span(left)} more" if left > 0 else ", past its deadline",
        )  # fmt: skip

    def _findings(self, history: History) -> list[RenderableType]:
        from rich.text import Text

        saw = history.last
        if saw is None:
            return []
        colour = {"healthy": "green", "faulty": "red", "hopeless": "bold red"}.get(saw.diagnosis.state, "yellow")
        says = list(grouped(f.says for f in saw.diagnosis.findings))
        slow = grouped(s.finding.says for s in saw.diagnosis.ripening)
        says += [f"not stuck yet, may go away by itself: {text}" for text in slow]
        says = says or [f"not seen: {gap}" for gap in saw.diagnosis.gaps]
        rows: list[RenderableType] = [
            Text.assemble(
                ("  last look  ", "bold"), (saw.diagnosis.state, colour), f", {span(self._now() - saw.at)} ago"
            )
        ]
        rows += [Text(f"    {clean(text)}", overflow="ellipsis", no_wrap=True) for text in says[:3]]
        if len(says) > 3:
            rows.append(Text(f"    and {len(says) - 3} more"))
        return rows

    def _ladder(self, history: History) -> Table:
        from rich.table import Table

        table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=True)
        longest = max((len(rung.step) for rung in self._playbook.rungs), default=0)
        for column, least in enumerate((1, longest, None)):  # a long refusal must not squeeze the rungs' names
            table.add_column(no_wrap=True, overflow="ellipsis", ratio=1 if column == 2 else None, min_width=least)
        for index, rung in enumerate(self._playbook.rungs):
            mark, style, says = self._rung(history, index)
            table.add_row(mark, rung.step, says, style=style)
        return table

    def _rung(self, history: History, index: int) -> tuple[str, str, str]:
        tries = [a for a in history.attempts if a.index == index]
        if tries:
            return self._tried(tries, looked=not history.stale)
        option = next((o for o in history.last.options if o.index == index), None) if history.last else None
        if self._playbook.rungs[index].step in history.skipped:
            return "-", "dim", "skipped by you"
        match option.offer if option is not None else None:
            case Ready(blast=blast):
                return " ", "", f"not tried; possible, {about(blast.minutes)}"
            case Pass(why):
                return " ", "dim", f"no use now: {clean(why)}"
            case Refuse(guard, why):
                return "!", "yellow", f"refused ({clean(guard)}): {clean(why)}"
            case _:
                return " ", "dim", ""

    def _tried(self, tries: list[Attempt], *, looked: bool) -> tuple[str, str, str]:
        last = tries[-1]
        number = f"try {last.attempt}, " if last.attempt > 1 else ""
        if last.outcome is None:
            return ">", "bold cyan", f"{number}running {span(self._now() - last.began_at)}"
        took = span((last.ended_at or last.began_at) - last.began_at)
        if last.outcome.ok:
            return "+", "", f"{number}done in {took}" + ("" if looked else "; whether it helped, the next look says")
        return "x", "red", f"{number}failed after {took}: {clean(last.outcome.detail)}"

    def _machine(self, history: History, seen: record.Saw | None) -> list[RenderableType]:
        from rich.text import Text

        last = history.last
        rows: list[RenderableType] = []
        if last is not None and not last.vitals.reached:
            vm = f", and the VM was {clean(last.vitals.vm_status)}" if last.vitals.vm_status else ""
            ago = span(self._now() - last.at)
            rows.append(Text(f"  at the last look, {ago} ago, the guest was not reached{vm}", style="yellow"))
        if seen is None:
            return rows
        if seen is not last or history.stale:
            rows.append(Text(f"  figures from {span(self._now() - seen.at)} ago:", style="yellow"))
        if self._console.height < len(self._playbook.rungs) + len(seen.vitals.gpus) + 12:
            return [*rows, self._all_gpus(seen.vitals), self._ram(seen.vitals)]
        return [*rows, *(self._gpu(seen.vitals, i) for i in range(len(seen.vitals.gpus))), self._ram(seen.vitals)]

    def _gpu(self, vitals: record.Vitals, at: int) -> Text:
        gpu = vitals.gpus[at]
        if gpu.used_mib is None or not gpu.total_mib:
            return self._unknown(f"GPU {gpu.index}", gpu.condition)
        figures = f"{size(gpu.used_mib)} used of {size(gpu.total_mib)}"
        return self._bar(f"GPU {gpu.index}", gpu.used_mib, gpu.total_mib, figures, gpu.used_mib > IDLE_MIB)

    def _all_gpus(self, vitals: record.Vitals) -> Text:
        """One bar for all, where the terminal is too low for one each."""
        known = [(g.used_mib, g.total_mib) for g in vitals.gpus if g.used_mib is not None and g.total_mib]
        used, total = sum(u for u, _ in known), sum(t or 0 for _, t in known)
        silent = len(vitals.gpus) - len(known)
        figures = f"{size(used)} used on {count(len(known), 'GPU')}" + (f", {silent} do not answer" if silent else "")
        return self._bar("GPUs ", used, total, figures, used > IDLE_MIB)

    def _ram(self, vitals: record.Vitals) -> Text:
        free, total = vitals.ram_available_mib, vitals.ram_total_mib
        if free is None or not total:
            return self._unknown("RAM  ", "not read")
        base = vitals.ram_baseline_mib
        short = free < (total * 0.9 if base is None else base * 0.95)
        want = base_words(vitals, base)
        return self._bar("RAM  ", total - free, total, f"{size(free)} available of {size(total)}; {want}", short)

    def _unknown(self, name: str, why: str) -> Text:
        from rich.text import Text

        return Text.assemble(f"  {name}  ", ("?" * 3 + f" not known ({clean(why)})", "yellow"))

    def _bar(self, name: str, part: int, whole: int, figures: str, held: bool) -> Text:
        from rich.text import Text

        full = round(BAR * part / whole) if whole else 0
        full = min(BAR, max(full, 1 if held and part else 0))
        return Text.assemble(
            f"  {name}  ", ("█" * full, "yellow" if held else "green"), ("░" * (BAR - full), "dim"), f"  {figures}"
        )
