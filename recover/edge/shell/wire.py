"""A byte stream to an SSH server that remembers when it last heard something: silence is the evidence we look for."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any, BinaryIO

from recover.edge.shell.clock import Limit, bounded, out_of_time
from recover.edge.shell.failures import ShellError, Stage, last_line, translate
from recover.edge.shell.route import Hop
from recover.edge.shell.settings import SshSettings
from recover.model.contact import Failure

_BEFORE_KEYS = 65536  # greeting and key exchange take a tenth of it


class Wire:
    """What the SSH library takes for a socket, around a real one or a channel through a jump host."""

    def __init__(self, stream: Any, child: ProxyChild | None = None) -> None:
        self._stream = stream
        self._child = child
        self.spoke = threading.Event()
        self.heard_at = time.monotonic()
        self.heard_any = False
        self.room: int | None = _BEFORE_KEYS  # bytes that may still come until keys are agreed on; None: they are
        self.label = ""  # whose the far end is, for people
        self._closed = False  # the library asks for it by this name

    def settimeout(self, seconds: float | None) -> None:
        self._stream.settimeout(seconds)

    def send(self, data: bytes) -> int:
        try:
            sent: int = self._stream.send(data)
        except TimeoutError:
            raise
        except OSError:
            self.spoke.set()  # who hung up before our greeting went out says no more
            raise
        return sent

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._stream.recv(size)
        except TimeoutError:
            raise
        except OSError:
            self.spoke.set()
            raise
        self.spoke.set()  # an end is an answer too: it isn't silence
        if self.room is not None:
            self.room -= len(data)
            if self.room < 0:  # the library would read on for a line's end, with all of it in memory
                raise ValueError("it sends without end and agrees on no keys")
        if data:
            self.heard_any = True
            self.heard_at = time.monotonic()
        return data

    def getpeername(self) -> Any:
        return self._stream.getpeername()

    def wake(self) -> None:
        """End a wait for its bytes in another thread: closing alone would leave it waiting."""
        if isinstance(self._stream, socket.socket):
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            self._stream.close()
        if self._child is not None:
            self._child.end()

    @property
    def excuse(self) -> str:
        """What the ProxyCommand said last on its stderr; known when the wire is closed."""
        return self._child.said if self._child is not None else ""


class ProxyChild:
    """A ProxyCommand, run as OpenSSH runs it: `exec` in the user's shell, in its own session."""

    def __init__(self, command: str) -> None:
        self._errors: BinaryIO = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        ours, theirs = socket.socketpair()
        try:
            # Its own session: a Ctrl-C at the terminal must not cut the line over which we put things back.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"], stdin=theirs.fileno(), stdout=theirs.fileno(),
                stderr=self._errors, start_new_session=True,
            )  # fmt: skip
        except OSError:
            ours.close()
            self._errors.close()
            raise
        finally:
            theirs.close()
        self.socket = ours
        self.said = ""  # the end of its stderr, once it has ended

    def end(self) -> None:
        self._stop()
        if not self._errors.closed:
            size = os.fstat(self._errors.fileno()).st_size
            self.said = last_line(os.pread(self._errors.fileno(), 4096, max(0, size - 4096)))
            self._errors.close()

    def _stop(self) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(0.5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(0.5)


def dial(hop: Hop, settings: SshSettings, limit: Limit) -> Wire:
    """Open the first stretch: TCP to the first hop, or its ProxyCommand."""
    if hop.command is not None:
        try:
            child = ProxyChild(hop.command)
        except OSError as error:
            raise ShellError(Failure.PROXY, f"{hop.where}: its ProxyCommand can't be started: {error}") from None
        return Wire(child.socket, child)
    return Wire(_tcp(hop, settings, limit))


def _tcp(hop: Hop, settings: SshSettings, limit: Limit) -> socket.socket:
    near = limit.within(settings.connect_timeout)
    faults: list[ShellError] = []
    addresses = _resolve(hop, near, limit)
    for tried, (family, address) in enumerate(addresses):
        share = near.within(max(1.0, near.left / (len(addresses) - tried)))
        try:
            return _connect(family, address, share, settings)
        except OSError as error:
            faults.append(translate(error, Stage.DIAL, hop.where))
    if limit.over:
        raise out_of_time(hop.where, "connecting")
    # Of several addresses the answer that says most: somebody refused, nobody answered, no way there.
    rank = [Failure.REFUSED, Failure.CONNECT_TIMEOUT, Failure.NO_ROUTE, Failure.CONFIG]
    raise min(faults, key=lambda fault: rank.index(fault.broken.failure))


def _resolve(hop: Hop, near: Limit, limit: Limit) -> list[tuple[int, Any]]:
    def late() -> ShellError:
        if limit.over:
            return out_of_time(hop.where, "looking up the name")
        return ShellError(Failure.DNS, f"{hop.where}: no answer from the resolver")

    def ask(flags: int = 0) -> Any:
        return socket.getaddrinfo(hop.address, hop.port, type=socket.SOCK_STREAM, flags=flags)

    with contextlib.suppress(OSError, UnicodeError):  # what is an address needs no resolver, and no thread for it
        return [(family, address) for family, _, _, _, address in ask(socket.AI_NUMERICHOST)]
    try:
        found = bounded(ask, near, late)
    except (OSError, UnicodeError) as error:
        raise translate(error, Stage.RESOLVE, hop.where) from None
    return [(family, address) for family, _, _, _, address in found]


def _connect(family: int, address: Any, limit: Limit, settings: SshSettings) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(0.05, limit.left))
        sock.connect(address)
        # A peer that is gone must end the connection: the kernel asks, and gives up on data nobody acknowledges.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        every = max(1, int(settings.keepalive))
        for name, value in (("TCP_KEEPIDLE", every), ("TCP_KEEPINTVL", every), ("TCP_KEEPCNT", 6),
                            ("TCP_USER_TIMEOUT", int(settings.silence_limit * 1000))):  # fmt: skip
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except BaseException:
        sock.close()
        raise
    return sock
