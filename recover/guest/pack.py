"""What is said travels packed: rows that the look before said too are named by their place in it, all is deflated.

Every line is flushed, so that a hang later on still leaves what was said before it.
"""

import json
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARK = b'{"k":"packed"}\n'  # what follows it is one deflated stream
ROWS = {"procs": "list", "deep": "list", "leftovers": "list", "pci": "list", "services": "list", "kernel": "lines"}


class Packer:
    """One deflated stream. `turn` ends a look: from then on its rows can be named."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(5)
        self._said = {}  # type: dict[str, list[bytes]]  # this look's lines of each kind that has rows
        self._before = {}  # type: dict[str, list[bytes]]
        self._places = {}  # type: dict[str, dict[str, int]]

    def line(self, data: bytes) -> bytes:
        return self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)

    def known_line(self, data: bytes) -> bytes:
        """The same for an agent that stays: the line is kept, and what of it was said before is only named."""
        kind = kind_of(data)
        if kind in ROWS:
            self._said.setdefault(kind, []).append(data)
            if kind in self._before:
                data = self._named(kind, data)
        return self.line(data)

    def turn(self) -> None:
        self._before, self._said = self._said, {}
        self._places = {}

    def _named(self, kind: str, data: bytes) -> bytes:
        if kind not in self._places:  # only now: most agents are asked once
            rows = [row for line in self._before[kind] for row in json.loads(line.decode("ascii"))[ROWS[kind]]]
            self._places[kind] = {_text(row): place for place, row in enumerate(rows)}
        places = self._places[kind]
        value = json.loads(data.decode("ascii"))
        told = []  # type: list[Any]
        run = None  # type: Any
        for row in value[ROWS[kind]]:
            place = places.get(_text(row))
            if place is None:
                run = None
                told.append(row)
            elif run is not None and place == run[0] + run[1]:
                run[1] += 1
            else:
                run = [place, 1]
                told.append({"again": run})
        value[ROWS[kind]] = told
        value["~"] = 1
        return (_text(value) + "\n").encode("ascii")


def _text(value: "Any") -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True)


def kind_of(data: bytes) -> str:
    """The kind stands last in a line; a quote inside a string of the world is escaped, so it can't be forged."""
    head, found, tail = data.rstrip().rpartition(b'"k":"')
    return tail[:-2].decode("ascii") if found and tail.endswith(b'"}') else ""
