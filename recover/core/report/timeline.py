"""The journal as chapters: one for what came first, one per rung, per crash and per duty; what repeats is said once."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from recover.core.report.lines import action_words, line
from recover.core.report.words import brief, span
from recover.model import record
from recover.model.act import Outcome

_HOOK = "hook"  # key of one whose end has not come yet
FIGURES = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+(?:[.:]\d+)*")


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that happened, or several that were alike, the last of them in words.

    `kind`: run, look, wait, next, yes, no, act, back, kept, hook, stop or end. `more`: what a reader may open.
    """

    at: float
    kind: str
    text: str
    until: float = 0.0
    times: int = 1
    tone: str = "plain"  # or good, warn, bad
    more: tuple[str, ...] = ()
    key: str = ""


@dataclass(frozen=True, slots=True)
class Chapter:
    """`number`: of the try, 0 where it is none. `said`: how it ended, empty where that needs no word."""

    at: float
    title: str
    items: tuple[Item, ...] = ()
    number: int = 0
    said: str = ""
    tone: str = "plain"


class _Writer:
    def __init__(self) -> None:
        self.chapters: list[Chapter] = []
        self.tries = 0
        self._step = ""  # the rung that was decided on and has not begun
        self._running = self._closed = False
        self._acts: dict[int, tuple[int, int]] = {}  # act -> where its item stands

    def chapter(self, at: float, title: str, number: int = 0) -> None:
        self.chapters.append(Chapter(at, title, number=number))

    def item(self, item: Item) -> None:
        """Onto the chapter; a look or wait like the last of its kind, with nothing done since, is the same one."""
        if not self.chapters:
            self.chapter(item.at, "Looking")
        last = self.chapters[-1]
        items = list(last.items)
        place = _alike(items, item)
        if place is None:
            items.append(replace(item, until=item.at))
        else:
            old = items[place]
            items[place] = replace(item, at=old.at, until=item.at, times=old.times + 1, more=old.more + item.more)
        self.chapters[-1] = replace(last, items=tuple(items))

    def write(self, entry: record.Entry) -> None:
        match entry:
            case record.Opened():
                self._opened(entry)
            case record.Saw():
                self.item(_item(entry, "look", tone=_look_tone(entry)))
            case record.Decided(decision=decision):
                self._decided(entry, decision)
            case record.Consented():
                waited = f" (after {span(entry.waited_s)})" if entry.waited_s >= 1 else ""
                self.item(Item(entry.at, "yes", line(entry) + waited))
            case record.Declined():
                self.item(_item(entry, "no", tone="warn"))
            case record.Interrupted():
                self.item(_item(entry, "stop", tone="warn"))
            case record.Kept():
                self.item(_item(entry, "kept"))
            case record.Hooking():
                self._hooking(entry)
            case record.Hooked():
                self._hooked(entry)
            case record.Began():
                self._began(entry)
            case record.Acting():
                self._acting(entry)
            case record.Acted():
                self._acted(entry)
            case record.Ended(outcome=outcome):
                said, tone = outcome_words(outcome)
                self._end(said, tone)
            case record.Closed():
                self._closed = True
                self.chapter(entry.at, "The end")
                self.item(_item(entry, "end"))

    def _hooking(self, entry: record.Hooking) -> None:
        text = f"{line(entry)}; its end is not in the journal, so it may or may not have done its work"
        self.item(Item(entry.at, "hook", text, tone="warn", key=_HOOK))

    def _hooked(self, entry: record.Hooked) -> None:
        """In the place of its beginning; of a hook that began in another journal there is only this."""
        done = replace(_item(entry, "hook", tone="plain" if entry.outcome.ok else "warn"), until=entry.at)
        items = list(self.chapters[-1].items) if self.chapters else []
        if items and items[-1].key == _HOOK:
            items[-1] = replace(done, at=items[-1].at)
            self.chapters[-1] = replace(self.chapters[-1], items=tuple(items))
        else:
            self.item(done)

    def _opened(self, entry: record.Opened) -> None:
        if self._running:
            self._end("cut: the tool ended before the rung did", "bad")
        self._step = ""
        again = "Opened again, to pay what is owed" if self._closed else "Gone on with, after a crash"
        title, self._closed = again if self.chapters else "Looking", False
        self.chapter(entry.at, title)
        self.item(_item(entry, "run"))

    def _decided(
        self, entry: record.Decided, decision: record.Try | record.Restore | record.Wait | record.Stop
    ) -> None:
        match decision:
            case record.Try(step=step):
                if self._step != step:
                    self.chapter(entry.at, step)
                self._step = step
                self.item(_item(entry, "next"))
            case record.Restore(duty=duty):
                if not self._running and self.chapters[-1:] and not self.chapters[-1].title.startswith("Put back"):
                    self.chapter(entry.at, "Put back what is owed")
                self.item(Item(entry.at, "next", f"put back: {action_words(duty.do)}"))
            case record.Wait() if line(entry):
                self.item(_item(entry, "wait"))
            case _:
                pass

    def _began(self, entry: record.Began) -> None:
        self.tries += 1
        if self._step != entry.step or not self.chapters:
            self.chapter(entry.at, entry.step)
        again = f", try {entry.attempt}" if entry.attempt > 1 else ""
        title = f"{entry.step}{again} (scope {entry.scope.word})"
        self.chapters[-1] = replace(
            self.chapters[-1], title=title, number=self.tries, said="has not ended", tone="warn"
        )
        self._step, self._running = "", True

    def _end(self, said: str, tone: str) -> None:
        for i in range(len(self.chapters) - 1, -1, -1):
            if self.chapters[i].number == self.tries:
                self.chapters[i] = replace(self.chapters[i], said=said, tone=tone)
                break
        self._running = False

    def _acting(self, entry: record.Acting) -> None:
        words = action_words(entry.action)
        text = f"{words}: begun; its end is not in the journal, so it may or may not have happened"
        self.item(Item(entry.at, "back" if entry.restores else "act", text, tone="warn", key=f"#{entry.n}"))
        last = self.chapters[-1]
        self._acts[entry.n] = (len(self.chapters) - 1, len(last.items) - 1)

    def _acted(self, entry: record.Acted) -> None:
        chapter, place = self._acts.pop(entry.n, (-1, -1))
        if chapter < 0:
            return
        held = self.chapters[chapter]
        items = list(held.items)
        begun = items.pop(place)
        words = begun.text.partition(": begun; its end is not")[0]
        said, tone = outcome_words(entry.outcome)
        took = f" ({span(entry.outcome.seconds)})" if entry.outcome.seconds >= 1 else ""
        detail = f": {brief(entry.outcome.detail)}" if entry.outcome.detail else ""
        text = f"{words} → {said}{detail}{took}"
        done = Item(begun.at, begun.kind, text, entry.at, 1, "plain" if tone == "good" else tone, entry.outcome.log,
                    FIGURES.sub("#", f"{words}{said}{detail}") if entry.outcome.ok else "")  # fmt: skip
        before = items[place - 1] if place else None
        if place == len(items) and before is not None and before.key == done.key != "" and before.kind == done.kind:
            items[place - 1] = replace(before, until=done.until, times=before.times + 1, more=before.more + done.more)
        else:
            items.insert(place, done)
        self.chapters[chapter] = replace(held, items=tuple(items))


def outcome_words(outcome: Outcome) -> tuple[str, str]:
    """How an act or a rung ended, and its tone."""
    if outcome.ok:
        return "done", "good"
    return ("failed", "bad") if outcome.clear else ("unclear whether it was done", "warn")


def _look_tone(saw: record.Saw) -> str:
    return "bad" if saw.diagnosis.findings else "good" if saw.diagnosis.state.value == "healthy" else "warn"


def _item(entry: record.Entry, kind: str, tone: str = "plain") -> Item:
    text = line(entry)
    return Item(entry.at, kind, text, tone=tone, key=FIGURES.sub("#", text))


def _alike(items: list[Item], item: Item) -> int | None:
    """Where the last look or wait of this kind stands, if it said the same but for figures."""
    if item.kind not in ("look", "wait", "kept"):
        return None
    for i in range(len(items) - 1, -1, -1):
        if items[i].kind not in ("look", "wait", "kept"):
            return None
        if items[i].kind == item.kind:
            return i if items[i].key == item.key else None
    return None


def timeline(entries: Iterable[record.Entry]) -> tuple[Chapter, ...]:
    """Chapters in the order in which they happened."""
    writer = _Writer()
    for entry in entries:
        writer.write(entry)
    return tuple(writer.chapters)
