# SPDX-License-Identifier: AGPL-3.0-or-later
"""The control socket is the only way another process changes the fake, and needs only the standard library."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOCKET = "control.sock"


class ControlError(Exception):
    """The server refused the operation, or is not there."""


@contextlib.contextmanager
def short_path(directory: Path) -> Iterator[str]:
    """A name for the socket that fits sun_path (108 bytes) however deep the folder is."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


class Control:
    """Client of a running `tests.lab.pve.server`: one connection per call."""

    def __init__(self, directory: str | Path, timeout_s: float = 30.0) -> None:
        self._directory = Path(directory)
        self._timeout_s = timeout_s

    def call(self, op: str, **arguments: Any) -> Any:
        try:
            with short_path(self._directory) as path, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(self._timeout_s)
                sock.connect(path)
                sock.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
                with sock.makefile("rb") as stream:
                    answer = json.loads(stream.readline() or b'{"ok": false, "error": "connection closed"}')
        except OSError as error:
            raise ControlError(f"{op}: {error}") from error
        if not answer["ok"]:
            raise ControlError(f"{op}: {answer['error']}")
        return answer["result"]

    def server(self) -> dict[str, Any]:
        """What server.json says: port, url, ca_file, fingerprint, token_id, secret_file, pid."""
        found: dict[str, Any] = json.loads((self._directory / "server.json").read_text())
        return found
