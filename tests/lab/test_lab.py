"""The lab keeps its own promises: it is held to them without the tool."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import judge, scenario
from tests.lab.files import SOURCE
from tests.lab.guestproc import cgroup_pids
from tests.lab.lab import Lab
from tests.lab.pve.control import Control

pytestmark = [pytest.mark.lab, pytest.mark.timeout(180)]

# The module travels with the command: the guest has its own /tmp, where this checkout may lie.
PYNVML = """python3 - <<'X'
import base64, sys, types, zlib
n = sys.modules["pynvml"] = types.ModuleType("pynvml")
exec(zlib.decompress(base64.b64decode("%s")).decode(), n.__dict__)
n.nvmlInit()
handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print([n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2).used >> 20 for h in handles])
print(sorted(p.pid for h in handles for p in n.nvmlDeviceGetComputeRunningProcesses(h)))
X"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    labs: list[Lab] = []

    def start(name: str, **more: Any) -> Lab:
        labs.append(Lab.up(name, tmp_path / f"lab{len(labs)}", **more))
        return labs[-1]

    yield start
    for lab in labs:
        lab.down()


def until(check: Callable[[], Any], limit_s: float = 90.0) -> Any:
    end = time.monotonic() + limit_s
    while not (got := check()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
    return got


def used(lab: Lab) -> list[int]:
    return [gpu["used_mib"] for gpu in lab.state()["gpus"]]


def kill_all(lab: Lab, group: str) -> None:
    pids = [str(p["pid"]) for p in lab.state()["processes"] if p["group"] == group]
    lab.ssh(f"kill -9 {' '.join(pids)}")


def api(lab: Lab, method: str, path: str, limit_s: float = 90.0) -> Any:
    """One call by curl, with the token and the CA that config.toml names; a task is waited for."""
    server = Control(lab.folder / "pve").server()
    secret = Path(server["secret_file"]).read_text().strip()
    header = f"Authorization: PVEAPIToken={server['token_id']}={secret}"
    done = subprocess.run(
        [
            "curl",
            "-sS",
            "--noproxy",
            "*",
            "--cacert",
            server["ca_file"],
            "-X",
            method,
            "-H",
            header,
            f"{server['url']}/api2/json{path}",
        ],
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=True,
    )
    data = json.loads(done.stdout)["data"]
    if method != "POST":
        return data
    task = until(
        lambda: (got := api(lab, "GET", f"/nodes/pve1/tasks/{data}/status"))["status"] == "stopped" and got, limit_s
    )
    return task["exitstatus"]


# ---------------------------------------------------------------------------------------------- up and down


@pytest.mark.parametrize("name", ["healthy-serving", "docker-owned", "guest-mute"])
def test_a_lab_comes_up_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    lab = Lab.up(name, tmp_path / "lab")
    try:
        state = lab.state()
        cgroup = Path(lab.data()["cgroup"])
        assert state["trouble"] == []
        assert not any("error" in event for event in state["events"])
        assert "error" not in state["pve"]
        assert judge.problems(scenario.expected(name), state, state) is not None
        assert lab.config.exists()
        running = cgroup_pids(cgroup)
    finally:
        lab.down()
    assert not lab.folder.exists()
    assert not cgroup.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)


def test_down_after_the_daemon_crashed(up: Callable[..., Lab]) -> None:
    lab = up("ranks-orphaned")
    data = lab.data()
    server = Control(lab.folder / "pve").server()["pid"]
    os.kill(data["keeper"]["pid"], signal.SIGKILL)
    lab.down()
    assert not lab.folder.exists()
    assert not Path(data["cgroup"]).exists()
    assert not _runs(server)


def _runs(pid: int) -> bool:
    try:
        return b"tests.lab.pve.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_down_keeps_what_the_tool_wrote(up: Callable[..., Lab]) -> None:
    lab = up("gpu-memory-reset")
    (lab.state_dir / "journal.jsonl").write_text("{}\n")
    lab.down()
    assert [path.name for path in lab.folder.iterdir()] == ["state"]


