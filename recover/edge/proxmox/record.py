"""What Proxmox has on record of a guest, kept before it is touched: the API's answers, and its last tasks' logs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from recover.core.read.pve_raw import PveRaw
from recover.core.read.pve_tasks import task_list
from recover.core.redact import redact_text
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.errors import ApiError, clean
from recover.edge.proxmox.reads import AT_ONCE, gather
from recover.edge.proxmox.tasks import LINE_LIMIT, log_lines
from recover.model.hypervisor import NoHypervisor, Task
from recover.model.reading import Known

TASK_LOGS = 8  # the newest: a failed start, the stop before it, a backup, somebody else's reset
ONE_S = 10.0
Record = tuple[list[tuple[str, bytes]], list[str]]


def record(client: Client, cluster: str, vmid: int, seconds: float, known: PveRaw | None = None) -> Record:
    """(file name, content) of each piece, and what could not be had, within `seconds` in all.

    `known`: answers of a moment ago, for which a node that is in trouble need not be asked again.
    """
    ends = time.monotonic() + seconds
    raw = known or gather(client, cluster, vmid, seconds * 0.7)
    if isinstance(raw, NoHypervisor):
        return [], [f"the hypervisor's record: {raw.detail or raw.why}"]
    files = [("hypervisor.json", _json(asdict(raw)))]
    if not isinstance(raw.tasks, Known):
        return files, [f"task logs: {raw.tasks.detail or raw.tasks.why}"]
    tasks = task_list(raw.tasks.value, client.settings.token_id)[:TASK_LOGS]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        logs = list(pool.map(lambda task: _log(client, task, ends - time.monotonic()), tasks))
    missing = [
        f"the log of {t.type} {t.upid}: {log}" for t, log in zip(tasks, logs, strict=True) if isinstance(log, str)
    ]
    found = [
        (_name(n, t), log) for n, (t, log) in enumerate(zip(tasks, logs, strict=True), 1) if isinstance(log, bytes)
    ]
    return files + found, missing


def _log(client: Client, task: Task, left: float) -> bytes | str:
    """The log with a head that tells whose task it was, or why it could not be had."""
    if left <= 0:
        return "no time was left for it"
    said = log_lines(client, task.node, task.upid, min(ONE_S, left))
    if isinstance(said, ApiError):
        return f"needs {said.privilege}" if said.privilege else said.message
    ended = "still running" if task.running else task.status
    lines = [f"# {task.type} of {task.vmid} by {task.user} at {task.starttime}: {ended}", f"# {task.upid}"]
    return "\n".join(redact_text(clean(line, LINE_LIMIT)) for line in (*lines, *said)).encode() + b"\n"


def _name(number: int, task: Task) -> str:
    kind = "".join(c for c in task.type if c.isalnum())[:20]
    return f"task-{number}-{kind}.txt"


def _json(raw: dict[str, Any]) -> bytes:
    return json.dumps(_told(raw), default=str, indent=1).encode()


def _told(value: Any) -> Any:
    """A configuration's `args` may hold a password."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {str(key): _told(one) for key, one in value.items()}
    return [_told(one) for one in value] if isinstance(value, list | tuple) else value
