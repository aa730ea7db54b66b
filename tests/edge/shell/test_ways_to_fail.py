"""Each way not to get a shell has its own word, in time; silence after an accepted connection is one."""

from __future__ import annotations

import contextlib
import errno
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recover.edge.shell import SshSettings, SshShell
from recover.edge.shell.failures import Stage, clean, translate
from recover.model.contact import Broken, Failure, Ran

from .conftest import HERE, Sshd, free_port

Answer = Callable[[socket.socket], None]


class Server:
    """Accepts connections and lets a test decide what becomes of them."""

    def __init__(self, answer: Answer) -> None:
        self._listener = socket.create_server((HERE, 0))
        self.port = int(self._listener.getsockname()[1])
        self._answer = answer
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(peer)
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        for peer in self._open:
            peer.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Server]]:
    servers: list[Server] = []

    def start(answer: Answer) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def at(port: int, host: str = HERE, **changes: float) -> SshShell:
    limits = {"connect_timeout": 20.0, "banner_timeout": 20.0, "auth_timeout": 20.0, **changes}
    none = "/nonexistent"
    return SshShell(SshSettings(host, port=port, user="root", known_hosts=none, ssh_config=none, **limits))  # type: ignore[arg-type]


def why(shell: SshShell, deadline: float = 60) -> Failure:
    broken = shell.connect(deadline)
    shell.close()
    assert isinstance(broken, Broken), broken
    assert not broken.started and "\n" not in broken.detail
    return broken.failure


def test_who_greets_without_end_is_not_listened_to(serve: Callable[[Answer], Server]) -> None:
    sent = 0

    def greet(peer: socket.socket) -> None:
        nonlocal sent
        with contextlib.suppress(OSError):
            while sent < 1 << 28:
                sent += peer.send(b"welcome " * 8192)

    assert why(at(serve(greet).port)) is Failure.CONFIG
    assert sent < 1 << 26


def test_a_handshake_that_failed_leaves_no_thread(serve: Callable[[Answer], Server]) -> None:
    """The library's own timer would stay for 45 s here."""
    before = set(threading.enumerate())
    shell = at(serve(lambda peer: peer.sendall(b"SSH-2.0-x\r\n" + bytes(4096))).port)
    assert why(shell) is Failure.DIED
    until = time.monotonic() + 30  # less than the library's 45
    while timers := [t for t in set(threading.enumerate()) - before if isinstance(t, threading.Timer)]:
        assert time.monotonic() < until, timers
        time.sleep(0.02)


def test_refused() -> None:
    assert why(at(free_port())) is Failure.REFUSED


def test_run_gives_the_same_word_and_was_not_started() -> None:
    broken = at(free_port()).run(["true"], deadline=10)
    assert isinstance(broken, Broken) and broken.failure is Failure.REFUSED and not broken.started


def test_dns() -> None:
    assert why(at(22, "no-such-host.invalid")) is Failure.DNS


def test_connect_timeout() -> None:
    full = socket.socket()
    full.bind((HERE, 0))
    full.listen(0)  # a queue of one that nobody empties: further connections get no answer
    port = full.getsockname()[1]
    waiting = []
    for _ in range(4):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((HERE, port))
        waiting.append(sock)
    assert why(at(port, connect_timeout=2.0)) is Failure.CONNECT_TIMEOUT
    for sock in (*waiting, full):
        sock.close()


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (errno.ECONNREFUSED, Failure.REFUSED),
        (errno.EHOSTUNREACH, Failure.NO_ROUTE),
        (errno.ENETUNREACH, Failure.NO_ROUTE),
        (errno.ETIMEDOUT, Failure.CONNECT_TIMEOUT),
    ],
)
def test_what_the_kernel_says_while_dialling(code: int, failure: Failure) -> None:
    assert translate(OSError(code, "x"), Stage.DIAL, "here").broken.failure is failure


@pytest.mark.lab
def test_no_route() -> None:
    """In a network namespace of its own there is no way to anywhere."""
    words = (
        "from recover.edge.shell import *; "
        "print(SshShell(SshSettings('10.255.255.1', user='root', ssh_config='/none')).connect(10).failure)"
    )
    told = subprocess.run(["unshare", "--net", sys.executable, "-c", words], capture_output=True, text=True, timeout=60)
    assert told.stdout.strip() == Failure.NO_ROUTE


def test_banner_silence(serve: Callable[[Answer], Server]) -> None:
    assert why(at(serve(lambda peer: None).port, banner_timeout=1.0)) is Failure.BANNER_SILENCE


