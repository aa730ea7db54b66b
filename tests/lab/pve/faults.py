# SPDX-License-Identifier: AGPL-3.0-or-later
"""A fault is data with a count: it says which call or task it strikes and is gone when it is spent."""

from __future__ import annotations

import fnmatch
import itertools
from dataclasses import dataclass
from typing import Any

HTTP_KINDS = ("http", "cut", "slow", "page", "raw", "rewrite")
TASK_KINDS = ("task-error", "kvm-timeout", "reset-warning", "stop", "flock", "hang", "killed", "warnings", "nothing")
STOPS = ("quit", "sigterm", "sigkill", "zombie", "still-runs")
ACTIONS = ("start", "stop", "shutdown", "reset", "reboot")
_KEYS = {
    "kind",
    "times",
    "skip",
    "id",
    "method",
    "path",
    "action",
    "vmid",
    "during",
    "status",
    "message",
    "when",
    "seconds",
    "comes_up",
    "bdf",
    "how",
    "count",
    "body",
    "content_type",
    "headers",
    "rewrites",
}


@dataclass(slots=True)
class Fault:
    """One injected fault; `times` None never runs out."""

    id: str
    kind: str
    times: int | None = 1
    skip: int = 0
    method: str | None = None
    path: str | None = None
    action: str | None = None
    vmid: int | None = None
    during: str | None = None
    status: int = 596
    message: str | None = None
    when: str = "before"
    seconds: float = 0.0
    comes_up: bool = False
    bdf: str | None = None
    how: str = "quit"
    count: int = 1
    body: str = ""  # raw: instead of the answer
    content_type: str = "application/json"
    headers: dict[str, str] | None = None
    rewrites: list[tuple[list[str], Any]] | None = None  # rewrite: (keys within `data`; value)

    @classmethod
    def parse(cls, data: dict[str, Any], name: str) -> Fault:
        """Refuses what it does not know: a misspelt fault would be a test that proves nothing."""
        unknown = set(data) - _KEYS
        if unknown:
            raise ValueError(f"fault: unknown keys {sorted(unknown)}")
        fault = cls(**{"id": name, **data})
        if fault.kind not in HTTP_KINDS + TASK_KINDS:
            raise ValueError(f"fault: kind {fault.kind!r} is none of {HTTP_KINDS + TASK_KINDS}")
        if fault.when not in ("before", "after"):
            raise ValueError(f"fault: when {fault.when!r} is neither 'before' nor 'after'")
        if fault.how not in STOPS:
            raise ValueError(f"fault: how {fault.how!r} is none of {STOPS}")
        if fault.action is not None and fault.action not in ACTIONS:
            raise ValueError(f"fault: action {fault.action!r} is none of {ACTIONS}")
        if fault.kind in HTTP_KINDS and fault.path is None:
            if fault.action is None:
                raise ValueError("fault: an HTTP fault needs a path or an action")
            fault.method = fault.method or "POST"
            fault.path = f"/nodes/*/qemu/{fault.vmid or '*'}/status/{fault.action}"
        return fault

    def view(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in sorted(_KEYS) if getattr(self, key) is not None}


class Faults:
    """The faults that still wait for their moment."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._names = itertools.count(1)

    def add(self, data: dict[str, Any]) -> str:
        fault = Fault.parse(data, f"fault-{next(self._names)}")
        self._waiting.append(fault)
        return fault.id

    def clear(self, name: str | None = None) -> int:
        before = len(self._waiting)
        self._waiting = [fault for fault in self._waiting if name is not None and fault.id != name]
        return before - len(self._waiting)

    def view(self) -> list[dict[str, Any]]:
        return [fault.view() for fault in self._waiting]

    def _spend(self, fault: Fault) -> bool:
        if fault.skip > 0:
            fault.skip -= 1
            return False
        if fault.times is not None:
            fault.times -= 1
            if fault.times <= 0:
                self._waiting.remove(fault)
        return True

    def for_call(self, method: str, path: str, running: set[tuple[str, str]]) -> Fault | None:
        """The first fault for this call; `running` holds (task type, vmid) of the tasks under way."""
        for fault in list(self._waiting):
            if fault.kind not in HTTP_KINDS or not fnmatch.fnmatchcase(path, fault.path or "*"):
                continue
            if fault.method not in (None, method):
                continue
            if fault.during is not None and not any(
                kind == fault.during and fault.vmid in (None, int(vmid)) for kind, vmid in running
            ):
                continue
            if self._spend(fault):
                return fault
        return None

    def for_task(self, action: str, vmid: int) -> list[Fault]:
        """Every fault that strikes this run of the task."""
        return [
            fault
            for fault in list(self._waiting)
            if fault.kind in TASK_KINDS
            and fault.vmid in (None, vmid)
            and (fault.action or _IMPLIED.get(fault.kind)) in (None, action)
            and self._spend(fault)
        ]


_IMPLIED = {"kvm-timeout": "start", "reset-warning": "start", "stop": "stop"}
