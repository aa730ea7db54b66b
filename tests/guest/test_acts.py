"""Acts on real processes: who was meant is hit, nobody else ever, and every wait ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from recover.edge.actuator.guest import GuestActuator
from recover.edge.probe import GuestProbe
from recover.edge.shell.local import LocalShell
from recover.guest import child, kill
from recover.model.act import (
    AwaitGone,
    ResetGpu,
    SetPersistence,
    ShutdownVm,
    Signal,
    StartService,
    StopService,
    SyncDisks,
    VmRef,
)
from recover.model.contact import Broken, Failure
from recover.model.process import ProcessId
from tests.guest.conftest import BOOT, DEAD_LEADER, PARENT, PLAIN, STUBBORN, ZOMBIE, member, pythons, start_of

DRIVERS_OWN = ("nvidia-smi-q.txt",)
actuator = GuestActuator(GuestProbe(LocalShell()))


def end(*members, signal="TERM", descendants=True):
    return Signal("g", tuple(members), signal, descendants)


@pytest.mark.parametrize("python", pythons())
def test_a_signal_goes_by_pidfd_with_every_python(python, start, agent):
    child = start(PLAIN)
    who = [[BOOT, child.pid, start_of(child.pid)]]
    done = agent("signal", python, signal="TERM", members=who).one("done")
    assert done.flag("ok") and done.flag("changed"), done.raw
    assert done.texts("log")[0].endswith("by pidfd")
    assert child.wait(30) == -15


def test_term_is_ignored_kill_is_not(start):
    child = start(STUBBORN)
    who = member(child.pid)
    assert actuator.perform(end(who)).ok
    waited = actuator.perform(AwaitGone("g", (who,), 1.0))
    assert not waited.ok and waited.clear and f"{child.pid}@" in waited.log[0]
    assert actuator.perform(end(who, signal="KILL")).ok
    assert actuator.perform(AwaitGone("g", (who,), 30.0)).ok
    assert child.wait(30) == -9


def test_another_start_time_is_another_process(start):
    child = start(PLAIN)
    wrong = ProcessId(BOOT, child.pid, start_of(child.pid) - 1)
    done = actuator.perform(end(wrong, signal="KILL"))
    assert done.ok and not done.changed
    assert child.poll() is None
    assert actuator.perform(AwaitGone("g", (wrong,), 5.0)).ok


def test_the_last_check_before_sending_stands_alone(start):
    child = start(PLAIN)
    for send in (kill.signal_one, kill._check_then_kill):
        with pytest.raises(kill.Gone):
            send(child.pid, start_of(child.pid) - 1, 9)
    assert child.poll() is None


def test_another_boot_is_another_machine(start):
    child = start(PLAIN)
    wrong = ProcessId("00000000-0000-0000-0000-000000000000", child.pid, start_of(child.pid))
    done = actuator.perform(end(wrong, signal="KILL"))
    assert done.ok and not done.changed and child.poll() is None


def test_descendants_are_found_at_the_moment_of_the_act(start):
    parent = start(PARENT)
    kids = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    kid = member(int(kids[0]))
    done = actuator.perform(end(member(parent.pid), signal="KILL"))
    assert done.ok and len(done.log) == 2
    parent.wait(30)
    assert actuator.perform(AwaitGone("g", (kid,), 30.0)).ok


def test_the_probe_its_ancestors_and_pid_1_are_never_signalled():
    me, init = member(os.getpid()), member(1)
    done = actuator.perform(end(me, init, signal="CONT", descendants=False))
    assert not done.ok and not done.changed
    assert len(done.log) == 2 and all("not signalled" in line for line in done.log)


def test_protected_pids_are_never_signalled(start):
    child = start(PLAIN)
    done = GuestActuator(GuestProbe(LocalShell()), protect=[child.pid]).perform(end(member(child.pid), signal="KILL"))
    assert not done.ok and child.poll() is None


def test_a_zombie_counts_as_gone_a_dead_leader_does_not(start):
    parent, leader = start(ZOMBIE), start(DEAD_LEADER)
    zombie = member(int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()[0]))
    assert actuator.perform(AwaitGone("g", (zombie,), 5.0)).ok
    who = member(leader.pid)
    waited = actuator.perform(AwaitGone("g", (who,), 1.5))
    assert not waited.ok and "still run" in waited.detail
    assert actuator.perform(end(who, signal="KILL")).ok
    assert actuator.perform(AwaitGone("g", (who,), 30.0)).ok


def test_a_hypervisor_act_is_refused():
    assert not actuator.perform(ShutdownVm(VmRef("pve", 1, ""), 1.0)).ok


def test_disks_are_synced():
    assert actuator.perform(SyncDisks()).ok


class Lost:
    """A connection that dies: `started` says whether the command may have run."""

    where = "lost"

    def __init__(self, started, stdout=b""):
        self.broken = Broken(Failure.DIED, "gone", stdout, b"", started)

    def run(self, argv, *, stdin=b"", deadline, cap=0):
        return self.broken


def test_an_unclear_end_is_said():
    assert not GuestActuator(GuestProbe(Lost(True))).perform(end(member(1))).clear
    assert GuestActuator(GuestProbe(Lost(False))).perform(end(member(1))).clear
    told = b'{"k":"done","ok":true,"clear":true,"changed":true,"detail":"x"}\n'
    assert GuestActuator(GuestProbe(Lost(True, told))).perform(end(member(1))).ok


# The marker


def test_the_marker_excludes_another_run_until_it_expires(agent, tmp_path):
    mine = {"run": "r1", "who": "kim", "host": "ops1", "rung": "end-workers", "root": str(tmp_path)}
    other = {**mine, "run": "r2"}
    assert agent("place_marker", ttl_s=600, **mine).one("done").flag("ok")
    assert agent("place_marker", ttl_s=600, **mine).one("done").flag("ok")
    refused = agent("place_marker", ttl_s=600, **other).one("done")
    assert not refused.flag("ok") and "kim" in refused.text("detail")
    agent("clear_marker", **other)
    assert agent("look", root=str(tmp_path)).one("marker").row("value").text("run") == "r1"
    assert agent("clear_marker", **mine).one("done").flag("changed")
    assert not any(p.is_file() for p in tmp_path.rglob("*"))
    assert agent("place_marker", ttl_s=-1, **mine).one("done").flag("ok")
    assert agent("place_marker", ttl_s=600, **other).one("done").flag("ok")


def test_a_marker_is_taken_over_only_from_the_run_that_is_known_to_be_over(agent, tmp_path):
    dead = {"run": "r1", "who": "kim", "host": "ops1", "rung": "reset-gpu", "root": str(tmp_path)}
    mine = {**dead, "run": "r2", "who": "lee"}
    assert agent("place_marker", ttl_s=600, **dead).one("done").flag("ok")
    assert not agent("place_marker", ttl_s=600, takes_over="r0", **mine).one("done").flag("ok")
    took = agent("place_marker", ttl_s=600, takes_over="r1", **mine).one("done")
    assert took.flag("ok") and "r1 of kim on ops1 (at reset-gpu), which is over" in took.text("detail")
    late = agent("place_marker", ttl_s=600, takes_over="r1", **{**dead, "run": "r3"}).one("done")
    assert not late.flag("ok") and "r2" in late.text("detail")  # another was faster: compare and swap


def test_a_marker_that_expired_is_explained(agent, tmp_path):
    dead = {"run": "r1", "who": "kim", "host": "ops1", "rung": "reset-gpu", "root": str(tmp_path)}
    assert agent("place_marker", ttl_s=-5, **dead).one("done").flag("ok")
    done = agent("place_marker", ttl_s=600, **{**dead, "run": "r2"}).one("done")
    assert done.flag("ok") and "expired" in done.text("detail") and "r1 of kim" in done.text("detail")


def test_a_marker_of_another_boot_holds_nobody_off_and_is_explained(agent, tmp_path):
    mine = {"run": "r2", "who": "lee", "host": "ops1", "rung": "reset-gpu", "root": str(tmp_path)}
    assert agent("place_marker", ttl_s=600, **{**mine, "run": "r1", "who": "kim"}).one("done").flag("ok")
    path = tmp_path / "run/gpu-recover/marker"
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": "00000000-0000-0000-0000-000000000000"}))
    assert agent("look", root=str(tmp_path)).one("marker").raw["value"] is None
    done = agent("place_marker", ttl_s=600, **mine).one("done")
    assert done.flag("ok") and "r1 of kim" in done.text("detail") and "another boot" in done.text("detail")


# GPUs


def test_persistence_is_set_once_and_read_back(machine):
    state = machine.state.snapshot()["gpus"][2]
    on = SetPersistence(state["uuid"], state["bus_id"], True)
    first, second = actuator.perform(on), actuator.perform(on)
    assert first.ok and first.changed and second.ok and not second.changed
    assert machine.state.get(2, "persistence") == 1
    wrong = actuator.perform(SetPersistence("GPU-other", state["bus_id"], False))
    assert not wrong.ok and machine.state.get(2, "persistence") == 1


class Alone(LocalShell):
    """A process name space of its own: who else on this machine holds a fake GPU must not be seen."""

    def run(self, argv, **how):
        return super().run(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *argv], **how)


alone = GuestActuator(GuestProbe(Alone()))


def reset(machine, slot, deadline=60.0):
    state = machine.state.snapshot()["gpus"][slot]
    return ResetGpu(((state["uuid"], state["bus_id"]),), deadline)


@pytest.mark.lab
def test_a_reset_frees_what_nothing_holds(machine):
    machine.state.set(1, leak_mib=80000)
    done = alone.perform(reset(machine, 1))
    assert done.ok, done
    assert machine.state.used_mib(1) == 0


@pytest.mark.lab
def test_a_reset_is_refused_while_somebody_holds_the_gpu(machine, start):
    hold = "f=open('/dev/nvidia1')\n" + PLAIN
    script = 'mount -t tmpfs none /dev && : >/dev/nvidia1 && : >/dev/null && exec "$0" -I -S -c "$1"'
    child = start("", argv=["unshare", "-m", "sh", "-c", script, sys.executable, hold])
    done = actuator.perform(reset(machine, 1))
    assert not done.ok and not done.changed and "in use" in done.detail
    assert any(line.startswith(f"{child.pid} ") and "nvidia1" in line for line in done.log)
    assert machine.state.get(1, "resets") == 0


def test_what_nobody_holds_and_is_in_use_names_the_client_that_nobody_sees(monkeypatch):
    from recover.guest import reload, reset

    monkeypatch.setattr(reset, "holders_of", lambda buses, limit: ([], True))
    monkeypatch.setattr(reset, "which", lambda name: name)
    said = child.Ended(255, "GPU 00000000:01:00.0: In use by another client\n", "", False)
    monkeypatch.setattr(reset, "run", lambda *_: said)
    ask = {"gpus": [["", "00000000:01:00.0"]], "deadline": 5.0}
    monkeypatch.setattr(reload, "modules", dict)
    assert "nvidia_drm" not in reset.reset_gpu(ask)["detail"]
    monkeypatch.setattr(reload, "modules", lambda: {"nvidia_drm": {}})
    assert "nvidia_drm" in reset.reset_gpu(ask)["detail"]


@pytest.mark.lab
def test_a_reset_with_persistence_on_is_in_use(machine):
    machine.state.set(1, leak_mib=80000, persistence=1)
    done = alone.perform(reset(machine, 1))
    assert not done.ok and done.detail.startswith("in-use") and done.clear
    assert machine.state.used_mib(1) == 80000


@pytest.mark.lab
@pytest.mark.parametrize(("mode", "word"), [(1, "not-supported"), (2, "failed")])
def test_a_reset_that_fails_says_how(machine, mode, word):
    machine.state.set(1, reset_mode=mode)
    done = alone.perform(reset(machine, 1))
    assert not done.ok and done.detail.startswith(word)


@pytest.mark.lab
def test_a_reset_that_hangs_is_left_and_unclear(machine):
    machine.state.set(1, reset_mode=3)
    done = alone.perform(reset(machine, 1, deadline=4.0))
    assert not done.ok and not done.clear


# Services, through managers that keep their state in a file

SYSTEMCTL = """#!/bin/sh
S="$(dirname "$0")/state"
case "$1" in
show) echo "Id=sglang.service"; echo "LoadState=loaded"; echo "ActiveState=$(cat $S)"
  echo MainPID=17; echo NRestarts=3;;
