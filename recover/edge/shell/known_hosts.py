"""known_hosts as OpenSSH means it: plain, hashed, wildcard, negated, @cert-authority and @revoked lines all count."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path

from recover.edge.shell.failures import ShellError
from recover.model.contact import Failure


class Mark(Enum):
    """What a line vouches for, or against."""

    HOST = ""
    AUTHORITY = "@cert-authority"
    REVOKED = "@revoked"


@dataclass(frozen=True, slots=True)
class Line:
    """One line that could be read."""

    mark: Mark
    patterns: str
    key_type: str
    blob: bytes
    source: str  # file:line

    def is_for(self, names: tuple[str, ...]) -> bool:
        return any(_listed(name, self.patterns) for name in names)


class KnownHosts:
    """All lines of all files, in order; those with plain names are found by name, for a fleet has a line per host."""

    def __init__(self, lines: tuple[Line, ...], files: tuple[str, ...]) -> None:
        self.lines, self.files = lines, files
        self._plain: dict[str, list[int]] = {}
        self._others: list[int] = []  # hashed, wildcards, negated
        for number, line in enumerate(lines):
            if any(special in line.patterns for special in "*?!|"):
                self._others.append(number)
                continue
            for name in line.patterns.lower().split(","):
                self._plain.setdefault(name, []).append(number)

    def of(self, mark: Mark, host: str, port: int | None) -> tuple[Line, ...]:
        """Lines of a kind for `[host]:port`; only if there are none, those for the bare name (as OpenSSH does)."""
        for name in names_of(host, port):
            found = self._for(mark, (name,))
            if found:
                return found
        return ()

    def revoked(self, host: str, port: int | None) -> tuple[Line, ...]:
        """Against a key every line counts, under the bare name too."""
        return self._for(Mark.REVOKED, names_of(host, port))

    def _for(self, mark: Mark, names: tuple[str, ...]) -> tuple[Line, ...]:
        maybe = sorted({*self._others, *(number for name in names for number in self._plain.get(name, ()))})
        found = (self.lines[number] for number in maybe)
        return tuple(line for line in found if line.mark is mark and line.is_for(names))


def names_of(host: str, port: int | None) -> tuple[str, ...]:
    """The names under which a host may be listed, best first. `port` None: a HostKeyAlias, which has none."""
    host = host.lower()
    return (host,) if port in (None, 22) else (f"[{host}]:{port}", host)


def load(paths: tuple[str, ...]) -> KnownHosts:
    """Read when it changed. A file that isn't there knows nobody; one that can't be read is an error of ours."""
    return _loaded(paths, tuple(_version(path) for path in paths))


_Version = tuple[int, int, int, int] | None


def _version(path: str) -> _Version:
    """What tells one state of a file from another; None: it isn't there."""
    try:
        seen = Path(path).expanduser().stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _unreadable(path, error) from None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


@lru_cache(maxsize=8)
def _loaded(paths: tuple[str, ...], versions: tuple[_Version, ...]) -> KnownHosts:
    lines: list[Line] = []
    for path in paths:
        try:
            text = Path(path).expanduser().read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise _unreadable(path, error) from None
        lines += parse(text, path)
    return KnownHosts(tuple(lines), paths)


def _unreadable(path: str, error: OSError) -> ShellError:
    return ShellError(Failure.CONFIG, f"known_hosts can't be read: {path}: {error.strerror}")


def parse(text: str, path: str) -> list[Line]:
    """Lines that make no sense are passed over, as OpenSSH does: they vouch for nobody."""
    parsed = (_line(raw, f"{path}:{number}") for number, raw in enumerate(text.splitlines(), 1))
    return [line for line in parsed if line is not None]


def _line(raw: str, source: str) -> Line | None:
    words = raw.split()
    if not words or words[0].startswith("#"):
        return None
    mark = Mark.HOST
    if words[0].startswith("@"):
        if words[0] not in (Mark.AUTHORITY.value, Mark.REVOKED.value):
            return None
        mark = Mark(words.pop(0))
    if len(words) < 3:
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (binascii.Error, ValueError):
        return None
    # The type is inside the blob too; a line whose two words differ could match as what it is not.
    return Line(mark, words[0], words[1], blob, source) if key_type_of(blob) == words[1] else None


def key_type_of(blob: bytes) -> str:
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode("ascii", "replace") if len(blob) >= 4 else ""


def fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    return f"SHA256:{digest}"


def _listed(name: str, patterns: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(name, patterns)
    return matches(name, patterns.lower().split(","))


def matches(name: str, patterns: list[str]) -> bool:
    """A pattern list: any match counts, unless a negated pattern matches too."""
    hit = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if _glob(name, pattern[1:]):
                return False
        elif pattern and _glob(name, pattern):
            hit = True
    return hit


def _glob(name: str, pattern: str) -> bool:
    # Only * and ? are special to OpenSSH; fnmatch would read the brackets of "[host]:port" as a set.
    if "*" not in pattern and "?" not in pattern:
        return name == pattern
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*").replace(r"\?", "."), name) is not None


def _hashed(name: str, pattern: str) -> bool:
    try:
        _, _, salt, wanted = pattern.split("|")
        digest = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(digest, base64.b64decode(wanted))
    except (ValueError, binascii.Error):
        return False
