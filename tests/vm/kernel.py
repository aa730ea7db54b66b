"""What QEMU boots is Debian's own kernel and modules as they are installed here; what is missing is said by package."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

BOOT, MODULES = Path("/boot"), Path("/lib/modules")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEMD = "/lib/systemd"  # where its daemons lie
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "setpriv": "util-linux",
    "systemd": "systemd",
    "systemd-logind": "systemd",
    "systemd-inhibit": "systemd",
    "dbus-daemon": "dbus",
}


class Missing(Exception):
    """The machine cannot boot a guest; the text says which package it lacks. Never a reason to skip."""


@dataclass(frozen=True, slots=True)
class Kernel:
    release: str
    image: Path
    modules: Path


def tool(name: str) -> str:
    found = shutil.which(name, path=f"{PATH}:{SYSTEMD}")
    if found is None:
        raise Missing(f"{name} is not here: install the Debian package {PACKAGES[name]} (`tools/setup lab` does it)")
    return found


def kernel() -> Kernel:
    """The newest installed kernel that has 9p as a module: the cloud flavour does not."""
    found = []
    for image in BOOT.glob("vmlinuz-*"):
        release = image.name.removeprefix("vmlinuz-")
        modules = MODULES / release
        if (modules / "modules.dep").is_file() and list((modules / "kernel/fs/9p").glob("9p.ko*")):
            found.append(Kernel(release, image, modules))
    if not found:
        raise Missing("no kernel with 9p in /boot: install the Debian package linux-image-amd64 (`tools/setup lab`)")
    return max(found, key=lambda one: [int(n) if n.isdigit() else 0 for n in one.release.replace("-", ".").split(".")])


def load_order(kernel: Kernel, names: list[str]) -> list[Path]:
    """The files of these modules and of all that they need, each after what it needs. Built-in ones are left out."""
    needs = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {_name(path): path for path in needs}
    builtin = {
        Path(p).name.split(".")[0].replace("-", "_") for p in (kernel.modules / "modules.builtin").read_text().split()
    }
    order: list[str] = []
    for name in names:
        if name in builtin:
            continue
        if name not in by_name:
            raise Missing(f"kernel {kernel.release} has no module {name}")
        for path in [*reversed(needs[by_name[name]]), by_name[name]]:
            if path not in order:
                order.append(path)
    return [kernel.modules / path for path in order]


def _name(path: str) -> str:
    return Path(path).name.split(".")[0].replace("-", "_")
