# SPDX-License-Identifier: AGPL-3.0-or-later
"""The VMs, devices and nodes are what the configuration says and nothing is invented where it is silent."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from typing import Any

from fakepve import FakeVm
from fakepve.model import TaskError

from .faults import STOPS

_PLAIN = ("start_secs", "stop_secs", "obeys_shutdown", "zombie", "node", "name", "qmpstatus", "template", "ha_node")
AGENTS = ("none", "answers", "hangs", "stalls", "not-running")
_BDF = re.compile(r"^(?:([0-9a-f]{4}):)?([0-9a-f]{2}:[0-9a-f]{2})(?:\.([0-7]))?$")
_pids = itertools.count(41000)


@dataclass(slots=True)
class PciDevice:
    """A PCI function of a node."""

    bdf: str
    vendor: str = "10de"
    device: str = "2bb5"
    pci_class: str = "0302"
    iommugroup: int = -1
    name: str = "GB202GL [RTX PRO 6000 Blackwell Server Edition]"
    vendor_name: str = "NVIDIA Corporation"
    subsystem: str = "10de:204b"
    reset: str = "ok"
    gone: bool = False

    @classmethod
    def parse(cls, data: dict[str, Any]) -> PciDevice:
        values = dict(data)
        if "class" in values:
            values["pci_class"] = values.pop("class")
        return cls(**values)

    def change(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            key = "pci_class" if key == "class" else key
            if key not in self.__slots__:
                raise ValueError(f"device: unknown key {key!r}")
            setattr(self, key, value)

    def row(self, verbose: bool = True) -> dict[str, Any]:
        """As GET hardware/pci shows it."""
        row: dict[str, Any] = {
            "id": self.bdf,
            "class": "0x" + self.pci_class.ljust(6, "0"),
            "vendor": "0x" + self.vendor,
            "device": "0x" + self.device,
            "iommugroup": self.iommugroup,
        }
        if verbose:
            sub_vendor, _, sub_device = self.subsystem.partition(":")
            row.update(
                vendor_name=self.vendor_name,
                device_name=self.name,
                subsystem_vendor="0x" + sub_vendor,
                subsystem_device="0x" + sub_device,
            )
        return row


class LabVm(FakeVm):  # type: ignore[misc]
    """A VM with what a recovery looks at."""

    def __init__(self, data: dict[str, Any]) -> None:
        known = {
            "vmid",
            "name",
            "node",
            "memory_mib",
            "status",
            "qmpstatus",
            "uptime_s",
            "lock",
            "tags",
            "ha",
            "agent",
            "template",
            "protection",
            "onboot",
            "pool",
            "smbios_uuid",
            "mac",
            "hostpci",
            "config",
            "pending",
            "start_secs",
            "stop_secs",
            "obeys_shutdown",
            "stop_how",
            "zombie",
            "ha_node",
        }
        unknown = set(data) - known
        if unknown:
            raise ValueError(f"vm {data.get('vmid')}: unknown keys {sorted(unknown)}")
        vmid = int(data["vmid"])
        super().__init__(
            vmid,
            str(data["name"]),
            node=data.get("node", "pve1"),
            pool=data.get("pool"),
            template=bool(data.get("template", False)),
        )
        self.zombie = False
        self.ha_node: str | None = None
        self.starts = self.stops = self.resets = 0
        self.stop_how = "quit"
        self.agent_mode = "answers"
        self.obeys_shutdown = True
        self.start_secs = self.stop_secs = 1
        self.config.update(
            {
                "memory": str(data.get("memory_mib", 1024)),
                "cores": "4",
                "machine": "q35",
                "bios": "ovmf",
                "ostype": "l26",
                "scsi0": f"local-lvm:vm-{vmid}-disk-0,size=100G",
                "net0": f"virtio={data.get('mac', _mac(vmid))},bridge=vmbr0",
                "smbios1": f"uuid={data.get('smbios_uuid', _uuid(vmid))}",
            }
        )
        self.change(
            {
                key: value
                for key, value in {"agent": "answers", **data}.items()
                if key
                not in (
                    "vmid",
                    "name",
                    "node",
                    "memory_mib",
                    "mac",
                    "smbios_uuid",
                    "hostpci",
                    "pool",
                    "template",
                    "uptime_s",
                    "status",
                    "qmpstatus",
                )
            }
        )
        self.mark(str(data.get("status", "running")), data.get("qmpstatus"), float(data.get("uptime_s", 86400)))

    @property
    def memory_mib(self) -> int:
        return int(str(self.config.get("memory", 512)).split("=")[-1])

    def mark(self, status: str, qmpstatus: str | None = None, uptime_s: float = 0.0) -> None:
        """Running or stopped, with everything status/current derives from it."""
        self.status, self.qmpstatus = status, qmpstatus or status
        running = status == "running"
        self.started_at = time.time() - uptime_s if running else None
        for key in ("pid", "mem", "memhost", "running-machine"):
            self.stats.pop(key, None)
        if running:
            size = self.memory_mib << 20
            self.stats.update(
                {"pid": next(_pids), "mem": size * 97 // 100, "memhost": size, "running-machine": "pc-q35-10.1+pve0"}
            )

    def change(self, values: dict[str, Any]) -> None:
        """Applies configuration keys; the op `vm` comes here too."""
        for key, value in values.items():
            if key in _PLAIN:
                setattr(self, key, value)
                if key == "name":
                    self.config["name"] = value
            elif key == "status":
                if value != self.status:
                    self.mark(value)
            elif key == "lock":
                self.lock = value
                _set(self.config, "lock", value)
            elif key == "ha":
                self.ha_state = value
            elif key == "agent":
                self._agent(value)
            elif key == "stop_how":
                if value not in STOPS:
                    raise ValueError(f"stop_how {value!r} is none of {STOPS}")
                self.stop_how = value
            elif key == "pending":
                self.pending = dict(value)
            elif key == "config":
                for name, text in value.items():
                    _set(self.config, name, text)
            elif key == "memory_mib":
                self.config["memory"] = str(value)
            elif key in ("protection", "onboot"):
                _set(self.config, key, 1 if value else None)
            elif key == "tags":
                _set(self.config, "tags", value or None)
            else:
                raise ValueError(f"vm: unknown key {key!r}")

    def _agent(self, mode: str) -> None:
        if mode not in AGENTS:
            raise ValueError(f"agent {mode!r} is none of {AGENTS}")
        self.agent_mode = mode
        self.agent: dict[str, Any] | None = None if mode in ("none", "not-running") else {}
        _set(self.config, "agent", None if mode == "none" else "1")

    def hostpci(self) -> list[tuple[str, dict[str, str]]]:
        """(key, properties) of hostpci0..; the default key is `host`."""
        found = []
        for key in sorted(k for k in self.config if re.fullmatch(r"hostpci\d+", k)):
            props = {}
            for part in str(self.config[key]).split(","):
                name, equals, value = part.partition("=")
                props[name if equals else "host"] = value if equals else name
            found.append((key, props))
        return found

    def view(self) -> dict[str, Any]:
        """For the op `state`."""
        return {
            "vmid": self.vmid,
            "name": self.name,
            "node": self.node,
            "status": self.status,
            "qmpstatus": self.qmpstatus,
            "lock": self.lock,
            "ha": self.ha_state,
            "zombie": self.zombie,
            "pid": self.stats.get("pid"),
            "starts": self.starts,
            "stops": self.stops,
            "resets": self.resets,
            "memory_mib": self.memory_mib,
            "agent": self.agent_mode,
            "config": dict(self.config),
            "pending": dict(self.pending),
            "flock": self.lock_holder,
        }


def devices_of(vm: LabVm, devices: dict[str, PciDevice], mappings: dict[str, dict[str, Any]]) -> list[PciDevice]:
    """The functions a start of this VM takes, or PVE's task error (PVE::QemuServer::PCI parse_hostpci)."""
    found: list[PciDevice] = []
    for _key, props in vm.hostpci():
        if "mapping" in props:
            addresses = _mapped(props["mapping"], vm.node, mappings)
        else:
            addresses = props.get("host", "").split(";")
        for address in addresses:
            functions = [device for device in devices.values() if not device.gone and _covers(address, device.bdf)]
            if not functions:
                if "mapping" in props:
                    raise TaskError(
                        f"PCI device mapping invalid (hardware probably changed): pci device '{address}' not found"
                    )
                raise TaskError(f"no PCI device found for '{address}'")
            found += functions
    return found


def _mapped(name: str, node: str, mappings: dict[str, dict[str, Any]]) -> list[str]:
    for entry in mappings.get(name, {}).get("map", ()):
        props = dict(part.partition("=")[::2] for part in entry.split(","))
        if props.get("node") == node:
            return str(props["path"]).split(";")
    raise TaskError(f"PCI device mapping not found for '{name}'")


def _covers(address: str, bdf: str) -> bool:
    match = _BDF.match(address.lower())
    if match is None:
        return False
    wanted = f"{match[1] or '0000'}:{match[2]}"
    return bdf == f"{wanted}.{match[3]}" if match[3] else bdf.startswith(wanted + ".")


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        config.pop(key, None)
    else:
        config[key] = value


def _mac(vmid: int) -> str:
    return f"BC:24:11:{(vmid >> 16) & 255:02X}:{(vmid >> 8) & 255:02X}:{vmid & 255:02X}"


def _uuid(vmid: int) -> str:
    return f"00000000-0000-4000-8000-{vmid:012d}"