def test_silence_that_the_deadline_cuts_short_is_no_witness(serve: Callable[[Answer], Server]) -> None:
    assert why(at(serve(lambda peer: None).port), deadline=1) is Failure.TIMEOUT


def test_kex_stall(serve: Callable[[Answer], Server]) -> None:
    port = serve(lambda peer: peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")).port
    assert why(at(port, banner_timeout=3.0)) is Failure.BANNER_SILENCE


def test_accepted_and_closed_is_not_silence(serve: Callable[[Answer], Server]) -> None:
    port = serve(lambda peer: peer.shutdown(socket.SHUT_RDWR)).port
    assert why(at(port)) is Failure.REFUSED


def test_closed_during_the_key_exchange(serve: Callable[[Answer], Server]) -> None:
    def answer(peer: socket.socket) -> None:
        peer.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
        peer.recv(1)
        peer.shutdown(socket.SHUT_RDWR)

    assert why(at(serve(answer).port)) is Failure.DIED


def test_another_protocol_is_our_mistake(serve: Callable[[Answer], Server]) -> None:
    port = serve(lambda peer: peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 3)).port
    assert why(at(port)) is Failure.CONFIG


def test_a_banner_cannot_paint_on_the_terminal() -> None:
    assert clean("\x1b[2Jhi\r\nthere\x9b\u202e") == "[2Jhi there"


class Relay:
    """Stands between a client and an sshd and stops forwarding, without a word, when told."""

    def __init__(self, serve: Callable[[Answer], Server], target: int) -> None:
        self._target = target
        self.cut = threading.Event()
        self.port = serve(self._answer).port

    def _answer(self, near: socket.socket) -> None:
        with socket.create_connection((HERE, self._target)) as far:
            back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
            back.start()
            self._pump(near, far)
            back.join(60)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                if not self.cut.is_set():  # cut: bytes are still taken, so TCP itself sees nothing wrong
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_RDWR)
        except OSError:
            return


@pytest.fixture
def relay(sshd: Sshd, serve: Callable[[Answer], Server]) -> Relay:
    relay = Relay(serve, sshd.port)
    known = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text(known + known.replace(f":{sshd.port} ", f":{relay.port} "))
    return relay


def test_half_open_while_a_command_runs(sshd: Sshd, relay: Relay, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def cut_once_begun() -> None:
        until = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.02)
        relay.cut.set()

    shell = sshd.shell(port=relay.port, keepalive=0.5, silence_limit=2.0)
    assert shell.connect(20) is None
    threading.Thread(target=cut_once_begun, daemon=True).start()
    began = time.monotonic()
    broken = shell.run(["sh", "-c", f"touch {begun}; exec sleep 100"], deadline=90)
    assert isinstance(broken, Broken) and broken.failure is Failure.DIED and broken.started
    assert "stopped answering" in broken.detail
    assert time.monotonic() - began < 75


def test_half_open_meets_the_deadline_before_the_pulse_is_missed(sshd: Sshd, relay: Relay) -> None:
    shell = sshd.shell(port=relay.port)
    assert shell.connect(20) is None
    relay.cut.set()
    began = time.monotonic()
    broken = shell.run(["true"], stdin=b"x" * 5_000_000, deadline=4)
    assert isinstance(broken, Broken) and broken.failure in (Failure.TIMEOUT, Failure.BANNER_SILENCE)
    assert time.monotonic() - began < 60


def test_a_silent_command_on_a_living_machine_is_left_alone(sshd: Sshd) -> None:
    shell = sshd.shell(keepalive=0.5, silence_limit=4.0)
    assert isinstance(shell.run(["sleep", "6"], deadline=60), Ran)


def test_a_patient_connect_waits_for_a_server_that_comes(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    shell = server.shell(port=free_port(), retry_every=0.2)
    assert shell.connect(1.5, patient=True).failure is Failure.REFUSED  # type: ignore[union-attr]
    shell = server.shell(retry_every=0.2)
    assert shell.connect(15, patient=True) is None


def test_a_patient_connect_does_not_ask_again_what_will_not_change(start_sshd: Callable[..., Sshd]) -> None:
    server = start_sshd()
    server.known_hosts.write_text("")
    began = time.monotonic()
    assert server.shell().connect(60, patient=True).failure is Failure.UNKNOWN_KEY  # type: ignore[union-attr]
    assert time.monotonic() - began < 30


def test_an_impatient_deadline_of_zero_is_a_value_too(sshd: Sshd) -> None:
    broken = sshd.shell().run(["true"], deadline=0)
    assert isinstance(broken, Broken) and broken.failure is Failure.TIMEOUT and not broken.started
