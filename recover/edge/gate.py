"""Nothing is tried without a yes: from an option up to the scope that it names, or from a person who was told all."""

from __future__ import annotations

import getpass
import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, TextIO

from recover.core.clean import clean
from recover.core.report.lines import action_words
from recover.core.report.words import about, hit_lines, span
from recover.core.sentences import grouped
from recover.model.act import Blast, Signal
from recover.model.record import Try
from recover.model.verdict import Diagnosis, Scope
from recover.ports import Gate, GateAnswer

YES_REACHES = Scope.GPU  # --yes; further only by --approve SCOPE
POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class FlagGate:
    """Consent given beforehand. Beyond it the answer is no, with the option that would allow it."""

    target: str
    yes: bool = False
    approve: Scope | None = None

    def consents(self, scope: Scope) -> str:
        """The option that consents to `scope`, or an empty string."""
        if self.approve is not None and scope <= self.approve:
            return f"--approve {self.approve.word}"
        return "--yes" if self.yes and scope <= YES_REACHES else ""

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        option = self.consents(attempt.scope)
        if option:
            return GateAnswer("yes", option)
        need = "--yes" if attempt.scope <= YES_REACHES else f"--approve {attempt.scope.word}"
        why = f"{attempt.step} needs consent at scope {attempt.scope.word}"
        if self.approve is not None:
            why += f", and --approve {self.approve.word} does not reach so far"
        elif self.yes:
            why += f", and --yes only reaches {YES_REACHES.word}"
        else:
            why += ", and there is no terminal to ask at"
        return GateAnswer("no", "nobody", why, f"gpu-recover {self.target} {need}")


class TerminalGate:
    """Asks the person at the terminal. `pending` is asked while waiting: an abort ends the question with a no."""

    def __init__(
        self,
        flags: FlagGate,
        out: TextIO | None = None,
        into: TextIO | None = None,
        pending: Callable[[], str] = lambda: "",
    ) -> None:
        self._flags = flags
        self._out = out if out is not None else sys.stderr
        self._in = into if into is not None else sys.stdin
        self._pending = pending

    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        option = self._flags.consents(attempt.scope)
        if option:
            return GateAnswer("yes", option)
        who = f"{_user()} at the terminal"
        try:
            return self._asked(who, attempt, blast, diagnosis)
        except OSError as error:
            return GateAnswer("no", who, f"the terminal is gone: {error.strerror or error}")

    def _asked(self, who: str, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        self._say(*question(self._flags.target, attempt, blast))
        with _Interruptible() as stopped:
            while True:
                self._forget_typed()
                self._out.write("Do this? [y]es / [n]o / [s]kip this rung / [d]etails: ")
                self._out.flush()
                said = self._line(lambda: stopped.by or self._pending())
                match said.strip().lower():
                    case "y" | "yes":
                        return GateAnswer("yes", who)
                    case "n" | "no":
                        return GateAnswer("no", who)
                    case "s" | "skip":
                        return GateAnswer("skip", who)
                    case "d" | "details":
                        self._say(*details(attempt, diagnosis))
                    case _ if said == "":
                        self._say("")
                        ended = stopped.by or self._pending()
                        return GateAnswer("no", who, ended or "the terminal was closed")
                    case _:
                        self._say("Please answer y, n, s or d. Only y does anything.")

    def _say(self, *lines: str) -> None:
        self._out.write("\n".join(lines) + "\n")
        self._out.flush()

    def _forget_typed(self) -> None:
        """What was typed before the question stood there answers no question."""
        if self._in.isatty():
            import termios

            termios.tcflush(self._in.fileno(), termios.TCIFLUSH)

    def _line(self, stop: Callable[[], str]) -> str:
        """One line, or "" at the end of input or when the run is asked to stop."""
        try:
            handle = self._in.fileno()
        except (OSError, ValueError):
            return self._in.readline()
        while not stop():
            if select.select([handle], [], [], POLL_S)[0]:
                return self._in.readline()
        return ""


def question(target: str, attempt: Try, blast: Blast) -> list[str]:
    """What will be done and to whom, in plain words, with the expected minutes."""
    again = f", try {attempt.attempt}" if attempt.attempt > 1 else ""
    minutes = about(blast.minutes, blast.past_runs)
    lines = ["", f"{clean(target)}: {attempt.step}{again} (scope {attempt.scope.word}, {minutes})"]
    lines.append(f"  Why: {clean(attempt.why)}")
    lines += [f"  It will: {clean(word)}" for word in grouped(attempt.line.words)]
    lines += [f"  Hits {clean(line)}" for line in hit_lines(blast.hits)]
    return lines if blast.hits else [*lines, "  Hits nobody else."]


def details(attempt: Try, diagnosis: Diagnosis) -> list[str]:
    """The evidence and the acts, one by one."""
    lines = ["  Found:"]
    for finding in diagnosis.findings:
        cure = f"cured at scope {finding.cure.word}" if finding.cure is not None else "no step cures it"
        lines.append(f"    {finding.signal}: {clean(finding.says)} ({cure})")
        lines += [f"      {clean(line)}" for line in finding.evidence]
    lines += [f"    not seen: {clean(gap)}" for gap in diagnosis.gaps]
    lines.append(f"  Acts, in order, at most {span(attempt.line.worst_case_s)} in all:")
    for act in attempt.line.acts:
        lines.append(f"    {clean(action_words(act.do), 300)}{'' if act.must else '  (may fail)'}")
        if isinstance(act.do, Signal):
            lines.append(f"      pids {', '.join(str(member.pid) for member in act.do.members)}")
    return lines


def gate_for(target: str, yes: bool, approve: Scope | None, pending: Callable[[], str] = lambda: "") -> Gate:
    """The gate that fits: a person can be asked only where both the question and the answer are at a terminal."""
    flags = FlagGate(clean(target), yes, approve)
    if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        return TerminalGate(flags, pending=pending)
    return flags


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_RAISES = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None)


class _Interruptible:
    """While a question stands, Ctrl-C answers it with no, and whoever else waits for the signal is told as always."""

    def __init__(self) -> None:
        self.by = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> _Interruptible:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _STOPS}
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.by = signal.Signals(number).name
        before = self._before.get(number)
        if before not in _RAISES:
            before(number, frame)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)


def _user() -> str:
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"
