"""What the agent changes: each act checks identity and precondition at that moment, is bounded, and says how it ended.

The answer is one line `done` with ok, changed, clear (False: it may or may not have happened), detail and log.
"""

import os
import time

from recover.guest import child, kill, leftovers, marker, mps, parents, reload, reset, restart, units, wake
from recover.guest.wire import Limit, emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable  # noqa: F401  (type comments)


def sync(request: "dict[str, Any]") -> "dict[str, Any]":
    """sync(2) blocks on a dead network file system: bounded, and what hangs is said."""
    limit = Limit(float(request.get("deadline", 20.0)))
    one = child.Child("sync", lambda say: os.sync())
    if child.collect([one], limit):
        return {"ok": False, "clear": True, "changed": True, "detail": "sync did not come back: a file system hangs"}
    return {"ok": True, "changed": True, "detail": "disks are in step"}


def here(request: "dict[str, Any]") -> "dict[str, Any]":
    """Nothing is done: whoever asks wants to know that an agent which stayed still answers."""
    return {"ok": True, "changed": False, "detail": "here"}


def _ask_server(request: "dict[str, Any]") -> "dict[str, Any]":
    from recover.guest import ask

    return ask.ask_server(request)


def _dump(request: "dict[str, Any]") -> "dict[str, Any]":
    from recover.guest import dump

    return dump.dump(request)


def _host_look(request: "dict[str, Any]") -> "dict[str, Any]":
    from recover.guest import host

    return host.look(request)


def _host_words(request: "dict[str, Any]") -> "dict[str, Any]":
    from recover.guest import nodewords

    return nodewords.words(request)


def _pci() -> "Any":
    from recover.guest import pci

    return pci


ACTS = {
    "here": here,
    "signal": kill.send,
    "await_gone": kill.await_gone,
    "set_persistence": reset.set_persistence,
    "reset_gpu": reset.reset_gpu,
    "stop_service": units.stop,
    "ask_server": _ask_server,
    "suspend_autostart": units.suspend,
    "restore_autostart": units.restore,
    "start_service": units.start,
    "place_marker": marker.place,
    "clear_marker": marker.clear,
    "sync": sync,
    "remove_leftovers": leftovers.remove,
    "wake_gpu": wake.wake,
    "end_mps_client": mps.end_client,
    "end_zombie_parent": parents.end_zombie_parent,
    "unload_driver": reload.unload,
    "load_driver": reload.load,
    "reboot": restart.reboot,
    "dump": _dump,
    "host_look": _host_look,
    "host_words": _host_words,
    "reset_pci": lambda request: _pci().reset(request),
    "rescan_pci": lambda request: _pci().find(request),
    "restore_reset_method": lambda request: _pci().restore(request),
    "host_reset_gpu": lambda request: _pci().reset_gpu(request),
}  # type: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]


def perform(what: str, request: "dict[str, Any]") -> None:
    began = time.monotonic()
    act = ACTS.get(what)
    try:
        if act is None:
            done = {"ok": False, "changed": False, "detail": "no such act: %r" % what}
        else:
            emit("began", do=what)
            done = act(request)
    except Exception as error:
        done = {"ok": False, "clear": False, "detail": "%s: %s" % (type(error).__name__, error)}
    answer = {"ok": False, "changed": True, "clear": True, "detail": "", "log": []}  # type: dict[str, Any]
    answer.update(done)
    emit("done", seconds=round(time.monotonic() - began, 3), **answer)
