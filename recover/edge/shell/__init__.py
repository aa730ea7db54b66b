"""Command lines of machines: `SshShell` for those far away, `LocalShell` for this one, behind one `Shell`."""

from recover.edge.shell.local import LocalShell
from recover.edge.shell.port import CAP, Shell
from recover.edge.shell.settings import SshSettings, SudoPassword
from recover.edge.shell.ssh import SshShell

__all__ = ["CAP", "LocalShell", "Shell", "SshSettings", "SshShell", "SudoPassword"]
