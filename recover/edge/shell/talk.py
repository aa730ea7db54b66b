"""A command that stays: asked several times over one channel, each time within a total deadline; its end is a value."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from recover.edge.shell.clock import Limit, out_of_time
from recover.edge.shell.failures import ShellError, Stage, translate
from recover.edge.shell.output import Kept
from recover.edge.shell.port import CAP, Shell
from recover.edge.shell.session import Root, Session
from recover.model.contact import Broken, Ran

Hear = Callable[[bytes], bool]  # is given what comes; True: that was all
_GRACE = 1.0
_COMPLAINT = 256 * 1024  # bytes kept of stderr: hundreds of talks may stand at once


class Talk(Protocol):
    """One running command. Whoever is done with it closes it; then it may be asked nothing more."""

    def ask(self, data: bytes, hear: Hear, deadline: float) -> Ran | Broken | None:
        """Send and listen. None: `hear` has all that it wanted; else how the command ended, or why we stopped."""

    def close(self) -> None: ...


class TalkingShell(Shell, Protocol):
    def converse(self, argv: Sequence[str], deadline: float) -> Talk | Broken:
        """Start a command that stays."""


class _Heard(Kept):
    """Hands over what comes on stdout; keeps the end of what comes on stderr as any command's."""

    def __init__(self, hear: Hear) -> None:
        super().__init__(_COMPLAINT)
        self._hear = hear
        self.enough = False

    def out(self, data: bytes) -> None:
        self.enough = self._hear(data) or self.enough


class Conversation(Session):
    """A `Session` whose input stays open. `cutting` ends waits of the library that know no end of their own."""

    def __init__(
        self, channel: Any, root: Root, where: str, cutting: Callable[[float], AbstractContextManager[None]]
    ) -> None:
        super().__init__(channel, root, b"", CAP, Limit.after(0.0), where, time.monotonic())
        self._eof_sent = True  # the end of the input is never told: the next question may follow
        self._cutting = cutting

    def begin(self, argv: Sequence[str], limit: Limit) -> None:
        self._limit = limit
        with self._guarded():
            self._channel.settimeout(0.0)
            self._channel.exec_command(self._root.wrap(argv))

    def ask(self, data: bytes, hear: Hear, deadline: float) -> Ran | Broken | None:
        self._limit, self._began = Limit.after(deadline), time.monotonic()
        self._stdin = memoryview(bytes(self._stdin) + data)
        heard = self._kept = _Heard(hear)
        try:
            with self._guarded():
                return self._listen(heard)
        except ShellError as error:
            return error.broken

    def _listen(self, kept: _Heard) -> Ran | Broken | None:
        quiet_since = time.monotonic()
        fd = self._channel.fileno()
        while not self._limit.over and not self._root.refused:
            heard = self._drain()
            if kept.enough:
                return None
            self._feed()
            if heard:
                quiet_since = time.monotonic()
            elif self._finished(quiet_since):
                break
            else:
                self._wait(fd)
        return self._result()

    @property
    def _pending(self) -> bool:
        return bool(self._secret) or (self._root.open and bool(self._stdin))

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        with self._cutting(self._limit.left + _GRACE):
            try:
                yield
            except ShellError:
                raise
            except Exception as error:  # the library's, whatever it is
                if self._limit.over:
                    raise out_of_time(self._where, Stage.COMMAND.value, started=True) from None
                broken = translate(error, Stage.COMMAND, self._where).broken
                raise ShellError(broken.failure, broken.detail, started=True) from None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._channel.close()
