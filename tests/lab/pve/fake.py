# SPDX-License-Identifier: AGPL-3.0-or-later
"""FakePveGpu differs from fakepve only where the real Proxmox does (facts checked against the Perl sources)."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web
from fakepve import FakePve
from fakepve.errors import strip_prefix
from fakepve.model import TaskError
from fakepve.server import SECRET_KEYS, params

from .containers import Containers
from .faults import Fault, Faults
from .hooks import NoHooks, PowerHooks
from .machine import LabVm, PciDevice, devices_of
from .permits import RECIPE, Permits
from .power import Power
from .reads import Reads
from .tasks import Tasks

TOKEN_ID = "gpu-recover@pve!oncall"
KEPT_REQUESTS = 20000


def bare(status: int, text: str) -> web.Response:
    """pve-http-server's own errors (401, 595-599) have the text in the reason phrase and no body."""
    return web.Response(status=status, reason=text.splitlines()[0] if text else "")


def rewritten(response: web.StreamResponse, fault: Fault) -> web.StreamResponse:
    """The real answer with other values in it; `*` in a path stands for every row or key."""
    if not isinstance(response, web.Response) or response.status != 200:
        return response
    body = json.loads(response.text or "{}")
    for where, value in fault.rewrites or ():
        body["data"] = _put(body["data"], list(where), value)
    return web.json_response(body)


def _put(old: Any, where: list[str], new: Any) -> Any:
    if not where:
        return new
    if isinstance(old, list):
        return [_put(row, where[1:] if where[0] == "*" else where, new) for row in old]
    return {**old, where[0]: _put(old.get(where[0]), where[1:], new)} if isinstance(old, dict) else old


