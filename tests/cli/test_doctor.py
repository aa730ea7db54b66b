"""doctor and targets over the real HTTPS API of the lab: what is missing is named with its cost and its fix."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Ran
from tests.edge.proxmox.conftest import GPU, VM, Lab

ROLE = ["VM.Audit", "VM.PowerMgmt", "VM.GuestAgent.Audit"]
GRANTS = (
    ("/vms/174", ROLE, True), ("/vms", ["VM.Audit"], True),
    ("/", ["Sys.Audit"], False), ("/nodes/pve1", ["Sys.Audit"], True),
    ("/storage/local-lvm", ["Datastore.Audit"], True), ("/mapping/pci/gpu0", ["Mapping.Audit"], True),
)  # fmt: skip
WHO = ("gpu-recover@pve", "gpu-recover@pve!oncall")
MAPPING = {"id": "gpu0", "map": ["id=10de:2bb5,iommugroup=15,node=pve1,path=0000:42:00.0"]}
OURS = {**VM, "hostpci": [GPU, "mapping=gpu0"]}


def grants(*without: str) -> list[dict[str, Any]]:
    """The recipe, less what is named."""
    return [
        {"who": who, "path": path, "privs": [p for p in privs if f"{p} on {path}" not in without], "propagate": below}
        for who in WHO
        for path, privs, below in GRANTS
    ]


@dataclass
class Cluster:
    server: Lab
    config: Path
    cli: Cli

    def run(self, *words: str) -> Ran:
        ran = self.cli("--config", str(self.config), *words, "-q")
        assert self.server.secret not in ran.out + ran.err
        return ran

    def doctor(self, *words: str) -> tuple[int, dict[str, Any]]:
        ran = self.run("doctor", *words, "--json")
        return ran.code, json.loads(ran.out)

    def write(self, before: str, after: str) -> None:
        text = self.config.read_text()
        assert before in text
        self.config.write_text(text.replace(before, after))


@pytest.fixture
def cluster(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Cluster]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,::1,localhost")
    with ExitStack() as stack:

        def up(*vms: dict[str, Any], without: tuple[str, ...] = (), **config: Any) -> Cluster:
            given = {"vms": list(vms) or [OURS], "mappings": [MAPPING], "grants": grants(*without), "time_scale": 0.01}
            server = stack.enter_context(Lab(given | config, tmp_path / "pve"))
            secret = tmp_path / "secret"
            secret.write_text(server.secret)
            secret.chmod(0o600)
            path = tmp_path / "config.toml"
            path.write_text(
                f'[clusters.pve]\nurls = ["{server.url}"]\ntoken_id = "{server.token_id}"\n'
                f'token_secret = {{ file = "{secret}" }}\nca_file = "{server.ca_file}"\n'
                '[ssh]\nport = 1\n[targets.node-174]\ncluster = "pve"\nvmid = 174\naddress = "127.0.0.1"\n'
            )
            return Cluster(server, path, cli)

        yield up


def of(report: dict[str, Any], check: str, about: str = "") -> list[dict[str, Any]]:
    return [one for one in report["checks"] if one["check"] == check and about in one["about"]]


def failed(report: dict[str, Any]) -> list[str]:
    return [f"{one['check']}: {one['says']}" for one in report["checks"] if one["status"] == "failed"]


def test_with_the_recipe_only_the_ssh_that_is_not_there_fails(cluster: Callable[..., Cluster]) -> None:
    code, report = cluster().doctor("node-174")
    assert code == report["exit_code"] == 1
    assert [text.split(":")[0] for text in failed(report)] == ["connection"], failed(report)
    assert of(report, "privilege")[0]["says"].startswith("8 of 8 "), of(report, "privilege")
    assert of(report, "clock", "cluster")[0]["status"] == of(report, "certificate")[0]["status"] == "ok"
    assert not report["recipes"]
    (shut,) = [one for one in report["checks"] if one["status"] == "not asked"]
    assert shut["says"] == "waits for the connection", "what stands behind a failure is not called ok"


@pytest.mark.parametrize(("lacks", "where", "status", "costs"), [
    ("VM.PowerMgmt", "/vms/174", "failed", "power-cycle-vm fails"),
    ("VM.GuestAgent.Audit", "/vms/174", "warning", "second witness"),
    ("VM.Audit", "/vms", "warning", "not known"),
    ("Sys.Audit", "/", "failed", "quorum"),
    ("Sys.Audit", "/nodes/pve1", "failed", "host-memory"),
    ("Datastore.Audit", "/storage/local-lvm", "failed", "storage"),
    ("Mapping.Audit", "/mapping/pci/gpu0", "failed", "device"),
])  # fmt: skip
def test_each_missing_privilege_is_named_with_cost_and_command(
    cluster: Callable[..., Cluster], lacks: str, where: str, status: str, costs: str
) -> None:
    _, report = cluster(without=(f"{lacks} on {where}",)).doctor()
    (found,) = [one for one in of(report, "privilege") if one["status"] != "ok"]
    assert (found["status"], found["says"].split(" (")[0]) == (status, f"{lacks} on {where} is missing")
    assert costs in found["costs"], found
    assert found["fix"].startswith(
        f"pveum acl modify {where} --users gpu-recover@pve --tokens 'gpu-recover@pve!oncall'"
    )
    (recipe,) = report["recipes"].values()
    assert found["fix"].partition("    # ")[0] in recipe
    assert (f"pveum role modify GpuRecoverGuest --append 1 --privs {lacks}" in found["fix"]) is (where == "/vms/174")


@pytest.mark.parametrize(("version", "ours", "theirs"), [
    ("9.2.6", "VM.GuestAgent.Audit", "VM.Monitor"), ("8.4.1", "VM.Monitor", "VM.GuestAgent.Audit"),
    ("7.4.3", "VM.Monitor", "VM.GuestAgent.Audit"),
])  # fmt: skip
def test_the_recipe_is_for_the_release_that_answered(
    cluster: Callable[..., Cluster], version: str, ours: str, theirs: str
) -> None:
    lab = cluster(without=("VM.PowerMgmt on /vms/174",), version=version)
    (recipe,) = lab.doctor("node-174")[1]["recipes"].values()
    text = "\n".join(recipe)
    assert ours in text and theirs not in text
    assert ("Mapping" in text) is (version > "8"), "7 has no mappings"
    shown = lab.run("doctor", "node-174", "--recipe").out
    assert "VM.GuestAgent.Audit" in shown and "VM.Monitor" in shown and "pveum acl modify" in shown


AGENT = ("VM.GuestAgent.Audit", "VM.Monitor")


@pytest.mark.parametrize(("version", "good"), [("9.2.6", 0), ("8.4.1", 1), ("8.0.2", 1), ("7.4.3", 1)])
def test_the_agents_privilege_is_the_one_of_the_release(
    cluster: Callable[..., Cluster], version: str, good: int
) -> None:
    """The lab's API knows each privilege only in the releases that have it, and asks for it as they do."""
    for number, name in enumerate(AGENT):
        given = [{**g, "privs": [p if p not in AGENT else name for p in g["privs"]]} for g in grants()]
        plain = {**VM, "hostpci": [GPU]}
        lab = cluster(plain, version=version, grants=given, mappings=[])
        _, report = lab.doctor("node-174")
        wrong = [one for one in of(report, "privilege") if one["status"] != "ok"]
        said = json.loads(lab.run("probe", "node-174").out)["hypervisor"]["gaps"]
        if number == good:
            assert not wrong and not said, (wrong, said)
        else:
            (one,) = wrong
            assert one["says"].startswith(f"{AGENT[good]} on /vms/174 is missing") and AGENT[good] in one["fix"]
            assert any(AGENT[good] in gap for gap in said), said


