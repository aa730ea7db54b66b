"""Services by the word of their own manager: asked in children with a deadline, because a manager can hang as well."""

import json
import os

from recover.guest.child import run, which
from recover.guest.ipc import temp_folders
from recover.guest.wire import Limit, Pattern, at, emit, gap, listdir, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterable, Optional

DEADLINE_S = 8.0
_SHOW = "Id,LoadState,ActiveState,SubState,MainPID,Restart,UnitFileState,NRestarts,FragmentPath,ControlGroup,Environment"
_UNIT = Pattern(r"^[A-Za-z0-9:_.\\@-]+\.(?:service|scope|target|socket)$")
_CONTAINER = Pattern(r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
_CGROUP_UNIT = Pattern(r"/([^/]+\.service)(?:/|$)")
_CGROUP_CONTAINER = Pattern(r"(?:docker[-/]|libpod-|/docker/)([0-9a-f]{64})")
_CGROUP_USER_UNIT = Pattern(r"/user@(\d+)\.service/(?:[^/]+\.slice/)*([^/]+\.service)(?:/|$)")
_CGROUP_USER = Pattern(r"/user@(\d+)\.service/")
_PROGRAM = Pattern(r"^(\S+)\s+(RUNNING|STARTING|BACKOFF|STOPPING|EXITED|FATAL|STOPPED|UNKNOWN)\b(?:\s+pid (\d+))?")


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


def look(
    configured: "Iterable[str]", cgroups: "Iterable[str]", rows: "dict[int, dict[str, Any]]", limit: Limit
) -> "list[str]":
    """The configured services and the owners of what holds a GPU, each by the word of its own manager.

    Gives their folders for temporary files.
    """
    names, seen = list(configured), list(cgroups)
    slices = {n: units_in(n) for n in names if n.endswith(".slice")}
    units = {n for n in names if is_unit(n)} | {unit for unit in map(unit_of, seen) if unit}
    units |= {unit for inside in slices.values() for unit in inside}
    boxes = {n for n in names if not is_unit(n) and is_container(n)} | {b for b in map(container_of, seen) if b}
    found = []  # type: list[dict[str, Any]]
    if units and which("systemctl"):
        found.extend(units_state(sorted(units), limit.within(DEADLINE_S)) or ())
    for item in found:
        item["within"] = next((name for name, inside in slices.items() if item["name"] in inside), "")
    for uid, unit in sorted({user for user in map(user_unit_of, seen) if user}):
        found.extend(units_state([unit], limit.within(DEADLINE_S), uid) or ())
    for tool in ("docker", "podman"):
        if boxes and which(tool):
            known = {item["name"] for item in found} | {item.get("id") for item in found}
            found.extend(containers_state(tool, sorted(boxes - known), limit.within(DEADLINE_S)) or ())
    for uid, box in sorted({user for user in map(user_container_of, seen) if user}):
        found.extend(containers_state("podman", [box], limit.within(DEADLINE_S), uid) or ())
    for pid in supervisors(rows):
        found.extend(programs(pid, limit.within(DEADLINE_S)) or ())
    folders = {folder for item in found for folder in item.pop("folders", ())}
    emit("services", list=found)
    return sorted(folders)


def units_in(name: str) -> "list[str]":
    """The services that stand in a slice, by its control group: `a-b.slice` lies in `a.slice`."""
    parts = name[: -len(".slice")].split("-")
    path = "/".join("-".join(parts[: i + 1]) + ".slice" for i in range(len(parts)))
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd"):
        inside = listdir(at("%s/%s" % (root, path)))
        if inside:
            return [unit for unit in inside if unit.endswith(".service") and is_unit(unit)]
    return []


def user_unit_of(cgroup: str) -> "Optional[tuple[int, str]]":
    match = _CGROUP_USER_UNIT.search(cgroup)
    return (int(match.group(1)), match.group(2)) if match else None


def user_container_of(cgroup: str) -> "Optional[tuple[int, str]]":
    """A rootless container: its manager is the user's own podman."""
    box, user = container_of(cgroup), _CGROUP_USER.search(cgroup)
    return (int(user.group(1)), box) if box and user else None


def supervisors(rows: "dict[int, dict[str, Any]]") -> "list[int]":
    """Those of our own pid name space: a container's own one is asked through the container."""
    return [
        pid
        for pid, row in sorted(rows.items())
        if row["comm"] == "supervisord" and row["state"] in "SR" and len(row.get("ns_pids") or ()) <= 1
    ]


def supervisorctl(pid: int) -> "list[str]":
    """How this supervisord is asked: with its own configuration, by the tool that lies beside it."""
    words = read_or("/proc/%d/cmdline" % pid).rstrip("\0").split("\0")
    script = next((w for w in words if w.rsplit("/", 1)[-1] == "supervisord"), "")
    tool = script[: -len("supervisord")] + "supervisorctl" if script.startswith("/") else "supervisorctl"
    if script.startswith("/") and which(tool) is None:
        tool = "supervisorctl"
    for i, word in enumerate(words):
        for name in ("-c", "--configuration"):
            if word == name and i + 1 < len(words):
                return [tool, "-c", _absolute(pid, words[i + 1])]
            if word.startswith(name + "="):
                return [tool, "-c", _absolute(pid, word[len(name) + 1 :])]
    return [tool]


def _absolute(pid: int, path: str) -> str:
    if path.startswith("/"):
        return path
    try:
        return os.path.join(os.readlink("/proc/%d/cwd" % pid), path)
    except OSError:
        return path


def programs(pid: int, limit: Limit) -> "Optional[list[dict[str, Any]]]":
    """All programs of one supervisord; None where it can't be asked. Exit codes differ: 3 says that some don't run."""
    ended = run(supervisorctl(pid) + ["status"], limit, "supervisorctl status", 1 << 20)
    found = [item for item in map(_program, ended.out.splitlines()) if item is not None]
    if ended.code is None or (ended.code and not found):
        gap("services", "timeout" if ended.code is None else "absent", "supervisorctl: %s" % ended.err.strip()[:200])
        return None
    return found


def _program(text: str) -> "Optional[dict[str, Any]]":
    match = _PROGRAM.match(text)
    if match is None:
        return None
    return {"manager": "supervisord", "name": match.group(1), "state": match.group(2), "pid": _number(match.group(3))}


def as_user(uid: "Optional[int]", argv: "list[str]") -> "Optional[list[str]]":
    """The command as that user runs it in the session of its own manager; None for a user whom nobody knows."""
    if uid is None:
        return argv
    inner = ["env", "XDG_RUNTIME_DIR=/run/user/%d" % uid] + argv
    if uid == os.geteuid():
        return inner
    for text in read_or("/etc/passwd").splitlines():
        field = text.split(":")
        if len(field) > 2 and field[2] == str(uid) and is_container(field[0]):
            return ["runuser", "-u", field[0], "--"] + inner
    ended = run(["getent", "passwd", str(uid)], Limit(5.0))  # a directory service may know it, or hang
    name = ended.out.split(":", 1)[0]
    return ["runuser", "-u", name, "--"] + inner if ended.code == 0 and is_container(name) else None


def units_state(units: "list[str]", limit: Limit, uid: "Optional[int]" = None) -> "Optional[list[dict[str, Any]]]":
    """None where systemd can't be asked; that is a gap, not an inactive unit. `uid`: that user's own manager."""
    argv = as_user(uid, ["systemctl"] + (["--user"] if uid is not None else []) + ["show", "--no-pager", "-p", _SHOW])
    if argv is None:
        gap("services", "absent", "no user has the number %s" % uid)
        return None
    ended = run(argv + ["--"] + units, limit, "systemctl show", 1 << 20)
    if ended.code is None:
        gap("services", "timeout", "systemctl did not answer")
        return None
    found = []
    for block in ended.out.split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        if values.get("Id"):
            found.append(_unit(values, uid))
    if not found:
        gap("services", "absent", "systemctl: %s" % (ended.err.strip() or "no word"))
        return None
    return found


def _unit(values: "dict[str, str]", uid: "Optional[int]" = None) -> "dict[str, Any]":
    missing = values.get("LoadState") == "not-found"
    return {
        "manager": "systemd" if uid is None else "systemd-user",
        "uid": uid,
        "name": values["Id"],
        "state": "not-found" if missing else values.get("ActiveState", ""),
        "sub": values.get("SubState", ""),
        "pid": _number(values.get("MainPID")),
        "restart": values.get("Restart", ""),
        "enabled": values.get("UnitFileState", ""),
        "restarts": _number(values.get("NRestarts")),
        "folders": temp_folders(values.get("Environment", "")),
    }


def _number(text: "Any") -> int:
    return int(whole(str(text)))


def containers_state(
    tool: str, names: "list[str]", limit: Limit, uid: "Optional[int]" = None
) -> "Optional[list[dict[str, Any]]]":
    if not names:
        return []
    argv = as_user(uid, [tool, "inspect", "--type", "container"] + names)
    if argv is None:
        return None
    ended = run(argv, limit, tool + " inspect")
    if ended.code is None:
        gap("services", "timeout", "%s did not answer" % tool)
        return None
    if ended.code and ended.out.strip() in ("", "[]") and "no such" not in ended.err.lower():
        # "[]" is also what is printed where the daemon can't be asked (moby issue 17708): no container is gone by that
        gap("services", "absent", "%s: %s" % (tool, ended.err.strip()[:200]))
        return None
    try:
        return [_container(tool, item, uid) for item in json.loads(ended.out or "[]")]
    except (ValueError, TypeError, AttributeError, KeyError):
        gap("services", "garbled" if ended.code == 0 else "absent", "%s: %s" % (tool, ended.err.strip()[:200]))
        return None


def _container(tool: str, item: "dict[str, Any]", uid: "Optional[int]" = None) -> "dict[str, Any]":
    """`enabled` is auto-remove for one that its own stop deletes; `unit` is the systemd unit that Podman names."""
    state = item.get("State") or {}
    host = item.get("HostConfig") or {}
    labels = (item.get("Config") or {}).get("Labels") or {}
    return {
        "manager": tool,
        "uid": uid,
        "enabled": "auto-remove" if host.get("AutoRemove") else "",
        "restored": bool(state.get("Restored")),
        "unit": str(labels.get("PODMAN_SYSTEMD_UNIT", "")),
        "name": str(item.get("Name", "")).lstrip("/"),
        "id": item.get("Id", ""),
        "state": state.get("Status", ""),
        "pid": _number(state.get("Pid")),
        "restart": _policy(host.get("RestartPolicy") or {}),
        "restarts": _number(item.get("RestartCount")),
    }


def _policy(policy: "dict[str, Any]") -> str:
    """As `docker update --restart` takes it: on-failure:5."""
    name, most = str(policy.get("Name") or "no"), policy.get("MaximumRetryCount")
    return "%s:%d" % (name, most) if name == "on-failure" and isinstance(most, int) and most > 0 else name
