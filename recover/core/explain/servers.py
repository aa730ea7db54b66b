"""File servers that the kernel lost and did not get back, by the last word on each: what waits there waits on."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recover.core.explain.lines import Line
from recover.core.explain.told import Told

# (what it is called, gone, back); the group is the server.
_FORMS = tuple(
    (name, re.compile(gone), re.compile(back))
    for name, gone, back in (
        ("nfs: server ", r"nfs: server (\S{1,80}) not responding", r"nfs: server (\S{1,80}) OK\b"),
        (
            "Lustre: ",
            r"Lustre: (\S{1,120}): Connection to .{1,120} was lost",
            r"Lustre: (\S{1,120}): Connection restored",
        ),
        (
            "ceph: mds",
            r"ceph: (mds\d{1,4}) hung\b",
            r"ceph: (mds\d{1,4}) (?:came back|reconnect success|recovery completed)",
        ),
    )
)


def servers_told(lines: tuple[Line, ...]) -> Iterator[Told]:
    lost: dict[str, Line] = {}
    for line in lines:
        for name, gone, back in _FORMS:
            if name not in line.text or line.typed:
                continue
            if (match := gone.search(line.text)) is not None:
                lost.setdefault(match[1], line)
            elif (match := back.search(line.text)) is not None:
                lost.pop(match[1], None)
    for server, line in lost.items():
        says = f"the file server {server} does not answer this kernel: what waits there waits on, and no step cures it"
        fact = "the client of the file system tells both, that it was lost and that it came back"
        yield Told("storage-hang", says, None, fact, line.number, line.shown, f"server {server}")
