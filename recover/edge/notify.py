"""One message to one destination: its URL is read for this message only, and handed to a process that can be ended."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from recover.core.config_notify import Destination
from recover.core.report.message import Message
from recover.edge.child import Ended, run_child
from recover.edge.proxmox.secret import NoSecret

POSTMAN = Path(__file__).with_name("postman.py")
MISSING = "apprise is not installed: pip install 'gpu-recover[notify]'"
LEAST_S = 3.0  # what a message gets even after a secret that took long


@dataclass(frozen=True, slots=True)
class Sent:
    """`why` "": it was accepted. `warnings`: what is unsafe about where the URL lies."""

    why: str = ""
    warnings: tuple[str, ...] = ()


def installed() -> bool:
    """Without importing it: that takes half a second, and only the postman needs it."""
    return importlib.util.find_spec("apprise") is not None


def send(to: Destination, message: Message, deadline_s: float, *, only_check: bool = False) -> Sent:
    """Deliver it within the deadline. Never raises; `why` holds no secret. `only_check`: nothing is sent."""
    if not installed():
        return Sent(MISSING)
    from recover.edge.connections import secret_of

    began = time.monotonic()
    found = secret_of(to.url)()
    if isinstance(found, NoSecret):
        return Sent(f"its URL cannot be had: {found.reason}")
    order = {"url": found.value, "title": message.title, "body": message.body, "kind": message.kind}
    left = max(LEAST_S, deadline_s - (time.monotonic() - began))
    asked = json.dumps({**order, "send": not only_check}).encode()
    ended = run_child([sys.executable, "-P", str(POSTMAN)], asked, left, os.environ)
    return Sent(_why(ended), found.warnings)


def unsent(to: Destination, deadline_s: float) -> Sent:
    """Whether a message could be handed over: the URL is had and understood, and nothing is sent."""
    return send(to, Message("", "", "info"), deadline_s, only_check=True)


def _why(ended: Ended) -> str:
    if ended.why:
        return f"the service {ended.why}"
    try:
        answer = json.loads(ended.stdout)
        return "" if answer["ok"] is True else str(answer["why"])[:200]
    except (ValueError, KeyError, TypeError):
        return f"apprise's process ended with {ended.code} and without a word"
