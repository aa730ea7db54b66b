"""One health question per server and look, with more patience than the server's own probe (SGLang: 20 s).

Repeated probing of a suspect server piles requests up in it. A server in a container is asked in its own network. `/metrics` is answered by the HTTP process alone.
"""

import os
import re
import time

from recover.guest.child import Child, collect
from recover.guest.procs import start_of
from recover.guest.wire import Limit, Pattern, emit, read_or

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Say = Callable[[Any], None]

TIMEOUT_S = 25.0
_CAP = 4 << 20
_NEWNET = 0x40000000  # CLONE_NEWNET
_MAIN = Pattern(
    r"sglang\.launch_server|sglang\s+serve|vllm\s+serve|vllm\.entrypoints|trtllm-serve|tensorrt_llm|text-generation-launcher"
    r"|lmdeploy\s+serve|llama-server|ollama\s+serve"
)
_URL = Pattern(r"^(https?)://(\[[0-9A-Fa-f:.]+\]|[^/:\s]+)(?::(\d+))?(/\S*)?$")
# What moves whenever an engine makes progress (names after the engine's prefix). sglang counts the tokens of a request
# when that is over (`observe_one_finished_request`), minutes later for a long one; what it holds meanwhile grows.
_TOKENS = ("generation_tokens_total", "prompt_tokens_total", "realtime_tokens_total", "iteration_tokens_total_count",
           "num_used_tokens")  # fmt: skip
_RUNNING, _WAITING = ("num_running_reqs", "num_requests_running"), ("num_queue_reqs", "num_requests_waiting")


class Question:
    """`pid`, `start`: the process in whose network `url` is meant; 0: in our own."""

    def __init__(self, url: str, pid: int = 0, start: int = 0) -> None:
        self.url, self.pid, self.start = url, pid, start


def questions(request: "dict[str, Any]", found: "dict[int, dict[str, Any]]") -> "list[Question]":
    """What was configured, and on request the port that each server's main process listens on.

    A server in a network of its own (a container's) is asked there, once: where a configured port is one that docker
    forwards to it, the answer of that port is its answer.
    """
    asked = [Question(url) for url in request.get("health") or ()]
    known = {_port(one.url) for one in asked}
    for pid, row in sorted(found.items()) if request.get("health_ports") else ():
        title = " ".join(row.get("argv") or ())
        ports = dict((port, address) for port, address in row.get("listens") or ())
        if not ports or not _MAIN.search(title) or "::" in title.split(" ")[0]:
            continue
        port = _serving(title, ports)
        own = pid if _elsewhere(pid) and os.geteuid() == 0 else 0
        forwarded = [one for one in asked if own and not one.pid and _forwards(_port(one.url), pid, port, found)]
        if len(forwarded) == 1:
            forwarded[0].pid = -own  # asked through the forwarded port, and meant for it
        elif own or port not in known:
            known.add(0 if own else port)
            scheme = "https" if "--ssl-" in title else "http"
            url = "%s://%s:%d/health" % (scheme, _reach(ports[port]), port)
            asked.append(Question(url, own, row.get("start", 0)))
    return asked[:16]


_PROXY = Pattern(r"-host-port (\d+) -container-ip (\S+) -container-port (\d+)")


def _forwards(asked: int, pid: int, port: int, found: "dict[int, dict[str, Any]]") -> bool:
    """Whether docker's own forwarder passes on what comes to the port `asked` to this port of this process."""
    for row in found.values():
        title = " ".join(row.get("argv") or ())
        match = _PROXY.search(title) if "docker-proxy" in title.partition(" ")[0] else None
        if match and (int(match.group(1)), int(match.group(3))) == (asked, port):
            if "|-- %s\n" % match.group(2) in read_or("/proc/%d/net/fib_trie" % pid):
                return True
    return False


def _elsewhere(pid: int) -> bool:
    """Whether a process has a network of its own."""
    try:
        return os.readlink("/proc/%d/ns/net" % pid) != os.readlink("/proc/self/ns/net")
    except OSError:
        return False


