"""`check` over machines that aren't there: its codes, its forms, its patience, and that it can't change anything."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from recover.edge.fleet import Failed, Late, at_once
from recover.edge.simulated import SimulatedMachine
from recover.model.ladder import Playbook
from recover.model.snapshot import Snapshot, Target
from recover.wiring import Flags, Wired
from tests.cli.conftest import Cli
from tests.cli.simulated import SimulatedApp

Machines = Callable[..., SimulatedApp]


@pytest.mark.parametrize(
    ("fault", "code"),
    [("idle", 0), ("healthy", 0), ("loading", 0), ("vram-held", 1), ("incident", 2), ("vm-stopped", 2), ("mute", 3)],
)
def test_the_code_is_a_plugins(cli: Cli, machines: Machines, fault: str, code: int) -> None:
    ran = cli("check", "node", "--every", "0.1", "-q", app=machines(node=fault))
    assert ran.code == code, ran.out


def test_a_busy_server_is_looked_at_twice_and_no_other(cli: Cli, machines: Machines) -> None:
    app = machines(busy="healthy", spare="idle", sick="incident", held="vram-held")
    ran = cli("check", "--all", "--every", "0.1", "--format", "json", "-q", app=app)
    looks = {t["target"]: t["looks"] for t in json.loads(ran.out)["targets"]}
    assert looks == {"busy": 2, "spare": 1, "sick": 1, "held": 1} and ran.code == 2


def test_looks_let_ripen_what_does_not_move(cli: Cli, machines: Machines) -> None:
    words = ("check", "node", "--looks", "3", "--every", "40", "-q", "--format", "json")  # of a clock that runs fast
    ran = cli(*words, app=machines(node="vram-held"))
    assert ran.code == 2 and json.loads(ran.out)["targets"][0]["findings"][0]["signal"] == "gpu-memory-held"


def test_nothing_is_written_and_no_actuator_is_made(cli: Cli, machines: Machines, tmp_path: Path) -> None:
    class Watched(SimulatedApp):
        def wire(self, target: Target, playbook: Playbook, flags: Flags, *, acts: bool = True) -> Wired:
            wired = super().wire(target, playbook, flags, acts=acts)

            def refuse() -> object:
                raise AssertionError("check asked for an actuator")

            wired.actuator = refuse  # type: ignore[assignment]
            return wired

    made = machines(node="incident")
    app = Watched(tmp_path / "state", made.faults)
    ran = cli("check", "node", "-q", app=app)
    assert ran.code == 2 and not (tmp_path / "state").exists()
    assert not any(tmp_path.iterdir())


class Slow(SimulatedApp):
    """Its node `hung` does not come back until the test lets it."""

    free = threading.Event()

    def wire(self, target: Target, playbook: Playbook, flags: Flags, *, acts: bool = True) -> Wired:
        wired = super().wire(target, playbook, flags, acts=acts)
        if target.name.startswith("hung"):
            wired.observer = _Hung(self.machines[target.name])
        if target.name == "bug":
            wired.observer = _Bug(self.machines[target.name])
        return wired


class _Hung:
    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine

    def look(self) -> Snapshot:
        Slow.free.wait(60)
        return self.machine.look()

    def acted(self, action: object) -> None: ...


class _Bug(_Hung):
    def look(self) -> Snapshot:
        raise ZeroDivisionError


def test_one_that_hangs_is_unknown_and_delays_no_other(cli: Cli, machines: Machines, tmp_path: Path) -> None:
    faults = machines(hung="idle", hung2="idle", bug="idle", a="idle", b="incident").faults
    Slow.free.clear()
    began = time.monotonic()
    try:
        ran = cli("check", "--all", "--jobs", "1", "--deadline", "4", "--format", "json", "-q",
                  app=Slow(tmp_path / "state", faults))  # fmt: skip
    finally:
        Slow.free.set()
    assert time.monotonic() - began < 30
    by = {t["target"]: t for t in json.loads(ran.out)["targets"]}
    assert {name: t["status"] for name, t in by.items()} == {
        "hung": "UNKNOWN", "hung2": "UNKNOWN", "bug": "UNKNOWN", "a": "OK", "b": "CRITICAL",
    }  # fmt: skip
    assert "deadline" in by["hung"]["why"] and "ZeroDivisionError" in by["bug"]["why"]
    assert ran.code == 2


@pytest.mark.parametrize(
    "words", [("nosuch",), ("--all", "node"), (), ("node", "--format", "xml"), ("node", "--jobs", "0"), ("--bogus",)]
)
def test_bad_words_are_unknown_and_not_critical(cli: Cli, machines: Machines, words: tuple[str, ...]) -> None:
    ran = cli("check", *words, app=machines(node="idle"))
    assert ran.code == 3 and ran.err and not ran.out


def test_a_bad_configuration_is_unknown_and_a_monitoring_system_reads_why(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[targets.node]\nadress = "x"\n')
    ran = cli("check", "node", "--format", "nagios", "--config", str(tmp_path / "config.toml"))
    assert ran.code == 3 and ran.out.startswith("GPU UNKNOWN - ") and "adress" in ran.out


def test_a_damaged_baseline_is_told_before_any_look(cli: Cli, machines: Machines, tmp_path: Path) -> None:
    folder = tmp_path / "state/targets/node"
    folder.mkdir(parents=True)
    (folder / "baseline.json").write_text("{")
    app = machines(node="idle")
    assert cli("check", "node", "-q", app=app).code == 3


def test_each_target_once_in_the_order_of_the_words(cli: Cli, machines: Machines) -> None:
    ran = cli("check", "b", "a", "b", "-q", "--format", "json", app=machines(a="idle", b="idle"))
    assert [t["target"] for t in json.loads(ran.out)["targets"]] == ["b", "a"]


def test_colours_only_on_a_terminal(cli: Cli, machines: Machines) -> None:
    assert "\x1b" not in cli("check", "node", "-q", app=machines(node="incident")).out


def test_the_fleet_answers_in_order_with_what_failed_and_what_was_late() -> None:
    release = threading.Event()

    def boom(left: float) -> str:
        raise KeyError("x")

    def hang(left: float) -> str:
        release.wait(60)
        return "too late"

    answers = at_once([lambda left: "a", boom, hang, lambda left: "b"], 4, 1.0, 10.0)
    release.set()
    assert answers[0] == "a" and answers[3] == "b"
    assert isinstance(answers[1], Failed) and isinstance(answers[2], Late) and answers[2].began


def test_no_more_run_at_a_time_than_asked_and_the_rest_is_not_begun() -> None:
    now, most, lock = [0], [0], threading.Lock()

    def job(left: float) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.02)
        with lock:
            now[0] -= 1
        return 1

    assert at_once([job] * 12, 3, 60.0, 30.0) == [1] * 12 and most[0] <= 3
    stuck = threading.Event()
    answers = at_once([lambda left: stuck.wait(60)] * 2, 1, 0.5, 30.0)
    stuck.set()
    assert [isinstance(a, Late) and a.began for a in answers] == [True, False]


def test_machines_that_only_listen_end_with_the_deadline(tmp_path: Path) -> None:
    """The whole program, with a guest and an API that accept and say nothing: it also ends, not only its report."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        (tmp_path / "secret").write_text("x")
        (tmp_path / "secret").chmod(0o600)
        (tmp_path / "config.toml").write_text(
            f'[clusters.pve]\nurls = ["https://127.0.0.1:{port}"]\ntoken_id = "a@pve!b"\n'
            f'token_secret = {{ file = "{tmp_path}/secret" }}\n'
            f'[targets.node]\naddress = "127.0.0.1"\ncluster = "pve"\nvmid = 174\n[targets.node.ssh]\nport = {port}\n'
        )
        words = ["--config", str(tmp_path / "config.toml"), "check", "node", "-q", "--deadline", "4"]
        ran = subprocess.run(
            [sys.executable, "-m", "recover.cli.main", *words, "--format", "nagios"],
            cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert ran.returncode == 3 and ran.stdout.startswith("GPU UNKNOWN - node: "), ran
