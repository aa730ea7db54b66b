"""Bad words and bad files: all problems, the fix, code 2, nothing looked at and never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recover.cli.main import COMMANDS, with_default
from tests.cli.conftest import Cli

GOOD = """
[clusters.pve]
urls = ["https://127.0.0.1:1"]
token_id = "gpu-recover@pve!oncall"
token_secret = { file = "/nonexistent/secret" }
[targets.node-174]
cluster = "pve"
vmid = 174
address = "127.0.0.1"
[targets.node-174.ssh]
port = 1
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    return _written(tmp_path, GOOD)


def _written(folder: Path, text: str, name: str = "config.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("words", "means"),
    [
        (["node-174"], ["run", "node-174"]),
        (["--yes", "node-174"], ["run", "--yes", "node-174"]),
        (["--config", "plan", "node-174"], ["--config", "plan", "run", "node-174"]),
        (["--config=x", "node-174"], ["--config=x", "run", "node-174"]),
        (["--config", "x", "plan", "node-174"], ["--config", "x", "plan", "node-174"]),
        (["plan", "node-174"], ["plan", "node-174"]),
        (["plna", "node-174"], ["run", "plna", "node-174"]),
        (["--help"], ["--help"]),
        ([], []),
    ],
)
def test_what_is_no_command_is_a_target(words: list[str], means: list[str]) -> None:
    assert with_default(words) == means


def test_every_command_has_help(cli: Cli) -> None:
    for name in COMMANDS:
        ran = cli(name, "--help")
        assert ran.code == 0 and "--config" in ran.out and "--state-dir" in ran.out, name
    assert cli("--help").code == 0 and cli("-h").code == 0 and cli("--version").out.startswith("gpu-recover ")


def test_a_mistyped_command_is_never_a_recovery(cli: Cli, config: str, tmp_path: Path) -> None:
    ran = cli("--config", config, "plna", "node-174")
    assert ran.code == 2 and "gpu-recover plan node-174" in ran.err and ran.out == ""
    assert not (tmp_path / "state" / "targets").exists()
    assert "gpu-recover plan node-174" in cli("plna", "node-174").err, "also without a configuration"


def test_an_unknown_target_is_answered_with_the_nearest(cli: Cli, config: str) -> None:
    ran = cli("--config", config, "node-147", "node-174")
    assert ran.code == 2 and "node-174" in ran.err and "secret" in ran.err, "the cluster could not be asked, and why"


def test_no_configuration_names_the_places(cli: Cli, tmp_path: Path) -> None:
    ran = cli("node-174")
    assert ran.code == 2 and str(tmp_path / "home") in ran.err and "/etc/gpu-recover/config.toml" in ran.err
    assert cli("probe", "x", "--config", str(tmp_path / "none")).code == 2


def test_a_broken_configuration_shows_all_problems(cli: Cli, tmp_path: Path) -> None:
    bad = GOOD.replace("174\naddress", '"abc"\nadress').replace("{ file", '"hunter2" #').replace("= 1\n", "= 0\n")
    ran = cli("--config", _written(tmp_path, bad), "node-174")
    assert ran.code == 2 and "hunter2" not in ran.err
    for path in ("clusters.pve.token_secret", "targets.node-174.vmid", "targets.node-174.adress", "node-174.ssh.port"):
        assert path in ran.err, ran.err


@pytest.mark.parametrize(
    ("data", "says"),
    [(b"x = [1,\ny", "line 2"), (b"a = 1\n\xff", "line 2: not UTF-8"), (b"a=" + b"[" * 5000, "not valid TOML")],
)  # fmt: skip
def test_what_is_no_toml_names_the_line(cli: Cli, tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "c.toml").write_bytes(data)
    ran = cli("--config", str(tmp_path / "c.toml"), "node-174")
    assert ran.code == 2 and says in ran.err


def test_a_configuration_that_everybody_may_write_is_not_read(cli: Cli, config: str) -> None:
    os.chmod(config, 0o666)
    ran = cli("--config", config, "node-174")
    assert ran.code == 2 and "chmod o-w" in ran.err


