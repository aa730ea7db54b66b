"""Services are stopped and started through their own manager, by argument lists, and its word is read back."""

import time

from recover.guest.child import run, which
from recover.guest.services import containers_state, is_container, is_unit, units_state
from recover.guest.wire import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_DOWN = {"inactive", "failed", "exited", "created", "dead", "not-found", "STOPPED", "EXITED", "FATAL"}
_UP = {"active", "running", "reloading", "RUNNING"}
_MOVING = {"activating", "deactivating", "restarting", "removing", "STARTING", "STOPPING"} | _UP  # may still get there
_READ_S = 10.0


def state(manager: str, name: str, limit: Limit) -> "Optional[str]":
    """The manager's own word; empty if it does not know the name; None if it can't be asked."""
    if manager == "systemd":
        found = units_state([name], limit)
    elif manager in ("docker", "podman"):
        found = containers_state(manager, [name], limit)
    else:
        return _supervisor_state(name, limit)
    if found is None:
        return None
    word = found[0]["state"] if found else ""
    return "" if word == "not-found" else word


def _supervisor_state(name: str, limit: Limit) -> "Optional[str]":
    ended = run(["supervisorctl", "status", name], limit)
    if ended.code is None or ended.code == 127:
        return None
    words = ended.out.split()
    return words[1] if len(words) > 1 and "no such" not in ended.out else ""


def _commands(manager: str, name: str, up: bool) -> "Optional[list[str]]":
    verb = "start" if up else "stop"
    if manager == "systemd" and is_unit(name):
        return ["systemctl", verb, "--", name]
    if manager in ("docker", "podman") and is_container(name):
        return [manager, verb, name]
    if manager == "supervisord" and is_container(name.replace(":", "_")):
        return ["supervisorctl", verb, name]
    return None


def stop(request: "dict[str, Any]") -> "dict[str, Any]":
    return _ensure(request, False)


def start(request: "dict[str, Any]") -> "dict[str, Any]":
    return _ensure(request, True)


def _ensure(request: "dict[str, Any]", up: bool) -> "dict[str, Any]":
    manager, name = str(request.get("manager")), str(request.get("name"))
    argv = _commands(manager, name, up)
    if argv is None:
        return {"ok": False, "changed": False, "detail": "not known how to do this with %s %r" % (manager, name)}
    if which(argv[0]) is None:
        return {"ok": False, "changed": False, "detail": "%s is not installed" % argv[0]}
    wanted = _UP if up else _DOWN
    limit = Limit(float(request.get("deadline", 60.0)))
    before = state(manager, name, limit.within(_READ_S))
    if before == "":
        return {"ok": False, "changed": False, "detail": "%s does not know %s" % (manager, name)}
    if before in wanted:
        return {"ok": True, "changed": False, "detail": "%s is %s already" % (name, before)}
    ended = run(argv, limit, " ".join(argv))
    after = _settle(manager, name, wanted, limit)
    log = [line for line in (ended.out + "\n" + ended.err).splitlines() if line.strip()][-20:]
    if after is None:
        detail = "%s does not tell what became of %s" % (manager, name)
        return {"ok": False, "clear": False, "detail": detail, "log": log}
    if after in wanted:
        return {"ok": True, "changed": True, "detail": "%s is %s" % (name, after), "log": log}
    how = "after the deadline" if ended.code is None else "exit %d" % ended.code
    return {"ok": False, "changed": True, "detail": "%s is still %s (%s)" % (name, after or "unknown", how), "log": log}


def _settle(manager: str, name: str, wanted: "set[str]", limit: Limit) -> "Optional[str]":
    """Read back at least once, also when the deadline is spent; `activating` may still become `active`."""
    while True:
        word = state(manager, name, Limit(_READ_S))
        if word is None or word in wanted or limit.left <= 0:
            return word
        if word not in _MOVING:
            return word
        time.sleep(min(0.5, max(0.05, limit.left)))
