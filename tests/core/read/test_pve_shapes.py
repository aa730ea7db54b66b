"""What PVE 7, 8 and 9 and what stands before them may answer: another spelling says the same, garbage never says yes.

`WORLDS` are clusters in which one answer forbids a power cycle. The property takes any leaf of any answer and puts
garbage there: the power cycle must still be refused, by this guard or another.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recover.core.guards import Context, refusal
from recover.core.read.pve import PveRaw, hypervisor
from recover.model.act import Line, Refuse
from recover.model.hypervisor import GuestKind, Hypervisor
from recover.model.reading import Known, Unknown
from recover.model.verdict import Finding, Scope
from recover.steps.table import ALL_STEPS
from tests.core import builders as b

STEP = ALL_STEPS["power-cycle-vm"]
STUCK = (Finding("gpu-memory-held", "held", Scope.VM, None),)
NOW = 1_700_000_000
GIB = 1 << 30
World = dict[str, Any]
Leaf = tuple[str | int, ...]


def upid(kind: str = "qmstart", at: int = NOW - 90_000) -> str:
    return f"UPID:pve1:0000A1B2:00112233:{at:08X}:{kind}:174:kim@pam:"


def gpu(bus: str, group: int) -> dict[str, Any]:
    ids = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
    return {"id": f"0000:{bus}:00.0", "iommugroup": group, **ids}


GOOD: World = {
    "status": {"vmid": 174, "status": "running", "qmpstatus": "running", "name": "node-174", "ha": {"managed": 0},
               "pid": 41000, "uptime": 90000, "tags": "gpu", "agent": 1},
    "config": {"name": "node-174", "memory": "65536", "smbios1": f"uuid={b.SMBIOS}", "agent": "1", "numa": 1,
               "net0": f"virtio={b.MAC.upper()},bridge=vmbr0", "hostpci0": "0000:41:00.0,pcie=1", "args": "-cpu host",
               "hostpci1": "mapping=gpu0,pcie=1", "scsi0": "local-lvm:vm-174-disk-0,size=32G", "onboot": 1},
    "pending": [{"key": "cores", "value": 8}],
    "tasks": [{"upid": upid(), "status": "OK", "endtime": NOW - 89_990, "node": "pve1", "user": "kim@pam"}],
    "node_status": {"memory": {"total": 512 * GIB, "used": 80 * GIB, "free": 432 * GIB}, "uptime": 8_640_000},
    "node_time": {"time": NOW, "localtime": NOW + 3600},
    "cluster_status": [{"type": "cluster", "name": "lab", "quorate": 1, "nodes": 1},
                       {"type": "node", "name": "pve1", "online": 1}],
    "pci": [gpu("41", 14), gpu("42", 15), gpu("43", 16)],
    "mappings": [{"id": "gpu0", "map": ["id=10de:2330,node=pve1,path=0000:42:00.0"]},
                 {"id": "gpu1", "map": ["id=10de:2330,node=pve1,path=0000:43:00.0"]}],
    "storages": [{"storage": "local-lvm", "active": 1, "enabled": 1}],
    "resources": [{"type": "qemu", "vmid": 174, "node": "pve1", "status": "running", "name": "node-174"},
                  {"type": "qemu", "vmid": 175, "node": "pve1", "status": "running", "name": "node-175"}],
    "backup_jobs": [{"id": "backup-1", "vmid": "100", "next-run": NOW + 600, "enabled": 1},
                    {"id": "backup-2", "all": 1, "next-run": NOW + 90_000, "enabled": 1}],
    "node_privs": {"/nodes/pve1": {"Sys.Audit": 1}}, "vms_privs": {"/vms": {"VM.Audit": 1}},
    "version": {"version": "9.2.6"}, "agent_ping": {"result": {}}, "ha": {"state": "started"},
    "near": {"name": "node-175", "hostpci0": "mapping=gpu1"},
}  # fmt: skip
HELD = {"key": "cores", "value": 8}
FORBIDDING: dict[str, tuple[str, Leaf, Any]] = {
    "locked": ("lock", ("status", "lock"), "backup"),
    "tagged": ("tag", ("status", "tags"), "gpu;Do-Not-Recover"),
    "tagged-in-the-configuration": ("tag", ("config", "tags"), "gpu do-not-recover"),
    **{f"qemu-{word}": ("qmpstatus", ("status", "qmpstatus"), word)
       for word in ("paused", "suspended", "prelaunch", "io-error", "save-vm", "inmigrate", "finish-migrate", "debug")},
    "stopped": ("vm-stopped", ("status", "status"), "stopped"),
    "no-quorum": ("quorum", ("cluster_status", 0, "quorate"), 0),
    "a-task-runs": ("running-task", ("tasks", 0), {"upid": upid("vzdump"), "status": "RUNNING"}),
    "somebody-stopped-it": ("foreign-task", ("tasks", 0),
                            {"upid": upid("qmstop", NOW - 60), "status": "OK", "endtime": NOW - 50}),
    "a-change": ("pending", ("pending", 0), HELD | {"pending": 9}),
    "a-change-that-takes-out": ("pending", ("pending", 0), HELD | {"delete": 1}),
    "storage-down": ("storage", ("storages", 0, "active"), 0),
    "no-memory": ("host-memory", ("node_status", "memory"), {"total": 512 * GIB, "used": GIB, "free": GIB}),
    "device-gone": ("device", ("pci", 0, "id"), "0000:99:00.0"),
    "backup-due": ("backup-due", ("backup_jobs", 1, "next-run"), NOW + 60),
    "shared": ("shared-device", ("near", "hostpci0"), "41:00"),
    "shared-mapping": ("shared-device", ("near", "hostpci0"), "mapping=gpu0"),
    "shared-group": ("shared-device", ("pci", 2, "iommugroup"), 15),
    "protected": ("protection", ("config", "protection"), 1),
    "template": ("template", ("config", "template"), 1),
    **{f"ha-{state}": (guard, ("status", "ha"), {"managed": 1, "state": state})
       for state, guard in (("error", "ha-error"), ("migrate", "ha-busy"), ("fence", "ha-busy"),
                            ("request_stop", "ha-busy"), ("a-new-state", "ha-busy"))},
    "several-entries": ("mapping-choices", ("mappings", 0, "map"),
                        ["node=pve1,path=0000:42:00.0", "node=pve1,path=0000:44:00.0"]),
    "kept-driver": ("driver-keep", ("config", "hostpci0"), "0000:41:00.0,driver=keep"),
    "vgpu": ("vgpu", ("config", "hostpci0"), "0000:41:00.0,mdev=nvidia-63"),
    "raw-args": ("args", ("config", "args"), "-device vfio-pci,host=0000:41:00.0"),
    "fragile": ("fragile-device", ("pci", 0, "device"), "0x2bb1"),
    "huge-pages": ("hugepages", ("config", "hugepages"), "1024"),
}  # fmt: skip
GARBAGE = (None, {}, [], ["x"], {"x": 1})
# Null is Perl's undef, and of these undef means "not so". A tag that can't be read was never written.
MEANS_NO: dict[Leaf, tuple[object, ...]] = {
    ("status", "lock"): (None,), ("config", "protection"): (None,), ("config", "template"): (None,),
    ("status", "tags"): GARBAGE, ("config", "tags"): GARBAGE,
    # then the resource's own state is taken, and that one is asked for
    ("status", "ha", "managed"): (None,), ("status", "ha", "state"): (None,),
}  # fmt: skip


def at(world: World, leaf: Leaf) -> Any:
    found: Any = world
    for key in leaf:
        found = found[key]
    return found


def put(world: World, leaf: Leaf, value: object) -> World:
    changed = copy.deepcopy(world)
    at(changed, leaf[:-1])[leaf[-1]] = value
    return changed


def leaves(value: Any, above: Leaf = ()) -> Iterator[Leaf]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else None
    if keys is None:
        yield above
    for key in keys or ():
        yield from leaves(value[key], (*above, key))


def seen(world: World) -> Hypervisor:
    given_all = {name: Known(value) for name, value in world.items() if name not in ("status", "near")}
    return hypervisor(PveRaw("lab", "pve1", 174, GuestKind.VM, "rec@pve!oncall", world["status"],
                             others=((175, Known(world["near"])),), **given_all))  # fmt: skip


def says(world: World) -> str:
    """The guard that refuses a power cycle; empty: it is planned."""
    snapshot = b.healthy_snapshot(hypervisor=seen(world))
    plan = STEP.plan(snapshot, STUCK, STEP.with_defaults({}))
    refused = refusal(snapshot, STEP, Context(evict=True)) or plan
    assert isinstance(refused, Refuse | Line), refused
    return refused.guard if isinstance(refused, Refuse) else ""


WORLDS = {name: put(GOOD, leaf, value) for name, (_, leaf, value) in FORBIDDING.items()}


def test_the_good_one_is_planned() -> None:
    assert says(GOOD) == "" and not seen(GOOD).gaps


@pytest.mark.parametrize("name", FORBIDDING)
def test_each_is_refused_for_its_reason(name: str) -> None:
    assert says(WORLDS[name]) == FORBIDDING[name][0]


@pytest.mark.parametrize("status", ["running", "paused", "prelaunch", "internal-error", "unknown", None])
def test_only_a_neighbour_that_is_stopped_has_let_go_of_its_devices(status: str | None) -> None:
    """pvestatd sends QEMU's own word to the cluster's list, and nothing where it is late."""
    shared = put(WORLDS["shared"], ("resources", 1, "status"), status)
    assert says(shared) == "shared-device"
    assert says(put(shared, ("resources", 1, "status"), "stopped")) == ""


@pytest.mark.parametrize("hidden", ["gpu0", "gpu1"])
def test_a_mapping_that_is_not_shown_is_not_known(hidden: str) -> None:
    """PVE leaves out mappings on which the token holds nothing: ours is not gone, and a neighbour's may be ours."""
    world = copy.deepcopy(GOOD)
    world["mappings"] = [m for m in world["mappings"] if m["id"] != hidden]
    assert says(world) == ("device" if hidden == "gpu0" else "shared-device")
    found = seen(world)
    if hidden == "gpu1":
        assert isinstance(found.neighbours, Unknown) and "Mapping.Audit on /mapping/pci/gpu1" in found.neighbours.detail
    assert any("Mapping.Audit on /mapping/pci/" in gap for gap in found.gaps), found.gaps


