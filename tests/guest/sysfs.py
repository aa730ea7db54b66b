"""A Proxmox node's files as a folder: PCI devices below their ports, IOMMU groups, /run and the kernel's log."""

from __future__ import annotations

import os
from pathlib import Path

VMID = 174
GOOD = bytes.fromhex("de10b12b") + bytes(60)
DEAD = b"\xff" * 64


class Node:
    """`root` is what the agent is given. Files that the kernel would answer are plain files: what was written stays."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pci = root / "sys/bus/pci/devices"
        self.pci.mkdir(parents=True)
        (root / "sys/bus/pci/rescan").touch()
        (root / "dev/vfio").mkdir(parents=True)
        (root / "run/qemu-server").mkdir(parents=True)
        self.log = root / "dev/kmsg"
        self.log.touch()
        self._usec = 1_000_000

    def port(self, address: str, *, subordinate: bool = True, under: str = "") -> Path:
        folder = self._device(address, under or "pci0000:40", {"class": "0x060400", "vendor": "0x1022"})
        (folder / "rescan").touch()
        if subordinate:
            (folder / "reset_subordinate").touch()
        return folder

    def function(self, address: str, port: str = "", *, group: int = 0, methods: str | None = "flr bus",
                 driver: str = "vfio-pci", vendor: str = "0x10de", kind: str = "0x030200", runtime: str = "active",
                 config: bytes = GOOD) -> Path:  # fmt: skip
        texts = {"class": kind, "vendor": vendor, "device": "0x2bb1", "power_state": "D0", "d3cold_allowed": "1",
                 "current_link_width": "16", "max_link_width": "16", "current_link_speed": "32.0 GT/s"}  # fmt: skip
        folder = self._device(address, port or "pci0000:40", texts)
        (folder / "power").mkdir()
        (folder / "power/runtime_status").write_text(runtime + "\n")
        (folder / "config").write_bytes(config)
        for name in ("reset", "remove"):
            (folder / name).touch()
        if methods is not None:
            (folder / "reset_method").write_text(methods + "\n")
        members = self.root / f"sys/kernel/iommu_groups/{group}/devices"
        members.mkdir(parents=True, exist_ok=True)
        (members / address).symlink_to(folder)
        (folder / "iommu_group").symlink_to(members.parent)
        (self.root / f"dev/vfio/{group}").touch()
        if driver:
            self.bind(address, driver)
        return folder

    def bind(self, address: str, driver: str) -> None:
        where = self.root / "sys/bus/pci/drivers" / driver
        where.mkdir(parents=True, exist_ok=True)
        (self.pci / address).resolve().joinpath("driver").unlink(missing_ok=True)
        (self.pci / address).resolve().joinpath("driver").symlink_to(where)

    def _device(self, address: str, above: str, texts: dict[str, str]) -> Path:
        parent = (self.pci / above).resolve() if (self.pci / above).exists() else self.root / "sys/devices" / above
        folder = parent / address
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text + "\n")
        (self.pci / address).symlink_to(folder)
        return folder

    def says(self, text: str) -> None:
        self._usec += 1000
        with self.log.open("a") as log:
            log.write(f"4,{self._usec},{self._usec},-;{text}\n")

    def huge_pages(self, node: int, kib: int, **counts: int | str) -> None:
        folder = self.root / f"sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB"
        folder.mkdir(parents=True)
        for name, count in counts.items():
            (folder / f"{name}_hugepages").write_text(f"{count}\n")

    def reserve(self, *lines: str) -> None:
        (self.root / "run/qemu-server/pci-id-reservations").write_text("".join(line + "\n" for line in lines))

    def wrote(self, path: str) -> str:
        return (self.pci / path).read_text()

    def blocks(self, path: str) -> None:
        """A write to it does not come back: a pipe that nobody reads, and that is full."""
        where = (self.pci / path).resolve()
        where.unlink()
        os.mkfifo(where)
