from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.read.pve import PveRaw, hypervisor, parse_upid, task_list
from recover.core.read.pve_config import (
    ALL_NVIDIA,
    PciDevice,
    nvidia_nodes,
    pci_devices,
    shared_nodes,
    vm_config,
)
from recover.core.read.pve_values import properties
from recover.model.hypervisor import AgentState, GuestKind
from recover.model.reading import Known, Unknown, Why
from recover.steps.power import start_timeout_s

TOKEN = "rec@pve!oncall"


def row(address: str, group: int = -1, device: str = "0x2bb5") -> dict[str, Any]:
    return {"id": address, "vendor": "0x10de", "device": device, "class": "0x030200", "iommugroup": group}


BUS = Known(pci_devices([row("0000:41:00.0", 14), row("0000:41:00.1", 14, "0x22e8"), row("0000:42:00.0", 15)]))
MAPS = Known(
    [
        {"id": "one", "map": ["id=10de:2bb5,iommugroup=14,node=pve1,path=0000:41:00.0;0000:42:00.0"]},
        {"id": "many", "map": [f"node=pve{n},path={s}" for n, s in ((1, "0000:41:00.0"), (1, "42:00"), (2, "01:00"))]},
        {"id": "broken", "map": ["node=pve1,path=0000:41:00.0", None]},
        {"id": "elsewhere", "map": ["node=pve2,path=0000:41:00.0"]},
    ]
)  # fmt: skip


HIDDEN = Unknown(Why.DENIED, "needs Mapping.Audit on /mapping/pci/absent, if there is such a mapping")


def raw(**change: Any) -> PveRaw:
    given: dict[str, Any] = {
        "cluster": "lab", "node": "pve1", "vmid": 174, "kind": GuestKind.VM, "token_id": TOKEN,
        "status": {"status": "running", "qmpstatus": "running", "ha": {"managed": 0}},
    }  # fmt: skip
    return PveRaw(**(given | change))


def test_a_configuration():
    config = vm_config(
        {
            "name": "node-174", "memory": "458752", "smbios1": "base64=1,uuid=AAAAAAAA-BBBB-cccc-dddd-eeeeeeeeeeee",
            "net0": "virtio=BC:24:11:00:01:74,bridge=vmbr0", "net1": "model=e1000,macaddr=BC:24:11:00:01:75",
            "agent": "enabled=1,type=virtio", "balloon": 0, "hugepages": "1024", "sockets": 2, "cores": 48,
            "scsi0": "local-zfs:vm-174-disk-0,size=2T", "efidisk0": "volume=fast:vm-174-disk-1",
            "ide2": "none,media=cdrom",
            "scsi1": "/dev/disk/by-id/x", "ide0": "iso:iso/debian.iso,media=cdrom", "args": "-device foo",
        },
        "pve1",
    )  # fmt: skip
    assert config.memory_mib == 458752
    assert config.smbios_uuid == "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
    assert config.macs == {"bc:24:11:00:01:74", "bc:24:11:00:01:75"} and config.nics == 2
    assert config.agent and config.balloon_mib == 0 and config.hugepages == "1024" and config.cores == 96
    assert config.storages == ("local-zfs", "fast", "iso")
    assert config.args == "-device foo"


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("0", False), ("enabled=1,fstrim_cloned_disks=1", True), ("enabled=0", False),
                      ("1,type=isa", True), ("", False)],
)  # fmt: skip
def test_the_agent_setting(value, on):
    assert vm_config({"agent": value}, "pve1").agent is on


def test_memory_without_and_with_the_newer_syntax():
    assert [vm_config(c, "pve1").memory_mib for c in ({}, {"memory": 2048}, {"memory": "current=4096"})] == [
        512,
        2048,
        4096,
    ]


