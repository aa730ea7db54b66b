"""MPS clients are known by the control daemon's own word, and ended by it: a killed one can take the others with it.

Commands of nvidia-cuda-mps-control(1): get_server_list, get_client_list SERVER, terminate_client SERVER CLIENT.
"""

from recover.guest import kill, procs
from recover.guest.child import run, which
from recover.guest.wire import Limit, emit, gap, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Optional

_ASK_S = 5.0
_TOOL = "nvidia-cuda-mps-control"
_COMM = "nvidia-cuda-mps"  # the first 15 bytes, of the control daemon's as of its servers' names


def look(rows: "dict[int, dict[str, Any]]", limit: Limit) -> None:
    """Which processes are clients; nothing is started where no daemon runs."""
    found = []  # type: list[dict[str, int]]
    for pid in controls(rows):
        servers = ask(pid, "get_server_list", limit.within(_ASK_S))
        if servers is None:
            gap("mps", "timeout", "the MPS control daemon %d did not answer" % pid)
            continue
        for server in servers:
            clients = ask(pid, "get_client_list %d" % server, limit.within(_ASK_S)) or []
            found.extend({"server": server, "client": client} for client in clients)
    if found:
        emit("mps", list=found)


def controls(rows: "dict[int, dict[str, Any]]") -> "list[int]":
    """Control daemons of our own pid name space that aren't stuck."""
    named = [
        pid
        for pid, row in sorted(rows.items())
        if row["comm"] == _COMM and row["state"] in "SR" and len(row.get("ns_pids") or ()) <= 1
    ]
    return [pid for pid in named if _TOOL in read_or("/proc/%d/cmdline" % pid)]


def _pipe(pid: int) -> "list[str]":
    """The daemon's own pipe directory; its command must be asked through the same."""
    for word in read_or("/proc/%d/environ" % pid).split("\0"):
        if word.startswith("CUDA_MPS_PIPE_DIRECTORY="):
            return [word]
    return []


def ask(pid: int, command: str, limit: Limit) -> "Optional[list[int]]":
    """The numbers of the answer; None where there is none."""
    words = command.split(" ")
    if which(_TOOL) is None:
        return None
    script = 'echo "$@" | ' + _TOOL
    ended = run(["env"] + _pipe(pid) + ["sh", "-c", script, "sh"] + words, limit, _TOOL)
    if ended.code != 0:
        return None
    numbers = [whole(word, None) for word in ended.out.split()]
    return [number for number in numbers if number is not None]


def end_client(request: "dict[str, Any]") -> "dict[str, Any]":
    """Only this client of only this server; the daemon is asked, and its client is read back."""
    limit = Limit(float(request.get("deadline", 20.0)))
    members, _ = kill.members_of(request)
    servers, _ = kill.members_of({"members": [request.get("server")]})
    if not members or kill.is_gone(*members[0]):
        return {"ok": True, "changed": False, "detail": "the client is gone"}
    client = members[0][0]
    if not servers or procs.start_of(servers[0][0]) != servers[0][1]:
        return {"ok": False, "changed": False, "detail": "its MPS server is another process now"}
    server = servers[0][0]
    rows = kill.table()
    if client in kill.protected(rows, request):
        return {"ok": False, "changed": False, "detail": "%d: not ended: it is protected" % client}
    for pid in controls({pid: dict(row, ns_pids=()) for pid, row in rows.items()}):
        if server not in (ask(pid, "get_server_list", limit.within(_ASK_S)) or ()):
            continue
        if client not in (ask(pid, "get_client_list %d" % server, limit.within(_ASK_S)) or ()):
            return {"ok": True, "changed": False, "detail": "%d is no client of MPS server %d any more" % (client, server)}
        if procs.start_of(client) != members[0][1]:
            return {"ok": True, "changed": False, "detail": "the client is gone"}
        if ask(pid, "terminate_client %d %d" % (server, client), limit) is None:
            return {"ok": False, "clear": False, "detail": "terminate_client %d %d did not come back" % (server, client)}
        left = client in (ask(pid, "get_client_list %d" % server, Limit(_ASK_S)) or ())
        return {"ok": not left, "changed": True, "detail": "MPS client %d %s" % (client, "is still there" if left else "ended")}
    return {"ok": False, "changed": False, "detail": "no MPS control daemon knows server %d" % server}
