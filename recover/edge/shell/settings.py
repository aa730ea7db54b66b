"""What a person may say about reaching a machine by SSH; what isn't said comes from the ssh configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SudoPassword:
    """Become root by `sudo -S`. The password is asked for when sudo asks, goes through stdin, and is never kept."""

    ask: Callable[[], str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class SshSettings:
    """Where None stands, the ssh configuration decides, and after it OpenSSH's own default."""

    host: str  # an address, a name or an alias of the ssh configuration
    port: int | None = None
    user: str | None = None
    identity_file: str | None = None
    known_hosts: str | None = None
    sudo: bool | SudoPassword = False  # True: `sudo -n`
    ssh_config: str = "~/.ssh/config"
    connect_timeout: float = 10.0
    banner_timeout: float = 15.0  # for the banner, and once more for the key exchange
    auth_timeout: float = 20.0
    keepalive: float = 5.0
    silence_limit: float = 30.0  # a peer that answers no keepalive for so long is gone
    retry_every: float = 2.0  # between the tries of a patient connect
