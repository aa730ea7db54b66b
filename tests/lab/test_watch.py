"""Cron twice, the exporter and a person, all at the same moment on one sick guest: exactly one acts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import read_entries
from recover.edge.store.ledger import FileLedger
from recover.model.record import Began, Entry
from recover.model.watch import Ledger
from tests.lab import judge, scenario
from tests.lab.lab import Lab

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, "-m", "recover.cli.main"]
PLAYBOOK = """
name = "watch-lab"
about = "watch with the lab's time"
[limits]
max_scope = "process"
patience = "8s"
confirm = 2
confirm_every = "1s"
ripens = "4s"
hung_after = "4s"
[unattended]
signals = ["dead-group", "hung-group", "leftover-memory"]
scopes = ["process"]
[[rung]]
step = "stop-service"
settle = "1s"
[[rung]]
step = "end-workers"
settle = "1s"
term_deadline = "2s"
[after]
healthy_within = "20s"
"""
WATCH = """
[watch]
playbook = "{playbook}"
bad = 1
of = 1
good = 1
missed = 0
apart = "0s"
[fleet]
at_least = 1
"""


def start(lab: Lab, ending: contextlib.ExitStack, *words: str) -> subprocess.Popen[str]:
    """Ended with `ending`, whatever happens before."""
    child = subprocess.Popen(
        [*TOOL, "--config", str(lab.config), "--state-dir", str(lab.state_dir), *words, "node-174"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    ending.callback(child.wait)
    ending.callback(child.kill)
    return child


def tried(lab: Lab) -> dict[str, list[Entry]]:
    """The tries of each run."""
    runs = StateFolder(lab.state_dir).runs("node-174")
    found = {run.name: [e for e in read_entries(run / "journal.jsonl") if isinstance(e, Began)] for run in runs}
    return {run: began for run, began in found.items() if began}


def test_at_one_moment_exactly_one_acts(tmp_path: Path) -> None:
    expected: dict[str, Any] = scenario.expected("rank-defunct")
    with Lab.up("rank-defunct", tmp_path / "lab") as lab:
        (lab.folder / "watch.toml").write_text(PLAYBOOK)
        with open(lab.config, "a") as config:
            config.write(WATCH.format(playbook=lab.folder / "watch.toml"))
        before = lab.state()
        with contextlib.ExitStack() as ending:
            exporter = start(lab, ending, "exporter", "--listen", "127.0.0.1:0", "--period", "2s")
            assert exporter.stderr is not None and "/metrics" in exporter.stderr.readline()
            cron = [start(lab, ending, "check", "--recover", "--format", "json", "-q") for _ in range(2)]
            person = start(lab, ending, "run", "--yes", "--json", "-q")
            said = [one.communicate(timeout=200) for one in (*cron, person)]
            exporter.terminate()
            _, shown = exporter.communicate(timeout=60)
        after = lab.state()
        acted = tried(lab)
    for out, err in said:
        assert "Traceback" not in err and "bug" not in err, err
        assert out, err
    assert not judge.problems(expected, before, after)
    assert len(acted) == 1, f"not exactly one run acted: {acted}"
    assert all(one.returncode in (0, 1, 2) for one in cron) and person.returncode in (0, 20)
    assert exporter.returncode == 0 and "Traceback" not in shown, shown
    rules = [json.loads(out)["targets"][0]["acted"]["rule"] for out, _ in said[:2]]
    ledger = FileLedger(StateFolder(lab.state_dir)).read()
    assert isinstance(ledger, Ledger) and not ledger.breakers and all(p.ended for p in ledger.permits), ledger
    by_cron = sum(p.tried for p in ledger.permits)
    assert by_cron <= 1 and set(rules) <= {"acted", "limit", "at-work", "not-critical"}, (rules, ledger)
    assert person.returncode == 0 or by_cron == 1, "somebody brought it back"
