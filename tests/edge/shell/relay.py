"""A TCP relay that counts what passes: what a look costs on the wire, SSH's own words included."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

HERE = "127.0.0.1"


class Relay:
    """Listens on a port of its own and passes everything on to `port` of `host`; leaving it ends all of it."""

    def __init__(self, port: int, host: str = HERE) -> None:
        self._to = (host, port)
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._count = 0
        self._server = socket.create_server((HERE, 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def count(self) -> int:
        with self._lock:
            return self._count

    def taken(self) -> int:
        """Bytes both ways since the last time, and begin anew."""
        with self._lock:
            count, self._count = self._count, 0
            return count

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(self._to)
                self._open += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                with self._lock:
                    self._count += len(data)
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """End all connections, as a network does that goes away."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
