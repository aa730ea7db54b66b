"""A task is known by its status and log together; one whose start is unclear is looked for, never started again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from recover.core.read.pve_tasks import Upid, parse_upid, strange_tasks, task_list
from recover.core.read.pve_values import rows_of, text
from recover.edge.proxmox.client import Client, path
from recover.edge.proxmox.errors import ApiError, Kind, clean
from recover.model.hypervisor import GuestKind, Task

LOG_LIMIT = 2000  # lines of one question
LOG_PAGES = 10
LINE_LIMIT = 1000
QUICK_S = 30.0  # so long a task is polled every second
ASK_S = 15.0  # one poll, with its own retries
LOOK_S = 20.0  # how long an unclear POST's task is looked for, counted from the first look that got an answer
SILENT_S = 60.0  # ... and how long that answer is waited for
LIST_LIMIT = 50  # the API's default
# The worker ended without its last line: not flushed yet, or killed.
_NOT_WRITTEN = ("unexpected status", "unable to get last line from task log", "unable to read tail")


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """A task that ended. `ok` is what PVE calls OK; it doesn't prove that the act worked: read `log`, and look."""

    upid: str
    ok: bool
    exitstatus: str
    log: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class StillRunning:
    """Our time is over and the task's is not: it goes on without us."""

    upid: str
    log: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    upid: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The POST's end was unclear, and this is the task that it had started."""

    upid: str
    error: ApiError


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Refused, or never sent: nothing was done."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The POST's end was unclear and no task of it was seen. Only the guest's state can tell now."""

    error: ApiError
    looked: str


Posted = Started | Reconciled | NotStarted | Unresolved


def is_ok(exitstatus: str) -> bool:
    """As PVE itself decides it; `WARNINGS: 2` is a success with a log worth reading."""
    head, _, count = exitstatus.partition(": ")
    return exitstatus == "OK" or (head == "WARNINGS" and count.isdecimal())


# What a power action's task is called. The second is for guests under HA, where it only says that HA was asked.
VM_TASKS = {
    "start": ("qmstart", "hastart"), "stop": ("qmstop", "hastop"), "shutdown": ("qmshutdown", "hastop"),
    "reset": ("qmreset",),
}  # fmt: skip
CONTAINER_TASKS = {"start": ("vzstart", "hastart"), "stop": ("vzstop", "hastop"), "shutdown": ("vzshutdown", "hastop")}


