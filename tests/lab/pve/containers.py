# SPDX-License-Identifier: AGPL-3.0-or-later
"""Containers beside fakepve's own: faults strike their tasks too, and a stop waits for processes that do not end.

pve-container, PVE/LXC.pm: vm_stop runs `lxc-stop --kill` without any time-out while it holds the lock file, so one
process in uninterruptible sleep keeps the task running for as long as it sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fakepve.lxc import FakeCt

from .faults import Faults

_ACTIONS = {"vzstart": "start", "vzstop": "stop", "vzshutdown": "shutdown", "vzreboot": "reboot"}
_KEYS = {
    "vmid", "name", "node", "status", "lock", "tags", "ha", "template", "pool", "config", "pending", "hangs", "pid",
    "shutdown_secs", "start_secs", "stop_secs", "start_error",
}  # fmt: skip


class LabCt(FakeCt):  # type: ignore[misc]
    """`hangs`: a process of it sleeps in the kernel and takes no SIGKILL."""

    def __init__(self, data: dict[str, Any]) -> None:
        config = {"hostname": data["name"], **data.get("config", {})}
        super().__init__(int(data["vmid"]), data["name"], data.get("node", "pve1"), "stopped", config)
        self.woken = asyncio.Event()
        self.change({"status": "running", **{k: v for k, v in data.items() if k not in ("vmid", "name", "config")}})

    def change(self, values: dict[str, Any]) -> None:
        unknown = set(values) - _KEYS
        if unknown:
            raise ValueError(f"ct {self.vmid}: unknown keys {sorted(unknown)}")
        for key, value in values.items():
            if key == "hangs":
                self.hangs = bool(value)
                self.woken.set() if not value else self.woken.clear()
            elif key in ("config", "pending"):
                getattr(self, key).update(value)
            elif key == "tags":
                self.config["tags"] = value
            elif key == "template":
                self.config["template"] = int(bool(value))
            else:
                setattr(self, {"ha": "ha_state"}.get(key, key), value)

    hangs = False

    def view(self) -> dict[str, Any]:
        return {"vmid": self.vmid, "name": self.name, "node": self.node, "status": self.status, "pid": self.pid,
                "lock": self.lock, "ha": self.ha_state, "hangs": self.hangs}  # fmt: skip


class Containers:
    """Mixin over fakepve's LxcApi."""

    faults: Faults
    cts: list[Any]

    def add_lab_ct(self, data: dict[str, Any]) -> LabCt:
        ct = LabCt(data)
        self.nodes.setdefault(ct.node, {"online": True})  # type: ignore[attr-defined]
        self.cts.append(ct)
        if ct.status == "running" and ct.pid is None:
            ct.pid = next(self._ct_pids)  # type: ignore[attr-defined]
        return ct

    async def _ct_task(self, ct: Any, ttype: str, user: str, body: Callable[[], Awaitable[Any]], **more: Any) -> Any:
        action = _ACTIONS.get(ttype)

        async def run() -> None:
            faults = self.faults.for_task(action, ct.vmid) if action else []
            await self._strike(faults, "before", ct)  # type: ignore[attr-defined]
            if not any(fault.kind == "nothing" for fault in faults):
                await self._outlasts(ct, ttype)
                await body()
            await self._strike(faults, "after", ct)  # type: ignore[attr-defined]

        return await super()._ct_task(ct, ttype, user, run, **more)  # type: ignore[misc]

    async def _outlasts(self, ct: Any, ttype: str) -> None:
        if ttype == "vzstop" and getattr(ct, "hangs", False):
            await ct.woken.wait()

    async def _ct_powerdown(self, ct: Any, timeout: float, force: bool) -> None:
        if getattr(ct, "hangs", False):
            ct.shutdown_secs = timeout + 1
        await super()._ct_powerdown(ct, timeout, force)  # type: ignore[misc]
