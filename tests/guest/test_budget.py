"""What a launch would meet here, as the agent tells it: real interpreters and processes, files under a root folder."""

from __future__ import annotations

import json
import shutil
import sys
import venv
from pathlib import Path

import pytest

from recover.cli.main import COMMANDS
from recover.cli.main import run as command_line
from recover.core.budget.model import Problem
from recover.core.budget.preflight_report import gathered
from recover.edge.preflight import check, follow, load_facts, question, save_facts
from recover.edge.shell.local import LocalShell
from recover.model.reading import Known
from tests.core.budget.wheels import sources
from tests.edge.shell.conftest import sshd_in
from tests.guest.conftest import pythons

GIB = 1 << 30
MEMINFO = "MemTotal: 470810624 kB\nMemFree: 1048576 kB\nMemAvailable: 466616320 kB\nShmem: 10 kB\n"
SLEEPER = "print('ready', flush=True)\nimport time\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    """An environment without packages; each test copies it."""
    folder = tmp_path_factory.mktemp("venv") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


@pytest.fixture
def env(empty, tmp_path):
    return Env(shutil.copytree(empty, tmp_path / "venv", symlinks=True))


class Env:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = str(root / "bin" / "python")
        (self.site,) = root.glob("lib/python*/site-packages")

    def package(self, where: Path, files: dict[str, str]) -> None:
        for name, text in {"sglang/__init__.py": "raise SystemExit('imported')", **files}.items():
            (where / name).parent.mkdir(parents=True, exist_ok=True)
            (where / name).write_text(text)

    def metadata(self, version: str, direct: dict | None = None, folder: Path | None = None) -> None:
        info = (folder or self.site) / f"sglang-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
        if direct is not None:
            (info / "direct_url.json").write_text(json.dumps(direct))


SOURCE = {"sglang/srt/mem_cache/pool.py": "hicache_size = 0\n", "sglang/srt/other.py": "nothing = 1\n"}


def engine(report):
    row = report.one("budget-engine")
    assert row is not None, report.gaps()
    return row


def test_an_installed_engine_is_found_without_importing_it(env, agent):
    env.package(env.site, SOURCE)
    env.metadata("0.5.9")
    report = agent("budget", engine="sglang", interpreter=env.python)
    row = engine(report)
    assert (row.text("version"), row.text("install"), row.text("origin")) == (
        "0.5.9",
        "installed",
        f"{env.site}/sglang",
    )
    assert [r.text("path") for r in report.all("budget-source")] == ["sglang/srt/mem_cache/pool.py"]


def test_an_editable_install_by_path_file_names_its_checkout_and_commit(env, agent, tmp_path):
    checkout = tmp_path / "src"
    env.package(checkout / "python", SOURCE)
    (checkout / ".git").mkdir()
    (checkout / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (checkout / ".git/refs/heads").mkdir(parents=True)
    (checkout / ".git/refs/heads/main").write_text("a" * 40)
    (env.site / "__editable__.sglang.pth").write_text(f"{checkout}/python\n")
    env.metadata("0.5.9", {"url": f"file://{checkout}", "dir_info": {"editable": True}})
    row = engine(agent("budget", engine="sglang", interpreter=env.python))
    assert (row.text("install"), row.text("origin"), row.text("commit")) == (
        "editable", f"{checkout}/python/sglang", "a" * 40,
    )  # fmt: skip


def test_an_egg_link_and_a_checkout_in_the_working_folder(env, agent, tmp_path):
    checkout = tmp_path / "src"
    env.package(checkout, {**SOURCE, "sglang/version.py": '__version__ = "0.5.10rc1"\n'})
    (env.site / "easy-install.pth").write_text(f"{checkout}\n")
    (env.site / "sglang.egg-link").write_text(f"{checkout}\n.")
    row = engine(agent("budget", engine="sglang", interpreter=env.python))
    assert (row.text("install"), row.text("version")) == ("checkout", "0.5.10rc1")
    (env.site / "easy-install.pth").unlink()
    assert agent("budget", engine="sglang", interpreter=env.python).one("budget-engine") is None
    row = engine(agent("budget", engine="sglang", interpreter=env.python, paths=[str(checkout)]))
    assert row.text("origin") == f"{checkout}/sglang"


@pytest.mark.parametrize(
    "head", ["#!{python}\n", "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n", "#!/usr/bin/env {python}\n"]
)
def test_a_console_script_leads_to_its_python(env, agent, head):
    env.package(env.site, SOURCE)
    script = env.root / "bin" / "sglang"
    script.write_text(head.format(python=env.python) + "from sglang.cli import main\n")
    script.chmod(0o755)
    assert engine(agent("budget", engine="sglang", interpreter=str(script))).text("asked") == env.python


@pytest.mark.parametrize("python", pythons())
def test_every_python_can_ask_and_be_asked(python, agent, tmp_path):
    Env.package(None, tmp_path, {**SOURCE, "sglang/version.py": '__version__ = "0.5.9"\n'})
    row = engine(agent("budget", python, engine="sglang", interpreter=python, paths=[str(tmp_path)]))
    assert (row.text("version"), row.text("origin")) == ("0.5.9", f"{tmp_path}/sglang")


@pytest.mark.parametrize(
    ("interpreter", "word"),
    [("/nowhere/python", "does not exist"), ("no-such-word", "not found"), ("/dev/null", "neither")],
)  # fmt: skip
def test_an_interpreter_that_is_none_is_a_gap(interpreter, word, agent):
    report = agent("budget", engine="sglang", interpreter=interpreter)
    assert report.one("budget-engine") is None
    assert any(gap.startswith("budget-engine") and word in gap for gap in report.gaps())


def test_a_hanging_or_lying_interpreter_costs_its_deadline_and_no_more(agent, tmp_path):
    hangs, lies = "#!/bin/sh\nexec sleep 600\n", "#!/bin/sh\necho '[1]'; echo oops\n"
    for text, word, deadline in ((hangs, "timeout", 6), (lies, "garbled", 60)):
        fake = tmp_path / "python3"
        fake.write_text(text)
        fake.chmod(0o755)
        report = agent("budget", engine="sglang", interpreter=str(fake), deadline=deadline)
        assert any(gap.startswith(f"budget-engine: {word}") for gap in report.gaps()), report.gaps()
        assert report.one("budget-gpus") is not None


def test_source_is_bounded_and_what_is_left_out_is_named(env, agent):
    big = "hicache_size = 1\n" + "#" * (4 << 20)
    many = {f"sglang/srt/m{i}.py": "hicache_size = 1\n" + "#" * (2 << 20) for i in range(6)}
    env.package(env.site, {**SOURCE, "sglang/srt/a_big.py": big, **many})
    report = agent("budget", engine="sglang", interpreter=env.python)
    missing = {r.text("path"): r.text("missing") for r in report.all("budget-source") if "missing" in r}
    assert "larger" in missing["sglang/srt/a_big.py"]
    assert missing["sglang/srt/m5.py"] == "too much source"
    assert not gathered(report).proofs[0].proved


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def test_memory_numa_hugepages_and_unified_limits(agent, tmp_path):
    node = "Node {0} MemTotal: 1048576 kB\nNode {0} MemFree: 1024 kB\nNode {0} Active(file): 8 kB\n"
    cgroup = "sys/fs/cgroup/system.slice"
    root = tree(tmp_path, {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/system.slice/s.service\n",
        f"{cgroup}/memory.max": f"{200 * GIB}\n", f"{cgroup}/memory.high": "max\n",
        f"{cgroup}/memory.current": f"{60 * GIB}\n",
        f"{cgroup}/memory.stat": f"anon 1\nactive_file {20 * GIB}\ninactive_file {10 * GIB}\n",
        f"{cgroup}/s.service/memory.max": "max\n", f"{cgroup}/s.service/memory.current": "5\n",
        **{f"sys/devices/system/node/node{n}/meminfo": node.format(n) for n in (0, 1)},
        "sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "10\n",
        "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages": "4\n",
        "dev/shm/x": "",
    })  # fmt: skip
    facts = gathered(agent("budget", root=root)).facts
    assert facts.available == Known(445 * GIB) and facts.total == Known(449 * GIB)
    assert facts.cgroup_room == Known(170 * GIB)
    assert [(n.number, n.total, n.free) for n in facts.numa] == [(0, GIB, 1032 << 10), (1, GIB, 1032 << 10)]
    assert [(h.size, h.total, h.free) for h in facts.hugepages] == [(2 << 20, 10, 4)]
    assert isinstance(facts.shm, Known)


def test_legacy_limits_and_none_at_all(agent, tmp_path):
    folder = "sys/fs/cgroup/memory/docker/abc"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "12:pids:/x\n9:memory:/docker/abc\n0::/\n",
        f"{folder}/memory.limit_in_bytes": f"{100 * GIB}\n",
        f"{folder}/memory.usage_in_bytes": f"{30 * GIB}\n",
        f"{folder}/memory.stat": f"total_active_file {5 * GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "7\n",
    }
    root = tree(tmp_path, files)
    assert gathered(agent("budget", root=root)).facts.cgroup_room == Known(75 * GIB)
    (tmp_path / folder / "memory.limit_in_bytes").write_text(f"{(1 << 63) - 4096}\n")
    assert gathered(agent("budget", root=root)).facts.cgroup_room == Known(None)


def test_a_running_server_is_seen_with_its_words_and_without_its_secrets(start, agent, tmp_path, monkeypatch):
    tree(tmp_path, {"sglang/__init__.py": "", "sglang/launch_server.py": SLEEPER})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = ["--model-path", "org/m", "--tp", "2", "--hicache-size", "3", "--api-key", "hunter2", "--port", "9"]
    child = start("", argv=[sys.executable, "-m", "sglang.launch_server", *words])
    report = agent("budget", engine="")
    (row,) = [r for r in report.one("budget-others").rows("servers") if r.number("pid") == child.pid]
    assert "hunter2" not in json.dumps(row.raw)
    assert row.number("anon") > 1 << 20
    (mine,) = [r for r in gathered(report).running if r.pid == child.pid]
    assert (mine.launch.engine, mine.launch.value("hicache-size"), mine.launch.model) == ("sglang", "3", "org/m")


def test_a_model_is_found_in_a_folder_and_in_a_hub(agent, tmp_path):
    snapshot = "hub/models--org--m/snapshots/abc"
    tree(tmp_path, {"m/config.json": '{"a": 1}', "m/x.safetensors": "12345", "m/x.bin": "1", "hub/.x": "",
                    f"{snapshot}/config.json": '{"b": 2}', "hub/models--org--m/refs/main": "abc"})  # fmt: skip
    found = gathered(agent("budget", model=str(tmp_path / "m")))
    assert found.config is not None and found.config.fields == {"a": 1} and found.facts.weights == Known(5)
    found = gathered(agent("budget", model="org/m", homes=[str(tmp_path / "hub")]))
    assert found.config is not None and found.config.fields == {"b": 2}
    (tmp_path / "m/config.json").write_text('{"a": ')
    found = gathered(agent("budget", model=str(tmp_path / "m")))
    assert found.config is None and any("not JSON" in gap for gap in found.gaps)


def test_files_that_the_launch_names_are_brought(agent, tmp_path):
    tree(tmp_path, {"s.yaml": "tp-size: 8\n"})
    report = agent("budget", texts=[str(tmp_path / "s.yaml"), str(tmp_path / "none.yaml")])
    assert gathered(report).files == ((str(tmp_path / "s.yaml"), "tp-size: 8\n"),)
    assert any("none.yaml" in gap for gap in report.gaps())
    tree(tmp_path, {"sgl.env": "HF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaa\nARGS='--tp 8 --api-key abc'\n"})
    report = agent("budget", texts=[str(tmp_path / "sgl.env"), str(tmp_path / "none.env")])
    secret, none = gathered(report).files
    assert secret[1] == "HF_TOKEN=***\nARGS='--tp 8 --api-key ***'\n"
    assert none == (str(tmp_path / "none.env"), "") and any("none.env" in gap for gap in report.gaps())


# --- the whole way ------------------------------------------------------------------------------------------------


@pytest.fixture
def incident(env):
    """The engine of the incident in a real environment."""
    env.package(env.site, sources("sglang", "0.5.9"))
    env.metadata("0.5.9")
    return env


def preflight(*words: str) -> int:
    assert "preflight" in COMMANDS
    return command_line(["preflight", *words])


@pytest.fixture(autouse=True)
def _named(monkeypatch):
    monkeypatch.setitem(COMMANDS, "preflight", ("preflight", ""))


def launch(env, size):
    return [env.python, "-m", "sglang.launch_server", "--model-path", "/m", "--tp", "8", "--hicache-size", str(size)]


def test_here_proves_from_the_interpreter_of_the_command(incident, capsys, tmp_path):
    facts = str(tmp_path / "facts.json")
    assert preflight("--here", "--save-facts", facts, "--", *launch(incident, 100_000)) == 1
    said = capsys.readouterr().out
    assert said.startswith("does-not-fit: 100000 GB x 8 ranks = 800000 GB")
    assert "proved: GB (1e9) per rank, sglang/srt/mem_cache/memory_pool_host.py:159" in said
    assert preflight("--facts", facts, "--json", "--", *launch(incident, 100_000)) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["fit"] == "does-not-fit" and value["proofs"][0]["proved"]


def test_a_config_of_ones_own_makes_it_exact(incident, capsys, tmp_path):
    config = {"num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 64,
              "torch_dtype": "bfloat16"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    given = ["--loading", "1MiB", "--margin", "1MiB", "--model-config", str(tmp_path / "config.json")]
    command = launch(incident, 1)
    command[command.index("--tp") + 1] = "1"
    assert preflight("--here", *given, "--", *command) == 0
    assert capsys.readouterr().out.startswith("fits: 1 GB of ")


def test_a_unit_is_judged_with_the_files_that_it_names(incident, capsys, tmp_path):
    unit, run = tmp_path / "sgl.service", tmp_path / "run.sh"
    tree(tmp_path, {"sgl.env": "SIZE=100000\nHF_TOKEN=hf_aaaaaaaaaaaaaaaaaaaaaa\n"})
    command = f"{incident.python} -m sglang.launch_server --model-path /m --tp 8 --hicache-size ${{SIZE}}"
    head = f"[Service]\nEnvironmentFile=-{tmp_path}/none.env\nEnvironmentFile={tmp_path}/sgl.env\n"
    facts = tmp_path / "facts.json"
    for text in (f"{head}ExecStart={command}\n", f"{head}ExecStart={run}\n"):
        unit.write_text(text)
        run.write_text(f"#!/bin/sh\nexec {command}\n")
        assert preflight("--here", "--save-facts", str(facts), "--", str(unit)) == 1
        assert capsys.readouterr().out.startswith("does-not-fit: 100000 GB x 8 ranks = 800000 GB")
        assert "hf_aaa" not in facts.read_text()
    tree(tmp_path, {"sgl.service.d/size.conf": "[Service]\nEnvironmentFile=\nEnvironment=SIZE=200000\n"})
    assert preflight("--here", "--", str(unit)) == 1
    assert capsys.readouterr().out.startswith("does-not-fit: 200000 GB x 8 ranks")
    run.unlink()
    assert preflight("--here", "--", str(unit)) == 2
    assert f"{run} is run, and its text was not given" in capsys.readouterr().err


def test_files_beside_a_compose_file_are_read(incident, capsys, tmp_path):
    text = "services:\n  a:\n    image: lmsysorg/sglang:v0.5.9\n    env_file: [sizes.env]\n"
    text += '    command: bash -c "python3 -m sglang.launch_server --model-path m --tp $${TP} --hicache-size ${SIZE}"\n'
    tree(tmp_path, {"compose.yaml": text, "sizes.env": "TP=8\n", ".env": "SIZE=100000\n"})
    assert preflight("--here", "--", str(tmp_path / "compose.yaml")) == 1
    assert "does-not-fit: 100000 GB x 8 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["--here"],
        ["--here", "--"],
        ["--", "vllm", "serve", "m"],
        ["--here", "--facts", "x", "--", "vllm", "serve", "m"],
        ["--facts", "/nowhere", "--", "vllm", "serve", "m"],
        ["--here", "--", "ls"],
        ["--here", "--", "vllm serve 'm"],
        ["--here", "--loading", "40", "--", "vllm", "serve", "m"],
        ["--here", "--margin", "-3GiB", "--", "vllm", "serve", "m"],
    ],
)
def test_bad_input_is_a_usage_error_with_its_place(words, capsys):
    assert preflight(*words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_followed_log_ends_the_watch_at_the_line_that_dooms_it(incident, capsys, tmp_path):
    log = tmp_path / "server.log"
    line = "[x TP{}] Allocating {}.00 GB host memory for hierarchical KV cache.\n"
    log.write_text(line.format(0, 100_000))
    assert preflight("--here", "--follow", str(log), "--", *launch(incident, 100_000)) == 1
    assert "will not fit: TP0" in capsys.readouterr().err


def test_lines_come_as_they_are_written_and_after_the_log_was_turned_over(tmp_path):
    log = tmp_path / "log"
    steps = iter([lambda: log.write_text("a\nb"), lambda: log.write_text("a\nbc\n"), lambda: log.write_text("d\n")])
    seen = []
    now = iter(range(10_000))

    def pause(_: float) -> None:
        next(steps, lambda: None)()

    for text in follow(LocalShell(), str(log), seconds=40, pause=pause, clock=lambda: float(next(now))):
        seen.append(text)
    assert seen == ["a", "bc", "d"]


def test_facts_files_that_are_none_are_refused_with_the_place(tmp_path):
    report = question(LocalShell(), {"do": "budget"})
    good = tmp_path / "good.json"
    save_facts(str(good), report, {"engine": "sglang"})
    assert gathered(load_facts(str(good))) == gathered(report)
    for text, word in (("{", "line 1"), ("[]", "no facts file"), ('{"schema": 1, "records": [1]}', "records"),
                       ('{"schema": 2, "records": []}', "no facts file"), ("[" * 100_000, "not usable")):  # fmt: skip
        bad = tmp_path / "bad.json"
        bad.write_text(text)
        with pytest.raises(Problem, match=word):
            load_facts(str(bad))
    with pytest.raises(Problem, match="No such file"):
        load_facts(str(tmp_path / "none"))


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A target behind a real sshd, as the configuration names it."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    server = sshd_in(tmp_path / "sshd")
    config = tmp_path / "config.toml"
    config.write_text(
        f'[ssh]\nuser = "root"\nport = {server.port}\nidentity_file = "{server.user_key}"\n'
        f'known_hosts = "{server.known_hosts}"\n[targets.node-174]\naddress = "127.0.0.1"\n'
    )
    yield ["--config", str(config), "--state-dir", str(tmp_path / "state"), "node-174"]
    server.stop()


def test_a_target_is_asked_over_ssh_and_its_log_followed_there(node, incident, capsys, tmp_path):
    log = tmp_path / "server.log"
    log.write_text("[x TP1] Allocating 99.00 GB host memory for hierarchical KV cache.\n")
    assert preflight(*node, "--follow", str(log), "--", *launch(incident, 100_000)) == 1
    said = capsys.readouterr()
    assert "proved: GB (1e9) per rank, sglang/srt/mem_cache/memory_pool_host.py:159" in said.out
    assert "will not fit: TP1: 99.0 GB" in said.err


def test_a_target_that_does_not_answer_is_an_error_and_no_verdict(node, capsys, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("port = ", "port = 1 # "))
    assert preflight(*node, "--", "vllm", "serve", "m") == 2
    assert "refused" in capsys.readouterr().err


def test_a_servers_own_command_is_checked_before_it_is_started_again(incident):
    result = check(LocalShell(), launch(incident, 100_000))
    assert result is not None and result.exit_code == 1 and result.proofs[0].proved
    assert check(LocalShell(), ["sleep", "9"]) is None
