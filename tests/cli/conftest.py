"""The command line in this process, over machines that aren't there; state in a temporary folder, nobody's home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from recover.cli.main import run
from recover.edge.simulated import FAULTS
from tests.cli.simulated import SimulatedApp


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("GPU_RECOVER_CONFIG", raising=False)
    monkeypatch.setenv("GPU_RECOVER_STATE", str(tmp_path / "state"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`cli("probe", "x")` as a shell would: exit code, stdout, stderr."""

    def call(*words: str, app: object = None) -> Ran:
        capsys.readouterr()
        code = run(words, app)
        shown = capsys.readouterr()
        assert "Traceback" not in shown.out + shown.err
        return Ran(code, shown.out, shown.err)

    return call


@pytest.fixture
def machines(tmp_path: Path) -> Callable[..., SimulatedApp]:
    """`machines(**{"node-174": "incident"})`: an App whose targets have these faults."""

    def made(**faults: str) -> SimulatedApp:
        return SimulatedApp(tmp_path / "state", {n: FAULTS[f] for n, f in faults.items()}, speed=1000.0)

    return made
