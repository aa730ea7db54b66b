"""The hypervisor's API drives the real QEMU: what it calls stopped, started or reset really is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recover.edge.proxmox.client import Client, ClusterSettings
from tests.lab.prepare import RECIPE, WHO
from tests.lab.pve.server import PveServer

from .machine import MAC, Machine

VMID = 174
GPU = {"bdf": "0000:41:00.0", "vendor": "10de", "device": "2bb5", "class": "0302", "iommugroup": 14}


class QemuHooks:
    """PowerHooks of tests/lab/pve."""

    def __init__(self, vm: Machine, obeys_within_s: float) -> None:
        self._vm, self._obeys_within_s = vm, obeys_within_s

    def start(self, vmid: int) -> None:
        self._vm.start()

    def stop(self, vmid: int) -> None:
        self._vm.stop()

    def reset(self, vmid: int) -> None:
        self._vm.reset()

    def shutdown(self, vmid: int) -> bool:
        return self._vm.shutdown(self._obeys_within_s)


def api(vm: Machine, folder: Path, obeys_within_s: float) -> PveServer:
    """`obeys_within_s`: so long the guest is given to power off, in place of the time-out that the API was told."""
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
    grants = [
        {"who": who, "path": where, "privs": privs, "propagate": below} for who in WHO for where, privs, below in RECIPE
    ]
    node = {"name": "pve1", "memory_mib": 65536, "used_mib": 4096}
    configured = {"nodes": [node], "vms": [row], "grants": grants, "time_scale": 0.05}
    return PveServer(configured, folder, QemuHooks(vm, obeys_within_s))


def client(server: PveServer) -> Client:
    settings: dict[str, Any] = {"ca_file": server.ca_file, "token_id": server.token_id}
    return Client(ClusterSettings(urls=(server.url,), secret=lambda: server.secret, timeout=10.0, **settings))
