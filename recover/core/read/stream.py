"""The agent's packed stream becomes the plain lines that it stands for; what is garbled or too large is cut.

What a machine prints before the mark (banners) is passed on as it is: the reader counts it.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

MARK = b'{"k":"packed"}\n'
CAP = 64 * 1024 * 1024  # of one look, unpacked: a machine must not fill our memory
_NOISE = 1024 * 1024  # of what is said before the mark
AGAIN = "~"  # the kind of a line that names pieces that were said before
_CUTS = ((b":[{", b"},{", b"}]"), (b":[[", b"],[", b"]]"))


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
        self.broken = False  # nothing that follows can be understood

    def feed(self, data: bytes) -> None:
        if self._stream is None:
            if self.broken:
                return
            self._plain += data
            head, mark, tail = bytes(self._plain).partition(MARK)
            if not mark or (head and not head.endswith(b"\n")):
                self.broken = len(self._plain) > _NOISE
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
    def flooded(self) -> bool:
        """Whether more came than anybody says before the mark, and no mark."""
        return self.broken and self._stream is None

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
        self._before.update(self._said)
        self._said = {}
        self._lines, self._size, self._rest = [], 0, b""
        self._plain.clear()
        return text

    def _whole(self, line: bytes) -> bytes:
        kind = _kind(line)
        if kind == AGAIN:
            return self._named(line)
        if pieces := cut(line):
            self._said.setdefault(kind, []).extend(pieces)
        return line

    def _named(self, line: bytes) -> bytes:
        """Pieces that are only named are put back from what was said last of that kind."""
        try:
            value = json.loads(line)
            seam, before = value["by"].encode("ascii"), self._before.get(value["of"], [])
            pieces = [piece for told in value["say"] for piece in _again(told, before)]
            whole: bytes = (
                value["head"].encode("ascii") + seam.join(pieces) + value["tail"].rstrip("\n").encode("ascii")
            )
            self._said.setdefault(value["of"], []).extend(pieces)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            self.broken = True
            return line
        self._size += len(whole)
        self.broken = self.broken or self._size > self._cap
        return whole


def cut(line: bytes) -> list[bytes]:
    """The pieces of a line as the agent cuts it; none where it can't be cut."""
    for opens, seam, closes in _CUTS:
        begins, ends = line.find(opens), line.rfind(closes)
        if begins >= 0 and begins + 3 <= ends:
            return line[begins + 3 : ends].split(seam)
    return []


def _again(told: Any, before: list[bytes]) -> list[bytes]:
    if isinstance(told, str):
        return [told.encode("ascii")]
    place, count = told
    found = before[place : place + count]
    if len(found) != count or place < 0:
        raise IndexError(place)
    return found


def _kind(line: bytes) -> str:
    """The kind stands last; a quote inside a string is escaped, so that no title can forge it."""
    _, found, tail = line.rstrip().rpartition(b'"k":"')
    return tail[:-2].decode("ascii", "replace") if found and tail.endswith(b'"}') else ""
