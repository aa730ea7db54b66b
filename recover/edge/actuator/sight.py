"""Before and after an act the guest is looked up anew: where it is, whether it is the one meant, who works on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recover.core.read.pve import guest_rows
from recover.core.read.pve_config import vm_config
from recover.core.read.pve_values import flag, number
from recover.edge.actuator.waits import Limit
from recover.edge.proxmox.client import Client, path
from recover.edge.proxmox.errors import ApiError, Kind, clean
from recover.edge.proxmox.tasks import tasks_of
from recover.model.act import Outcome, VmRef
from recover.model.hypervisor import GuestKind, Task
from recover.model.reading import Known, Reading, Unknown, Why

ASK_S = 15.0  # one question, with its own retries
NAME = 100
MIB = 1 << 20
# A console that somebody has open is a task too, and holds nothing.
_CONSOLES = frozenset({"vncproxy", "vncshell", "spiceproxy", "spiceshell", "termproxy"})
# Where HA means to leave the guest (pve-ha-manager, the CRM's service states).
_HA_DOWN = frozenset({"stopped", "request_stop", "disabled", "error"})
OVERRULE_SINCE = (8, 1, 2)


@dataclass(frozen=True, slots=True)
class Vm:
    """The guest at one moment. `ha` is the CRM's state, empty where HA keeps its hands off."""

    node: str
    vmid: int
    name: str
    status: str
    qmpstatus: str
    pid: int
    lock: str
    ha: str
    memhost_mib: int
    container: bool = False

    @property
    def kind(self) -> str:
        """The API's word for it."""
        return "lxc" if self.container else "qemu"

    @property
    def called(self) -> str:
        return f"{'container' if self.container else 'VM'} {self.vmid}"

    def __str__(self) -> str:
        shown = self.status if self.qmpstatus in ("", self.status) else f"{self.status} ({self.qmpstatus})"
        return f"{self.called} on {self.node} is {shown}" + (f", HA state {self.ha}" if self.ha else "")

    def has(self, goal: str) -> bool:
        """Whether it is "stopped" or "running" and nobody is about to change that: HA's next round would."""
        if goal == "stopped":
            return self.status == "stopped" and (not self.ha or self.ha in _HA_DOWN)
        up = self.container or self.qmpstatus == "running"  # LXC has no such state
        return self.status == "running" and up and self.ha not in _HA_DOWN


def refused(detail: str, **more: Any) -> Outcome:
    """Nothing was done."""
    return Outcome(ok=False, detail=detail, changed=False, **more)


def failed(doing: str, error: ApiError, *, changed: bool = False, clear: bool = True, busy: str = "") -> Outcome:
    says = f"needs {error.privilege}" if error.privilege else f"{error.kind}: {error.message}"
    return Outcome(False, f"{doing}: {says}", changed=changed, clear=clear, busy=busy)


