"""The service manager of the guest: the few states of systemd and docker that a recovery meets, over real cgroups.

A unit goes inactive -> active -> stopping -> inactive | failed | auto-restart. Who owns it (`manager`)
decides its cgroup and its shim: systemd, docker,
shell (a bare `while true` loop in a login session), session (started by hand,
nobody's service).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labproc import alive

from .launch import Cgroups, fork_into, note

ENABLED = Path("/run/lab/enabled.json")


@dataclass
class Unit:
    name: str
    spec: dict[str, Any]
    state: str = "inactive"
    sub: str = "dead"
    main: int = 0
    pid: int = 0  # our direct child; for a container the shim above its main process
    due: float | None = None
    again: bool = False
    restarts: int = 0
    result: str = "success"
    masked: bool = False
    enabled: bool = True
    since: float = field(default_factory=time.time)

    @property
    def manager(self) -> str:
        return str(self.spec.get("manager", "systemd"))

    @property
    def container_id(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def cgroup(self) -> str:
        default = {"systemd": f"system.slice/{self.name}", "docker": f"system.slice/docker-{self.container_id}.scope"}
        return str(self.spec.get("cgroup") or default.get(self.manager, "user.slice/user-0.slice/session-5.scope"))

    @property
    def restart(self) -> str:
        return str(self.spec.get("restart", "no"))

    def restart_at_boot(self) -> bool:
        """A unit file that is enabled starts at boot; of the containers only those with a restart policy do."""
        return self.manager == "systemd" or self.restart in ("always", "unless-stopped", "on-failure")


class Manager:
    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        self.cgroups = Cgroups()
        specs = [
            {"name": "ssh.service", "exec": setup["sshd"], "restart": "on-failure", "system": True},
            *setup.get("units", []),
        ]
        self.units = {spec["name"]: Unit(spec["name"], spec, enabled=bool(spec.get("enabled", True))) for spec in specs}

    def boot(self) -> None:
        self.cgroups.join("init.scope")
        with contextlib.suppress(OSError, ValueError):
            for name, value in json.loads(ENABLED.read_text()).items():
                self.units[name].enabled = value
        for unit in self.units.values():
            if unit.name == "ssh.service" or (unit.spec.get("at_boot") and unit.enabled):
                self.start(unit.name)

    def start_enabled(self) -> None:
        first = int(self.setup["boot"]) == 1
        for unit in self.units.values():
            autostart = unit.enabled and unit.manager in ("systemd", "docker")
            wanted = unit.spec.get("at_activation", True) if first else autostart and unit.restart_at_boot()
            if wanted and unit.state == "inactive" and not unit.masked:
                self.start(unit.name)

    # -- start and stop ---------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        unit = self.units[name]
        if unit.masked:
            raise RuntimeError(f"Unit {name} is masked.")
        if unit.state in ("active", "stopping"):
            return
        for folder in ("spec", "logs", "docker"):
            os.makedirs(f"/run/lab/{folder}", exist_ok=True)
        if "engine" in unit.spec:
            Path(f"/run/lab/spec/{name}.json").write_text(json.dumps({"group": name, **unit.spec["engine"]}))
        Path(f"/run/lab/docker/{name}.pid").unlink(missing_ok=True)
        unit.pid = fork_into(self.cgroups, unit.cgroup, lambda: _become(unit))
        unit.main = 0 if unit.manager == "docker" else unit.pid
        unit.state, unit.sub, unit.due, unit.again, unit.result = "active", "running", None, False, "success"
        unit.since = time.time()

    def stop(self, name: str, timeout: float | None = None, wait: bool = True, number: int = signal.SIGTERM) -> None:
        unit = self.units[name]
        unit.again = False
        if unit.state == "auto-restart":
            unit.state, unit.sub, unit.due = "inactive", "dead", None
        if unit.state != "active":
            return
        limit = timeout if timeout is not None else float(unit.spec.get("stop_timeout_s", 5))
        self._begin_stop(unit, limit, number)

    def _begin_stop(self, unit: Unit, limit: float, number: int = signal.SIGTERM) -> None:
        unit.state, unit.sub, unit.due = "stopping", "stop-sigterm", time.monotonic() + limit
        self.signal(unit, number)

    def signal(self, unit: Unit, number: int) -> None:
        pids = (
            [self.main_pid(unit)]
            if unit.manager == "docker" and number == signal.SIGTERM
            else self.cgroups.pids(unit.cgroup)
        )
        for pid in pids:
            if pid > 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def main_pid(self, unit: Unit) -> int:
        if unit.manager == "docker" and unit.state in ("active", "stopping"):
            with contextlib.suppress(OSError, ValueError):
                unit.main = int(Path(f"/run/lab/docker/{unit.name}.pid").read_text())
        return unit.main

    # -- what happens by itself -------------------------------------------------------------------------------------

    def ended(self, pid: int, status: int) -> None:
        for unit in self.units.values():
            if unit.pid == pid and unit.state in ("active", "stopping"):
                code = os.waitstatus_to_exitcode(status)
                note("unit-main-ended", unit=unit.name, code=code)
                unit.main = unit.pid = 0
                if unit.state == "active":
                    unit.result = "success" if code == 0 else "signal" if code < 0 else "exit-code"
                    unit.again = unit.restart in ("always", "unless-stopped") or (
                        unit.restart == "on-failure" and code != 0
                    )
                    if unit.manager in ("systemd", "docker") and unit.spec.get("kill_mode") != "process":
                        self._begin_stop(unit, float(unit.spec.get("stop_timeout_s", 5)))
                    else:
                        unit.state, unit.sub = "inactive", "dead"

    def tick(self) -> None:
        now = time.monotonic()
        for unit in self.units.values():
            if unit.state == "stopping":
                if not any(alive(pid) for pid in self.cgroups.pids(unit.cgroup)) and unit.pid == 0:
                    self._stopped(unit, now)
                elif unit.due is not None and now >= unit.due:
                    unit.sub, unit.due, unit.result = "stop-sigkill", now + 1, "timeout"
                    self.signal(unit, signal.SIGKILL)
            elif unit.state == "auto-restart" and unit.due is not None and now >= unit.due:
                unit.state = "inactive"
                unit.restarts += 1
                self.start(unit.name)

    def _stopped(self, unit: Unit, now: float) -> None:
        if unit.again and not unit.masked:
            unit.state, unit.sub, unit.due = "auto-restart", "auto-restart", now + float(unit.spec.get("restart_s", 1))
        else:
            failed = unit.result not in ("success",)
            unit.state, unit.sub, unit.due = ("failed", "failed", None) if failed else ("inactive", "dead", None)

    def next_due_ms(self, limit: int) -> int:
        busy = any(unit.state == "stopping" for unit in self.units.values())
        dues = [unit.due for unit in self.units.values() if unit.due is not None]
        left = min((due - time.monotonic() for due in dues), default=limit / 1000)
        return max(10, min(limit, 50 if busy else limit, int(left * 1000) + 1))

    def quiet(self) -> bool:
        return all(unit.state in ("inactive", "failed") or unit.name == "ssh.service" for unit in self.units.values())

    # -- questions --------------------------------------------------------------------------------------------------

    def table(self) -> dict[str, Any]:
        return {
            u.name: {
                "state": self.active_state(u),
                "sub": u.sub,
                "main": self.main_pid(u),
                "manager": u.manager,
                "enabled": u.enabled,
                "masked": u.masked,
                "restarts": u.restarts,
                "result": u.result,
                "restart": u.restart,
            }
            for u in self.units.values()
        }

    def active_state(self, unit: Unit) -> str:
        return {"stopping": "deactivating", "auto-restart": "activating"}.get(unit.state, unit.state)

    def find(self, name: str, manager: str) -> Unit | None:
        for unit in self.units.values():
            names = {unit.name, unit.name.removesuffix(".service")}
            if unit.manager == manager and (
                name in names or (manager == "docker" and len(name) > 5 and unit.container_id.startswith(name))
            ):
                return unit
        return None

    def show(self, unit: Unit) -> dict[str, Any]:
        return {
            **self.table()[unit.name],
            "name": unit.name,
            "id": unit.container_id,
            "cgroup": "/" + unit.cgroup,
            "since": unit.since,
            "exec": unit.spec["exec"],
            "image": unit.spec.get("image", ""),
            "stop_timeout_s": unit.spec.get("stop_timeout_s", 5),
        }

    def request(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        manager = request.get("manager", "systemd")
        if op == "list":
            return {"ok": True, "units": [self.show(u) for u in self.units.values() if u.manager == manager]}
        unit = self.find(str(request.get("unit", "")), manager)
        if unit is None:
            return {"ok": False, "missing": True, "error": f"no such unit: {request.get('unit')}"}
        match op:
            case "show":
                pass
            case "start":
                if unit.state == "failed":
                    unit.state = "inactive"
                self.start(unit.name)
            case "stop":
                self.stop(unit.name, request.get("timeout"))
            case "kill":
                self.signal_asked(unit, int(request["signal"]), request.get("whom", "all"))
            case "enable" | "disable":
                self.set_enabled(unit, op == "enable", bool(request.get("runtime")))
            case "mask" | "unmask":
                unit.masked = op == "mask"
            case "restart-policy":
                unit.spec["restart"] = request["value"]
            case _:
                return {"ok": False, "error": f"unknown operation {op}"}
        return {"ok": True, "unit": self.show(unit)}

    def signal_asked(self, unit: Unit, number: int, whom: str) -> None:
        if whom == "main":
            os.kill(self.main_pid(unit), number)
        else:
            self.signal(unit, number)

    def set_enabled(self, unit: Unit, value: bool, runtime: bool) -> None:
        unit.enabled = value
        if not runtime:
            ENABLED.write_text(json.dumps({u.name: u.enabled for u in self.units.values()}))


def _become(unit: Unit) -> None:
    """In the fresh child: a service's main process, a container's shim over it, or a shell that starts it for ever."""
    os.setsid()
    log = os.open(f"/run/lab/logs/{unit.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open("/dev/null", os.O_RDONLY)
    for fd, to in ((null, 0), (log, 1), (log, 2)):
        os.dup2(fd, to)
    env = {
        "PATH": "/run/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/run/lab/root",
        "LANG": "C.UTF-8",
        "PYTHONPATH": "/run/lab/src/tests/lab/guest/engine",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LAB_SPEC": f"/run/lab/spec/{unit.name}.json",
        **unit.spec.get("env", {}),
    }
    argv = [str(word) for word in unit.spec["exec"]]
    if unit.spec.get("system"):
        os.execve(argv[0], argv, env)
    if unit.manager == "docker":
        _containerd_shim(unit, argv, env)
    if unit.manager == "shell":
        line = " ".join(argv)
        os.execve(
            "/bin/sh", ["/bin/sh", "-c", f"while true; do {line}; sleep {unit.spec.get('restart_s', 1)}; done"], env
        )
    os.execvpe(argv[0], argv, env)


def _containerd_shim(unit: Unit, argv: list[str], env: dict[str, str]) -> None:
    from labproc import set_comm, set_title

    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execvpe(argv[0], argv, env)
    Cgroups().join("system.slice/containerd.service")
    set_title(
        f"/usr/bin/containerd-shim-runc-v2 -namespace moby -id {unit.container_id} "
        "-address /run/containerd/containerd.sock"
    )
    set_comm(b"containerd-shim")
    Path(f"/run/lab/docker/{unit.name}.pid").write_text(str(pid))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)
