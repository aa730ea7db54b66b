"""`exporter` as a process of its own: served, asked by signals, and never brought to act by whoever knocks."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from tests.cli.conftest import Cli
from tests.cli.simulated import SimulatedApp

ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, "-m", "recover.cli.main"]
# An actuator that is asked for leaves a mark.
SPRUNG = """
import sys
from pathlib import Path
from recover.cli.main import run
from recover.edge.simulated import FAULTS
from tests.cli.simulated import SimulatedApp

class Trapped(SimulatedApp):
    def wire(self, *given, **how):
        wired = super().wire(*given, **how)
        wired.actuator = lambda: Path(sys.argv[1], "sprung").touch()
        return wired

state = Path(sys.argv[1], "state")
sys.exit(run(sys.argv[2:], Trapped(state, {"node": FAULTS["incident"]}, 100.0)))
"""


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    errors: Path
    url: str = ""
    seen: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def said(self) -> str:
        return self.errors.read_text()

    def scrape(self) -> dict[tuple[str, str], float]:
        """(name, target) -> value."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return {(s.name, s.labels.get("target", "")): s.value for f in families(text) for s in f.samples}

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)


@contextmanager
def running(argv: list[str], folder: Path) -> Iterator[Running]:
    errors = folder / "errors"
    env = {**os.environ, "GPU_RECOVER_STATE": str(folder / "state")}
    with errors.open("wb") as file:
        process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file, env=env
        )
    one = Running(process, errors)
    try:
        until(lambda: "/metrics" in one.said or process.poll() is not None)
        found = re.search(r"(http://\S+)/metrics", one.said)
        assert found is not None, one.said
        one.url = found[1]
        yield one
    finally:
        process.kill()
        process.wait(30)


WORDS = ["exporter", "--listen", "127.0.0.1:0"]


def test_no_request_reaches_an_actuator_or_starts_a_look(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", SPRUNG, str(tmp_path), *WORDS, "node", "--period", "1h"]
    with running(argv, tmp_path) as one:
        until(lambda: ("gpu_recover_state", "node") in one.scrape())
        port = int(one.url.rpartition(":")[2])
        for method in ("GET", "POST", "PUT", "DELETE", "RECOVER"):
            for path in ("/metrics", "/healthz", "/recover", "/recover/node", "/run?target=node&yes=1", "/-/reload"):
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as line:
                    line.request(method, path, body=b'{"status": "firing"}', headers={"Content-Type": "text/json"})
                    line.getresponse().read()
        until(lambda: ("gpu_recover_flapping", "node") in one.scrape())
        seen = one.scrape()
        assert ("gpu_recover_hard_state", "node") not in seen, "one look makes no state that lasts"
        assert seen["gpu_recover_state", "node"] == 2 and seen["gpu_recover_exporter_looks_total", ""] == 1
        assert one.end() == 0 and "node: CRITICAL" in one.said and one.said.rstrip().endswith("ended")
    assert not (tmp_path / "sprung").exists() and not list((tmp_path / "state").glob("targets/*/runs/*"))


def config(folder: Path, *names: str, more: str = "") -> Path:
    """Targets on a port where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    text = f'[ssh]\nuser = "root"\nport = {port}\n' + "".join(
        f'[targets.{name}]\naddress = "127.0.0.1"\n' for name in names
    )
    path = folder / "config.toml"
    path.write_text(text + more)
    return path


def test_a_hang_up_reads_the_configuration_anew_and_keeps_the_old_one_if_it_is_wrong(tmp_path: Path) -> None:
    path = config(tmp_path, "a")
    with running([*TOOL, "--config", str(path), *WORDS, "--all", "--period", "1s"], tmp_path) as one:
        until(lambda: one.scrape().get(("gpu_recover_state", "a")) == 3)
        config(tmp_path, "b", "c")
        one.process.send_signal(signal.SIGHUP)
        until(lambda: {t for n, t in one.scrape() if n == "gpu_recover_state"} == {"b", "c"})
        config(tmp_path, "d", more='colour = "red"\nvmid = "x"\n')
        one.process.send_signal(signal.SIGHUP)
        until(lambda: one.scrape()["gpu_recover_exporter_configuration_ok", ""] == 0)
        assert "colour" in one.said and "vmid" in one.said and "the one before goes on" in one.said
        before = one.scrape()["gpu_recover_exporter_looks_total", ""]
        until(lambda: one.scrape()["gpu_recover_exporter_looks_total", ""] > before + 2)
        config(tmp_path, "b")
        one.process.send_signal(signal.SIGHUP)
        until(lambda: {t for n, t in one.scrape() if n == "gpu_recover_state"} == {"b"})
        assert one.scrape()["gpu_recover_exporter_configuration_ok", ""] == 1
        assert one.end(signal.SIGINT) == 0 and "Traceback" not in one.said


def test_a_port_that_is_taken_is_said(cli: Cli, machines: Callable[..., SimulatedApp]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        there = f"127.0.0.1:{held.getsockname()[1]}"
        ran = cli("exporter", "node", "--listen", there, app=machines(node="idle"))
    assert ran.code == 2 and there in ran.err and "in use" in ran.err


BAD = (
    "--all node", "nosuch", "node --period 0s", "node --period 60", "node --jobs 0", "node --listen 9835",
    "node --listen ::1:9835", "node --listen h:99999", "node --recover", "",
)  # fmt: skip


@pytest.mark.parametrize("words", BAD)
def test_bad_words_are_told_before_anything_listens(
    cli: Cli, machines: Callable[..., SimulatedApp], words: str
) -> None:
    ran = cli("exporter", *words.split(), app=machines(node="idle"))
    assert ran.code == 2 and ran.err and "/metrics" not in ran.err
