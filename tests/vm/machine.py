"""A real guest in a folder: the same disk-less machine at every start, with a new boot id each time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from recover.edge.shell.settings import SshSettings
from recover.edge.shell.ssh import SshShell

from . import initramfs
from .kernel import PATH, kernel, tool
from .qemu import Launcher, Qemu, QemuError

MAC = "bc:24:11:00:01:74"
DISK = "d0"  # the block device on which reads can be held
BOOT_S = 240.0  # on an idle machine it takes 7 s


@dataclass(frozen=True, slots=True)
class Kind:
    """What tells one sort of machine from another: devices, modules, and a script of the guest's own."""

    name: str
    devices: list[str]
    machine: str = "q35"
    memory_mib: int = 1024
    cpus: int = 1  # a second one costs more to emulate than it gives
    modules: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)  # of modules
    cmdline: str = ""
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # in /run/vm; `kind` is sourced before init
    environment: str = ""  # for sshd's SetEnv
    path: str = "/run/vm/bin"  # in front of PATH
    fresh: Callable[[], None] | None = None  # what a start of QEMU, not a reset, does to the devices


class Machine:
    """`power` may be used from any thread; whoever starts it must call `down`."""

    def __init__(self, folder: Path, kind: Kind, name: str) -> None:
        self.folder, self.kind, self.name = folder, kind, name
        self.uuid = _uuid(name)
        self.port = _free_port()
        self.qemu: Qemu | None = None
        self.ends: list[str] = []  # how each QEMU ended
        self.held = False  # a read of the disk, or its next one
        self._launcher = Launcher()
        self._shells: list[SshShell] = []

    @classmethod
    def up(cls, folder: Path, kind: Kind, name: str = "node-174") -> Self:
        vm = cls(folder, kind, name)
        try:
            vm.prepare()
            vm.start()
            vm.wait_up()
        except BaseException:
            vm.down()
            raise
        return vm

    def down(self) -> None:
        for shell in self._shells:
            shell.close()
        if self.qemu is not None:
            self.qemu.kill()
        self._launcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.down()

    # -- power: what a hypervisor does ------------------------------------------------------------------------------

    def start(self) -> None:
        if self.qemu is not None and self.qemu.alive:
            raise QemuError(f"already running as {self.qemu.pid}")
        if self.kind.fresh is not None:
            self.kind.fresh()
        self.qemu = self.launch(self.argv())
        self.held = False

    def launch(self, argv: list[str]) -> Qemu:
        return Qemu(self._launcher, argv, self.folder / "qemu.log")

    def stop(self) -> None:
        assert self.qemu is not None
        self.ends.append(self.qemu.quit())

    def reset(self) -> None:
        assert self.qemu is not None
        self.qemu.run("system_reset")

    def shutdown(self, seconds: float) -> bool:
        """The power button; True if the guest obeyed and QEMU ended."""
        assert self.qemu is not None
        self.qemu.run("system_powerdown")
        obeyed = self.qemu.wait_end(seconds)
        if obeyed:
            self.ends.append("powered off")
        return obeyed

    # -- what goes wrong --------------------------------------------------------------------------------------------

    def hold_read(self) -> None:
        """The next read of the disk is held inside QEMU: whoever waits for it can't be killed by anything."""
        self.held = True
        self._disk("break read_aio held")

    def release_read(self) -> None:
        self._disk("resume held")
        self.held = False

    def _disk(self, command: str) -> None:
        assert self.qemu is not None
        said = self.qemu.hmp(f'qemu-io {DISK} "{command}"')
        if said.strip():
            raise QemuError(f"{command}: {said}")

    # -- the way in -------------------------------------------------------------------------------------------------

    @property
    def monitor(self) -> Qemu:
        assert self.qemu is not None
        return self.qemu

    def wait_up(self, seconds: float = BOOT_S) -> None:
        """Until sshd says who it is. QEMU's own network accepts before there is anybody, and then says nothing."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not self.monitor.alive:
                break
            try:
                with socket.create_connection(("127.0.0.1", self.port), 5) as line:
                    line.settimeout(5)
                    if line.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
            time.sleep(0.2)
        raise QemuError(f"the guest did not come up in {seconds:.0f} s; its last words:\n{self.console()[-3000:]}")

    def ensure_up(self) -> None:
        """What a failed test left behind is ended by a new start."""
        if not self.held:
            with contextlib.suppress(QemuError):
                self.wait_up(20.0)
                return
        self.monitor.kill()
        self.start()
        self.wait_up()

    def console(self) -> str:
        log = self.folder / "qemu.log"
        serial = self.folder / "console"
        return "".join(path.read_text(errors="replace") for path in (log, serial) if path.exists())

    def shell(self) -> SshShell:
        settings = SshSettings(
            "127.0.0.1",
            port=self.port,
            user="root",
            identity_file=str(self.folder / "id_ed25519"),
            known_hosts=str(self.folder / "known_hosts"),
            ssh_config="/dev/null",
            banner_timeout=8.0,  # while a guest boots, QEMU's network accepts and says nothing
        )
        shell = SshShell(settings)
        self._shells.append(shell)
        return shell

    # -- how it is built --------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._kernel = kernel()
        for name in ("id_ed25519", "host_key"):
            keygen = [tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "vm", "-f", str(self.folder / name)]
            subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
        host_key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")
        kind = self.kind
        files = {
            "start": ((initramfs.BOOT / "start").read_bytes(), 0o755),
            "hostname": (f"{self.name}\n".encode(), 0o644),
            "host_key": ((self.folder / "host_key").read_bytes(), 0o600),
            "authorized_keys": ((self.folder / "id_ed25519.pub").read_bytes(), 0o600),
            "sshd_config": ((_SSHD + f"SetEnv SHLVL=2 PATH={kind.path}:{PATH} {kind.environment}\n").encode(), 0o644),
            "acpi/PWRF/00000080": (_POWER_BUTTON.encode(), 0o755),
            **kind.files,
        }
        (self.folder / "initramfs").write_bytes(initramfs.build(self._kernel, kind.modules, kind.options, files))

    def argv(self) -> list[str]:
        kind, folder = self.kind, self.folder
        # A guest that stops for want of a timer is of no use: no panic without an end.
        cmdline = f"console=ttyS0 quiet loglevel=4 panic=5 mitigations=off {kind.cmdline}"
        return [
            tool("qemu-system-x86_64"), "-nodefaults", "-no-user-config", "-display", "none", "-name", self.name,
            "-machine", kind.machine, "-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", str(kind.cpus),
            "-m", str(kind.memory_mib), "-uuid", self.uuid,
            "-kernel", str(self._kernel.image), "-initrd", str(folder / "initramfs"), "-append", cmdline,
            "-serial", f"file:{folder / 'console'}",
            "-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap",
            # restrict: nothing leaves the guest, only the forwarded port leads in
            "-netdev", f"user,id=net0,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-10.0.2.15:22",
            "-device", f"virtio-net-pci,netdev=net0,mac={MAC},romfile=",
            *kind.devices,
        ]  # fmt: skip


_SSHD = """\
Port 22
HostKey /run/vm/host_key
AuthorizedKeysFile /run/vm/authorized_keys
PidFile none
UsePAM no
StrictModes no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
"""

_POWER_BUTTON = """\
#!/run/vm/busybox sh
exec /run/vm/busybox poweroff
"""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _uuid(name: str) -> str:
    raw = hashlib.sha256(f"vm {name} {os.getpid()}".encode()).hexdigest()
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:32]}"
