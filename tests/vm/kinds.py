"""The sorts of machine: a GPU guest whose GPU is a piece of shared memory, a node with an IOMMU, a systemd guest."""

from __future__ import annotations

from pathlib import Path

from tests.lab import files

from . import gpu
from .initramfs import BOOT
from .kernel import tool
from .machine import DISK, Kind


def guest(folder: Path) -> Kind:
    folder.mkdir(parents=True, exist_ok=True)
    built = gpu.create(folder)
    words = {"WORLD": folder / "world", "DRIVER": built.root, "PYTHON": files.interpreter()}
    return Kind(
        "guest",
        devices=[
            "-object", f"memory-backend-file,id=gpu0,share=on,mem-path={folder / 'gpu'},size={gpu.SIZE}",
            "-device", "pcie-root-port,id=port1,chassis=1,slot=1",
            "-device", "ivshmem-plain,memdev=gpu0,bus=port1",
            *_held_disk("port2", 2),
        ],
        options={"nvme_core": "io_timeout=4294967"},
        files={
            "kind": ((BOOT / "guest").read_bytes(), 0o644),
            "env": ("".join(f"{key}='{value}'\n" for key, value in words.items()).encode(), 0o644),
        },
        environment=f"LD_LIBRARY_PATH={built.lib}",
        path=f"{built.bin}:/run/vm/bin",
        fresh=lambda: gpu.was_reset(folder),
    )  # fmt: skip


def node() -> Kind:
    return Kind(
        "node",
        machine="q35,kernel-irqchip=split",
        devices=["-device", "intel-iommu,intremap=on,caching-mode=on", *_held_disk("port1", 1)],
        cmdline="intel_iommu=on",
        modules=["vfio_pci", "vfio_iommu_type1"],
    )


def _held_disk(port: str, slot: int) -> list[str]:
    """A disk on which the monitor can hold a read for as long as it likes: whoever reads it directly is in D state."""
    held = "driver=raw,file.driver=blkdebug,file.image.driver=null-co,file.image.size=64M,file.image.read-zeroes=on"
    return [
        "-drive", f"if=none,id={DISK},{held}",
        "-device", f"pcie-root-port,id={port},chassis={slot},slot={slot}",
        "-device", f"nvme,drive={DISK},serial=held,bus={port}",
    ]  # fmt: skip


def systemd() -> Kind:
    """A guest under a real systemd, with logind, a user's own manager, and units of the lab's."""
    units = [*(BOOT / "units").iterdir(), *(BOOT / "user-units").iterdir()]
    for name in ("systemd", "systemd-logind", "dbus-daemon", "systemd-inhibit"):
        tool(name)
    return Kind(
        "systemd",
        devices=[],
        files={
            "kind": ((BOOT / "systemd").read_bytes(), 0o644),
            **{f"{path.parent.name}/{path.name}": (path.read_bytes(), 0o644) for path in units},
        },
        environment=f"PYTHON={files.interpreter()}",
    )