def test_a_mapping_of_a_neighbour_must_be_read_too(cluster: Callable[..., Cluster]) -> None:
    """PVE lists no mapping that the token may not see: who has our device is not known, and the guard refuses."""
    near = {"vmid": 175, "name": "node-175", "hostpci": ["mapping=gpu9"]}
    hidden = {"id": "gpu9", "map": ["id=10de:2bb5,node=pve1,path=0000:43:00.0"]}
    lab = cluster(OURS, near, mappings=[MAPPING, hidden])
    _, report = lab.doctor("node-174")
    (found,) = [one for one in of(report, "privilege") if one["status"] != "ok"]
    assert found["status"] == "failed" and "Mapping.Audit on /mapping/pci/gpu9" in found["says"]
    assert "shared-device" in found["costs"] and "/mapping/pci/gpu9" in found["fix"]


def test_a_token_that_may_not_see_the_guest(cluster: Callable[..., Cluster]) -> None:
    _, report = cluster(without=("VM.Audit on /vms/174", "VM.Audit on /vms")).doctor()
    (found,) = of(report, "Proxmox guest")
    assert found["status"] == "failed" and "VM.Audit" in found["fix"]
    assert len(report["recipes"]) == 2, "of an unknown release both"


def test_a_token_that_is_not_accepted(cluster: Callable[..., Cluster]) -> None:
    lab = cluster()
    lab.server.call("token", revoke=True)
    code, report = lab.doctor("node-174")
    (found,) = of(report, "API")
    assert code == 1 and found["status"] == "failed" and "pveum user token list" in found["fix"]
    assert all(one["status"] == "not asked" for one in of(report, "privilege")), (
        "what could not be asked is not missing"
    )


