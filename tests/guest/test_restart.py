"""The agent asks systemd for a reboot of the boot that was meant, never by kexec, and not over an inhibitor."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.guest import restart, wire
from recover.guest.child import which
from tests.guest.conftest import BOOT

BUSCTL = (
    'a(ssssuu) 3 "shutdown:sleep" "Unattended Upgrades" "Stop \\"now\\" is bad" "delay" 0 771 '
    '"sleep" "ModemManager" "x" "delay" 0 5 "shutdown" "apt" "unpacking" "block" 0 99\n'
)


def test_inhibitors_are_read_as_busctl_writes_them():
    assert restart.parse(BUSCTL) == [
        {"who": "Unattended Upgrades (pid 771)", "why": 'Stop "now" is bad', "mode": "delay"},
        {"who": "apt (pid 99)", "why": "unpacking", "mode": "block"},
    ]
    assert restart.parse("a(ssssuu) 0\n") == []


@pytest.mark.parametrize("text", ["", "s 3", 'a(ssssuu) 2 "shutdown" "x" "y" "block" 0 1', 'a(ssssuu) 1 "shut'])
def test_what_is_garbled_is_not_known(text):
    assert restart.parse(text) is None


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A root folder as systemd leaves it, with tools that only write down how they were called."""
    root, tools = tmp_path / "root", tmp_path / "bin"
    for folder in (root / "proc/1", root / "run/systemd/system", root / "run/systemd/inhibit", tools):
        folder.mkdir(parents=True)
    (root / "proc/1/comm").write_text("systemd\n")
    calls = tmp_path / "calls"
    said = "$SYSTEMCTL_SKIP_AUTO_KEXEC$SYSTEMCTL_SKIP_AUTO_SOFT_REBOOT $*"
    script = f'#!/bin/sh\necho "{said}" >> {calls}\nexit $(cat {tmp_path}/code)\n'
    (tmp_path / "code").write_text("0")
    tool(tools / "systemctl", script)
    tool(tools / "busctl", f"#!/bin/sh\ncat {tmp_path}/inhibitors\n")
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setattr(wire, "ROOT", str(root))
    monkeypatch.setattr(restart.signal, "signal", lambda *_: None)
    assert which("systemctl") == str(tools / "systemctl")
    return tmp_path


def tool(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def calls(folder: Path) -> list[str]:
    found = folder / "calls"
    return found.read_text().splitlines() if found.exists() else []


def test_it_is_asked_once_and_without_kexec(systemd):
    done = restart.reboot({"boot_id": BOOT, "deadline": 30.0})
    assert done["ok"] and done["changed"]
    assert calls(systemd) == ["11 --no-wall reboot"]


def test_another_boot_is_not_rebooted(systemd):
    done = restart.reboot({"boot_id": "another", "deadline": 30.0})
    assert done["ok"] and not done["changed"] and calls(systemd) == []


def test_an_inhibitor_is_named_and_nothing_is_asked(systemd):
    (systemd / "root/run/systemd/inhibit/7").touch()
    (systemd / "inhibitors").write_text(BUSCTL)
    done = restart.reboot({"boot_id": BOOT, "deadline": 30.0})
    assert not done["ok"] and not done["changed"] and "apt (pid 99) objects: unpacking" in done["detail"]
    assert calls(systemd) == []


def test_another_init_is_left_alone(systemd):
    (systemd / "root/proc/1/comm").write_text("runit\n")
    done = restart.reboot({"boot_id": BOOT, "deadline": 30.0})
    assert not done["ok"] and not done["changed"] and "runit" in done["detail"] and calls(systemd) == []


def test_a_refusal_of_systemd_is_unclear_unless_it_says_why(systemd):
    (systemd / "code").write_text("1")
    done = restart.reboot({"boot_id": BOOT, "deadline": 30.0})
    assert not done["ok"] and done["clear"] is False