def test_idle_has_nothing_on_it_until_it_is_activated(up: Callable[..., Lab]) -> None:
    lab = up("incident", idle=True)
    state = lab.state()
    assert used(lab) == [0] * 8
    assert state["ram"]["available_gib"] > 440
    assert [p["group"] for p in state["processes"] if p["group"]] == []
    lab.activate()
    state = lab.state()
    assert used(lab) == [91000] * 8
    assert state["ram"]["available_gib"] < 12


def test_command_line(tmp_path: Path) -> None:
    folder = str(tmp_path / "lab")

    def lab(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab", *words],
            cwd=SOURCE,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return done.stdout

    assert "incident" in lab("list")
    try:
        assert lab("up", "loading", "--dir", folder).strip() == f"{folder}/config.toml"
        assert json.loads(lab("state", "--dir", folder))["scenario"] == "loading"
        assert lab("ssh", "--dir", folder, "hostname").strip() == "node-174"
    finally:
        lab("down", "--dir", folder)
    assert not Path(folder).exists()


# ---------------------------------------------------------------------------------------------- what the guest shows


def test_ssh_takes_only_the_known_key_and_the_guest_is_its_own_machine(up: Callable[..., Lab]) -> None:
    lab = up("healthy-serving")
    done = lab.ssh(
        "hostname; cat /proc/sys/kernel/random/boot_id /sys/class/dmi/id/product_uuid; "
        "nproc; command -v python3; ls /sys/bus/pci/devices | wc -l"
    )
    host, boot, uuid, _, python, gpus = done.stdout.split()
    state = lab.state()
    assert (host, boot, python, gpus) == ("node-174", state["boot_id"], "/run/lab/bin/python3", "8")
    assert f"uuid={uuid}" in api(lab, "GET", "/nodes/pve1/qemu/174/config")["smbios1"]
    hosts = lab.folder / "known_hosts"
    hosts.write_text(hosts.read_text().replace("AAAAC3", "AAAAC4"))
    assert lab.ssh("true").returncode == 255


def test_real_pynvml_finds_the_fake_driver(up: Callable[..., Lab]) -> None:
    import pynvml

    lab = up("healthy-serving")
    source = base64.b64encode(zlib.compress(Path(pynvml.__file__).read_bytes(), 9)).decode()
    done = lab.ssh(PYNVML % source)
    memory, pids = done.stdout.splitlines()
    assert json.loads(memory) == used(lab)
    assert json.loads(pids) == sorted(p["pid"] for p in lab.state()["processes"] if p["kind"] == "rank")


def test_uptime_start_times_and_kernel_log_agree(up: Callable[..., Lab]) -> None:
    lab = up("nvml-hang")
    uptime, start, kmsg = lab.ssh(
        "cut -d' ' -f1 /proc/uptime; cut -d' ' -f22 /proc/self/stat; grep -c 'Xid.*: 119' /dev/kmsg"
    ).stdout.split()
    assert abs(float(uptime) - int(start) / os.sysconf("SC_CLK_TCK")) < 5
    assert float(uptime) > 777600
    assert kmsg == "1"


def test_status_shows_what_was_declared_so_that_only_a_leak_is_unowned(up: Callable[..., Lab]) -> None:
    lab = up("incident")
    show = (
        "cat /proc/[0-9]*/status /proc/[0-9]*/task/*/status | grep -c 'RssAnon:.*56623104 kB'; "
        "grep -E 'AnonPages|MemAvailable' /proc/meminfo"
    )
    until(lambda: lab.ssh(show).stdout.split()[0] == "8")  # five living leaders, three threads of dead ones
    kill_all(lab, "by-hand")
    until(lambda: used(lab) == [3200] * 8)
    words = until(lambda: (got := lab.ssh(show).stdout.split())[0] == "0" and got)
    assert int(words[2]) < 134e6
    assert int(words[5]) < 2e6


def test_a_defunct_leader_shows_nothing_and_holds_everything(up: Callable[..., Lab]) -> None:
    lab = up("defunct-leader")
    rank = next(p for p in lab.state()["processes"] if p["kind"] == "rank")
    assert (rank["state"], rank["ppid"], rank["alive"]) == ("Z", 1, True)
    assert lab.ssh(f"ls /proc/{rank['pid']}/fd | wc -l").stdout.strip() == "0"
    assert used(lab)[0] == 81920
    lab.ssh(f"kill -9 {rank['pid']}")
    until(lambda: used(lab)[0] == 0)


def test_titles_parents_and_holders(up: Callable[..., Lab]) -> None:
    lab = up("rank-defunct")
    processes = lab.state()["processes"]
    main = next(p for p in processes if p["kind"] == "main")
    ranks = [p for p in processes if p["title"].startswith("sglang::scheduler_TP")]
    assert main["comm"] == "python"
    assert "sglang.launch_server" in main["title"]
    assert len(ranks) == 7
    assert {p["ppid"] for p in ranks} == {main["pid"]}
    assert main["cgroup"] == "/system.slice/sglang.service"
    zombie = [p for p in processes if p["state"] == "Z"]
    assert [(p["comm"], p["threads"], p["alive"]) for p in zombie] == [("sglang::schedul", 1, False)]
    assert f"/dev/nvidia{ranks[0]['rank']}" in lab.ssh(f"ls -l /proc/{ranks[0]['pid']}/fd").stdout


def test_hung_server_times_out_and_its_counters_stand_still(up: Callable[..., Lab]) -> None:
    lab = up("supervisor-restarts")
    url = f"http://{lab.data()['address']}:30000"
    ask = f"curl -s -m 1 -o /dev/null -w '%{{http_code}}\\n' {url}/health; "
    ask += f"for i in 1 2; do curl -s {url}/metrics | grep -v '#' | grep -E 'generation|running'; sleep 0.5; done"
    code, *rows = lab.ssh(ask).stdout.splitlines()
    assert code == "000"
    assert rows[:2] == rows[2:]
    assert "num_running_reqs" in rows[1]


def test_healthy_server_counts_on(up: Callable[..., Lab]) -> None:
    lab = up("healthy-serving")
    url = f"http://{lab.data()['address']}:30000"
    ask = f"curl -s -o /dev/null -w '%{{http_code}}\\n' {url}/health; "
    ask += f"for i in 1 2; do curl -s {url}/metrics | grep '^sglang:generation'; sleep 0.5; done"
    code, first, second = lab.ssh(ask).stdout.splitlines()
    assert code == "200"
    assert first != second


def test_loading_grows(up: Callable[..., Lab]) -> None:
    lab = up("loading")
    first = lab.state()
    until(lambda: used(lab)[0] > first["gpus"][0]["used_mib"])
    assert lab.state()["ram"]["available_gib"] < first["ram"]["available_gib"]


# ---------------------------------------------------------------------------------------------- what frees memory


def test_killing_the_workers_frees_what_they_held(up: Callable[..., Lab]) -> None:
    lab = up("sigterm-ignored")
    pids = [p["pid"] for p in lab.state()["processes"] if p["group"] == "by-hand"]
    lab.ssh(f"kill {' '.join(map(str, pids))}")
    until(lambda: len(lab.state()["signals"]) == len(pids))
    assert used(lab) == [88000] * 8
    kill_all(lab, "by-hand")
    until(lambda: used(lab) == [0] * 8)
    state = lab.state()
    assert state["ram"]["available_gib"] > 440
    assert state["units"]["nvidia-dcgm.service"]["state"] == "active"
    assert (
        judge.problems(
            {"lab": {"bystanders_untouched": True, "gone_groups": ["by-hand"], "signals_seen": ["SIGTERM"]}},
            state,
            state,
        )
        == []
    )


def test_slow_release_falls_without_an_owner(up: Callable[..., Lab]) -> None:
    lab = up("slow-release-manual-kill")
    first = lab.state()
    assert first["ram"]["unowned_gib"] > 100
    assert first["gpus"][0]["rows"] == []
    until(lambda: used(lab) == [0] * 8)
    assert lab.state()["ram"]["available_gib"] > 440


def test_gpu_reset_needs_monitor_and_persistence_off_and_clears_only_its_gpu(up: Callable[..., Lab]) -> None:
    lab = up("gpu-memory-reset")
    reset = "nvidia-smi --gpu-reset -i 2"
    assert lab.ssh(f"systemctl stop nvidia-dcgm; {reset}").returncode == 255
    assert lab.ssh(f"systemctl start nvidia-dcgm; nvidia-smi -pm 0 -i 2; {reset}").returncode == 255
    assert lab.ssh(f"systemctl stop nvidia-dcgm; {reset} && nvidia-smi -pm 1 -i 2").returncode == 0
    before = lab.state()
    found = judge.problems({"lab": {"bystanders_untouched": True}}, before, before)
    assert found == ["nvidia-dcgm.service is inactive"]
    assert lab.ssh("systemctl start nvidia-dcgm").returncode == 0
    assert used(lab) == [0, 0, 0, 0, 0, 81920, 0, 0]
    assert {gpu["persistence"] for gpu in lab.state()["gpus"]} == {1}


def test_power_cycle_by_the_api_changes_the_boot_id_and_frees_the_incident(up: Callable[..., Lab]) -> None:
    lab = up("incident")
    kill_all(lab, "by-hand")
    until(lambda: used(lab) == [3200] * 8)
    before = lab.state()
    assert before["ram"]["unowned_gib"] == 318
    assert api(lab, "POST", "/nodes/pve1/qemu/174/status/reset") == "OK"
    assert lab.state()["ram"]["unowned_gib"] == 318
    assert api(lab, "POST", "/nodes/pve1/qemu/174/status/stop") == "OK"
    assert lab.state()["vm"]["status"] == "stopped"
    assert lab.ssh("true").returncode == 255
    assert api(lab, "POST", "/nodes/pve1/qemu/174/status/start") == "OK"
    after = lab.state()
    assert judge.problems(scenario.expected("incident"), before, after) == []
    assert lab.ssh("cat /proc/sys/kernel/random/boot_id").stdout.strip() == after["boot_id"] not in before["boot_ids"]


def test_reboot_from_inside(up: Callable[..., Lab]) -> None:
    lab = up("gpu-memory-power-cycle")
    lab.ssh("systemctl reboot")
    until(lambda: lab.state()["vm"]["guest_reboots"] == 1 and lab.state()["vm"]["status"] == "running")
    state = lab.state()
    assert len(state["boot_ids"]) == 2
    assert used(lab)[2] == 81920
    assert state["pve"]["vms"]["174"]["status"] == "running"


def test_shutdown_is_obeyed_or_not(up: Callable[..., Lab]) -> None:
    deaf, well = up("start-got-timeout"), up("gpu-memory-reset")
    assert deaf.power("shutdown")["obeyed"] is False
    assert deaf.state()["vm"]["status"] == "running"
    assert api(well, "POST", "/nodes/pve1/qemu/174/status/shutdown") == "OK"
    assert well.state()["vm"]["status"] == well.state()["pve"]["vms"]["174"]["status"] == "stopped"


# ---------------------------------------------------------------------------------------------- managers


def test_systemd_brings_it_back_unless_it_is_stopped(up: Callable[..., Lab]) -> None:
    lab = up("supervisor-restarts")
    kill_all(lab, "sglang.service")
    until(lambda: [one["mode"] for one in lab.state()["launches"]] == ["hung", "healthy"])
    lab.wait_settled()
    shown = lab.ssh(
        "systemctl show -p Id,ActiveState,SubState,UnitFileState,Restart,NRestarts sglang; "
        "systemctl stop sglang.service; systemctl is-active sglang"
    ).stdout.split()
    assert shown == [
        "Id=sglang.service",
        "ActiveState=active",
        "SubState=running",
        "UnitFileState=enabled",
        "Restart=always",
        "NRestarts=1",
        "inactive",
    ]
    until(lambda: used(lab) == [0] * 8)
    time.sleep(1.0)
    assert used(lab) == [0] * 8
    assert lab.ssh("systemctl start sglang.service; systemctl is-active sglang").stdout.strip() == "active"
    assert lab.ssh("systemctl stop nosuch.service").returncode == 5


def test_a_unit_that_ignores_sigterm_is_killed_and_failed(up: Callable[..., Lab]) -> None:
    lab = up("crash-loop")
    assert lab.ssh("systemctl stop sglang; systemctl is-active sglang").stdout.strip() == "failed"
    assert judge.workers(lab.state(), "sglang.service") == set()


def test_docker_owns_its_server(up: Callable[..., Lab]) -> None:
    lab = up("docker-owned")
    row = json.loads(lab.ssh("docker inspect sglang").stdout)[0]
    main = next(p for p in lab.state()["processes"] if p["kind"] == "main")
    assert row["State"]["Pid"] == main["pid"]
    assert row["HostConfig"]["RestartPolicy"]["Name"] == "always"
    assert main["cgroup"] == f"/system.slice/docker-{row['Id']}.scope"
    kill_all(lab, "sglang")
    until(lambda: len(lab.state()["launches"]) == 2)
    lab.wait_settled()
    stop = lab.ssh(
        "docker update --restart no sglang; docker stop -t 3 $(docker ps -q); docker ps -a --format '{{json .}}'"
    ).stdout.splitlines()
    assert json.loads(stop[-1])["State"] == "exited"
    assert judge.workers(lab.state(), "sglang") == set()


def test_the_shell_loop_restarts_until_the_loop_is_gone(up: Callable[..., Lab]) -> None:
    lab = up("supervisor-shell")
    kill_all(lab, "loop")
    until(lambda: len(lab.state()["launches"]) == 2)
    loop = next(p for p in lab.state()["processes"] if p["title"].startswith("/bin/sh -c while true"))
    lab.ssh(f"kill -9 {loop['pid']}")
    kill_all(lab, "loop")
    until(lambda: used(lab) == [0] * 8)


# ---------------------------------------------------------------------------------------------- what happens by itself


def test_mute_guest_accepts_and_says_nothing(up: Callable[..., Lab]) -> None:
    import socket

    lab = up("guest-mute")
    with socket.create_connection((lab.data()["address"], lab.data()["ssh_port"]), timeout=5) as sock:
        sock.settimeout(1.5)
        with pytest.raises(TimeoutError):
            sock.recv(1)
    assert lab.state()["pve"]["vms"]["174"]["agent"] == "hangs"
    assert lab.power("shutdown")["obeyed"] is False
    lab.power("stop")
    lab.power("start")
    until(lambda: lab.ssh("true").returncode == 0)
    until(lambda: lab.state()["pve"]["vms"]["174"]["agent"] == "answers")


def test_ssh_dies_at_the_first_signal_and_comes_back(up: Callable[..., Lab]) -> None:
    lab = up("ssh-dies-midway")
    pid = next(p["pid"] for p in lab.state()["processes"] if p["kind"] == "rank")
    assert lab.ssh(f"kill {pid}; sleep 10").returncode == 255
    assert lab.ssh("true").returncode == 255
    until(lambda: lab.ssh("true").returncode == 0)


def test_a_colleague_stops_the_vm(up: Callable[..., Lab]) -> None:
    lab = up("vm-stopped-by-colleague")
    state = lab.state()
    assert state["vm"]["status"] == state["pve"]["vms"]["174"]["status"] == "stopped"
    assert [(task["type"], task["user"]) for task in state["pve"]["tasks"]] == [("qmstop", "bob@pve")]


def test_bystanders_write_down_what_reaches_them(up: Callable[..., Lab]) -> None:
    lab = up("hostile-titles")
    before = lab.state()
    pid = next(b["pid"] for b in before["bystanders"] if b["name"] == "editor")
    lab.ssh(f"kill {pid}; kill -9 {next(b['pid'] for b in before['bystanders'] if b['name'] == 'login-shell')}")
    found = until(lambda: judge.problems({"lab": {"bystanders_untouched": True}}, before, lab.state()))
    until(lambda: len(judge.problems({"lab": {"bystanders_untouched": True}}, before, lab.state())) == 2)
    assert found


def test_scenarios_are_complete_and_unknown_keys_are_refused() -> None:
    for name in scenario.names():
        expected = scenario.expected(name)
        assert set(expected) >= {"end", "exit_code", "lab"}, name
        assert not set(expected["lab"]) - set(judge.CHECKS), name
        assert (scenario.HERE / name / "README.md").read_text().startswith("# "), name
        scenario.load(name)
    with pytest.raises(scenario.ScenarioError, match="no scenario"):
        scenario.load("no-such")
