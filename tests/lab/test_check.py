"""`check` against whole guests of the lab: its verdict is the lab's, and afterwards nothing in the lab is another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab import judge
from tests.lab.lab import Lab

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, "-m", "recover.cli.main"]
UNTOUCHED: dict[str, Any] = {"lab": {"untouched": True}}


def check(lab: Lab, *words: str) -> tuple[int, str]:
    ran = subprocess.run(
        [*TOOL, "--config", str(lab.config), "--state-dir", str(lab.state_dir), "check", "-q", *words],
        cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert "Traceback" not in ran.stderr, ran.stderr
    return ran.returncode, ran.stdout


@pytest.mark.parametrize(
    ("scenario", "code", "says"),
    [
        ("healthy-serving", 0, "serving"),
        ("loading", 0, "starting"),
        ("incident", 2, "dead"),
        ("defunct-leader", 2, "defunct"),
        ("vm-stopped-by-colleague", 2, "stopped"),
        ("route-down", 3, "not reached"),
    ],
)
def test_what_check_says_is_so_and_nothing_is_touched(scenario: str, code: int, says: str, tmp_path: Path) -> None:
    with Lab.up(scenario, tmp_path / "lab") as lab:
        before = lab.state()
        got, out = check(lab, "--all", "--format", "json")
        after = lab.state()
    (seen,) = json.loads(out)["targets"]
    assert got == code and says in seen["why"], seen
    assert not judge.problems(UNTOUCHED, before, after)
    assert not [p for p in judge.posts(after) if p not in judge.posts(before)]
    assert not (tmp_path / "lab/state").exists()


def test_every_form_over_one_guest(tmp_path: Path) -> None:
    with Lab.up("hostile-titles", tmp_path / "lab") as lab:
        forms = {form: check(lab, "node-174", "--format", form) for form in ("table", "nagios", "prometheus", "json")}
    assert len({code for code, _ in forms.values()}) == 1
    assert not any("\x1b" in out or "\x07" in out for _, out in forms.values())
    assert forms["nagios"][1].count("|") == 1
    told = json.loads(forms["json"][1])["targets"][0]
    for gpu in told["gpus"]:
        line = f'gpu_recover_gpu_memory_total_bytes{{target="node-174",gpu="{gpu["index"]}",uuid="{gpu["uuid"]}"'
        assert line in forms["prometheus"][1]


def test_several_looks_over_one_connection_let_held_memory_ripen(tmp_path: Path) -> None:
    """The lab's playbook lets memory ripen in seconds."""
    with Lab.up("gpu-memory-reset", tmp_path / "lab") as lab:
        first, _ = check(lab, "node-174")
        code, out = check(lab, "node-174", "--looks", "3", "--every", "4", "--format", "json")
    (seen,) = json.loads(out)["targets"]
    assert first == 1 and code == 2 and seen["looks"] == 3
    assert seen["findings"][0]["signal"] == "gpu-memory-held"
