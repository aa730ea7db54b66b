"""Evidence, before anything is ended: each piece has its own deadline, all of it 60 s, and what is missing is said."""

from recover.guest import child, gpus, procs, system
from recover.guest.child import Child, collect, run, which
from recover.guest.kill import members_of, stack_of
from recover.guest.redact import redact_text
from recover.guest.wire import Limit, emit, gap, guarded, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

TOTAL_S = 60.0
_CAP = 2 << 20
_DRIVER = (("nvidia-smi-q.txt", ["nvidia-smi", "-q"], 25.0),)  # all that the driver says; the short table adds nothing


def dump(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", TOTAL_S)))
    lines = guarded("kernel-log", system.kernel_log) or []
    _piece("kernel-events.txt", "\n".join("[%12.6f] %s" % (usec / 1e6, text) for usec, text in lines))
    hangs = bool(request.get("nvml_hangs")) or gpus.patience(lines) > gpus.QUERY_S or _left_before()
    if hangs:
        gap("nvidia-smi", "timeout", "not asked: the driver hangs, and a tool that hangs is one more client of the GPU")
    driver = None if hangs or not which("nvidia-smi") else Child("nvidia-smi", lambda say: _ask_driver(limit, say))
    pieces = [(name, argv, seconds) for name, argv, seconds in _commands(request) if which(argv[0])]
    _piece("meminfo.txt", read_or("/proc/meminfo"))
    _piece("slabinfo.txt", read_or("/proc/slabinfo"))
    _piece("modules.txt", read_or("/proc/modules"))
    _piece("mounts.txt", read_or("/proc/mounts"))
    _piece("stacks.txt", _stacks(request))
    missing = []
    for name, argv, seconds in pieces:
        if limit.left <= 0.5:
            missing.append(name)
            gap(name, "timeout", "no time was left for it")
            continue
        ended = run(argv, limit.within(seconds), " ".join(argv), _CAP)
        if ended.code is None:
            missing.append(name)
            gap(name, "timeout", "did not end in %g s" % seconds)
        _piece(name, ended.out or ended.err)
    if driver is not None:
        missing += _told_by_driver(driver, limit)
    detail = "evidence without " + ", ".join(missing) if missing else "evidence complete"
    return {"ok": True, "changed": False, "detail": detail}


def _ask_driver(limit: Limit, say: "Callable[[Any], None]") -> None:
    """Beside all else, since it takes the longest. One that hangs is one more client: the next is not asked then."""
    for name, argv, seconds in _DRIVER:
        # It is ended here, before the whole is over: whoever ends this child does not reach the command.
        ended = run(argv, Limit(min(seconds, limit.left - 1.0)), " ".join(argv), _CAP)
        say({"name": name, "text": ended.out or ended.err, "late": ended.code is None, "seconds": seconds})
        if ended.code is None:
            return


def _told_by_driver(driver: Child, limit: Limit) -> "list[str]":
    collect([driver], limit)
    told = {value["name"]: value for value in driver.values if "name" in value}
    missing = []
    for name, _, seconds in _DRIVER:
        if name not in told or told[name]["late"]:
            missing.append(name)
            gap(name, "timeout", "did not end in %g s" % seconds)
        _piece(name, told[name]["text"] if name in told else "")
    return missing


def _left_before() -> bool:
    """Whether a question of an earlier look still hangs in the driver."""
    name = child.NAME.decode("ascii")
    found = (procs.stat("/proc/%d" % pid) for pid in procs.pids())
    return any(row is not None and row["comm"] == name and row["state"] == "D" for row in found)


def _piece(name: str, text: str) -> None:
    if text:
        emit("piece", name=name, text=redact_text(text[-_CAP:]))


def _commands(request: "dict[str, Any]") -> "list[tuple[str, list[str], float]]":
    found = [
        ("ps.txt", ["ps", "-eLo", "pid,tid,ppid,pgid,sid,user,stat,wchan:32,rss,etimes,time,comm,args", "-ww"], 5.0),
        ("kernel.txt", ["dmesg", "-T"], 5.0),
        ("free.txt", ["free", "-m"], 3.0),
        ("shm.txt", ["ls", "-lan", "/dev/shm"], 3.0),
        ("lspci.txt", ["lspci", "-nnvv", "-d", "10de:"], 5.0),
        ("modinfo.txt", ["modinfo", "nvidia"], 3.0),
    ]  # type: list[tuple[str, list[str], float]]
    for unit in list(request.get("units") or ())[:8]:
        if not str(unit).startswith("-"):
            found.append(("journal-%s.txt" % _safe(unit), ["journalctl", "-u", unit, "-n", "2000", "--no-pager"], 10.0))
    for name in list(request.get("containers") or ())[:8]:
        if not str(name).startswith("-"):
            found.append(("docker-%s.txt" % _safe(name), ["docker", "logs", "--tail", "2000", name], 10.0))
    members, _ = members_of(request)
    for pid, start in members[:16]:
        if procs.start_of(pid) == start:
            found.append(("py-spy-%d.txt" % pid, ["py-spy", "dump", "--nonblocking", "--pid", str(pid)], 5.0))
    return found


def _safe(name: "Any") -> str:
    return "".join(c if c.isalnum() or c in ".-_@" else "_" for c in str(name))[:80]


def _stacks(request: "dict[str, Any]") -> str:
    """Kernel stacks of the members' threads and of everything in D state."""
    members, _ = members_of(request)
    wanted = {pid for pid, start in members if procs.start_of(pid) == start}
    lines = []
    for pid in procs.pids():
        row = procs.stat("/proc/%d" % pid)
        if row is None or (pid not in wanted and row["state"] != "D"):
            continue
        for tid, state, wchan in procs.threads(pid)[:64]:
            if state == "D" or tid == pid:
                lines.append("%d/%d %s %s %s\n%s" % (pid, tid, row["comm"], state, wchan, stack_of(pid, tid)))
    return "\n".join(lines)
