"""A container that does not answer by itself is looked at, and acted in, through its node's root shell.

`lxc-attach` puts our agent where the container's own processes are: name spaces, control group and rights. It sees what
they see, also that their devices are gone. The look counts only if the init inside is the one that the node sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from recover.edge.host import HostProbe, Shells
from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.shell.port import CAP, Shell
from recover.model.contact import Broken, Ran
from recover.model.guest import Guest, Mute
from recover.model.hypervisor import GuestKind, Hypervisor, NoHypervisor
from recover.model.reading import Known

LEAST_S = 20.0  # below this no look through the node is begun
KEPT_S = 60.0  # so much of a container's look is left for it


class AttachedShell:
    """The container's command line, by its number on the node whose shell this is."""

    def __init__(self, node: Shell, vmid: int) -> None:
        self._node, self._vmid = node, vmid

    @property
    def where(self) -> str:
        return f"container {self._vmid} through {self._node.where}"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline: float, cap: int = CAP) -> Ran | Broken:
        # pve-container names the container by its vmid; `pct exec` is this call with the node's environment kept.
        attach = ["lxc-attach", "-n", str(self._vmid), "--clear-env", "--"]
        return self._node.run([*attach, *argv], stdin=stdin, deadline=deadline, cap=cap)

    def connect(self, deadline: float, *, patient: bool = False) -> Broken | None:
        return self._node.connect(deadline, patient=patient)

    def forget(self) -> None:
        """The node was not restarted."""

    def close(self) -> None:
        """The node's shell is closed by whoever made it."""


class Inside:
    """`found`: the shell that the last look went through; None where the guest answered by itself, or nobody did."""

    def __init__(
        self, shells: Shells, ask_api: Callable[[], Hypervisor | NoHypervisor], settings: ProbeSettings, root: str = ""
    ) -> None:
        self._shells, self._ask_api, self._settings, self._root = shells, ask_api, settings, root
        self.found: AttachedShell | None = None

    def look(self, mute: Mute, skip_gpus: Iterable[str], deadline: float) -> Guest | Mute:
        """The guest as seen through its node, or `mute` with what kept us from that."""
        self.found = None
        ends = time.monotonic() + deadline
        seen = self._ask_api()
        if not isinstance(seen, Hypervisor) or seen.kind is not GuestKind.CONTAINER or seen.status != "running":
            return mute
        shell = self._shells(seen.node)
        if shell is None:
            return mute
        host = HostProbe(self._shells, self._root).look(seen)
        if not isinstance(host, Known):
            return _also(mute, seen.node, host.detail or host.why)
        left = ends - time.monotonic()
        if left < LEAST_S:
            return _also(mute, seen.node, "no time was left for it")
        attached = AttachedShell(shell, seen.vmid)
        guest = GuestProbe(attached, self._settings).look(skip_gpus, deadline=left)
        if isinstance(guest, Mute):
            return _also(mute, seen.node, guest.detail)
        if not host.value.init_start or guest.identity.init_start != host.value.init_start:
            return _also(mute, seen.node, "the init inside is not the one that the node sees")
        self.found = attached
        return replace(guest, through=f"{seen.node}, since by SSH: {mute.failure.value}: {mute.detail}")

    def probe(self) -> GuestProbe | None:
        return GuestProbe(self.found, self._settings) if self.found is not None else None


def _also(mute: Mute, node: str, why: str) -> Mute:
    return replace(mute, detail=f"{mute.detail}; through {node}: {why}")
