"""Managers by what they really say: supervisord for real, systemd, Docker and Podman by their recorded formats."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from recover.core.read.agent import read_guest
from recover.edge.actuator.guest import GuestActuator
from recover.edge.probe import GuestProbe, ask
from recover.edge.shell.local import LocalShell
from recover.guest import services
from recover.model.act import RestoreAutostart, StartService, StopService, SuspendAutostart
from recover.model.guest import Guest, Service
from recover.model.reading import Known

actuator = GuestActuator(GuestProbe(LocalShell()))


# supervisord for real


@pytest.fixture
def supervisord(tmp_path, start):
    """A supervisord of our own, with one program that stays and one that fails at once."""
    config = tmp_path / "supervisord.conf"
    config.write_text(
        f"""[unix_http_server]
file={tmp_path}/sock
[supervisord]
logfile={tmp_path}/log
pidfile={tmp_path}/pid
nodaemon=true
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{tmp_path}/sock
[program:gprstay]
command={sys.executable} -I -S -c "import time; time.sleep(600)"
startsecs=0
[program:gprfail]
command=/bin/false
startretries=0
"""
    )
    tool = Path(sys.executable).parent / "supervisord"
    child = start("", argv=["sh", "-c", 'echo ready; exec "$0" -n -c "$1" >/dev/null 2>&1', str(tool), str(config)])
    end = time.monotonic() + 60
    while not (tmp_path / "sock").exists() and time.monotonic() < end:
        time.sleep(0.05)
    yield child
    inside = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
    child.terminate()  # its programs have process groups of their own: only it ends them
    child.wait(60)
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]


def told() -> tuple[Service, ...]:
    guest = read_guest(ask(LocalShell(), {"do": "look", "health": [], "deadline": 60}, 90.0, (sys.executable,)).stdout)
    assert isinstance(guest, Guest) and isinstance(guest.services, Known), guest
    return tuple(s for s in guest.services.value if s.manager == "supervisord")


@pytest.mark.xdist_group("supervisord")  # a guest's are all asked: of two tests each would find the other's
def test_supervisord_is_asked_with_its_own_configuration(supervisord):
    found = {s.name: s for s in told()}
    assert found["gprstay"].state == "RUNNING" and found["gprstay"].main_pid > 1
    assert found["gprfail"].state in ("FATAL", "EXITED", "BACKOFF", "STARTING")


@pytest.mark.xdist_group("supervisord")  # a guest's are all asked: of two tests each would find the other's
def test_a_program_stops_and_starts_and_both_are_done_once(supervisord):
    stop, begin = StopService("supervisord", "gprstay", 30.0), StartService("supervisord", "gprstay", 30.0)
    first, second = actuator.perform(stop), actuator.perform(stop)
    assert first.ok and first.changed and second.ok and not second.changed, (first, second)
    first, second = actuator.perform(begin), actuator.perform(begin)
    assert first.ok and first.changed and second.ok and not second.changed, (first, second)
    missing = actuator.perform(StopService("supervisord", "nobody", 10.0))
    assert not missing.ok and not missing.changed


@pytest.mark.parametrize(
    ("text", "state", "pid"),
    [
        ("sglang                           RUNNING   pid 4242, uptime 3 days, 0:10:00", "RUNNING", 4242),
        ("llm:vllm_00                      FATAL     Exited too quickly (process log may have details)", "FATAL", 0),
        ("a                                STOPPED   Nov 30 01:02 PM", "STOPPED", 0),
        ("b                                BACKOFF   Exited too quickly (process log may have details)", "BACKOFF", 0),
    ],
)
def test_lines_of_supervisorctl(text, state, pid):
    found = services._program(text)
    assert (found["name"], found["state"], found["pid"]) == (text.split()[0], state, pid)
    assert services._program("unix:///run/supervisor.sock no such file") is None


# managers by their formats

SYSTEMCTL = """#!/bin/sh
D="$(dirname "$0")"; echo "$XDG_RUNTIME_DIR $*" >>"$D/calls"
[ "$1" = --user ] && shift
case "$1" in
show) echo "Id=llm.service"; echo "LoadState=loaded"; echo "ActiveState=$(cat "$D/active")"
  echo "UnitFileState=$(cat "$D/enabled")"; echo MainPID=17;;
