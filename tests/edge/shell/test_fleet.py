"""Many nodes over real connections: what one of them does, none of the others feels, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from recover.edge.fleet import Failed, Late
from recover.edge.patrol import Patrol, Post
from recover.edge.probe import ProbeSettings
from recover.edge.shell import SshShell
from recover.edge.steady import SteadyProbe
from recover.model.guest import Guest, Mute

from .conftest import Sshd
from .test_steady_acts import agents, until
from .test_ways_to_fail import Server

Seen = Guest | Mute
LIMIT_S = 30.0
GOOD = [f"good-{number}" for number in range(4)]


def never(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.recv(1)


def drip(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        for letter in b"SSH-2.0-drip" * 1000:
            peer.sendall(bytes([letter]))
            time.sleep(0.1)


def flood(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            peer.sendall(b"no end of words " * 4096)


def close(peer: socket.socket) -> None:
    peer.close()


def garbage(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):
        peer.sendall(b"SSH-2.0-x\r\n" + bytes(range(256)) * 64)
        peer.recv(1)


@contextlib.contextmanager
def hostile() -> Iterator[dict[str, int]]:
    """Who is hostile before it lets anybody in, and its port."""
    servers = {answer.__name__: Server(answer) for answer in (never, drip, flood, close, garbage)}
    yield {name: server.port for name, server in servers.items()}
    for server in servers.values():
        server.close()


def post(name: str, shell: SshShell, most: float = LIMIT_S) -> Post[Seen]:
    probe = SteadyProbe(shell, ProbeSettings(health_ports=False))

    def stop() -> None:
        probe.close()
        shell.close()

    return Post(name, lambda seconds: probe.look(deadline=min(seconds, most)), stop)


def test_hostile_nodes_delay_no_other_and_stopping_leaves_nothing_behind(
    start_sshd: Callable[..., Sshd],
) -> None:
    sshd = start_sshd("good", options=_QUICK)
    before, threads, descriptors = agents(sshd), set(threading.enumerate()), _descriptors()
    with hostile() as ports:
        posts = [post(name, sshd.shell(port=port, banner_timeout=1.0), 3.0) for name, port in ports.items()]
        for name, command in (("floods-inside", "yes"), ("says-nothing", "sleep 300"), ("ends-at-once", "false")):
            posts.append(post(name, start_sshd(name, options=(f"ForceCommand {command}", *_QUICK)).shell(), 3.0))
        heard = _patrolled(sshd, posts, [post(name, sshd.shell()) for name in GOOD])
    assert all(isinstance(answer, Guest) and answer.complete for name in GOOD for answer in heard[name])
    assert not any(isinstance(answer, Guest) for one in posts for answer in heard[one.name])
    until(lambda: agents(sshd) == before)
    until(lambda: not [t for t in set(threading.enumerate()) - threads if t.name not in _OTHERS])
    until(lambda: _descriptors() <= descriptors)


def _patrolled(sshd: Sshd, bad: list[Post[Seen]], good: list[Post[Seen]]) -> dict[str, list[Seen | Failed | Late]]:
    """All answers, once each good one was looked at three times and each bad one has been heard of."""
    heard: dict[str, list[Seen | Failed | Late]] = {one.name: [] for one in (*bad, *good)}
    # Fewer places than there are hostile nodes: each gives its own up after a moment.
    patrol: Patrol[Seen] = Patrol(1.0, LIMIT_S, 4, lambda name, answer: heard[name].append(answer), 0.5, 0.0)
    walk = threading.Thread(target=patrol.run)
    walk.start()
    try:
        patrol.post([*bad, *good])
        until(lambda: all(len(heard[one.name]) > 2 for one in good) and all(heard[one.name] for one in bad))
        assert len(sshd.connections()) == len(good)  # one each, over all of its looks
    finally:
        assert patrol.stop(30.0) == 0
        walk.join(30)
    return heard


# bash takes a deeper shell for none that a person wants his start-up files in, and theirs may take seconds.
_QUICK = ("SetEnv SHLVL=2",)
_OTHERS = ("alarms",)  # ends by itself after a minute without one


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
