"""What a command said is kept up to a cap and counted beyond it, so that no machine can fill our memory."""

from __future__ import annotations

LINGER = 1.0  # seconds without a byte after a command's end before we stop listening to what it left behind


class Kept:
    """Two byte streams, each cut at the cap."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._out = bytearray()
        self._err = bytearray()
        self.truncated = False

    def out(self, data: bytes) -> None:
        self._add(self._out, data)

    def err(self, data: bytes) -> None:
        self._add(self._err, data)

    @property
    def stdout(self) -> bytes:
        return bytes(self._out)

    @property
    def stderr(self) -> bytes:
        return bytes(self._err)

    def _add(self, stream: bytearray, data: bytes) -> None:
        room = self._cap - len(stream)
        if len(data) > room:
            self.truncated = True
        stream += data[: max(0, room)]
