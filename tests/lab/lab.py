"""The handle on one lab: put it up, ask what is true in it, change it, take it down and leave nothing behind.

with Lab.up("incident", folder) as lab: lab.config, lab.state(), lab.activate(), lab.do(do="ssh-freeze")
Lab(folder).down()
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

from . import scenario as scenarios
from .guestproc import ask_socket, kill_cgroup

OURS = (
    "world",
    "pve",
    "cgroup2",
    "lab.json",
    "lab.sock",
    "ready.json",
    "error",
    "pve.json",
    "pve.log",
    "keeper.log",
    "config.toml",
    "playbook.toml",
    "known_hosts",
    "id_ed25519",
    "id_ed25519.pub",
)


NEEDED = ("sshd", "ssh", "ssh-keygen", "unshare", "gcc", "ldconfig")


class LabError(Exception):
    """The lab cannot do what was asked; the text says why."""


class Lab:
    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()

    # -- up and down ------------------------------------------------------------------------------------------------

    @classmethod
    def up(cls, scenario: str, folder: str | Path, *, idle: bool = False, wait_s: float = 60.0) -> Self:
        """Blocks until sshd, the API and (unless idle) the scenario's processes are there."""
        from . import prepare  # the heavy part: only `up` needs it

        _need()
        lab = cls(folder)
        if (lab.folder / "lab.json").exists():
            raise LabError(f"a lab is already there: {lab.folder} (take it down first)")
        lab.folder.mkdir(parents=True, exist_ok=True)
        data = scenarios.load(scenario)
        try:
            prepare.folder(lab.folder, data, idle=idle)
            lab._start_keeper(wait_s)
            prepare.config(lab.folder, data)
            if not idle:
                lab.wait_settled()
        except BaseException:
            if not os.environ.get("LAB_KEEP"):
                lab.down()
            raise
        return lab

    def _start_keeper(self, wait_s: float) -> None:
        from .files import SOURCE

        with (self.folder / "keeper.log").open("ab") as log:
            popen = subprocess.Popen(
                [sys.executable, "-B", "-m", "tests.lab.keeper", str(self.folder)],
                cwd=SOURCE,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._note_keeper(popen.pid)
        popen.returncode = 0  # a daemon: `down` ends it by its noted identity, perhaps from another process
        end = time.monotonic() + wait_s
        while not (self.folder / "ready.json").exists():
            if not _start(popen.pid):
                raise LabError("the lab did not come up:\n" + (self.folder / "keeper.log").read_text()[-3000:])
            if time.monotonic() > end:
                raise LabError(f"the lab did not come up in {wait_s:.0f} s")
            time.sleep(0.05)

    def _note_keeper(self, pid: int) -> None:
        path = self.folder / "lab.json"
        data = json.loads(path.read_text())
        path.write_text(json.dumps({**data, "keeper": {"pid": pid, "start": _start(pid)}}))

    def down(self) -> None:
        """Ends everything of this lab, also when its daemon crashed; keeps only what the tool wrote (`state/`)."""
        data = self.data(missing_ok=True)
        with contextlib.suppress(OSError, ValueError, ConnectionError):
            self.ask("stop")
        keeper = data.get("keeper", {})
        self._end(keeper.get("pid"), keeper.get("start"), grace_s=8)
        with contextlib.suppress(OSError, ValueError):
            pid = json.loads((self.folder / "pve/server.json").read_text())["pid"]
            if str(self.folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                self._end(pid, _start(pid), grace_s=0)
        if data.get("cgroup"):
            kill_cgroup(Path(data["cgroup"]))
        if (self.folder / "cgroup2/cgroup.procs").exists():
            subprocess.run(["umount", str(self.folder / "cgroup2")], check=False)
        for name in OURS:
            path = self.folder / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for name in ("state", ""):
            with contextlib.suppress(OSError):
                (self.folder / name).rmdir()

    def _end(self, pid: int | None, start: str | None, grace_s: float) -> None:
        end = time.monotonic() + grace_s
        while pid and start and _start(pid) == start:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > end:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.down()

    # -- questions --------------------------------------------------------------------------------------------------

    def ask(self, op: str, timeout_s: float = 60.0, **more: Any) -> dict[str, Any]:
        answer = ask_socket(self.folder, "lab.sock", {"op": op, **more}, timeout_s)
        if not answer["ok"]:
            raise LabError(f"{op}: {answer['error']}")
        return answer

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("state")["state"]
        return found

    def data(self, missing_ok: bool = False) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / "lab.json").read_text())
        except FileNotFoundError:
            if missing_ok:
                return {}
            raise LabError(f"no lab in {self.folder}") from None
        return found

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def args(self) -> list[str]:
        """What the scenario gives to `gpu-recover` beyond configuration, state folder and target."""
        return [str(word) for word in scenarios.load(self.data()["scenario"])["run"]["args"]]

    def tool(self, *args: str, target: str = "node-174") -> list[str]:
        """The arguments of gpu-recover against this lab."""
        return ["--config", str(self.config), "--state-dir", str(self.state_dir), *args, target]

    # -- changes ----------------------------------------------------------------------------------------------------

    def activate(self) -> None:
        self.ask("activate")
        self.wait_settled()

    def wait_settled(self, limit_s: float = 90.0) -> None:
        end = time.monotonic() + limit_s
        while not self.ask("settled")["settled"]:
            if time.monotonic() > end:
                raise LabError("the scenario's processes did not come to rest")
            time.sleep(0.1)

    def do(self, **event: Any) -> None:
        """One act of `events.Events.act`, now."""
        self.ask("do", **event)

    def power(self, action: str) -> dict[str, Any]:
        """start | stop | reset | shutdown of the guest, as the hypervisor does them (no API involved)."""
        return self.ask("power", timeout_s=300, action=action)

    def ssh(self, command: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        data = self.data()
        argv = [
            "ssh",
            "-F",
            "none",
            "-i",
            str(self.folder / "id_ed25519"),
            "-o",
            f"UserKnownHostsFile={self.folder / 'known_hosts'}",
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "BatchMode=yes",
            "-o",
            "ConnectTimeout=10",
            "-p",
            str(data["ssh_port"]),
            f"root@{data['address']}",
        ]
        return subprocess.run(
            [*argv, command], capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False
        )


def _need() -> None:
    """Raise LabError with what is missing on this machine."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    missing = [word for word in NEEDED if shutil.which(word, path=path) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing:
        raise LabError(f"the lab needs {', '.join(missing)} (packages openssh-server, util-linux, gcc, libc6-dev)")


def _start(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = text[text.rindex(")") + 2 :].split()
    return "" if fields[0] in "ZX" else fields[19]
