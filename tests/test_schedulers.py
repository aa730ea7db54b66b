"""The ready files of docs/schedulers, judged by what reads them: systemd, cron, Nagios, Icinga 2, a real slurmctld.

kubectl is played by a program that keeps a node in a file, answers in kubectl's words and refuses an old version as the
API does. Seen to fail on: a directive misspelled, a minute of 61, an unknown key in each monitoring system's file, a
reason that is not ours given back, a node name that scontrol takes for many, a patch without the version.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import docs
from tests.runbooks import accepted

READY = docs.ROOT / "docs" / "schedulers"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-recover-tests"
JUDGES = CACHE / "judges" / "root"
LIB = JUDGES / "usr" / "lib" / "x86_64-linux-gnu"
FOREIGN = {"LD_LIBRARY_PATH": f"{LIB}:{LIB / 'slurm-wlm'}"}
SCORE = 15  # tenths of systemd-analyze's exposure level, 0 to 100


def judge(name: str) -> str:
    """A program out of Debian's packages; `tools/setup lab` fetches it."""
    found = next((p for p in (JUDGES / "usr/bin" / name, JUDGES / "usr/sbin" / name) if p.exists()), None)
    assert found is not None, f"{name} is not in {JUDGES}: run tools/setup lab"
    return str(found)


