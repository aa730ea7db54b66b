"""What the agent told of a Proxmox node becomes a Host; a part that is missing is a gap, never an empty list."""

from __future__ import annotations

import re

from recover.core.read.report import Report
from recover.core.read.rows import Row
from recover.model.host import Bridge, CtProcess, Holder, Host, HostGpu, HugePages, PciFunction, Reservation
from recover.model.reading import Known, Reading, Unknown, Why

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PARTS = ("holders", "reservations", "qemu", "functions", "bridges", "groups")


def read_host(report: Report, node: str) -> Host | None:
    """None where not even the node's name came."""
    hello = report.one("host")
    if hello is None:
        return None
    missing = [name for name in _PARTS if report.one(name) is None]
    qemu, container, gpus = report.one("qemu"), report.one("container"), report.one("host-gpus")
    return Host(
        node=node,
        hostname=hello.text("hostname", limit=100),
        boot_id=hello.text("boot_id", limit=60),
        kernel=hello.text("kernel", limit=100),
        uptime_s=hello.real("uptime"),
        root=hello.flag("root"),
        functions=tuple(_function(row) for row in report.table("functions") if _address(row.text("address"))),
        bridges=tuple(
            Bridge(row.text("address"), _addresses(row, "below"), row.flag("resets")) for row in report.table("bridges")
        ),
        groups=tuple((row.number("group", -1), _addresses(row, "members")) for row in report.table("groups")),
        holders=tuple(
            Holder(row.number("pid"), row.number("start"), row.text("comm", limit=30), row.text("file", limit=60),
                   row.text("guest", limit=20), row.text("unit", limit=100))
            for row in report.table("holders")
        ),
        reservations=tuple(
            Reservation(row.text("address"), row.number("vmid"), row.text("what", limit=40))
            for row in report.table("reservations")
        ),
        qemu=qemu.numbers("pids") if qemu is not None else (),
        gpus=tuple(
            HostGpu(row.text("bus", limit=20), row.text("uuid", limit=60), row.maybe("minor"))
            for row in report.table("host-gpus")
        ),
        device_files=gpus.texts("files") if gpus is not None and "files" in gpus.raw else None,
        container=tuple(
            CtProcess(row.number("pid"), row.number("start"), row.number("ns_pid"), row.text("comm", limit=30),
                      row.text("state", limit=2))
            for row in report.table("container")
        ),
        hugepages=tuple(
            HugePages(row.number("node", -1), row.number("kib"), row.number("all"), row.number("free"),
                      row.number("surplus"))
            for row in report.table("hugepages")
        ),
        init_start=container.number("init_start") if container is not None else 0,
        complete=not missing,
        gaps=(*report.gaps(), *(f"{name}: not told" for name in missing)),
    )  # fmt: skip


def _address(text: str) -> bool:
    return _ADDRESS.fullmatch(text) is not None


def _addresses(row: Row, key: str) -> tuple[str, ...]:
    return tuple(text for text in row.texts(key) if _address(text))


def _function(row: Row) -> PciFunction:
    hardware = row.row("hw")
    cold = row.raw.get("d3cold")
    return PciFunction(
        address=row.text("address"),
        ids=row.text("ids", limit=20).lower(),
        pci_class=row.text("class", limit=10),
        driver=row.text("driver", limit=40),
        iommu_group=row.maybe("group"),
        bridge=row.text("bridge") if _address(row.text("bridge")) else "",
        physfn=row.text("physfn") if _address(row.text("physfn")) else "",
        virtfns=_addresses(row, "virtfns"),
        resets=row.texts("methods")[:8],
        can_reset=row.flag("can_reset"),
        has_method=row.flag("has_method"),
        power_state=row.text("power", limit=20),
        runtime=row.text("runtime", limit=20),
        d3cold_allowed=cold if isinstance(cold, bool) else None,
        link_width=_width(hardware.text("width")),
        link_speed=hardware.text("speed", limit=30),
        link_width_max=_width(hardware.text("width_max")),
        answers=_answers(hardware),
        gave_up=row.text("gave_up", limit=300),
    )


def _width(text: str) -> int | None:
    return int(text) if text.isdecimal() and 0 < int(text) <= 32 else None


def _answers(hardware: Row) -> Reading[bool]:
    if hardware.flag("late"):
        return Unknown(Why.TIMEOUT, "its configuration space did not come back")
    value = hardware.raw.get("answers")
    if isinstance(value, bool):
        return Known(value)
    return Unknown(Why.ABSENT, hardware.text("crash", "it sleeps, or it is a virtual function", 200))