def _enter(question: Question) -> None:
    """Join the network of a process. Only in a child of ours, which asks there on TCP and changes nothing."""
    if question.pid <= 0:
        return
    fd = os.open("/proc/%d/ns/net" % question.pid, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if start_of(question.pid) != question.start:
            raise OSError("pid %d is another process by now" % question.pid)
        if hasattr(os, "setns"):  # Python 3.12
            os.setns(fd, _NEWNET)
            return
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(fd, _NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(fd)


def _serving(title: str, ports: "dict[int, str]") -> int:
    match = re.search(r"--port[ =](\d+)", title)
    named = int(match.group(1)) if match else 0
    return named if named in ports else min(ports)


def _reach(address: str) -> str:
    if address in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return "[%s]" % address if ":" in address else address


def _port(url: str) -> int:
    match = _URL.match(url)
    return int(match.group(3) or (443 if match.group(1) == "https" else 80)) if match else 0


def start(asked: "list[Question]", timeout: float) -> "list[tuple[Question, Child, Child]]":
    """Children that ask already while other things are looked at."""
    return [(one, Child("GET " + one.url, _job(one, timeout)), Child("metrics", _metrics_job(one))) for one in asked]


def finish(asked: "list[tuple[Question, Child, Child]]", limit: Limit) -> None:
    """A child that is cut short by the look's own end is no witness against its server."""
    collect([child for _, one, two in asked for child in (one, two)], limit)
    for question, one, two in asked:
        answer = {"outcome": "error", "status": None, "detail": "the look ended before the answer came"}
        for said in one.values + two.values:
            answer.update(said)
        emit("server", url=question.url, pid=abs(question.pid), **answer)


def _job(question: Question, timeout: float) -> "Callable[[Say], None]":
    def job(say: "Say") -> None:
        import socket

        began = time.monotonic()
        answer = {"outcome": "error", "status": None, "detail": ""}  # type: dict[str, Any]
        try:
            _enter(question)
            status, body = get(question.url, timeout)
            answer.update(outcome="answered", status=status, detail=body[:200].decode("utf-8", "replace"))
        except ConnectionRefusedError as error:
            answer.update(outcome="refused", detail=str(error))
        except socket.timeout:
            answer.update(outcome="timeout", detail="connected, no answer in %g s" % timeout)
        except Exception as error:
            answer.update(detail="%s: %s" % (type(error).__name__, error))
        answer["seconds"] = round(time.monotonic() - began, 3)
        say(answer)

    return job


def _metrics_job(question: Question) -> "Callable[[Say], None]":
    def job(say: "Say") -> None:
        match = _URL.match(question.url)
        if match is None:
            return
        base = question.url[: len(question.url) - len(match.group(4) or "")]
        try:
            _enter(question)
            status, body = get(base + "/metrics", 5.0)
        except Exception:
            return
        if status == 200:
            say(counters(body.decode("utf-8", "replace")))

    return job


def counters(text: str) -> "dict[str, Any]":
    """tokens, running and waiting, summed over labels; a name that is not there is not told."""
    sums = {}  # type: dict[str, float]
    for line in text.splitlines():
        match = re.match(
            r"(?:sglang|vllm|trtllm)[:_](\w+)(?:\{.*\})?\s+(\d{1,20}(?:\.\d{1,20})?(?:[eE][+-]?\d\d?)?)(?:\s|$)", line
        )
        if match:
            name = match.group(1)
            for kind, names in (("tokens", _TOKENS), ("running", _RUNNING), ("waiting", _WAITING)):
                if name in names:
                    sums[kind] = sums.get(kind, 0.0) + float(match.group(2))
    return {kind: int(value) for kind, value in sums.items()}


def get(url: str, timeout: float) -> "tuple[int, bytes]":
    """A GET by hand: http.client would cost a third of the whole look. The deadline is total."""
    match = _URL.match(url)
    if match is None:
        raise ValueError("not a URL that can be asked: %r" % url[:100])
    import socket  # here, because most looks ask nobody

    scheme, host, port, path = match.groups()
    limit = Limit(timeout)
    stream = socket.create_connection((host.strip("[]"), int(port or (443 if scheme == "https" else 80))), timeout)
    try:
        if scheme == "https":
            stream = _tls(stream, host)
        ask = "GET %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n\r\n" % (path or "/", host)
        stream.settimeout(max(0.01, limit.left))
        stream.sendall(ask.encode("ascii"))
        data = b""
        while len(data) < _CAP:
            stream.settimeout(max(0.01, limit.left))
            part = stream.recv(65536)
            if not part:
                break
            data += part
            if _whole(data):
                break
    finally:
        stream.close()
    head, _, body = data.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/"):
        raise ValueError("the answer is not HTTP")
    return int(words[1]), body


def _whole(data: bytes) -> bool:
    """A server may keep the connection open although it was asked not to."""
    head, gap, body = data.partition(b"\r\n\r\n")
    match = re.search(rb"^content-length:\s*(\d+)", head, re.I | re.M)
    return bool(gap and match and len(body) >= int(match.group(1)))


def _tls(stream: "Any", host: str) -> "Any":
    """Only whether it answers matters here, on the guest's own loopback; nothing secret is sent."""
    import ssl

    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(stream, server_hostname=host.strip("[]"))
