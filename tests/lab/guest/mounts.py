"""The guest's own view of the machine is put together here, in its mount namespace, before anything of it runs."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
MS_RDONLY, MS_NOSUID, MS_BIND, MS_REC = 1, 2, 4096, 16384
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, data.encode() or None):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {kind} {source} on {target}: {os.strerror(number)}")


def bind(source: str | Path, target: str | Path) -> None:
    mount(str(source), str(target), flags=MS_BIND)


def tmpfs(target: str, mode: str = "755") -> None:
    mount("tmpfs", target, "tmpfs", MS_NOSUID, f"mode={mode}")


def build(world: Path, source: Path) -> None:
    """`world` is the lab's folder of this guest, `source` holds `tests/`; both stay reachable under /run/lab."""
    mount("proc", "/proc", "proc")
    _run(world, source)
    _dev()
    _sys()
    _proc()
    if not (cache := Path("/run/lab/etc/ld.so.cache")).exists():
        # `-X`: the machine's links stay as they are; the folder of the fake driver has its name only in here.
        subprocess.run(
            ["ldconfig", "-X", "-C", str(cache), "-f", "/run/lab/etc/ld.so.conf"], check=True, stderr=subprocess.DEVNULL
        )
    for name in ("passwd", "group", "hostname", "machine-id", "ld.so.cache"):
        if os.path.exists(f"/etc/{name}"):
            bind(f"/run/lab/etc/{name}", f"/etc/{name}")
    # Last: from here on what lies under the machine's /tmp is out of sight, the lab's own folder too.
    bind("/run/lab/tmp", "/tmp")


def _run(world: Path, source: Path) -> None:
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (world, source / "tests")]
    tmpfs("/run")
    for path in ("/run/lab", "/run/sshd", "/run/lock", "/run/user", "/run/systemd/system", "/run/fakenvml"):
        os.makedirs(path)
    bind(f"/proc/self/fd/{fds[0]}", "/run/lab")
    bind(f"/proc/self/fd/{fds[1]}", "/run/lab/src/tests")
    bind("/run/lab/nvml", "/run/fakenvml")
    for fd in fds:
        os.close(fd)
    os.chmod("/run/lab/tmp", 0o1777)


def _dev() -> None:
    mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=755")
    for name, (major, minor) in DEVICES.items():
        os.mknod(f"/dev/{name}", 0o666 | 0o020000, os.makedev(major, minor))
        os.chmod(f"/dev/{name}", 0o666)
    for path in ("/dev/pts", "/dev/shm", "/dev/mqueue"):
        os.mkdir(path)
    mount("devpts", "/dev/pts", "devpts", 0, "newinstance,ptmxmode=0666,mode=620")
    tmpfs("/dev/shm", "1777")
    for link, to in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(to, f"/dev/{link}")
    for name in Path("/run/lab/dev").iterdir():
        Path(f"/dev/{name.name}").touch()
        bind(f"/run/lab/dev/{name.name}", f"/dev/{name.name}")


def _sys() -> None:
    """All of /sys is made up (there is no DMI or GPU to cover here), but for the machine's CPUs."""
    system = os.open("/sys/devices/system", os.O_RDONLY | os.O_DIRECTORY)
    tmpfs("/sys")
    subprocess.run(["cp", "-a", "/run/lab/sys/.", "/sys/"], check=True)
    os.makedirs("/sys/devices/system", exist_ok=True)
    bind(f"/proc/self/fd/{system}", "/sys/devices/system")
    os.close(system)
    os.makedirs("/sys/fs/cgroup", exist_ok=True)
    mount("cgroup2", "/sys/fs/cgroup", "cgroup2")


def _proc() -> None:
    Path("/run/lab/proc/modules").write_text(Path("/run/lab/proc/modules-at-boot").read_text())
    subprocess.run(["/run/lab/bin/rmmod", "--boot"], check=True)
    tmpfs("/proc/driver")
    subprocess.run(["cp", "-a", "/run/lab/proc/driver/.", "/proc/driver/"], check=True)
    for name in ("meminfo", "modules", "cmdline", "sys/kernel/random/boot_id"):
        flat = name.replace("/", "_")
        if os.path.exists(f"/run/lab/proc/{flat}") and os.path.exists(f"/proc/{name}"):
            bind(f"/run/lab/proc/{flat}", f"/proc/{name}")