def ran(*words: str | Path, env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Its output whole, stderr after stdout; it ends within a minute."""
    done = subprocess.run(
        [str(w) for w in words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )
    done.stdout += done.stderr
    return done


# -- systemd


UNITS = sorted((READY / "systemd").glob("gpu-recover-*"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The units with a program that exists here in the place of /usr/local/bin/gpu-recover."""
    folder = tmp_path_factory.mktemp("units")
    for unit in UNITS:
        text = unit.read_text().replace("/usr/local/bin/gpu-recover", "/bin/true")
        (folder / unit.name).write_text(text)
    return folder


@pytest.mark.parametrize("unit", UNITS, ids=lambda u: u.name)
def test_systemd_finds_nothing_wrong_with_the_units(unit: Path, installed: Path) -> None:
    done = ran(
        "systemd-analyze", "verify", "--man=no", installed / unit.name, env={"SYSTEMD_UNIT_PATH": f"{installed}:"}
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("unit", [u for u in UNITS if u.suffix == ".service"], ids=lambda u: u.name)
def test_the_services_may_do_little(unit: Path, installed: Path) -> None:
    done = ran(
        "systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={SCORE}", installed / unit.name
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1]
    text = unit.read_text()
    for needed in ("User=gpu-recover", "NoNewPrivileges=yes", "ProtectSystem=strict", "StateDirectory=gpu-recover",
                   "LoadCredential=pve.secret:", "CapabilityBoundingSet=\n"):  # fmt: skip
        assert needed in text, needed


def test_a_misspelled_directive_and_an_open_service_are_seen(installed: Path) -> None:
    worse = installed / "worse.service"
    worse.write_text("[Service]\nType=oneshot\nExecStart=/bin/true\nProtectSystm=strict\n")
    assert "ProtectSystm" in ran("systemd-analyze", "verify", "--man=no", worse).stdout
    assert ran("systemd-analyze", "security", "--offline=true", f"--threshold={SCORE}", worse).returncode != 0


def test_timers_have_a_service_and_spread_their_starts() -> None:
    for timer in (READY / "systemd").glob("*.timer"):
        assert timer.with_suffix(".service").exists() and "RandomizedDelaySec=" in timer.read_text()


def test_the_account_is_one_that_systemd_can_make(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = ran("systemd-sysusers", f"--root={tmp_path}", READY / "systemd" / "gpu-recover.sysusers")
    assert done.returncode == 0, done.stdout
    assert "gpu-recover:x:" in (tmp_path / "etc" / "passwd").read_text()


def test_the_secret_is_read_as_the_page_says(tmp_path: Path) -> None:
    """`systemd-creds cat` prints what LoadCredential= placed, in every unit under the same name."""
    from recover.edge.proxmox.secret import Secret, from_command

    command = re.search(r"token_secret = \{ command = (\[.*?\]) \}", (READY / "README.md").read_text())
    assert command is not None
    (tmp_path / "pve.secret").write_text("not-a-real-secret\n")
    (tmp_path / "pve.secret").chmod(0o400)
    os.environ["CREDENTIALS_DIRECTORY"] = str(tmp_path)
    try:
        assert isinstance(from_command(json.loads(command[1])), Secret)
    finally:
        del os.environ["CREDENTIALS_DIRECTORY"]


# -- calls of our own command in all files


def own_calls(text: str) -> Iterator[str]:
    """Every call of gpu-recover in a ready file: in a unit, a crontab, a list of words or a line of shell."""
    for words in re.findall(r"/usr/local/bin/gpu-recover ([^\n]*)", text):
        yield words
    for words in re.findall(r"^#?\* \* \* \* \* .* gpu-recover (--.*)", text, re.M):
        yield words
    for listed in re.findall(r'args: (\[.*\])|"/usr/local/bin/gpu-recover", (.*?)\n\s*\]', text, re.S):
        yield " ".join(re.findall(r'"([^"]*)"', listed[0] or listed[1]))


FILES = [p for p in sorted(READY.rglob("*")) if p.is_file() and p.suffix not in (".md", ".pyc")]


def test_every_call_in_a_ready_file_is_one_that_the_parser_takes() -> None:
    found = {call: path.name for path in FILES for call in own_calls(path.read_text())}
    assert len(found) >= 6
    wrong = {f"{name}: {call}": said for call, name in found.items() if (said := accepted(f"gpu-recover {call}"))}
    assert not wrong
    assert all(re.search(r"--all|\$|@", call) for call in found), "neither --all nor a target"


def test_every_ready_file_is_named_in_its_page() -> None:
    page = (READY / "README.md").read_text()
    assert [str(p.relative_to(READY)) for p in FILES if f"({p.relative_to(READY)})" not in page] == []


# -- shell and cron


@pytest.mark.parametrize("script", [p for p in FILES if p.read_text().startswith("#!/bin/sh")], ids=lambda p: p.name)
def test_shellcheck_and_dash_find_nothing(script: Path) -> None:
    assert ran(judge("shellcheck"), script).stdout == ""
    assert ran("dash", "-n", script).stdout == ""
    assert os.access(script, os.X_OK)


def crontab(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Debian's own parser, on the file of a user: /etc/cron.d names the user between time and command."""
    (tmp_path / "tab").write_text(re.sub(r"^((?:\S+ +){4}\S+) +gpu-recover +", r"\1 ", text, flags=re.M))
    hidden = (
        f"mount -t tmpfs none /var/spool && mkdir -p /var/spool/cron/crontabs && {judge('crontab')} -n {tmp_path}/tab"
    )
    return ran("unshare", "--mount", "sh", "-c", hidden)


def test_cron_takes_the_file(tmp_path: Path) -> None:
    text = (READY / "cron" / "gpu-recover").read_text()
    assert "successfully checked" in crontab(text, tmp_path).stdout
    commented = re.sub(r"^#(\* )", r"\1", text, flags=re.M)
    assert commented != text and "successfully checked" in crontab(commented, tmp_path).stdout
    assert "bad minute" in crontab(text.replace("* * * * *", "61 * * * *"), tmp_path).stdout
    assert "%" not in text and text.endswith("\n")  # a % is a newline to cron, a last line without its end is ignored
    assert re.fullmatch(r"[A-Za-z0-9_-]+", "gpu-recover")  # as run-parts and cron want names there


# -- Prometheus


def test_the_textfile_is_whole_or_not_at_all(tmp_path: Path) -> None:
    script, file = READY / "prometheus" / "gpu-recover-textfile", tmp_path / "gpu.prom"
    text = 'gpu_recover_state{target="a"} 2\n'
    fake = program(tmp_path / "fake", "sys.stdout.write(os.environ['SAYS']); sys.exit(int(os.environ['CODE']))")

    def called(says: str, code: int, *targets: str) -> subprocess.CompletedProcess[str]:
        env = {"GPU_RECOVER": str(fake), "SAYS": says, "CODE": str(code), "LOG": str(tmp_path / "log")}
        return ran(script, file, *targets, env=env)

    assert called(text, 2).returncode == 0 and file.read_text() == text and file.stat().st_mode & 0o777 == 0o644
    assert logged(tmp_path / "log")[-1] == ["check", "--all", "-q", "--deadline", "50", "--format", "prometheus"]
    assert called("", 3).returncode == 1 and file.read_text() == text  # a wrong configuration: the old file stays
    assert called("half", 70).returncode == 1 and file.read_text() == text
    called(text, 0, "node 1", "$(touch x)")
    assert logged(tmp_path / "log")[-1][1:3] == ["node 1", "$(touch x)"]
    assert ran(script, tmp_path / "gpu.txt").returncode == 2 and ran(script).returncode == 2
    assert sorted(p.name for p in tmp_path.glob("gpu*")) == ["gpu.prom"]  # nothing is left beside it


# -- monitoring systems


def nagios(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "ours.cfg").write_text(text)
    (tmp_path / "base.cfg").write_text(BASE)
    places = "object_cache_file status_file lock_file temp_file command_file state_retention_file log_file"
    lines = [f"{name}={tmp_path}/{name}" for name in places.split()]
    lines += [f"cfg_file={tmp_path}/{name}.cfg" for name in ("base", "ours")]
    lines += [f"check_result_path={tmp_path}", f"temp_path={tmp_path}", "illegal_macro_output_chars=`~$&|'\"<>"]
    lines += ["nagios_user=root", "nagios_group=root"]
    (tmp_path / "nagios.cfg").write_text("\n".join([*lines, ""]))
    return ran(judge("nagios4"), "-v", tmp_path / "nagios.cfg")


BASE = """
define timeperiod {
    timeperiod_name  24x7
    alias            always
    monday           00:00-24:00
}
define command {
    command_name     nothing
    command_line     /bin/true
}
define contact {
    contact_name                   ops
    host_notification_commands     nothing
    service_notification_commands  nothing
    host_notification_period       24x7
    service_notification_period    24x7
}
define host {
    name                 generic-host
    max_check_attempts   1
    check_command        nothing
    check_period         24x7
    contacts             ops
    notification_period  24x7
    register             0
}
define service {
    name      generic-service
    contacts  ops
    register  0
}
"""


def test_nagios_takes_the_definitions_and_the_example(tmp_path: Path) -> None:
    text = (READY / "nagios" / "gpu-recover.cfg").read_text()
    example = re.sub(r"^#(?=define|}|    )", "", text, flags=re.M)
    assert example != text
    done = nagios(example, tmp_path)
    assert done.returncode == 0 and "Checked 1 services" in done.stdout, done.stdout[-600:]
    assert "Total Warnings: 0" in done.stdout
    assert nagios(example.replace("check_interval  ", "check_intervall "), tmp_path).returncode != 0


def icinga(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    (tmp_path / "ours.conf").write_text(text)
    (tmp_path / "main.conf").write_text(
        'object CheckCommand "hostalive" { command = [ "/bin/true" ] }\n'
        "object Endpoint NodeName { }\nobject Zone ZoneName { endpoints = [ NodeName ] }\n"
        f'include "{tmp_path}/ours.conf"\n'
    )
    places = [
        f"-D{name}={tmp_path}" for name in ("DataDir", "CacheDir", "LogDir", "SpoolDir", "InitRunDir", "ConfigDir")
    ]
    who = ["-DRunAsUser=root", "-DRunAsGroup=root", "-DNodeName=x", "-DZoneName=x"]
    program = LIB / "icinga2" / "sbin" / "icinga2"
    return ran(program, "daemon", "-C", "-c", tmp_path / "main.conf", *places, *who, env=FOREIGN)


def test_icinga_takes_the_definitions_and_the_example(tmp_path: Path) -> None:
    text = (READY / "icinga2" / "gpu-recover.conf").read_text()
    example = text.replace("/* Example:", "/* */").replace("\n*/", "\n")
    done = icinga(example, tmp_path)
    assert done.returncode == 0 and "Instantiated 1 Service" in done.stdout, done.stdout[-600:]
    assert icinga(example.replace("retry_interval", "retry_intervall"), tmp_path).returncode != 0


# -- Kubernetes


KNOWN = {  # as the API reference of Kubernetes 1.32 documents them
    "CronJob": "apiVersion kind metadata spec",
    "CronJob.spec": "schedule timeZone concurrencyPolicy startingDeadlineSeconds suspend successfulJobsHistoryLimit "
    "failedJobsHistoryLimit jobTemplate",
    "CronJob.spec.jobTemplate": "metadata spec",
    "CronJob.spec.jobTemplate.spec": "template backoffLimit activeDeadlineSeconds ttlSecondsAfterFinished parallelism "
    "completions completionMode suspend podFailurePolicy podReplacementPolicy",
    "CronJob.spec.jobTemplate.spec.template.spec": "containers initContainers volumes restartPolicy securityContext "
    "automountServiceAccountToken serviceAccountName enableServiceLinks terminationGracePeriodSeconds nodeSelector "
    "tolerations affinity imagePullSecrets hostNetwork dnsPolicy priorityClassName",
    "container": "name image command args env envFrom resources volumeMounts securityContext imagePullPolicy",
    "container.securityContext": "allowPrivilegeEscalation readOnlyRootFilesystem capabilities runAsNonRoot runAsUser "
    "runAsGroup seccompProfile privileged",
    "volume": "name configMap secret emptyDir persistentVolumeClaim projected",
}


def manifests() -> dict[str, dict[str, Any]]:
    found = [d for path in (READY / "kubernetes").glob("*.yaml") for d in yaml.safe_load_all(path.read_text())]
    return {one["kind"]: one for one in found}


def test_the_cronjob_has_documented_fields_only_and_may_do_nothing() -> None:
    job = manifests()["CronJob"]
    assert (job["apiVersion"], job["spec"]["concurrencyPolicy"]) == ("batch/v1", "Forbid")
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    places = {path: job for path in KNOWN if path.startswith("CronJob")}
    for path in places:
        here: Any = job
        for word in path.split(".")[1:]:
            here = here[word]
        assert set(here) <= set(KNOWN[path].split()), path
    assert set(container) <= set(KNOWN["container"].split())
    assert set(container["securityContext"]) <= set(KNOWN["container.securityContext"].split())
    assert all(set(volume) <= set(KNOWN["volume"].split()) for volume in pod["volumes"])
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    assert pod["automountServiceAccountToken"] is False and pod["restartPolicy"] == "Never"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]
    assert job["spec"]["jobTemplate"]["spec"]["activeDeadlineSeconds"] > int(container["args"][-1])


def test_the_manifests_configuration_is_one() -> None:
    import tomllib

    from recover.core.config import parse_config

    data = manifests()["ConfigMap"]["data"]
    config, problems = parse_config(tomllib.loads(data["config.toml"]))
    assert problems == () and config is not None
    assert manifests()["ClusterRole"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]


# -- hooks


def program(path: Path, body: str) -> Path:
    """A Python program that logs its words, one JSON list a line, to $LOG, and then does `body`."""
    path.write_text(
        f"#!{sys.executable} -IS\nimport json, os, sys\nwith open(os.environ['LOG'], 'a') as log:\n"
        f"    log.write(json.dumps(sys.argv[1:]) + '\\n')\n{textwrap.dedent(body)}\n"
    )
    path.chmod(0o755)
    return path


def logged(path: Path) -> list[list[str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


HOSTILE = "GPU 0 (x) is lost; $(touch /tmp/x) `id` 'a' \"b\" | State=RESUME\nReason=x \x1b[31m"


def event(kind: str = "before-disruption", target: str = "node-174", **more: Any) -> str:
    return json.dumps({"schema": 1, "event": kind, "target": target, "run": "R1", "why": HOSTILE, **more})


def changed(state: str, flapping: bool = False) -> str:
    after = {"state": state, "signals": ["gpu-lost"], "says": HOSTILE, "since": 1.0}
    return json.dumps(
        {"schema": 1, "event": "state-change", "target": "node-174", "after": after, "flapping": flapping}
    )


class Slurm:
    """A real slurmctld on loopback with nodes that nobody serves; `scontrol` speaks to it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.conf = folder / "slurm.conf"
        (folder / "state").mkdir()
        self.conf.write_text(
            f"ClusterName=t\nSlurmctldHost={socket.gethostname()}(127.0.0.1)\nSlurmctldPort={port}\nSlurmUser=root\n"
            "AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n"
            f"SelectType=select/linear\nPluginDir={LIB}/slurm-wlm\nStateSaveLocation={folder}/state\n"
            f"SlurmctldPidFile={folder}/pid\nSlurmctldLogFile={folder}/log\nReturnToService=2\nMpiDefault=none\n"
            "NodeName=node-[174-177] NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN\nPartitionName=p Nodes=ALL Default=YES\n"
        )
        self.env = {**FOREIGN, "SLURM_CONF": str(self.conf)}
        self.child = subprocess.Popen(
            [judge("slurmctld-wlm"), "-D", "-c", "-f", str(self.conf)], env={**os.environ, **self.env},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def scontrol(self, *words: str) -> str:
        return ran(judge("scontrol"), *words, env=self.env).stdout

    def node(self, name: str = "node-174") -> tuple[bool, str]:
        shown = self.scontrol("show", "node", name)
        state = re.search(r"State=(\S+)", shown)
        reason = re.search(r"Reason=(.*?)(?: \[\w+@.*)?$", shown, re.M)
        assert state is not None, shown
        return "DRAIN" in state[1], reason[1] if reason else ""

    def hook(self, verb: str, stdin: str, *more: str) -> subprocess.CompletedProcess[str]:
        ours = READY / "slurm" / "gpu-recover-slurm"
        return ran(sys.executable, "-IS", ours, verb, "--scontrol", judge("scontrol"), *more, env=self.env, stdin=stdin)

    def end(self) -> None:
        os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(30)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    made = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        until(lambda: "is UP" in made.scontrol("ping"))
        yield made
    finally:
        made.end()


def until(true: Callable[[], bool], pauses: int = 300) -> None:
    pause = threading.Event()
    for _ in range(pauses):
        if true():
            return
        pause.wait(0.1)
    raise AssertionError("it did not come true")


@pytest.fixture
def undrained(slurm: Slurm) -> Slurm:
    slurm.scontrol("update", "NodeName=node-[174-177]", "State=UNDRAIN")
    return slurm


def test_slurm_a_drain_is_given_back_and_both_may_be_done_twice(undrained: Slurm) -> None:
    assert [undrained.hook("drain", event()).returncode for _ in range(2)] == [0, 0]
    drained, reason = undrained.node()
    assert (
        drained and reason.startswith("gpu-recover: GPU 0 (x) is lost; $(touch /tmp/x) id a b") and "(run R1)" in reason
    )
    assert "\x1b" not in reason and [undrained.node(f"node-{n}")[0] for n in (175, 176, 177)] == [False] * 3
    assert [undrained.hook("undrain", event("after-recovery")).returncode for _ in range(2)] == [0, 0]
    assert not undrained.node()[0]


def test_slurm_what_somebody_else_drained_stays_as_it_is(undrained: Slurm) -> None:
    undrained.scontrol("update", "NodeName=node-174", "State=DRAIN", "Reason=memory swap, kim")
    for verb in ("drain", "undrain"):
        assert undrained.hook(verb, event()).returncode == 0
        assert undrained.node() == (True, "memory swap, kim")


def test_slurm_a_reason_that_was_changed_is_not_ours_any_more(undrained: Slurm) -> None:
    undrained.hook("drain", event())
    undrained.scontrol("update", "NodeName=node-174", "State=DRAIN", "Reason=kim looks at it")
    undrained.hook("undrain", event("after-recovery"))
    assert undrained.node() == (True, "kim looks at it")


@pytest.mark.parametrize("name", ["ALL", "node-[174-177]", "node-174,node-175", "", "--help", "node-174 State=RESUME"])
def test_slurm_a_name_of_many_nodes_is_refused(undrained: Slurm, name: str) -> None:
    done = undrained.hook("drain", event(target=name))
    assert done.returncode == 1 and "no name of one Slurm node" in done.stdout
    assert not any(undrained.node(f"node-{n}")[0] for n in range(174, 178))


def test_slurm_follows_a_state_and_does_nothing_about_what_is_not_known(undrained: Slurm) -> None:
    for state, flapping, drained in (
        ("WARNING", False, False), ("CRITICAL", False, True), ("UNKNOWN", False, True), ("OK", True, True),
        ("OK", False, False), ("UNKNOWN", False, False),
    ):  # fmt: skip
        assert undrained.hook("follow", changed(state, flapping)).returncode == 0
        assert undrained.node()[0] is drained, (state, flapping)


def test_slurm_a_whole_check_is_followed(undrained: Slurm, tmp_path: Path) -> None:
    one = {"why": "x", "gpus": []}
    targets = [
        {"target": "gpu-a", "status": "CRITICAL", **one}, {"target": "node-175", "status": "OK", **one},
        {"target": "node-176", "status": "UNKNOWN", **one}, {"target": "nowhere", "status": "CRITICAL", **one},
    ]  # fmt: skip
    (tmp_path / "map").write_text("# target node\ngpu-a node-174\n")
    check = json.dumps({"schema": 1, "status": "CRITICAL", "targets": targets})
    undrained.scontrol("update", "NodeName=node-176", "State=DRAIN", "Reason=gpu-recover: x")
    done = undrained.hook("sync", check, "--map", str(tmp_path / "map"))
    assert done.returncode == 1 and "does not show node nowhere" in done.stdout  # the others are done all the same
    assert [undrained.node(f"node-{n}")[0] for n in (174, 175, 176)] == [True, False, True]


def test_slurm_no_jobs_drains_and_declines(undrained: Slurm, tmp_path: Path) -> None:
    squeue = program(tmp_path / "squeue", "print(os.environ.get('JOBS', ''))")
    more = ("--no-jobs", "--squeue", str(squeue))
    undrained.env = {**undrained.env, "LOG": str(tmp_path / "log"), "JOBS": "4711\n4712"}
    done = undrained.hook("drain", event(), *more)
    assert done.returncode == 1 and "jobs run on node-174: 4711 4712" in done.stdout and undrained.node()[0]
    assert "--nodelist=node-174" in logged(tmp_path / "log")[0]
    undrained.env = {**undrained.env, "JOBS": ""}
    assert undrained.hook("drain", event(), *more).returncode == 0


def test_slurm_what_goes_wrong_is_said_in_one_line(undrained: Slurm, tmp_path: Path) -> None:
    for stdin, says in (("", "Expecting value"), ("[]", "schema 1"), (event(target="nope"), "does not show node nope")):
        done = undrained.hook("drain", stdin)
        assert done.returncode == 1 and says in done.stdout and "Traceback" not in done.stdout
    done = undrained.hook("drain", event(), "--scontrol", "/nowhere/scontrol")
    assert (
        done.returncode == 1
        and done.stdout.splitlines()[-1] == "gpu-recover-slurm: /nowhere/scontrol: No such file or directory"
    )
    undrained.hook("drain", event(), "--dry-run")
    assert not undrained.node()[0]


def test_the_node_asks_the_exporter_and_acts_on_what_is_fresh_and_clear(undrained: Slurm, tmp_path: Path) -> None:
    told = ""

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(told.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = [sys.executable, "-IS", str(READY / "slurm" / "gpu-recover-slurm"), "--scontrol", judge("scontrol")]
    ours = program(tmp_path / "drain", f"import subprocess; sys.exit(subprocess.call({words!r} + sys.argv[1:]))")
    (tmp_path / "settings").write_text(
        f"URL=http://127.0.0.1:{server.server_port}/metrics\nTARGET=gpu-a  # there\nMAX_AGE=600\nDRAIN={ours}\n"
    )
    env = {**undrained.env, "GPU_RECOVER_NODE_HEALTH": str(tmp_path / "settings"), "SLURMD_NODENAME": "node-174",
           "LOG": str(tmp_path / "log"), "no_proxy": "127.0.0.1"}  # fmt: skip

    def asked(state: int, age: float, target: str = "gpu-a", lasts: str = "", flapping: int = 0) -> int:
        import time

        nonlocal told
        one, at = f'target="{target}"', time.time() - age
        flaps = f"gpu_recover_flapping{{%}} {flapping}\n"
        known = {"-": flaps, "": ""}
        told = known.get(lasts, f"{flaps}gpu_recover_hard_state{{%}} {lasts}\n").replace("%", one)
        told += (
            f"gpu_recover_state{{{one}}} {state}\ngpu_recover_look_timestamp_seconds{{{one}}} {at:.3f}\n"
            f'gpu_recover_finding{{{one},signal="gpu-lost",cure="vm",where="a}}\\"b"}} 1\n'
            'gpu_recover_state{target="z"} 0\n'
        )
        return ran(sys.executable, "-IS", READY / "slurm" / "gpu-recover-node-health", env=env).returncode

    try:
        for state, age, target, drained in (
            (3, 1, "gpu-a", False), (2, 9999, "gpu-a", False), (2, 1, "other", False), (2, 1, "gpu-a", True),
            (1, 1, "gpu-a", True), (3, 1, "gpu-a", True), (0, 9999, "gpu-a", True), (0, 1, "gpu-a", False),
        ):  # fmt: skip
            assert asked(state, age, target) == 0
            assert undrained.node()[0] is drained, (state, age, target)
        # One look neither drains nor gives back where looks are remembered, and before there is a state nothing does.
        for state, lasts, drained in ((2, "-", False), (2, "0", False), (0, "2", True), (0, "3", True), (0, "-", True)):
            assert asked(state, 1, lasts=lasts) == 0
            assert undrained.node()[0] is drained, (state, lasts)
        asked(0, 1, lasts="0", flapping=1)
        assert undrained.node()[0], "given back while it flaps"
        asked(2, 1, lasts="0")
        assert not undrained.node()[0]
        asked(2, 1)
        assert undrained.node()[1] == "gpu-recover: gpu-lost"
    finally:
        server.shutdown()
        server.server_close()
    done = ran(sys.executable, "-IS", READY / "slurm" / "gpu-recover-node-health", env=env)
    assert done.returncode == 1 and "refused" in done.stdout and undrained.node()[0]  # not reached: nothing changes


KUBECTL = """
    import pathlib
    words = [w for w in sys.argv[1:] if not w.startswith(("--kubeconfig", "--context"))]
    file = pathlib.Path(os.environ["NODE"])
    node = json.loads(file.read_text())
    if words[-1] != node["metadata"]["name"]:
        sys.exit('Error from server (NotFound): nodes "%s" not found' % words[-1])
    if words[0] == "get":
        print(json.dumps(node))
        if os.environ.get("MEDDLES") == "1":  # the kubelet writes between our look and our patch
            node["metadata"]["resourceVersion"] += "0"
            file.write_text(json.dumps(node))
        sys.exit(0)
    assert words[:3] == ["patch", "node", "--type=merge"] and words[-2] == "--"
    change = json.loads(words[3].removeprefix("--patch="))
    if change["metadata"].pop("resourceVersion") != node["metadata"]["resourceVersion"]:
        sys.exit('Error from server (Conflict): Operation cannot be fulfilled on nodes "%s": the object has been '
                 "modified; please apply your changes to the latest version and try again" % words[-1])
    def merge(into, what):
        for key, value in what.items():
            if isinstance(value, dict):
                merge(into.setdefault(key, {}), value)
            elif value is None:
                into.pop(key, None)
            else:
                into[key] = value
    merge(node, change)
    node["metadata"]["resourceVersion"] += "1"
    file.write_text(json.dumps(node))
"""


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.file, self.log = folder / "node", folder / "log"
        self.kubectl = program(folder / "kubectl", KUBECTL)
        self.meddles = "0"
        self.write({})

    def write(self, spec: dict[str, Any], **annotations: str) -> None:
        meta = {"name": "node-174", "resourceVersion": "7", "annotations": annotations}
        self.file.write_text(json.dumps({"metadata": meta, "spec": spec}))

    def node(self) -> tuple[bool, str | None]:
        found = json.loads(self.file.read_text())
        return "unschedulable" in found["spec"], found["metadata"]["annotations"].get("gpu-recover/cordoned")

    def hook(self, verb: str, stdin: str, *more: str) -> subprocess.CompletedProcess[str]:
        env = {"LOG": str(self.log), "NODE": str(self.file), "MEDDLES": self.meddles}
        ours = READY / "kubernetes" / "gpu-recover-kubernetes"
        return ran(sys.executable, "-IS", ours, verb, "--kubectl", self.kubectl, *more, env=env, stdin=stdin)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def test_kubernetes_a_cordon_is_given_back_and_both_may_be_done_twice(cluster: Cluster) -> None:
    assert [cluster.hook("cordon", event()).returncode for _ in range(2)] == [0, 0]
    cordoned, mark = cluster.node()
    assert cordoned and mark is not None and mark.endswith("(run R1)") and "\x1b" not in mark and "\n" not in mark
    assert [cluster.hook("uncordon", event("after-recovery")).returncode for _ in range(2)] == [0, 0]
    assert cluster.node() == (False, None)
    assert sum(words[0] == "patch" for words in logged(cluster.log)) == 2


def test_kubernetes_what_somebody_else_cordoned_stays_as_it_is(cluster: Cluster) -> None:
    cluster.write({"unschedulable": True})
    for verb in ("cordon", "uncordon"):
        assert "somebody else" in cluster.hook(verb, event()).stdout and cluster.node() == (True, None)
    cluster.write({}, **{"gpu-recover/cordoned": "x"})  # a person uncordoned what was ours
    cluster.hook("uncordon", event())
    assert cluster.node() == (False, None)


def test_kubernetes_a_change_in_between_is_never_overwritten(cluster: Cluster) -> None:
    cluster.meddles = "1"
    done = cluster.hook("cordon", event())
    assert done.returncode == 1 and "Conflict" in done.stdout and cluster.node() == (False, None)
    assert sum(words[0] == "patch" for words in logged(cluster.log)) == 4  # it looked again each time


def test_kubernetes_follows_a_state_and_passes_on_where_the_cluster_is(cluster: Cluster) -> None:
    where = ("--kubeconfig", "/etc/kube config", "--context", "gpu")
    for state, flapping, cordoned in (
        ("WARNING", False, False), ("CRITICAL", False, True), ("UNKNOWN", False, True), ("OK", True, True),
        ("OK", False, False),
    ):  # fmt: skip
        assert cluster.hook("follow", changed(state, flapping), *where).returncode == 0
        assert cluster.node()[0] is cordoned, (state, flapping)
    assert all(words[:2] == ["--kubeconfig=/etc/kube config", "--context=gpu"] for words in logged(cluster.log))


@pytest.mark.parametrize("name", ["--all", "NODE", "", "a b", "node-174/../x", "nope"])
def test_kubernetes_a_wrong_name_is_said(cluster: Cluster, name: str) -> None:
    done = cluster.hook("cordon", event(target=name))
    assert done.returncode == 1 and ("no name of" in done.stdout or "NotFound" in done.stdout)
    assert cluster.node() == (False, None) and "Traceback" not in done.stdout


def test_the_hooks_run_on_the_python_of_old_nodes() -> None:
    """3.6: what is newer is a syntax error there."""
    import ast

    for path in (*READY.glob("slurm/gpu-recover-*"), *READY.glob("kubernetes/gpu-recover-*")):
        ast.parse(path.read_text(), feature_version=(3, 6))
        assert os.access(path, os.X_OK) and path.read_text().startswith("#!/usr/bin/env python3\n")
    assert shutil.which("python3")
