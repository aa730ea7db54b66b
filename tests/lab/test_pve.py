"""The lab's Proxmox API is held to what the real one does, through real proxmoxer over verified HTTPS."""

from __future__ import annotations

import contextlib
import hashlib
import json
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from proxmoxer import ProxmoxAPI
from proxmoxer.core import ResourceException

from tests.lab.pve.control import Control, ControlError
from tests.lab.pve.server import PveServer

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
GPU = {"bdf": "0000:01:00.0", "iommugroup": 14}
AUDIO = {"bdf": "0000:01:00.1", "iommugroup": 14, "class": "0403", "device": "22e8"}
SWITCH = {"bdf": "0000:05:00.0", "class": "0680", "device": "22a3", "iommugroup": 30}


class Hooks:
    """Records what the API did to the machine; `gate` holds a call until the test lets it through."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.obeys: bool | None = True
        self.fails: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()

    def _call(self, name: str, vmid: int) -> None:
        assert self.gate.wait(30)
        self.calls.append((name, vmid))
        if name in self.fails:
            raise RuntimeError("no machine")

    def start(self, vmid: int) -> None:
        self._call("start", vmid)

    def stop(self, vmid: int) -> None:
        self._call("stop", vmid)

    def reset(self, vmid: int) -> None:
        self._call("reset", vmid)

    def shutdown(self, vmid: int) -> bool | None:
        self._call("shutdown", vmid)
        return self.obeys


def configuration(**extra: Any) -> dict[str, Any]:
    return {
        "time_scale": 0.01,
        "nodes": [
            {"name": "pve1", "memory_mib": 1024 << 10, "used_mib": 24 << 10, "pci": [AUDIO, SWITCH]},
            {"name": "pve2", "memory_mib": 256 << 10, "used_mib": 8 << 10},
        ],
        "vms": [
            {
                "vmid": 174,
                "name": "node-174",
                "memory_mib": 449 << 10,
                "hostpci": [GPU],
                "tags": "gpu;prod",
                "smbios_uuid": "11111111-2222-4333-8444-555555555555",
            },
            {"vmid": 101, "name": "web", "memory_mib": 16 << 10, "agent": "none"},
            {"vmid": 175, "name": "node-175", "status": "stopped", "hostpci": ["0000:01:00,pcie=1"]},
            {"vmid": 180, "name": "mapped", "status": "stopped", "hostpci": ["mapping=gpu0,pcie=1"]},
            {"vmid": 190, "name": "ha", "ha": "started"},
        ],
        "mappings": [{"id": "gpu0", "map": ["id=10de:2bb5,iommugroup=14,node=pve1,path=0000:01:00.0"]}],
        **extra,
    }


class Bench:
    """A server, a client with the token, and short words for what the tests do all the time."""

    def __init__(self, server: PveServer, hooks: Hooks) -> None:
        self.server, self.hooks = server, hooks
        self.clients: list[Any] = []
        self.api = self.client()
        self.node = self.api.nodes("pve1")

    def client(self, secret: str | None = None) -> Any:
        user, _, name = self.server.token_id.partition("!")
        self.clients.append(
            ProxmoxAPI(
                self.server.host,
                port=self.server.port,
                user=user,
                token_name=name,
                timeout=40,
                token_value=secret or self.server.secret,
                verify_ssl=self.server.ca_file,
            )
        )
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client._store["session"].close()

    def vm(self, vmid: int = 174) -> Any:
        return self.node.qemu(vmid)

    def current(self, vmid: int = 174) -> dict[str, Any]:
        found: dict[str, Any] = self.vm(vmid).status.current.get()
        return found

    def post(self, action: str, vmid: int = 174, **values: Any) -> str:
        upid = self.vm(vmid).status(action).post(**values)
        assert isinstance(upid, str) and upid.count(":") == 8, upid
        return upid

    def end(self, upid: str) -> str:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            status = self.node.tasks(upid).status.get()
            if status["status"] == "stopped":
                return str(status["exitstatus"])
            time.sleep(0.02)
        raise AssertionError(f"{upid} did not end")

    def power(self, action: str, vmid: int = 174, **values: Any) -> tuple[str, list[str]]:
        """(exit status, log) of one power task."""
        upid = self.post(action, vmid, **values)
        return self.end(upid), self.log(upid)

    def log(self, upid: str) -> list[str]:
        return [line["t"] for line in self.node.tasks(upid).log.get(limit=0)]

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not true():
            assert time.monotonic() < deadline, "did not happen"
            time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    with contextlib.ExitStack() as stack:

        def make(**extra: Any) -> Bench:
            hooks = Hooks()
            made = Bench(stack.enter_context(PveServer(configuration(**extra), tmp_path, hooks)), hooks)
            stack.callback(made.close)
            return made

        yield make


def refused(status: int, text: str, call: Callable[..., Any], *args: Any, **values: Any) -> None:
    with pytest.raises(ResourceException) as caught:
        call(*args, **values)
    assert (caught.value.status_code, caught.value.content) == (status, text)


# --- connection and token


@pytest.mark.parametrize(("variant", "says"), [("expired", "expired"), ("wrong-host", "127.0.0.1")])
def test_a_bad_certificate_is_bad(bench: Callable[..., Bench], variant: str, says: str) -> None:
    with pytest.raises(requests.exceptions.SSLError, match=says):
        bench(certificate=variant).api.version.get()


def test_the_certificate_has_its_fingerprint_and_its_own_ca(bench: Callable[..., Bench]) -> None:
    server = bench().server
    der = ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((server.host, server.port)))
    assert hashlib.sha256(der).hexdigest().upper() == server.fingerprint.replace(":", "")
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(server.url + "/api2/json/version", timeout=10)


def test_a_wrong_token_is_401_late_and_without_a_body(bench: Callable[..., Bench]) -> None:
    b = bench(time_scale=0.1)
    began = time.monotonic()
    refused(401, "invalid token value!", b.client("wrong").version.get)
    assert time.monotonic() - began >= 0.3
    answer = requests.get(b.server.url + "/api2/json/version", verify=b.server.ca_file, timeout=10)
    assert (answer.status_code, answer.reason, answer.content) == (401, "No ticket", b"")
    b.server.call("token", revoke=True)
    refused(401, "invalid token value!", b.api.version.get)


def test_a_missing_privilege_is_named(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.call("deny", priv="VM.PowerMgmt", path="/vms/174")
    refused(403, "Permission check failed (/vms/174, VM.PowerMgmt)", b.post, "stop")
    b.server.call("deny", priv="Sys.Audit")
    refused(403, "Permission check failed (/nodes/pve1, Sys.Audit)", b.node.status.get)
    refused(403, "Permission check failed (/, Sys.Audit|Sys.Modify)", b.node.hardware.pci.get)
    refused(403, "Permission check failed (/, Sys.Audit)", b.api.cluster.status.get)
    assert b.hooks.calls == []
    b.server.call("allow", priv="VM.PowerMgmt", path="/vms/174")
    assert b.power("stop")[0] == "OK"


def test_a_token_needs_what_its_user_has_too_and_sees_only_what_it_may(bench: Callable[..., Bench]) -> None:
    who = "gpu-recover@pve!oncall"
    grants = [
        {"who": who, "path": "/vms", "privs": ["VM.Audit", "VM.PowerMgmt"]},
        {"who": "gpu-recover@pve", "path": "/vms/174", "privs": ["VM.Audit"]},
        {"who": who, "path": "/vms/101", "privs": ["VM.Console"]},
    ]
    b = bench(grants=grants)
    refused(403, "Permission check failed (/vms/174, VM.PowerMgmt)", b.post, "stop")
    assert [row["vmid"] for row in b.api.cluster.resources.get(type="vm")] == [174]
    assert b.api.access.permissions.get(path="/vms/174") == {"/vms/174": {"VM.Audit": 1}}


def test_roots_token_is_not_root(bench: Callable[..., Bench]) -> None:
    b = bench(token={"id": "root@pam!x", "privsep": False}, grants=[])
    with pytest.raises(ResourceException) as caught:
        b.post("stop", skiplock=1)
    assert caught.value.errors == {"skiplock": "Only root may use this option."}
    refused(500, "only root can set 'lock' config", b.vm().config.put, delete="lock")
    refused(500, "only root can set 'hostpci1' config for non-mapped devices", b.vm().config.put, hostpci1="01:00.1")
    assert b.power("stop")[0] == "OK"


# --- what is read


def test_status_memory_and_devices_follow_the_lab(bench: Callable[..., Bench]) -> None:
    b = bench()
    now = b.current()
    assert (now["status"], now["qmpstatus"], now["tags"]) == ("running", "running", "gpu;prod")
    assert now["ha"] == {"managed": 0}
    assert now["uptime"] >= 86400 and now["pid"] > 0 and "lock" not in now
    before = b.node.status.get()["memory"]
    assert before["total"] == 1024 * GIB
    assert b.power("stop")[0] == "OK"
    assert b.node.status.get()["memory"]["used"] == before["used"] - 449 * GIB
    assert "pid" not in b.current()
    config = b.vm().config.get(current=1)
    assert config["hostpci0"] == "0000:01:00.0,pcie=1" and config["smbios1"].endswith("555555555555")


def test_pci_list_hides_bridges_and_what_fell_off_the_bus(bench: Callable[..., Bench]) -> None:
    b = bench()

    def ids(**values: str) -> list[str]:
        return [row["id"] for row in b.node.hardware.pci.get(**values)]

    assert ids() == ["0000:01:00.0", "0000:01:00.1"]
    assert ids(**{"pci-class-blacklist": ""}) == ["0000:01:00.0", "0000:01:00.1", "0000:05:00.0"]
    assert b.node.hardware.pci.get()[0]["iommugroup"] == 14
    b.server.call("device", node="pve1", bdf="0000:01:00.0", set={"gone": True})
    assert ids() == ["0000:01:00.1"]
    assert b.node.hardware.pci("0000:01:00.1").mdev.get() == []


def test_mappings_are_listed(bench: Callable[..., Bench]) -> None:
    row = bench().api.cluster.mapping.pci.get()[0]
    assert (row["id"], row["map"]) == ("gpu0", ["id=10de:2bb5,iommugroup=14,node=pve1,path=0000:01:00.0"])


def test_config_merges_pending_unless_current(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.set_vm(174, pending={"cores": "8", "bios": None})
    assert b.vm().config.get()["cores"] == "8" and "bios" not in b.vm().config.get()
    assert b.vm().config.get(current=1)["cores"] == "4"
    rows = {row["key"]: row for row in b.vm().pending.get()}
    assert (rows["cores"]["pending"], rows["bios"]["delete"]) == ("8", 1)
    assert b.power("stop")[0] == "OK"
    assert b.vm().config.get(current=1)["cores"] == "8"


def test_a_vm_elsewhere_and_a_node_unknown_or_away(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.set_vm(174, node="pve2")
    refused(500, "Configuration file 'nodes/pve1/qemu-server/174.conf' does not exist", b.current)
    assert b.api.nodes("pve2").qemu(174).status.current.get()["status"] == "running"
    with pytest.raises(ResourceException, match="hostname lookup 'pve9' failed"):
        b.api.nodes("pve9").qemu(174).status.current.get()
    b.server.call("node", name="pve2", set={"online": False})
    refused(595, "No route to host", b.api.nodes("pve2").qemu(174).status.current.get)
    where = {row["vmid"]: row["status"] for row in b.api.cluster.resources.get(type="vm")}
    assert where[174] == "unknown"


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ("none", "No QEMU guest agent configured"),
        ("hangs", "QEMU guest agent is not running"),
        ("not-running", "QEMU guest agent is not running"),
    ],
)
def test_a_guest_agent_that_does_not_answer(bench: Callable[..., Bench], mode: str, text: str) -> None:
    b = bench()
    b.server.set_vm(174, agent=mode)
    refused(500, text, b.vm().agent.ping.post)
    refused(500, "VM 175 is not running", b.vm(175).agent.ping.post)


def test_a_guest_agent_that_stalls_pings_and_no_more(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert b.vm().agent.ping.post() == {"result": {}}
    b.server.set_vm(174, agent="stalls")
    assert b.vm().agent.ping.post() == {"result": {}}
    refused(500, "VM 174 qmp command 'guest-get-host-name' failed - got timeout", b.vm().agent("get-host-name").get)


def test_the_monitor_lets_info_through_and_nothing_strong(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert 'host = "0000:01:00.0"' in b.vm().monitor.post(command="info qtree")
    refused(500, "root-only command 'device_del'", b.vm().monitor.post, command="device_del hostpci0")
    refused(403, "Permission check failed (/, Sys.Modify)", b.vm().monitor.post, command="system_reset")


@pytest.mark.parametrize("qmp", ["internal-error", "io-error", "paused", "prelaunch"])
def test_qmpstatus_is_told(bench: Callable[..., Bench], qmp: str) -> None:
    b = bench()
    b.server.set_vm(174, qmpstatus=qmp)
    assert (b.current()["status"], b.current()["qmpstatus"]) == ("running", qmp)


def test_an_old_server_has_no_message_in_its_errors(bench: Callable[..., Bench], tmp_path: Path) -> None:
    b = bench()

    def body(server: PveServer) -> dict[str, Any]:
        answer = requests.get(
            server.url + "/api2/json/nodes/pve1/qemu/999/status/current",
            verify=server.ca_file,
            headers={"Authorization": f"PVEAPIToken={server.token_id}={server.secret}"},
            timeout=10,
        )
        assert answer.status_code == 500 and "does not exist" in answer.reason
        found: dict[str, Any] = answer.json()
        return found

    assert "does not exist" in body(b.server)["message"]
    with PveServer(configuration(error_message=False), tmp_path / "old") as old:
        assert "message" not in body(old)


# --- power


def test_stop_and_start_reach_the_machine_and_change_the_process(bench: Callable[..., Bench]) -> None:
    b = bench()
    pid = b.current()["pid"]
    assert b.power("stop") == ("OK", ["TASK OK"])
    assert b.power("stop") == ("OK", ["TASK OK"])  # already stopped: nothing done, and OK
    assert b.power("start", timeout=600) == ("OK", ["TASK OK"])
    assert b.hooks.calls == [("stop", 174), ("start", 174)]
    assert b.current()["pid"] != pid and b.current()["uptime"] < 60
    assert b.power("start")[0] == "VM 174 already running"


def test_a_task_runs_as_long_as_the_machine_takes(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.hooks.gate.clear()
    upid = b.post("stop")
    time.sleep(0.2)
    assert b.node.tasks(upid).status.get()["status"] == "running"
    assert b.current()["status"] == "running"
    assert b.log(upid) == ["no content"]
    b.hooks.gate.set()
    assert b.end(upid) == "OK"
    assert b.current()["status"] == "stopped"


def test_reset_keeps_the_process(bench: Callable[..., Bench]) -> None:
    b = bench()
    pid = b.current()["pid"]
    assert b.power("reset")[0] == "OK"
    assert (b.current()["pid"], b.hooks.calls) == (pid, [("reset", 174)])
    refused(500, "VM 175 not running", b.post, "reset", 175)


def test_shutdown_obeyed_refused_and_forced(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert b.power("shutdown")[0] == "OK" and b.current()["status"] == "stopped"
    assert b.power("shutdown")[0] == "OK"  # of a stopped VM
    assert b.power("start")[0] == "OK"
    b.hooks.obeys = False
    assert b.power("shutdown", timeout=5)[0] == "VM quit/powerdown failed - got timeout"
    assert b.current()["status"] == "running"
    status, log = b.power("shutdown", timeout=5, forceStop=1)
    assert status == "OK" and log[0] == "VM still running - terminating now with SIGTERM"
    b.server.set_vm(101, qmpstatus="paused")
    refused(500, "VM is paused - cannot shutdown", b.post, "shutdown", 101)


def test_stop_may_overrule_a_shutdown_that_waits(bench: Callable[..., Bench]) -> None:
    b = bench(time_scale=1.0)
    b.hooks.obeys = False
    waiting = b.post("shutdown")
    b.until(lambda: ("shutdown", 174) in b.hooks.calls)
    assert b.power("stop", **{"overrule-shutdown": 1})[0] == "OK"
    assert b.end(waiting) == "received interrupt"


def test_reboot_ends_at_stop_and_root_starts_the_vm(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert b.power("reboot")[0] == "OK"
    b.until(lambda: b.current()["status"] == "running")
    kinds = [(task["type"], task["user"]) for task in b.node.tasks.get(source="all", vmid=174)]
    assert sorted(kinds) == [("qmreboot", "gpu-recover@pve!oncall"), ("qmstart", "root@pam")]
    b.server.call("deny", priv="Sys.Audit")
    assert [task["type"] for task in b.node.tasks.get(source="all", vmid=174)] == ["qmreboot"]


def test_a_locked_vm_fails_inside_its_task(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.set_vm(174, lock="backup")
    assert b.current()["lock"] == "backup"
    for action in ("stop", "shutdown", "reboot", "reset"):
        assert b.power(action)[0] == "VM is locked (backup)"
    assert b.hooks.calls == [] and b.current()["status"] == "running"


def test_no_quorum_refuses_a_start_and_lets_a_stop_through(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.call("quorum", value=False)
    assert b.power("stop")[0] == "OK"
    refused(500, "cluster not ready - no quorum?", b.post, "start")
    assert b.api.cluster.status.get()[0]["quorate"] == 0


def test_unknown_parameters_are_refused(bench: Callable[..., Bench]) -> None:
    with pytest.raises(ResourceException) as caught:
        bench().post("start", colour="red")
    assert caught.value.status_code == 400 and "not defined in schema" in caught.value.errors["colour"]


def test_devices_are_checked_at_start(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert b.power("start", 175)[0] == "PCI device '0000:01:00.0' already in use by VMID '174'"
    assert b.power("start", 180)[0] == "PCI device '0000:01:00.0' already in use by VMID '174'"
    assert b.power("stop")[0] == "OK"
    b.server.call("device", node="pve1", bdf="0000:01:00.0", set={"gone": True})
    assert b.power("start")[0] == "no PCI device found for '0000:01:00.0'"
    assert b.power("start", 180)[0].startswith("PCI device mapping invalid (hardware probably changed)")
    assert b.hooks.calls == [("stop", 174)]


def test_a_machine_that_does_not_start_is_a_failed_start(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.hooks.fails = {"start"}
    assert b.power("stop")[0] == "OK"
    status, log = b.power("start")
    assert (status, log[0]) == ("start failed: QEMU exited with code 1", "kvm: no machine")
    assert b.current()["status"] == "stopped"


def test_a_slow_end_is_in_the_log(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.inject("stop", how="sigkill", vmid=174)
    assert b.power("stop") == (
        "OK",
        [
            "VM still running - terminating now with SIGTERM",
            "VM still running - terminating now with SIGKILL",
            "TASK OK",
        ],
    )
    assert b.current()["status"] == "stopped"


def test_a_zombie_is_called_stopped_and_keeps_the_memory(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.set_vm(174, stop_how="zombie")
    used = b.node.status.get()["memory"]["used"]
    assert b.power("stop")[0] == "OK" and b.current()["status"] == "stopped"
    assert b.node.status.get()["memory"]["used"] == used
    assert b.power("start")[0] == "timeout waiting on systemd"
    b.server.set_vm(174, zombie=False)
    assert b.power("start")[0] == "OK"


# --- HA


def test_ha_only_queues(bench: Callable[..., Bench]) -> None:
    b = bench(time_scale=0.1)
    assert b.current(190)["ha"] == {"managed": 1, "state": "started"}
    assert b.power("stop", 190)[0] == "OK"
    assert b.current(190)["status"] == "running"
    b.until(lambda: b.current(190)["status"] == "stopped")
    assert b.api.cluster.ha.resources("vm:190").get()["state"] == "stopped"
    assert b.power("start", 190)[0] == "OK"
    b.until(lambda: b.current(190)["status"] == "running")
    assert b.hooks.calls == [("stop", 190), ("start", 190)]


def test_ha_in_error_refuses_and_brings_back_what_died_otherwise(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.call("died", vmid=190)
    b.until(lambda: b.hooks.calls == [("start", 190)] and b.current(190)["status"] == "running")
    b.server.set_vm(190, ha="error")
    assert b.power("start", 190)[0] == "service 'vm:190' in error state, must be disabled and fixed first"
    rows = {row["id"]: row for row in b.api.cluster.ha.status.current.get()}
    assert (rows["service:vm:190"]["state"], rows["quorum"]["quorate"]) == ("error", 1)
    assert [row["sid"] for row in b.api.cluster.ha.resources.get()] == ["vm:190"]
    with pytest.raises(ResourceException, match="403"):
        b.api.cluster.ha.resources("vm:190").put(state="disabled")


def test_ha_may_start_it_elsewhere(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.set_vm(190, ha_node="pve2")
    b.server.call("died", vmid=190)
    there = b.api.nodes("pve2").qemu(190).status.current
    b.until(lambda: b.server.state()["vms"]["190"]["node"] == "pve2" and there.get()["status"] == "running")
    refused(500, "Configuration file 'nodes/pve1/qemu-server/190.conf' does not exist", b.current, 190)


# --- tasks


def test_tasks_by_source_vm_type_and_time(bench: Callable[..., Bench]) -> None:
    b = bench(
        tasks=[
            {"type": "vzdump", "vmid": 101, "age_s": 300},
            {"type": "qmstart", "vmid": 174, "age_s": 9000, "status": "start failed: got timeout"},
        ]
    )

    def kinds(**values: Any) -> list[tuple[str, str | None]]:
        return [(task["type"], task.get("status")) for task in b.node.tasks.get(**values)]

    assert kinds(source="active") == [("vzdump", "RUNNING")]
    assert kinds() == [("qmstart", "start failed: got timeout")]
    assert b.power("stop")[0] == "OK"
    assert kinds(source="all", vmid=174) == [("qmstop", "OK"), ("qmstart", "start failed: got timeout")]
    assert kinds(source="all", vmid=174, since=int(time.time()) - 600) == [("qmstop", "OK")]
    assert kinds(source="all", typefilter="vzdump") == [("vzdump", "RUNNING")]
    assert kinds(source="all", errors=1) == [("qmstart", "start failed: got timeout")]
    assert kinds(source="all", limit=1) == [("qmstop", "OK")]


def test_a_deleted_task_stops_where_it_was(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.inject("hang", action="stop")
    upid = b.post("stop")
    assert b.node.tasks(upid).status.get()["status"] == "running"
    b.node.tasks(upid).delete()
    assert b.end(upid) == "received interrupt"
    assert b.current()["status"] == "running"
    assert b.power("stop")[0] == "OK"
    foreign = b.server.call("task", type="vzdump", vmid=101)
    refused(403, "Permission check failed (/nodes/pve1, Sys.Modify)", b.node.tasks(foreign).delete)


def test_a_held_lock_file_makes_the_next_task_wait_and_fail(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.call("hold-flock", vmid=174)
    text = "can't lock file '/var/lock/qemu-server/lock-174.conf' - got timeout"
    assert b.power("stop") == (text, ["trying to acquire lock...", f"TASK ERROR: {text}"])
    b.server.call("release-flock", vmid=174)
    assert b.power("stop")[0] == "OK"


# --- faults


@pytest.mark.parametrize("status", [595, 596, 599])
def test_an_answer_lost_before_the_action(bench: Callable[..., Bench], status: int) -> None:
    b = bench()
    b.server.inject("http", action="stop", vmid=174, status=status)
    refused(status, "Connection timed out", b.post, "stop")
    assert b.hooks.calls == [] and b.node.tasks.get(source="all") == []
    assert b.power("stop")[0] == "OK"


@pytest.mark.parametrize("kind", ["http", "cut"])
def test_an_answer_lost_after_the_action_began(bench: Callable[..., Bench], kind: str) -> None:
    b = bench()
    began = int(time.time())
    b.server.inject(kind, action="stop", vmid=174, when="after")
    with pytest.raises((ResourceException, requests.exceptions.ConnectionError)):
        b.post("stop")
    task = b.node.tasks.get(source="all", vmid=174, since=began)[0]
    assert task["type"] == "qmstop" and b.end(task["upid"]) == "OK"
    assert b.hooks.calls == [("stop", 174)]


def test_a_cut_connection_and_a_slow_answer(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.inject("cut", method="GET", path="/version")
    with pytest.raises(requests.exceptions.ConnectionError):
        b.api.version.get()
    b.server.inject("slow", path="/version", seconds=0.3)
    began = time.monotonic()
    assert b.api.version.get()["release"] == "9.2"
    assert time.monotonic() - began >= 0.3


def test_reads_fail_while_a_start_runs(bench: Callable[..., Bench]) -> None:
    b = bench()
    assert b.power("stop")[0] == "OK"
    b.server.inject(
        "http",
        path="/nodes/pve1/qemu/174/*",
        method="GET",
        during="qmstart",
        vmid=174,
        status=599,
        message="Too many redirections",
        times=None,
    )
    assert b.current()["status"] == "stopped"
    b.hooks.gate.clear()
    upid = b.post("start")
    refused(599, "Too many redirections", b.current)
    b.hooks.gate.set()
    assert b.end(upid) == "OK" and b.current()["status"] == "running"


def test_a_stop_that_ends_ok_and_did_nothing(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.inject("stop", how="still-runs")
    assert b.power("stop")[0] == "OK"
    assert b.current()["status"] == "running" and b.hooks.calls == []


@pytest.mark.parametrize("comes_up", [False, True])
def test_a_start_that_got_timeout(bench: Callable[..., Bench], comes_up: bool) -> None:
    b = bench()
    b.server.inject("kvm-timeout", vmid=174, comes_up=comes_up)
    assert b.power("stop")[0] == "OK"
    status, _ = b.power("start")
    assert status.startswith("start failed: command '/usr/bin/kvm -id 174 ") and status.endswith("failed: got timeout")
    assert b.current()["status"] == ("running" if comes_up else "stopped")
    if not comes_up:
        assert b.power("start")[0] == "OK"


def test_a_failed_reset_is_a_warning_in_the_log(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.inject("reset-warning")
    assert b.power("stop")[0] == "OK"
    warned = [
        "error writing '1' to '/sys/bus/pci/devices/0000:01:00.0/reset': Inappropriate ioctl for device",
        "failed to reset PCI device '0000:01:00.0', but trying to continue as not all devices need a reset",
    ]
    assert b.power("start") == ("OK", [*warned, "TASK OK"])


@pytest.mark.parametrize(
    ("fault", "status", "done"),
    [
        ({"kind": "flock"}, "can't lock file '/var/lock/qemu-server/lock-174.conf' - got timeout", False),
        ({"kind": "killed"}, "unexpected status", False),
        ({"kind": "warnings", "count": 2}, "WARNINGS: 2", True),
        ({"kind": "task-error", "message": "first\nsecond"}, "first second", False),
        ({"kind": "task-error", "message": "late", "when": "after"}, "late", True),
    ],
)
def test_other_ends_of_a_task(bench: Callable[..., Bench], fault: dict[str, Any], status: str, done: bool) -> None:
    b = bench(faults=[{"action": "stop", "skip": 0, **fault}])
    assert b.power("stop")[0] == status
    assert (b.hooks.calls == [("stop", 174)]) is done
    assert b.server.state()["faults"] == []


def test_times_skip_and_clear(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.server.inject("http", path="/version", times=2, skip=1, status=500, message="boom")
    b.api.version.get()
    for _ in range(2):
        refused(500, "boom", b.api.version.get)
    b.api.version.get()
    b.server.inject("http", path="/version", times=None)
    assert b.server.call("clear") == 1
    b.api.version.get()
    with pytest.raises(ValueError, match="unknown keys"):
        b.server.inject("http", pth="/version")


def test_a_misspelt_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="qorate"):
        PveServer({"qorate": False}, tmp_path)
    wrong = {"vms": [{"vmid": 100, "name": "x", "memory": 1}]}
    with pytest.raises(ValueError, match="memory"), PveServer(wrong, tmp_path):
        pass


def test_requests_are_kept_without_secrets(bench: Callable[..., Bench], tmp_path: Path) -> None:
    b = bench()
    b.post("start", 101, timeout=600)
    note = b.server.requests()[-1]
    assert (note["method"], note["path"], note["params"]) == (
        "POST",
        "/nodes/pve1/qemu/101/status/start",
        {"timeout": "600"},
    )
    with contextlib.suppress(requests.exceptions.RequestException):
        requests.post(
            b.server.url + "/api2/json/access/ticket",
            data={"username": "root@pam", "password": "hush"},
            verify=b.server.ca_file,
            timeout=10,
        )
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert lines[0]["status"] == 200 and lines[-1]["params"]["password"] == "***"
    assert b.server.secret not in (tmp_path / "requests.jsonl").read_text()


def test_an_address_of_the_api_goes_away_and_comes_back(bench: Callable[..., Bench]) -> None:
    b = bench(listeners=2)

    def status(url: str) -> int:
        headers = {"Authorization": f"PVEAPIToken={b.server.token_id}={b.server.secret}"}
        answer = requests.get(f"{url}/api2/json/version", headers=headers, verify=b.server.ca_file, timeout=10)
        return answer.status_code

    first, second = b.server.urls
    assert (status(first), status(second)) == (200, 200)
    b.api.version.get()
    b.server.call("listener", index=0, up=False)
    for _ in range(2):
        with pytest.raises(requests.exceptions.ConnectionError):
            b.api.version.get()
    assert status(second) == 200
    b.server.call("listener", index=0, up=True)
    assert status(first) == 200 and b.api.version.get()


# --- as a process


def test_as_a_process_with_command_hooks(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 40)  # longer than a socket's name may be
    hook = tmp_path / "hook.py"
    hook.write_text(
        f"import sys; open({str(tmp_path / 'calls')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n'); "
        "sys.exit(1 if sys.argv[1] == 'shutdown' else 0)\n"
    )
    config = tmp_path / "pve.json"
    config.write_text(json.dumps(configuration(directory=str(folder), hooks={"command": [sys.executable, str(hook)]})))
    process = subprocess.Popen([sys.executable, "-m", "tests.lab.pve.server", "--config", str(config)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "server.json").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        control = Control(folder)
        about = control.server()
        assert control.call("ping") == "pong" and about["pid"] == process.pid
        user, _, name = about["token_id"].partition("!")
        api = ProxmoxAPI(
            "127.0.0.1",
            port=about["port"],
            user=user,
            token_name=name,
            verify_ssl=about["ca_file"],
            token_value=Path(about["secret_file"]).read_text().strip(),
            timeout=40,
        )
        control.call("inject", fault={"kind": "http", "action": "stop", "vmid": 174})
        refused(596, "Connection timed out", api.nodes("pve1").qemu(174).status.stop.post)
        api.nodes("pve1").qemu(174).status.shutdown.post(timeout=1, forceStop=1)
        while control.call("state")["vms"]["174"]["status"] != "stopped":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert (tmp_path / "calls").read_text().splitlines() == ["shutdown 174", "stop 174"]
        with pytest.raises(ControlError, match="unknown op"):
            control.call("dance")
        control.call("stop")
        assert process.wait(30) == 0 and not (folder / "server.json").exists()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)