@pytest.mark.parametrize(("certificate", "says"), [("expired", "expired"), ("wrong-host", "another")])
def test_a_certificate_that_is_wrong(cluster: Callable[..., Cluster], certificate: str, says: str) -> None:
    _, report = cluster(certificate=certificate).doctor("node-174")
    (found,) = of(report, "API")
    assert found["status"] == "failed" and says in found["says"] and found["fix"]
    assert (of(report, "certificate")[0]["status"] == "failed") is (certificate == "expired")


def test_one_address_of_two_that_is_down_is_a_warning(cluster: Callable[..., Cluster]) -> None:
    lab = cluster()
    lab.write(f'["{lab.server.url}"]', f'["https://127.0.0.1:1", "{lab.server.url}", "https://nowhere.invalid:8006"]')
    _, report = lab.doctor("node-174")
    assert [one["status"] for one in of(report, "API")] == ["warning", "ok"]
    assert of(report, "name", "cluster")[-1]["status"] == "failed", "a name that means nothing is a mistake"


def test_a_secret_that_others_can_read_and_one_that_is_not_there(cluster: Callable[..., Cluster]) -> None:
    lab = cluster()
    os.chmod(lab.config.parent / "secret", 0o644)
    assert of(lab.doctor("node-174")[1], "secret")[0]["status"] == "warning"
    (lab.config.parent / "secret").unlink()
    (found,) = of(lab.doctor("node-174")[1], "API")
    assert found["status"] == "failed" and "secret" in found["says"]


def test_a_token_with_too_much(cluster: Callable[..., Cluster]) -> None:
    more = [{"who": who, "path": "/", "privs": ["Sys.Audit", "Sys.Modify"], "propagate": False} for who in WHO]
    _, report = cluster(grants=[*grants(), *more]).doctor("node-174")
    (found,) = [one for one in of(report, "privilege") if one["status"] == "warning"]
    assert "Sys.Modify" in found["says"]


def test_a_playbook_that_needs_what_is_not_configured(cluster: Callable[..., Cluster]) -> None:
    lab = cluster()
    lab.write('cluster = "pve"\nvmid = 174\n', "")
    _, report = lab.doctor("node-174")
    (found,) = of(report, "playbook")
    assert found["status"] == "failed" and "power-cycle-vm" in found["says"] and "vmid" in found["fix"]
    _, report = lab.doctor("node-174", "--playbook", "hung-serverr")
    assert of(report, "playbook")[0]["status"] == "failed"


def test_without_power_rungs_power_is_not_needed(cluster: Callable[..., Cluster]) -> None:
    lab = cluster(without=("VM.PowerMgmt on /vms/174", "Sys.Audit on /"))
    _, report = lab.doctor("node-174", "--playbook", "guest-only")
    wrong = [one for one in of(report, "privilege") if one["status"] == "failed"]
    assert not wrong and "VM.PowerMgmt" not in json.dumps(of(report, "privilege"))


