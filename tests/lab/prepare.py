"""What `up` writes before and after the guest starts: the folder, the API's configuration, and config.toml."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from . import files
from .driver.state import State, gpu
from .guestproc import cgroup2_mount
from .scenario import merged

# What the documentation asks for: power and audit of the VMs, and to read what a safe start depends on.
RECIPE = (
    ("/vms", ["VM.Audit", "VM.PowerMgmt", "VM.GuestAgent.Audit", "Sys.Audit"], True),
    ("/nodes", ["Sys.Audit"], True),
    ("/storage", ["Datastore.Audit"], True),
    ("/mapping/pci", ["Mapping.Audit"], True),
    ("/", ["Sys.Audit"], False),
)
WHO = ("gpu-recover@pve", "gpu-recover@pve!oncall")  # with privilege separation a token holds what both were given


def folder(path: Path, data: dict[str, Any], *, idle: bool) -> None:
    place = files.free_place()
    gpus = [gpu(index) for index in range(data["gpus"])]
    files.keys(path, place)
    files.world(path, data, gpus, place)
    driver = {key: value for key, value in data["driver"].items() if key != "variant"}
    State.create(path / "world/nvml/state", gpus, **driver).close()
    cgroup = cgroup2_mount(path) / f"gpu-recover-lab-{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    (path / "pve").mkdir()
    files.dump_json(path / "pve.json", pve(path, data, gpus))
    (path / "state").mkdir(exist_ok=True)
    # Last: its presence tells `down` that there is something to take down.
    files.dump_json(
        path / "lab.json",
        {"scenario": data["name"], "idle": idle, "address": place[0], "ssh_port": place[1], "cgroup": str(cgroup)},
    )


def pve(path: Path, data: dict[str, Any], gpus: list[dict[str, Any]]) -> dict[str, Any]:
    guest, own = data["guest"], data["pve"]
    devices = [
        {
            "bdf": f"0000:{0x41 + n:02x}:00.0",
            "vendor": "10de",
            "device": f"{one['pci_device_id'] >> 16:04x}",
            "class": "0302",
            "iommugroup": 30 + n,
            "name": "GB202GL [RTX PRO 6000 Blackwell Server Edition]",
            "vendor_name": "NVIDIA Corporation",
            "subsystem": "10de:204e",
        }
        for n, one in enumerate(gpus)
    ]
    vm = {
        "vmid": guest["vmid"],
        "name": guest["hostname"],
        "node": "pve1",
        "memory_mib": int((guest["total_gib"] + 1) * 1024),
        "status": "running",
        "uptime_s": int(guest["uptime_s"]),
        "smbios_uuid": files.smbios_uuid(guest["hostname"]),
        "mac": files.MAC,
        "hostpci": devices,
        "onboot": True,
    }
    node = {"name": "pve1", "memory_mib": 1048576, "used_mib": 24576}
    base = {
        "directory": str(path / "pve"),
        "nodes": [node],
        "grants": [
            {"who": who, "path": where, "privs": privs, "propagate": below}
            for who in WHO
            for where, privs, below in RECIPE
        ],
        "hooks": {"command": [sys.executable, "-B", "-m", "tests.lab", "power", "--dir", str(path)]},
    }
    rest = {key: value for key, value in own.items() if key not in ("vm", "vms")}
    return merged(base, {**rest, "vms": [merged(vm, own.get("vm", {})), *own.get("vms", [])]})


def config(path: Path, data: dict[str, Any]) -> None:
    lab = json.loads((path / "lab.json").read_text())
    server = json.loads((path / "pve/server.json").read_text())
    own = data["config"]
    address = own.get("address", lab["address"])
    lines = [
        "[clusters.pve]",
        f"urls = [{toml(server['url'])}]",
        f"token_id = {toml(server['token_id'])}",
        f"token_secret = {{ file = {toml(server['secret_file'])} }}",
        f"ca_file = {toml(server['ca_file'])}",
        "",
        "[ssh]",
        'user = "root"',
        f"port = {own.get('port', lab['ssh_port'])}",
        f"identity_file = {toml(str(path / 'id_ed25519'))}",
        f"known_hosts = {toml(str(path / 'known_hosts'))}",
        "",
        f"[targets.{data['guest']['hostname']}]",
        'cluster = "pve"',
        f"vmid = {data['guest']['vmid']}",
        f"address = {toml(address)}",
        f"playbook = {toml(str(path / 'playbook.toml'))}",
        f"services = {toml(own['services'])}",
        f"health = {toml(own.get('health', 'http://' + lab['address'] + ':30000/health'))}",
        f"protect = {toml(own['protect'])}",
    ]
    if "expect" in own:
        lines += [
            "",
            f"[targets.{data['guest']['hostname']}.expect]",
            *(f"{key} = {toml(value)}" for key, value in own["expect"].items()),
        ]
    files.write(path / "config.toml", "\n".join(lines) + "\n")
    files.write(path / "playbook.toml", playbook(data["playbook"]))


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value) + "]"
    return json.dumps(str(value))


def playbook(data: dict[str, Any]) -> str:
    lines = [f"{key} = {toml(value)}" for key, value in data.items() if not isinstance(value, dict) and key != "rung"]
    for name in ("limits", "after", "watch"):
        if data.get(name):
            lines += ["", f"[{name}]", *(f"{key} = {toml(value)}" for key, value in data[name].items())]
    order = data.get("ladder", {})
    for step, params in order.items():
        if params.get("use", True):
            lines += [
                "",
                "[[rung]]",
                f"step = {toml(step)}",
                *(f"{key} = {toml(value)}" for key, value in params.items() if key != "use"),
            ]
    return "\n".join(lines) + "\n"
