"""Services by the word of their own manager: asked in children with a deadline, because a manager can hang as well."""

import json
import re

from recover.guest.child import run, which
from recover.guest.wire import Limit, emit, gap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

DEADLINE_S = 8.0
_SHOW = "Id,LoadState,ActiveState,SubState,MainPID,Restart,UnitFileState,NRestarts,FragmentPath,ControlGroup"
_UNIT = re.compile(r"^[A-Za-z0-9:_.\\@-]+\.(?:service|scope|target|socket)$")
_CONTAINER = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_CGROUP_UNIT = re.compile(r"/([^/]+\.service)(?:/|$)")
_CGROUP_CONTAINER = re.compile(r"(?:docker[-/]|libpod-|/docker/)([0-9a-f]{64})")


def is_unit(name: str) -> bool:
    return bool(_UNIT.match(name))


def is_container(name: str) -> bool:
    return bool(_CONTAINER.match(name))


def unit_of(cgroup: str) -> "Optional[str]":
    """The system unit that owns a control group; user units belong to another manager."""
    if "/user.slice/" in cgroup or cgroup.startswith("/user.slice"):
        return None
    units = _CGROUP_UNIT.findall(cgroup)
    return units[-1] if units else None


def container_of(cgroup: str) -> "Optional[str]":
    match = _CGROUP_CONTAINER.search(cgroup)
    return match.group(1) if match else None


def look(configured: "Iterable[str]", cgroups: "Iterable[str]", limit: Limit) -> None:
    """The configured services and the owners of what holds a GPU."""
    names, seen = list(configured), list(cgroups)
    units = {n for n in names if is_unit(n)} | {unit for unit in map(unit_of, seen) if unit}
    boxes = {n for n in names if not is_unit(n) and is_container(n)} | {b for b in map(container_of, seen) if b}
    found = []  # type: list[dict[str, Any]]
    if units and which("systemctl"):
        found.extend(units_state(sorted(units), limit.within(DEADLINE_S)) or ())
    for tool in ("docker", "podman"):
        if boxes and which(tool):
            known = {item["name"] for item in found} | {item.get("id") for item in found}
            found.extend(containers_state(tool, sorted(boxes - known), limit.within(DEADLINE_S)) or ())
    emit("services", list=found)


def units_state(units: "list[str]", limit: Limit) -> "Optional[list[dict[str, Any]]]":
    """None where systemd can't be asked; that is a gap, not an inactive unit."""
    ended = run(["systemctl", "show", "--no-pager", "-p", _SHOW, "--"] + units, limit, "systemctl show", 1 << 20)
    if ended.code is None:
        gap("services", "timeout", "systemctl did not answer")
        return None
    found = []
    for block in ended.out.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            found.append(_unit(values))
    if not found:
        gap("services", "absent", "systemctl: %s" % (ended.err.strip() or "no word"))
        return None
    return found


def _unit(values: "dict[str, str]") -> "dict[str, Any]":
    missing = values.get("LoadState") == "not-found"
    return {
        "manager": "systemd",
        "name": values["Id"],
        "state": "not-found" if missing else values.get("ActiveState", ""),
        "sub": values.get("SubState", ""),
        "pid": _number(values.get("MainPID")),
        "restart": values.get("Restart", ""),
        "enabled": values.get("UnitFileState", ""),
        "restarts": _number(values.get("NRestarts")),
    }


def _number(text: "Any") -> int:
    return int(text) if str(text).isdigit() else 0


def containers_state(tool: str, names: "list[str]", limit: Limit) -> "Optional[list[dict[str, Any]]]":
    if not names:
        return []
    ended = run([tool, "inspect", "--type", "container"] + names, limit, tool + " inspect")
    if ended.code is None:
        gap("services", "timeout", "%s did not answer" % tool)
        return None
    try:
        return [_container(tool, item) for item in json.loads(ended.out or "[]")]
    except (ValueError, TypeError, AttributeError, KeyError):
        gap("services", "garbled" if ended.code == 0 else "absent", "%s: %s" % (tool, ended.err.strip()[:200]))
        return None


def _container(tool: str, item: "dict[str, Any]") -> "dict[str, Any]":
    state = item.get("State") or {}
    host = item.get("HostConfig") or {}
    return {
        "manager": tool,
        "name": str(item.get("Name", "")).lstrip("/"),
        "id": item.get("Id", ""),
        "state": state.get("Status", ""),
        "pid": _number(state.get("Pid")),
        "restart": (host.get("RestartPolicy") or {}).get("Name", ""),
        "restarts": _number(item.get("RestartCount")),
    }
