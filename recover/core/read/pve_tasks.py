"""A task's name tells who started what, where and when; the token that started it is never dropped from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recover.core.read.pve_values import number, rows_of
from recover.model.hypervisor import Task

# pve-common, src/PVE/UPID.pm: process start times take nine digits after some 497 days
_UPID = re.compile(
    r"UPID:(?P<node>[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?):(?P<pid>[0-9A-Fa-f]{8}):(?P<pstart>[0-9A-Fa-f]{8,9}):"
    r"(?P<start>[0-9A-Fa-f]{8}):(?P<type>[^:\s]+):(?P<id>[^:\s]*):(?P<user>[^:\s]+):"
)


@dataclass(frozen=True, slots=True)
class Upid:
    """`user` keeps the token: "rec@pve!oncall". `starttime` is by the node's clock."""

    text: str
    node: str
    pid: int
    starttime: int
    type: str
    id: str
    user: str


def parse_upid(text: object) -> Upid | None:
    match = _UPID.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    return Upid(
        match.string, match["node"], int(match["pid"], 16), int(match["start"], 16), match["type"], match["id"],
        match["user"],
    )  # fmt: skip


def task_list(rows: Any, token_id: str) -> tuple[Task, ...]:
    """Newest first. The list says RUNNING, or nothing, for a task that runs, and the exit status of one that ended."""
    found: dict[str, Task] = {}
    for row in rows_of(rows):
        upid = parse_upid(row.get("upid"))
        if upid is None:
            continue
        said = row.get("status")
        status = said if isinstance(said, str) else ""
        running = status in ("", "RUNNING") and not number(row.get("endtime"))
        found[upid.text] = Task(
            upid.text, upid.node, upid.type, number(upid.id) if upid.id.isdecimal() else None, upid.user,
            upid.starttime, running, "" if running else status, number(row.get("endtime")), upid.user == token_id,
        )  # fmt: skip
    return tuple(sorted(found.values(), key=lambda task: -task.starttime))


def strange_tasks(rows: Any) -> int:
    """How many rows name no task: each could be one that runs."""
    named = rows if isinstance(rows, list) else []
    return sum(not (isinstance(row, Mapping) and parse_upid(row.get("upid"))) for row in named)
