"""One real request to a real HTTP server: a token comes back, or it is said why none was asked for or none came."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from recover.edge.actuator.guest import request_of
from recover.guest import ask
from recover.model.act import AskServer
from recover.model.process import ProcessId
from tests.guest.conftest import BOOT, PLAIN, member

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


# Who answers

TOKENS = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.said({"data": [{"id": sys.argv[2]}]})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.said({"choices": [{"text": "!"}]} if asked["model"] == sys.argv[2] else {})
    def said(self, body):
        raw = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("ready", flush=True)
server.serve_forever()
"""


def asked_of(url: str, *members: ProcessId) -> dict[str, Any]:
    return ask.ask_server(request_of(AskServer((url,), 20.0, (members,)))[0])


def test_who_was_seen_to_listen_is_asked(server):
    url, got = server({"/v1/completions": TOKEN})
    assert asked_of(url, member(os.getpid()))["ok"] and len(got) == 1


def test_another_process_behind_the_port_is_no_answer(server, start):
    """Seen to fail: with the port alone asked, whoever has it by now."""
    url, got = server({"/v1/completions": TOKEN})
    other, me = member(start(PLAIN).pid), member(os.getpid())
    for who in (other, ProcessId(BOOT, me.pid, me.start - 1), ProcessId("another boot", me.pid, me.start)):
        done = asked_of(url, who)
        assert not done["ok"] and "no longer listens" in done["detail"], done
    assert got == [], "and nobody was asked"


@pytest.mark.lab
def test_a_server_in_a_network_of_its_own_is_asked_there_whoever_has_its_port_here(server, start):
    """Both serve on one port, each in its network: the one here answers without a token."""
    url, got = server({"/v1/completions": (200, {})})
    port = url.rsplit(":", 1)[1].split("/")[0]
    inside = 'ip link set lo up && exec "$0" -I -c "$@"'
    child = start("", argv=["unshare", "-n", "sh", "-c", inside, sys.executable, TOKENS, port, "org/boxed"])
    assert not asked(url)["ok"] and len(got) == 1
    done = asked_of(url, member(child.pid))
    assert done["ok"] and "a token came back" in done["detail"], done
    forwarded = asked_of(f"http://192.0.2.1:{port}/health", member(child.pid))
    assert forwarded["ok"], "by the address on which it listens there"
    assert len(got) == 1 and os.readlink("/proc/self/ns/net") != os.readlink(f"/proc/{child.pid}/ns/net")


def test_a_network_that_cannot_be_entered_is_said(server, monkeypatch):
    """As for somebody who is not root."""
    url, got = server({"/v1/completions": TOKEN})
    monkeypatch.setattr(ask.health, "_elsewhere", lambda pid: True)
    monkeypatch.setattr(ask.health, "start_of", lambda pid: 1)
    done = asked_of(url, member(os.getpid()))
    assert not done["ok"] and "can't be entered" in done["detail"] and got == []


def test_what_hangs_while_it_is_looked_up_costs_the_deadline(monkeypatch, server):
    url, _ = server({"/v1/completions": TOKEN})
    monkeypatch.setattr(ask, "_listener", lambda *_: time.sleep(60))
    done = ask.ask_server(request_of(AskServer((url,), 1.0, ((member(os.getpid()),),)))[0])
    assert not done["ok"] and "no answer in time" in done["detail"]