stop) [ -e "$S.stuck" ] || echo inactive >$S;;
start) echo active >$S;;
esac
"""
DOCKER = """#!/bin/sh
S="$(dirname "$0")/dstate"
case "$1" in
inspect) case " $* " in *" box "*) ;; *) false;; esac || { echo "[]"; echo "Error: no such container" >&2; exit 1; }
  echo '[{"Id":"ab12","Name":"/box","State":{"Status":"'$(cat $S)'","Pid":9},"RestartCount":2,'
  echo '"HostConfig":{"RestartPolicy":{"Name":"always"}}}]';;
stop) echo exited >$S;;
start) echo running >$S;;
esac
"""


@pytest.fixture
def managers(tmp_path, monkeypatch):
    for name, text in (("systemctl", SYSTEMCTL), ("docker", DOCKER)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "state").write_text("active\n")
    (tmp_path / "dstate").write_text("running\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize(("manager", "name"), [("systemd", "sglang.service"), ("docker", "box")])
def test_a_service_is_stopped_and_started_once(managers, manager, name):
    first, second = (actuator.perform(StopService(manager, name, 20.0)) for _ in range(2))
    assert first.ok and first.changed and second.ok and not second.changed
    started = actuator.perform(StartService(manager, name, 20.0))
    assert started.ok and started.changed


def test_a_service_that_stays_up_is_said(managers):
    (managers / "state.stuck").touch()
    done = actuator.perform(StopService("systemd", "sglang.service", 1.0))
    assert not done.ok and done.clear and "still active" in done.detail


@pytest.mark.parametrize(
    ("manager", "name"), [("docker", "nobox"), ("systemd", "--now"), ("systemd", "a b; reboot"), ("cron", "x")]
)
def test_a_name_that_means_nothing_is_refused(managers, manager, name):
    done = actuator.perform(StopService(manager, name, 5.0))
    assert not done.ok and not done.changed


def test_services_are_told_in_a_look(managers, agent):
    rows = agent("look", services=["sglang.service", "box"]).one("services").rows("list")
    assert [(r.text("manager"), r.text("name"), r.text("state"), r.number("restarts")) for r in rows] == [
        ("systemd", "sglang.service", "active", 3), ("docker", "box", "running", 2)]  # fmt: skip


# Evidence


def test_evidence_has_no_secrets_and_says_what_is_missing(start, agent):
    child = start(PLAIN, "--hf-token", "hush-hush")
    report = agent("dump", members=[[BOOT, child.pid, start_of(child.pid)]], deadline=40.0, nvml_hangs=True)
    names = {row.text("name") for row in report.all("piece")}
    assert {"meminfo.txt", "ps.txt", "stacks.txt"} <= names
    text = json.dumps([row.raw for row in report.all("piece")])
    assert str(child.pid) in text and "hush-hush" not in text
    assert report.one("done").flag("ok")


def test_no_valid_request_is_an_answer(agent):
    report = agent("no-such-act", sys.executable)
    assert not report.one("done").flag("ok")


def test_caches_that_meminfo_does_not_name(agent, tmp_path):
    arc, zram = tmp_path / "proc/spl/kstat/zfs", tmp_path / "sys/block/zram0"
    for folder in (arc, zram, tmp_path / "sys/block/vda"):
        folder.mkdir(parents=True)
    (arc / "arcstats").write_text("13 1 0x01\nname type data\nhits 4 77\nsize            4    1073741824\n")
    (zram / "mm_stat").write_text("  4096  74  1048576  0  1048576  0  0  0  0\n")
    assert agent("look", root=str(tmp_path)).one("ram").number("cache") == 1024 * 1024 + 1024


def lives(pid: int, began: int) -> bool:
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" and int(rest[18]) == began


@pytest.mark.parametrize(("script", "missing"), [("echo 570.148; exit 0", ()), ("exec sleep 600", DRIVERS_OWN)])
def test_the_drivers_own_view_is_asked_beside_the_rest_and_a_hang_costs_only_that(
    start, agent, tmp_path, monkeypatch, script, missing
):
    tool = tmp_path / "nvidia-smi"
    asked = tmp_path / "asked"
    tool.write_text(f'#!/bin/sh\necho $$ $(cut -d" " -f22 /proc/$$/stat) >>"{asked}"\n{script}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    report = agent("dump", deadline=6.0)
    pieces = {row.text("name"): row.whole("text") for row in report.all("piece")}
    assert "meminfo.txt" in pieces and "ps.txt" in pieces
    if missing:
        assert not set(missing) & set(pieces)
        assert all(any(gap.startswith(name) for gap in report.gaps()) for name in missing)
    else:
        assert "570.148" in pieces["nvidia-smi-q.txt"]
    assert report.one("done").flag("ok") and report.one("end") is not None
    # by pid and start: another test may have the same question open
    askers = [line.split() for line in asked.read_text().splitlines()]
    assert askers, "the driver's tool was never asked"
    left = [pid for pid, began in askers if lives(int(pid), int(began))]
    assert not left, "the question outlived the one who asked"
