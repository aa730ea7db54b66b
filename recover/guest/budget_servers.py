"""Servers that run already: their words, what their processes hold, and what they say of themselves when asked once.

cmdline and status block on a stuck process: one child reads all of it, and what it had found by then is kept.
"""

import json
import os
import re

from recover.guest.child import Child, collect
from recover.guest.redact import redact
from recover.guest.wire import Limit, emit, gap, listdir, read, read_or, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

_SERVER = re.compile(
    r"sglang\.launch_server|(?:^|[/\s])sglang\s+serve|(?:^|[/\s])vllm\s+serve|vllm\.entrypoints|llama-server"
    r"|trtllm-serve|lmcache[._](?:server|v1)|dynamo\.(?:sglang|vllm)"
)
_ENV = re.compile(r"^(?:SGLANG_|VLLM_|LMCACHE_|PYTHONPATH=|HF_HOME=|HF_HUB_CACHE=|CUDA_VISIBLE_DEVICES=)")
_CARRIERS = frozenset(
    "sh bash dash zsh tmux screen grep vi vim less sudo ssh docker podman gpu-recover timeout nohup".split()
)
_ANSWER_CAP = 1 << 20
_ASK_S = 4.0


def others(limit: Limit) -> None:
    reader = Child("command lines", _servers)
    late = collect([reader], limit)
    servers = [value for value in reader.values if isinstance(value, dict) and "argv" in value]
    says = {value["of"]: value for value in reader.values if isinstance(value, dict) and "of" in value}
    for server in servers:
        server["says"] = says.get(server["pid"], {})
    emit("budget-others", servers=servers)
    if late:
        gap("budget-others", "timeout", "a process's command line could not be read in time")


def _servers(say: "Callable[[Any], None]") -> None:
    rows = {}
    mains = []
    for name in listdir("/proc"):
        if not name.isdigit():
            continue
        stat = read_or("/proc/%s/stat" % name).rpartition(")")[2].split()
        if len(stat) > 4:
            rows[int(name)] = (whole(stat[1]), whole(stat[3]))  # parent, session
        try:
            argv = read("/proc/%s/cmdline" % name, 65536).split("\0")[:-1]
        except OSError:
            continue
        if argv and int(name) != os.getpid() and _SERVER.search(" ".join(argv[:12])) and not _carries(argv):
            mains.append((int(name), argv))
    for pid, argv in mains:
        if rows.get(pid, (0, 0))[0] in [other for other, _ in mains]:
            continue  # a worker that kept its parent's words
        env = [line for line in read_or("/proc/%d/environ" % pid).split("\0") if _ENV.match(line)]
        say({"pid": pid, "argv": redact(argv), "env": redact(env), "cwd": _link("/proc/%d/cwd" % pid),
             "exe": _link("/proc/%d/exe" % pid), "anon": _anon(pid, rows)})  # fmt: skip
    for pid, argv in mains:
        said = _info(argv)
        if said:
            say(dict(said, of=pid))


def _carries(argv: "list[str]") -> bool:
    """Shells, editors, greps and our own preflight that only carry the words of a server."""
    return os.path.basename(argv[0]) in _CARRIERS or "preflight" in argv


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _anon(pid: int, rows: "dict[int, tuple[int, int]]") -> int:
    """Bytes of private memory of a server and all that it started."""
    members = {pid}
    grown = True
    while grown:
        more = {child for child, (parent, _) in rows.items() if parent in members and child not in members}
        grown = bool(more)
        members |= more
    total = 0
    for member in members:
        match = re.search(r"^RssAnon:\s+(\d{1,19}) kB", read_or("/proc/%d/status" % member), re.M)
        total += int(match.group(1)) * 1024 if match else 0
    return total


def _info(argv: "list[str]") -> "Optional[dict[str, Any]]":
    """SGLang's own account: version and the device pool's size. Asked once, from inside, with a short deadline."""
    words = " ".join(argv)
    if "sglang" not in words:
        return None
    port = re.search(r"--port[= ](\d{1,5})\b", words)
    host = re.search(r"--host[= ]([\w.:-]+)", words)
    name = host.group(1) if host and host.group(1) not in ("0.0.0.0", "::") else "127.0.0.1"
    from urllib.request import ProxyHandler, build_opener

    opener = build_opener(ProxyHandler({}))  # a proxy of the environment has no business with a local question
    for path in ("server_info", "get_server_info"):
        try:
            url = "http://%s:%s/%s" % (name, port.group(1) if port else "30000", path)
            answer = opener.open(url, timeout=_ASK_S)
            value = json.loads(answer.read(_ANSWER_CAP).decode("utf-8", "replace"))
        except Exception:
            continue
        return {key: value[key] for key in ("version", "max_total_num_tokens") if key in value}
    return None