@pytest.mark.parametrize(
    ("value", "addresses", "choices", "present"),
    [
        ("0000:41:00,pcie=1", ("0000:41:00.0", "0000:41:00.1"), 1, Known(True)),
        ("41:00.1", ("0000:41:00.1",), 1, Known(True)),
        ("host=0000:41:00.0;0000:42:00.0,pcie=1", ("0000:41:00.0", "0000:42:00.0"), 1, Known(True)),
        ("0000:43:00", ("0000:43:00.0",), 1, Known(False)),
        ("mapping=one,pcie=1", ("0000:41:00.0", "0000:42:00.0"), 1, Known(True)),
        ("mapping=many", ("0000:41:00.0", "0000:42:00.0"), 2, Known(True)),
        ("many", ("0000:41:00.0", "0000:42:00.0"), 2, Known(True)),
        ("mapping=absent", (), 1, HIDDEN),
        ("mapping=broken", (), 1, Unknown(Why.DENIED, HIDDEN.detail.replace("absent", "broken"))),
        ("mapping=elsewhere", (), 1, Known(False)),
    ],
)
def test_a_passed_through_device(value, addresses, choices, present):
    (device,) = vm_config({"hostpci0": value}, "pve1", BUS, MAPS).hostpci
    assert (device.addresses, device.choices, device.present) == (addresses, choices, present)


def test_what_cannot_be_resolved_stays_unknown():
    denied = Unknown(Why.DENIED, "needs Sys.Audit on /")
    slot, full, mapped = vm_config(
        {"hostpci0": "41:00", "hostpci1": "42:00.0", "hostpci10": "mapping=one"}, "pve1", denied, denied
    ).hostpci
    assert slot.addresses == () and full.addresses == ("0000:42:00.0",) and mapped.addresses == ()
    assert {slot.present, full.present, mapped.present} == {denied}
    assert mapped.key == "hostpci10"


def test_details_of_a_device():
    (device,) = vm_config({"hostpci0": "41:00,mdev=nvidia-63,driver=keep"}, "pve1", BUS).hostpci
    assert (device.mdev, device.driver) == ("nvidia-63", "keep")
    assert device.device_ids == ("10de:2bb5", "10de:22e8") and device.iommu_groups == (14,)


HGX = Known((
    *(PciDevice(f"0000:{slot}:00.0", "10de:2330", None, "0302") for slot in ("1b", "2b")),
    PciDevice("0000:05:00.0", "10de:22a3", None, "0680"),  # NVSwitch
    PciDevice("0000:41:00.0", "10de:2bb1", None, "0300"), PciDevice("0000:41:00.1", "10de:22e8", None, "0403"),
    PciDevice("0000:61:00.0", "15b3:1021", None, "0207"),
))  # fmt: skip
SETS = Known([
    {"id": "pair", "map": ["node=pve1,path=0000:1b:00.0;0000:2b:00.0,id=10de:2330"]},
    {"id": "either", "map": ["node=pve1,path=0000:1b:00.0", "node=pve1,path=0000:2b:00.0", "node=pve2,path=41:00"]},
    {"id": "odd", "map": ["node=pve1,path=0000:1b:00.0", "node=pve1,path=0000:05:00.0"]},
])  # fmt: skip


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("0000:1b:00", 1), ("0000:41:00,pcie=1,x-vga=1", 1), ("0000:41:00.1", 0), ("0000:05:00.0", 0), ("61:00", 0),
        ("1b:00.0;2b:00.0", 2), ("mapping=pair,pcie=1", 2), ("mapping=either", 1), ("mapping=odd", None),
        ("0000:77:00", None), ("mapping=absent", None), ("0000:41:00.0,mdev=nvidia-63", 1),
        ("0000:1b:00,vendor-id=0x1002", None),
    ],
)  # fmt: skip
def test_how_many_gpus_an_entry_puts_on_the_guests_bus(value, count):
    """Audio functions and NVSwitches share NVIDIA's vendor id; alternatives must all be of as many GPUs."""
    (device,) = vm_config({"hostpci0": value}, "pve1", HGX, SETS).hostpci
    assert (device.gpus.value if isinstance(device.gpus, Known) else None) == count
    (blind,) = vm_config({"hostpci0": value}, "pve1", Unknown(Why.DENIED, "Sys.Audit"), SETS).hostpci
    assert isinstance(blind.gpus, Unknown)


def test_device_files_of_containers():
    config = {
        "dev0": "/dev/nvidia0,mode=0666", "dev1": "path=/dev/nvidiactl", "rootfs": "local:x",
        "lxc": [["lxc.mount.entry", "/dev/nvidia3 dev/nvidia3 none bind,optional,create=file"]],
    }  # fmt: skip
    assert nvidia_nodes(config) == {"/dev/nvidia0", "/dev/nvidia3"}


