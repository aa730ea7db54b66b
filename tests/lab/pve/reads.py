# SPDX-License-Identifier: AGPL-3.0-or-later
"""What the API shows follows from the lab's state: node memory from the VMs that hold it, config from what runs."""

from __future__ import annotations

import json
import time
from typing import Any

from fakepve.model import PveError
from fakepve.routing import sha1
from fakepve.server import USER, ok, params

from .machine import LabVm, PciDevice

MIB = 1 << 20


class Reads:
    """Mixin: the reading endpoints fakepve answers with placeholders."""

    devices: dict[str, dict[str, PciDevice]]
    mappings: dict[str, dict[str, Any]]
    node_memory: dict[str, dict[str, int]]
    vms: list[LabVm]

    def memory(self, node: str) -> dict[str, int]:
        """A VM with passed-through devices has all of its RAM pinned; a zombie has it still."""
        size = self.node_memory[node]
        guests = sum(vm.memory_mib for vm in self.vms if vm.node == node and (vm.status == "running" or vm.zombie))
        used = min(size["memory_mib"], size["used_mib"] + guests)
        return {
            "total": size["memory_mib"] * MIB,
            "used": used * MIB,
            "free": (size["memory_mib"] - used) * MIB,
            "available": (size["memory_mib"] - used) * MIB,
        }

    def _routes_lab_reads(self) -> list[tuple[str, str, Any]]:
        pci = "/nodes/{node}/hardware/pci"
        return [
            ("GET", pci, self._pci_list),
            ("GET", "/cluster/mapping/pci", self._mapping_list),
            ("GET", "/cluster/mapping/pci/{id}", self._mapping_one),
            ("GET", "/nodes/{node}/status", self._node_status),
            ("GET", "/nodes/{node}/time", self._node_time),
            ("GET", "/cluster/ha/resources", self._ha_list),
            ("GET", "/cluster/ha/resources/{sid}", self._ha_one),
            ("PUT", "/cluster/ha/resources/{sid}", self._ha_put),
            ("GET", "/cluster/ha/status/current", self._ha_current),
        ]

    # --- hardware and mappings

    async def _pci_list(self, values: dict[str, Any], _user: str) -> list[dict[str, Any]]:
        given = str(values.get("pci-class-blacklist", "05;06;0b")).replace(",", ";")
        hidden = [part for part in given.split(";") if part]
        verbose = str(values.get("verbose", 1)) not in ("0", "False", "false")
        return [
            device.row(verbose)
            for _, device in sorted(self.devices[values["node"]].items())
            if not device.gone and not any(device.pci_class.startswith(part) for part in hidden)
        ]

    async def synthesise(self, match: Any, method: str, info: Any, user: str, values: dict[str, Any]) -> Any:
        """These two templates have a dash in a name, which aiohttp takes for no route of its own."""
        if method == "GET" and match.template == "/nodes/{node}/hardware/pci/{pci-id-or-mapping}":
            return [{"method": "mdev"}]
        if method == "GET" and match.template == "/nodes/{node}/hardware/pci/{pci-id-or-mapping}/mdev":
            return []
        return await super().synthesise(match, method, info, user, values)  # type: ignore[misc]

    def _mapping_row(self, name: str) -> dict[str, Any]:
        entry = self.mappings[name]
        return {
            "id": name,
            "description": entry.get("description", ""),
            "map": list(entry["map"]),
            "digest": sha1(name),
        }

    def _mapping_seen(self, user: str, name: str) -> bool:
        return any(
            self.allowed(user, "/mapping/pci/" + name, priv)  # type: ignore[attr-defined]
            for priv in ("Mapping.Modify", "Mapping.Use", "Mapping.Audit")
        )

    async def _mapping_list(self, values: dict[str, Any], user: str) -> list[dict[str, Any]]:
        if self.version.startswith("7."):  # type: ignore[attr-defined]
            raise PveError(501, "Method 'GET /cluster/mapping/pci' not implemented")
        extra: dict[str, Any] = {"checks": []} if values.get("check-node") else {}
        return [self._mapping_row(name) | extra for name in sorted(self.mappings) if self._mapping_seen(user, name)]

    async def _mapping_one(self, values: dict[str, Any], _user: str) -> dict[str, Any]:
        if values["id"] not in self.mappings:
            raise PveError(500, f"mapping '{values['id']}' not found")
        return self._mapping_row(values["id"])

    # --- nodes and cluster

    async def _node_status(self, values: dict[str, Any], _user: str) -> Any:
        memory = self.memory(values["node"])
        return self._complete(
            "/nodes/{node}/status",  # type: ignore[attr-defined]
            {
                "memory": memory,
                "uptime": self.node_memory[values["node"]]["uptime_s"],  # type: ignore[attr-defined]
                "pveversion": f"pve-manager/{self.version}/lab",  # type: ignore[attr-defined]
                "swap": {"total": 0, "used": 0, "free": 0},
            },
            node=values["node"],
        )

    async def _node_time(self, values: dict[str, Any], _user: str) -> dict[str, Any]:
        now = int(time.time()) + self.node_memory[values["node"]]["ahead_s"]
        return {"time": now, "localtime": now, "timezone": "UTC"}

    def _with_memory(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for row in rows:
            if row.get("type") == "node" and "mem" in row:
                memory = self.memory(row["node"])
                row.update(mem=memory["used"], maxmem=memory["total"])
        return rows

    async def _nodes(self, request: Any) -> Any:
        answer = await super()._nodes(request)  # type: ignore[misc]
        return ok(self._with_memory(json.loads(answer.text)["data"]))

    async def _resources(self, request: Any) -> Any:
        answer = await super()._resources(request)  # type: ignore[misc]
        return ok(self._with_memory(json.loads(answer.text)["data"]))

    async def _cluster_status(self, request: Any) -> Any:
        self.require(request[USER], "/", "Sys.Audit")  # type: ignore[attr-defined]
        answer = await super()._cluster_status(request)  # type: ignore[misc]
        rows = json.loads(answer.text)["data"]
        return ok([row for row in rows if row["type"] != "cluster" or self.cluster_name])  # type: ignore[attr-defined]

    # --- HA

    def _ha_row(self, vm: LabVm) -> dict[str, Any]:
        return {
            "sid": f"vm:{vm.vmid}",
            "type": "vm",
            "state": "started" if vm.ha_state == "error" else vm.ha_state,
            "max_restart": 1,
            "max_relocate": 1,
            "digest": f"{vm.vmid:040x}",
        }

    def _ha_vm(self, sid: str) -> LabVm:
        vmid = sid.removeprefix("vm:")
        vm = self.vm(int(vmid)) if vmid.isdigit() else None  # type: ignore[attr-defined]
        if vm is None or vm.ha_state is None:
            raise PveError(500, f"no such resource '{sid}'")
        return vm  # type: ignore[no-any-return]

    async def _ha_list(self, _values: dict[str, Any], _user: str) -> list[dict[str, Any]]:
        return [self._ha_row(vm) for vm in self.vms if vm.ha_state is not None]

    async def _ha_one(self, values: dict[str, Any], _user: str) -> dict[str, Any]:
        return self._ha_row(self._ha_vm(values["sid"]))

    async def _ha_put(self, values: dict[str, Any], _user: str) -> None:
        self.need_quorum()  # type: ignore[attr-defined]
        vm, state = self._ha_vm(values["sid"]), values.get("state")
        if vm.ha_state == "error" and state not in (None, "disabled", "ignored"):
            raise PveError(500, f"service 'vm:{vm.vmid}' in error state, must be disabled and fixed first")
        if state:
            vm.ha_state = "started" if state == "enabled" else state
            if vm.ha_state in ("started", "stopped", "disabled"):
                self.background(self._ha_round(vm, vm.ha_state))  # type: ignore[attr-defined]

    async def _ha_current(self, _values: dict[str, Any], _user: str) -> list[dict[str, Any]]:
        quorate = bool(self.quorate)  # type: ignore[attr-defined]
        first = sorted(self.node_memory)[0]
        rows: list[dict[str, Any]] = [
            {
                "id": "quorum",
                "type": "quorum",
                "node": first,
                "quorate": int(quorate),
                "status": "OK" if quorate else "No quorum on node '" + first + "'!",
            },
            {"id": "master", "type": "master", "node": first, "status": f"{first} (active, lab)"},
        ]
        for node in sorted(self.node_memory):
            rows.append({"id": f"lrm:{node}", "type": "lrm", "node": node, "status": f"{node} (active, lab)"})
        for vm in self.vms:
            if vm.ha_state is not None:
                asked = self._ha_row(vm)["state"]
                rows.append(
                    {
                        "id": f"service:vm:{vm.vmid}",
                        "type": "service",
                        "sid": f"vm:{vm.vmid}",
                        "node": vm.node,
                        "state": vm.ha_state,
                        "request_state": asked,
                        "crm_state": vm.ha_state,
                        "status": f"vm:{vm.vmid} ({vm.node}, {vm.ha_state})",
                        "max_restart": 1,
                        "max_relocate": 1,
                    }
                )
        return rows

    # --- a VM

    def _vm(self, request: Any, priv: str | None = None) -> LabVm:
        """PVE checks the privilege before it looks for the configuration file."""
        node, vmid = request.match_info["node"], request.match_info["vmid"]
        if priv and vmid.isdigit():
            self.require(request[USER], f"/vms/{vmid}", priv)  # type: ignore[attr-defined]
        if node not in self.node_memory:
            raise PveError(
                500,
                f"hostname lookup '{node}' failed - failed to get address info for: {node}: Name or service not known",
            )
        return super()._vm(request, None)  # type: ignore[misc,no-any-return]

    async def _status_current(self, request: Any) -> Any:
        """Only what the state says: no filled-in samples, a made-up lock would be acted on."""
        vm = self._vm(request, "VM.Audit")
        row = self._vm_status(vm)  # type: ignore[attr-defined]
        for name in ("name", "qmpstatus"):
            row.setdefault(name, getattr(vm, name))
        return ok(row)

    async def _config_get(self, request: Any) -> Any:
        """Pending values are merged in unless current=1 (PVE/API2/Qemu.pm vm_config)."""
        vm = self._vm(request, "VM.Audit")
        values = self._verify(request, await params(request))  # type: ignore[attr-defined]
        config = dict(vm.config)
        if str(values.get("current", 0)) not in ("1", "True", "true"):
            for key, value in vm.pending.items():
                if value is None:
                    config.pop(key, None)
                else:
                    config[key] = value
        return ok({**config, "digest": vm.digest()})

    async def _config_put(self, request: Any) -> Any:
        """revert= undoes pending keys; lock, raw devices and skiplock belong to the root@pam login."""
        values, user = await params(request), request[USER]
        vm = self._vm(request)
        if user != "root@pam":
            if values.get("skiplock") is not None:
                raise PveError(400, "Parameter verification failed.", {"skiplock": "Only root may use this option."})
            deleted = str(values.get("delete", "")).split(",")
            if "lock" in deleted or "lock" in values:
                raise PveError(500, "only root can set 'lock' config")
            for key, value in values.items():
                if key.startswith("hostpci") and "mapping=" not in str(value):
                    raise PveError(500, f"only root can set '{key}' config for non-mapped devices")
        if values.get("revert"):
            self.require(user, f"/vms/{vm.vmid}", "VM.Config.Options")  # type: ignore[attr-defined]
            for key in str(values["revert"]).split(","):
                vm.pending.pop(key, None)
            return ok()
        return await super()._config_put(request)  # type: ignore[misc]

    # --- guest agent and monitor

    async def _agent_call(self, match: Any, values: dict[str, Any]) -> Any:
        """The texts of PVE::QemuServer::Agent, by what the guest's agent does."""
        vm: LabVm = self.find(values["node"], values["vmid"])  # type: ignore[attr-defined]
        command = match.template.rsplit("/", 1)[1]
        if vm.agent_mode == "none":
            raise PveError(500, "No QEMU guest agent configured")
        if vm.status != "running":
            raise PveError(500, f"VM {vm.vmid} is not running")
        if vm.agent_mode in ("hangs", "not-running"):
            await self.pause(3 if vm.agent_mode == "hangs" else 0)  # type: ignore[attr-defined]
            raise PveError(500, "QEMU guest agent is not running")
        if vm.agent_mode == "stalls" and command != "ping":
            await self.pause(10)  # type: ignore[attr-defined]
            raise PveError(500, f"VM {vm.vmid} qmp command 'guest-{command}' failed - got timeout")
        return await super()._agent_call(match, values)  # type: ignore[misc]

    async def _monitor(self, request: Any) -> Any:
        """PVE 9 rules (HMPPerms.pm): info needs Sys.Audit on the VM, the strong ones Sys.Modify on /, the rest root."""
        command = str((await params(request)).get("command", "")).strip()
        user, vm = request[USER], self._vm(request)
        word = command.split(" ")[0]
        path = f"/vms/{vm.vmid}"
        if not (self.allowed(user, path, "Sys.Audit") or self.allowed(user, path, "Sys.Modify")):  # type: ignore[attr-defined]
            raise PveError(403, f"Permission check failed ({path}, Sys.Audit|Sys.Modify)")
        if word in ("system_reset", "quit", "stop", "cont", "qom-get", "qom-list"):
            self.require(user, "/", "Sys.Modify")  # type: ignore[attr-defined]
        elif word not in ("info", "help") and user != "root@pam":
            raise PveError(500, f"root-only command '{word}'")
        if vm.status != "running":
            raise PveError(500, f"VM {vm.vmid} not running")
        if command == "info status":
            return ok(f"VM status: {vm.qmpstatus}\r\n")
        if command == "info qtree":
            taken = self.running_devices(vm)  # type: ignore[attr-defined]
            return ok(
                "".join(
                    f'      dev: vfio-pci, id "hostpci{n}.0"\r\n        host = "{bdf}"\r\n'
                    for n, bdf in enumerate(taken)
                )
            )
        return ok("")
