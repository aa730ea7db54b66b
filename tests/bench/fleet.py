"""`python -m tests.bench.fleet`: many nodes from one controller, beside the tools that people use; exit 1 as `bench`.

The nodes are sshd on loopback addresses, on the same CPUs as the client: they do the same work for every side.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from tests.bench.crowd import Nodes, nodes
from tests.bench.eyes import Cost, Parts, bench, cost, in_turn, spread
from tests.bench.measures import BIN, TOOL, Broke, Measure

NODES = 200
WIDTH = 32
SIZES = (25, 100, 400)
MIB_IN_KIB = 1024
# What makes Ansible itself reach these nodes, and no more: all else is as it comes.
_INVENTORY = """[all:vars]
ansible_user=root
ansible_port={port}
ansible_ssh_private_key_file={key}
ansible_ssh_common_args=-F none -o UserKnownHostsFile={known}
ansible_python_interpreter=/usr/bin/python3
[all]
{hosts}
"""


@contextmanager
def fleet(count: int) -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="gpu-recover-bench-"))
    try:
        with nodes(folder, count) as there:
            (folder / "hosts").write_text("\n".join(there.addresses) + "\n")
            (folder / "inventory").write_text(
                _INVENTORY.format(
                    port=there.port, key=there.key, known=there.known_hosts, hosts="\n".join(there.addresses)
                )
            )
            yield there
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- (a) transport alone


def transport(repeats: int) -> list[Measure]:
    """Wall time of `true` on all nodes. Ansible takes minutes, and is run once."""
    needed = [BIN / name for name in ("clush", "ansible")]
    if missing := [str(path) for path in needed if not path.exists()]:
        raise Broke(f"{', '.join(missing)}: not there; tools/setup bench installs what we are compared with")
    with fleet(NODES) as there:
        folder = there.key.parent
        ours, theirs, clush, xargs = in_turn(
            repeats,
            lambda: cost(_side("ours", there)),
            lambda: cost(_side("libssh2", there)),
            lambda: cost(_clush(there)),
            lambda: cost(_xargs(there)),
        )
        near = [cost(_side("ours", there))]
        ansible = [_ansible(there, folder)]
        near.append(cost(_side("ours", there)))  # a minute lies between, and others may use this machine
    parts = (
        spread(f"gpu-recover's transport, {WIDTH} at a time", ours),
        spread("parallel-ssh (libssh2; checks no host keys)", theirs),
        spread("ClusterShell (clush)", clush),
        spread("OpenSSH under xargs -P", xargs),
        spread("Ansible, shell module", ansible),
        spread("gpu-recover's transport just before and after it", near),
    )
    mine = _wall(ours)
    what = f"`true` on {NODES} nodes"
    return [
        Measure(f"{what}, beside parallel-ssh", mine / _wall(theirs), 1.25, "x", parts),
        Measure(f"{what}, faster than clush", _wall(clush) / mine, 2.5, "x", (), at_least=True),
        Measure(f"{what}, faster than xargs ssh", _wall(xargs) / mine, 2.5, "x", (), at_least=True),
        Measure(f"{what}, faster than Ansible", _wall(ansible) / _wall(near), 25.0, "x", (), at_least=True),
    ]


def _wall(costs: list[Cost]) -> float:
    return statistics.median(c.wall for c in costs)


def _side(which: str, there: Nodes) -> list[str]:
    return [sys.executable, "-m", "tests.bench.side", which, str(there.key.parent), str(there.port), str(WIDTH)]


def _clush(there: Nodes) -> list[str]:
    options = f"-F none -T -i {there.key} -p {there.port} -o UserKnownHostsFile={there.known_hosts} -o BatchMode=yes"
    return [str(BIN / "clush"), "-q", "-S", "-f", str(WIDTH), "-l", "root", "-o", options, "-w",
            ",".join(there.addresses), "true"]  # fmt: skip


def _xargs(there: Nodes) -> list[str]:
    hosts = str(there.key.parent / "hosts")
    return ["xargs", "-a", hosts, "-P", str(WIDTH), "-I{}", *there.ssh(), "{}", "true"]


def _ansible(there: Nodes, folder: Path) -> Cost:
    """As it comes. The connections that it leaves standing for a minute are ended here."""
    none = folder / "ansible.cfg"
    none.touch()
    env = {**os.environ, "ANSIBLE_HOME": str(folder / "ansible"), "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
           "ANSIBLE_CONFIG": str(none), "PATH": f"{BIN}:{os.environ['PATH']}"}  # fmt: skip
    argv = [str(BIN / "ansible"), "all", "-i", str(folder / "inventory"), "-f", str(WIDTH)]
    argv += ["-m", "ansible.builtin.shell", "-a", "true"]
    try:
        return cost(argv, env=env)
    finally:
        for path in (folder / "cp").glob("*") if (folder / "cp").is_dir() else ():
            subprocess.run(["ssh", "-F", "none", "-o", f"ControlPath={path}", "-O", "exit", "x"],
                           capture_output=True, timeout=30, check=False)  # fmt: skip


# -- (b) the whole check


def whole_check(repeats: int) -> list[Measure]:
    """The client's own CPU and memory, by what it needs more for more nodes."""
    with fleet(max(SIZES)) as there:
        seen = in_turn(repeats, *(_checking(there, size) for size in SIZES))
    small, middle, large = ([statistics.median(c.cpu for c in costs), _memory(costs)] for costs in seen)
    parts = tuple(
        f"{size} nodes: CPU {1000 * cpu:.0f} ms, {1000 * cpu / size:.1f} ms each; at most {memory / MIB_IN_KIB:.0f} MiB"
        for size, (cpu, memory) in zip(SIZES, (small, middle, large), strict=True)
    )
    first = (middle[0] - small[0]) / (SIZES[1] - SIZES[0])
    later = (large[0] - middle[0]) / (SIZES[2] - SIZES[1])
    each = (large[1] - small[1]) / (SIZES[2] - SIZES[0]) / MIB_IN_KIB
    cpu = 1000 * max(middle[0] / SIZES[1], large[0] / SIZES[2])
    return [
        Measure("whole check, CPU of the client per node", cpu, 30.0, "ms", parts),
        Measure("whole check, memory of the client per node", each, 1.0, "MiB", ()),
        Measure(
            "whole check, CPU of a node beyond the 100th beside one before", later / first, 1.25, "x",
            (f"{1000 * first:.1f} ms each from {SIZES[0]} to {SIZES[1]} nodes, {1000 * later:.1f} ms to {SIZES[2]}",),
        ),
    ]  # fmt: skip


