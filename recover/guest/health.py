"""One health question per server and look, with more patience than the server's own probe (SGLang: 20 s).

Repeated probing of a suspect server piles requests up in it. `/metrics` is answered by the HTTP process alone.
"""

import re
import time

from recover.guest.child import Child, collect
from recover.guest.wire import Limit, emit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Say = Callable[[Any], None]

TIMEOUT_S = 25.0
_CAP = 4 << 20
_MAIN = re.compile(
    r"sglang\.launch_server|sglang\s+serve|vllm\s+serve|vllm\.entrypoints|trtllm-serve|tensorrt_llm|text-generation-launcher"
    r"|lmdeploy\s+serve|llama-server|ollama\s+serve"
)
_URL = re.compile(r"^(https?)://(\[[0-9A-Fa-f:.]+\]|[^/:\s]+)(?::(\d+))?(/\S*)?$")
# What moves whenever an engine makes progress (names after the engine's prefix). sglang counts the tokens of a request
# when that is over (`observe_one_finished_request`), minutes later for a long one; what it holds meanwhile grows.
_TOKENS = ("generation_tokens_total", "prompt_tokens_total", "realtime_tokens_total", "iteration_tokens_total_count",
           "num_used_tokens")  # fmt: skip
_RUNNING, _WAITING = ("num_running_reqs", "num_requests_running"), ("num_queue_reqs", "num_requests_waiting")


def urls_of(request: "dict[str, Any]", found: "dict[int, dict[str, Any]]") -> "list[str]":
    """What was configured, and on request the port that each server's main process listens on."""
    urls = list(request.get("health") or ())
    known = {_port(url) for url in urls}
    if request.get("health_ports"):
        for _, row in sorted(found.items()):
            title = " ".join(row.get("argv") or ())
            ports = dict((port, address) for port, address in row.get("listens") or ())
            if ports and _MAIN.search(title) and "::" not in title.split(" ")[0]:
                port = _serving(title, ports)
                if port not in known:
                    known.add(port)
                    scheme = "https" if "--ssl-" in title else "http"
                    urls.append("%s://%s:%d/health" % (scheme, _reach(ports[port]), port))
    return urls[:16]


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


def start(urls: "list[str]", timeout: float) -> "list[tuple[str, Child, Child]]":
    """Children that ask already while other things are looked at."""
    return [(url, Child("GET " + url, _job(url, timeout)), Child("metrics", _metrics_job(url))) for url in urls]


def finish(asked: "list[tuple[str, Child, Child]]", limit: Limit) -> None:
    """A child that is cut short by the look's own end is no witness against its server."""
    collect([child for _, one, two in asked for child in (one, two)], limit)
    for url, one, two in asked:
        answer = {"outcome": "error", "status": None, "detail": "the look ended before the answer came"}
        for said in one.values + two.values:
            answer.update(said)
        emit("server", url=url, **answer)


def _job(url: str, timeout: float) -> "Callable[[Say], None]":
    def job(say: "Say") -> None:
        import socket

        began = time.monotonic()
        answer = {"outcome": "error", "status": None, "detail": ""}  # type: dict[str, Any]
        try:
            status, body = get(url, timeout)
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


def _metrics_job(url: str) -> "Callable[[Say], None]":
    def job(say: "Say") -> None:
        match = _URL.match(url)
        if match is None:
            return
        base = url[: len(url) - len(match.group(4) or "")]
        try:
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
        match = re.match(r"(?:sglang|vllm|trtllm)[:_](\w+)(?:\{.*\})?\s+([0-9.eE+-]+)(?:\s|$)", line)
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
