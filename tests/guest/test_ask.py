"""One real request to a real HTTP server: a token comes back, or it is said why none was asked for or none came."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from recover.guest import ask

Answers = dict[str, tuple[int, Any]]
MODELS = (200, {"data": [{"id": "org/model"}]})
TOKEN = (200, {"choices": [{"text": "!"}]})


@pytest.fixture
def server() -> Iterator[Callable[[Answers], tuple[str, list[dict[str, Any]]]]]:
    """`server(answers)`: its health URL, and the requests that it got. A path that isn't there is 404; None hangs."""
    running: list[ThreadingHTTPServer] = []

    def begin(answers: Answers) -> tuple[str, list[dict[str, Any]]]:
        got: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.said()

            def do_POST(self) -> None:
                got.append({"path": self.path, **json.loads(self.rfile.read(int(self.headers["Content-Length"])))})
                self.said()

            def said(self) -> None:
                status, body = answers.get(self.path, (404, {}))
                if status == 0:
                    time.sleep(5)
                raw = json.dumps(body).encode()
                self.send_response(status or 200)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # who asked has gone
                    self.wfile.write(raw)

            def log_message(self, *_: object) -> None: ...

        one = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        one.daemon_threads = True
        running.append(one)
        threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{one.server_port}/health", got

    yield begin
    for one in running:
        one.shutdown()
        one.server_close()


def asked(*urls: str, deadline: float = 20.0) -> dict[str, Any]:
    return ask.ask_server({"urls": urls, "deadline": deadline})


def test_one_token_of_the_model_that_it_serves(server):
    url, got = server({"/v1/models": MODELS, "/v1/completions": TOKEN})
    done = asked(url)
    assert done["ok"] and done["changed"] and "a token came back" in done["detail"]
    (request,) = got
    assert (request["path"], request["model"], request["max_tokens"]) == ("/v1/completions", "org/model", 1)


def test_a_server_of_chats_only_is_asked_there(server):
    url, got = server({"/v1/chat/completions": TOKEN})
    assert asked(url)["ok"] and [r["path"] for r in got] == ["/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"/v1/completions": (401, {})}, "it wants a key"),
        ({"/v1/completions": (400, {"error": "this is an embedding model"})}, "HTTP 400"),
        ({}, "HTTP 404"),
    ],
)
def test_what_cannot_be_asked_for_a_token_is_said_and_is_no_failure(server, answers, words):
    done = asked(server(answers)[0])
    assert done["ok"] and "not asked for a token" in done["detail"] and words in done["detail"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [((500, {"error": "scheduler died"}), "scheduler died"), ((200, {}), "without a token"), ((0, {}), "no answer")],
)
def test_a_server_that_serves_nobody_is_found_out(server, answer, words):
    done = asked(server({"/v1/models": MODELS, "/v1/completions": answer})[0], deadline=1.0)
    assert not done["ok"] and words in done["detail"], done


def test_one_of_several_that_fails_is_named_and_a_closed_port_is_no_answer(server):
    well, _ = server({"/v1/completions": TOKEN})
    closed = "http://127.0.0.1:9/health"
    done = asked(well, closed)
    assert not done["ok"] and closed in done["detail"]
    assert asked()["ok"] and not asked("ftp://x/")["ok"]