def test_device_files_by_control_group_rules():
    def rules(*lines: str) -> frozenset[str]:
        return nvidia_nodes({"lxc": [["lxc.cgroup2.devices.allow", line] for line in lines]})

    assert rules("c 195:2 rwm", "c 195:255 rwm", "c 509:* rwm") == {"/dev/nvidia2"}
    assert rules("c 195:* rwm") == {ALL_NVIDIA}
    assert rules("a") == frozenset()
    one, every = frozenset({"/dev/nvidia2"}), frozenset({ALL_NVIDIA})
    assert shared_nodes(one, every) == shared_nodes(every, one) == one
    assert shared_nodes(one, frozenset({"/dev/nvidia3"})) == frozenset()


@pytest.mark.parametrize(
    ("memory", "devices", "nics", "huge", "seconds"),
    [(2048, 0, 1, "", 35), (32768, 8, 1, "", 133), (524288, 8, 1, "", 2053), (2097152, 8, 1, "", 8197),
     (30720, 1, 0, "", 120), (4096, 0, 0, "2", 150), (32768, 0, 0, "", 32)],
)  # fmt: skip
def test_how_long_a_start_may_take(memory, devices, nics, huge, seconds):
    assert start_timeout_s(memory, devices, nics, huge) == seconds


def upid(kind: str = "qmstop", user: str = TOKEN, start: int = 0x665F0761) -> str:
    return f"UPID:pve-1:003CDE3D:025BF6DA1:{start:08X}:{kind}:174:{user}:"


def test_a_task_name_keeps_the_token():
    task = parse_upid(upid())
    assert (task.node, task.type, task.id, task.user, task.starttime) == ("pve-1", "qmstop", "174", TOKEN, 0x665F0761)


@pytest.mark.parametrize("text", [None, "", "OK", upid()[:-1], upid() + "x", upid().replace("qmstop", "qm stop"), 7])
def test_what_is_no_task_name(text):
    assert parse_upid(text) is None


def test_the_task_list():
    rows = [
        {"upid": upid("qmstop", start=5), "status": "OK", "endtime": 6, "user": "rec@pve", "tokenid": "oncall"},
        {"upid": upid("qmstart", "root@pam", 9), "status": "RUNNING"},
        {"upid": upid("vzdump", "root@pam", 7)},
        {"upid": upid("qmstop", start=5), "status": "OK", "endtime": 6},
        {"upid": "garbage"},
        "garbage",
    ]
    assert [(t.type, t.running, t.status, t.ours) for t in task_list(rows, TOKEN)] == [
        ("qmstart", True, "", False), ("vzdump", True, "", False), ("qmstop", False, "OK", True),
    ]  # fmt: skip


def test_a_token_that_sees_only_its_own_tasks_does_not_know_the_others():
    own = Known([{"upid": upid(), "status": "OK"}])
    blind = hypervisor(raw(tasks=own, node_privs=Known({})))
    assert isinstance(blind.tasks, Unknown) and blind.tasks.why is Why.DENIED
    assert any("Sys.Audit on /nodes/pve1" in gap for gap in blind.gaps)
    # a privilege that does not propagate (0) is held all the same
    sees = hypervisor(raw(tasks=own, node_privs=Known({"/nodes/pve1": {"Sys.Audit": 0}})))
    assert isinstance(sees.tasks, Known)


@pytest.mark.parametrize(
    ("ping", "state"),
    [
        (Known({"result": {}}), Known(AgentState.ANSWERS)),
        (Unknown(Why.GARBLED, "QEMU guest agent is not running"), Known(AgentState.SILENT)),
        (Unknown(Why.GARBLED, "VM 174 qmp command 'guest-ping' failed - got timeout"), Known(AgentState.SILENT)),
        (Unknown(Why.GARBLED, "No QEMU guest agent configured"), Known(AgentState.OFF)),
        (Unknown(Why.DENIED, "needs VM.Monitor"), Unknown(Why.DENIED, "needs VM.Monitor")),
        (Unknown(Why.TIMEOUT, "no answer within 12 s"), Unknown(Why.TIMEOUT, "no answer within 12 s")),
        (Unknown(Why.GARBLED, "VM 174 is not running"), Unknown(Why.GARBLED, "VM 174 is not running")),
    ],
)
def test_only_the_agents_own_silence_is_silence(ping, state):
    assert hypervisor(raw(config=Known({"agent": "1"}), agent_ping=ping)).agent == state


