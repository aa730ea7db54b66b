# SPDX-License-Identifier: AGPL-3.0-or-later
"""A task runs beside the request that began it, writes its log as it goes, and ends as PVE says it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fakepve.model import PveError, TaskError
from fakepve.server import USER, ok, params

Body = Callable[[], Awaitable[str | None]]
FINISHED_GRACE = 5.0  # PVE seconds between SIGTERM and SIGKILL of a deleted task


class Killed(Exception):
    """The worker died without writing a last line."""


class Warned(Exception):
    """The worker is done and had warnings (PVE::RESTEnvironment log_warn)."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


class Tasks:
    """Mixin: the worker registry and /nodes/{node}/tasks (pve-manager PVE/API2/Tasks.pm)."""

    tasks: dict[str, dict[str, Any]]
    tasklog: list[dict[str, Any]]

    def _init_tasks(self) -> None:
        self._workers: dict[str, asyncio.Task[None]] = {}

    async def task(
        self,
        node: str,
        ttype: str,
        tid: Any,
        user: str,
        body: Body,
        vm: Any = None,
        lock: bool = True,
        log: Sequence[str] = (),
    ) -> str:
        """Starts a worker and returns its UPID at once; a list given as `log` is written on by the body."""
        upid, pid, start = self._upid(node, ttype, tid, user)  # type: ignore[attr-defined]
        record = {
            "upid": upid,
            "node": node,
            "pid": pid,
            "pstart": pid * 7,
            "starttime": start,
            "type": ttype,
            "id": str(tid),
            "user": user,
            "status": "running",
            "log": log if isinstance(log, list) else list(log),
        }
        self.tasks[upid] = record
        self.tasklog.append(record)
        worker = asyncio.ensure_future(self._work(record, body, vm if lock else None))
        self._workers[upid] = worker
        worker.add_done_callback(lambda _done: self._workers.pop(upid, None))
        return str(upid)

    async def _work(self, record: dict[str, Any], body: Body, locked: Any) -> None:
        log, holder, status = record["log"], record["upid"], "OK"
        try:
            if locked is not None and locked.lock_holder is not None:
                log.append("trying to acquire lock...")
            if locked is not None:
                await self.acquire(locked, holder)  # type: ignore[attr-defined]
            try:
                note = await body()
            finally:
                if locked is not None:
                    self.release(locked, holder)  # type: ignore[attr-defined]
            log.extend([note] if note else [])
            log.append("TASK OK")
        except TaskError as error:
            status = " ".join(str(error).split("\n")).strip()
            log.append(f"TASK ERROR: {status}")
        except Warned as warned:
            status = f"WARNINGS: {warned.count}"
            log.append(f"TASK {status}")
        except Killed:
            status = "unexpected status"
        except asyncio.CancelledError:
            status = "received interrupt"
            log.append(f"TASK ERROR: {status}")
        except Exception as error:  # a hook that fails is a machine that failed
            status = f"{type(error).__name__}: {error}"
            log.append(f"TASK ERROR: {status}")
        record.update(status="stopped", exitstatus=status, endtime=int(time.time()))

    def foreign_task(self, data: dict[str, Any]) -> str:
        """A task somebody else runs or ran: no worker of ours behind it."""
        vmid, kind = data.get("vmid", ""), data["type"]
        node = data.get("node") or sorted(self.nodes)[0]  # type: ignore[attr-defined]
        user = data.get("user", "root@pam")
        upid, pid, _ = self._upid(node, kind, vmid, user)  # type: ignore[attr-defined]
        ahead = self.node_memory[node]["ahead_s"]  # type: ignore[attr-defined]
        start = int(time.time() + ahead - float(data.get("age_s", 0)))
        parts = upid.split(":")
        parts[4] = f"{start:08X}"
        upid = ":".join(parts)
        record = {
            "upid": upid,
            "node": node,
            "pid": pid,
            "pstart": pid * 7,
            "starttime": start,
            "type": kind,
            "id": str(vmid),
            "user": user,
            "status": "running",
            "log": list(data.get("log", ())),
        }
        self.tasks[upid] = record
        self.tasklog.append(record)
        if data.get("status", "running") != "running":
            self.end_foreign(upid, data["status"])
        return str(upid)

    def end_foreign(self, upid: str, status: str = "OK") -> None:
        record = self.tasks[upid]
        if upid in self._workers:
            raise ValueError("this task has a worker of its own")
        record.update(status="stopped", exitstatus=status, endtime=int(time.time()))
        if status != "unexpected status":
            record["log"].append(
                "TASK OK"
                if status == "OK"
                else f"TASK {status}"
                if status.startswith("WARNINGS: ")
                else f"TASK ERROR: {status}"
            )

    def running_tasks(self) -> set[tuple[str, str]]:
        return {
            (record["type"], record["id"])
            for record in self.tasklog
            if record["status"] == "running" and record["id"].isdigit()
        }

    async def stop_workers(self) -> None:
        workers = list(self._workers.values())
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    # --- the API

    def _routes_lab_tasks(self) -> list[tuple[str, str, Any]]:
        return [("DELETE", "/nodes/{node}/tasks/{upid}", self._task_delete)]

    async def _task_delete(self, values: dict[str, Any], user: str) -> None:
        """SIGTERM to the worker; what it was doing is left half done (no vm_stop_cleanup)."""
        record = self.tasks.get(values["upid"])
        if record is None or record["node"] != values["node"]:
            raise PveError(500, f"unable to parse worker upid '{values['upid']}'")
        if not self._task_owner(user, record):  # type: ignore[attr-defined]
            self.require(user, "/nodes/" + record["node"], "Sys.Modify")  # type: ignore[attr-defined]
        self.interrupt(record)

    def interrupt(self, record: dict[str, Any]) -> None:
        worker = self._workers.get(record["upid"])
        if worker is not None:
            worker.cancel()
        elif record["status"] == "running":
            self.end_foreign(record["upid"], "received interrupt")

    async def _task_list(self, request: Any) -> Any:
        node, user = request.match_info["node"], request[USER]
        query = self._verify(request, await params(request))  # type: ignore[attr-defined]
        audit = self.allowed(user, "/nodes/" + node, "Sys.Audit")  # type: ignore[attr-defined]
        source = query.get("source", "archive")
        rows = []
        for record in self.tasklog:
            live = record["status"] == "running"
            if record["node"] != node or (source == "active" and not live) or (source == "archive" and live):
                continue
            if not (audit or self._task_owner(user, record)) or not _wanted(record, query):  # type: ignore[attr-defined]
                continue
            rows.append(self._task_view(record, True) | ({"status": "RUNNING"} if live else {}))  # type: ignore[attr-defined]
        rows.sort(key=lambda row: -row["starttime"])
        start = query.get("start", 0)
        return ok(rows[start : start + (query.get("limit", 50) or len(rows))])

    async def _task_log(self, request: Any) -> Any:
        query = self._verify(request, await params(request))  # type: ignore[attr-defined]
        lines = self._get_task(request)["log"] or ["no content"]  # type: ignore[attr-defined]
        start, limit = query.get("start", 0), query.get("limit", 50)
        numbered = [{"n": number, "t": text} for number, text in enumerate(lines, 1)]
        return ok(numbered[start : start + limit] if limit else numbered[start:])


def _wanted(record: dict[str, Any], query: dict[str, Any]) -> bool:
    status = record.get("exitstatus")
    good = status is None or status == "OK" or status.startswith("WARNINGS: ")
    return not (
        (query.get("vmid") is not None and record["id"] != str(query["vmid"]))
        or (query.get("typefilter") and record["type"] != query["typefilter"])
        or (query.get("userfilter") and query["userfilter"] not in record["user"])
        or (query.get("since") is not None and record["starttime"] < query["since"])
        or (query.get("until") is not None and record["starttime"] > query["until"])
        or (str(query.get("errors", 0)) in ("1", "true", "True") and good)
    )
