"""The agent's JSON lines become a `Guest`; a report that broke off becomes a guest with gaps; nothing here raises."""

from __future__ import annotations

import json
from collections.abc import Iterator

from recover.core.clean import clean
from recover.core.read import agent_gpus, agent_processes, agent_system, procfs
from recover.core.read.report import Report, unknown
from recover.core.read.rows import Row
from recover.model.guest import Guest, GuestIdentity, Mark, Marker, Service
from recover.model.memory import KernelLine, Ram
from recover.model.process import ServerAnswer
from recover.model.reading import Known, Reading, Unknown, Why

_RAW_LINE = 2_000_000


def parse_lines(stdout: bytes) -> Report:
    """Every line that is a JSON object with a kind; what else the machine printed (banners) is only counted."""
    report = Report()
    for raw in stdout.split(b"\n"):
        line = raw.strip()
        if not line:
            continue
        text = line.decode("utf-8", "replace")
        report.raw.append(clean(text, _RAW_LINE))
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            report.garbage += 1
            continue
        if isinstance(value, dict) and isinstance(value.get("k"), str):
            report.add(value["k"], Row(value))
        else:
            report.garbage += 1
    return report


def read_guest(stdout: bytes) -> Guest | None:
    """None when the agent never said who it is: then nothing of it can be believed."""
    report = parse_lines(stdout)
    hello = report.one("hello")
    if hello is None or not hello.text("boot_id"):
        return None
    boot = hello.text("boot_id")
    found = agent_processes.with_restored(agent_processes.processes(report, boot), report)
    gpus, driver, more = agent_gpus.gpus(report)
    return Guest(
        identity=_identity(hello),
        mark=Mark(boot, hello.real("uptime")),
        ram=_ram(report),
        driver=driver,
        gpus=gpus,
        processes=found,
        kernel=_kernel(report),
        leftovers=agent_processes.leftovers(report, found),
        services=_services(report),
        servers=tuple(_server(row) for row in report.all("server")),
        pci_gpus=agent_gpus.pci_gpus(report),
        marker=_marker(report),
        root=hello.flag("root"),
        complete=report.one("end") is not None,
        gaps=tuple(dict.fromkeys([*report.gaps(), *more, *_gaps(report, hello)])),
        raw=tuple(report.raw),
        boot=agent_system.boot(report),
        mps=agent_system.mps(report),
        pods=agent_system.pods(report),
        memory_limits=agent_system.memory_limits(report),
        stuck_fuse=agent_system.stuck_fuse(report),
        modules=agent_system.modules(report),
    )


def _gaps(report: Report, hello: Row) -> Iterator[str]:
    end = report.one("end")
    if end is None:
        yield f"report: timeout: the agent's report broke off after {report.last}"
    if not hello.flag("root"):
        yield "root: denied: not root: other users' processes and the kernel log may be out of sight"
    for left in end.rows("abandoned") if end is not None else ():
        yield f"probe: timeout: child {left.number('pid')} hangs in {left.text('what')} and can't be ended"
    if report.garbage:
        yield f"report: garbled: {report.garbage} lines were not the agent's"


def _identity(hello: Row) -> GuestIdentity:
    dmi = hello.row("dmi_uuid")
    uuid: Reading[str] = unknown(dmi)
    if dmi.text("v"):
        uuid = Known(dmi.text("v").lower())
    return GuestIdentity(
        hostname=hello.text("hostname", limit=255),
        boot_id=hello.text("boot_id"),
        dmi_uuid=uuid,
        macs=frozenset(mac.lower() for mac in hello.texts("macs")),
        kernel=hello.text("kernel"),
        machine_id=hello.text("machine_id"),
        init_start=hello.number("init_start"),
        container=hello.flag("container"),
        btime_s=hello.number("btime"),
    )


def _ram(report: Report) -> Reading[Ram]:
    row = report.one("ram")
    if row is None:
        return report.missing("ram")
    anon = sum(agent_processes.anon_kib(item) for item in report.table("procs"))
    return procfs.ram(row.whole("text"), anon, row.number("cache"))


def _kernel(report: Report) -> Reading[tuple[KernelLine, ...]]:
    row = report.one("kernel")
    if row is None:
        return report.missing("kernel-log")
    lines = []
    for item in row.items("lines"):
        if isinstance(item, list) and len(item) == 2 and isinstance(item[0], int) and isinstance(item[1], str):
            lines.append(KernelLine(item[0], clean(item[1])))
    return Known(tuple(lines))


def _services(report: Report) -> Reading[tuple[Service, ...]]:
    row = report.one("services")
    if row is None:
        return report.missing("services")
    return Known(tuple(service(item) for item in row.rows("list")))


def service(item: Row) -> Service:
    return Service(
        manager=item.text("manager"),
        name=item.text("name"),
        state=item.text("state"),
        main_pid=item.number("pid"),
        restart=item.text("restart"),
        enabled=item.text("enabled"),
        restarts=item.number("restarts"),
        uid=item.maybe("uid"),
        within=item.text("within"),
        unit=item.text("unit"),
        id=item.text("id", limit=80),
    )


def _server(row: Row) -> ServerAnswer:
    return ServerAnswer(
        url=row.text("url"),
        outcome=row.text("outcome", "error"),
        status=row.maybe("status"),
        seconds=row.real("seconds"),
        detail=row.text("detail", limit=300),
        tokens=row.maybe("tokens"),
        running=row.maybe("running"),
        waiting=row.maybe("waiting"),
        pid=row.number("pid"),
    )


def _marker(report: Report) -> Reading[Marker | None]:
    row = report.one("marker")
    if row is None:
        return report.missing("marker")
    if row.raw.get("value") is None:
        return Known(None)
    held = row.row("value")
    if not held.text("run"):
        return Unknown(Why.GARBLED, "a marker that names no run")
    return Known(
        Marker(
            run=held.text("run"),
            who=held.text("who"),
            host=held.text("host"),
            rung=held.text("rung"),
            expires_uptime_s=held.real("expires"),
        )
    )
