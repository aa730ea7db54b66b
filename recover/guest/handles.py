"""What an open file of a process is: a node of the NVIDIA driver, by number or by name, or a TCP socket with its ends."""

import os

from recover.guest.wire import at, listdir, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_LOWEST = tuple(str(number) for number in range(16))
_TRIES = 3
_PLAIN = ("/dev/shm/", "/dev/pts/", "/dev/mqueue", "/dev/hugepages", "/dev/null", "/dev/urandom")


class Nodes:
    """Knows an NVIDIA device node by its number or by its path: containers rename nodes, name spaces lack numbers."""

    def __init__(self, pci: "list[dict[str, Any]]") -> None:
        self.majors = {195: "nvidia"}
        for line in read_or("/proc/devices").splitlines():
            parts = line.split()
            if len(parts) == 2 and whole(parts[0]) and parts[1].startswith("nvidia"):
                self.majors[whole(parts[0])] = parts[1]
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


def targets(path: str) -> "list[tuple[str, str]]":
    """(number, what it is) of each open file. Since Linux 6.2 the folder's size is their count (proc_pid_fd(5)): where
    the lowest numbers are all there are, the kernel need not list them."""
    folder = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        count = os.fstat(folder).st_size
        if 0 < count <= len(_LOWEST):
            try:
                return [(name, os.readlink(name, dir_fd=folder)) for name in _LOWEST[:count]]
            except OSError:
                pass
        found = []
        for name in os.listdir(path):
            try:
                found.append((name, os.readlink(name, dir_fd=folder)))
            except OSError:
                found.append((name, ""))
        return found
    finally:
        os.close(folder)


def addresses(table: str, wanted: "Optional[set[int]]" = None) -> "tuple[dict[int, tuple[str, str, int, str]], set[str]]":
    """Of a /proc/net/tcp or tcp6 text: inode -> (state, local address, local port, remote address), of all or of some,
    and every local address."""
    found, here = {}, {}
    for line in table.splitlines()[1:]:
        f = line.split(None, 10)
        inode = whole(f[9], None) if len(f) > 9 else None
        if inode is None:
            continue
        local, _, port = f[1].rpartition(":")
        try:
            if local not in here:
                here[local] = _ip(local)
            if wanted is None or inode in wanted:
                found[inode] = (f[3], here[local], int(port, 16), _ip(f[2].rpartition(":")[0]))
        except ValueError:
            continue  # no address: not a line of the kernel's
    return found, set(here.values())


def _ip(text: str) -> str:
    """The kernel prints each 32-bit word in host order; x86 and arm64 guests are little-endian."""
    raw = b"".join(bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8))
    if len(raw) == 4:
        return ".".join(str(b) for b in raw)
    if raw[:12] == b"\0" * 10 + b"\xff\xff":
        return ".".join(str(b) for b in raw[12:])
    import socket

    return socket.inet_ntop(socket.AF_INET6, raw)


def network(path: str) -> str:
    """Which network a process lives in; empty where that can't be told."""
    try:
        return os.readlink(path + "/ns/net")
    except OSError:
        return ""


def tcp(pid: int, wanted: "set[int]") -> "tuple[dict[int, tuple[str, str, int, str]], set[str]]":
    """The sockets with these inodes in the network of a process, and the addresses that are its own.

    The kernel walks the whole machine's hash table for each of the two files, milliseconds even for an empty one: where
    it counts no TCP socket of IPv6 at all, that one is not read.
    """
    table, here = addresses(read_or("/proc/%d/net/tcp" % pid), wanted)
    if "\nTCP6: inuse 0\n" not in "\n" + read_or("/proc/%d/net/sockstat6" % pid):
        more, also = addresses(read_or("/proc/%d/net/tcp6" % pid), wanted)
        table.update(more)
        here |= also
    return table, here


def connect(found: "dict[int, dict[str, Any]]") -> None:
    """What the sockets of all processes are, by one look at the table of each network that they live in."""
    networks = {}  # type: dict[str, list[dict[str, Any]]]
    for row in found.values():
        net = row.pop("net", "")
        if net:
            networks.setdefault(net, []).append(row)
    for rows in networks.values():
        wanted = {inode for row in rows for inode in row["sockets"]}
        table, here = {}, set()  # type: dict[int, tuple[str, str, int, str]], set[str]
        for row in rows[:_TRIES]:  # one that has ended shows none
            if not table:
                table, here = tcp(row["pid"], wanted)
        for row in rows:
            _ends(row, table, here)
    for row in found.values():
        row.pop("sockets", None)


def _ends(row: "dict[str, Any]", table: "dict[int, tuple[str, str, int, str]]", here: "set[str]") -> None:
    listens, peers = {}, set()
    for inode in row["sockets"]:
        entry = table.get(inode)
        if entry is None:
            continue
        state, address, port, remote = entry
        if state == "0A":
            listens[port] = address
        elif state == "01" and remote not in here and not remote.startswith("127.") and remote != "::1":
            peers.add(remote)
    if listens:
        row["listens"] = sorted(listens.items())
    if peers:
        row["peers"] = sorted(peers)[:256]


def drm_of_gpus() -> "list[str]":
    """Names below /dev/dri of NVIDIA's GPUs; no register of a device is read for it."""
    found = []  # type: list[str]
    for name in listdir(at("/sys/bus/pci/devices")):
        folder = at("/sys/bus/pci/devices/%s/" % name)
        if read_or(folder + "vendor").strip() == "0x10de":
            found += listdir(folder + "drm")
    return found
