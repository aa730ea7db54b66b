"""`gpu-recover explain`: from a file or stdin, plain, JSON or a table; no configuration, and nothing for a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

XID = "NVRM: Xid (PCI:0000:06:00): 79, GPU has fallen off the bus.\n"
RAW = Path(__file__).parents[1] / "data" / "cases" / "raw"


def stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"all is well\n{XID}")
    ran = cli("explain", str(tmp_path / "log"))
    assert ran.code == 0 and ran.err == ""
    assert (
        ran.out.startswith("1 finding\n")
        and "gpu-lost" in ran.out
        and "cure: vm" in ran.out
        and "line 2: NVRM" in ran.out
    )


@pytest.mark.parametrize("words", [(), ("-",)])
def test_stdin(cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    stdin(monkeypatch, XID.encode() + b"\xff\xfe\x00 no text\n")
    ran = cli("explain", *words)
    assert ran.code == 0 and "gpu-lost" in ran.out


def test_json_has_exactly_what_is_promised(cli: Cli) -> None:
    ran = cli("explain", "--json", str(RAW / "pve_stop_escalation_messages.txt"))
    found = json.loads(ran.out)
    assert [(one["signal"], one["cure"]) for one in found] == [
        ("qemu-killed", None),
        ("shutdown-timeout", "vm"),
        ("leftover-qemu", None),
    ]
    assert all(
        set(one) == {"signal", "says", "cure", "where"} and set(one["where"]) == {"line", "text"} for one in found
    )
    assert found[0]["where"] == {"line": 4, "text": "VM still running - terminating now with SIGKILL"}


def test_nothing_is_found(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"")
    assert cli("explain", "--json").out == "[]\n"
    stdin(monkeypatch, b"\n\nhello\n")
    ran = cli("explain")
    assert ran.code == 0 and ran.out == "nothing in this text says that something is wrong\n"


def test_notes_stand_beside_the_findings(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"Requesting HA stop for VM 100\nTASK OK\n")
    ran = cli("explain")
    assert "HA was asked" in ran.out and "nothing in this text" in ran.out
    stdin(monkeypatch, b"Requesting HA stop for VM 100\nTASK OK\n")
    assert cli("explain", "--json").out == "[]\n"


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_what_cannot_be_read_is_said(cli: Cli, tmp_path: Path, name: str) -> None:
    ran = cli("explain", str(tmp_path / name))
    assert ran.code == 2 and str(tmp_path) in ran.err


def test_hostile_text_is_cleaned(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin(monkeypatch, b"\x1b]0;owned\x07\x1b[2J" + XID.encode().replace(b"GPU has", b"GPU \x1b[31mhas\xe2\x80\xae"))
    ran = cli("explain")
    assert "\x1b" not in ran.out and "\u202e" not in ran.out and "gpu-lost" in ran.out


def test_a_table_with_colour_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-m", "recover.cli.main", "explain", str(RAW / "dmesg_xid79_595_open.txt")],
        stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=env, cwd=Path(__file__).parents[2],
    ) as child:  # fmt: skip
        os.close(theirs)
        shown = b""
        while True:
            try:
                got = os.read(ours, 65536)
            except OSError:
                break
            if not got:
                break
            shown += got
        assert child.wait(60) == 0
    os.close(ours)
    assert b"\x1b[" in shown and b"gpu-lost" in shown and b"cure" in shown
