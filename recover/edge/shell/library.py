"""The SSH library without `invoke`, which it imports for `Match exec` alone and which takes as long as all the rest."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _without(name: str) -> Iterator[None]:
    """In its body an import of `name` fails, and the library has its own way to live without it."""
    modules: dict[str, Any] = sys.modules
    hides = name not in modules
    if hides:
        modules[name] = None
    try:
        yield
    finally:
        if hides:
            del modules[name]


with _without("invoke"):
    import paramiko
    from paramiko.agent import AgentKey
    from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_GLOBAL_REQUEST
    from paramiko.pkey import PublicBlob
    from paramiko.transport import ChannelMap


def for_match_exec() -> None:
    """Give the parser of ssh configurations what it runs programs with."""
    from paramiko import config

    config.invoke = importlib.import_module("invoke")  # type: ignore[attr-defined]


__all__ = [
    "MSG_CHANNEL_REQUEST", "AgentKey", "ChannelMap", "PublicBlob", "cMSG_GLOBAL_REQUEST", "for_match_exec", "paramiko",
]  # fmt: skip
