"""Everything that a lab folder holds before its guest starts: keys, and what lies over its /proc, /sys, /dev, /etc."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from .driver import build

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
PATH = "/run/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DRIVER = "570.148.08"
MAC = "BC:24:11:00:01:74"
FOLDERS = (
    "src/tests",
    "reg",
    "status",
    "spec",
    "logs",
    "docker",
    "launches",
    "tmp",
    "root",
    "etc",
    "dev",
    "sys",
    "proc/driver",
    "nvml",
)


def free_place() -> tuple[str, int]:
    """An address of 127/8 where a port for sshd and port 30000 for the engine are free, and the sshd port."""
    for _ in range(200):
        raw = os.urandom(3)
        address = f"127.{64 + raw[0] % 128}.{raw[1]}.{2 + raw[2] % 250}"
        try:
            with socket.socket() as ssh, socket.socket() as http:
                ssh.bind((address, 0))
                http.bind((address, 30000))
                return address, int(ssh.getsockname()[1])
        except OSError:
            continue
    raise RuntimeError("no free address in 127.0.0.0/8")


def smbios_uuid(name: str) -> str:
    raw = hashlib.sha256(f"smbios {name}".encode()).hexdigest()
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:32]}"


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def keys(folder: Path, place: tuple[str, int]) -> None:
    """One client key, one host key, and the known_hosts line that joins them."""
    ssh = folder / "world" / "ssh"
    ssh.mkdir(parents=True)
    for path in (folder / "id_ed25519", ssh / "host_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(path)],
            check=True,
            stdin=subprocess.DEVNULL,
        )
    write(ssh / "authorized_keys", (folder / "id_ed25519.pub").read_text())
    kind, key = (ssh / "host_key.pub").read_text().split()[:2]
    write(folder / "known_hosts", f"[{place[0]}]:{place[1]} {kind} {key}\n")
    write(
        ssh / "sshd_config",
        f"""\
ListenAddress {place[0]}:{place[1]}
HostKey /run/lab/ssh/host_key
AuthorizedKeysFile /run/lab/ssh/authorized_keys
PidFile /run/sshd.pid
UsePAM no
StrictModes no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
MaxStartups 500:30:1000
SetEnv SHLVL=2 PATH={PATH}
Subsystem sftp internal-sftp
""",
    )


def interpreter() -> str:
    """A real interpreter for the guest: no version manager's shim, and no package beyond the standard library."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else os.path.realpath(sys.executable)