@pytest.mark.parametrize(
    ("ha", "resource", "state"),
    [
        ({"managed": 0}, Unknown(Why.DENIED), Known("")),
        ({"managed": 1, "state": "error"}, Unknown(Why.DENIED), Known("error")),
        ({"managed": 1}, Known({"state": "started"}), Known("started")),
        (None, Unknown(Why.ABSENT, "no such resource 'vm:174'"), Known("")),
        (None, Unknown(Why.DENIED, "needs x"), Unknown(Why.DENIED, "needs x")),
    ],
)
def test_high_availability(ha, resource, state):
    assert hypervisor(raw(status={"status": "running", "ha": ha}, ha=resource)).ha_state == state


@pytest.mark.parametrize(
    ("rows", "quorate"),
    [
        ([{"type": "cluster", "quorate": 1}], True),
        ([{"type": "cluster", "quorate": 0}], False),
        ([{"type": "node"}], True),
    ],
)
def test_quorum(rows, quorate):
    assert hypervisor(raw(cluster_status=Known(rows))).quorate == Known(quorate)


def test_storages_that_are_hidden_are_not_taken_for_active():
    config = Known({"scsi0": "fast:vm-174-disk-0", "scsi1": "slow:vm-174-disk-1"})
    rows = [{"storage": "fast", "active": 1}, {"storage": "slow", "active": 0}]
    assert hypervisor(raw(config=config, storages=Known(rows))).storages == Known((("fast", True), ("slow", False)))
    hidden = hypervisor(raw(config=config, storages=Known(rows[:1]))).storages
    assert hidden == Unknown(Why.DENIED, "needs Datastore.Audit on /storage/slow")


@pytest.mark.parametrize(
    ("job", "due"),
    [
        ({"vmid": "100,174", "next-run": 1600}, True),
        ({"vmid": "100,1740", "next-run": 1600}, False),
        ({"all": 1, "next-run": 1600}, True),
        ({"all": 1, "exclude": "174", "next-run": 1600}, False),
        ({"all": 1, "next-run": 99999}, False),
        ({"all": 1, "next-run": 1600, "enabled": 0}, False),
        ({"all": 1, "next-run": 1600, "node": "pve2"}, False),
        ({"pool": "gpu", "next-run": 1600}, True),
        ({"pool": "other", "next-run": 1600}, False),
    ],
)
def test_a_backup_that_is_about_to_begin(job, due):
    resources = Known([{"type": "qemu", "vmid": 174, "node": "pve1", "pool": "gpu"}])
    seen = raw(backup_jobs=Known([job]), node_time=Known({"time": 1000}), resources=resources)
    assert hypervisor(seen).backup_due == Known(due)


def test_a_backup_cannot_be_judged_without_a_clock():
    assert isinstance(hypervisor(raw(backup_jobs=Known([{"all": 1, "next-run": 5}]))).backup_due, Unknown)
    assert hypervisor(raw(backup_jobs=Known([]), clock_s=77)).clock_s == 77


def test_neighbours_and_what_they_share():
    rows = [
        {"type": "qemu", "vmid": 174, "node": "pve1", "status": "running"},
        {"type": "qemu", "vmid": 175, "node": "pve1", "status": "running", "name": "b"},
        {"type": "lxc", "vmid": 176, "node": "pve1", "status": "stopped", "name": "c"},
        {"type": "qemu", "vmid": 177, "node": "pve2", "status": "running", "name": "d"},
    ]
    seen = raw(
        config=Known({"hostpci0": "mapping=many"}), pci=Known([row("0000:41:00.0", 14), row("0000:42:00.0", 15)]),
        mappings=MAPS, resources=Known(rows), others=((175, Known({"hostpci0": "41:00.0", "hostpci1": "many"})),),
    )  # fmt: skip
    found = hypervisor(seen).neighbours
    assert isinstance(found, Known)
    assert [(n.vmid, n.kind.value, n.shares) for n in found.value] == [
        (175, "vm", ("0000:41:00.0", "0000:42:00.0", "iommu group 14", "iommu group 15", "mapping many")),
        (176, "container", ()),
    ]


