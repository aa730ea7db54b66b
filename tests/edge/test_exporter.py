"""What the exporter serves: one table of names, two paths by GET alone, and nobody who keeps others from asking."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from recover.core.diagnose import assess
from recover.core.past import Past
from recover.core.report.check.prometheus import EXPORTER_METRICS, METRICS, lasts, prometheus, samples
from recover.core.report.check.verdict import Checked, checked, unjudged
from recover.edge.exporter import Board, Server
from recover.edge.simulated import FAULTS, SimulatedClock, SimulatedMachine
from recover.model.ladder import Limits
from recover.model.watch import Judged, Standing, Status

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
CACHED = CACHE / "gpu-recover-tests/promtool/promtool"  # where `tools/setup lab` puts it


def seen(name: str, fault: str) -> Checked:
    clock = SimulatedClock(1_700_000_000.0)
    snapshot, diagnosis = assess(SimulatedMachine(FAULTS[fault], clock).look(), Past(), Limits())
    return checked(name, snapshot, diagnosis, 1.25)


ALL = [seen(f"node-{fault}", fault) for fault in ("idle", "healthy", "incident", "mute", "vram-held")]
ALL.append(unjudged('hostile "name"\n\x1b[31m\\', "it hangs", 60.0))


class Own:
    def __init__(self) -> None:
        self.trouble = ""

    def figures(self) -> Iterator[tuple[str, float]]:
        for number, name in enumerate(EXPORTER_METRICS):
            yield name, float(number)


@pytest.fixture
def own() -> Own:
    return Own()


@pytest.fixture
def board(own: Own) -> Board:
    board = Board(own.figures)
    for one in ALL:
        board.put(one.target, samples(one))
    return board


@pytest.fixture
def server(board: Board, own: Own) -> Iterator[Server]:
    server = Server("127.0.0.1", 0, board, lambda: own.trouble)
    yield server
    server.close()


def get(url: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def told(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in plain(text)
        for sample in family.samples
    }


def test_it_says_what_check_says_and_nothing_else_of_targets(server: Server) -> None:
    status, text = get(f"{server.url}/metrics")
    served = {key: value for key, value in told(text).items() if dict(key[1]).get("target")}
    assert status == 200
    assert {k: pytest.approx(v, rel=1e-4) for k, v in served.items()} == told(prometheus(ALL))
    assert {name for name, _ in served} <= set(METRICS)


def test_openmetrics_is_served_to_who_asks_for_it(server: Server) -> None:
    asked = "application/openmetrics-text; version=1.0.0"
    status, text = get(f"{server.url}/metrics", Accept=asked)
    families = {family.name: family for family in openmetrics(text)}
    assert status == 200 and families["gpu_recover_state"].type == "gauge"
    assert families["gpu_recover_exporter_looks"].type == "counter"
    assert "process_open_fds" in families


def test_some_names_can_be_asked_for(server: Server) -> None:
    _, text = get(f"{server.url}/metrics?name[]=gpu_recover_state")
    assert {name for name, _ in told(text)} == {"gpu_recover_state"}


def test_prometheus_itself_finds_nothing_to_complain_about(server: Server) -> None:
    promtool = shutil.which("promtool") or str(CACHED)
    _, text = get(f"{server.url}/metrics")
    ran = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    ran = subprocess.run([promtool, "check", "metrics"], input=text + "x{", capture_output=True, text=True, timeout=60)
    assert ran.returncode != 0


def test_the_time_of_the_last_look_stays_when_one_does_not_come_back(board: Board) -> None:
    def at(name: str) -> dict[str, float]:
        return {s.name: s.value for metric in board.metrics() for s in metric.samples if s.labels.get("target") == name}

    before = at("node-idle")
    board.put("node-idle", samples(unjudged("node-idle", "it hangs", 60.0)))
    after = at("node-idle")
    name = "gpu_recover_look_timestamp_seconds"
    assert after[name] == before[name] and after["gpu_recover_state"] == 3 and after["gpu_recover_up"] == 0
    board.keep(["node-mute"])
    board.put("node-idle", samples(ALL[0]))
    assert at("node-idle") == {} and at("node-mute")


def test_the_state_that_lasts_stands_beside_the_looks_and_goes_with_its_target(server: Server, board: Board) -> None:
    def served() -> dict[str, float]:
        return {key[0]: v for key, v in told(get(f"{server.url}/metrics")[1]).items() if ("target", "late") in key[1]}

    board.stands("late", lasts(Standing("late", Judged(60.0, Status.CRITICAL), 60.0)))
    assert served() == {
        "gpu_recover_hard_state": 2.0,
        "gpu_recover_hard_state_since_timestamp_seconds": 60.0,
        "gpu_recover_flapping": 0.0,
    }
    board.put("late", samples(unjudged("late", "it hangs", 60.0)))
    assert served()["gpu_recover_state"] == 3.0 and served()["gpu_recover_hard_state"] == 2.0
    board.keep(["node-idle"])
    board.stands("late", lasts(Standing("late", flapping=True)))
    assert served() == {}


def test_health_is_that_of_the_patrol(server: Server, own: Own) -> None:
    assert get(f"{server.url}/healthz") == (200, "ok\n")
    own.trouble = "no look is begun any more"
    assert get(f"{server.url}/healthz") == (503, "no look is begun any more\n")


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "RECOVER", "get")
PATHS = ("/metrics", "/healthz", "/", "/metrics/", "/metrics/x", "/recover", "/api/v1/run", "/-/reload", "/-/quit", "*")


@pytest.mark.parametrize("method", METHODS)
def test_only_two_paths_and_only_get(server: Server, method: str) -> None:
    for path in PATHS:
        with closing(http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=30)) as line:
            line.putrequest(method, path, skip_host=False)
            line.endheaders()
            answer = line.getresponse()
            body = answer.read()
        known = path in ("/metrics", "/healthz")
        assert answer.status == (404 if not known else 200 if method == "GET" else 405), (method, path)
        assert method == "HEAD" or len(body) == int(answer.headers["content-length"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_leave_it_serving(server: Server, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), 30) as line:
        line.sendall(said)
    assert get(f"{server.url}/healthz")[0] == 200


def test_who_never_ends_a_request_keeps_nobody_from_asking_and_is_cut_at_the_end(board: Board) -> None:
    server = Server("127.0.0.1", 0, board, lambda: "")
    there = ("127.0.0.1", int(server.url.rpartition(":")[2]))
    slow = [socket.create_connection(there, 30) for _ in range(20)]
    for line in slow:
        line.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    assert get(f"{server.url}/metrics")[0] == 200
    many = [socket.create_connection(there, 30) for _ in range(100)]  # more than it serves: hung up on
    ends = time.monotonic() + 60
    while time.monotonic() < ends and not any(_ended(line) for line in many):
        time.sleep(0.01)
    assert any(_ended(line) for line in many)
    server.close()
    assert all(_ended(line, 30.0) for line in slow)
    for line in (*slow, *many):
        line.close()


def _ended(line: socket.socket, seconds: float = 0.01) -> bool:
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_two_can_not_listen_on_one_port(server: Server, board: Board) -> None:
    with pytest.raises(OSError):
        Server("127.0.0.1", int(server.url.rpartition(":")[2]), board, lambda: "")
