"""What the agent tells of the guest as a system: its init and who objects to a restart, modules, MPS, FUSE mounts."""

from __future__ import annotations

import re

from recover.core.clean import clean
from recover.core.read.report import Report
from recover.model.guest import BootFacts, FuseMount, Inhibitor, Module, MpsClient
from recover.model.memory import MemoryLimit
from recover.model.reading import Known, Reading


def boot(report: Report) -> Reading[BootFacts]:
    row = report.one("boot")
    if row is None:
        return report.missing("boot")
    found = tuple(
        Inhibitor(clean(item.text("who"), 120), clean(item.text("why"), 200), item.text("mode", limit=40))
        for item in row.rows("inhibitors")
    )
    return Known(BootFacts(row.text("init", "?", 60), found, row.flag("kexec"), row.text("state", limit=40)))


def modules(report: Report) -> Reading[tuple[Module, ...]]:
    row = report.one("driver-modules")
    if row is None:
        return report.missing("driver-modules")
    return Known(
        tuple(
            Module(item.text("name", limit=60), item.number("refs"), item.texts("by"), item.text("state", "Live", 20))
            for item in row.rows("list")
        )
    )


_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,252}")


def pods(report: Report) -> tuple[tuple[str, str], ...]:
    """(uid, "namespace/name"); a name that no API server would take is not believed."""
    row = report.one("pods")
    found = []
    for item in row.items("list") if row is not None else ():
        words = item if isinstance(item, list) and all(isinstance(word, str) for word in item) else []
        if len(words) == 3 and all(_NAME.fullmatch(word) for word in words):
            found.append((words[0], f"{words[1]}/{words[2]}"))
    return tuple(found)


def memory_limits(report: Report) -> tuple[MemoryLimit, ...]:
    row = report.one("memory-limits")
    return tuple(
        MemoryLimit(i.text("of"), i.text("path"), i.number("limit"), i.number("used"), i.number("oom_kills"))
        for i in (row.rows("list") if row is not None else ())
        if i.number("limit") > 0
    )


def mps(report: Report) -> tuple[MpsClient, ...]:
    row = report.one("mps")
    rows = row.rows("list") if row is not None else ()
    return tuple(MpsClient(item.number("server"), item.number("client")) for item in rows)


def stuck_fuse(report: Report) -> tuple[FuseMount, ...]:
    row = report.one("fuse")
    rows = row.rows("list") if row is not None else ()
    return tuple(
        FuseMount(clean(item.text("path"), 200), item.text("connection", limit=20), item.number("waiting"))
        for item in rows
    )
