"""A place where messages arrive: a real HTTP server on loopback that takes what apprise's json:// posts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PASSWORD = "hunter2abc"


class Pager:
    """`answers`: path -> HTTP status (200 where none is named), None: it never answers. `got`: path -> messages."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.answers: dict[str, int | None] = {}
        self.got: dict[str, list[dict[str, Any]]] = {}
        self.closing = threading.Event()

    def url(self, path: str) -> str:
        return f"json://ops:{PASSWORD}@127.0.0.1:{self.port}/{path}"

    def titles(self, path: str) -> list[str]:
        return [m["title"] for m in self.got.get(path, [])]


@contextmanager
def pager() -> Iterator[Pager]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = self.path.strip("/")
            status = desk.answers.get(path, 200)
            if status is None:
                desk.closing.wait(60)
                return
            if status < 300:
                desk.got.setdefault(path, []).append(message)
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    desk = Pager(server.server_port)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield desk
    finally:
        desk.closing.set()
        server.shutdown()
        server.server_close()
