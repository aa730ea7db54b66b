"""The one door to a machine's command line: a command in, `Ran` or `Broken` out, never later than its deadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from recover.model.contact import Broken, Ran

CAP = 16 * 1024 * 1024  # bytes kept of stdout and stderr each; the rest is drained and dropped


class Shell(Protocol):
    """Runs argument lists on one machine. Deadlines are seconds from the call and cover everything, connecting too."""

    @property
    def where(self) -> str:
        """Who and where, for people: `root@10.1.2.3:22`, `local`."""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline: float, cap: int = CAP) -> Ran | Broken:
        """Run one command once. It is never repeated, whatever happens; no terminal, no environment is passed."""

    def connect(self, deadline: float, *, patient: bool = False) -> Broken | None:
        """Make sure that a connection stands; None means that it does. `patient` tries again until the deadline."""

    def forget(self) -> None:
        """Drop the connection (the machine was restarted). What is known of its keys stays."""

    def close(self) -> None:
        """Drop the connection for good."""
