"""A process that hands one message to apprise: the URL comes on stdin, and nothing that apprise says gets out.

Run as a script, not imported: plugins block, log URLs with their secrets and leave threads behind; it ends here.
stdin: {"url", "title", "body", "kind", "send"}; stdout: {"ok", "why"}, `why` in words of our own.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys

_LONGEST_S = 120
_HTTP = re.compile(r"error=(\d{3})\b")


class _Heard(logging.Handler):
    """Keeps of what apprise logs only what can hold no secret: an HTTP status, and that nobody could be reached."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.status = ""
        self.unreached = False

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        found = _HTTP.search(text)
        if found:
            self.status = found[1]
        if "onnection error" in text or "Socket Exception" in text:
            self.unreached = True


def deliver(order: dict[str, str | bool]) -> tuple[bool, str]:
    """Whether the message was accepted, and why not."""
    heard = _Heard()
    logger = logging.getLogger("apprise")
    logger.handlers, logger.propagate = [heard], False
    logger.setLevel(logging.DEBUG)
    try:
        import apprise
    except ImportError:
        return False, "apprise is not installed: pip install 'gpu-recover[notify]'"
    service = apprise.Apprise.instantiate(str(order["url"]), suppress_exceptions=True)
    if service is None:
        return False, "apprise does not understand its URL"
    if not order["send"]:
        return True, ""
    told = service.notify(
        title=str(order["title"]), body=str(order["body"]), notify_type=str(order["kind"]), body_format="text"
    )
    if told:
        return True, ""
    if heard.status:
        return False, f"refused with HTTP {heard.status}"
    return False, "nobody was reached" if heard.unreached else "it was not accepted"


def main() -> None:
    signal.alarm(_LONGEST_S)  # whoever started us may have been killed
    answer = os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        ok, why = deliver(json.load(sys.stdin))
    except Exception as error:  # a plugin's own fault: its text may hold the URL
        ok, why = False, f"apprise failed with {type(error).__name__}"
    json.dump({"ok": ok, "why": why}, answer)
    answer.flush()
    os._exit(0)  # threads of plugins would keep it alive


if __name__ == "__main__":
    main()
