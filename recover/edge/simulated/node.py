"""What is seen of a simulated guest from its node: by the API and by a root shell."""

from __future__ import annotations

from recover.edge.simulated.state import BASE_USED_MIB, GAVE_UP, GIB, HOST_BOOT, MAC, TOTAL_MIB, UUID, State
from recover.model.host import Bridge, Holder, Host, PciFunction
from recover.model.hypervisor import (
    AgentState,
    GuestKind,
    HostMemory,
    HostPci,
    Hypervisor,
    VmConfig,
)
from recover.model.reading import Known
from recover.model.snapshot import Baseline, GpuBaseline


class Node(State):
    def _hypervisor(self) -> Hypervisor:
        host_used = 64 * GIB + (TOTAL_MIB if self.vm.status == "running" else 0)
        total = 512 * GIB + 64 * GIB
        pci = tuple(
            HostPci(f"hostpci{i}", f"0000:{i + 0x41:02x}:00", (f"0000:{i + 0x41:02x}:00.0",), device_ids=("10de:2330",),
                    iommu_groups=(i + 20,), present=Known(not (self.pci_off and i == 0)))
            for i in range(self.gpus)
        )  # fmt: skip
        config = VmConfig(
            "node-174", TOTAL_MIB, UUID, frozenset({MAC}), pci, agent=True, nics=1, storages=("local-zfs",)
        )
        return Hypervisor(
            cluster="pve",
            node="pve1",
            vmid=174,
            kind=GuestKind.VM,
            status=self.vm.status,
            qmpstatus=Known(self.vm.status),
            config=Known(config),
            pending=Known(()),
            lock=self.fault.lock,
            ha_state=Known(""),
            quorate=Known(True),
            tasks=Known(tuple(reversed(self.vm.tasks))),
            agent=Known(AgentState.SILENT if self._agent_silent() else AgentState.ANSWERS),
            host_memory=Known(HostMemory(total, host_used, total - host_used)),
            storages=Known((("local-zfs", True),)),
            neighbours=Known(()),
            uptime_s=int(self.clock.now() - self.vm.qemu_at),
            pid=1000 + self.vm.boot,
            name="node-174",
            version="9.1",
            backup_due=Known(False),
            host_uptime_s=Known(int(self.clock.now()) - 1_790_000_000),
            clock_s=int(self.clock.now()),
        )

    def _host(self) -> Host:
        """The node: each GPU alone below its own port and in its own group."""
        functions = tuple(
            PciFunction(self._address(i), "10de:2330", "030200", "vfio-pci", i + 20, f"0000:40:{i + 1:02x}.1",
                        ("flr", "bus"), True, True, "D0", "active", link_width=16, link_width_max=16,
                        answers=Known(not (self.pci_lost and i == 0)),
                        gave_up=GAVE_UP if self.pci_lost and i == 0 else "")
            for i in range(int(self.pci_off), self.gpus)
        )  # fmt: skip
        bridges = tuple(Bridge(f.bridge, (f.address,), resets=True) for f in functions)
        running = self.vm.status == "running"
        mine = tuple(Holder(7000, 1, "kvm", f"/dev/vfio/{i + 20}", "vm 174") for i in range(self.gpus) if running)
        other = (Holder(7100, 1, self.fault.pci_holder, "/dev/vfio/20"),) if self.fault.pci_holder else ()
        return Host("pve1", "pve1", HOST_BOOT, "6.8.12-4-pve", 5e6, True, functions, bridges,
                    tuple((i + 20, (self._address(i),)) for i in range(self.gpus)), (*mine, *other),
                    qemu=(7000,) if running else ())  # fmt: skip

    def _baseline(self) -> Baseline:
        return Baseline(
            gpus=tuple(
                GpuBaseline(f"GPU-{i:08x}-0000-4000-8000-000000000174", self._bus(i), 0, 16) for i in range(self.gpus)
            ),
            ram_total_mib=TOTAL_MIB,
            ram_available_mib=TOTAL_MIB - BASE_USED_MIB,
            shmem_mib=0,
            hugepages_free=0,
            driver="580.105.08",
            kernel="6.8.0",
            dmi_uuid=UUID,
            macs=frozenset({MAC}),
            hostname="node-174",
            agent_answered=True,
        )