@pytest.mark.parametrize(("ours", "theirs", "switch", "models"), [
    ("2235", "2235", False, ("A40",)), ("20b5", "20f1", False, ("A100 PCIe",)), ("2235", "2230", False, ()),
    ("2bb1", "2bb1", False, ()), ("2330", "2330", False, ("H100 SXM5",)), ("2330", "2330", True, ()),
])  # fmt: skip
def test_gpus_that_a_bridge_may_join_with_another_guests(
    ours: str, theirs: str, switch: bool, models: tuple[str, ...]
) -> None:
    """By model alone; where there are NVSwitches the links go to them, and those are on the bus."""
    world = copy.deepcopy(GOOD)
    for row, device in zip(world["pci"], (ours, ours, theirs), strict=True):
        row["device"] = f"0x{device}"
    if switch:
        world["pci"].append({**gpu("c1", 30), "device": "0x22a3", "class": "0x068000"})
    near = seen(world).neighbours
    assert isinstance(near, Known) and [(n.shares, n.may_be_joined) for n in near.value] == [((), models)]


def test_a_running_guest_that_was_not_asked_may_share_all() -> None:
    """As where a node has more of them than a look asks. Caught, planted: what was not asked taken for no devices."""
    world = copy.deepcopy(GOOD)
    row = {"type": "qemu", "vmid": 176, "node": "pve1", "status": "running", "name": "c"}
    for changes, guard in (({}, "shared-device"), ({"status": "stopped"}, ""), ({"node": "pve2"}, "")):
        world["resources"] = [*GOOD["resources"], {**row, **changes}]
        assert says(world) == guard, changes