def test_a_state_folder_that_cannot_be_written(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    _, report = cluster().doctor("node-174", "--state-dir", str(tmp_path / "file" / "st"))
    assert of(report, "state folder")[0]["status"] == "failed"


def test_a_wrong_configuration_ends_with_2_and_all_problems(cluster: Callable[..., Cluster]) -> None:
    lab = cluster()
    lab.config.write_text("[targets.x]\nvmid = 1\ncolour = 2\n")
    ran = lab.run("doctor")
    assert ran.code == 2 and "colour" in ran.err and "vmid" in ran.err and not ran.out


def test_as_text_failures_come_with_costs_and_fixes(cluster: Callable[..., Cluster]) -> None:
    ran = cluster(without=("Sys.Audit on /",)).run("doctor", "node-174")
    assert ran.code == 1 and ran.out.startswith("doctor: 2 of ") and "\x1b" not in ran.out
    assert "costs: power-cycle-vm refused" in ran.out and "fix: pveum acl modify / " in ran.out


# targets


OTHER = {"vmid": 175, "name": "node-175", "hostpci": ["0000:41:00.0"], "status": "stopped"}
NIC = {
    "vmid": 101,
    "name": "router",
    "hostpci": [{**GPU, "bdf": "0000:51:00.0", "vendor": "15b3", "class": "0200", "iommugroup": 20}],
}
PLAIN = {"vmid": 102, "name": "mail\x1b[31m"}


def test_targets_lists_gpu_guests_with_devices_and_who_shares_them(cluster: Callable[..., Cluster]) -> None:
    lab = cluster(OURS, OTHER, NIC, PLAIN)
    ran = lab.run("targets", "--json")
    report = json.loads(ran.out)
    ours, other = report["targets"]
    assert ran.code == 0 and (ours["vmid"], other["vmid"]) == (174, 175), "neither a network card nor nothing"
    assert ours["configured"] == "node-174" and other["configured"] is None and ours["running_neighbours"] == 2
    assert ours["devices"] == ["0000:41:00.0", "0000:42:00.0"] and ours["addresses"]
    assert "175 (node-175, stopped): 0000:41:00.0" in ours["shares"][0]
    shown = lab.run("targets")
    assert "node-174" in shown.out and "\x1b" not in shown.out + shown.err


def test_targets_says_what_it_cannot_see(cluster: Callable[..., Cluster]) -> None:
    lab = cluster(OURS, OTHER, without=("VM.Audit on /vms", "Sys.Audit on /"))
    ran = lab.run("targets")
    assert ran.code == 0 and "node-174" in ran.out and "node-175" not in ran.out
    assert "needs VM.Audit on /vms" in ran.err and "PCI devices of pve1" in ran.err


def test_targets_where_a_cluster_is_away_or_a_guest_is_gone(cluster: Callable[..., Cluster]) -> None:
    lab = cluster(OTHER)
    assert "node-174 (174) is configured and not shown" in lab.run("targets").err
    lab.write(lab.server.url, "https://127.0.0.1:1")
    assert lab.run("targets").out.strip() == "no GPU guest was seen: not every cluster could be asked"
    ran = lab.run("targets", "--json")
    assert ran.code == 1 and "could not be asked" in json.loads(ran.out)["notes"][0]


def test_targets_of_a_node_that_is_away_do_not_take_the_time_of_the_others(cluster: Callable[..., Cluster]) -> None:
    """Caught, planted: each of its guests asked to the end. A node that is away answers nothing for 20 s at a time."""
    away = [{"vmid": 300 + n, "name": f"away-{n}", "node": "pve2", "status": "running"} for n in range(12)]
    lab = cluster(OURS, *away, nodes=[{"name": "pve1"}, {"name": "pve2"}])
    lab.server.call("node", name="pve2", set={"online": False})
    ran = lab.run("targets")
    asked = [r["path"] for r in lab.server.requests() if r["path"].startswith("/nodes/pve2/")]
    assert ran.code == 0 and "node-174" in ran.out and "0000:41:00.0" in ran.out
    assert "guests 300, 301" in ran.err and "and 4 more" in ran.err
    assert len(set(asked)) <= 4, "as many as are asked at once"
