"""Every foreign error becomes a `Broken` here and nowhere else; no exception of a library leaves the shell."""

from __future__ import annotations

import errno
import re
import socket
from enum import Enum

from recover.model.contact import Broken, Failure

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]+")
_DETAIL_LIMIT = 500

_NO_ROUTE = {
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EADDRNOTAVAIL,
    errno.ENETDOWN,
    errno.EHOSTDOWN,
    errno.EACCES,
    errno.EPERM,
    errno.EAFNOSUPPORT,
}
_REFUSED = {errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE}


class Stage(Enum):
    """How far we had come; the same exception means different things at different stages."""

    SETUP = "reading our own configuration"
    RESOLVE = "looking up the name"
    DIAL = "connecting"
    BANNER = "waiting for the SSH banner"
    KEX = "exchanging keys"
    AUTH = "authenticating"
    OPEN = "opening a session"
    COMMAND = "running the command"


class ShellError(Exception):
    """Carries a `Broken` up to the adapter's edge. Never leaves the package."""

    def __init__(self, failure: Failure, detail: str, *, started: bool = False) -> None:
        super().__init__(detail)
        self.broken = Broken(failure, clean(detail), started=started)


def clean(text: str) -> str:
    """One line that a terminal can show: machines choose banners and names, and may choose escape sequences."""
    line = _UNPRINTABLE.sub(" ", text).strip()
    return line if len(line) <= _DETAIL_LIMIT else line[: _DETAIL_LIMIT - 1] + "…"


def last_line(raw: bytes) -> str:
    """The last line with something on it: where programs say what went wrong."""
    lines = [line for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]
    return clean(lines[-1]) if lines else ""


def translate(error: BaseException, stage: Stage, where: str) -> ShellError:
    """The one table from foreign exceptions to our words."""
    if isinstance(error, ShellError):
        return error
    return ShellError(_failure(error, stage), f"{where}: {stage.value}: {_words(error)}")


def _words(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if not error.filename else f"{error.strerror}: {error.filename}"
    if isinstance(error, EOFError):
        return "the connection was closed by the other side"
    return str(error) or type(error).__name__


def _failure(error: BaseException, stage: Stage) -> Failure:
    if stage is Stage.SETUP:
        return Failure.CONFIG
    if isinstance(error, socket.gaierror) or stage is Stage.RESOLVE:
        return Failure.DNS
    root = _root(error)
    if stage is Stage.DIAL:
        return _dial(root)
    if stage is Stage.BANNER and _closed(root):
        return Failure.REFUSED  # accepted and closed at once: a forwarder without a server, MaxStartups, a ban
    return _later(root, stage)


def _later(root: BaseException, stage: Stage) -> Failure:
    from recover.edge.shell.library import paramiko

    if isinstance(root, paramiko.ssh_exception.IncompatiblePeer):
        return Failure.CONFIG
    if _closed(root):
        return Failure.DIED
    if stage is Stage.BANNER:
        return Failure.CONFIG  # something answered, but it does not speak SSH 2: a wrong port
    if stage is Stage.AUTH or isinstance(root, paramiko.AuthenticationException):
        return Failure.AUTH
    return Failure.DIED


def _root(error: BaseException) -> BaseException:
    """paramiko wraps what a banner read met into an SSHException and keeps the cause only as the context."""
    inner = error.__cause__ or error.__context__
    if type(error).__name__ == "SSHException" and isinstance(inner, (OSError, EOFError)):
        return inner
    return error


def _closed(error: BaseException) -> bool:
    return isinstance(error, EOFError) or (isinstance(error, OSError) and not isinstance(error, TimeoutError))


def _dial(error: BaseException) -> Failure:
    code = error.errno if isinstance(error, OSError) else None
    if isinstance(error, TimeoutError) or code == errno.ETIMEDOUT:
        return Failure.CONNECT_TIMEOUT
    if code in _REFUSED:
        return Failure.REFUSED
    return Failure.NO_ROUTE if code in _NO_ROUTE else Failure.CONFIG
