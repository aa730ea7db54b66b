"""known_hosts as OpenSSH means it: plain, hashed, wildcard, negated, @cert-authority and @revoked lines all count."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from enum import Enum
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


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """All lines of all files, in order."""

    lines: tuple[Line, ...]
    files: tuple[str, ...]

    def of(self, mark: Mark, host: str, port: int | None) -> tuple[Line, ...]:
        """Lines of a kind for `[host]:port`; only if there are none, those for the bare name (as OpenSSH does)."""
        for name in names_of(host, port):
            found = tuple(line for line in self.lines if line.mark is mark and line.is_for((name,)))
            if found:
                return found
        return ()

    def revoked(self, host: str, port: int | None) -> tuple[Line, ...]:
        """Against a key every line counts, under the bare name too."""
        names = names_of(host, port)
        return tuple(line for line in self.lines if line.mark is Mark.REVOKED and line.is_for(names))


def names_of(host: str, port: int | None) -> tuple[str, ...]:
    """The names under which a host may be listed, best first. `port` None: a HostKeyAlias, which has none."""
    host = host.lower()
    return (host,) if port in (None, 22) else (f"[{host}]:{port}", host)


def load(paths: tuple[str, ...]) -> KnownHosts:
    """A file that isn't there knows nobody; one that can't be read is an error of ours."""
    lines: list[Line] = []
    for path in paths:
        try:
            text = Path(path).expanduser().read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ShellError(Failure.CONFIG, f"known_hosts can't be read: {path}: {error.strerror}") from None
        lines += parse(text, path)
    return KnownHosts(tuple(lines), paths)


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
