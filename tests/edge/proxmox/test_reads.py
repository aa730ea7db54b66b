from __future__ import annotations

from typing import Any

import pytest

from recover.edge.proxmox.reads import find, guests, look
from recover.model.hypervisor import AgentState, GuestKind, Hypervisor, NoHypervisor
from recover.model.reading import Known, Unknown, Why
from tests.edge.proxmox.conftest import GPU, VM, Lab

AUDIO = GPU | {"bdf": "0000:41:00.1", "class": "0403", "device": "22e8"}
NODE = {"name": "pve1", "memory_mib": 131072, "used_mib": 4096, "pci": [AUDIO]}


def seen(server: Lab, vmid: int = 174, **change: Any) -> Hypervisor:
    found = look(server.client(**change), "lab", vmid)
    assert isinstance(found, Hypervisor), found
    return found


def test_everything_that_one_look_tells(lab):
    server = lab(nodes=[NODE], vms=[VM | {"tags": "gpu;prod", "uptime_s": 4711, "pending": {"cores": "8"}}])
    found = seen(server)
    assert (found.cluster, found.node, found.vmid, found.kind) == ("lab", "pve1", 174, GuestKind.VM)
    assert (found.status, found.qmpstatus, found.name) == ("running", Known("running"), "node-174")
    assert (found.tags, found.lock, found.version) == (("gpu", "prod"), "", "9.2.6")
    assert found.quorate == Known(True) and found.ha_state == Known("") and found.agent == Known(AgentState.ANSWERS)
    assert isinstance(found.pending, Known) and [(p.key, p.then) for p in found.pending.value] == [("cores", "8")]
    assert isinstance(found.host_memory, Known) and found.host_memory.value.used_mib == 4096 + 65536
    assert found.tasks == Known(()) and found.clock_s > 0
    assert found.agent_addresses == ("192.0.2.10",)
    (device,) = found.config.value.hostpci
    assert device.addresses == ("0000:41:00.0",) and device.device_ids == ("10de:2bb5",)
    assert device.iommu_groups == (14,) and device.present == Known(True)


def test_a_device_that_fell_off_the_bus(lab):
    server = lab()
    server.call("device", node="pve1", bdf="0000:41:00.0", set={"gone": True})
    (device,) = seen(server).config.value.hostpci
    assert device.present == Known(False) and device.addresses == ("0000:41:00.0",)


def test_who_else_has_the_device(lab):
    other = {"vmid": 175, "name": "node-175", "hostpci": ["0000:41:00.1,pcie=1"]}
    idle = {"vmid": 176, "name": "idle", "status": "stopped"}
    found = seen(lab(nodes=[NODE], vms=[VM, other, idle]))
    assert isinstance(found.neighbours, Known)
    assert [(n.vmid, n.status, n.shares) for n in found.neighbours.value] == [
        (175, "running", ("iommu group 14",)),
        (176, "stopped", ()),
    ]


def test_a_mapping_with_several_entries_is_ambiguous(lab):
    maps = [f"id=10de:2bb5,node=pve1,path=0000:4{n}:00.0" for n in (1, 2)] + ["node=pve2,path=0000:01:00.0"]
    nodes = [NODE | {"pci": [GPU, GPU | {"bdf": "0000:42:00.0", "iommugroup": 15}]}]
    vm = VM | {"hostpci": ["mapping=gpus,pcie=1"]}
    server = lab(nodes=nodes, vms=[vm], mappings=[{"id": "gpus", "map": maps}])
    (device,) = seen(server).config.value.hostpci
    assert (device.mapping, device.choices, device.addresses) == ("gpus", 2, ("0000:41:00.0", "0000:42:00.0"))


@pytest.mark.parametrize(
    ("agent", "state"), [("none", AgentState.OFF), ("hangs", AgentState.SILENT), ("not-running", AgentState.SILENT)]
)
def test_the_agents_word(lab, agent, state):
    assert seen(lab(vms=[VM | {"agent": agent}])).agent == Known(state)


