"""Acts inside the guest: one request to the agent each; a connection that ends meanwhile leaves the act unclear."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeGuard, assert_never, get_args

from recover.core.clean import clean
from recover.core.read.agent import parse_lines
from recover.core.read.rows import Row
from recover.edge.probe import NO_PYTHON
from recover.model import act
from recover.model.contact import Broken, Ran
from recover.model.process import ProcessId
from recover.steps.bounds import ASKING_S, GUEST_SLACK_S, SHORT_S, STATE_S

_First = (
    act.StopService
    | act.StartService
    | act.Signal
    | act.AwaitGone
    | act.SetPersistence
    | act.ResetGpu
    | act.PlaceMarker
    | act.ClearMarker
    | act.SyncDisks
)
_Second = (
    act.RebootGuest
    | act.RemoveLeftovers
    | act.WakeGpu
    | act.EndMpsClient
    | act.EndZombieParent
    | act.AskServer
    | act.SuspendAutostart
    | act.RestoreAutostart
    | act.UnloadDriver
    | act.LoadDriver
)
GuestAction = _First | _Second
GUEST_ACTIONS = (*get_args(_First), *get_args(_Second))
# Repeating these after an unclear end does no harm: each is an ensure verb that looks first.
_HARMLESS = (
    act.AskServer,
    act.AwaitGone,
    act.PlaceMarker,
    act.ClearMarker,
    act.SyncDisks,
    act.RemoveLeftovers,
    act.SuspendAutostart,
    act.RestoreAutostart,
)


def _in_guest(action: act.Action) -> TypeGuard[GuestAction]:
    return isinstance(action, GUEST_ACTIONS)


class Acts(Protocol):
    def act(self, request: dict[str, Any], deadline: float) -> Ran | Broken: ...


class GuestActuator:
    """Performs the guest's actions through one probe's connection. `protect`: pids that are never signalled."""

    def __init__(self, probe: Acts, protect: Iterable[int] = ()) -> None:
        self._probe = probe
        self._protect = tuple(protect)

    def perform(self, action: act.Action) -> act.Outcome:
        if not _in_guest(action):
            return act.Outcome(ok=False, detail=f"{type(action).__name__} is not done inside the guest", changed=False)
        request, seconds = request_of(action)
        request["protect_pids"] = self._protect
        said = self._probe.act(request, seconds + GUEST_SLACK_S)
        return outcome_of(said, harmless=isinstance(action, _HARMLESS))


def request_of(action: GuestAction) -> tuple[dict[str, Any], float]:
    """The agent's request and the act's own deadline."""
    match action:
        case act.StopService(manager, name, deadline_s, _, uid):
            return _service("stop_service", manager, name, uid, deadline_s)
        case act.StartService(manager, name, deadline_s, _, uid):
            return _service("start_service", manager, name, uid, deadline_s)
        case act.Signal(_, members, signal, descendants, spare):
            what = {"do": "signal", "signal": signal, "descendants": descendants, "spare": _members(spare)}
            return {**what, "members": _members(members)}, SHORT_S
        case act.AwaitGone(_, members, deadline_s):
            return {"do": "await_gone", "members": _members(members), "deadline": deadline_s}, deadline_s
        case act.SetPersistence(uuid, bus_id, on):
            what = {"do": "set_persistence", "uuid": uuid, "bus_id": bus_id, "on": on}
            return {**what, "deadline": SHORT_S}, SHORT_S
        case act.ResetGpu(gpus, deadline_s):
            return {"do": "reset_gpu", "gpus": gpus, "deadline": deadline_s}, deadline_s
        case act.PlaceMarker(run, who, host, rung, ttl_s, takes_over):
            claim = {"run": run, "who": who, "host": host, "rung": rung, "takes_over": takes_over}
            return {"do": "place_marker", **claim, "ttl_s": ttl_s}, SHORT_S
        case act.ClearMarker(run):
            return {"do": "clear_marker", "run": run}, SHORT_S
        case act.SyncDisks(deadline_s):
            return {"do": "sync", "deadline": deadline_s}, deadline_s
        case _:
            return _more(action)


def _more(action: _Second) -> tuple[dict[str, Any], float]:
    match action:
        case act.RebootGuest(boot_id):
            return {"do": "reboot", "boot_id": boot_id, "deadline": ASKING_S}, ASKING_S
        case act.RemoveLeftovers(objects, deadline_s):
            return {
                "do": "remove_leftovers",
                "objects": [_object(o) for o in objects],
                "deadline": deadline_s,
            }, deadline_s
        case act.WakeGpu(uuid, bus_id, deadline_s):
            return {"do": "wake_gpu", "uuid": uuid, "bus_id": bus_id, "deadline": deadline_s}, deadline_s
        case act.EndMpsClient(_, server, client, deadline_s):
            who = {"server": _members([server])[0], "members": _members([client])}
            return {"do": "end_mps_client", **who, "deadline": deadline_s}, deadline_s
        case act.EndZombieParent(_, parent, children, deadline_s):
            who = {"parent": _members([parent])[0], "members": _members(children)}
            return {"do": "end_zombie_parent", **who, "deadline": deadline_s}, deadline_s
        case act.AskServer(urls, deadline_s, who):
            seen = [_members(members) for members in who]
            return {"do": "ask_server", "urls": urls, "who": seen, "deadline": deadline_s}, deadline_s
        case act.SuspendAutostart(manager, name, was, uid) | act.RestoreAutostart(manager, name, was, uid):
            verb = "suspend_autostart" if isinstance(action, act.SuspendAutostart) else "restore_autostart"
            what = {"manager": manager, "name": name, "was": was, "uid": uid}
            return {"do": verb, **what, "deadline": ASKING_S}, ASKING_S
        case act.UnloadDriver(modules, boot_id, deadline_s):
            return {"do": "unload_driver", "modules": modules, "boot_id": boot_id, "deadline": deadline_s}, deadline_s
        case act.LoadDriver(modules, _, deadline_s):
            return {"do": "load_driver", "modules": modules, "deadline": deadline_s}, deadline_s
        case _:
            assert_never(action)


def _object(one: act.MemoryObject) -> dict[str, Any]:
    return {"kind": one.kind, "name": one.name, "folder": one.folder, "inode": one.inode, "pid": one.owner_pid,
            "mtime": one.mtime_s, "mib": one.size_mib}  # fmt: skip


def _service(verb: str, manager: str, name: str, uid: int | None, deadline_s: float) -> tuple[dict[str, Any], float]:
    what = {"do": verb, "manager": manager, "name": name, "uid": uid, "deadline": deadline_s}
    return what, deadline_s + STATE_S


def _members(members: Iterable[ProcessId]) -> list[tuple[str, int, int]]:
    return [(m.boot_id, m.pid, m.start) for m in members]


def outcome_of(said: Any, *, harmless: bool = False) -> act.Outcome:
    """The agent's last word; without one, what the shell knows. Only a request that never ran is clearly not done."""
    report = parse_lines(said.stdout)
    done = report.one("done")
    if done is not None:
        return _told(done)
    if isinstance(said, Broken):
        detail = f"{said.failure.value}: {said.detail}"
        began = said.started or report.one("began") is not None
        return act.Outcome(ok=False, detail=clean(detail, 500), changed=began, clear=harmless or not began)
    tail = clean(said.stderr.decode("utf-8", "replace")[-300:], 300)
    if said.code == NO_PYTHON:
        return act.Outcome(ok=False, detail="no Python on the guest: nothing can be done inside it", changed=False)
    began = report.one("began") is not None
    return act.Outcome(
        ok=False, detail=f"the agent ended with {said.code} and no answer: {tail}", changed=began, clear=not began
    )


def _told(done: Row) -> act.Outcome:
    return act.Outcome(
        ok=done.flag("ok"),
        detail=done.text("detail", limit=1000),
        changed=done.raw.get("changed") is not False,
        clear=done.raw.get("clear") is not False,
        seconds=done.real("seconds"),
        log=done.texts("log")[:200],
    )
