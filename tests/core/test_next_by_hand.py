"""The next command for a person names what it is about, and only where the names are known."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest

from recover.core.advice import lifted, next_command
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
from recover.model.verdict import Diagnosis, Finding, Scope, State
from tests.core import builders as b
from tests.core import test_public_cases as servers
from tests.core import test_public_cases_more as more
from tests.core import test_public_cases_node as nodes
from tests.core.looks import stuck
from tests.core.world import CONTAINER, FULL
from tests.steps.looks import vm

LOOKS = {**servers.CASES, **nodes.CASES, **more.CASES}
CORE = Path(__file__).resolve().parents[2] / "recover/core"
OFF = Mute(Failure.CONNECT_TIMEOUT, "no answer")


def seen(snapshot: Snapshot) -> History:
    """The history of a run that has looked, and sees no way."""
    boxed = snapshot.target.kind is GuestKind.CONTAINER
    diagnosis = stuck(snapshot, 40)
    offered = options(snapshot, diagnosis, CONTAINER if boxed else FULL, Context())
    opened = Opened(b.AT, "r", "node-174", "p", "", "kim", "here", 1, 0.0)
    return fold([opened, Saw(b.AT, None, vitals(snapshot, diagnosis), diagnosis, offered)])


def test_every_line_is_of_a_finding_that_exists() -> None:
    assert set(_LINES) <= NAMES | {"xid"}


@pytest.mark.parametrize(
    "name", [n for n, (_, found) in LOOKS.items() if found and all(cure is None for _, cure in found)]
)
def test_whoever_is_called_is_told_what_to_type(name: str) -> None:
    history = seen(LOOKS[name][0])
    assert history.last is not None and history.last.diagnosis.state in (State.HOPELESS, State.FAULTY)
    said = next_command(history, EndKind.NEEDS_HUMAN)
    assert said and ("{" not in said) and not said.startswith(("gpu-recover plan", "gpu-recover probe"))


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
    said = next_command(seen(alone), EndKind.NEEDS_HUMAN)
    assert said.startswith("gpu-recover doctor node-174 ") and "None" not in said and "174.conf" not in said


def test_a_container_whose_restart_changed_nothing_is_compared_with_its_node() -> None:
    lost = nodes.contained(servers.driver(nvml_code=999, detail="Unknown Error"))
    said = next_command(seen(lost), EndKind.EXHAUSTED)
    assert "/proc/devices" in said and "/etc/pve/lxc/174.conf" in said
    assert isinstance(lost.guest, type(b.guest())) and lost.guest.gpus == Known(())


def _may_be_nobodys() -> set[str]:
    """The names of findings that some signal gives without a cure, read from its source."""
    found: set[str] = set()
    for path in (CORE / "signals").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            at = {"Finding": 2, "on_gpu": 3}.get(getattr(getattr(node, "func", None), "id", ""))
            if at is not None and isinstance(node, ast.Call) and not ast.unparse(node.args[at]).startswith("Scope."):
                found |= {c.value for c in ast.walk(node.args[0]) if isinstance(c, ast.Constant)}
    return found


@pytest.mark.parametrize("where", [None, "00000000:01:00.0"])
@pytest.mark.parametrize("signal", sorted(_may_be_nobodys()))
def test_every_finding_that_may_be_a_persons_says_what_is_next(signal: str, where: str | None) -> None:
    """Planted and seen to fail: a line taken out of the table; a node's line where no node is known."""
    finding = Finding(signal, "it is sick", None, where)
    look = LOOKS["i915-sriov-dkms 342: the function vanished when its VM stopped"][0]
    for known in (True, False):
        said = next_command(_sees(look, finding, known), EndKind.NEEDS_HUMAN)
        assert said and "{" not in said and "None" not in said
        assert not said.startswith("gpu-recover plan") and said != "gpu-recover node-174", "that was just done"
        if signal in _LINES and known:
            assert not said.startswith("gpu-recover probe")


def _sees(snapshot: Snapshot, finding: Finding, known: bool) -> History:
    diagnosis = Diagnosis(State.HOPELESS, (finding,), (), (), (), frozenset())
    figures = vitals(snapshot, diagnosis)
    figures = figures if known else replace(figures, node="", vmid=0)
    opened = Opened(b.AT, "r", "node-174", "p", "", "kim", "here", 1, 0.0)
    return fold([opened, Saw(b.AT, None, figures, diagnosis, ())])


def test_our_own_task_that_does_not_end_is_read_on_its_node() -> None:
    upid = "UPID:pve7:0001:0002:0003:qmstop:174:gpu-recover@pve!oncall:"
    history = seen(LOOKS["i915-sriov-dkms 342: the function vanished when its VM stopped"][0])
    assert history.last is not None
    history = replace(history, last=replace(history.last, busy=upid))
    said = next_command(history, EndKind.NEEDS_HUMAN)
    assert said == f"on pve7: pvenode task log {upid}    # once it has ended: gpu-recover node-174"


@pytest.mark.parametrize(
    ("lift", "scope", "said"),
    [
        ("ask them, and allow it with --evict", Scope.VM, ": gpu-recover node-174 --evict --approve vm"),
        ("end it, or allow it with --evict", Scope.GPU, ": gpu-recover node-174 --evict"),
        ("ask who set it, and say --approve guest", Scope.GUEST, ": gpu-recover node-174 --approve guest"),
        ("wait until it has ended", Scope.VM, ""),
        ("stop it, then run gpu-recover node-9 --evict", Scope.VM, ""),
    ],
)
def test_what_an_option_lifts_is_said_as_a_whole_command(lift: str, scope: Scope, said: str) -> None:
    history = seen(LOOKS["i915-sriov-dkms 342: the function vanished when its VM stopped"][0])
    assert lifted(history, scope, lift) == lift + said
