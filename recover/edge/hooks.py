"""Hooks of a run: written down before they are run, without a shell, and owed until their counterpart ended well."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from recover.core.clean import clean, clean_lines
from recover.core.config_notify import Hook
from recover.core.hooks import Json, after, before, cut, disrupted, due, hook_runs, words
from recover.core.redact import redact_text
from recover.core.report.words import span
from recover.edge.child import Ended, minimal, run_child
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import JournalDamaged, read_entries
from recover.model.act import Blast, Outcome
from recover.model.notice import HookEvent
from recover.model.record import Closed, Entry, Hooked, Hooking, Try
from recover.model.snapshot import Target
from recover.model.verdict import Diagnosis, Scope
from recover.ports import Gate, GateAnswer, View

TRIES, PAUSE_S = 2, 3.0  # of a hook that is owed at a run's end
SAID = 200  # characters of a hook's last line

Write = Callable[[Entry], None]
Hooks = Mapping[HookEvent, Hook]


@dataclass(slots=True)
class Patience:
    """A hook is waited for: who asks the run to stop meanwhile is told so, and who asks again ends the hook.

    `asked`: how often it was asked so far; `say`: words for the terminal.
    """

    asked: Callable[[], int] = lambda: 0
    say: Callable[[str], None] = lambda text: None

    def of(self, hook: Hook) -> Callable[[float], bool]:
        before, told = self.asked(), False

        def stop(seconds: float) -> bool:
            nonlocal told
            times = self.asked() - before
            if times and not told:
                told = True
                left = span(max(0.0, hook.deadline_s - seconds))
                what = f"the hook {hook.event.value} ({clean(hook.command[0], 100)})"
                self.say(f"Ctrl-C again ends {what}: it has run for {span(seconds)}, and takes at most {left} more")
            return times > 1

        return stop


def run_hook(
    hook: Hook, data: Json, environ: Mapping[str, str] | None = None,
    stop: Callable[[float], bool] = lambda seconds: False,
) -> Outcome:  # fmt: skip
    """Run it to its end or its deadline. What it said last is cleaned, and blanked where it looks like a secret."""
    argv = words(hook.command, data)
    if isinstance(argv, str):
        return Outcome(False, f"was not run: {argv}", changed=False)
    given = minimal(os.environ if environ is None else environ)
    ended = run_child(argv, json.dumps(data).encode() + b"\n", hook.deadline_s, given, leashed=True, stop=stop)
    return Outcome(ended.code == 0, _detail(ended), seconds=ended.seconds)


def _detail(ended: Ended) -> str:
    if ended.why:
        how = ended.why
    elif ended.code is not None and ended.code < 0:
        how = f"was ended by signal {-ended.code}"
    else:
        how = "" if ended.code == 0 else f"ended with {ended.code}"
    said = _last_line(ended.stderr) or ("" if ended.code == 0 else _last_line(ended.stdout))
    return f"{how}: {said}" if how and said else how or said


def _last_line(data: bytes) -> str:
    """The end of what a program said; of a flood the last line that was kept."""
    lines = clean_lines(redact_text(data[-4 * SAID :].decode("utf-8", "replace")), SAID)
    return lines[-1] if lines else ""


@dataclass(slots=True)
class HookedGate:
    """Asks as `gate` does, and after a yes runs the before-disruption hook; without it the answer becomes a no."""

    gate: Gate
    hook: Hook
    target: Target
    run: str
    write: Write
    now: Callable[[], float]
    view: View
    patience: Patience = field(default_factory=Patience)
    covered: Scope | None = None  # up to here it was run already, and went well

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        answer = self.gate.ask(attempt, blast, diagnosis)
        done = self.covered is not None and attempt.scope <= self.covered
        if answer.said != "yes" or done or attempt.scope < self.hook.at_least:
            return answer
        self.view.asking(False)  # nobody is asked any more: what goes on is shown
        try:
            outcome = self._run(attempt, blast, diagnosis)
        finally:
            self.view.asking(True)
        if outcome.ok:
            self.covered = attempt.scope
            return answer
        if not self.hook.required:
            return answer
        command = clean(self.hook.command[0], 100)
        return GateAnswer(
            "no",
            "the before-disruption hook",
            f"refused (hook): {command} {outcome.detail}",
            f"mend {command}, or set required = false in [hooks.before-disruption]",
        )

    def _run(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> Outcome:
        event = HookEvent.BEFORE_DISRUPTION
        self.write(Hooking(self.now(), event.value, clean(self.hook.command[0], 100), attempt.step))
        data = before(self.target, self.run, self.now(), attempt, blast, diagnosis)
        outcome = run_hook(self.hook, data, stop=self.patience.of(self.hook))
        self.write(Hooked(self.now(), event.value, outcome))
        return outcome


def at_the_end(
    hooks: Hooks, state: StateFolder, target: Target, run: str, entries: Iterable[Entry], closed: Closed,
    write: Write, now: Callable[[], float], patience: Patience | None = None,
) -> tuple[str, ...]:  # fmt: skip
    """Run what the end of a run owes, and give what went wrong in one sentence each."""
    if not hooks:
        return ()
    entries = tuple(entries)
    earlier = left_open(state, target.name, run) if disrupted(entries) is None else False
    event = due(entries, earlier, frozenset(hooks), closed)
    if event is None:
        return ()
    hook, is_open = hooks[event], disrupted(entries) or earlier
    patience = patience if patience is not None else Patience()
    for number in range(TRIES):
        asked = patience.asked()
        if number:
            time.sleep(PAUSE_S)
        write(Hooking(now(), event.value, clean(hook.command[0], 100)))
        data = after(event, target, run, now(), entries, opened=is_open)
        outcome = run_hook(hook, data, stop=patience.of(hook))
        write(Hooked(now(), event.value, outcome))
        if outcome.ok:
            return ()
        if patience.asked() > asked:  # who wants to go does not wait for it again
            break
    still = ": what before-disruption did is still in place, and the next run's end tries again" if is_open else ""
    return (f"hook {event.value} failed for {target.name} ({outcome.detail}){still}",)


def left_cut(state: StateFolder, target: str, but: str, entries: Iterable[Entry]) -> tuple[Hooked, ...]:
    """What the run `but` writes first of a hook that was cut, in its own journal so far or in an earlier run.

    The newest journal that tells of hooks is asked, so that it is told once.
    """
    entries = tuple(entries)
    if hook_runs(entries):
        return cut(entries)
    return next((cut(told, run) for run, told in _told_before(state, target, but)), ())


def left_open(state: StateFolder, target: str, but: str = "") -> bool:
    """Whether an earlier run of this target began a before-disruption that nothing has settled yet."""
    said = (disrupted(entries) for _, entries in _told_before(state, target, but))
    return next((one for one in said if one is not None), False)


def _told_before(state: StateFolder, target: str, but: str) -> Iterator[tuple[str, tuple[Entry, ...]]]:
    """(run, what its journal says) of all other runs whose journals tell of hooks and can be read, the newest first."""
    for folder in reversed(state.runs(target)):
        journal = folder / "journal.jsonl"
        try:
            if folder.name == but or b'"Hook' not in journal.read_bytes():
                continue
            entries = tuple(read_entries(journal))
        except (OSError, JournalDamaged):
            continue
        yield folder.name, entries
