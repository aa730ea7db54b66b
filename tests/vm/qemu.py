"""One QEMU process: started with its monitor already connected, ended by its own pidfd, and never outliving us."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .kernel import tool

QUIT_S = 3.0  # so long QEMU may take to quit before it is killed; it can't while a request of a device is stuck


class QemuError(Exception):
    """QEMU ended, or its monitor refused or did not answer."""


class Launcher:
    """Starts QEMU from one thread that lives as long as it does: when that thread ends, or we do, the kernel kills it.

    (PR_SET_PDEATHSIG is about the thread that forked, not about its process.)
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="qemu")

    def start(self, argv: list[str], log: Path, fd: int) -> subprocess.Popen[bytes]:
        def run() -> subprocess.Popen[bytes]:
            with log.open("ab") as out:
                return subprocess.Popen(
                    [tool("setpriv"), "--pdeathsig", "KILL", "--", *argv],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=[fd],
                    start_new_session=True,
                )

        return self._thread.submit(run).result(30)

    def close(self) -> None:
        self._thread.shutdown()


class Qemu:
    def __init__(self, launcher: Launcher, argv: list[str], log: Path) -> None:
        ours, theirs = socket.socketpair()
        try:
            number = theirs.fileno()
            monitor = ["-chardev", f"socket,id=qmp,fd={number}", "-mon", "chardev=qmp,mode=control"]
            self._process = launcher.start([*argv, *monitor], log, number)
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._pidfd = os.pidfd_open(self.pid)
        self._socket, self._log = ours, log
        self._lines = ours.makefile("rb")
        self._lock = threading.Lock()
        self.events: list[str] = []
        try:
            self._answer(60.0, "QMP")
            self.run("qmp_capabilities")
        except BaseException:
            self.kill()
            raise

    # -- monitor ----------------------------------------------------------------------------------------------------

    def run(self, command: str, arguments: dict[str, Any] | None = None, deadline: float = 60.0) -> Any:
        """One QMP command; raises QemuError."""
        with self._lock:
            try:
                self._socket.sendall(json.dumps({"execute": command, "arguments": arguments or {}}).encode() + b"\n")
                return self._answer(deadline, "return")
            except OSError as error:
                raise QemuError(f"{command}: {error}") from error

    def hmp(self, line: str) -> str:
        return str(self.run("human-monitor-command", {"command-line": line}))

    def _answer(self, deadline: float, key: str) -> Any:
        end = time.monotonic() + deadline
        while (left := end - time.monotonic()) > 0:
            self._socket.settimeout(left)
            line = self._lines.readline()
            if not line:
                raise QemuError(f"QEMU ended:\n{self._log.read_text(errors='replace')[-2000:]}")
            said = json.loads(line)
            if "event" in said:
                self.events.append(said["event"])
            elif "error" in said:
                raise QemuError(str(said["error"].get("desc")))
            elif key in said:
                return said[key]
        raise QemuError(f"the monitor did not answer in {deadline:.0f} s")

    # -- its end ----------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_end(self, seconds: float) -> bool:
        if self._pidfd < 0:
            return True
        if not select.select([self._pidfd], [], [], seconds)[0]:
            return False
        self._close()
        return True

    def quit(self) -> str:
        """As qemu-server ends a guest: ask over QMP, and after a while kill. Says which it was."""
        if self._pidfd < 0:
            return "quit"
        with contextlib.suppress(OSError):
            self._socket.sendall(b'{"execute": "quit"}\n')
        if self.wait_end(QUIT_S):
            return "quit"
        self.kill()
        return "killed"

    def kill(self) -> None:
        if self._pidfd >= 0:
            if self.alive:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self.wait_end(30.0)

    def _close(self) -> None:
        self._process.wait(30)
        os.close(self._pidfd)
        self._pidfd = -1
        self._lines.close()
        self._socket.close()
