# SPDX-License-Identifier: AGPL-3.0-or-later
"""A power action reaches the machine behind the API only through these four calls, each in a worker thread."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Protocol


class PowerHooks(Protocol):
    """What the lab does when PVE starts or ends a guest. May take seconds; the PVE task runs meanwhile."""

    def start(self, vmid: int) -> None: ...

    def stop(self, vmid: int) -> None: ...

    def reset(self, vmid: int) -> None: ...

    def shutdown(self, vmid: int) -> bool | None:
        """True: the guest obeyed and is off. False: it did not. None: the VM's `obeys_shutdown` decides."""


class NoHooks:
    """No machine behind the API."""

    def start(self, vmid: int) -> None:
        pass

    def stop(self, vmid: int) -> None:
        pass

    def reset(self, vmid: int) -> None:
        pass

    def shutdown(self, vmid: int) -> bool | None:
        return None


class CommandHooks:
    """Runs `argv action vmid`; exit 0 is done, 1 is "the guest did not obey", anything else is a failure."""

    def __init__(self, argv: Sequence[str], timeout_s: float = 300.0) -> None:
        self._argv = tuple(argv)
        self._timeout_s = timeout_s

    def _run(self, action: str, vmid: int) -> int:
        done = subprocess.run([*self._argv, action, str(vmid)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, timeout=self._timeout_s, check=False)
        if done.returncode and not (action == "shutdown" and done.returncode == 1):
            text = done.stderr.decode(errors="replace").strip()
            raise RuntimeError(f"hook {action} {vmid} ended with {done.returncode}: {text[-500:]}")
        return done.returncode

    def start(self, vmid: int) -> None:
        self._run("start", vmid)

    def stop(self, vmid: int) -> None:
        self._run("stop", vmid)

    def reset(self, vmid: int) -> None:
        self._run("reset", vmid)

    def shutdown(self, vmid: int) -> bool | None:
        return self._run("shutdown", vmid) == 0
