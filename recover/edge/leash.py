"""A process between us and an operator's program: when we are gone, however we went, the program is ended with us.

Run as a script, not imported. argv: the number of a socket whose other end only we hold. Over it comes one line,
{"argv", "env", "seconds"}; what goes back is empty, or why the program can't be run. The program's code or signal is
ours. That the other end is closed by the kernel with its process holds also for SIGKILL (unix(7)); a death signal
(PR_SET_PDEATHSIG) would reach neither what the program started nor one that changes its privileges (prctl(2)).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

GRACE_S = 1.0  # between SIGTERM and SIGKILL, once nobody waits for it any more
TICK_S = 1.0  # a child's end is heard of by its signal; should one be missed, after so long


def main() -> None:
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    # A handler, since what is ignored stays ignored in the program; the signal goes to the whole group, and we wait.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    heard, ends = socket.socketpair()
    heard.setblocking(False)
    ends.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(ends.fileno(), warn_on_full_buffer=False)
    order = json.loads(_line(line))
    try:
        child = subprocess.Popen(order["argv"], env=order["env"])  # in our group: ended with it
    except (OSError, ValueError) as error:  # missing, not executable, no memory; a NUL in an argument
        line.sendall((getattr(error, "strerror", None) or str(error)).encode("utf-8", "replace"))
        os._exit(127)
    until = time.monotonic() + order["seconds"]
    while child.poll() is None:
        left = until - time.monotonic()
        readable = select.select([line, heard], [], [], max(0.0, min(left, TICK_S)))[0]
        if heard in readable:
            heard.recv(64)
        if left <= 0 or line in readable:  # nothing more is said to us: it can only be the end
            _end(child)
    _as(child.returncode)


def _line(line: socket.socket) -> bytes:
    """What we are told to do; the end if nobody is there any more."""
    found = b""
    while not found.endswith(b"\n"):
        data = line.recv(65536)
        if not data:
            os._exit(127)
        found += data
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    """Nobody waits for it: end it and all that it left in our group, and ourselves with them."""
    os.killpg(0, signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(0, signal.SIGKILL)


def _as(code: int) -> None:
    """End as the program did."""
    if code >= 0:
        os._exit(code)
    with contextlib.suppress(OSError, ValueError):  # a hardened unit forbids even this
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


if __name__ == "__main__":
    main()
