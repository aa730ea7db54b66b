# SPDX-License-Identifier: AGPL-3.0-or-later
"""A power action reaches the machine behind the API only through these four calls, each in a worker thread."""

from __future__ import annotations

import subprocess
import tempfile
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
        self._running: set[subprocess.Popen[bytes]] = set()

    def _run(self, action: str, vmid: int) -> int:
        # stderr goes to a file: what the hook leaves running must not hold a pipe open against us
        with (
            tempfile.TemporaryFile() as said,
            subprocess.Popen(
                [*self._argv, action, str(vmid)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
            ) as process,
        ):
            self._running.add(process)
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            finally:
                self._running.discard(process)
            said.seek(0)
            text = said.read().decode(errors="replace").strip()
        if code and not (action == "shutdown" and code == 1):
            raise RuntimeError(f"hook {action} {vmid} ended with {code}: {text[-500:]}")
        return code

    def close(self) -> None:
        """The server ends: a hook that still runs would keep it alive."""
        for process in list(self._running):
            process.terminate()

    def start(self, vmid: int) -> None:
        self._run("start", vmid)

    def stop(self, vmid: int) -> None:
        self._run("stop", vmid)

    def reset(self, vmid: int) -> None:
        self._run("reset", vmid)

    def shutdown(self, vmid: int) -> bool | None:
        return self._run("shutdown", vmid) == 0