def test_an_api_that_does_not_answer_is_no_witness_about_the_agent(lab):
    server = lab()
    server.inject("http", path="*/agent/ping", times=None)
    agent = seen(server).agent
    assert isinstance(agent, Unknown) and agent.why is Why.TIMEOUT


def test_each_missing_privilege_is_a_gap_that_names_it(lab):
    grants = [{"who": who, "path": "/vms/174", "privs": ["VM.Audit"]} for who in ("rec@pve", "rec@pve!t")]
    server = lab(token={"id": "rec@pve!t"}, grants=grants)
    found = seen(server)
    gaps = "\n".join(found.gaps)
    for name in ("quorum: needs Sys.Audit on /", "host memory: needs Sys.Audit on /nodes/pve1", "guest agent: needs",
                 "tasks: needs Sys.Audit on /nodes/pve1", "VM.Audit on /vms",
                 "PCI devices: needs Sys.Audit"):  # fmt: skip
        assert name in gaps, gaps
    assert isinstance(found.tasks, Unknown) and found.tasks.why is Why.DENIED
    assert found.invisible_guests and found.status == "running"


def test_the_last_tasks_and_whose_they_are(lab):
    server = lab(tasks=[
        {"type": "vzdump", "vmid": 174, "user": "root@pam", "age_s": 9, "status": "running"},
        {"type": "qmstop", "vmid": 174, "user": "kim@pam", "age_s": 300, "status": "OK"},
    ])  # fmt: skip
    found = seen(server)
    assert isinstance(found.tasks, Known)
    assert [(t.type, t.user, t.running, t.status, t.ours) for t in found.tasks.value] == [
        ("vzdump", "root@pam", True, "", False),
        ("qmstop", "kim@pam", False, "OK", False),
    ]


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"lock": "backup"}, "lock", "backup"),
        ({"qmpstatus": "internal-error"}, "qmpstatus", Known("internal-error")),
        ({"ha": "error"}, "ha_state", Known("error")),
        ({"status": "stopped"}, "status", "stopped"),
    ],
)
def test_states_that_stop_us(lab, change, field, value):
    assert getattr(seen(lab(vms=[VM | change])), field) == value


def test_no_quorum(lab):
    assert seen(lab(quorate=False)).quorate == Known(False)


def test_it_moved_between_two_questions(lab):
    server = lab(nodes=[{"name": "pve1"}, {"name": "pve2"}])
    client = server.client()
    ask = client.get

    def racing(where: str, **params: Any) -> Any:
        answer = ask(where, **params)
        if where == "/cluster/resources":
            server.set_vm(174, node="pve2")
        return answer

    client.get = racing
    found = look(client, "lab", 174)
    assert isinstance(found, Hypervisor) and found.node == "pve2"


@pytest.mark.parametrize(
    ("change", "why"), [({"secret": lambda: "wrong"}, "auth"), ({"secret": lambda: ""}, "no-secret"),
                        ({"ca_file": None}, "tls"), ({"urls": ("https://127.0.0.1:1",)}, "unreachable")],
)  # fmt: skip
def test_why_there_is_no_look(lab, change, why):
    found = look(lab().client(**change), "lab", 174)
    assert isinstance(found, NoHypervisor) and found.why == why


def test_a_guest_that_is_not_there(lab):
    found = look(lab().client(), "lab", 999)
    assert isinstance(found, NoHypervisor) and found.why == "not-found" and "VM.Audit on /vms/999" in found.detail


def test_a_look_whose_time_is_over_asks_no_more(lab):
    server = lab()
    server.inject("slow", path="*/status/current", seconds=1.2)
    found = look(server.client(), "lab", 174, seconds=1.0)
    assert isinstance(found, NoHypervisor) and found.why == "unreachable"


def test_guests_are_found_by_id_and_name(lab):
    twin = {"vmid": 175, "name": "node-174"}
    rows = guests(lab(vms=[VM, twin]).client())
    assert [r.vmid for r in find(rows, "174")] == [174]
    assert [r.vmid for r in find(rows, "node-174")] == [174, 175]
    assert find(rows, "node-17") == ()
