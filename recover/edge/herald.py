"""Tells people and programs how targets stand: all that is owed in one message per destination, within one deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from recover.core.config_notify import Destination, Hook
from recover.core.hooks import change
from recover.core.report.message import Message, Story, message, story
from recover.core.report.words import count
from recover.core.told import News, Owed, Want, all_owed, delivered, done, given_up, noted, only, reached, stands
from recover.edge.fleet import Failed, Late, at_once
from recover.edge.hooks import run_hook
from recover.edge.notify import Sent, send
from recover.edge.store.folder import StateFolder, safe_name
from recover.edge.store.journal import JournalDamaged, read_entries
from recover.edge.store.lock import is_held
from recover.edge.store.notebook import NotebookFile
from recover.edge.store.standings import FileStandings
from recover.model.act import Outcome
from recover.model.notice import Event, Notebook, Notice, Pending
from recover.model.record import Entry
from recover.model.snapshot import Target
from recover.model.watch import Standing, Transition

TELL_S = 30.0  # for all messages of one call together
GATHER_S = 1.0  # what changes within this time becomes one message
WIDTH = 16
IDLE_S = 5.0  # a check of hundreds of targets asks for each of them whether something is owed
ROUNDS = 3  # what others wrote down while we sent is told in the same call
LATELY_S = 1800.0  # a run that began so long before a state is part of its story
UNSEEN_S = 3600.0  # of a target that nobody has looked at for so long nobody knows whether its state still lasts
SPARE_S = 10.0  # for what is said and written beside the telling itself
Post = Callable[[Destination, Message, float], Sent]
HOOK = ""  # the state-change hook's place in the notebook


@dataclass(frozen=True, slots=True)
class _Letter:
    """All that one destination is owed."""

    to: Destination
    states: tuple[Owed, ...]
    notices: tuple[Pending, ...]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What could not be, a sentence each. `idle`: nothing was owed any more."""

    said: tuple[str, ...] = ()
    idle: bool = False


