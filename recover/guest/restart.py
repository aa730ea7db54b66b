"""A clean restart is asked of the guest's own init, once, for the boot that was meant, and only if nobody objects.

kexec and soft-reboot are avoided: neither starts the devices anew (systemctl(1), SYSTEMCTL_SKIP_AUTO_KEXEC).
"""

import os
import shlex
import signal

from recover.guest.child import run, which
from recover.guest.wire import Limit, at, emit, gap, listdir, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_ASK_S = 5.0
_LIST = ["busctl", "--system", "--no-pager", "call", "org.freedesktop.login1", "/org/freedesktop/login1",
         "org.freedesktop.login1.Manager", "ListInhibitors"]  # fmt: skip
_REBOOT = ["env", "SYSTEMCTL_SKIP_AUTO_KEXEC=1", "SYSTEMCTL_SKIP_AUTO_SOFT_REBOOT=1", "systemctl", "--no-wall",
           "reboot"]  # fmt: skip
BLOCKS = ("block", "block-weak")


def init() -> str:
    """Who is pid 1; "systemd" only where it runs the machine, since comm may be that of any container's init."""
    comm = read_or(at("/proc/1/comm")).strip()
    if comm == "systemd" and not os.path.isdir(at("/run/systemd/system")):
        return "systemd (not booted)"
    return comm or "?"


def look(limit: Limit) -> None:
    found = inhibitors(limit.within(_ASK_S))
    kexec = read_or(at("/sys/kernel/kexec_loaded")).strip() == "1"
    state = ""
    if init() == "systemd":
        words = run(["systemctl", "is-system-running"], limit.within(_ASK_S)).out.split()
        state = words[0] if words else ""
    emit("boot", init=init(), inhibitors=found or [], kexec=kexec, state=state)
    if found is None:
        gap("inhibitors", "timeout", "logind did not say who objects to a shutdown")


def inhibitors(limit: Limit) -> "Optional[list[dict[str, str]]]":
    """Those that concern a shutdown; None where logind can't be asked although there are some."""
    if not any(name.isdigit() for name in listdir(at("/run/systemd/inhibit"))):
        return []
    ended = run(_LIST, limit, "busctl ListInhibitors", 1 << 20)
    if ended.code != 0:
        return None
    return parse(ended.out)


def parse(text: str) -> "Optional[list[dict[str, str]]]":
    """`a(ssssuu) N "what" "who" "why" "mode" uid pid …` as busctl writes it."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    if len(words) < 2 or words[0] != "a(ssssuu)" or whole(words[1], None) is None:
        return None
    rows = words[2:]
    found = []
    for i in range(0, 6 * int(words[1]), 6):
        if len(rows) < i + 6:
            return None
        what, who, why, mode, _, pid = rows[i : i + 6]
        if "shutdown" in what.split(":"):
            found.append({"who": "%s (pid %s)" % (who, pid), "why": why, "mode": mode})
    return found


def reboot(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 60.0)))
    here = read_or("/proc/sys/kernel/random/boot_id").strip()
    if here != str(request.get("boot_id")):
        return {"ok": True, "changed": False, "detail": "it has booted anew already"}
    refused = _refused(limit)
    if refused:
        return {"ok": False, "changed": False, "detail": refused}
    # systemd ends our session at once, and the answer must still go out.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    ended = run(_REBOOT, limit, "systemctl reboot")
    said = (ended.err.strip() or ended.out.strip())[:300]
    if ended.code is None:
        return {"ok": False, "clear": False, "detail": "systemctl reboot did not come back: %s" % said}
    if ended.code != 0:
        sure = "inhibit" in said.lower() or "denied" in said.lower()
        detail = "systemctl reboot: exit %d: %s" % (ended.code, said)
        return {"ok": False, "changed": not sure, "clear": sure, "detail": detail}
    return {"ok": True, "changed": True, "detail": "systemd was asked to reboot"}


def _refused(limit: Limit) -> str:
    if os.geteuid() != 0:
        return "a reboot needs root"
    if init() != "systemd" or which("systemctl") is None or which("env") is None:
        return "pid 1 is %s, and only systemd is asked" % init()
    found = [one for one in inhibitors(limit.within(_ASK_S)) or [] if one["mode"] in BLOCKS]
    return "refused: %s" % "; ".join("%s objects: %s" % (one["who"], one["why"]) for one in found[:3]) if found else ""
