"""The real tool against the whole lab: every scenario ends right, judged by the lab's own state, not by our report."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab import judge, scenario
from tests.lab.lab import Lab

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, "-m", "recover.cli.main"]
LONGEST_S = 240.0
OWN_DRIVER = {"killed-while-stopped", "interrupt-reset-gpu", "two-runs"}


@dataclass
class Table:
    """One lab that is up, with the tool's baseline saved while it was idle and the scenario then begun."""

    lab: Lab
    data: dict[str, Any]
    expected: dict[str, Any]
    before: dict[str, Any] = field(default_factory=dict)

    def tool(self, *args: str, json_out: bool = True) -> list[str]:
        extra = ["--json"] if json_out else []
        words = self.lab.tool(*args, *extra)
        return [*TOOL, *words[:4], "run", *words[4:]]

    def start(self, *args: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.tool(*args),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str) -> tuple[int, dict[str, Any], str]:
        with self.start(*args) as child:
            try:
                out, err = child.communicate(timeout=LONGEST_S)
            finally:
                child.kill()
        return child.returncode, json.loads(out) if out.strip() else {}, err

    def judge(self, code: int, report: dict[str, Any], err: str) -> None:
        after = self.lab.state()
        end, want = report.get("end"), self.expected["end"]
        wrong = judge.problems(self.expected, self.before, after)
        if end not in ([want] if isinstance(want, str) else want):
            wrong.append(f"end {end!r}, not {want!r}: {report.get('why')}")
        codes = self.expected["exit_code"]
        if code not in ([codes] if isinstance(codes, int) else codes):
            wrong.append(f"exit code {code}, not {codes}")
        wrong += _figures(report, self.before, after)
        text = json.dumps(report)
        wrong += [f"the report does not say {word!r}" for word in self.expected.get("says", []) if word not in text]
        wrong += [f"it says {word!r}" for word in self.expected.get("never_says", []) if word in text + err]
        wrong += ["a traceback"] if "Traceback" in err else []
        assert not wrong, "\n".join([*wrong, "--- what the tool said:", err[-6000:]])


def _figures(report: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The report's figures are the lab's: what a person reads at 3 a.m. must be true."""
    wrong = []
    truth = {g["uuid"]: g["used_mib"] for g in after["gpus"]}
    if report.get("end") == "recovered" and report.get("service") is None:
        for gpu in report["gpus"]:
            said = gpu["used_mib_after"]
            if said is not None and gpu["uuid"] in truth and abs(said - truth[gpu["uuid"]]) > 64:
                wrong.append(f"GPU {gpu['index']}: report says {said} MiB after, the lab {truth[gpu['uuid']]}")
    return wrong


@contextlib.contextmanager
def table(name: str, folder: Path) -> Iterator[Table]:
    data = scenario.load(name)
    with Lab.up(name, folder, idle=True) as lab:
        cgroup = Path(lab.data()["cgroup"])
        if data["run"]["baseline"]:
            words = lab.tool()
            saved = subprocess.run(
                [*TOOL, *words[:4], "baseline", "save", "node-174"],
                cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            assert saved.returncode == 0, saved.stderr + saved.stdout
        lab.activate()
        before = lab.state()
        assert before["trouble"] == []
        assert not any("error" in event for event in before["events"])
        yield Table(lab, data, scenario.expected(name), before)
    assert not cgroup.exists(), "the lab left something running"


def until(said: str, true: Callable[[], bool], limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < end, f"not within {limit_s:.0f} s: {said}"
        time.sleep(0.05)


@pytest.mark.parametrize("name", sorted(set(scenario.names()) - OWN_DRIVER))
def test_scenario_ends_right(name: str, tmp_path: Path) -> None:
    with table(name, tmp_path / "lab") as t:
        t.judge(*t.run(*t.lab.args))


@pytest.mark.parametrize(
    "options", [("--yes", "--approve", "vm", "--evict"), ("--max-scope", "process"), ("--only", "end-workers")]
)
def test_killed_while_the_vm_is_stopped_the_next_run_starts_it_whatever_its_options(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    with table("killed-while-stopped", tmp_path / "lab") as t:
        first = t.start("--yes", "--approve", "vm", "--evict")
        until("the VM is stopped", lambda: t.lab.state()["vm"]["status"] == "stopped")
        os.kill(first.pid, signal.SIGKILL)
        first.communicate(timeout=60)
        until("the API's own start has ended", lambda: not _running_tasks(t.lab))
        t.judge(*t.run(*options))


def _running_tasks(lab: Lab) -> bool:
    return any(task.get("running") for task in lab.state()["pve"].get("tasks", []))


def test_ctrl_c_during_reset_gpu_puts_persistence_back(tmp_path: Path) -> None:
    with table("interrupt-reset-gpu", tmp_path / "lab") as t:
        child = t.start("--yes", "--approve", "vm")
        until("persistence is off", lambda: any(not g["persistence"] for g in t.lab.state()["gpus"]))
        os.kill(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=LONGEST_S)
        t.judge(child.returncode, json.loads(out), err)


def test_two_runs_at_once_the_second_says_who(tmp_path: Path) -> None:
    with table("two-runs", tmp_path / "lab") as t:
        first = t.start("--yes", "--approve", "vm")
        until("the first run began its rung", lambda: bool(t.lab.state()["signals"]))
        code, report, err = t.run("--yes", "--approve", "vm")
        assert code == t.expected["second_exit_code"], err
        assert report["end"] == "held"
        assert "end-workers" in report["why"], "where it is"
        assert "root" in report["why"], "who it is"
        out, err = first.communicate(timeout=LONGEST_S)
        t.judge(first.returncode, json.loads(out), err)