def etc(world: Path, hostname: str) -> None:
    write(
        world / "etc/passwd",
        "root:x:0:0:root:/run/lab/root:/bin/sh\nsshd:x:101:65534::/run/sshd:/usr/sbin/nologin\n"
        "alice:x:1000:1000:Alice:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    )
    write(world / "etc/group", "root:x:0:\nalice:x:1000:\nnogroup:x:65534:\n")
    write(world / "etc/hostname", hostname + "\n")
    write(world / "etc/machine-id", smbios_uuid(hostname).replace("-", "") + "\n")
    # In front of the machine's own list: a machine that has a real driver must not win inside the guest.
    write(world / "etc/ld.so.conf", "/run/lab/lib\ninclude /etc/ld.so.conf\n")


def bins(world: Path, python: str) -> None:
    folder = world / "bin"
    folder.mkdir()
    for name in ("python3", "python"):
        (folder / name).symlink_to(python)
    for script in (Path(__file__).parent / "guest" / "bin").iterdir():
        if script.suffix != ".py" and script.is_file():
            (folder / script.name).symlink_to(f"/run/lab/src/tests/lab/guest/bin/{script.name}")
    # The wrapper that the build writes names a folder of the machine, which the guest may not see.
    start = 'import sys; sys.path.insert(0, "/run/lab"); from fakedriver.nvidia_smi import main; main()'
    write(
        folder / "nvidia-smi", f"#!/bin/sh\nexec {os.path.realpath(sys.executable)} -I -S -c '{start}' \"$@\"\n", 0o755
    )


def devices(world: Path, count: int) -> None:
    for name in ["nvidiactl", "nvidia-uvm", "nvidia-modeset", "kmsg", *(f"nvidia{n}" for n in range(count))]:
        write(world / "dev" / name, "", 0o666)


def procfs(world: Path, gpus: list[dict[str, Any]]) -> None:
    version = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    write(world / "proc/driver/nvidia/version", version)
    write(world / "proc/driver/nvidia/params", "ResmanDebugLevel: 4294967295\nEnableGpuFirmware: 18\n")
    for gpu in gpus:
        bdf = gpu["bus_id"][4:].lower()
        write(
            world / f"proc/driver/nvidia/gpus/{bdf}/information",
            (
                f"Model: \t\t {gpu['name']}\nIRQ:   \t\t {40 + gpu['minor']}\n"
                f"GPU UUID: \t {gpu['uuid']}\nVideo BIOS: \t {gpu['vbios']}\n"
                f"Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\n"
                f"Bus Location: \t {bdf}\nDevice Minor: \t {gpu['minor']}\n"
                f"GPU Firmware: \t {DRIVER}\nGPU Excluded:\t No\n"
            ),
        )
        write(world / f"proc/driver/nvidia/gpus/{bdf}/power", "Runtime D3 status:          Disabled by default\n")
    write(
        world / "proc/modules-at-boot",
        (
            "nvidia_uvm 1765376 {n} - Live 0xffffffffc1a00000 (OE)\n"
            "nvidia_modeset 1445888 0 - Live 0xffffffffc1800000 (OE)\n"
            "nvidia 11485184 {n} nvidia_uvm,nvidia_modeset, Live 0xffffffffc0a00000 (OE)\n"
            "virtio_net 77824 0 - Live 0xffffffffc0900000\n"
        ).replace("{n}", "0"),
    )


def sysfs(world: Path, gpus: list[dict[str, Any]], uuid: str) -> None:
    root = world / "sys"
    for folder in (
        "bus/pci/devices",
        "bus/pci/drivers/nvidia",
        "class/dmi",
        "module/nvidia/parameters",
        "fs/cgroup",
        "kernel/mm/hugepages",
        "class/drm",
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
    dmi = root / "devices/virtual/dmi/id"
    for name, text in {
        "product_uuid": uuid,
        "product_name": "Standard PC (Q35 + ICH9, 2009)",
        "sys_vendor": "QEMU",
        "chassis_vendor": "QEMU",
        "bios_vendor": "SeaBIOS",
        "product_serial": "",
    }.items():
        write(dmi / name, text + "\n")
    for name, mac in (("lo", "00:00:00:00:00:00"), ("eth0", MAC.lower())):
        write(root / f"class/net/{name}/address", mac + "\n")
        write(root / f"class/net/{name}/operstate", "up\n")
    (root / "class/dmi/id").symlink_to("../../devices/virtual/dmi/id")
    write(root / "module/nvidia/version", DRIVER + "\n")
    write(root / "module/nvidia/refcnt", "0\n")
    for gpu in gpus:
        bdf = gpu["bus_id"][4:].lower()
        device = root / f"devices/pci0000:00/{bdf}"
        words = {
            "vendor": "0x10de",
            "device": f"0x{gpu['pci_device_id'] >> 16:04x}",
            "class": "0x030200",
            "subsystem_vendor": "0x10de",
            "subsystem_device": f"0x{gpu['pci_subsystem_id'] >> 16:04x}",
            "current_link_width": gpu["link_width"],
            "max_link_width": gpu["link_width_max"],
            "current_link_speed": "32.0 GT/s PCIe",
            "max_link_speed": "32.0 GT/s PCIe",
            "enable": 1,
            "numa_node": 0,
            "power_state": "D0",
            "reset_method": "flr bus",
            "irq": 40 + gpu["minor"],
            "revision": "0xa1",
        }
        for name, value in words.items():
            write(device / name, f"{value}\n")
        (root / f"bus/pci/devices/{bdf}").symlink_to(f"../../../devices/pci0000:00/{bdf}")
        (device / "driver").symlink_to("../../../bus/pci/drivers/nvidia")
        (root / f"bus/pci/drivers/nvidia/{bdf}").symlink_to(f"../../../../devices/pci0000:00/{bdf}")


def world(folder: Path, scenario: dict[str, Any], gpus: list[dict[str, Any]], place: tuple[str, int]) -> None:
    root = folder / "world"
    for name in FOLDERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    built = build.build(HERE / ".build" / scenario["driver"]["variant"], variant=scenario["driver"]["variant"])
    for part in ("lib", "fakedriver"):
        shutil.copytree(built.root / part, root / part)
    etc(root, scenario["guest"]["hostname"])
    bins(root, scenario["guest"].get("python") or interpreter())
    devices(root, len(gpus))
    procfs(root, gpus)
    sysfs(root, gpus, smbios_uuid(scenario["guest"]["hostname"]))


def dump_json(path: Path, value: Any) -> None:
    draft = path.with_name(path.name + ".new")
    draft.write_text(json.dumps(value, indent=1))
    os.replace(draft, path)
