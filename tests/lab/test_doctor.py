"""doctor against a real sshd, the real agent on the guest's Python and the real HTTPS API of one lab."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.test_bad_input import changed, run

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up("healthy-serving", tmp_path_factory.mktemp("doctor") / "lab") as lab:
        yield lab


def doctor(lab: Lab, config: Path) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    code, out, _ = run(lab, config, "doctor", "node-174", "--json", "-q")
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(out)["checks"]:
        for name in one["check"].split(", "):
            found.setdefault(name, []).append(one)
    return code, found


def test_a_lab_that_is_as_it_should_be_has_no_failure(lab: Lab, tmp_path: Path) -> None:
    code, found = doctor(lab, changed(lab, tmp_path, "[ssh]", "[ssh]"))
    said = {name: [(one["status"], one["says"]) for one in ones] for name, ones in found.items()}
    assert code == 0, said
    for name in ("connection", "host key", "login", "root", "agent", "identity", "playbook", "Proxmox guest", "API"):
        assert found[name][-1]["status"] == "ok", said
    assert "runs on Python 3." in found["agent"][0]["says"]
    assert found["baseline"][0]["status"] == "warning" and "baseline save" in found["baseline"][0]["fix"]
    assert [one["status"] for one in found["clock"]] == ["ok", "ok"], said


def test_an_unknown_and_a_changed_host_key_come_with_the_command(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "known_hosts").write_text("")
    code, found = doctor(lab, changed(lab, tmp_path, str(lab.folder / "known_hosts"), str(tmp_path / "known_hosts")))
    (key,) = found["host key"]
    assert code == 1 and key["status"] == "failed" and "SHA256:" in key["says"] and "ssh-keyscan" in key["fix"]
    assert found["connection"][0]["status"] == "ok" and found["login"][0]["status"] == "not asked"


def test_a_key_that_the_guest_does_not_take(lab: Lab, tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    code, found = doctor(lab, changed(lab, tmp_path, str(lab.folder / "id_ed25519"), str(tmp_path / "other")))
    (login,) = found["login"]
    assert code == 1 and login["status"] == "failed" and "authorized_keys" in login["fix"]
    assert found["host key"][0]["status"] == "ok" and "agent" not in found


def test_targets_shows_the_guest_under_its_name(lab: Lab, tmp_path: Path) -> None:
    code, out, _ = run(lab, changed(lab, tmp_path, "[ssh]", "[ssh]"), "targets", "--json", "-q")
    (ours,) = json.loads(out)["targets"]
    assert code == 0 and ours["configured"] == "node-174" and len(ours["devices"]) == 8
