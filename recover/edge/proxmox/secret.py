"""A token's secret is had from a file, the environment or a command, or a reason is had; neither is ever shown."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recover.edge.proxmox.errors import clean

COMMAND_SECONDS = 10.0
_SIZE_LIMIT = 4096
_PLAIN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret that does not show itself. `warnings`: what is unsafe about where it lies."""

    value: str = field(repr=False)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoSecret:
    """Why the secret could not be had; says where it was looked for, never what was found there."""

    reason: str


def checked(text: str, source: str, warnings: tuple[str, ...] = ()) -> Secret | NoSecret:
    """`text` as a secret, if it can be one: what cannot go into a header would be quoted in an exception there."""
    value = text.strip()
    if not value:
        return NoSecret(f"{source} is empty")
    if not _PLAIN.fullmatch(value):
        return NoSecret(f"{source} does not hold one line of plain characters without spaces")
    return Secret(value, warnings)


def from_file(path: str) -> Secret | NoSecret:
    where = Path(path).expanduser()
    try:
        # O_NONBLOCK: a FIFO left in that place must not stop us
        handle = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                return NoSecret(f"{where} is not a file")
            text = os.read(handle, _SIZE_LIMIT).decode("utf-8", "replace")
        finally:
            os.close(handle)
    except OSError as error:
        return NoSecret(f"{where} cannot be read: {error.strerror}")
    open_to = [who for who, bits in (("its group", 0o070), ("everybody", 0o007)) if info.st_mode & bits]
    warnings = (f"{where} is open to {' and '.join(open_to)}: chmod 600 {where}",) if open_to else ()
    return checked(text, str(where), warnings)


def from_env(name: str) -> Secret | NoSecret:
    text = os.environ.get(name)
    return NoSecret(f"${name} is not set") if text is None else checked(text, f"${name}")


def from_command(argv: Sequence[str], seconds: float = COMMAND_SECONDS) -> Secret | NoSecret:
    """The first line of what the command prints. It is ended with all its children when its time is over."""
    if not argv:
        return NoSecret("the command is empty")
    name = clean(argv[0], 200)
    try:
        child = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return NoSecret(f"`{name}` cannot be run: {error.strerror}")
    try:
        out, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return NoSecret(f"`{name}` did not answer within {seconds:g} s")
    finally:
        _end(child)
    if child.returncode:
        return NoSecret(f"`{name}` ended with {child.returncode}")
    lines = out[:_SIZE_LIMIT].decode("utf-8", "replace").strip().splitlines()
    return checked(lines[0] if lines else "", f"the output of `{name}`")


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its own session: nothing of ours is in this group
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)  # in uninterruptible sleep it is abandoned rather than waited for
    if child.stdout:
        child.stdout.close()