def test_a_folder_is_no_configuration(cli: Cli, tmp_path: Path) -> None:
    assert "is a folder" in cli("--config", str(tmp_path), "node-174").err


@pytest.mark.parametrize(
    ("ladder", "says"),
    [
        ('[[rung]]\nstep = "end-workrs"\n', "rung[1].step"),
        ('[[rung]]\nstep = "power-cycle-vm"\n[[rung]]\nstep = "end-workers"\n', "may not come after"),
        ("", "ladder is empty"),
    ],
)
def test_a_broken_playbook_is_refused(cli: Cli, config: str, tmp_path: Path, ladder: str, says: str) -> None:
    book = _written(tmp_path, 'name = "x"\n' + ladder, "book.toml")
    for words in (("--config", config, "node-174", "--playbook", book), ("playbooks", "check", book)):
        ran = cli(*words)
        assert ran.code == 2 and says in ran.err
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["--deadline", "5"],
        ["--approve", "host"],
        ["--max-scope", "all"],
        ["--only", "end-wrkers"],
        ["--start-at", "x"],
        ["--playbook", "nope"],
        ["--bogus"],
    ],
)
def test_a_wrong_option_is_2(cli: Cli, config: str, words: list[str]) -> None:
    ran = cli("--config", config, "node-174", *words)
    assert ran.code == 2 and ran.err and ran.out == ""


def test_a_missing_secret_leaves_the_rest_working(cli: Cli, config: str) -> None:
    ran = cli("plan", "--config", config, "node-174")
    assert ran.code == 14 and "no-secret" in ran.out and "Connection refused" in ran.out


def test_a_state_folder_that_cannot_be_written_is_2(cli: Cli, config: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = cli("--config", config, "--state-dir", str(tmp_path / "file" / "state"), "node-174", "--yes")
    assert ran.code == 2 and "--state-dir" in ran.err and ran.out == ""


def test_a_damaged_journal_is_named_and_not_stepped_over(cli: Cli, config: str, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "targets" / "node-174" / "runs" / "r1"
    folder.mkdir(parents=True)
    (folder / "journal.jsonl").write_text("{}\nnonsense\n")
    ran = cli("--config", config, "node-174", "--yes")
    assert ran.code == 2 and "journal.jsonl:1" in ran.err
    assert "unreadable" in cli("history", "node-174").out


def test_a_damaged_baseline_is_named(cli: Cli, config: str, tmp_path: Path) -> None:
    (tmp_path / "state" / "targets" / "node-174").mkdir(parents=True)
    (tmp_path / "state" / "targets" / "node-174" / "baseline.json").write_text("[]")
    ran = cli("baseline", "show", "--config", config, "node-174")
    assert ran.code == 2 and "gpu-recover baseline save node-174" in ran.err


def test_hostile_words_reach_no_terminal(cli: Cli, config: str) -> None:
    ran = cli("--config", config, "x\x1b]0;owned\x07\u202e")
    assert ran.code == 2 and all(c.isprintable() or c == "\n" for c in ran.err)


def test_a_bug_is_70_with_a_report_and_no_traceback(cli: Cli, tmp_path: Path) -> None:
    class Broken:
        def resolve(self, names: object) -> None:
            raise RuntimeError("api_key=hunter2secret")

    ran = cli("node-174", app=Broken())
    assert ran.code == 70 and "RuntimeError" in ran.err and "hunter2" not in ran.err
    (report,) = (tmp_path / "state" / "bugs").iterdir()
    assert str(report) in ran.err and "hunter2" not in report.read_text() and "Traceback" in report.read_text()


def test_interrupted_is_130(cli: Cli) -> None:
    class Slow:
        def resolve(self, names: object) -> None:
            raise KeyboardInterrupt

    assert cli("node-174", app=Slow()).code == 130


def test_help_needs_nothing_heavy() -> None:
    code = (
        "import sys; from recover.cli.main import run; run(['--help']); "
        "print([m for m in ('rich', 'paramiko', 'proxmoxer', 'requests', 'recover.model', 'recover.wiring') "
        "if m in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr.strip() == "[]"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    call = f"{sys.executable} -m recover.cli.main rehearse 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", call], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.splitlines()[-1] == "0" and "Broken" not in ran.stdout
