"""One command on one channel: its input fed, its output drained and capped, its end seen or honestly not seen."""

from __future__ import annotations

import secrets
import select
import shlex
import time
from collections.abc import Sequence
from typing import Any

from recover.edge.shell.clock import Limit
from recover.edge.shell.failures import ShellError, last_line
from recover.edge.shell.output import LINGER, Kept
from recover.edge.shell.settings import SudoPassword
from recover.edge.shell.transport import signal_number
from recover.model.contact import Broken, Failure, Ran

_CHUNK = 32768
_REMEMBERED = 1024 * 1024  # of what is said before root: a lecture, warnings, prompts


class Root:
    """Becoming root, told apart from the command that then runs.

    sudo's own refusals and a command's failure both end with 1 and words on stderr. So the command is started by
    a shell that says a random word first: no word, no root. The password waits for sudo's prompt, another random word,
    because where no password is needed it would be read by the command, and shown by the first one that fails.
    """

    def __init__(self, sudo: bool | SudoPassword) -> None:
        self._sudo = sudo
        self._mark = f"root-{secrets.token_hex(12)}\n".encode()
        self._prompt = f"ask-{secrets.token_hex(12)}:".encode()
        self._err = bytearray()
        self._asked = 0
        self.open = not sudo  # the command runs and may have its input
        self.refused = False

    def wrap(self, argv: Sequence[str]) -> str:
        if not self._sudo:
            return shlex.join(argv)
        how = ["-k", "-S", "-p", self._prompt.decode()] if isinstance(self._sudo, SudoPassword) else ["-n"]
        start = f'echo {self._mark.decode().strip()} >&2; exec "$@"'
        return shlex.join(["sudo", *how, "--", "/bin/sh", "-c", start, "sh", *argv])

    def hear(self, data: bytes) -> tuple[bytes, bytes]:
        """Stderr as it comes; gives back what is the command's own and what is to be sent (the password)."""
        if self.open:
            return data, b""
        self._err += data
        del self._err[:-_REMEMBERED]
        if self._mark in self._err:
            self.open = True
            _, _, rest = self._err.partition(self._mark)
            return bytes(rest), b""
        asked = self._err.count(self._prompt)
        if asked > self._asked and isinstance(self._sudo, SudoPassword):
            self._asked = asked
            if asked == 1:
                return b"", _password(self._sudo)
            self.refused = True  # asked again: the password was wrong
        return b"", b""

    @property
    def complaint(self) -> str:
        said = last_line(bytes(self._err).replace(self._prompt, b"\n"))
        return "the password was refused" if self.refused else said or "it ended without a word"


def _password(sudo: SudoPassword) -> bytes:
    try:
        return sudo.ask().encode() + b"\n"
    except Exception as error:  # a vault's error may quote what it was asked for: only its kind is told
        raise ShellError(Failure.SUDO, f"the sudo password can't be had ({type(error).__name__})") from None


class Session:
    """Runs one command over an open channel."""

    def __init__(
        self, channel: Any, root: Root, stdin: bytes, cap: int, limit: Limit, where: str, began: float
    ) -> None:
        self._channel = channel
        self._root = root
        self._stdin = memoryview(stdin)
        self._secret = memoryview(b"")
        self._eof_sent = False
        self._kept = Kept(cap)
        self._limit = limit
        self._where = where
        self._began = began

    def run(self, argv: Sequence[str]) -> Ran | Broken:
        self._channel.settimeout(0.0)
        self._channel.exec_command(self._root.wrap(argv))
        quiet_since = time.monotonic()
        fd = self._channel.fileno()
        while not self._limit.over and not self._root.refused:
            heard = self._drain()
            self._feed()
            if heard:
                quiet_since = time.monotonic()
            elif self._finished(quiet_since):
                break
            else:
                self._wait(fd)
        return self._result()

    def _finished(self, quiet_since: float) -> bool:
        channel = self._channel
        if channel.closed or (self._ended and channel.eof_received):
            return not channel.recv_ready() and not channel.recv_stderr_ready()
        # Its end was told, but something that it left behind holds the output open.
        return self._ended and time.monotonic() - quiet_since > LINGER

    @property
    def _ended(self) -> bool:
        return self._channel.exit_status != -1 or hasattr(self._channel, "ended_by")

    def _wait(self, fd: int) -> None:
        busy = self._pending and not self._channel.closed
        left = min(self._limit.left, 0.01 if busy else 0.25)
        if self._channel.eof_received:
            if not self._ended:
                self._channel.status_event.wait(left)
        else:
            ready = select.poll()  # not select(): it takes no descriptor above 1023, and a fleet has more
            ready.register(fd, select.POLLIN)
            ready.poll(1000.0 * left)

    @property
    def _pending(self) -> bool:
        return bool(self._secret) or (self._root.open and not self._eof_sent)

    def _drain(self) -> bool:
        heard = False
        while self._channel.recv_ready() and not self._limit.over:
            self._kept.out(self._channel.recv(_CHUNK))
            heard = True
        while self._channel.recv_stderr_ready() and not self._limit.over:
            own, answer = self._root.hear(self._channel.recv_stderr(_CHUNK))
            self._kept.err(own)
            self._secret = memoryview(answer) if answer else self._secret
            heard = True
        return heard

    def _feed(self) -> None:
        channel = self._channel
        try:
            while self._secret and channel.send_ready():
                self._secret = self._secret[channel.send(bytes(self._secret)) :]
            while self._root.open and self._stdin and channel.send_ready() and not self._limit.over:
                self._stdin = self._stdin[channel.send(bytes(self._stdin[:_CHUNK])) :]
            if self._root.open and not self._stdin and not self._eof_sent:
                self._eof_sent = True
                channel.shutdown_write()
        except TimeoutError:
            return  # the window filled between asking and sending
        except (OSError, EOFError):
            self._stdin, self._eof_sent = self._stdin[:0], True  # the command closed its input; its end says the rest

    def _result(self) -> Ran | Broken:
        kept, channel = self._kept, self._channel
        if self._ended and self._root.open:
            code = channel.exit_status
            if code == -1:
                code = -signal_number(channel.ended_by)
            return Ran(code, kept.stdout, kept.stderr, time.monotonic() - self._began, kept.truncated)
        if self._root.refused or (self._ended and not self._root.open):
            detail = f"{self._where}: logged in, but sudo did not make us root: {self._root.complaint}"
            return Broken(Failure.SUDO, detail)
        failure, words = Failure.DIED, "the connection ended before the command did"
        if self._limit.over:
            failure, words = Failure.TIMEOUT, "the command did not end within its total deadline"
        elif channel.transport.died_silent:
            words = "the machine stopped answering while the command ran"
        return Broken(failure, f"{self._where}: {words}", kept.stdout, kept.stderr, started=True)
