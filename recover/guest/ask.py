"""One real request to a server that was started again: one token has to come back, where its API can be asked for one.

What answers /health may still be unable to serve (vllm's only reads a flag). A server that wants a key, or that serves
no completions, is not asked: that is said, and is no failure. Where it is known who listens there, one of these must
still do so, and is asked in its own network: another server behind the same port is no answer.
"""

import json
import socket
import time

from recover.guest import health, kill
from recover.guest.child import Child, collect
from recover.guest.handles import targets, tcp
from recover.guest.wire import Limit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    Say = Callable[[Any], None]

_CAP = 1 << 20
_PROMPT = {"max_tokens": 1, "temperature": 0}
_WAYS = (
    ("/v1/completions", {"prompt": "Hello"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
)  # type: tuple[tuple[str, dict[str, Any]], ...]


def ask_server(request: "dict[str, Any]") -> "dict[str, Any]":
    limit = Limit(float(request.get("deadline", 60.0)))
    words = []
    who = list(request.get("who") or ())
    for at, url in enumerate(request.get("urls") or ()):
        match = health._URL.match(str(url))
        if match is None:
            return {"ok": False, "changed": False, "detail": "not a URL that can be asked: %r" % str(url)[:100]}
        members, elsewhere = kill.members_of({"members": who[at] if at < len(who) else ()})
        child = Child("ask " + str(url), _job(match, members, bool(members or elsewhere), limit))
        collect([child], limit)
        ok, said = child.values[0] if child.values and isinstance(child.values[0], list) else (False, "no answer in time")
        words.append("%s: %s" % (url, said))
        if not ok:
            return {"ok": False, "changed": True, "detail": words[-1]}
    return {"ok": True, "changed": bool(words), "detail": "; ".join(words) or "nobody to ask"}


def _job(match: "Any", members: "list[tuple[int, int]]", known: bool, limit: Limit) -> "Callable[[Say], None]":
    """In a child: what is looked up may hang, and a network that was entered is not left again."""
    url, scheme, host = match.group(0, 1, 2)
    port = health._port(url)

    def job(say: "Say") -> None:
        asked = host
        if known:
            found = _listener(members, port)
            if found is None:
                say([False, "what answered there no longer listens on port %d" % port])
                return
            pid, start, address = found
            if health._elsewhere(pid):
                try:
                    health._enter(health.Question(url, pid, start))
                except OSError as error:
                    say([False, "the network of pid %d can't be entered: %s" % (pid, error)])
                    return
                asked = health._reach(address)
        say(list(_ask(scheme, asked, port, limit)))

    return job


def _listener(members: "list[tuple[int, int]]", port: int) -> "Optional[tuple[int, int, str]]":
    """(pid, start, address) of the first of `members` that is the very process and listens on the port."""
    for pid, start in members:
        try:
            links = [target for _, target in targets("/proc/%d/fd" % pid)]
        except OSError:
            continue
        inodes = {int(link[8:-1]) for link in links if link.startswith("socket:[")}
        for state, address, local, _ in tcp(pid, inodes)[0].values():
            if state == "0A" and local == port and not kill.is_gone(pid, start):
                return pid, start, address
    return None


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
