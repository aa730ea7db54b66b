"""Wrong words and settings against a real lab: the thing, the place and the fix are named; nothing is touched."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up("healthy-serving", tmp_path_factory.mktemp("bad-input") / "lab") as lab:
        yield lab


def run(lab: Lab, config: Path, *words: str) -> tuple[int, str, str]:
    state = str(config.parent / "st")
    done = subprocess.run(
        [sys.executable, "-m", "recover.cli.main", "--config", str(config), "--state-dir", state, *words],
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr + done.stdout
    secret = (lab.folder / "pve" / "secret").read_text().strip()
    assert secret not in done.stderr + done.stdout
    return done.returncode, done.stdout, done.stderr


def changed(lab: Lab, folder: Path, before: str, after: str) -> Path:
    """The lab's configuration with one thing changed, and a patience of a moment."""
    folder.mkdir(parents=True, exist_ok=True)
    text = lab.config.read_text()
    assert before in text
    book = folder / "playbook.toml"
    book.write_text((lab.folder / "playbook.toml").read_text().replace('patience = "8s"', 'patience = "2s"'))
    path = folder / "config.toml"
    path.write_text(text.replace(before, after).replace(str(lab.folder / "playbook.toml"), str(book)))
    return path


def boots(lab: Lab) -> tuple[int, int]:
    state = lab.state()
    return state["vm"]["boots"], len(state["signals"])


def test_an_unknown_target_is_a_usage_error_with_suggestions(lab: Lab, tmp_path: Path) -> None:
    config = changed(lab, tmp_path, "[ssh]", "[ssh]")
    code, _, err = run(lab, config, "run", "node-147", "--yes")
    assert code == 2
    assert "node-147" in err
    assert "node-174" in err, "what may have been meant"


def test_a_proxmox_node_is_refused_and_its_guests_are_listed(lab: Lab, tmp_path: Path) -> None:
    code, _, err = run(lab, changed(lab, tmp_path, "[ssh]", "[ssh]"), "run", "pve1", "--yes")
    assert code == 2
    assert "never recovered" in err
    assert "174 (node-174)" in err


def test_a_missing_secret_turns_the_channel_off_and_says_so(lab: Lab, tmp_path: Path) -> None:
    config = changed(lab, tmp_path, str(lab.folder / "pve" / "secret"), "/nonexistent/secret")
    code, out, _ = run(lab, config, "run", "node-174", "--yes", "--json")
    report = json.loads(out)
    assert (code, report["end"]) == (0, "healthy")
    assert any("no-secret" in gap and "/nonexistent/secret" in gap for gap in report["gaps"]), report["gaps"]


def test_a_wrong_token_turns_the_channel_off_and_says_so(lab: Lab, tmp_path: Path) -> None:
    wrong = tmp_path / "secret"
    wrong.write_text("00000000-0000-0000-0000-000000000000\n")
    wrong.chmod(0o600)
    config = changed(lab, tmp_path, str(lab.folder / "pve" / "secret"), str(wrong))
    code, out, _ = run(lab, config, "run", "node-174", "--yes", "--json")
    report = json.loads(out)
    assert (code, report["end"]) == (0, "healthy")
    assert any("(auth)" in gap for gap in report["gaps"]), report["gaps"]


def test_a_certificate_that_no_ca_of_ours_signed_turns_the_channel_off(lab: Lab, tmp_path: Path) -> None:
    config = changed(lab, tmp_path, f'ca_file = "{lab.folder}/pve/ca.pem"', f'fingerprint = "{":".join(["AB"] * 32)}"')
    code, out, _ = run(lab, config, "run", "node-174", "--yes", "--json")
    report = json.loads(out)
    assert (code, report["end"]) == (0, "healthy")
    assert any("(tls)" in gap and "fingerprint" in gap for gap in report["gaps"]), report["gaps"]


def test_an_unknown_host_key_is_refused_with_its_fingerprint(lab: Lab, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.write_text("")
    config = changed(lab, tmp_path, str(lab.folder / "known_hosts"), str(empty))
    code, out, _ = run(lab, config, "run", "node-174", "--yes", "--approve", "vm", "--json")
    report = json.loads(out)
    assert (code, report["end"]) == (14, "cannot-tell")
    assert "SHA256:" in report["why"]


def test_a_changed_host_key_is_refused_and_never_a_reason_to_act(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    key = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    names = {line.split()[0] for line in (lab.folder / "known_hosts").read_text().splitlines() if line.strip()}
    (tmp_path / "known_hosts").write_text("".join(f"{name} {key}\n" for name in names))
    config = changed(lab, tmp_path, str(lab.folder / "known_hosts"), str(tmp_path / "known_hosts"))
    before = boots(lab)
    code, out, _ = run(lab, config, "run", "node-174", "--yes", "--approve", "vm", "--evict", "--json")
    assert (code, json.loads(out)["end"]) == (14, "cannot-tell")
    assert boots(lab) == before


def test_all_problems_of_a_broken_configuration_are_told_at_once(lab: Lab, tmp_path: Path) -> None:
    config = changed(lab, tmp_path, "vmid = 174", 'vmid = "x"\nsmurf = 1')
    config.write_text(config.read_text().replace("https://", "http://"))
    code, _, err = run(lab, config, "plan", "node-174")
    assert code == 2
    for place in ("clusters.pve.urls", "targets.node-174.vmid", "targets.node-174.smurf"):
        assert place in err, err


def test_a_playbook_with_an_unknown_step_and_a_descending_scope_is_refused(lab: Lab, tmp_path: Path) -> None:
    book = tmp_path / "bad.toml"
    book.write_text(
        'name = "bad"\n[[rung]]\nstep = "power-cycle-vm"\n[[rung]]\nstep = "end-workers"\n[[rung]]\nstep = "pray"\n'
    )
    config = changed(lab, tmp_path / "c", "[ssh]", "[ssh]")
    code, _, err = run(lab, config, "run", "node-174", "--playbook", str(book), "--yes")
    assert code == 2
    assert "pray" in err
    assert "end-workers" in err


def test_nothing_was_touched_by_all_of_this(lab: Lab) -> None:
    state = lab.state()
    assert state["vm"]["boots"] == 1
    assert state["signals"] == []
    assert shutil.which("ssh-keygen")