@dataclass(slots=True)
class FileHerald:
    """Its memory is the notebook below STATE/notify. Without destinations and hook it does and writes nothing."""

    notify: Mapping[str, Destination]
    hook: Hook | None
    state: StateFolder
    target: Callable[[str], Target]
    now: Callable[[], float] = time.time
    gather_s: float = GATHER_S
    tell_s: float = TELL_S
    idle_s: float = IDLE_S
    post: Post = send
    pause: Callable[[float], None] = time.sleep
    _file: NotebookFile = field(init=False)
    _idle_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._file = NotebookFile(self.state.root / "notify")

    def tell(self, *changes: Transition) -> tuple[str, ...]:
        """As the port says: these changes, and whatever is still owed or due again."""
        if not self.notify and self.hook is None:
            return ()
        if not changes and time.monotonic() < self._idle_until:
            return ()
        if changes:
            self._file.change(lambda book: stands(book, changes))
        return self._deliver(gather=bool(changes))

    def announce(self, *notices: Notice) -> tuple[str, ...]:
        """What happened once, to each destination that wants to hear of it."""
        wanted = [(n, [d.name for d in self.notify.values() if n.event in d.events]) for n in notices]
        if not any(names for _, names in wanted):
            return ()
        for notice, names in wanted:
            self._file.change(partial(noted, to=names, notice=notice))
        return self._deliver(gather=False)

    # --- delivering

    def _deliver(self, *, gather: bool) -> tuple[str, ...]:
        """Messages and hooks apart: a program that takes its time keeps nobody from being told."""
        jobs: list[Callable[[float], Delivered]] = [partial(self._messages, gather)]
        limit = self.tell_s
        if self.hook is not None:
            jobs.append(self._hooks)
            limit = max(limit, self.hook.deadline_s)
        answers = at_once(jobs, len(jobs), limit + SPARE_S, limit + SPARE_S)
        ended = [a for a in answers if isinstance(a, Delivered)]
        if all(one.idle for one in ended) and len(ended) == len(jobs):
            self._idle_until = time.monotonic() + self.idle_s
        broken = [f"telling broke off: {_why(a)}" for a in answers if not isinstance(a, Delivered)]
        return (*(said for one in ended for said in one.said), *broken, *self._file.trouble())

    def _messages(self, gather: bool, left: float) -> Delivered:
        said: list[str] = []
        with self._file.turn("sending") as ours:
            if not ours:
                return Delivered()  # who sends now finds it in the notebook
            if gather and self.gather_s and self._owed(self._file.read(), frozenset()):
                self.pause(self.gather_s)
            until, failed = time.monotonic() + self.tell_s, set[str]()
            said += self._forget_old()
            for _ in range(ROUNDS):
                if time.monotonic() >= until:
                    break
                if not self._round(until, failed, said):
                    return Delivered(tuple(said), idle=True)
        return Delivered(tuple(said))

    def _forget_old(self) -> list[str]:
        lost: list[Pending] = []

        def how(book: Notebook) -> Notebook:
            kept, gone = given_up(only(book, self.notify), self.now())
            lost[:] = gone
            return kept

        self._file.change(how)
        return [
            f"notify.{p.to}: {p.notice.event} of {p.notice.target} was never delivered, and is given up" for p in lost
        ]

    def _owed(self, book: Notebook, failed: frozenset[str]) -> list[_Letter]:
        letters = []
        for name, to in sorted(self.notify.items()):
            states = (
                all_owed(book, name, Want(to.at_least, to.remind_s), self.now()) if Event.STATE in to.events else ()
            )
            states = tuple(o for o in states if o.news is not News.REMINDER or self._seen_lately(o.present.target))
            pending = tuple(p for p in book.pending if p.to == name)
            if (states or pending) and name not in failed:
                letters.append(_Letter(to, states, pending))
        return letters

    def _seen_lately(self, target: str) -> bool:
        """A target that left the configuration, or whose watcher is down, is not said to be sick STILL."""
        found = FileStandings(self.state).read(target)
        newest = found.recent[-1].at if isinstance(found, Standing) and found.recent else 0.0
        return self.now() - newest < UNSEEN_S

    def _round(self, until: float, failed: set[str], said: list[str]) -> bool:
        """One message to each that is owed something; False: nothing was owed."""
        letters = self._owed(self._file.read(), frozenset(failed))
        if not letters:
            return False
        texts = [self._message(letter) for letter in letters]
        left = max(1.0, until - time.monotonic())
        jobs = [
            partial(self._send, letter.to, text, min(left, self.tell_s))
            for letter, text in zip(letters, texts, strict=True)
        ]
        answers = at_once(jobs, WIDTH, left + 5.0, left + 5.0)
        for letter, text, answer in zip(letters, texts, answers, strict=True):
            said += self._sent(letter, text, answer, failed)
        return True

    def _send(self, to: Destination, text: Message, seconds: float, left: float) -> Sent:
        return self.post(to, text, seconds)

    def _sent(self, letter: _Letter, text: Message, answer: Sent | Failed | Late, failed: set[str]) -> list[str]:
        name, why = letter.to.name, _why(answer)
        at = self.now()

        def how(book: Notebook) -> Notebook:
            book = reached(book, name, why, at)
            return book if why else done(delivered(book, name, letter.states, at), letter.notices)

        self._file.change(how)
        self._file.log(to=name, ok=not why, why=why, title=text.title, targets=_targets(letter))
        if not why:
            return []
        failed.add(name)
        return [f"notify.{name}: could not be told ({why}); tried again at the next check"]

    # --- the state-change hook

    def _hooks(self, left: float) -> Delivered:
        """For each target that is owed it, all at the same time: that of one target waits for no other's."""
        calls = all_owed(self._file.read(), HOOK, Want(), self.now())
        jobs = [partial(self._call, owed.present.target) for owed in calls]
        answers = at_once(jobs, WIDTH, left, left) if jobs else []
        said: list[str] = []
        for owed, answer in zip(calls, answers, strict=True):
            said += answer if isinstance(answer, tuple) else [self._unheard(owed.present.target, _why(answer))]
        return Delivered(tuple(said), idle=not calls)

    def _call(self, target: str, left: float) -> tuple[str, ...]:
        """What the target's hook is owed, one after the other; nothing where somebody else is at it just now."""
        assert self.hook is not None
        with self._file.turn(f"hook-{safe_name(target)}") as ours:
            for _ in range(ROUNDS if ours else 0):
                now, book = self.now(), self._file.read()
                owed = next((o for o in all_owed(book, HOOK, Want(), now) if o.present.target == target), None)
                if owed is None:
                    break
                why = _why(run_hook(self.hook, change(self.target(target), owed.present)))
                if not why:
                    self._file.change(partial(delivered, to=HOOK, said=(owed,), now=now))
                self._file.log(
                    hook="state-change", target=target, ok=not why, why=why, state=owed.present.judged.status.name
                )
                if why:
                    return (self._unheard(target, why),)
        return ()

    @staticmethod
    def _unheard(target: str, why: str) -> str:
        return f"hook state-change for {target}: {why}; tried again at the next check"

    # --- words

    def _message(self, letter: _Letter) -> Message:
        stories = {}
        if len(letter.states) == 1 and not letter.notices:
            (owed,) = letter.states
            stories[owed.present.target] = self._story(owed)
        return message(letter.states, [p.notice for p in letter.notices], self.now(), stories)

    def _story(self, owed: Owed) -> Story:
        """What the newest run did, if it is of this time."""
        since = (owed.was.since if owed.was is not None else owed.present.since) - LATELY_S
        for folder in reversed(self.state.runs(owed.present.target)):
            entries: tuple[Entry, ...] = ()
            try:
                entries = tuple(read_entries(folder / "journal.jsonl"))
            except (OSError, JournalDamaged):
                continue
            if entries and entries[-1].at >= since:
                return story(entries, goes_on=is_held(folder.parent.parent))
            break
        return Story()


def _targets(letter: _Letter) -> list[str]:
    return [o.present.target for o in letter.states] + [p.notice.target for p in letter.notices]


def _why(answer: Sent | Outcome | Failed | Late) -> str:
    match answer:
        case Sent():
            return answer.why
        case Outcome():
            return "" if answer.ok else answer.detail or "it failed"
        case Late():
            return (
                "it was not run in time"
                if not answer.began
                else f"no end within {count(round(answer.seconds), 'second')}"
            )
        case Failed():
            return f"a bug of ours: {type(answer.error).__name__}"