stop) echo inactive >"$D/active";;
start) echo active >"$D/active";;
disable) echo disabled >"$D/enabled";;
enable) echo enabled >"$D/enabled";;
esac
"""
PODMAN = """#!/bin/sh
D="$(dirname "$0")"; echo "$*" >>"$D/calls"
case "$1" in
inspect) echo '[{"Id":"ab12ab12ab12","Name":"box","State":{"Status":"'$(cat "$D/active")'","Pid":9},"RestartCount":0,'
  echo '"HostConfig":{"AutoRemove":true,"RestartPolicy":{"Name":"'$(cat "$D/policy")'","MaximumRetryCount":5}},'
  echo '"Config":{"Labels":{"PODMAN_SYSTEMD_UNIT":"box.service"}}}]';;
update) echo "${2#--restart=}" | cut -d: -f1 >"$D/policy";;
esac
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    for name, text in (("systemctl", SYSTEMCTL), ("podman", PODMAN)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    for name, text in (("active", "active"), ("enabled", "enabled"), ("policy", "on-failure")):
        (tmp_path / name).write_text(text + "\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


def test_a_users_unit_is_asked_in_the_session_of_its_user(tools):
    uid = os.geteuid()
    done = actuator.perform(StopService("systemd-user", "llm.service", 20.0, uid=uid))
    assert done.ok and done.changed
    assert f"/run/user/{uid} --user stop -- llm.service" in calls(tools)
    assert services.as_user(uid, ["x"]) == ["env", f"XDG_RUNTIME_DIR=/run/user/{uid}", "x"]


def test_another_users_unit_is_asked_as_that_user():
    argv = services.as_user(1, ["systemctl"])
    assert argv is not None and argv[:3] == ["runuser", "-u", "daemon"]
    assert services.as_user(4242424, ["systemctl"]) is None


def test_autostart_is_suspended_once_and_comes_back(tools):
    off = SuspendAutostart("systemd", "llm.service", "enabled")
    first, second = actuator.perform(off), actuator.perform(off)
    assert first.ok and first.changed and second.ok and not second.changed
    back = RestoreAutostart("systemd", "llm.service", "enabled")
    first, second = actuator.perform(back), actuator.perform(back)
    assert first.ok and first.changed and second.ok and not second.changed
    assert not any("mask" in call for call in calls(tools))


def test_what_was_changed_by_somebody_else_meanwhile_is_not_suspended(tools):
    (tools / "enabled").write_text("static\n")
    done = actuator.perform(SuspendAutostart("systemd", "llm.service", "enabled"))
    assert not done.ok and not done.changed


def test_a_containers_policy_is_put_back_as_it_was(tools):
    assert actuator.perform(SuspendAutostart("podman", "box", "on-failure:5")).ok
    assert (tools / "policy").read_text() == "no\n"
    assert actuator.perform(RestoreAutostart("podman", "box", "on-failure:5")).ok
    assert "update --restart=on-failure:5 box" in calls(tools)


def test_what_podman_says_of_a_container(tools):
    (found,) = services.containers_state("podman", ["box"], services.Limit(20.0))
    assert found["enabled"] == "auto-remove" and found["unit"] == "box.service" and found["restart"] == "on-failure:5"


def test_a_slice_is_read_by_its_control_group(tmp_path, monkeypatch):
    monkeypatch.setattr("recover.guest.wire.ROOT", str(tmp_path))
    inside = tmp_path / "sys/fs/cgroup/llm.slice/llm-serve.slice"
    for name in ("a.service", "b.service", "c.scope"):
        (inside / name).mkdir(parents=True)
    assert services.units_in("llm-serve.slice") == ["a.service", "b.service"]
    assert services.units_in("none.slice") == []


@pytest.mark.parametrize(
    ("cgroup", "unit", "box"),
    [
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service", (1000, "llm.service"), None),
        ("/user.slice/user-1000.slice/user@1000.service/llm.slice/llm-a.slice/x.service", (1000, "x.service"), None),
        ("/user.slice/user-7.slice/user@7.service/user.slice/libpod-" + "a" * 64 + ".scope", None, (7, "a" * 64)),
        ("/system.slice/llm.service", None, None),
    ],
)
def test_whose_manager_a_control_group_names(cgroup, unit, box):
    assert services.user_unit_of(cgroup) == unit
    assert services.user_container_of(cgroup) == box
