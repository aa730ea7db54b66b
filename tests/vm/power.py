"""The hypervisor's API drives the real QEMU: what it calls stopped, started or reset really is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recover.edge.proxmox.client import Client, ClusterSettings
from tests.lab.pve.server import PveServer

from .machine import MAC, Machine

VMID = 174
GPU = {"bdf": "0000:41:00.0", "vendor": "10de", "device": "2bb5", "class": "0302", "iommugroup": 14}
OBEY_S = 12.0  # so long a guest may take to power off; a healthy one takes 2 s here


class QemuHooks:
    """PowerHooks of tests/lab/pve."""

    def __init__(self, vm: Machine) -> None:
        self._vm = vm

    def start(self, vmid: int) -> None:
        self._vm.start()

    def stop(self, vmid: int) -> None:
        self._vm.stop()

    def reset(self, vmid: int) -> None:
        self._vm.reset()

    def shutdown(self, vmid: int) -> bool:
        return self._vm.shutdown(OBEY_S)


def api(vm: Machine, folder: Path) -> PveServer:
    row = {
        "vmid": VMID,
        "name": vm.name,
        "node": "pve1",
        "memory_mib": vm.kind.memory_mib,
        "smbios_uuid": vm.uuid,
        "mac": MAC.upper(),
        "hostpci": [GPU],
        "onboot": True,
    }
    return PveServer({"vms": [row], "time_scale": 0.05}, folder, QemuHooks(vm))


def client(server: PveServer) -> Client:
    settings: dict[str, Any] = {"ca_file": server.ca_file, "token_id": server.token_id}
    return Client(ClusterSettings(urls=(server.url,), secret=lambda: server.secret, timeout=10.0, **settings))
