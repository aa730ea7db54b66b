"""Small words for the steps' tests: a group and the finding that names it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recover.model.act import Act, Line, Plan, Signal
from recover.model.host import Bridge, Holder, Host, PciFunction
from recover.model.hypervisor import HostMemory, HostPci, Hypervisor, VmConfig
from recover.model.process import Group, Health, Owner, OwnerKind, ProcessId
from recover.model.reading import Known
from recover.model.snapshot import Snapshot
from recover.model.verdict import Finding, Scope
from recover.steps.table import ALL_STEPS
from tests.core import builders as b

UNIT = Owner(OwnerKind.SYSTEMD, "sglang.service")


def group(*pids: int, health: Health = Health.DEAD, owner: Owner = Owner(OwnerKind.NONE), **changes: Any) -> Group:
    members = tuple(b.pid(p) for p in pids)
    base = Group(str(members[0]), "sglang", members, owner, health, "", title=f"server-{pids[0]}")
    return replace(base, **changes)


def dead(where: str | None, cure: Scope = Scope.PROCESS, signal: str = "dead-group") -> Finding:
    return Finding(signal, "a dead group", cure, where)


def plan(step: str, snapshot: Snapshot, *findings: Finding, **params: Any) -> Plan:
    return ALL_STEPS[step].plan(snapshot, findings, ALL_STEPS[step].with_defaults(params))


def plan_for(step: str, snapshot: Snapshot, **params: Any) -> Plan:
    """The plan when each dead or hung group of the look is named by a finding."""
    sick = [g for g in snapshot.groups if g.health in (Health.DEAD, Health.HUNG)]
    return plan(step, snapshot, *(dead(g.key) for g in sick), **params)


def acts(plan: Plan) -> list[Any]:
    assert isinstance(plan, Line), plan
    return [act.do for act in plan.acts]


def must(plan: Plan) -> list[bool]:
    assert isinstance(plan, Line), plan
    return [a.must for a in plan.acts if isinstance(a, Act)]


def signalled(plan: Plan) -> set[ProcessId]:
    return {m for do in acts(plan) if isinstance(do, Signal) for m in do.members} if isinstance(plan, Line) else set()


def pci(index: int = 0, **changes: Any) -> HostPci:
    address = f"0000:{0x41 + index:02x}:00.0"
    base = HostPci(
        f"hostpci{index}", address, (address,), device_ids=("10de:2330",), iommu_groups=(index,), present=Known(True)
    )
    return replace(base, **changes)


def vm(of_config: dict[str, Any] | None = None, /, **changes: Any) -> Hypervisor:
    """The VM of the builders with eight GPUs passed through, on a host that is fine."""
    hostpci = tuple(pci(i) for i in range(b.GPUS))
    base = VmConfig("node-174", b.RAM_MIB, b.SMBIOS, frozenset({b.MAC}), hostpci, agent=True, nics=1)
    made = b.hypervisor(
        config=Known(replace(base, **(of_config or {}))),
        host_memory=Known(HostMemory(b.RAM_MIB + 64 * 1024, b.RAM_MIB + 20 * 1024, 40 * 1024)),
        host_uptime_s=Known(5_000_000),
        clock_s=1_790_000_000,
    )
    return replace(made, **changes)


def node(**changes: Any) -> Host:
    """The VM's node by its root shell: each GPU alone below its own port and in its own group."""
    functions = tuple(
        PciFunction(f"0000:{0x41 + i:02x}:00.0", "10de:2330", "030200", "vfio-pci", i, f"0000:40:{i + 1:02x}.1",
                    ("flr", "bus"), can_reset=True, has_method=True, answers=Known(True), link_width=16)
        for i in range(b.GPUS)
    )  # fmt: skip
    base = Host(
        "pve1", "pve1", "host-boot", "6.8.12-4-pve", 5e6,
        functions=functions,
        bridges=tuple(Bridge(f.bridge, (f.address,), resets=True) for f in functions),
        groups=tuple((i, (f.address,)) for i, f in enumerate(functions)),
        holders=tuple(Holder(7000, 1, "kvm", f"/dev/vfio/{i}", "vm 174") for i in range(b.GPUS)),
        qemu=(7000,),
    )  # fmt: skip
    return replace(base, **changes)
