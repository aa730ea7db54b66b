"""Docker and Podman by their contracts: each version's own formats, words and exit codes, played by a stand-in.

Neither runs on a machine of ours; tests/data/managers/README.md names where their answers come from.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.probe import GuestProbe
from recover.edge.shell.local import LocalShell
from recover.guest import services
from recover.guest.wire import Limit
from recover.model.act import RestoreAutostart, StartService, StopService, SuspendAutostart

CONTRACTS = sorted((Path(__file__).parents[1] / "data/managers").glob("*.toml"))
actuator = GuestActuator(GuestProbe(LocalShell()))

# Answers as the contract says, and keeps the container's state in a file. It stops in steps, one per look.
STAND_IN = """#!{python} -ISsE
import json, sys
here = {folder!r}
answers = json.load(open(here + "/contract"))
now = json.load(open(here + "/now"))
words = [w for w in sys.argv[1:] if not w.startswith("-") and w != "container"]
verb, name = words[0], words[-1]
if now["mode"] == "unreachable":
    verb = "inspect-unreachable"
elif name != "box" or now["state"] == "gone":
    verb = {{"inspect": "inspect-missing"}}.get(verb, "stop-missing")
elif verb == "stop" and now["mode"] == "stuck":
    verb = "stop-stuck"
elif verb == "stop" and answers["stop"]["code"] == 0:
    now["state"] = "gone" if now["auto"] else answers["states"][1]
    now["mode"] = "unreachable" if now["mode"] == "dies-at-stop" else now["mode"]
elif verb == "start":
    now["state"] = "running"
elif verb == "update" and answers["update"]["code"] == 0:
    policy = next(w for w in sys.argv if w.startswith("--restart=")).split("=")[1].partition(":")
    now["policy"], now["retries"] = policy[0], int(policy[2] or 0)
said = answers[verb]
fields = dict(now, name=name, running=str(now["state"] == "running").lower(), pid=4242 * (now["state"] == "running"),
              auto=str(now["auto"]).lower())
text = said["out"].format(**fields) if verb == "inspect" else said["out"].replace("{{name}}", name)
sys.stdout.write(text.lstrip("\\n") if verb == "inspect" else text)
sys.stderr.write(said["err"].replace("{{name}}", name))
if verb == "inspect" and now["state"] in answers["states"][1:-1]:
    now["state"] = answers["states"][answers["states"].index(now["state"]) + 1]
json.dump(now, open(here + "/now", "w"))
open(here + "/calls", "a").write(" ".join(sys.argv[1:]) + "\\n")
sys.exit(said["code"])
"""


class Manager:
    def __init__(self, folder: Path, contract: Path) -> None:
        self.folder = folder
        self.data = tomllib.loads(contract.read_text())
        self.tool: str = self.data["tool"]
        (folder / "contract").write_text(json.dumps(self.data))
        path = folder / self.tool
        path.write_text(STAND_IN.format(python=sys.executable, folder=str(folder)))
        path.chmod(0o755)
        self.set(state="running", policy="on-failure", retries=5, auto=False, mode="")

    def set(self, **changes: Any) -> None:
        path = self.folder / "now"
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))

    @property
    def now(self) -> dict[str, Any]:
        return json.loads((self.folder / "now").read_text())

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(params=CONTRACTS, ids=lambda path: path.stem)
def manager(request, tmp_path, monkeypatch) -> Manager:
    found = Manager(tmp_path, request.param)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return found


def test_its_own_words_are_read(manager):
    (found,) = services.containers_state(manager.tool, ["box"], Limit(20.0))
    assert (found["name"], found["state"], found["pid"], found["restarts"]) == ("box", "running", 4242, 2)
    assert found["restart"] == "on-failure:5" and found["enabled"] == "" and len(found["id"]) == 64
    manager.set(policy="always", retries=0)
    assert services.containers_state(manager.tool, ["box"], Limit(20.0))[0]["restart"] == "always"


def test_a_container_that_is_not_there_is_none_and_a_manager_that_cannot_be_asked_is_a_gap(manager):
    assert services.containers_state(manager.tool, ["nobody"], Limit(20.0)) == []
    manager.set(mode="unreachable")
    assert services.containers_state(manager.tool, ["box"], Limit(20.0)) is None


def test_it_stops_and_starts_once_through_every_state_on_the_way(manager):
    stop, start = StopService(manager.tool, "box", 20.0), StartService(manager.tool, "box", 20.0)
    first, second = actuator.perform(stop), actuator.perform(stop)
    assert first.ok and first.changed and second.ok and not second.changed, (first, second)
    first, second = actuator.perform(start), actuator.perform(start)
    assert first.ok and first.changed and second.ok and not second.changed, (first, second)
    verbs = [call.split()[0] for call in manager.calls]
    assert verbs.count("stop") == 1 and verbs.count("start") == 1


def test_a_container_that_its_own_stop_removes_is_gone(manager):
    manager.set(auto=True)
    assert services.containers_state(manager.tool, ["box"], Limit(20.0))[0]["enabled"] == "auto-remove"
    done = actuator.perform(StopService(manager.tool, "box", 20.0))
    assert done.ok and done.detail == "box is gone"


def test_a_process_that_the_kernel_keeps_is_no_stop(manager):
    manager.set(mode="stuck")
    done = actuator.perform(StopService(manager.tool, "box", 1.0))
    assert not done.ok and done.clear and "still running" in done.detail, done
    assert any("did not" in line for line in done.log), "its own words are kept"


def test_a_manager_that_dies_at_the_stop_leaves_it_unclear_never_gone(manager):
    manager.set(mode="dies-at-stop")
    done = actuator.perform(StopService(manager.tool, "box", 3.0))
    assert not done.ok and not done.clear, done


def test_a_name_that_it_does_not_know_changes_nothing(manager):
    done = actuator.perform(StopService(manager.tool, "nobody", 5.0))
    assert not done.ok and not done.changed
    assert not any(call.startswith("stop") for call in manager.calls)


def test_its_restart_policy_is_taken_and_put_back_where_it_can_be_changed(manager):
    off = actuator.perform(SuspendAutostart(manager.tool, "box", "on-failure:5"))
    if manager.data["update"]["code"]:  # Podman before 5.1 has no such option: said, and nothing is changed
        assert not off.ok and off.clear and manager.now["policy"] == "on-failure", off
        return
    assert off.ok and off.changed and manager.now["policy"] == "no"
    assert not actuator.perform(SuspendAutostart(manager.tool, "box", "on-failure:5")).changed
    back = actuator.perform(RestoreAutostart(manager.tool, "box", "on-failure:5"))
    assert back.ok and (manager.now["policy"], manager.now["retries"]) == ("on-failure", 5)
