"""`python -m tests.bench.eyes`: what looking costs, beside the tools that people use; exit 1 when a goal is missed.

The sides of each measure take turns in one run, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recover.core.read.agent import parse_lines
from recover.core.read.stream import Unpacker
from recover.edge.probe import GuestProbe, ProbeSettings, command, line_of, payload
from recover.edge.shell import SshSettings, SshShell
from recover.edge.steady import SteadyProbe
from recover.model.guest import Guest
from tests.bench.crowd import Nodes, nodes, sleepers
from tests.bench.measures import TOOL, Broke, Measure, load
from tests.edge.shell.relay import Relay
from tests.guest.conftest import Machine
from tests.lab.driver.build import build

LIMIT_S = 300.0
KIB = 1024
NODES = 64
Parts = Mapping[str, Sequence[Callable[[], Sequence[Measure]]]]
# What the agent tells of a process, asked of ps.
_PS = "ps axww -o pid,ppid,pgid,sid,tty,uid,stat,wchan:32,nlwp,rss,lstart,time,cgroup:200,comm,args"


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds, and the most memory in KiB."""

    wall: float
    cpu: float
    memory: float = 0.0


def cost(
    argv: Sequence[str],
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    codes: Container[int] = (0,),
    stdout: str = os.devnull,
) -> Cost:
    """One command that must end with one of the codes; the CPU of all that it waited for."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors, open(stdout, "wb") as out:
        given.write(stdin)
        given.seek(0)
        began = time.monotonic()
        child = subprocess.Popen(argv, stdin=given, stdout=out, stderr=errors, env=env)
        _, status, usage = os.wait4(child.pid, 0)
        took = time.monotonic() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in codes:
            errors.seek(0)
            words = errors.read().decode("utf-8", "replace").strip().splitlines() or ["no word"]
            raise Broke(f"{shlex.join(argv)[:100]} ended with {child.returncode}: {words[-1]}")
    return Cost(took, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)


def in_turn(repeats: int, *sides: Callable[[], Cost]) -> list[list[Cost]]:
    """Each side once per round; the first round warms caches and does not count."""
    found: list[list[Cost]] = [[] for _ in sides]
    for number in range(repeats + 1):
        for side, kept in zip(sides, found, strict=True):
            seen = side()
            if number:
                kept.append(seen)
    return found


def _median(costs: Sequence[Cost], what: str) -> float:
    return float(statistics.median(getattr(c, what) for c in costs))


def spread(name: str, costs: Sequence[Cost]) -> str:
    walls = [c.wall for c in costs]
    return (
        f"{name}: median {_median(costs, 'wall'):.3f} s ({min(walls):.3f} to {max(walls):.3f}, {len(costs)} runs), "
        f"CPU {_median(costs, 'cpu'):.3f} s"
    )


# -- 1: the agent beside ps and nvidia-smi


@contextmanager
def _fake_gpus(folder: Path) -> Iterator[dict[str, str]]:
    """Eight fake GPUs under a root folder; what the commands need in their environment."""
    built = build(folder / "driver")
    machine = Machine(folder / "machine")
    try:
        yield {**os.environ, **built.env(machine.root / "state", machine.dev)}
    finally:
        machine.state.close()


def _asked(root: Path) -> bytes:
    request = {"do": "look", "health": (), "health_ports": False, "deadline": 120, "root": str(root), "pack": True}
    return payload("look") + line_of(request)


def agent_beside_ps(count: int, repeats: int) -> list[Measure]:
    """Wall and CPU on a machine with so many idle processes more.

    Two parts without a goal: a later look of an agent that stays, and what a person needs besides to know who holds a
    GPU, which ps can't tell.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpu-recover-bench-"))
    try:
        with _fake_gpus(folder) as env, sleepers(count), _staying(folder / "machine", env) as again:
            asked, argv = _asked(folder / "machine"), command((sys.executable,))
            person = f"{_PS} && nvidia-smi -q -x"
            holders = f"{person} && (fuser -v {folder}/machine/dev/nvidia* 2>&1 || true)"
            ours, theirs, later, whole = in_turn(
                repeats,
                lambda: cost(argv, asked, env),
                lambda: cost(["sh", "-c", person], b"", env),
                again,
                lambda: cost(["sh", "-c", holders], b"", env),
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    parts = (
        spread("agent, 8 GPUs", ours),
        spread("ps and nvidia-smi -q -x", theirs),
        spread("a later look of an agent that stays (no goal)", later),
        spread("ps, nvidia-smi -q -x and fuser -v (no goal)", whole),
    )
    return [
        Measure(f"agent beside ps and nvidia-smi, {count} processes, {what}",
                _median(ours, key) / _median(theirs, key), 1.0, "x", parts)
        for what, key in (("run time", "wall"), ("CPU", "cpu"))
    ]  # fmt: skip


@contextmanager
def _staying(root: Path, env: Mapping[str, str]) -> Iterator[Callable[[], Cost]]:
    """Later looks of one agent; its first one is made here."""
    line = line_of(
        {"do": "look", "health": (), "health_ports": False, "deadline": 120, "root": str(root), "stay": True}
    )
    agent = subprocess.Popen(command((sys.executable,)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert agent.stdin is not None and agent.stdout is not None
    into, out, stream = agent.stdin, agent.stdout.fileno(), Unpacker()

    def look(data: bytes) -> Cost:
        began, used = time.monotonic(), _cpu(agent.pid)
        into.write(data)
        into.flush()
        while not stream.over:
            said = os.read(out, 1 << 20)
            if not said:
                raise Broke("the agent that stays ended")
            stream.feed(said)
        took = time.monotonic() - began
        end = parse_lines(stream.turn()).one("end")
        return Cost(took, (end.real("cpu") if end is not None else 0.0) + _cpu(agent.pid) - used)

    try:
        look(payload("look") + line)
        yield lambda: look(line)
    finally:
        into.close()
        agent.wait(60)
        agent.stdout.close()


def _cpu(pid: int) -> float:
    """User and system seconds of one process without its children."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


# -- 2: bytes over the wire


def bytes_over_the_wire(count: int) -> list[Measure]:
    """Both ways, SSH's own words included; so many idle processes more than the machine has."""
    with _loopback(1) as there, sleepers(count), Relay(there.port, there.addresses[0]) as relay:
        known = there.known_hosts.with_name("known_relay")
        host = there.known_hosts.read_text().split(" ", 1)[1]
        known.write_text(f"[127.0.0.1]:{relay.port} {host}")
        settings = SshSettings("127.0.0.1", relay.port, "root", str(there.key), str(known), ssh_config="/nonexistent")
        single = _bytes(GuestProbe(SshShell(settings), ProbeSettings(health_ports=False)), relay)
        shell = SshShell(settings)
        probe = SteadyProbe(shell, ProbeSettings(health_ports=False))
        first = _bytes(probe, relay)
        later = [_bytes(probe, relay) for _ in range(3)]
        probe.close()
        shell.close()
    parts = (
        f"one exec {single:.1f} KiB, then {first:.1f}, {', '.join(f'{b:.1f}' for b in later)} KiB on one connection",
    )
    where = f"{count} processes more"
    return [
        Measure(f"bytes of a look, {where}", max(single, first), 100.0, "KiB", parts),
        Measure(f"bytes of a later look, {where}", max(later), 15.0, "KiB", parts),
    ]


def _bytes(probe: GuestProbe, relay: Relay) -> float:
    guest = probe.look(deadline=120.0)
    if not isinstance(guest, Guest) or not guest.complete:
        raise Broke(f"a look did not come back whole: {guest}")
    return relay.taken() / KIB


@contextmanager
def _loopback(count: int) -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-recover-bench-"))
    try:
        with nodes(folder, count) as there:
            yield there
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- 3: many nodes at once


def check_beside_xargs(repeats: int) -> list[Measure]:
    """`check` of 64 nodes beside OpenSSH, 64 at a time, with the same agent."""
    with _loopback(NODES) as there:
        folder = there.key.parent
        config, hosts, asked = folder / "config.toml", folder / "hosts", folder / "asked"
        config.write_text(there.config())
        hosts.write_text("\n".join(there.addresses) + "\n")
        request = {"do": "look", "health": (), "health_ports": True, "deadline": 110, "pack": True}
        asked.write_bytes(payload("look") + line_of(request))
        one = f'exec {shlex.join(there.ssh())} "$0" {shlex.quote(shlex.join(command()))} < {asked} > /dev/null'
        xargs = ["xargs", "-a", str(hosts), "-n1", "-P", str(NODES), "sh", "-c", one]
        check = [TOOL, "--config", str(config), "check", "--all", "--format", "json", "-q", "--deadline", "120",
                 "--jobs", str(NODES)]  # fmt: skip
        ours, theirs = in_turn(repeats, lambda: _whole(check), lambda: cost(xargs))
    parts = (spread(f"gpu-recover check, {NODES} nodes", ours), spread("xargs ssh, same agent", theirs))
    each = 1000 * _median(ours, "cpu") / NODES
    more = f"the same of xargs ssh: {1000 * _median(theirs, 'cpu') / NODES:.0f} ms"
    return [
        Measure(f"check of {NODES} nodes beside xargs ssh", _median(ours, "wall") / _median(theirs, "wall"), 1.0, "x",
                parts),
        Measure("the client's own CPU per node", each, 40.0, "ms", (*parts, more)),
    ]  # fmt: skip


def _whole(argv: list[str]) -> Cost:
    """A check that reached all nodes, whatever it thinks of nodes without a GPU."""
    reached = f'test $(grep -o \'"reached": true\' "$0" | wc -l) -eq {NODES}'
    with tempfile.NamedTemporaryFile() as out:
        return cost(["sh", "-c", f'{shlex.join(argv)} > "$0"; {reached}', out.name])


def parts_of(repeats: int) -> Parts:
    """All measures of looking, by part."""
    return {
        "agent": [lambda: agent_beside_ps(500, repeats), lambda: agent_beside_ps(5000, repeats)],
        "bytes": [lambda: bytes_over_the_wire(0), lambda: bytes_over_the_wire(500)],
        "fleet": [lambda: check_beside_xargs(repeats)],
    }


def bench(
    program: str, about: str, repeats: int, parts_of: Callable[[int], Parts], argv: list[str] | None = None
) -> int:
    """Every part, or one alone: 0 where all goals are met, 1 where one is missed, 2 where nothing could be measured."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about.partition("\n")[0])
    runs = f"runs of each side (default: {repeats})"
    parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=runs)
    parser.add_argument("--only", choices=tuple(parts_of(repeats)), help="one part alone")
    given = parser.parse_args(argv)
    if os.geteuid() != 0:
        print("this bench needs root: it starts sshd", file=sys.stderr)
        return 2
    print(load(), flush=True)
    missed = 0
    for name, todo in parts_of(max(1, given.repeats)).items():
        for measure in todo if given.only in (None, name) else ():
            try:
                found = measure()
            except (Broke, OSError, subprocess.SubprocessError) as error:
                print(f"bench: {error}", file=sys.stderr)
                return 2
            missed += sum(not one.met for one in found)
            for one in found:
                say(one)
    print("\nall goals are met" if not missed else f"\n{missed} goals are missed")
    return 1 if missed else 0


def say(found: Measure) -> None:
    word = "ok" if found.met else "MISSED"
    most = "at least" if found.at_least else "at most"
    print(f"\n{found.name}: {found.value:.2f} {found.unit} (goal: {most} {found.goal:g} {found.unit})  {word}")
    for part in found.parts:
        print(f"  {part}", flush=True)


if __name__ == "__main__":
    sys.exit(bench("tests.bench.eyes", __doc__, 5, parts_of))
