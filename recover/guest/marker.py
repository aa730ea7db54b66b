"""The run's marker under /run is the only file that is ever written on the guest; it expires in the guest's own uptime.

Two runs that place one at the same moment are kept apart by an exclusive lock on its folder; the file itself appears
whole or not at all.
"""

import fcntl
import json
import os

from recover.guest.wire import Limit, at, read, read_or, uptime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

FOLDER, NAME = "/run/gpu-recover", "marker"


def _path() -> str:
    return at(FOLDER) + "/" + NAME


def current() -> "Optional[dict[str, Any]]":
    """The unexpired marker of this boot, or None. Raises OSError or ValueError where it can't be told."""
    try:
        text = read(_path(), 65536)
    except FileNotFoundError:
        return None
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the marker is not a record")
    if found.get("boot_id") != _boot() or float(found.get("expires", 0)) <= uptime():
        return None
    return found


def _boot() -> str:
    return read_or("/proc/sys/kernel/random/boot_id").strip()


class _Locked:
    def __enter__(self) -> None:
        import time

        os.makedirs(at(FOLDER), 0o755, exist_ok=True)
        self.fd = os.open(at(FOLDER), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        limit = Limit(3.0)
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if limit.left <= 0:
                    os.close(self.fd)
                    raise
                time.sleep(0.02)

    def __exit__(self, *exc: "Any") -> None:
        os.close(self.fd)


def _held() -> "Optional[dict[str, Any]]":
    try:
        return current()
    except ValueError:  # torn or foreign: it can't be anyone's claim
        return None


def place(request: "dict[str, Any]") -> "dict[str, Any]":
    """Refused while another run's marker stands; our own is renewed, one that is stale is replaced and explained.

    `takes_over` names the one run whose standing marker may be replaced: who asks knows that it is over. Whoever else
    placed one since the look is not meant, and keeps it.
    """
    mine = {key: str(request.get(key, "")) for key in ("run", "who", "host", "rung")}  # type: dict[str, Any]
    mine["boot_id"] = _boot()
    with _Locked():
        other = _held()
        over = str(request.get("takes_over") or "")
        if other is not None and other.get("run") not in (mine["run"], over):
            return {"ok": False, "changed": False, "detail": _words(other), "holder": other}
        stale = _left_behind(mine["run"])
        mine["expires"] = uptime() + float(request.get("ttl_s", 600.0))
        draft = _path() + ".new"
        try:
            os.unlink(draft)
        except OSError:
            pass
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(fd, json.dumps(mine).encode("ascii"))
        finally:
            os.close(fd)
        os.replace(draft, _path())
    return {"ok": True, "changed": True, "detail": "marker placed until uptime %.0f s%s" % (mine["expires"], stale)}


def _left_behind(run: str) -> str:
    """In words: whose marker is replaced now, and why that is allowed."""
    try:
        found = json.loads(read(_path(), 65536))
    except (OSError, ValueError):
        return ""
    if not isinstance(found, dict) or found.get("run") == run:
        return ""
    who = "run %s of %s on %s (at %s)" % tuple(str(found.get(key, "?"))[:80] for key in ("run", "who", "host", "rung"))
    if found.get("boot_id") != _boot():
        return "; it replaces the mark of %s from another boot" % who
    left = float(found.get("expires", 0)) - uptime()
    return "; it replaces the mark of %s, %s" % (who, "which is over" if left > 0 else "expired %.0f s ago" % -left)


def _words(other: "dict[str, Any]") -> str:
    return "held by run %s of %s on %s, at %s, for another %.0f s" % (
        other.get("run"), other.get("who"), other.get("host"), other.get("rung"), float(other["expires"]) - uptime(),
    )  # fmt: skip


def clear(request: "dict[str, Any]") -> "dict[str, Any]":
    """Only our own, or one that nobody can claim any more; another's stays."""
    if not os.path.exists(_path()):
        return {"ok": True, "changed": False, "detail": "no marker stands"}
    with _Locked():
        other = _held()
        if other is not None and other.get("run") != str(request.get("run", "")):
            return {"ok": True, "changed": False, "detail": "another's marker stands and was left: " + _words(other)}
        try:
            os.unlink(_path())
        except FileNotFoundError:
            pass
    try:
        os.rmdir(at(FOLDER))
    except OSError:
        pass
    return {"ok": True, "changed": True, "detail": "marker removed"}