def _memory(costs: list[Cost]) -> float:
    return statistics.median(c.memory for c in costs)


def _checking(there: Nodes, size: int) -> Callable[[], Cost]:
    config = there.key.parent / f"config-{size}.toml"
    config.write_text(there.config(size))
    argv = [TOOL, "--config", str(config), "check", "--all", "--format", "json", "-q", "--deadline", "600"]

    def check() -> Cost:
        with tempfile.NamedTemporaryFile() as out:
            seen = cost(argv, codes=range(4), stdout=out.name)
            targets = json.loads(Path(out.name).read_text())["targets"]
        lost = [f"{one['target']}: {one['why']}" for one in targets if not one["reached"]]
        if lost or len(targets) != size:
            raise Broke(f"{len(lost)} of {size} nodes were not reached: {', '.join(lost[:3])}")
        return seen

    return check


T = TypeVar("T")


# -- (c) the exporter: what a node costs whose connection stays


def periods(count: int = 50, period_s: int = 15, rounds: int = 3) -> list[Measure]:
    with fleet(count) as there:
        config = there.key.parent / "config.toml"
        config.write_text(there.config())
        argv = [TOOL, "--config", str(config), "--state-dir", str(there.key.parent / "state"), "exporter", "--all"]
        argv += ["-q", "--listen", "127.0.0.1:0", "--period", f"{period_s}s"]
        errors = there.key.parent / "errors"
        with errors.open("wb") as file:
            running = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file)
        try:
            url = _await(lambda: re.search(r"http://\S+/metrics", errors.read_text()), 60.0).group()
            first = _await(lambda: _after(url, 2 * count), 240.0)
            last = _await(lambda: _after(url, int(first["looks"]) + rounds * count), 480.0)
        finally:
            running.terminate()
            running.wait(60)
    each = 1000 * (last["cpu"] - first["cpu"]) / (last["looks"] - first["looks"])
    parts = (
        f"{count} nodes, a look each {period_s} s: {last['memory'] / 2**20:.0f} MiB, {last['files']:.0f} open files",
    )
    return [Measure("a later look over a connection that stays, CPU of the exporter", each, 30.0, "ms", parts)]


def _await(ask: Callable[[], T | None], seconds: float) -> T:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            if (found := ask()) is not None:
                return found
        time.sleep(3.0)  # each scrape costs the exporter as much as a look
    raise Broke(f"the exporter did not do its work within {seconds:.0f} s")


_NAMES = {
    "gpu_recover_exporter_looks_total": "looks",
    "process_cpu_seconds_total": "cpu",
    "process_resident_memory_bytes": "memory",
    "process_open_fds": "files",
}


def _after(url: str, looks: int) -> dict[str, float] | None:
    """Its figures once it has begun so many looks."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    words = (line.split() for line in lines if line and not line.startswith("#"))
    found = {_NAMES[w[0]]: float(w[1]) for w in words if w[0] in _NAMES}
    return found if found["looks"] >= looks else None


def parts_of(repeats: int) -> Parts:
    """At most three rounds: a fleet takes minutes."""
    few = min(repeats, 3)
    return {
        "transport": [lambda: transport(few)],
        "check": [lambda: whole_check(few)],
        "periods": [periods],
    }


if __name__ == "__main__":
    sys.exit(bench("tests.bench.fleet", __doc__, 3, parts_of))
