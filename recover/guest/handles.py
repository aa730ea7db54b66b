"""What an open file of a process is: a node of the NVIDIA driver, by number or by name, or a TCP socket with its ends."""

import os

from recover.guest.wire import at, listdir, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_PLAIN = ("/dev/shm/", "/dev/pts/", "/dev/mqueue", "/dev/hugepages", "/dev/null", "/dev/urandom")


class Nodes:
    """Knows an NVIDIA device node by its number or by its path: containers rename nodes, name spaces lack numbers."""

    def __init__(self, pci: "list[dict[str, Any]]") -> None:
        self.majors = {195: "nvidia"}
        for line in read_or("/proc/devices").splitlines():
            parts = line.split()
            if len(parts) == 2 and parts[0].isdigit() and parts[1].startswith("nvidia"):
                self.majors[int(parts[0])] = parts[1]
        self.drm = {"/dev/dri/" + name for gpu in pci for name in gpu.get("drm", ())}

    def name(self, target: str, path: str) -> "Optional[str]":
        """The short name of the NVIDIA node behind the open file `path` whose link says `target`."""
        plain = target[: -len(" (deleted)")] if target.endswith(" (deleted)") else target
        if plain.startswith("/dev/nvidia"):
            return plain[len("/dev/") :]
        if not plain.startswith("/dev/") or plain.startswith(_PLAIN):
            return None  # only /dev is ever stat'ed: a network file system must not be touched
        if plain in self.drm:
            return plain[len("/dev/") :]
        try:
            info = os.stat(path)
        except OSError:
            return None
        if info.st_mode & 0o170000 != 0o020000:
            return None
        return self._by_number(os.major(info.st_rdev), os.minor(info.st_rdev))

    def _by_number(self, major: int, minor: int) -> "Optional[str]":
        kind = self.majors.get(major)
        if kind is None:
            return None
        if major == 195 or kind in ("nvidia", "nvidia-frontend"):
            return {255: "nvidiactl", 254: "nvidia-modeset"}.get(minor, "nvidia%d" % minor)
        return {"nvidia-uvm": "nvidia-uvm" if minor == 0 else "nvidia-uvm-tools"}.get(kind, "%s/%d" % (kind, minor))


def addresses(table: str) -> "dict[int, tuple[str, str, int, str]]":
    """inode -> (state, local address, local port, remote address) of a /proc/net/tcp or tcp6 text."""
    found = {}
    for line in table.splitlines()[1:]:
        f = line.split()
        if len(f) > 9 and f[9].isdigit():
            local, port = f[1].rsplit(":", 1)
            found[int(f[9])] = (f[3], _ip(local), int(port, 16), _ip(f[2].rsplit(":", 1)[0]))
    return found


def _ip(text: str) -> str:
    """The kernel prints each 32-bit word in host order; x86 and arm64 guests are little-endian."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    if len(raw) == 4:
        return ".".join(str(b) for b in raw)
    if raw[:12] == b"\0" * 10 + b"\xff\xff":
        return ".".join(str(b) for b in raw[12:])
    import socket

    return socket.inet_ntop(socket.AF_INET6, raw)


class Sockets:
    """TCP sockets of each network name space that is met, read once, and the addresses that are its own."""

    def __init__(self) -> None:
        self.tables = {}  # type: dict[str, tuple[dict[int, tuple[str, str, int, str]], set[str]]]

    def of(self, pid: int) -> "tuple[dict[int, tuple[str, str, int, str]], set[str]]":
        try:
            space = os.readlink("/proc/%d/ns/net" % pid)
        except OSError:
            return {}, set()
        if space not in self.tables:
            table = {}
            for name in ("tcp", "tcp6"):
                table.update(addresses(read_or("/proc/%d/net/%s" % (pid, name))))
            self.tables[space] = table, {entry[1] for entry in table.values()}
        return self.tables[space]


def drm_of_gpus() -> "list[str]":
    """Names below /dev/dri of NVIDIA's GPUs; no register of a device is read for it."""
    found = []  # type: list[str]
    for name in listdir(at("/sys/bus/pci/devices")):
        folder = at("/sys/bus/pci/devices/%s/" % name)
        if read_or(folder + "vendor").strip() == "0x10de":
            found += listdir(folder + "drm")
    return found
