"""How a machine answered when we tried to speak with it: every way to fail has its own word."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Failure(StrEnum):
    """Why a shell on a machine could not be had or ended early.

    Only BANNER_SILENCE is a witness that the machine itself is sick (TCP accepts, then nothing);
    all others can have their cause in the network, the configuration or our own keys.
    """

    REFUSED = "refused"  # TCP reset: nothing listens there
    NO_ROUTE = "no-route"  # network or host unreachable
    CONNECT_TIMEOUT = "connect-timeout"  # no answer to TCP at all
    DNS = "dns"
    UNKNOWN_KEY = "unknown-key"
    CHANGED_KEY = "changed-key"
    REVOKED_KEY = "revoked-key"
    AUTH = "auth"
    BANNER_SILENCE = "banner-silence"  # TCP accepted, then no SSH banner or no key exchange
    DIED = "died"  # the connection ended while a command ran
    TIMEOUT = "timeout"  # the command did not end within its total deadline
    SUDO = "sudo"  # logged in, but not allowed to become root
    PROXY = "proxy"  # the jump host or ProxyCommand failed
    CONFIG = "config"  # our own side: unreadable key file, bad ssh config


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that ended. `code` is its exit status, or -N if signal N ended it."""

    code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    truncated: bool = False  # output was longer than the cap; what is here is its beginning


@dataclass(frozen=True, slots=True)
class Broken:
    """A command that could not be started or whose end was not seen. What it did by then is unknown."""

    failure: Failure
    detail: str  # one line, cleaned, without secrets
    stdout: bytes = b""  # what had arrived by then
    stderr: bytes = b""
    started: bool = False  # True: the command may have run on the machine
