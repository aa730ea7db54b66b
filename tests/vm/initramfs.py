"""The initramfs is written by this file alone (cpio's `newc` form), from busybox, modules and the files given."""

from __future__ import annotations

import stat
from pathlib import Path, PurePath

from .kernel import Kernel, load_order, tool

BOOT = Path(__file__).parent / "boot"
MODULES = ["virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay", "nvme", "button", "evdev"]
FOLDERS = ["bin", "dev", "proc", "sys", "run", "lower", "upper", "root", "modules", "vm"]


class Cpio:
    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._number = 0

    def add(self, name: str, mode: int, data: bytes = b"") -> None:
        self._number += 1
        fields = [self._number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        self._parts += [head + bytes(-len(head) % 4), data + bytes(-len(data) % 4)]

    def folder(self, name: str) -> None:
        self.add(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int = 0o644) -> None:
        self.add(name, stat.S_IFREG | mode, data)

    def link(self, name: str, to: str) -> None:
        self.add(name, stat.S_IFLNK | 0o777, to.encode())

    def bytes(self) -> bytes:
        self.add("TRAILER!!!", 0)
        return b"".join(self._parts)


def build(kernel: Kernel, modules: list[str], options: dict[str, str], files: dict[str, tuple[bytes, int]]) -> bytes:
    """`files` (name -> data, mode) end up in /run/vm of the guest; `options` are module parameters."""
    out = Cpio()
    for name in FOLDERS:
        out.folder(name)
    out.file("bin/busybox", Path(tool("busybox")).read_bytes(), 0o755)
    out.link("bin/sh", "busybox")
    out.file("init", (BOOT / "init").read_bytes(), 0o755)
    lines = []
    for path in load_order(kernel, [*MODULES, *modules]):
        out.file(f"modules/{path.name}", path.read_bytes())
        lines.append(f"insmod /modules/{path.name} {options.get(path.name.split('.')[0].replace('-', '_'), '')}")
    out.file("modules/load", "\n".join([*lines, ""]).encode())
    for folder in sorted({str(parent) for name in files for parent in PurePath(name).parents} - {"."}):
        out.folder(f"vm/{folder}")
    for name, (data, mode) in files.items():
        out.file(f"vm/{name}", data, mode)
    return out.bytes()
