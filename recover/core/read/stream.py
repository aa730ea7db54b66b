"""The agent's packed stream becomes the plain lines that it stands for; what is garbled or too large is cut.

What a machine prints before the mark (banners) is passed on as it is: the reader counts it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

MARK = b'{"k":"packed"}\n'
CAP = 64 * 1024 * 1024  # of one look, unpacked: a machine must not fill our memory
# Which field of a kind holds rows that can be named by their place in the look before.
ROWS = {"procs": "list", "deep": "list", "leftovers": "list", "pci": "list", "services": "list", "kernel": "lines"}


def unpack(stdout: bytes) -> bytes:
    """The plain lines of one whole answer, also of one that broke off; what was never packed comes back as it is."""
    stream = Unpacker()
    stream.feed(stdout)
    return stream.turn()


class Unpacker:
    """One agent's stream over several looks. `turn` takes the lines of a look and begins the next."""

    def __init__(self, cap: int = CAP) -> None:
        self._cap = cap
        self._plain = bytearray()  # what came before the mark
        self._stream: Any = None
        self._rest = b""
        self._lines: list[bytes] = []
        self._size = 0
        self._said: dict[str, list[bytes]] = {}
        self._before: dict[str, list[bytes]] = {}
        self._rows: dict[str, list[Any]] = {}
        self.broken = False  # nothing that follows can be understood

    def feed(self, data: bytes) -> None:
        if self._stream is None:
            self._plain += data
            head, mark, tail = bytes(self._plain).partition(MARK)
            if not mark or (head and not head.endswith(b"\n")):
                return
            self._plain[:], data = head, tail
            self._stream = zlib.decompressobj()
        if not self.broken:
            self._inflate(data)

    def _inflate(self, data: bytes) -> None:
        room = self._cap - self._size
        try:
            text = self._stream.decompress(data, room + 1)
        except zlib.error:
            self.broken = True
            return
        self._size += len(text)
        if len(text) > room or self._stream.eof:
            self.broken = True
        lines = (self._rest + text).split(b"\n")
        self._rest = lines.pop()
        self._lines += [self._whole(line) for line in lines]

    @property
    def spoke(self) -> bool:
        """Whether a whole line has come in this look."""
        return bool(self._lines)

    @property
    def over(self) -> bool:
        """Whether the look's last line has come, or nothing more can."""
        return self.broken or any(_kind(line) == "end" for line in self._lines[-1:])

    def turn(self) -> bytes:
        """The lines of the look. A last one that broke off is passed on too: the reader counts it."""
        text = bytes(self._plain) + b"".join(line + b"\n" for line in self._lines) + self._rest
        self._before, self._said, self._rows = self._said, {}, {}
        self._lines, self._size, self._rest = [], 0, b""
        self._plain.clear()
        return text

    def _whole(self, line: bytes) -> bytes:
        kind = _kind(line)
        if kind not in ROWS:
            return line
        if line.rstrip().endswith(b'"~":1}') or b'"~":1' in line[-40:]:
            line = self._named(line)
        self._said.setdefault(kind, []).append(line)
        return line

    def _named(self, line: bytes) -> bytes:
        """Rows that are only named are put back from the look before."""
        try:
            value = json.loads(line)
            del value["~"]
            kind = value["k"]
            field, rows = ROWS[kind], self._known(kind)
            value[field] = [row for told in value[field] for row in _again(told, rows)]
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            self.broken = True
            return line
        return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode()

    def _known(self, kind: str) -> list[Any]:
        if kind not in self._rows:
            lines = self._before.get(kind, [])
            self._rows[kind] = [row for line in lines for row in json.loads(line)[ROWS[kind]]]
        return self._rows[kind]


def _again(told: Any, rows: list[Any]) -> list[Any]:
    if not isinstance(told, dict) or told.keys() != {"again"}:
        return [told]
    place, count = told["again"]
    found = rows[place : place + count]
    if len(found) != count or place < 0:
        raise IndexError(place)
    return found


def _kind(line: bytes) -> str:
    """The kind, which stands last or just before the sign of named rows."""
    text = line.rstrip()
    text = text.removesuffix(b',"~":1}') + b"}" if text.endswith(b',"~":1}') else text
    _, found, tail = text.rpartition(b'"k":"')
    return tail[:-2].decode("ascii", "replace") if found and tail.endswith(b'"}') else ""
