"""A real browser for pages that we make: Debian's chromium, driven through the pipe of its DevTools protocol.

Pipe and protocol: https://chromedevtools.github.io/devtools-protocol/ (`--remote-debugging-pipe`: JSON, ended by NUL,
on descriptors 3 and 4). So no port is opened and no WebSocket is needed.
`python -m tests.browser PAGE.html OUT.png [WIDTH] [dark]` takes a picture of a whole page.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = shutil.which("chromium")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-default-browser-check", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
LIMIT_S = 60.0


@dataclass
class Seen:
    """What a page did while it was loaded: `asked` are all requests but that for the page itself."""

    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


class Browser:
    """One browser for several pages; its whole process group ends with it."""

    def __init__(self) -> None:
        assert CHROMIUM, "chromium is missing: tools/setup installs it"
        self._home = tempfile.mkdtemp(prefix="gpu-recover-browser-")
        to_it, from_us = os.pipe()
        from_it, to_us = os.pipe()

        self._process = subprocess.Popen(
            # The shell gives the descriptors the numbers that the protocol wants, and becomes the browser (a POSIX
            # shell need not know descriptors above 9, bash does).
            ["bash", "-c", f'exec 3<&{to_it} 4>&{to_us} && exec "$@"', "bash", CHROMIUM, *QUIET,
             f"--user-data-dir={self._home}", "about:blank"],
            pass_fds=(to_it, to_us), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(to_it)
        os.close(to_us)
        self._out, self._in = from_us, from_it
        self._buffer, self._number = b"", 0
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._out)
        os.close(self._in)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)  # it ends when its pipe does
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # its helpers, and itself if it did not
        self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def send(self, method: str, session: str = "", **params: Any) -> dict[str, Any]:
        """One command and its answer; events that come before it are kept."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        os.write(self._out, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + LIMIT_S
        while True:
            message = self._read(until)
            if message.get("id") == self._number:
                assert "error" not in message, (method, message)
                return message["result"]
            self._events.append(message)

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready = select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]
            data = os.read(self._in, 1 << 20) if ready else b""
            assert data, "the browser does not answer" if not ready else "the browser is gone"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(line)

    def open(self, url: str, width: int, dark: bool = False, height: int = 900) -> Page:
        """Load a page in a window of this width, until it is loaded and drawn."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable", session)
        self.send("Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", session, features=[scheme])
        self._events.clear()
        self.send("Page.navigate", session, url=url)
        until = time.monotonic() + LIMIT_S
        while not any(e.get("method") == "Page.loadEventFired" for e in self._events):
            self._events.append(self._read(until))
        page = Page(self, session, url)
        page.run("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(1))))")
        return page

    def events(self, session: str) -> list[dict[str, Any]]:
        return [e for e in self._events if e.get("sessionId") == session]


@dataclass
class Page:
    browser: Browser
    session: str
    url: str

    def run(self, script: str) -> Any:
        """The value of an expression in the page. It runs by the protocol: the page's own policy still stands."""
        answer = self.browser.send("Runtime.evaluate", self.session, expression=script, returnByValue=True,
                                   awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def seen(self) -> Seen:
        """What it said on the console and asked of the network since it was opened."""
        found = Seen()
        for event in self.browser.events(self.session):
            method, params = event["method"], event["params"]
            if method == "Log.entryAdded":
                found.said.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                found.said.append(str([a.get("value") for a in params["args"]]))
            elif method == "Runtime.exceptionThrown":
                found.said.append(str(params["exceptionDetails"]))
            elif method == "Network.requestWillBeSent" and params["request"]["url"] != self.url:
                found.asked.append(params["request"]["url"])
        return found

    def picture(self) -> bytes:
        """The whole page as PNG."""
        size = self.browser.send("Page.getLayoutMetrics", self.session)["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.browser.send("Page.captureScreenshot", self.session, format="png", clip=clip,
                                   captureBeyondViewport=True)  # fmt: skip
        return base64.b64decode(answer["data"])


def main(page: str, out: str, width: str = "1100", *words: str) -> None:
    with Browser() as browser:
        Path(out).write_bytes(browser.open(Path(page).resolve().as_uri(), int(width), "dark" in words).picture())


if __name__ == "__main__":
    main(*sys.argv[1:])
