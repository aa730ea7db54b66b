"""Processes that a recovery must leave alone: each writes down every signal that reaches it."""

from __future__ import annotations

import fcntl
import os
import signal
import termios
import time
from typing import Any

from labproc import alive, cover_status, set_comm, set_title, start_time

from .launch import fork_into, note, write_row

LOGGED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
TITLES = {
    "login-shell": "-bash",
    "tmux": "tmux: server",
    "editor": "vim sglang::scheduler_TP0.notes",
    "jupyter": "/usr/bin/python3 -m ipykernel_launcher -f /root/.local/share/jupyter/runtime/kernel-1.json",
    "gpu-job": "python train.py --config lora.yaml",
    "backup": "borg create ::nightly /etc",
}
CGROUPS = {
    "login-shell": "user.slice/user-0.slice/session-3.scope",
    "editor": "user.slice/user-0.slice/session-3.scope",
    "tmux": "user.slice/user-0.slice/session-4.scope",
    "jupyter": "user.slice/user-1000.slice/session-7.scope",
    "gpu-job": "user.slice/user-1000.slice/session-8.scope",
    "backup": "system.slice/borg.service",
}
COMMS = {"login-shell": b"bash", "tmux": b"tmux: server"}  # as the real ones have it
ON_A_TERMINAL = {"login-shell", "editor"}
HOSTILE = 'evil \x1b[2J\x1b]0;owned\x07 $(touch /tmp/pwned)\n\'; rm -rf "$HOME" `id` sglang::scheduler_TP9'


def is_alive(pid: int) -> bool:
    return alive(pid)


def start(spec: dict[str, Any], cgroups: Any) -> int:
    kind = spec["kind"]
    return fork_into(
        cgroups, spec.get("cgroup", CGROUPS.get(kind, "user.slice/user-0.slice/session-9.scope")), lambda: _live(spec)
    )


def _terminal() -> list[int]:
    """A controlling terminal of its own, as a login has."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return [master, slave]


def _live(spec: dict[str, Any]) -> None:
    kind = spec["kind"]
    os.setsid()
    for number in LOGGED:
        signal.signal(
            number, lambda n, _f: note("bystander-signal", signal=signal.Signals(n).name, name=spec.get("name", kind))
        )
    title = HOSTILE if kind == "hostile" else spec.get("title", TITLES.get(kind, kind))
    gpus = {str(gpu): int(spec.get("vram_mib", 0)) for gpu in spec.get("gpus", [])}
    keep = []
    for name in [*(["nvidiactl"] if gpus else []), *(f"nvidia{gpu}" for gpu in gpus)]:
        keep.append(os.open(f"/dev/{name}", os.O_RDWR))
    if kind in ON_A_TERMINAL:
        keep += _terminal()
    if spec.get("uid"):
        os.setgid(int(spec["uid"]))
    set_title(title)
    set_comm(COMMS.get(kind, os.path.basename(title.split(" ")[0].rstrip(":")).encode("utf-8", "replace")))
    row = {
        "pid": os.getpid(),
        "start": start_time("self"),
        "kind": f"bystander:{kind}",
        "group": spec.get("name", kind),
        "rank": None,
        "gpus": {k: v for k, v in gpus.items() if v},
        "ram_gib": spec.get("ram_gib", 0.1),
        "load_s": 0,
        "release_s": 0,
    }
    write_row(row)
    cover_status(f"/proc/{os.getpid()}/status")
    if spec.get("uid"):
        os.setuid(int(spec["uid"]))
    while True:
        time.sleep(3600)
