"""The opt-in root shell on a Proxmox node: which node is meant is the API's word, and the shell must be on that one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recover.core.clean import clean
from recover.core.read.agent import parse_lines
from recover.core.read.host import read_host
from recover.edge.probe import NO_PYTHON, Pieces, ask, pieces_of
from recover.edge.shell.port import Shell
from recover.model.contact import Broken
from recover.model.host import Host
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.reading import Known, Reading, Unknown, Why

LOOK_S = 45.0
_SLACK_S = 10.0
UPTIME_SLACK_S = 180.0  # the two are asked one after the other

Shells = Callable[[str], Shell | None]  # node -> its shell, None where none is configured


class HostProbe:
    """Looks at the node where the guest is now. `root`: a prefix for /sys, /run and /dev there, for tests."""

    def __init__(self, shells: Shells, root: str = "", seconds: float = LOOK_S) -> None:
        self._shells, self._root, self._seconds = shells, root, seconds

    def look(self, seen: Hypervisor) -> Reading[Host]:
        shell = self._shells(seen.node)
        if shell is None:
            return Unknown(Why.ABSENT, f"no [hosts.{seen.node}] in the configuration")
        container = seen.kind is GuestKind.CONTAINER
        request: dict[str, Any] = {
            "do": "host_look",
            "vmid": seen.vmid,
            "addresses": addresses_of(seen),
            "container": container,
            "init_pid": seen.pid if container else 0,
            "deadline": max(5.0, self._seconds - _SLACK_S),
            "root": self._root,
        }
        said = ask(shell, request, self._seconds)
        host = read_host(parse_lines(said.stdout), seen.node)
        if host is not None:
            return _trusted(host, seen)
        if isinstance(said, Broken):
            return Unknown(Why.UNREACHABLE, clean(f"{said.failure.value}: {said.detail}", 500))
        if said.code == NO_PYTHON:
            return Unknown(Why.ABSENT, f"no Python on {seen.node}")
        tail = clean(said.stderr.decode("utf-8", "replace")[-300:], 300)
        return Unknown(Why.GARBLED, f"the agent on {seen.node} said nothing: exit {said.code} {tail}".rstrip())

    def words(self, seen: Hypervisor, seconds: float) -> Pieces:
        """The node's kernel log, its devices by lspci, and what hangs there, for the evidence."""
        shell = self._shells(seen.node)
        if shell is None:
            return Pieces((), ())
        request = {
            "do": "host_words",
            "vmid": seen.vmid,
            "addresses": addresses_of(seen),
            "container": seen.kind is GuestKind.CONTAINER,
            "deadline": max(5.0, seconds - _SLACK_S),
            "root": self._root,
        }
        return pieces_of(ask(shell, request, seconds))


def _trusted(host: Host, seen: Hypervisor) -> Reading[Host]:
    """Proxmox names a node by its host name: another name is another machine, whatever our ssh configuration says.

    Two clusters may both have a node of that name, so it must also be up for as long as the API says that it is.
    """
    node, up = seen.node, seen.host_uptime_s
    if host.hostname.partition(".")[0].lower() != node.lower():
        return Unknown(Why.GARBLED, f"the shell for {node} is on {host.hostname}: correct [hosts.{node}] address")
    if isinstance(up, Known) and abs(host.uptime_s - up.value) > UPTIME_SLACK_S:
        why = (
            f"the shell for {node} is on another machine of that name: it is up for {host.uptime_s:.0f} s, and the node"
        )
        return Unknown(Why.GARBLED, f"{why} of {seen.cluster} for {up.value} s")
    return Known(host) if host.root else Unknown(Why.DENIED, f"the shell on {node} is not root's")


def addresses_of(seen: Hypervisor) -> tuple[str, ...]:
    config = seen.config
    if not isinstance(config, Known):
        return ()
    return tuple(dict.fromkeys(a for device in config.value.hostpci for a in device.addresses))
