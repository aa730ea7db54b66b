"""A container without sshd is looked at through its node: by the init that the node sees, or not at all.

The container is a real process name space whose pid 1 says that it is LXC's. `lxc-attach` here is a script that enters
that name space and clears the environment, as the real one does.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.core.config import Cluster, Config, HostConfig, Ssh, TargetConfig
from recover.core.config_table import SecretEnv
from recover.core.identity import identity
from recover.edge.actuator.guest import GuestActuator
from recover.edge.clock import SystemClock
from recover.edge.connections import Connections
from recover.edge.inside import Inside
from recover.edge.probe import ProbeSettings
from recover.edge.shell.local import LocalShell
from recover.model.act import ClearMarker, PlaceMarker
from recover.model.contact import Failure
from recover.model.gpu import NOT_ASKED
from recover.model.guest import Guest, Mute
from recover.model.hypervisor import GuestKind
from recover.model.reading import Known
from recover.model.snapshot import IdentityProof, Target
from tests.core.looks import once
from tests.edge.proxmox.conftest import Lab
from tests.edge.shell.conftest import free_port, sshd_in
from tests.steps.looks import vm

pytestmark = pytest.mark.lab
REFUSED = Mute(Failure.REFUSED, "connection refused")
ATTACH = """#!/bin/sh
[ "$1 $2 $3 $4" = "-n 200 --clear-env --" ] || exit 64
shift 4
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin:{path} nsenter -t {pid} -p -m -u -- "$@"
"""


@pytest.fixture
def init() -> Iterator[int]:
    """Pid 1 of a name space of its own; ended with all that is in it."""
    argv = ["unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc", "env", "container=lxc",
            "sh", "-c", "hostname ct-200; mount -t tmpfs tmpfs /run; echo up; exec sleep 300"]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as outer:
        assert outer.stdout is not None and outer.stdout.readline() == b"up\n"
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        yield int(children[0])
        os.killpg(outer.pid, signal.SIGKILL)


@pytest.fixture
def attach(init: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "lxc-attach"
    script.write_text(ATTACH.format(pid=init, path=os.path.dirname(os.path.realpath("/usr/bin/python3"))))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return script


def seen(init: int, **changes: Any) -> Any:
    here = os.uname().nodename.partition(".")[0]
    found = vm(node=here, host_uptime_s=NOT_ASKED, kind=GuestKind.CONTAINER, vmid=200, pid=init)
    return replace(found, **changes)


def inside(found: Any) -> Inside:
    return Inside(lambda node: LocalShell(), lambda: found, ProbeSettings(health_ports=False))


def test_it_is_seen_and_acted_in_as_its_own_processes_see_it(init: int, attach: Path) -> None:
    way = inside(seen(init))
    guest = way.look(REFUSED, (), 60.0)
    assert isinstance(guest, Guest), guest
    assert guest.identity.hostname == "ct-200" and guest.identity.container and guest.identity.init_start > 0
    assert "since by SSH: refused" in guest.through
    assert isinstance(guest.processes, Known) and any(p.pid == 1 and p.comm == "sleep" for p in guest.processes.value)
    probe = way.probe()
    assert probe is not None
    hands = GuestActuator(probe)
    placed = hands.perform(PlaceMarker("r1", "kim", "ctl", "end-workers", 60.0))
    assert placed.ok, placed
    assert not list(Path("/run").glob("gpu-recover*")), "its /run is its own"
    again = way.look(REFUSED, (), 60.0)
    assert isinstance(again, Guest) and isinstance(again.marker, Known) and again.marker.value is not None
    assert hands.perform(ClearMarker("r1")).ok


def test_another_init_than_the_node_sees_is_not_this_container(init: int, attach: Path) -> None:
    way = inside(seen(os.getpid()))
    mute = way.look(REFUSED, (), 60.0)
    assert isinstance(mute, Mute) and "not the one that the node sees" in mute.detail and way.probe() is None


def test_what_keeps_us_out_is_said_beside_why_ssh_failed(init: int, attach: Path) -> None:
    attach.write_text("#!/bin/sh\necho 'lxc-attach: 200: Failed to get init pid' >&2; exit 1\n")
    mute = inside(seen(init)).look(REFUSED, (), 60.0)
    assert isinstance(mute, Mute) and mute.failure is Failure.REFUSED
    assert mute.detail.startswith("connection refused; through ") and "Failed to get init pid" in mute.detail


def test_it_is_tried_only_for_a_container_that_runs_on_a_node_that_we_may_enter(init: int) -> None:
    for found in (seen(init, kind=GuestKind.VM), seen(init, status="stopped")):
        assert inside(found).look(REFUSED, (), 60.0) == REFUSED
    closed = Inside(lambda node: None, lambda: seen(init), ProbeSettings())
    assert closed.look(REFUSED, (), 60.0) == REFUSED
    elsewhere = inside(seen(init, node="pve9")).look(REFUSED, (), 60.0)
    assert isinstance(elsewhere, Mute) and "correct [hosts.pve9] address" in elsewhere.detail


def test_a_look_through_the_node_is_told(init: int) -> None:
    from tests.core import builders as b

    snapshot = b.healthy_snapshot()
    assert isinstance(snapshot.guest, Guest)
    told = once(replace(snapshot, guest=replace(snapshot.guest, through="pve1, since by SSH: refused: no sshd")))
    assert any("looked at through pve1" in gap for gap in told.gaps)


def test_the_whole_way_from_a_configuration(init: int, attach: Path, tmp_path: Path) -> None:
    """A real sshd as the node's, a real API that names node and init, and a container that listens nowhere."""
    node = os.uname().nodename.partition(".")[0]
    server = sshd_in(tmp_path / "node", options=(f"SetEnv PATH={tmp_path}:/usr/sbin:/usr/bin:/sbin:/bin",))
    up = int(float(Path("/proc/uptime").read_text().split()[0]))
    ct = {"vmid": 200, "name": "ct-200", "node": node, "pid": init}
    ssh = Ssh("root", server.port, str(server.user_key), str(server.known_hosts))
    closed = replace(ssh, port=free_port())
    with Lab({"cts": [ct], "nodes": [{"name": node, "uptime_s": up}], "time_scale": 0.01}, tmp_path / "pve") as lab:
        cluster = Cluster("pve", (lab.url,), lab.token_id, SecretEnv("CT_SECRET"), lab.ca_file)
        os.environ["CT_SECRET"] = lab.secret
        config = Config({"pve": cluster}, Ssh(), {node: HostConfig(ssh, "127.0.0.1")}, {})
        target = Target("ct-200", "127.0.0.1", GuestKind.CONTAINER, "pve", 200)
        said = TargetConfig("ct-200", "pve", 200, "127.0.0.1", ssh=closed)
        connections = Connections(config, said, target, steady=True)
        try:
            snapshot = connections.observer(SystemClock(), None, assume_hung=False).look()
            assert isinstance(snapshot.guest, Guest), snapshot.guest
            assert snapshot.guest.identity.hostname == "ct-200" and f"{node}, since by SSH" in snapshot.guest.through
            assert identity(snapshot) is IdentityProof.PROVED
            placed = connections.actuator().perform(PlaceMarker("r1", "kim", "ctl", "end-workers", 60.0))
            assert placed.ok and not list(Path("/run").glob("gpu-recover*")), placed
        finally:
            connections.close()
            server.stop()
            del os.environ["CT_SECRET"]