class FakePveGpu(Permits, Power, Reads, Containers, Tasks, FakePve):  # type: ignore[misc]
    """The API of a small cluster with GPU guests, built from a configuration (see the package's docstring)."""

    def __init__(self, config: dict[str, Any], secret: str, hooks: PowerHooks | None = None) -> None:
        super().__init__(host=config.get("host", "127.0.0.1"), port=int(config.get("port", 0)))
        self._init_permits()
        self._init_tasks()
        self.acl: dict[str, Any] = {}  # not None: fakepve lets everyone do anything without one
        self.hooks = hooks or NoHooks()
        self.executor = ThreadPoolExecutor(8, thread_name_prefix="pve-hook")
        self.faults = Faults()
        self.seen: list[dict[str, Any]] = []
        self.seen_total = 0
        self.on_request: Any = None
        self._background: set[asyncio.Future[Any]] = set()
        self.time_scale = float(config.get("time_scale", 0.05))
        self.release_version = str(config.get("release", "9.2"))
        self.version = str(config.get("version", "9.2.6"))
        self.listeners = int(config.get("listeners", 1))
        self.quorate = bool(config.get("quorate", True))
        self.cluster_name = config.get("cluster_name", "lab")
        self.error_message = bool(config.get("error_message", True))
        self._load(config)
        self._load_token(config, secret)

    def _load(self, config: dict[str, Any]) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.devices, self.node_memory = {}, {}
        for node in config.get("nodes") or [{"name": "pve1"}]:
            self.add_lab_node(node)
        self.mappings = {entry["id"]: entry for entry in config.get("mappings", ())}
        for data in config.get("vms", ()):
            self.add_lab_vm(data)
        for data in config.get("cts", ()):
            self.add_lab_ct(data)
        for data in config.get("tasks", ()):
            self.foreign_task(data)
        for data in config.get("faults", ()):
            self.faults.add(data)

    def _load_token(self, config: dict[str, Any], secret: str) -> None:
        token = config.get("token", {})
        self.token_id = token.get("id", TOKEN_ID)
        self.apitokens = {self.token_id: secret}
        self.privsep[self.token_id] = bool(token.get("privsep", True))
        if "grants" in config:
            for grant in config["grants"]:
                self.give(grant["who"], grant["path"], frozenset(grant["privs"]), bool(grant.get("propagate", True)))
        else:
            for who in (self.token_id, self.token_id.rpartition("!")[0]):
                for path, privs, propagate in RECIPE:
                    self.give(who, path, privs, propagate)

    def add_lab_node(self, data: dict[str, Any]) -> None:
        name = data["name"]
        self.nodes[name] = {"online": bool(data.get("online", True))}
        self.node_memory[name] = {
            "memory_mib": int(data.get("memory_mib", 2457600)),
            "used_mib": int(data.get("used_mib", 24576)),
            "uptime_s": int(data.get("uptime_s", 8640000)),
            "ahead_s": int(data.get("ahead_s", 0)),
        }
        self.devices[name] = {device["bdf"]: PciDevice.parse(device) for device in data.get("pci", ())}

    def add_lab_vm(self, data: dict[str, Any]) -> LabVm:
        vm = LabVm(data)
        if vm.node not in self.nodes:
            self.add_lab_node({"name": vm.node})
        for number, entry in enumerate(data.get("hostpci", ())):
            if isinstance(entry, dict):
                device = PciDevice.parse(entry)
                self.devices[vm.node][device.bdf] = device
                entry = f"{device.bdf},pcie=1"
            vm.config[f"hostpci{number}"] = entry
        self.vms.append(vm)
        if vm.pool:
            self.pools.setdefault(vm.pool, set()).add(vm.vmid)
        return vm

    def running_devices(self, vm: LabVm) -> list[str]:
        try:
            return [device.bdf for device in devices_of(vm, self.devices[vm.node], self.mappings)]
        except TaskError:
            return []

    def background(self, work: Coroutine[Any, Any, Any]) -> None:
        future = asyncio.ensure_future(work)
        self._background.add(future)
        future.add_done_callback(self._background.discard)

    # --- listeners: one API may answer on several addresses, as every node of a cluster does

    async def start(self, certfile: str, keyfile: str) -> None:
        await super().start(certfile, keyfile)
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certfile, keyfile)
        self._sites: list[web.TCPSite | None] = [next(iter(self.runner.sites))]
        self.ports = [self.port]
        for _ in range(1, self.listeners):
            self.ports.append(0)
            self._sites.append(None)
            await self.listen(len(self.ports) - 1, True)

    async def listen(self, index: int, up: bool) -> None:
        """Down: connections are refused and those that stand are dropped."""
        site = self._sites[index]
        if up and site is None:
            site = web.TCPSite(self.runner, self.host, self.ports[index], ssl_context=self._tls)
            await site.start()
            self.ports[index] = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
            self._sites[index] = site
        elif not up and site is not None:
            self._sites[index] = None
            await site.stop()
            self._drop(self.ports[index])

    def _drop(self, port: int | None = None) -> None:
        for connection in list(self.runner.server.connections):
            transport = connection.transport
            if transport is None:
                continue
            name = transport.get_extra_info("sockname")  # None once the client is gone
            if port is None or (name and name[1] == port):
                transport.abort()

    async def stop(self) -> None:
        for future in list(self._background):
            future.cancel()
        await self.stop_workers()
        self._drop()  # an idle client would hold the TLS farewell open
        await super().stop()
        self.executor.shutdown(wait=False, cancel_futures=True)

    # --- every request passes here

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        path = strip_prefix(request.path)
        note = await self._note(request, path)
        fault = self.faults.for_call(request.method, path, self.running_tasks())
        try:
            response = await self._faulted(request, handler, fault)
            note["status"] = response.status
        finally:
            if fault is not None:
                note["fault"] = fault.kind
            note["done"] = time.time()
            if self.on_request is not None:
                self.on_request(note)
        return response

    async def _faulted(self, request: web.Request, handler: Any, fault: Fault | None) -> web.StreamResponse:
        if fault is None:
            return await self._plain(request, handler)
        if fault.kind == "slow":
            await asyncio.sleep(fault.seconds)
            return await self._plain(request, handler)
        if fault.kind == "rewrite":
            return rewritten(await self._plain(request, handler), fault)
        if fault.when == "after":
            await self._plain(request, handler)  # the action is under way; only its answer is lost
        await asyncio.sleep(fault.seconds)
        if fault.kind == "cut":
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("lab: connection cut")
        if fault.kind == "raw":
            body, kind = fault.body.encode("utf-8", "surrogateescape"), fault.content_type
            return web.Response(body=body, status=fault.status, content_type=kind, headers=fault.headers or {})
        if fault.kind == "page":
            return web.Response(text="<html>a portal in between</html>", content_type="text/html")
        text = fault.message if fault.message is not None else "Connection timed out"
        if fault.status == 401 or fault.status >= 595:
            return bare(fault.status, text)
        return web.json_response(
            {"data": None, "message": text + "\n"}, status=fault.status, reason=text.splitlines()[0]
        )

    async def _plain(self, request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await FakePve._middleware(self, request, handler)
        if response.status == 401:
            await self.pause(3)  # pve-http-server answers every 401 late
            return bare(401, response.reason or "")
        if response.status >= 595:
            return bare(response.status, response.reason or "")
        if (
            response.status >= 400
            and not self.error_message
            and isinstance(response, web.Response)
            and response.content_type == "application/json"
        ):
            body = json.loads(response.text or "{}")
            body.pop("message", None)
            return web.json_response(body, status=response.status, reason=response.reason)
        return response

    async def _note(self, request: web.Request, path: str) -> dict[str, Any]:
        try:
            given = await params(request)
        except Exception:  # an unreadable body is the handler's to refuse
            given = {}
        self.seen_total += 1
        note: dict[str, Any] = {
            "n": self.seen_total,
            "time": time.time(),
            "method": request.method,
            "path": path,
            "status": None,
            "params": {key: "***" if key in SECRET_KEYS else value for key, value in given.items()},
            "fault": None,
        }
        self.seen.append(note)
        del self.seen[:-KEPT_REQUESTS]
        return note
