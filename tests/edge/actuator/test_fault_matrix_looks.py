"""The fault matrix of a look: whatever a question meets, its answer is unknown, and the guard that needs it refuses.

One API for all rows; each question of a look is struck by each fault, alone. Where an answer is only nice to have, the
same fault changes nothing. A look sends nothing that changes anything, whatever it meets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from recover.core.guards import Context, refusal
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.reads import look
from recover.model.act import Line, Pass, Refuse
from recover.model.hypervisor import Hypervisor, NoHypervisor
from recover.model.verdict import Finding, Scope
from recover.steps.table import ALL_STEPS
from tests.core import builders as b
from tests.edge.actuator.test_fault_matrix import GONE
from tests.edge.proxmox.conftest import GPU, VM, Lab

STEP = ALL_STEPS["power-cycle-vm"]
STUCK = (Finding("gpu-memory-held", "held", Scope.VM, None),)
NEAR = {"vmid": 175, "name": "node-175", "status": "running"}
MAPPING = {"id": "gpu0", "map": ["id=10de:2bb5,node=pve1,path=0000:41:00.0"]}
OURS = {**VM, "smbios_uuid": b.SMBIOS, "mac": b.MAC.upper(), "hostpci": [GPU, "mapping=gpu0"]}
# question -> what a power cycle says without its answer: a guard's name, "" for a plan, None for no look at all
QUESTIONS: dict[str, str | None] = {
    "/cluster/resources": None,
    "/nodes/*/qemu/174/status/current": None,
    "/nodes/*/qemu/174/config": "config",
    "/nodes/*/qemu/174/pending": "pending",
    "/nodes/*/tasks": "tasks",
    "/nodes/*/status": "host-memory",
    "/nodes/*/time": "",
    "/cluster/status": "quorum",
    "/nodes/*/storage": "storage",
    "/cluster/backup": "backup-due",
    "/access/permissions": "",
    "/version": "",
    "/nodes/*/hardware/pci": "device",
    "/cluster/mapping/pci": "device",
    "/nodes/*/qemu/175/config": "shared-device",
    "/nodes/*/qemu/174/agent/*": "",
}
STRIKES: list[dict[str, Any]] = [
    {"status": 400, "message": "Parameter verification failed."},
    {"status": 401, "message": "authentication failure"},
    {"status": 403, "message": "Permission check failed (/x, Sys.Audit)"},
    {"status": 500, "message": "got timeout"},
    {"status": 501, "message": "not implemented"},
    {"status": 596},
    {"kind": "cut"},
    {"kind": "page"},
]


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder: Path = tmp_path_factory.mktemp("looks")
    config = {"vms": [OURS, NEAR], "mappings": [MAPPING], "time_scale": 0.001}
    config["grants"] = [
        {"who": who, "path": "/", "privs": ["VM.Audit", "Sys.Audit", "Datastore.Audit", "Mapping.Audit",
                                            "VM.GuestAgent.Audit"]}
        for who in ("gpu-recover@pve", "gpu-recover@pve!oncall")
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        with Lab(config, folder / "pve") as server:
            yield server


def says(found: Hypervisor | NoHypervisor) -> str | None:
    """The guard that refuses a power cycle of what was seen; empty: it is planned."""
    if isinstance(found, NoHypervisor):
        return None
    snapshot = b.healthy_snapshot(hypervisor=found)
    plan = STEP.plan(snapshot, STUCK, STEP.with_defaults({}))
    forbidden = refusal(snapshot, STEP, Context(evict=True, approved=Scope.VM))
    assert not isinstance(plan, Pass), plan
    refused = forbidden or (plan if isinstance(plan, Refuse) else None)
    assert refused is None or (refused.why and refused.lift), refused
    assert refused is not None or isinstance(plan, Line)
    return refused.guard if refused is not None else ""


def test_with_all_answers_it_is_planned(api: Lab) -> None:
    api.call("clear")
    found = look(api.client(), "pve", 174, 20.0)
    assert says(found) == "" and isinstance(found, Hypervisor) and not found.gaps, getattr(found, "gaps", found)


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_a_question_costs_that_is_not_answered(api: Lab, question: str) -> None:
    client: Client = api.client()
    for strike in STRIKES:
        api.call("clear")
        api.inject(**{"kind": "http", "path": question, "times": None, **strike})
        before = len(api.requests())
        found = look(client, "pve", 174, 20.0)
        assert [r for r in api.requests()[before:] if r["fault"]], "the fault struck"
        assert says(found) == QUESTIONS[question], (strike, found)
        if isinstance(found, Hypervisor) and QUESTIONS[question]:
            assert found.gaps, strike
    assert not [r for r in api.requests() if r["method"] != "GET" and not r["path"].endswith("/agent/ping")]


def test_a_question_about_a_guest_that_is_gone_meanwhile(api: Lab) -> None:
    api.call("clear")
    api.inject(kind="http", path="/nodes/*/qemu/174/status/current", times=None, status=500, message=GONE)
    found = look(api.client(), "pve", 174, 20.0)
    assert isinstance(found, NoHypervisor) and found.why == "not-found"
