"""One question per server, asked from inside; what it says is told apart from silence."""

from __future__ import annotations

import sys

import pytest

from recover.core.read.agent import read_guest
from recover.edge.probe import ask
from recover.edge.shell.local import LocalShell
from recover.guest import health

SERVER = """
import socket, sys, threading, time
pairs = zip(("/health", "/metrics"), sys.argv[1:])
answers = {path: word.encode().decode("unicode_escape").encode() for path, word in pairs}
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(8)
def serve(stream):
    asked = stream.recv(4096).split()[1].decode()
    if not answers[asked]: time.sleep(600)
    stream.sendall(answers[asked])
    if b"Content-Length" in answers[asked]: time.sleep(600)
    stream.close()
print("ready", flush=True)
while True:
    stream, _ = listener.accept()
    threading.Thread(target=serve, args=(stream,), daemon=True).start()
"""
OK = r"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
METRICS = (
    r"HTTP/1.0 200 OK\r\n\r\n# HELP x\nsglang:generation_tokens_total{model_name=\"a b\"} 1200.0\n"
    r"sglang:prompt_tokens_total 34\nsglang:num_running_reqs{x=\"y\"} 3.0\nsglang:num_queue_reqs 0\n"
    r"other_tokens_total 9\n"
)
BUSY = r"HTTP/1.1 503 Service Unavailable\r\n\r\nstarting"


def answer(start, health_text, metrics="", timeout=20.0, ports=False):
    child = start(SERVER, health_text, metrics, "-m", "sglang.launch_server")
    first = look(health_ports=ports)
    port = next(min(p.listens) for p in first.processes.value if p.pid == child.pid)
    if ports:
        return next(s for s in look(health_ports=True, health_timeout=timeout).servers if f":{port}/" in s.url)
    return look(health=[f"http://127.0.0.1:{port}/health"], health_timeout=timeout).servers[0]


def look(**fields):
    guest = read_guest(ask(LocalShell(), {"do": "look", **fields}, 120.0, (sys.executable,)).stdout)
    assert guest is not None
    return guest


def test_a_server_that_answers_with_its_counters(start):
    said = answer(start, OK, METRICS)
    assert (said.outcome, said.status, said.detail) == ("answered", 200, "ok")
    assert (said.tokens, said.running, said.waiting) == (1234, 3, 0)


def test_a_server_that_starts(start):
    said = answer(start, BUSY)
    assert (said.outcome, said.status, said.tokens) == ("answered", 503, None)


def test_a_server_that_is_silent_but_counts(start):
    said = answer(start, "", METRICS, timeout=2.0)
    assert (said.outcome, said.status, said.tokens) == ("timeout", None, 1234)


def test_the_port_of_a_server_is_found_on_request(start):
    assert answer(start, OK, METRICS, ports=True).status == 200


def test_a_port_where_nothing_listens():
    assert look(health=["http://127.0.0.1:9/health"]).servers[0].outcome == "refused"


@pytest.mark.parametrize("url", ["ftp://x/", "http://", "127.0.0.1:80", "http://a b/"])
def test_what_is_no_url_is_an_answer_too(url):
    assert look(health=[url]).servers[0].outcome == "error"


def test_what_speaks_no_http(start):
    assert answer(start, r"SSH-2.0-OpenSSH\r\n").outcome == "error"


def test_counters_of_both_engines():
    text = (
        'vllm:iteration_tokens_total_count{engine="0"} 10\nvllm:generation_tokens_total{engine="0"} 5\n'
        'vllm:generation_tokens_total{engine="1"} 6\nvllm:num_requests_running 2\nvllm:num_requests_waiting 1.0\n'
    )
    assert health.counters(text) == {"tokens": 21, "running": 2, "waiting": 1}
    assert health.counters("") == {}


def test_a_long_request_moves_what_is_held_before_it_is_counted():
    """sglang counts the tokens of a request when that is over (metrics/collector.py)."""
    text = "sglang:generation_tokens_total 7\nsglang:num_running_reqs 1\nsglang:num_used_tokens %d\n"
    assert health.counters(text % 100)["tokens"] != health.counters(text % 140)["tokens"]


IN_A_NETWORK_OF_ITS_OWN = 'ip link set lo up && exec "$0" -I -S -c "$@"'


def boxed(start, *words):
    """The server in a network of its own, as a bridged container has it: the guest's loopback does not lead there."""
    argv = ["unshare", "-n", "sh", "-c", IN_A_NETWORK_OF_ITS_OWN, sys.executable, SERVER, *words]
    return start("", argv=argv)


@pytest.mark.lab
def test_a_server_in_a_network_of_its_own_is_asked_there_once(start):
    child = boxed(start, OK, METRICS, "-m", "sglang.launch_server")
    mine = [s for s in look(health_ports=True).servers if s.pid == child.pid]
    assert [(s.outcome, s.status, s.tokens, s.running) for s in mine] == [("answered", 200, 1234, 3)]


@pytest.mark.lab
def test_a_forwarder_to_another_address_is_not_its_own(start):
    child = boxed(start, OK, METRICS, "-m", "sglang.launch_server")
    argv = ["/usr/bin/docker-proxy", "-host-port", "9", "-container-ip", "172.17.0.99", "-container-port", "80"]
    assert not health._forwards(9, child.pid, 80, {1: {"argv": argv}})
    argv[4] = "127.0.0.1"
    assert health._forwards(9, child.pid, 80, {1: {"argv": argv}})
    assert not health._forwards(9, child.pid, 81, {1: {"argv": argv}})


@pytest.mark.lab
def test_a_port_that_is_forwarded_to_it_is_its_own_answer(start):
    """docker run -p HOST:CONTAINER: the forwarder's own command line says whose port it is."""
    child = boxed(start, OK, METRICS, "-m", "sglang.launch_server")
    port = next(min(p.listens) for p in look().processes.value if p.pid == child.pid)
    line = "-proto tcp -host-ip 0.0.0.0 -host-port 9 -container-ip %s -container-port %d"
    proxy = 'exec -a docker-proxy "$0" -I -S -c "$1" $2'
    code = "import time; print('ready', flush=True); time.sleep(600)"
    start("", argv=["bash", "-c", proxy, sys.executable, code, line % ("127.0.0.1", port)])
    url = "http://127.0.0.1:9/health"
    (said,) = [s for s in look(health_ports=True, health=[url]).servers if s.pid == child.pid]
    assert (said.url, said.outcome) == (url, "refused")  # nothing listens there: it was asked all the same, once


def test_another_process_behind_the_same_pid_is_not_asked(start):
    child = start("import time; print('ready', flush=True); time.sleep(600)")
    with pytest.raises(OSError, match="another process"):
        health._enter(health.Question("http://127.0.0.1/", child.pid, 1))
