"""What the agent says leaves as one JSON line per fact, at once, so that a hang later on still leaves a report."""

import json
import os
import time

VERSION = 1
ROOT = ""  # a prefix for /proc/driver, /sys, /dev/shm and /run: only tests set it
_PACKERS = []  # type: list[Packer]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from recover.guest.pack import Packer


def emit(kind: str, **fields: "Any") -> None:
    """One line to stdout. A closed pipe ends the agent: nobody reads it any more."""
    fields["k"] = kind
    data = (json.dumps(fields, separators=(",", ":"), ensure_ascii=True) + "\n").encode("ascii")
    send(_PACKERS[0].line(data) if _PACKERS else data)


def pack() -> None:
    """From now on what is said leaves packed."""
    from recover.guest.pack import MARK, Packer

    send(MARK)
    _PACKERS.append(Packer())


def send(data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        os._exit(3)


def gap(what: str, why: str, detail: str = "") -> None:
    """A part that could not be read. `why` is one of the words of model.reading.Why."""
    emit("gap", what=what, why=why, detail=detail[:500])


def guarded(what: str, job: "Any", *args: "Any") -> "Any":
    """Run one stage; whatever it meets becomes a gap, so that one surprise never costs the stages after it."""
    try:
        return job(*args)
    except PermissionError as error:
        gap(what, "denied", str(error))
    except FileNotFoundError as error:
        gap(what, "absent", str(error))
    except Exception as error:
        gap(what, "garbled", "%s: %s" % (type(error).__name__, error))
    return None


class Pattern:
    """A regular expression that is compiled when something is first asked of it: most looks never ask most of them."""

    def __init__(self, text: "Any", flags: int = 0) -> None:
        self._words = text, flags

    def __getattr__(self, name: str) -> "Any":
        import re

        method = getattr(re.compile(*self._words), name)
        setattr(self, name, method)
        return method


def whole(text: str, otherwise: "Any" = 0) -> "Any":
    """A count as the kernel and the tools write it. isdigit() lets through what int() refuses: U+00B2, or a number of
    more digits than Python takes."""
    return int(text) if 0 < len(text) < 20 and not text.strip("0123456789") else otherwise


def at(path: str) -> str:
    return ROOT + path


def read(path: str, cap: int = 1 << 20) -> str:
    """A small file as text; undecodable bytes survive as surrogates and as such in JSON."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        parts = []
        while cap > 0:
            part = os.read(fd, min(cap, 65536))
            if not part:
                break
            parts.append(part)
            cap -= len(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def small(path: str) -> bytes:
    """A file of /proc that the kernel gives in one read: a record of one process, not a list."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 32768)
    finally:
        os.close(fd)


def read_or(path: str, otherwise: str = "") -> str:
    try:
        return read(path)
    except OSError:
        return otherwise


def listdir(path: str) -> "list[str]":
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def uptime() -> float:
    """Seconds since boot, as the kernel log counts them."""
    try:
        return float(read("/proc/uptime").split()[0])
    except (OSError, ValueError, IndexError):
        return time.monotonic()


class Limit:
    """A total deadline: every wait takes what is left of it."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    def within(self, seconds: float) -> "Limit":
        return Limit(min(seconds, self.left))
