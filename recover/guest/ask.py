"""One real request to a server that was started again: one token has to come back, where its API can be asked for one.

What answers /health may still be unable to serve (vllm's only reads a flag). A server that wants a key, or that serves
no completions, is not asked: that is said, and is no failure.
"""

import json
import socket
import time

from recover.guest import health
from recover.guest.wire import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CAP = 1 << 20
_PROMPT = {"max_tokens": 1, "temperature": 0}
_WAYS = (
    ("/v1/completions", {"prompt": "Hello"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
)  # type: tuple[tuple[str, dict[str, Any]], ...]


def ask_server(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 60.0)))
    words = []
    for url in request.get("urls") or ():
        match = health._URL.match(str(url))
        if match is None:
            return {"ok": False, "changed": False, "detail": "not a URL that can be asked: %r" % str(url)[:100]}
        ok, said = _ask(match.group(1), match.group(2), int(match.group(3) or (443 if match.group(1) == "https" else 80)), limit)
        words.append("%s: %s" % (url, said))
        if not ok:
            return {"ok": False, "changed": True, "detail": words[-1]}
    return {"ok": True, "changed": bool(words), "detail": "; ".join(words) or "nobody to ask"}


def _ask(scheme: str, host: str, port: int, limit: Limit) -> "tuple[bool, str]":
    began = time.monotonic()
    status = 0
    try:
        model = _model(*_talk(scheme, host, port, "GET", "/v1/models", None, limit))
        for path, more in _WAYS:
            body = json.dumps(dict(_PROMPT, model=model, **more)).encode("ascii")
            status, text = _talk(scheme, host, port, "POST", path, body, limit)
            if status == 200:
                took = time.monotonic() - began
                return (True, "a token came back in %.1f s" % took) if _token(text) else (False, "HTTP 200 without a token")
            if status not in (404, 405):
                break
    except (OSError, ValueError) as error:
        return False, "no answer to a real request: %s" % (error or type(error).__name__)
    if status in (401, 403):
        return True, "not asked for a token: it wants a key"
    if 400 <= status < 500:
        return True, "not asked for a token: HTTP %d" % status
    return False, "HTTP %d to a real request: %s" % (status, text[:200].decode("utf-8", "replace"))


def _model(status: int, text: bytes) -> str:
    try:
        return str(json.loads(text.decode("utf-8"))["data"][0]["id"]) if status == 200 else "default"
    except (ValueError, KeyError, IndexError, TypeError):
        return "default"


def _token(text: bytes) -> bool:
    try:
        return bool(json.loads(text.decode("utf-8"))["choices"])
    except (ValueError, KeyError, TypeError):
        return False


def _talk(
    scheme: str, host: str, port: int, verb: str, path: str, body: "bytes | None", limit: Limit
) -> "tuple[int, bytes]":
    """(status, body). The deadline is total."""
    stream = socket.create_connection((host.strip("[]"), port), max(0.01, limit.left))
    try:
        if scheme == "https":
            stream = health._tls(stream, host)
        head = "%s %s HTTP/1.0\r\nHost: %s\r\nConnection: close\r\n" % (verb, path, host)
        if body is not None:
            head += "Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        stream.settimeout(max(0.01, limit.left))
        stream.sendall(head.encode("ascii") + b"\r\n" + (body or b""))
        data = b""
        while len(data) < _CAP and not health._whole(data):
            if limit.left <= 0:
                raise socket.timeout("no answer in time")
            stream.settimeout(max(0.01, limit.left))
            part = stream.recv(65536)
            if not part:
                break
            data += part
    finally:
        stream.close()
    head_bytes, _, rest = data.partition(b"\r\n\r\n")
    words = head_bytes.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError("the answer is not HTTP")
    return int(words[1]), rest
