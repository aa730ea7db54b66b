"""One boot of the guest seen from outside: started in fresh namespaces and its own cgroup, ended with its pid 1."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import files


def cgroup2_mount(folder: Path) -> Path:
    """Where the machine has cgroup v2, or a mount of our own in the lab's folder."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2" and os.access(where, os.W_OK):
            return Path(where)
    own = folder / "cgroup2"
    own.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "cgroup2", "none", str(own)], check=True)
    return own


def cgroup_pids(root: Path) -> list[int]:
    pids: list[int] = []
    for path in root.rglob("cgroup.procs") if root.exists() else ():
        with contextlib.suppress(OSError):
            pids += [int(word) for word in path.read_text().split()]
    return pids


def is_init(pid: int) -> bool:
    """Whether it is pid 1 of a namespace below ours."""
    with contextlib.suppress(OSError, StopIteration):
        line = next(
            x for x in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines() if x.startswith("NSpid:")
        )
        return line.split()[-1] == "1" and len(line.split()) > 2
    return False


def kill_cgroup(root: Path, limit_s: float = 10.0) -> bool:
    """SIGKILL for all that is in the tree, then the tree itself; True when nothing of it is left."""
    end = time.monotonic() + limit_s
    # Pid 1 first and alone: its parent then reaps it; a parent killed with it would leave a zombie to the machine.
    inits = [pid for pid in cgroup_pids(root) if is_init(pid)]
    for pid in inits:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while inits and cgroup_pids(root) and time.monotonic() < end - limit_s * 0.7:
        time.sleep(0.02)
    while root.exists() and time.monotonic() < end:
        killer = root / "cgroup.kill"
        if killer.exists():
            with contextlib.suppress(OSError):
                killer.write_text("1")
        else:
            for pid in cgroup_pids(root):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if not cgroup_pids(root):
            for path in sorted((p for p in root.rglob("*") if p.is_dir()), key=lambda p: -len(p.parts)):
                with contextlib.suppress(OSError):
                    path.rmdir()
            with contextlib.suppress(OSError):
                root.rmdir()
        if root.exists():
            time.sleep(0.05)
    return not root.exists()


def ask_socket(folder: Path, name: str, request: dict[str, Any], timeout_s: float = 10.0) -> dict[str, Any]:
    """One JSON line to a socket in `folder`, by a path short enough for sun_path."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(f"/proc/self/fd/{fd}/{name}")
            sock.sendall(json.dumps(request).encode() + b"\n")
            line = sock.makefile("rb").readline()
    finally:
        os.close(fd)
    if not line:
        raise ConnectionError(f"{name}: closed without an answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


class GuestProcess:
    def __init__(self, folder: Path, cgroup: Path) -> None:
        self.world = folder / "world"
        self.cgroup = cgroup
        self.popen: subprocess.Popen[bytes] | None = None
        self.init = 0

    def start(self, uptime_s: float) -> None:
        """The guest's /proc/uptime starts from `uptime_s` (a time namespace, so process start times agree)."""
        self.cgroup.mkdir(parents=True, exist_ok=True)
        (self.world / "ready").unlink(missing_ok=True)
        offset = int(uptime_s - float(Path("/proc/uptime").read_text().split()[0]))
        here = ["--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--cgroup"]
        if Path("/proc/self/ns/time").exists():
            here += ["--time", "--boottime", str(offset)]
        command = [
            shutil.which("unshare") or "unshare",
            *here,
            sys.executable,
            "-B",
            "-m",
            "tests.lab.guest.init",
            str(self.world),
            str(files.SOURCE),
            "." * 200,
        ]
        line = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
        with (self.world / "init.log").open("ab") as log:
            self.popen = subprocess.Popen(
                ["/bin/sh", "-c", line, str(self.cgroup), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=files.SOURCE,
                start_new_session=True,
                env={"PATH": os.environ["PATH"], "PYTHONPATH": str(files.SOURCE), "LANG": "C.UTF-8"},
            )

    def wait_ready(self, limit_s: float = 90.0) -> None:
        end = time.monotonic() + limit_s
        while not (self.world / "ready").exists():
            if self.ended() is not None:
                raise RuntimeError("the guest ended while it booted:\n" + (self.world / "init.log").read_text()[-2000:])
            if time.monotonic() > end:
                raise RuntimeError("the guest did not boot in time")
            time.sleep(0.02)
        self.init = self._find_init()

    def _find_init(self) -> int:
        assert self.popen is not None
        for path in Path("/proc").iterdir():
            if path.name.isdigit():
                with contextlib.suppress(OSError, ValueError):
                    text = (path / "stat").read_text()
                    if int(text[text.rindex(")") + 2 :].split()[1]) == self.popen.pid:
                        return int(path.name)
        raise RuntimeError("pid 1 of the guest is gone")

    @property
    def running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    def ended(self) -> int | None:
        return None if self.popen is None else self.popen.poll()

    @property
    def proc(self) -> str:
        """The guest's own /proc, with the guest's own pids."""
        return f"/proc/{self.init}/root/proc"

    def ask(self, op: str, **more: Any) -> dict[str, Any]:
        return ask_socket(self.world, "init.sock", {"op": op, **more})

    def power_cut(self) -> None:
        kill_cgroup(self.cgroup)
        if self.popen is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(10)
        self.popen, self.init = None, 0
