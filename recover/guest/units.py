"""Services are stopped, started and kept from starting through their own manager, by argument lists, and read back."""

import time

from recover.guest import procs
from recover.guest.child import run, which
from recover.guest.services import (
    as_user,
    containers_state,
    is_container,
    is_unit,
    programs,
    supervisorctl,
    supervisors,
    units_state,
)
from recover.guest.wire import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

# systemd's words, Docker's, Podman's (libpod/define/containerstate.go; "configured" before 4.0), supervisord's
_DOWN = {
    "inactive", "failed", "not-found",
    "exited", "created", "dead", "stopped", "initialized", "configured",
    "STOPPED", "EXITED", "FATAL",
}  # fmt: skip
_UP = {"active", "running", "reloading", "RUNNING"}
_MOVING = {
    "activating", "deactivating", "restarting", "removing", "stopping", "STARTING", "STOPPING", "BACKOFF",
} | _UP  # fmt: skip
_READ_S = 10.0


class Name:
    """One service: its manager, its name there, and whose manager it is."""

    def __init__(self, request: "dict[str, Any]") -> None:
        self.manager, self.name = str(request.get("manager")), str(request.get("name"))
        uid = request.get("uid")
        self.uid = uid if isinstance(uid, int) else None

    def command(self, *verb: str) -> "Optional[list[str]]":
        """The argument list; None for a manager that we don't know, or a name that is none."""
        if self.manager == "systemd" and is_unit(self.name):
            return ["systemctl"] + list(verb) + ["--", self.name]
        if self.manager == "systemd-user" and is_unit(self.name) and self.uid is not None:
            return as_user(self.uid, ["systemctl", "--user"] + list(verb) + ["--", self.name])
        if self.manager in ("docker", "podman") and is_container(self.name):
            return as_user(self.uid, [self.manager] + list(verb) + [self.name])
        if self.manager == "supervisord" and is_container(self.name.replace(":", "_")):
            return self._supervisor() + list(verb) + [self.name]
        return None

    def _supervisor(self) -> "list[str]":
        """The one that knows the name, where there are several."""
        found = _supervisors()
        for pid in found[1:]:
            if any(item["name"] == self.name for item in programs(pid, Limit(_READ_S)) or ()):
                return supervisorctl(pid)
        return supervisorctl(found[0]) if found else ["supervisorctl"]

    def read(self, limit: Limit) -> "Optional[list[dict[str, Any]]]":
        if self.manager in ("systemd", "systemd-user"):
            return units_state([self.name], limit, self.uid)
        if self.manager in ("docker", "podman"):
            return containers_state(self.manager, [self.name], limit, self.uid)
        told = [programs(pid, limit) for pid in _supervisors()]
        known = [item for items in told if items is not None for item in items if item["name"] == self.name]
        return known if known or (told and None not in told) else None

    def state(self, limit: Limit) -> "Optional[str]":
        """The manager's own word; empty if it does not know the name; None if it can't be asked."""
        found = self.read(limit)
        if found is None:
            return None
        word = found[0]["state"] if found else ""
        return "" if word == "not-found" else str(word)


def _supervisors() -> "list[int]":
    rows = {}
    for pid in procs.pids():
        row = procs.describe(pid)
        if row is not None:
            rows[pid] = row
    return supervisors(rows)


def stop(request: "dict[str, Any]") -> "dict[str, Any]":
    return _ensure(Name(request), request, False)


def start(request: "dict[str, Any]") -> "dict[str, Any]":
    return _ensure(Name(request), request, True)


def _ensure(one: Name, request: "dict[str, Any]", up: bool) -> "dict[str, Any]":
    argv = one.command("start" if up else "stop")
    if argv is None:
        return {"ok": False, "changed": False, "detail": "not known how to do this with %s %r" % (one.manager, one.name)}
    if which(argv[0]) is None:
        return {"ok": False, "changed": False, "detail": "%s is not installed" % argv[0]}
    wanted = _UP if up else _DOWN
    limit = Limit(float(request.get("deadline", 60.0)))
    before = one.state(limit.within(_READ_S))
    if before == "":
        return {"ok": False, "changed": False, "detail": "%s does not know %s" % (one.manager, one.name)}
    if before in wanted:
        return {"ok": True, "changed": False, "detail": "%s is %s already" % (one.name, before)}
    ended = run(argv, limit, " ".join(argv))
    after = _settle(one, wanted, limit)
    log = [line for line in (ended.out + "\n" + ended.err).splitlines() if line.strip()][-20:]
    if after is None:
        detail = "%s does not tell what became of %s" % (one.manager, one.name)
        return {"ok": False, "clear": False, "detail": detail, "log": log}
    if after in wanted or (not up and after == ""):  # a container that its own stop removes
        return {"ok": True, "changed": True, "detail": "%s is %s" % (one.name, after or "gone"), "log": log}
    how = "after the deadline" if ended.code is None else "exit %d" % ended.code
    detail = "%s is still %s (%s)" % (one.name, after or "unknown", how)
    return {"ok": False, "changed": True, "detail": detail, "log": log}


def _settle(one: Name, wanted: "set[str]", limit: Limit) -> "Optional[str]":
    """Read back at least once, also when the deadline is spent; `activating` may still become `active`."""
    while True:
        word = one.state(Limit(_READ_S))
        if word is None or word in wanted or limit.left <= 0:
            return word
        if word not in _MOVING:
            return word
        time.sleep(min(0.5, max(0.05, limit.left)))


def suspend(request: "dict[str, Any]") -> "dict[str, Any]":
    """Nothing is masked: a unit is disabled, a container gets another restart policy."""
    return _autostart(Name(request), request, False)


def restore(request: "dict[str, Any]") -> "dict[str, Any]":
    return _autostart(Name(request), request, True)


def _autostart(one: Name, request: "dict[str, Any]", on: bool) -> "dict[str, Any]":
    was = str(request.get("was"))
    unit = one.manager in ("systemd", "systemd-user")
    wanted = (was if on else "disabled") if unit else (was if on else "no")
    if one.manager not in ("docker", "podman") and (not unit or was != "enabled"):
        return {"ok": False, "changed": False, "detail": "not known how to do this with %s %r" % (one.manager, was)}
    limit = Limit(float(request.get("deadline", 60.0)))
    now = _setting(one, unit, limit)
    if now in (None, wanted):
        ok = now is not None
        words = "%s is %s already" % (one.name, now) if ok else "%s does not know %s" % (one.manager, one.name)
        return {"ok": ok, "changed": False, "detail": words}
    if not on and now != was:
        return {"ok": False, "changed": False, "detail": "%s is %s by now, not %s" % (one.name, now, was)}
    verb = ["enable" if on else "disable"] if unit else ["update", "--restart=" + wanted]
    argv = one.command(*verb)
    if argv is None:
        return {"ok": False, "changed": False, "detail": "not known how to do this with %s %r" % (one.manager, one.name)}
    ended = run(argv, limit, " ".join(argv))
    after = _setting(one, unit, Limit(_READ_S))
    said = (ended.err or ended.out).strip()[:200]
    return {"ok": after == wanted, "clear": after is not None, "detail": "%s is %s %s" % (one.name, after, said)}


def _setting(one: Name, unit: bool, limit: Limit) -> "Optional[str]":
    found = one.read(limit.within(_READ_S))
    return str(found[0]["enabled" if unit else "restart"]) if found else None
