"""The three measures: each runs its sides in turn, so that a busy machine slows both, and compares medians."""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from recover.core.config import Config, parse_config
from recover.edge.probe import GuestProbe, ProbeSettings
from recover.edge.store.journal import read_entries
from recover.model.contact import Ran
from recover.model.record import Decided, Ended, Entry, Kept, Opened, Saw, Stop, Try
from tests.lab.lab import Lab

BIN = Path(sys.executable).parent
TOOL = str(BIN / "gpu-recover")
LIMIT_S = 120.0


class Broke(Exception):
    """What was to be measured did not work; a time of it would mean nothing."""


@dataclass(frozen=True, slots=True)
class Measure:
    """`value` in `unit` beside its goal; `parts` say where it comes from."""

    name: str
    value: float
    goal: float
    unit: str
    parts: tuple[str, ...]
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def timed(argv: Sequence[str], stdin: bytes = b"") -> float:
    """Wall seconds of one command that must end with 0."""
    began = time.monotonic()
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=LIMIT_S, check=False)
    took = time.monotonic() - began
    if done.returncode != 0:
        words = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no word"]
        raise Broke(f"{shlex.join(argv)[:200]} ended with {done.returncode}: {words[-1]}")
    return took


def in_turn(repeats: int, *sides: Callable[[], float]) -> tuple[list[float], ...]:
    """The sides' times, each side once per round; the first round warms caches and does not count."""
    times: tuple[list[float], ...] = tuple([] for _ in sides)
    for number in range(repeats + 1):
        for side, kept in zip(sides, times, strict=True):
            took = side()
            if number:
                kept.append(took)
    return times


def _spread(name: str, times: Sequence[float]) -> str:
    return f"{name}: median {statistics.median(times):.3f} s ({min(times):.3f} to {max(times):.3f}, {len(times)} runs)"


# -- 1: --help beside `import click`


def help_beside_click(repeats: int) -> Measure:
    ours, click = in_turn(
        repeats,
        lambda: timed([TOOL, "--help"]),
        lambda: timed([sys.executable, "-c", "import click"]),
    )
    ratio = statistics.median(ours) / statistics.median(click)
    parts = (_spread("gpu-recover --help", ours), _spread('python -c "import click"', click))
    return Measure("--help beside `import click`", ratio, 2.5, "x", parts)


# -- 2: a probe beside ssh


@contextmanager
def lab(scenario: str) -> Iterator[Lab]:
    """A lab with a baseline, then with its trouble; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-recover-bench-"))
    one = Lab(folder)
    try:
        Lab.up(scenario, folder, idle=True)
        timed([TOOL, *one.tool("baseline", "save", "-q")])
        one.activate()
        yield one
    finally:
        one.down()
        shutil.rmtree(folder, ignore_errors=True)


class _Overheard:
    """A shell that runs nothing: it keeps what the probe would have sent."""

    where = "nowhere"

    def __init__(self) -> None:
        self.argv: Sequence[str] = ()
        self.stdin = b""

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline: float, cap: int = 0) -> Ran:
        if not self.stdin:
            self.argv, self.stdin = argv, stdin
        return Ran(0, b"", b"", 0.0)

    def connect(self, deadline: float, *, patient: bool = False) -> None:
        return None

    def forget(self) -> None: ...

    def close(self) -> None: ...


def agent_over_ssh(one: Lab) -> tuple[list[str], bytes]:
    """OpenSSH's client running the agent exactly as a probe of this target does: same words, same bytes."""
    import tomllib

    config, problems = parse_config(tomllib.loads(one.config.read_text()))
    if not isinstance(config, Config):
        raise Broke("; ".join(problems))
    target = config.targets["node-174"]
    health = (target.health,) if target.health else ()
    shell = _Overheard()
    GuestProbe(shell, ProbeSettings(services=target.services, health=health)).look(deadline=180.0)
    ssh = ["ssh", "-F", "none", "-T", "-i", str(target.ssh.identity_file), "-p", str(target.ssh.port)]
    for option in (f"UserKnownHostsFile={target.ssh.known_hosts}", "StrictHostKeyChecking=yes", "BatchMode=yes"):
        ssh += ["-o", option]
    return [*ssh, f"{target.ssh.user}@{target.address}", shlex.join(shell.argv)], shell.stdin


def probe_beside_ssh(scenario: str, what: str, goal: float, repeats: int) -> Measure:
    with lab(scenario) as one:
        argv, stdin = agent_over_ssh(one)
        ours, plain = in_turn(
            repeats,
            lambda: timed([TOOL, *one.tool("probe", "-q")]),
            lambda: timed(argv, stdin),
        )
    ratio = statistics.median(ours) / statistics.median(plain)
    parts = (
        _spread("gpu-recover probe (guest and Proxmox API)", ours),
        _spread("ssh, same agent (guest only)", plain),
    )
    return Measure(f"probe beside ssh, {what}", ratio, goal, "x", parts)


# -- 3: what the tool adds to a recovery inside the guest

PHASES = ("start", "first look", "evidence", "signals", "aftercare and report")


def added_to_a_recovery(repeats: int) -> Measure:
    """Workers that end at once when asked: all that is left is the tool's own time and the looks that confirm."""
    runs = [_recovery() for _ in range(repeats)]
    added = [sum(run.values()) for run in runs]
    parts = [_spread("whole run, without the looks that confirm and their pauses", added)]
    parts += [f"  {phase}: {statistics.median(run[phase] for run in runs):.3f} s" for phase in PHASES]
    return Measure("added to a recovery inside the guest", statistics.median(added), 1.0, "s", tuple(parts))


def _recovery() -> dict[str, float]:
    with lab("ranks-orphaned") as one:
        began = time.time()
        timed([TOOL, *one.tool("-q", *one.args)])
        ended = time.time()
        entries = list(read_entries(next(one.state_dir.glob("targets/*/runs/*/journal.jsonl"))))
    return _phases(entries, began, ended)


def _phases(entries: Sequence[Entry], began: float, ended: float) -> dict[str, float]:
    """Where the time went. Left out: from the rung's end to the look on which the end was decided (confirming)."""
    opened = _at(entries, lambda e: isinstance(e, Opened))
    looked = _at(entries, lambda e: isinstance(e, Saw))
    chosen = _at(entries, lambda e: isinstance(e, Decided) and isinstance(e.decision, Try))
    kept = _at(entries, lambda e: isinstance(e, Kept))
    rung = _at(entries, lambda e: isinstance(e, Ended))
    proved = _at(entries, lambda e: isinstance(e, Decided) and isinstance(e.decision, Stop))
    spans = (opened - began, looked - opened, kept - chosen, rung - kept, ended - proved)
    return dict(zip(PHASES, spans, strict=True))


def _at(entries: Sequence[Entry], is_it: Callable[[Entry], bool]) -> float:
    found = next((e for e in entries if is_it(e)), None)
    if found is None:
        raise Broke("the run went another way than the one that is measured: see `gpu-recover history`")
    return found.at


def load() -> str:
    processes = sum(name.isdigit() for name in os.listdir("/proc"))
    return (
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {processes} processes, Python {sys.version.split()[0]}"
    )
