# SPDX-License-Identifier: AGPL-3.0-or-later
"""Whoever changes the fake, test or process, does it by these operations, on the server's own loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from .fake import FakePveGpu
from .machine import LabVm


class Ops:
    """op name -> what it does; see the package's docstring for the arguments."""

    def __init__(self, pve: FakePveGpu, stop: Callable[[], None]) -> None:
        self._pve = pve
        self._stop = stop

    async def run(self, op: str, arguments: dict[str, Any]) -> Any:
        method = getattr(self, "op_" + op.replace("-", "_"), None)
        if method is None:
            raise ValueError(f"unknown op {op!r}")
        result = method(**arguments)
        return await result if hasattr(result, "__await__") else result

    def _vm(self, vmid: int | str) -> LabVm:
        vm = self._pve.vm(int(vmid))
        if vm is None:
            raise ValueError(f"no VM {vmid}")
        return vm  # type: ignore[no-any-return]

    def op_ping(self) -> str:
        return "pong"

    def op_state(self) -> dict[str, Any]:
        pve = self._pve
        return {
            "vms": {str(vm.vmid): vm.view() for vm in pve.vms},
            "cts": {str(ct.vmid): ct.view() for ct in pve.cts},
            "nodes": {
                name: {
                    "online": pve.nodes[name]["online"],
                    "memory": pve.memory(name),
                    "devices": {bdf: {"reset": d.reset, "gone": d.gone} for bdf, d in pve.devices[name].items()},
                }
                for name in pve.node_memory
            },
            "tasks": [dict(record, log=list(record["log"])) for record in pve.tasklog],
            "faults": pve.faults.view(),
            "quorate": pve.quorate,
            "requests": pve.seen_total,
        }

    def op_requests(self, since: int = 0) -> list[dict[str, Any]]:
        return [dict(note) for note in self._pve.seen if note["n"] > since]

    def op_inject(self, fault: dict[str, Any]) -> str:
        return self._pve.faults.add(fault)

    def op_clear(self, id: str | None = None) -> int:
        return self._pve.faults.clear(id)

    def op_vm(self, vmid: int, set: dict[str, Any]) -> dict[str, Any]:
        vm = self._vm(vmid)
        vm.change(set)
        if vm.node not in self._pve.node_memory:
            self._pve.add_lab_node({"name": vm.node})
        return vm.view()

    def op_ct(self, vmid: int, set: dict[str, Any]) -> dict[str, Any]:
        ct = self._pve.ct(int(vmid))
        if ct is None:
            raise ValueError(f"no container {vmid}")
        ct.change(set)
        return ct.view()

    def op_device(self, node: str, bdf: str, set: dict[str, Any]) -> dict[str, Any]:
        device = self._pve.devices[node][bdf]
        device.change(set)
        return {**device.row(), "reset": device.reset, "gone": device.gone}

    def op_node(self, name: str, set: dict[str, Any]) -> dict[str, int]:
        for key, value in set.items():
            if key == "online":
                self._pve.set_node_offline(name, not value)
            elif key in ("memory_mib", "used_mib", "uptime_s"):
                self._pve.node_memory[name][key] = int(value)
            else:
                raise ValueError(f"node: unknown key {key!r}")
        return self._pve.memory(name)

    def op_quorum(self, value: bool) -> None:
        self._pve.quorate = value

    def op_deny(self, priv: str, path: str = "/") -> None:
        self._pve.denied.add((path, priv))

    def op_allow(self, priv: str, path: str = "/") -> None:
        self._pve.denied.discard((path, priv))

    def op_token(self, secret: str | None = None, id: str | None = None, revoke: bool | None = None) -> None:
        if secret is not None:
            self._pve.apitokens[id or self._pve.token_id] = secret
        if revoke is not None:
            self._pve.revoked = revoke

    async def op_hold_flock(self, vmid: int, seconds: float | None = None) -> None:
        await self._pve.hold_config_lock(int(vmid), None)
        if seconds is not None:

            async def later() -> None:
                await asyncio.sleep(seconds)
                self._pve.release_config_lock(int(vmid))

            self._pve.background(later())

    def op_release_flock(self, vmid: int) -> None:
        self._pve.release_config_lock(int(vmid))

    def op_task(self, **data: Any) -> str:
        return self._pve.foreign_task(data)

    def op_end_task(self, upid: str, status: str = "OK") -> None:
        self._pve.end_foreign(upid, status)

    def op_died(self, vmid: int) -> None:
        self._pve.died(self._vm(vmid))

    def op_destroy(self, vmid: int) -> None:
        self._pve.vms.remove(self._vm(vmid))

    async def op_listener(self, index: int, up: bool) -> None:
        await self._pve.listen(index, up)

    def op_stop(self) -> None:
        self._stop()
