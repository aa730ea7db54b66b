"""Pid 1 of a lab guest: builds its view, starts sshd and the services, reaps orphans, and answers requests.

Single-threaded, so that every fork is safe. `python -m tests.lab.guest.init WORLD SOURCE PAD` inside fresh namespaces;
exit status 0 = powered off, 3 = asks for a reboot. Protocol (unix socket /run/lab/init.sock): a line of JSON
{"op": ...} in, {"ok": ..., ...} out.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "engine"))

from labproc import set_comm, set_title

from . import bystanders, mounts, units

REBOOT, POWEROFF = 3, 0


class Init:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        self.manager = units.Manager(setup)
        self.exiting: int | None = None
        self.stop_by = 0.0
        self.people: dict[int, str] = {}

    # -- requests ---------------------------------------------------------------------------------------------------

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request.get("op", "")
        if op in ("reboot", "poweroff"):
            if self.setup.get("shutdown_hangs"):
                return {"ok": True}
            self.begin_shutdown(REBOOT if op == "reboot" else POWEROFF)
            return {"ok": True}
        if op == "activate":
            self.activate()
            return {"ok": True}
        if op == "sshd":
            return {"ok": True, "pids": self.sshd(str(request.get("do")))}
        if op == "state":
            return {"ok": True, "units": self.manager.table(), "bystanders": self.bystander_table()}
        return self.manager.request(op, request)

    def activate(self) -> None:
        for spec in self.setup.get("bystanders", []):
            self.people[bystanders.start(spec, self.manager.cgroups)] = spec.get("name", spec["kind"])
        self.manager.start_enabled()

    def bystander_table(self) -> list[dict[str, Any]]:
        return [{"pid": pid, "name": name, "alive": bystanders.is_alive(pid)} for pid, name in self.people.items()]

    def sshd(self, do: str) -> list[int]:
        """`freeze`: TCP still accepts (the backlog does), nobody speaks; `kill`: sessions and listener end; `start`."""
        pids = self.manager.cgroups.pids("system.slice/ssh.service")
        number = {"freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "kill": signal.SIGKILL}.get(do)
        if number is not None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if do in ("kill", "stop"):
            self.manager.units["ssh.service"].spec["restart"] = "no"
        if do == "start":
            self.manager.start("ssh.service")
        return pids

    # -- the loop ---------------------------------------------------------------------------------------------------

    def begin_shutdown(self, status: int) -> None:
        if self.exiting is None:
            self.exiting = status
            self.stop_by = time.monotonic() + float(self.setup.get("shutdown_s", 1.0))
            for name in list(self.manager.units):
                if name != "ssh.service":
                    self.manager.stop(name, wait=False)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.manager.ended(pid, status)

    def run(self, server: socket.socket, wake: int) -> int:
        poll = select.poll()
        poll.register(server, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            for fd, _ in poll.poll(self.manager.next_due_ms(200 if self.exiting is not None else 1000)):
                if fd == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                else:
                    self.serve_one(server)
            self.reap()
            self.manager.tick()
            if self.exiting is not None and (time.monotonic() > self.stop_by or self.manager.quiet()):
                return self.exiting

    def serve_one(self, server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(2)
            try:
                line = connection.makefile("rb").readline()
                answer = self.answer(json.loads(line))
            except Exception as error:  # pid 1 must outlive any bad request
                answer = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps(answer).encode() + b"\n")


def main() -> int:
    world, source = Path(sys.argv[1]), Path(sys.argv[2])
    os.umask(0o022)
    mounts.build(world, source)
    setup = json.loads(Path("/run/lab/setup.json").read_text())
    name = setup["hostname"].encode()
    ctypes.CDLL(None).sethostname(name, len(name))
    wake_r, wake_w = os.pipe()
    for fd in (wake_r, wake_w):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_w)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    init = Init(setup)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None if setup.get("shutdown_hangs") else init.begin_shutdown(POWEROFF))
    with contextlib.suppress(FileNotFoundError):
        os.unlink("/run/lab/init.sock")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    server.bind("/run/lab/init.sock")
    server.listen(16)
    set_title("/sbin/init")
    set_comm(b"systemd")
    os.chdir("/")
    init.manager.boot()
    if setup.get("active", True):
        init.activate()
    Path("/run/lab/ready").write_text(str(setup["boot"]))
    return init.run(server, wake_r)


if __name__ == "__main__":
    os._exit(main())
