"""The next command for a person names what it is about, and only where the names are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.advice import next_command
from recover.core.diagnose import vitals
from recover.core.fold import fold
from recover.core.history import History
from recover.core.next_by_hand import _LINES
from recover.core.options import Context, options
from recover.core.signals.names import NAMES
from recover.model.contact import Failure
from recover.model.guest import Mute
from recover.model.hypervisor import GuestKind, NoHypervisor
from recover.model.reading import Known
from recover.model.record import EndKind, Opened, Saw
from recover.model.snapshot import Snapshot
from recover.model.verdict import State
from tests.core import builders as b
from tests.core import test_public_cases as servers
from tests.core import test_public_cases_more as more
from tests.core import test_public_cases_node as nodes
from tests.core.looks import stuck
from tests.core.world import CONTAINER, FULL
from tests.steps.looks import vm

LOOKS = {**servers.CASES, **nodes.CASES, **more.CASES}
# A person's, and no single command is next: what the look showed is.
NO_LINE = {"sxid", "crash-loop", "recovery-action", "vm-halted"}
OFF = Mute(Failure.CONNECT_TIMEOUT, "no answer")


def seen(snapshot: Snapshot) -> History:
    """The history of a run that has looked, and sees no way."""
    boxed = snapshot.target.kind is GuestKind.CONTAINER
    diagnosis = stuck(snapshot, 40)
    offered = options(snapshot, diagnosis, CONTAINER if boxed else FULL, Context())
    opened = Opened(b.AT, "r", "node-174", "p", "", "kim", "here", 1, 0.0)
    return fold([opened, Saw(b.AT, None, vitals(snapshot, diagnosis), diagnosis, offered)])


def test_every_line_is_of_a_finding_that_exists() -> None:
    assert set(_LINES) <= NAMES


@pytest.mark.parametrize(
    "name", [n for n, (_, found) in LOOKS.items() if found and all(cure is None for _, cure in found)]
)
def test_whoever_is_called_is_told_what_to_type(name: str) -> None:
    history = seen(LOOKS[name][0])
    assert history.last is not None and history.last.diagnosis.state in (State.HOPELESS, State.FAULTY)
    known = {f.signal for f in history.last.diagnosis.incurable} - NO_LINE
    said = next_command(history, EndKind.NEEDS_HUMAN)
    assert said and ("{" not in said) and (not known or said != "gpu-recover plan node-174")


def test_a_container_is_started_by_its_own_tool_and_a_vm_by_its_own() -> None:
    stopped = b.mute_snapshot(OFF, hypervisor=vm(status="stopped"))
    assert next_command(seen(stopped), EndKind.NEEDS_HUMAN) == "on pve1: qm start 174    # if it should run"
    boxed = replace(stopped, target=b.target(kind=GuestKind.CONTAINER))
    boxed = replace(boxed, hypervisor=vm(status="stopped", kind=GuestKind.CONTAINER))
    assert next_command(seen(boxed), EndKind.NEEDS_HUMAN).startswith("on pve1: pct start 174")


def test_a_device_that_is_gone_is_looked_for_before_the_vm_starts() -> None:
    gone = LOOKS["i915-sriov-dkms 342: the function vanished when its VM stopped"][0]
    assert next_command(seen(gone), EndKind.NEEDS_HUMAN).startswith("on pve1: echo 1 > /sys/bus/pci/rescan; ")


def test_without_a_node_nothing_is_made_up() -> None:
    lost = LOOKS["proxmox-setup-scripts 7: the devices were not there yet when the container began"][0]
    alone = replace(lost, hypervisor=NoHypervisor("unreachable", "timed out"))
    assert next_command(seen(alone), EndKind.NEEDS_HUMAN) == "gpu-recover plan node-174"


def test_a_container_whose_restart_changed_nothing_is_compared_with_its_node() -> None:
    lost = nodes.contained(servers.driver(nvml_code=999, detail="Unknown Error"))
    said = next_command(seen(lost), EndKind.EXHAUSTED)
    assert "/proc/devices" in said and "/etc/pve/lxc/174.conf" in said
    assert isinstance(lost.guest, type(b.guest())) and lost.guest.gpus == Known(())
