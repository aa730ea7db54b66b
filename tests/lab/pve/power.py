# SPDX-License-Identifier: AGPL-3.0-or-later
"""Power goes through a task whose end proves nothing: VM, log and node memory say what happened."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fakepve.model import PveError, TaskError, lock_timeout
from fakepve.schema import validate
from fakepve.server import API, USER, ok, params

from .faults import Fault, Faults
from .hooks import PowerHooks
from .machine import LabVm, devices_of
from .tasks import Killed, Warned

TERM = "VM still running - terminating now with SIGTERM"
KILL = "VM still running - terminating now with SIGKILL"
ROOT_ONLY = ("skiplock", "keepActive", "migratedfrom", "stateuri", "nocheck")


def _flag(values: dict[str, Any], name: str) -> bool:
    return str(values.get(name, "0")).lower() in ("1", "true", "yes", "on")


class Power:
    """Mixin: /nodes/{node}/qemu/{vmid}/status/* as qemu-server 9.2 does it (PVE/API2/Qemu.pm, PVE/QemuServer.pm)."""

    hooks: PowerHooks
    faults: Faults
    executor: ThreadPoolExecutor

    async def _hook(self, call: Callable[[int], Any], vm: LabVm) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.executor, call, vm.vmid)

    async def _status_action(self, request: Any) -> Any:
        """Everything below this is inside a worker, except what PVE checks before it forks."""
        action = request.match_info["action"]
        vm = self._vm(request, "VM.PowerMgmt")  # type: ignore[attr-defined]
        handler = getattr(self, "_do_" + action, None)
        if handler is None:
            raise PveError(501, f"Method 'POST /nodes/{vm.node}/qemu/{vm.vmid}/status/{action}' not implemented")
        user = request[USER]
        values = self._checked(request, await params(request))
        refused = {name: "Only root may use this option." for name in ROOT_ONLY if values.get(name) is not None}
        if refused and user != "root@pam":
            raise PveError(400, "Parameter verification failed.", refused)
        return ok(await handler(vm, user, values))

    def _checked(self, request: Any, given: dict[str, Any]) -> dict[str, Any]:
        """The schema's verdict on the parameters; `action` is the route's word, not one of them."""
        info = self.resolve(request, API).methods["POST"]  # type: ignore[attr-defined]
        path = {name: request.match_info[name] for name in ("node", "vmid")}
        values, errors = validate(info.get("parameters"), {**given, **path})
        if errors:
            raise PveError(400, "Parameter verification failed.", errors)
        return values  # type: ignore[no-any-return]

    async def _worker(self, vm: LabVm, action: str, user: str, body: Callable[[list[str], list[Fault]], Any]) -> str:
        """A qm* task: locked, faults first, then the body, with its own log."""
        log: list[str] = []

        async def run() -> str | None:
            faults = self.faults.for_task(action, vm.vmid)
            await self._strike(faults, "before", vm)
            if not any(fault.kind == "nothing" for fault in faults):
                await body(log, faults)
            await self._strike(faults, "after", vm)
            return None

        upid: str = await self.task(vm.node, "qm" + action, vm.vmid, user, run, vm=vm, log=log)  # type: ignore[attr-defined]
        return upid

    async def _strike(self, faults: list[Fault], when: str, vm: LabVm) -> None:
        for fault in faults:
            if fault.kind == "task-error" and fault.when == when:
                raise TaskError(fault.message or "command failed")
            if when == "after":
                if fault.kind == "warnings":
                    raise Warned(fault.count)
                continue
            if fault.kind == "flock":
                await self.pause(10)  # type: ignore[attr-defined]
                raise TaskError(lock_timeout(vm.vmid))
            if fault.kind == "hang":
                await asyncio.Event().wait()
            if fault.kind == "killed":
                raise Killed

    @staticmethod
    def _locked(vm: LabVm, values: dict[str, Any], allow: tuple[str, ...] = ()) -> None:
        if vm.lock and vm.lock not in allow and not _flag(values, "skiplock"):
            raise TaskError(f"VM is locked ({vm.lock})")

    # --- start

    async def _do_start(self, vm: LabVm, user: str, values: dict[str, Any]) -> str:
        self.need_quorum()  # type: ignore[attr-defined]
        if vm.ha_state not in (None, "ignored") and not vm.template:
            return await self._ha_request(vm, user, "started")

        async def body(log: list[str], faults: list[Fault]) -> None:
            if vm.template:
                raise TaskError("you can't start a vm if it's a template")
            self._locked(vm, values, ("suspended",))
            if vm.status == "running":
                raise TaskError(f"VM {vm.vmid} already running")
            await self._boot(vm, log, faults)

        return await self._worker(vm, "start", user, body)

    async def _boot(self, vm: LabVm, log: list[str], faults: list[Fault]) -> None:
        """vm_start_nolock in its order: pending, devices, reservation, reset, old scope, QEMU."""
        vm.apply_pending()
        vm.config["name"] = vm.config.get("name", vm.name)
        devices = devices_of(vm, self.devices[vm.node], self.mappings)  # type: ignore[attr-defined]
        for device in devices:
            holder = self._holder(device.bdf, vm)
            if holder is not None:
                raise TaskError(f"PCI device '{device.bdf}' already in use by VMID '{holder.vmid}'")
        stubborn = [f for f in faults if f.kind == "reset-warning"]
        for device in devices:
            if device.reset == "fails" or any(f.bdf in (None, device.bdf) for f in stubborn):
                log.append(
                    f"error writing '1' to '/sys/bus/pci/devices/{device.bdf}/reset': Inappropriate ioctl for device"
                )
                log.append(
                    f"failed to reset PCI device '{device.bdf}', but trying to continue as not all devices need a reset"
                )
        if vm.zombie:
            await self.pause(20)  # type: ignore[attr-defined]
            raise TaskError("timeout waiting on systemd")
        for fault in faults:
            if fault.kind == "kvm-timeout":
                await asyncio.sleep(fault.seconds)
                if fault.comes_up:
                    await self._up(vm)
                raise TaskError(f"start failed: command '{_kvm(vm)}' failed: got timeout")
        await self.pause(vm.start_secs)  # type: ignore[attr-defined]
        try:
            await self._up(vm)
        except Exception as error:  # the machine behind the API did not start
            log.append(f"kvm: {error}")
            raise TaskError("start failed: QEMU exited with code 1") from error

    def _holder(self, bdf: str, but: LabVm) -> LabVm | None:
        for other in self.vms:  # type: ignore[attr-defined]
            if other is but or other.node != but.node or other.status != "running":
                continue
            try:
                if any(device.bdf == bdf for device in devices_of(other, self.devices[other.node], self.mappings)):  # type: ignore[attr-defined]
                    return other  # type: ignore[no-any-return]
            except TaskError:
                continue
        return None

    async def _up(self, vm: LabVm) -> None:
        await self._hook(self.hooks.start, vm)
        if vm.lock == "suspended":
            vm.change({"lock": None})
        vm.mark("running")
        vm.starts += 1

    async def _down(self, vm: LabVm) -> None:
        """The process is gone, then vm_stop_cleanup: pending changes are taken over."""
        await self._hook(self.hooks.stop, vm)
        self._off(vm)

    @staticmethod
    def _off(vm: LabVm) -> None:
        vm.mark("stopped")
        vm.stops += 1
        vm.apply_pending()

    # --- stop, shutdown, reboot, reset

    async def _do_stop(self, vm: LabVm, user: str, values: dict[str, Any]) -> str:
        overrule = _flag(values, "overrule-shutdown")
        if vm.ha_state not in (None, "ignored"):
            if overrule:
                raise PveError(
                    400, "Parameter verification failed.", {"overrule-shutdown": "Not applicable for HA-managed VMs"}
                )
            return await self._ha_request(vm, user, "stopped")
        if overrule:
            for record in self.tasklog:  # type: ignore[attr-defined]
                if (record["type"], record["id"], record["status"]) == (
                    "qmshutdown",
                    str(vm.vmid),
                    "running",
                ) and record["user"] == user:
                    self.interrupt(record)  # type: ignore[attr-defined]

        async def body(log: list[str], faults: list[Fault]) -> None:
            self._locked(vm, values)
            if vm.status != "running":
                return
            how = next((fault.how for fault in faults if fault.kind == "stop"), vm.stop_how)
            await self._end(vm, log, how)

        return await self._worker(vm, "stop", user, body)

    async def _end(self, vm: LabVm, log: list[str], how: str) -> None:
        """QMP quit, up to 60 s; SIGTERM, 10 s; SIGKILL; and then it is called stopped whatever is left."""
        if how == "still-runs":
            return
        if how == "quit":
            await self.pause(vm.stop_secs)  # type: ignore[attr-defined]
        else:
            await self.pause(60)  # type: ignore[attr-defined]
            log.append(TERM)
            if how in ("sigkill", "zombie"):
                await self.pause(10)  # type: ignore[attr-defined]
                log.append(KILL)
                await self.pause(1)  # type: ignore[attr-defined]
        await self._down(vm)
        vm.zombie = how == "zombie"

    async def _powerdown(self, vm: LabVm, values: dict[str, Any], log: list[str] | None = None) -> None:
        timeout = int(values.get("timeout") or 60)
        began = time.monotonic()
        obeyed = await self._hook(self.hooks.shutdown, vm)
        if obeyed is None:
            obeyed = vm.obeys_shutdown
        if obeyed:
            self._off(vm)
            return
        left = timeout * self.time_scale - (time.monotonic() - began)  # type: ignore[attr-defined]
        await asyncio.sleep(max(0.0, left))
        if not _flag(values, "forceStop"):
            raise TaskError("VM quit/powerdown failed - got timeout")
        if log is not None:
            log.append(TERM)
        await self._down(vm)

    async def _do_shutdown(self, vm: LabVm, user: str, values: dict[str, Any]) -> str:
        if vm.qmpstatus == "paused" and not _flag(values, "forceStop"):
            raise PveError(500, "VM is paused - cannot shutdown")
        if vm.ha_state not in (None, "ignored"):
            return await self._ha_request(vm, user, "stopped")

        async def body(log: list[str], _faults: list[Fault]) -> None:
            self._locked(vm, values)
            if vm.status == "running":
                await self._powerdown(vm, values, log)

        return await self._worker(vm, "shutdown", user, body)

    async def _do_reboot(self, vm: LabVm, user: str, values: dict[str, Any]) -> str:
        """Ends when the VM has stopped; `qm cleanup` then starts it in root's own task."""
        self._need_running(vm)  # type: ignore[attr-defined]

        async def body(log: list[str], _faults: list[Fault]) -> None:
            self._locked(vm, values)
            await self._powerdown(vm, values, log)
            asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(self._start_as_root(vm)))

        return await self._worker(vm, "reboot", user, body)

    async def _start_as_root(self, vm: LabVm) -> None:
        with contextlib.suppress(PveError):  # no quorum: the VM stays down, and only the host's journal says so
            await self._do_start(vm, "root@pam", {})

    async def _do_reset(self, vm: LabVm, user: str, values: dict[str, Any]) -> str:
        self._need_running(vm)  # type: ignore[attr-defined]

        async def body(_log: list[str], _faults: list[Fault]) -> None:
            self._locked(vm, values)
            await self._hook(self.hooks.reset, vm)
            vm.qmpstatus, vm.started_at = "running", time.time()
            vm.resets += 1

        return await self._worker(vm, "reset", user, body)

    # --- HA

    async def _ha_request(self, vm: LabVm, user: str, wanted: str) -> str:
        """The task only queues: the CRM and the LRM act a round later (10 s each)."""
        self.need_quorum()  # type: ignore[attr-defined]
        verb = "start" if wanted == "started" else "stop"

        async def body() -> str | None:
            if vm.ha_state == "error":
                raise TaskError(f"service 'vm:{vm.vmid}' in error state, must be disabled and fixed first")
            vm.ha_state = wanted
            self.background(self._ha_round(vm, wanted))  # type: ignore[attr-defined]
            return None

        upid: str = await self.task(
            vm.node,
            "ha" + verb,
            vm.vmid,
            user,
            body,
            lock=False,  # type: ignore[attr-defined]
            log=[f"Requesting HA {verb} for VM {vm.vmid}"],
        )
        return upid

    async def _ha_round(self, vm: LabVm, wanted: str) -> None:
        await self.pause(self.ha_delay)  # type: ignore[attr-defined]
        if vm.ha_state != wanted or (vm.status == "running") == (wanted == "started"):
            return

        if wanted == "started" and vm.ha_node:
            vm.node = vm.ha_node

        async def body(log: list[str], faults: list[Fault]) -> None:
            try:
                self._locked(vm, {})
                if wanted == "started":
                    await self._boot(vm, log, faults)
                else:
                    how = next((fault.how for fault in faults if fault.kind == "stop"), vm.stop_how)
                    await self._end(vm, log, how)
            except TaskError:
                vm.ha_state = "error"
                raise

        await self._worker(vm, "start" if wanted == "started" else "stop", "root@pam", body)

    def died(self, vm: LabVm) -> None:
        """QEMU ended by itself. A resource HA wants started is started again by the LRM."""
        self._off(vm)
        if vm.ha_state == "started":
            self.background(self._ha_round(vm, "started"))  # type: ignore[attr-defined]


def _kvm(vm: LabVm) -> str:
    """The command as PVE prints it, cut down to what identifies it."""
    argv = [f"/usr/bin/kvm -id {vm.vmid} -name '{vm.name},debug-threads=on' -no-shutdown -m {vm.memory_mib}"]
    for key, props in vm.hostpci():
        argv.append(f"-device 'vfio-pci,host={props.get('host', props.get('mapping', ''))},id={key}'")
    return " ".join(argv)
