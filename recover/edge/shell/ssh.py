"""A machine's shell over SSH: a command is sent at most once, and its end comes back as a value, in time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recover.edge.shell.alarm import ALARMS
from recover.edge.shell.clock import Limit, bounded, out_of_time
from recover.edge.shell.failures import ShellError, Stage, translate
from recover.edge.shell.port import CAP
from recover.edge.shell.route import Hop, plan, read_config
from recover.edge.shell.settings import SshSettings
from recover.model.contact import Broken, Failure, Ran

if TYPE_CHECKING:
    from recover.edge.shell.talk import Conversation
    from recover.edge.shell.transport import Transport

_NOT_BETTER_LATER = {
    Failure.UNKNOWN_KEY, Failure.CHANGED_KEY, Failure.REVOKED_KEY, Failure.AUTH, Failure.CONFIG, Failure.SUDO,
}  # fmt: skip
_GRACE = 1.0  # after the deadline, before a connection that can't even close a channel is cut


class SshShell:
    """Holds at most one connection (with those of its jump hosts), made when first needed and anew after it broke."""

    def __init__(self, settings: SshSettings) -> None:
        self._settings = settings
        self._chain: list[Transport] = []
        self._where: str | None = None
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._closed = False

    @property
    def where(self) -> str:
        if self._where is None:
            try:
                self._where = self._plan(Limit.after(5.0))[-1].where
            except ShellError:
                return self._settings.host
        return self._where

    def _plan(self, limit: Limit) -> tuple[Hop, ...]:
        """In a thread where `Match exec` in the ssh configuration runs what it likes, for as long as it likes."""
        settings = self._settings
        config = read_config(settings.ssh_config)
        if not config.runs_programs:
            return plan(settings, config)
        return bounded(lambda: plan(settings, config), limit, lambda: out_of_time(settings.host, Stage.SETUP.value))

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline: float, cap: int = CAP) -> Ran | Broken:
        began = time.monotonic()
        limit = Limit.after(deadline)
        try:
            return self._run(argv, stdin, cap, limit, began)
        except ShellError as error:
            return error.broken

    def converse(self, argv: Sequence[str], deadline: float) -> Conversation | Broken:
        """Start a command that stays and may be asked several times: see `talk`."""
        from recover.edge.shell.session import Root
        from recover.edge.shell.talk import Conversation

        limit = Limit.after(deadline)
        try:
            where = self.where
            talk = Conversation(self._channel(limit, where), Root(self._settings.sudo), where, self._cut_at)
            try:
                talk.begin(argv, limit)
            except BaseException:
                talk.close()
                raise
        except ShellError as error:
            return error.broken
        return talk

    def connect(self, deadline: float, *, patient: bool = False) -> Broken | None:
        limit = Limit.after(deadline)
        return self._patiently(limit) if patient else self._try(limit)

    def forget(self) -> None:
        with self._lock:
            chain, self._chain = self._chain, []
        for transport in chain:  # nearest first: what waits on a stuck socket is released only by closing that one
            transport.hang_up()

    def close(self) -> None:
        """For good, also for one that another thread is making."""
        self._closed = True
        self.forget()

    def _try(self, limit: Limit) -> Broken | None:
        try:
            self._ready(limit)
        except ShellError as error:
            return error.broken
        return None

    def _patiently(self, limit: Limit) -> Broken | None:
        """Connecting is a question and may be asked again; a wrong key or a refusal to let us in won't change."""
        import tenacity

        def again(broken: Broken | None) -> bool:
            return broken is not None and broken.failure not in _NOT_BETTER_LATER

        def last(state: tenacity.RetryCallState) -> Broken | None:
            assert state.outcome is not None
            broken: Broken | None = state.outcome.result()
            return broken

        every = self._settings.retry_every
        retry = tenacity.Retrying(
            retry=tenacity.retry_if_result(again),
            wait=tenacity.wait_fixed(every),
            stop=lambda state: limit.left <= every,
            retry_error_callback=last,
        )
        outcome: Broken | None = retry(self._try, limit)
        return outcome

    def _ready(self, limit: Limit) -> tuple[Transport, bool]:
        """A connection that stands, and whether it stood before. Of several callers one connects, the others wait."""
        from recover.edge.shell.chain import build

        if not self._connecting.acquire(timeout=limit.left):
            raise out_of_time(self._settings.host, "another command of ours was connecting")
        try:
            with self._lock:
                if self._chain and all(transport.is_authenticated() for transport in self._chain):
                    return self._chain[-1], True
            self.forget()
            if not self._closed:
                chain = build(self._plan(limit), self._settings, limit)
                with self._lock:
                    self._chain = chain
            if self._closed:
                self.forget()
                raise ShellError(Failure.DIED, f"{self._settings.host}: we closed the connection")
            return chain[-1], False
        finally:
            self._connecting.release()

    def _run(self, argv: Sequence[str], stdin: bytes, cap: int, limit: Limit, began: float) -> Ran | Broken:
        from recover.edge.shell.session import Root, Session

        where = self.where
        channel = self._channel(limit, where)
        with self._cut_at(limit.left + _GRACE):
            try:
                return Session(channel, Root(self._settings.sudo), stdin, cap, limit, where, began).run(argv)
            except ShellError:
                raise
            except Exception as error:  # the library's, whatever it is: the command's fate is unknown
                if limit.over:
                    raise out_of_time(where, Stage.COMMAND.value, started=True) from None
                broken = translate(error, Stage.COMMAND, where).broken
                return Broken(broken.failure, broken.detail, started=True)
            finally:
                with contextlib.suppress(Exception):
                    channel.close()

    def _channel(self, limit: Limit, where: str) -> Any:
        """A new channel. One that can't be had on an old connection is asked for on a new one: nothing was sent yet."""
        from recover.edge.shell.library import paramiko

        transport, reused = self._ready(limit)
        while True:
            patience = min(15.0, limit.left / 2) if reused else limit.left
            try:
                with self._cut_at(patience + _GRACE):
                    return transport.open_session(timeout=patience)
            except Exception as error:  # as above
                if isinstance(error, paramiko.ChannelException):  # answered: others may use this connection, keep it
                    raise translate(error, Stage.OPEN, where) from None
                self.forget()
                if limit.over:
                    raise out_of_time(where, Stage.OPEN.value) from None
                if not reused:
                    raise translate(error, Stage.OPEN, where) from None
            transport, reused = self._ready(limit)

    def _cut_at(self, seconds: float) -> contextlib.AbstractContextManager[None]:
        """Some waits of the library know no end (a full socket, the answer to exec): cutting the line ends them all."""
        return ALARMS.after(seconds, self.forget)