@pytest.mark.parametrize(("ours", "theirs", "shared"), [
    ("41:00.0", "c1:00.0", True), ("c1:00.0", "42:00.0", True), ("41:00.0", "42:00.0", False),
    ("c1:00.0", "c2:00.0", False),
])  # fmt: skip
def test_nvswitches_of_one_guest_and_gpus_of_another(ours: str, theirs: str, shared: bool):
    switches = [{**row(f"0000:c{i}:00.0", 30 + i, "0x22a3"), "class": "0x068000"} for i in (1, 2)]
    gpus = [row("0000:41:00.0", 14), row("0000:42:00.0", 15)]
    rows = [{"type": "qemu", "vmid": v, "node": "pve1", "status": "running"} for v in (174, 175)]
    found = hypervisor(raw(
        config=Known({"hostpci0": ours}), pci=Known([*gpus, *switches]), resources=Known(rows),
        others=((175, Known({"hostpci0": theirs})),),
    )).neighbours  # fmt: skip
    assert isinstance(found, Known)
    assert any("NVLink fabric" in word for word in found.value[0].shares) is shared


def test_a_neighbour_whose_configuration_is_hidden_leaves_it_open():
    rows = Known([{"type": "qemu", "vmid": 175, "node": "pve1", "status": "running"}])
    hidden = hypervisor(
        raw(resources=rows, others=((175, Unknown(Why.DENIED, "needs VM.Audit on /vms/175")),))
    ).neighbours
    assert isinstance(hidden, Unknown) and "guest 175: needs VM.Audit" in hidden.detail


NAMES = (
    "version", "config", "pending", "agent_ping", "agent_net", "tasks", "node_status", "node_time", "ha", "pci",
    "cluster_status", "mappings", "storages", "resources", "backup_jobs", "node_privs", "vms_privs",
)  # fmt: skip
KEYS = (
    "hostpci0", "lxc", "dev0", "memory", "agent", "smbios1", "net0", "scsi0", "type", "vmid", "node", "id", "map",
    "key", "pending", "delete", "upid", "status", "uptime", "total", "used", "free", "quorate", "storage", "active",
    "all", "next-run", "pool", "ip-addresses", "inet", "result", "time", "version", "iommugroup", "ha", "managed",
    "tags",
)  # fmt: skip
ATOMS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(
    ("41:00", "mapping=one,pcie=1", "qemu", "lxc", "pve1", "cluster", "174", "node=pve1,path=0000:41:00.0", upid())
)  # fmt: skip
JSON = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6)
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(NAMES), JSON), st.dictionaries(st.sampled_from(KEYS), JSON), JSON)
def test_no_answer_of_any_shape_breaks_the_reading(answers, status, other):
    given_all = {name: Known(value) for name, value in answers.items()}
    assert hypervisor(raw(**given_all, status=status, others=((175, Known(other)),))).vmid == 174


@pytest.mark.parametrize("value", [None, "text", 7, {}])
def test_what_is_no_list_is_no_empty_list(value):
    found = hypervisor(raw(**dict.fromkeys(NAMES, Known(value))))
    for reading in (found.pending, found.tasks, found.quorate, found.neighbours, found.backup_due, found.storages,
                    found.host_memory, found.host_uptime_s):  # fmt: skip
        assert isinstance(reading, Unknown)


def test_pending_changes_only():
    rows = [
        {"key": "cores", "value": 4, "pending": 8},
        {"key": "net1", "value": "x", "delete": 1},
        {"key": "name", "value": "n"},
    ]
    found = hypervisor(raw(pending=Known(rows))).pending
    assert isinstance(found, Known)
    assert [(p.key, p.now, p.then, p.delete) for p in found.value] == [
        ("cores", "4", "8", False),
        ("net1", "x", "", True),
    ]


def test_addresses_of_agent_and_container():
    agent = Known({"result": [
        {"name": "lo", "ip-addresses": [{"ip-address": "127.0.0.1"}]},
        {"name": "eth0", "ip-addresses": [{"ip-address": a} for a in ("10.1.230.174", "fe80::1%eth0", "x")]},
        {"name": "eth1"},
    ]})  # fmt: skip
    assert hypervisor(raw(agent_net=agent)).agent_addresses == ("10.1.230.174",)
    container = Known([{"name": "eth0", "inet": "10.0.0.5/24", "inet6": "fd00::5/64"}])
    assert hypervisor(raw(agent_net=container)).agent_addresses == ("10.0.0.5", "fd00::5")


def test_property_strings():
    assert properties("0000:41:00,pcie=1,x-vga=0", "host") == {"host": "0000:41:00", "pcie": "1", "x-vga": "0"}
    assert properties("", "host") == {}
