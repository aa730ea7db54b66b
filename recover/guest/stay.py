"""An agent that stays: request lines in, one look or act each, so that its sources travel once per connection.

It only passes on what a child says: the child looks, may hang and may be left behind; the next request gets a new one.
It ends with its connection, after a quarter of an hour without a request, and after a request that had no end.
"""

import binascii
import json
import os
import select
import signal
import sys
import time
import zlib

from recover.guest import child, gpus, wire
from recover.guest.pack import MARK, Packer, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

IDLE_S = 900
_LOOK_S = 150.0
_SLACK_S = 5.0


def serve(line: str, once: "Callable[[dict[str, Any]], None]") -> None:
    """Never returns."""
    packer = Packer()
    wire.send(MARK)
    while line.strip():
        try:
            request = json.loads(line)
            seconds = float(request.get("most") or request.get("deadline") or _LOOK_S) + _SLACK_S
        except (ValueError, TypeError, AttributeError):
            os._exit(2)
        signal.alarm(int(seconds) + 60)
        _learn(request.pop("sources", None))
        _warm(request)
        if not _answer(request, once, packer, seconds):
            os._exit(5)
        packer.turn()
        signal.alarm(IDLE_S)  # its default action ends us
        line = sys.stdin.readline()
    os._exit(0)


def _learn(sources: "Any") -> None:
    """The modules that acts need, told with the first of them, and compiled here once for all that follow."""
    if sources:
        sys.meta_path[0].learn(json.loads(zlib.decompress(binascii.a2b_base64(sources)).decode("ascii")))
        from recover.guest import acts  # noqa: F401


def _warm(request: "dict[str, Any]") -> None:
    """Compile here what each child would compile anew; importing it asks no driver."""
    wire.ROOT = str(request.get("root") or "")
    gpus.prepare()


def _answer(
    request: "dict[str, Any]", once: "Callable[[dict[str, Any]], None]", packer: Packer, seconds: float
) -> bool:
    """Pass on one look. False: it had no end."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        _look(request, once, out, into)
    os.close(into)
    ended = _relay(out, packer, time.monotonic() + seconds)
    os.close(out)
    if not child.reaped(pid, 2.0 if ended else 0.0):
        os.kill(pid, signal.SIGKILL)
        child.reaped(pid, 0.5)
    return ended


def _look(request: "dict[str, Any]", once: "Callable[[dict[str, Any]], None]", out: int, into: int) -> None:
    """In the child. Never returns."""
    try:
        os.close(out)
        os.dup2(into, 1)
        os.close(into)
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        once(request)
    finally:
        os._exit(3)


def _relay(out: int, packer: Packer, until: float) -> bool:
    poll = select.poll()
    poll.register(out, select.POLLIN | select.POLLHUP)
    poll.register(0, 0)  # only its end: whoever asked is gone
    rest = b""
    while time.monotonic() < until:
        ready = dict(poll.poll(1000))
        if out in ready:
            data = os.read(out, 1 << 16)
            if not data:
                return False
            lines = (rest + data).split(b"\n")
            rest = lines.pop()
            for line in lines:
                wire.send(packer.known_line(line + b"\n"))
                if kind_of(line) == "end":
                    return True
        elif 0 in ready:
            os._exit(3)
    return False
