"""What is said travels packed: pieces that were said before are named by their place, all is deflated.

Every line is flushed, so that a hang later on still leaves what was said before it.
"""

import json
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = b'{"k":"packed"}\n'  # what follows it is one deflated stream
AGAIN = "~"  # the kind of a line that names pieces that were said before


class Packer:
    """One deflated stream. `turn` ends a look: from then on the pieces of its lines can be named."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(5)
        self._said = {}  # type: dict[str, list[bytes]]  # this look's pieces of each kind
        self._before = {}  # type: dict[str, list[bytes]]
        self._places = {}  # type: dict[str, dict[bytes, int]]

    def line(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def known_line(self, data: bytes) -> bytes:
        """The same for an agent that stays: what of the line was said before is only named."""
        kind = kind_of(data)
        head, pieces, by, tail = cut(data)
        if not by or kind == AGAIN:
            return self.line(data)
        self._said.setdefault(kind, []).extend(pieces)
        if kind in self._before:
            data = self._named(kind, head, pieces, by, tail)
        return self.line(data)

    def turn(self) -> None:
        self._before.update(self._said)
        self._said, self._places = {}, {}

    def _named(self, kind: str, head: bytes, pieces: "list[bytes]", by: bytes, tail: bytes) -> bytes:
        if kind not in self._places:
            self._places[kind] = {piece: place for place, piece in enumerate(self._before[kind])}
        places = self._places[kind]
        told = []  # type: list[Any]
        run = [-1, 0]
        for piece in pieces:
            place = places.get(piece)
            if place is None:
                told.append(piece.decode("ascii"))
                run = [-1, 0]
            elif place == run[0] + run[1]:
                run[1] += 1
            else:
                run = [place, 1]
                told.append(run)
        value = {"of": kind, "head": head.decode("ascii"), "say": told, "by": by.decode("ascii")}
        value.update(tail=tail.decode("ascii"), k=AGAIN)
        return json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"


def cut(line: bytes) -> "tuple[bytes, list[bytes], bytes, bytes]":
    """Head, pieces, what stands between them, tail. Mere text: where a string holds a seam, it is cut there as well."""
    for opens, seam, closes in ((b":[{", b"},{", b"}]"), (b":[[", b"],[", b"]]")):
        begins, ends = line.find(opens), line.rfind(closes)
        if 0 <= begins and begins + 3 <= ends:
            return line[: begins + 3], line[begins + 3 : ends].split(seam), seam, line[ends:]
    return line, [], b"", b""


def kind_of(data: bytes) -> str:
    """The kind stands last in a line; a quote inside a string of the world is escaped, so it can't be forged."""
    head, found, tail = data.rstrip().rpartition(b'"k":"')
    return tail[:-2].decode("ascii") if found and tail.endswith(b'"}') else ""