EVERYWHERE = [(name, leaf) for name, world in WORLDS.items() for leaf in leaves(world)]


@pytest.mark.parametrize("name", FORBIDDING)
def test_garbage_in_what_forbids_it_forbids_it_too(name: str) -> None:
    reason = FORBIDDING[name][1]
    for leaf in (one for one in leaves(WORLDS[name]) if one[: len(reason)] == reason):
        for garbage in GARBAGE:
            assert garbage in MEANS_NO.get(leaf, ()) or says(put(WORLDS[name], leaf, garbage)), (leaf, garbage)


@given(st.sampled_from(EVERYWHERE), st.sampled_from(GARBAGE))
@example(("qemu-paused", ("status", "qmpstatus")), None)
@example(("backup-due", ("backup_jobs", 1, "next-run")), None)
@example(("backup-due", ("backup_jobs", 1, "enabled")), {})
@example(("a-task-runs", ("tasks", 0, "upid")), None)
@example(("no-quorum", ("cluster_status", 0, "type")), None)
@example(("shared", ("near", "hostpci0")), {})
@example(("shared", ("resources", 1, "node")), [])
@example(("shared-group", ("pci", 2, "iommugroup")), None)
@example(("several-entries", ("mappings", 0, "map", 1)), None)
@example(("ha-error", ("status", "ha", "managed")), {})
@example(("no-memory", ("config", "memory")), None)
@example(("storage-down", ("config", "scsi0")), [])
def test_garbage_never_turns_a_no_into_a_yes(where: tuple[str, Leaf], garbage: object) -> None:
    """Caught, planted: `str(row.get(...))`, which reads null as a state that no guard knows (each `example` did)."""
    name, leaf = where
    if garbage not in MEANS_NO.get(leaf, ()):
        assert says(put(WORLDS[name], leaf, garbage)), (name, leaf, garbage)


def spelt(value: object) -> list[object]:
    """The same value as other releases and other JSON encoders write it."""
    if value in (0, 1):
        return [str(value), bool(value), str(bool(value)), *([None, ""] if value == 0 else ["on"])]
    if isinstance(value, int):
        return [str(value), float(value)]
    return [int(value)] if isinstance(value, str) and value.isdecimal() else []


# `managed` is always sent, so null is not its 0: then the resource itself is asked.
SPELT = [
    (name, leaf, way)
    for name, world in {"good": GOOD, **WORLDS}.items()
    for leaf in leaves(world)
    for way in spelt(at(world, leaf))
    if way is not None or leaf != ("status", "ha", "managed")
]


def test_every_answer_of_the_good_one_in_every_spelling() -> None:
    """Caught, planted: a flag that knows 1 and not true; a number that is not read from text."""
    for _, leaf, way in (one for one in SPELT if one[0] == "good"):
        assert says(put(GOOD, leaf, way)) == "", (leaf, way)


@given(st.sampled_from(SPELT))
def test_another_spelling_says_the_same(spelling: tuple[str, Leaf, object]) -> None:
    name, leaf, way = spelling
    world = WORLDS.get(name, GOOD)
    assert says(put(world, leaf, way)) == says(world), spelling