class Sight:
    """The questions that an act asks of one cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.limit: Limit | None = None  # of the act that asks now

    def _ask_s(self) -> float:
        return self.limit.ask_s(ASK_S) if self.limit is not None else ASK_S

    def see(self, vmid: int, container: bool = False) -> Vm | ApiError:
        """The guest on the node where it is now; HA and migration move it between two questions."""
        said: Any = None
        for _ in ("where it is listed", "where it went meanwhile"):
            rows = self._client.get("/cluster/resources", deadline=self._ask_s(), type="vm")
            if isinstance(rows, ApiError):
                return rows
            row = next((row for row in guest_rows(rows) if row.vmid == vmid), None)
            kind = "lxc" if container else "qemu"
            where = path(kind, vmid)
            if row is None or (row.kind is GuestKind.CONTAINER) is not container:
                other = "is a VM" if container else "is a container"
                what = other if row is not None else "is not there, or VM.Audit on it is missing"
                return ApiError(Kind.NOT_THERE, None, f"guest {vmid} {what}", False, where)
            where = path("nodes", row.node, kind, vmid, "status", "current")
            said = self._client.get(where, deadline=self._ask_s())
            if isinstance(said, Mapping):
                return _vm(row.node, vmid, said, container)
            if isinstance(said, ApiError) and said.kind is not Kind.NOT_THERE:
                return said
        return said if isinstance(said, ApiError) else ApiError(Kind.GARBLED, 200, "not an object", False, where)

    def config(self, vm: Vm) -> Mapping[str, Any] | ApiError:
        """What the running QEMU has: without current=1 pending changes are merged in."""
        where = path("nodes", vm.node, vm.kind, vm.vmid, "config")
        said = self._client.get(where, deadline=self._ask_s(), current=1)
        if isinstance(said, (Mapping, ApiError)):
            return said
        return ApiError(Kind.GARBLED, 200, "not an object", False, where)

    def running_tasks(self, vm: Vm) -> tuple[Task, ...] | ApiError:
        """Who works on this guest now. A token without Sys.Audit on the node is shown its own tasks only."""
        found = self.tasks(vm)
        if isinstance(found, ApiError):
            return found
        return tuple(t for t in found if t.running and t.vmid == vm.vmid and t.type not in _CONSOLES)

    def tasks(self, vm: Vm) -> tuple[Task, ...] | ApiError:
        return tasks_of(self._client, vm.node, vm.vmid, self._ask_s())

    def ha_stop_age_s(self, vm: Vm) -> float | None:
        """How long ago HA was last told to stop this guest, if that was its last word; by the node's clock."""
        found = self.tasks(vm)
        words = [t for t in found if t.type in ("hastop", "hastart")] if not isinstance(found, ApiError) else []
        if not words or words[0].type != "hastop":
            return None
        said = self._client.get(path("nodes", vm.node, "time"), deadline=self._ask_s())
        # The answer's own date is that of the node we talk to, whose clock may be another.
        now = number(said.get("time")) if isinstance(said, Mapping) else 0
        return float(max(0, (now or self._client.server_time) - words[0].starttime))

    def host_free_mib(self, node: str) -> Reading[int]:
        said = self._client.get(path("nodes", node, "status"), deadline=self._ask_s())
        if isinstance(said, ApiError):
            return said.unknown()
        memory = said.get("memory") if isinstance(said, Mapping) else None
        if not isinstance(memory, Mapping) or "free" not in memory:
            return Unknown(Why.GARBLED, "the node's status has no memory")
        return Known(number(memory["free"]) // MIB)

    def can_overrule(self) -> bool:
        """Whether `stop` knows overrule-shutdown here."""
        said = self._client.get("/version", deadline=self._ask_s())
        text = str(said.get("version", "")) if isinstance(said, Mapping) else ""
        return tuple(int(part) for part in re.findall(r"\d+", text)[:3]) >= OVERRULE_SINCE


def _vm(node: str, vmid: int, said: Mapping[str, Any], container: bool = False) -> Vm:
    ha = said.get("ha")
    managed = isinstance(ha, Mapping) and flag(ha.get("managed", 0)) and ha.get("state") != "ignored"
    return Vm(
        node=node,
        vmid=vmid,
        name=clean(said.get("name") or "", NAME),
        status=clean(said.get("status") or "unknown", 30),
        qmpstatus=clean(said.get("qmpstatus") or "", 30),
        pid=number(said.get("pid")),
        lock=clean(said.get("lock") or "", 40),
        ha=clean((ha or {}).get("state") or "started", 30) if managed else "",
        memhost_mib=number(said.get("memhost")) // MIB,
        container=container,
    )


def mismatch(vm: Vm, config: Mapping[str, Any], ref: VmRef) -> str:
    """Why this is not the guest that was meant; empty if it is."""
    if ref.smbios_uuid:
        has = vm_config(config, vm.node).smbios_uuid
        if has == ref.smbios_uuid.strip().lower():
            return ""
        return f"{vm.called} has SMBIOS UUID {has or 'none'}, expected {clean(ref.smbios_uuid, 40)}"
    if not ref.name:
        return f"nothing is known to tell {vm.called} by: neither an SMBIOS UUID nor a name"
    wanted = clean(ref.name, NAME)
    return "" if vm.name == wanted else f"{vm.called} is named {vm.name or 'nothing'}, expected {wanted}"
