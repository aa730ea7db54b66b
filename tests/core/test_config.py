"""A configuration is whole or refused with every problem, each at its path, and never with a secret in the words."""

from __future__ import annotations

import tomllib

import pytest

from recover.core.config import Ssh, parse_config
from recover.core.config_table import SecretCommand, SecretEnv, SecretFile

WHOLE = """
[clusters.pve]
urls = ["https://pve1.example.org:8006", "https://pve2.example.org:8006"]
token_id = "gpu-recover@pve!oncall"
token_secret = { file = "/etc/gpu-recover/pve.secret" }
ca_file = "/etc/gpu-recover/pve-root-ca.pem"
[ssh]
user = "root"
port = 22
identity_file = "~/.ssh/id_ed25519"
known_hosts = "~/.ssh/known_hosts"
sudo = false
[hosts.pve1]
address = "10.1.230.11"
[hosts.pve1.ssh]
user = "root"
[targets.node-174]
cluster = "pve"
vmid = 174
address = "10.1.230.174"
playbook = "hung-server"
services = ["sglang.service"]
health = "http://127.0.0.1:30000/health"
protect = ["nv-hostengine"]
[targets.node-174.ssh]
port = 2222
[targets.node-174.expect]
gpus = 8
ram_available = "440GiB"
"""
CLUSTER = """
[clusters.pve]
urls = ["https://pve1:8006"]
token_id = "a@pve!b"
token_secret = { env = "S" }
"""


def problems(text: str) -> tuple[str, ...]:
    return parse_config(tomllib.loads(text))[1]


def test_the_whole_example_of_the_documentation_is_understood() -> None:
    config, wrong = parse_config(tomllib.loads(WHOLE), "x.toml")
    assert wrong == () and config is not None
    target = config.targets["node-174"]
    assert (target.cluster, target.vmid, target.address, target.playbook) == ("pve", 174, "10.1.230.174", "hung-server")
    assert dict(target.expect) == {"gpus": 8, "ram_available": 440 * 1024}
    assert config.clusters["pve"].token_secret == SecretFile("/etc/gpu-recover/pve.secret")
    node = config.hosts["pve1"]
    assert (node.ssh.user, node.address) == ("root", "10.1.230.11")
    assert config.source == "x.toml"


def test_a_targets_ssh_overrides_the_common_one_key_by_key() -> None:
    config, _ = parse_config(tomllib.loads(WHOLE))
    assert config is not None
    assert config.targets["node-174"].ssh == Ssh("root", 2222, "~/.ssh/id_ed25519", "~/.ssh/known_hosts", False)


def test_an_empty_configuration_is_whole() -> None:
    config, wrong = parse_config({})
    assert config is not None and not config.targets and not wrong


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[targets.a]\nvmid = "abc"', "targets.a.vmid: expected an integer, got 'abc'"),
        ("[targets.a]\nvmid = true", "targets.a.vmid: expected an integer, got True"),
        ("[targets.a]\nvmid = 3", "targets.a.vmid: expected 100 to 999999999, got 3"),
        ("targts = 1", "targts: unknown key: did you mean 'targets'?"),
        ('[targets.a]\nadress = "x"', "targets.a.adress: unknown key: did you mean 'address'?"),
        ("[ssh]\nsudo = 1", "ssh.sudo: expected true, false or"),
        ("[ssh]\nport = 70000", "ssh.port: expected 1 to 65535, got 70000"),
        ("ssh = 3", "ssh: expected a table"),
        ("targets = 3", "targets: expected tables"),
        ("[targets]\na = 3", "targets.a: expected a table"),
        ('[targets.a]\nservices = ["--all"]', "targets.a.services[0]: expected a unit"),
        ('[targets.a]\naddress = "-oProxyCommand=x"', "targets.a.address: expected an address"),
        ('[targets.a]\nhealth = "ftp://x"', "targets.a.health: expected a URL"),
        ('[targets.a.expect]\nram_available = "much"', "targets.a.expect.ram_available: expected a size"),
        ('[targets."a b"]', 'targets."a b": a name has letters'),
        ('[targets.a]\ncluster = "pvee"\nvmid = 174' + CLUSTER, "targets.a.cluster: no cluster 'pvee'"),
        ("[targets.a]\nvmid = 174", "targets.a.cluster: missing"),
        ('[targets.a]\ncluster = "pve"' + CLUSTER, "targets.a.vmid: missing"),
        ("[targets.a]\nvmid = 174\n[targets.b]\nvmid = 174" + CLUSTER, "targets.b.vmid: 174 is already targets.a"),
        ("[clusters.x]", "clusters.x.urls: missing"),
        ("[clusters.x]", "clusters.x.token_id: missing"),
        ("[clusters.x]", "clusters.x.token_secret: missing"),
        (CLUSTER.replace("https", "http"), "clusters.pve.urls[0]: expected https://"),
        (CLUSTER + f'ca_file = "x"\nfingerprint = "{"ab" * 32}"', "clusters.pve.fingerprint: ca_file is given too"),
        (CLUSTER + 'fingerprint = "AB"', "clusters.pve.fingerprint: expected the 32 bytes"),
    ],
)  # fmt: skip
def test_each_problem_is_said_with_its_path(text: str, says: str) -> None:
    assert any(p.startswith(says) for p in problems(text)), problems(text)


def test_all_problems_are_said_at_once() -> None:
    wrong = problems('[ssh]\nport = "x"\n[targets.a]\nvmid = "y"\nwhat = 1\n[hosts.h]\nz = 1')
    assert [p.split(":")[0] for p in wrong] == ["ssh.port", "hosts.h.z", "targets.a.vmid", "targets.a.what"]


@pytest.mark.parametrize(
    "text",
    [
        CLUSTER.replace('{ env = "S" }', '"hunter2"'),
        CLUSTER.replace("a@pve!b", "a@pve!b=hunter2"),
        CLUSTER.replace("https://pve1", "https://root:hunter2@pve1"),
        '[ssh]\npassword = "hunter2"',
        '[ssh.sudo]\npassword = "hunter2"',
        '[clusters.x]\nsecret = "hunter2"',
        '[targets.a]\nhealth = "http://u:hunter2@127.0.0.1/"',
        '[targets.a]\ntoken = "hunter2"',
    ],
)
def test_a_secret_is_refused_and_not_repeated(text: str) -> None:
    wrong = problems(text)
    assert wrong and "hunter2" not in " ".join(wrong)


def test_the_three_places_of_a_secret() -> None:
    text = CLUSTER.replace('{ env = "S" }', '{ command = ["pass", "show", "x"] }')
    for source, found in ((CLUSTER, SecretEnv("S")), (text, SecretCommand(("pass", "show", "x")))):
        config, _ = parse_config(tomllib.loads(source))
        assert config is not None and config.clusters["pve"].token_secret == found
    assert "exactly one" in problems(CLUSTER.replace('{ env = "S" }', '{ env = "S", file = "x" }'))[0]


def test_a_vmid_belongs_to_the_only_cluster() -> None:
    config, _ = parse_config(tomllib.loads("[targets.a]\nvmid = 174" + CLUSTER))
    assert config is not None and config.targets["a"].cluster == "pve"


def test_hostile_names_reach_no_terminal() -> None:
    assert all(p.isprintable() for p in problems('[targets."\\u001b]0;x\\u0007"]\n"\\u001b[2J" = 1'))