class Tasks:
    """Starts and follows tasks of one cluster."""

    def __init__(
        self,
        client: Client,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        self._client, self._sleep, self._clock, self._look_s = client, sleep, clock, look_s

    def running(self, upid: str) -> bool | None:
        """Whether a task still runs; None if that can't be told."""
        parsed = parse_upid(upid)
        if parsed is None:
            return None
        said = self._client.get(path("nodes", parsed.node, "tasks", upid, "status"), deadline=ASK_S)
        status = said.get("status") if isinstance(said, dict) else None
        return {"running": True, "stopped": False}.get(str(status))

    def wait(self, node: str, upid: str, deadline: float, *, read: bool = True) -> TaskEnd | StillRunning | ApiError:
        """Follow a task for at most `deadline` seconds. Polls that get no answer are borne until then.

        `read`: its log too, which may take one question more.
        """
        began = self._clock()
        ends = began + deadline
        where = path("nodes", node, "tasks", upid)
        doubted = False
        while True:
            left = ends - self._clock()
            said = self._client.get(where + "/status", deadline=min(ASK_S, max(left, 1.0)))
            if isinstance(said, ApiError):
                if said.kind not in (Kind.UNCLEAR, Kind.UNREACHABLE, Kind.GARBLED):
                    return said
            elif isinstance(said, dict) and said.get("status") == "stopped":
                exitstatus = clean(said.get("exitstatus") or "unexpected status", LINE_LIMIT)
                if doubted or not exitstatus.startswith(_NOT_WRITTEN):
                    log = self.log(node, upid) if read else ()
                    return TaskEnd(upid, is_ok(exitstatus), exitstatus, log, self._clock() - began)
                doubted = True  # asked once more: the log's last line may just be on its way
            now = self._clock()
            if now >= ends:
                if isinstance(said, ApiError):
                    return said
                return StillRunning(upid, self.log(node, upid) if read else (), now - began)
            self._sleep(min(_pause(now - began), ends - now))

    def log(self, node: str, upid: str, seconds: float = ASK_S) -> tuple[str, ...]:
        """The task's log so far, cleaned; empty if it can't be had. PVE says `no content` for an empty log."""
        found = log_lines(self._client, node, upid, seconds)
        return found if isinstance(found, tuple) else ()

    def power(self, kind: GuestKind, node: str, vmid: int, verb: str, **params: Any) -> Posted:
        """Send one power action to a guest, once: start, stop, shutdown, or for a VM reset."""
        container = kind is GuestKind.CONTAINER
        where = path("nodes", node, "lxc" if container else "qemu", vmid, "status", verb)
        types = (CONTAINER_TASKS if container else VM_TASKS)[verb]
        return self.post_task(where, params, node=node, vmid=vmid, types=types)

    def post_task(
        self,
        where: str,
        params: dict[str, Any],
        *,
        node: str,
        vmid: int,
        types: Collection[str],
        most: float | None = None,
    ) -> Posted:
        """Send one POST that starts a task of one of `types` ("qmstop", "hastop"), once.

        What the list shows before the POST is the marker: whatever is not on it came later, whichever clock is right.
        A task whose POST got no answer is looked for until `most` seconds from now.
        """
        last = self._clock() + most if most is not None else math.inf
        before = tasks_of(self._client, node, vmid, ASK_S)
        if isinstance(before, ApiError):  # no way to reconcile afterwards, so nothing is sent
            return NotStarted(before)
        answer = self._client.post(where, **params)
        if isinstance(answer, ApiError):
            if answer.kind is not Kind.UNCLEAR:
                return NotStarted(answer)
            return self._reconcile(answer, before, node, vmid, types, last)
        started = parse_upid(answer)
        if started is None:
            garbled = ApiError(Kind.UNCLEAR, 200, f"expected a task, got {clean(answer, 100)}", False, where)
            return self._reconcile(garbled, before, node, vmid, types, last)
        return Started(started.text)

    def _reconcile(
        self, error: ApiError, before: tuple[Task, ...], node: str, vmid: int, types: Collection[str], last: float
    ) -> Reconciled | Unresolved:
        """Look for the task that our POST may have started: ours, of the right type, and not there before it."""
        known = {task.upid for task in before}
        since = max((task.starttime for task in before), default=None)
        ends = min(self._clock() + SILENT_S, last)
        looks = 0
        while True:
            found = tasks_of(self._client, node, vmid, ASK_S, since)
            if not isinstance(found, ApiError):
                new = [t for t in found if t.ours and t.type in types and t.vmid == vmid and t.upid not in known]
                if new:
                    return Reconciled(new[-1].upid, error)  # the earliest: what came after it was not our POST's
                ends = ends if looks else min(self._clock() + self._look_s, last)
                looks += 1
            if self._clock() >= ends:
                return Unresolved(error, f"the task list was read {looks} times and shows no new task of ours")
            self._sleep(1.0 if looks < 10 else 2.0)


def tasks_of(
    client: Client, node: str, vmid: int, seconds: float, since: int | None = None
) -> tuple[Task, ...] | ApiError:
    """A guest's newest tasks on a node. A list with rows that name no task does not tell who works there."""
    where = path("nodes", node, "tasks")
    rows = client.get(where, deadline=seconds, source="all", vmid=vmid, since=since, limit=LIST_LIMIT)
    if isinstance(rows, ApiError):
        return rows
    if not isinstance(rows, list) or strange_tasks(rows):
        return ApiError(Kind.GARBLED, 200, "the list of tasks has rows that name none", False, where)
    return task_list(rows, client.settings.token_id)


def log_lines(client: Client, node: str, upid: str, seconds: float) -> tuple[str, ...] | ApiError:
    """The lines of a task's log, cleaned. Of a very long one its beginning and its end: what decides stands at either.

    A start of a large guest can write thousands of VFIO_MAP_DMA lines before the one that tells why it failed.
    """
    ends = time.monotonic() + seconds
    where = path("nodes", node, "tasks", upid, "log")
    head: list[str] = []
    tail: deque[str] = deque(maxlen=LOG_LIMIT)
    for page in range(LOG_PAGES):
        left = ends - time.monotonic()
        start = page * LOG_LIMIT or None
        rows = client.get(where, deadline=max(left, 0.1), limit=LOG_LIMIT, start=start) if left > 0 or not page else []
        if isinstance(rows, ApiError) and not page:
            return rows
        lines = [clean(text(row.get("t")), LINE_LIMIT) for row in rows_of(rows)]
        if page and lines == ["no content"]:
            break
        (tail if page else head).extend(lines)
        if len(lines) < LOG_LIMIT:
            break
    return () if head == ["no content"] else (*head, *tail)


def _pause(elapsed: float) -> float:
    return 1.0 if elapsed < QUICK_S else min(2.0 + (elapsed - QUICK_S) / 60, 5.0)


def upid_of(posted: Posted) -> Upid | None:
    """The task to follow, if there is one."""
    return parse_upid(posted.upid) if isinstance(posted, Started | Reconciled) else None
