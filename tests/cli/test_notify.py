"""notify test and list as a person types them; and whole runs of the command that tell people and run hooks."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.core.config import Config, parse_config
from recover.core.config_watch import WatchConfig
from recover.core.watch import Policy
from recover.edge import notify
from recover.edge.hooks import left_open
from recover.edge.store.folder import StateFolder
from recover.edge.store.journal import read_entries
from recover.edge.store.ledger import FileLedger
from recover.model.notice import Event, Notice
from recover.model.record import Acting, Began, Hooked, Hooking
from recover.model.watch import Breaker
from tests.cli.conftest import Cli
from tests.cli.simulated import SimulatedApp
from tests.edge.pager import PASSWORD, Pager, pager


@pytest.fixture
def desk() -> Iterator[Pager]:
    with pager() as found:
        yield found


@pytest.fixture
def config(tmp_path: Path, desk: Pager) -> Callable[..., Path]:
    """A configuration file with destinations of these names, and more text."""

    def made(*names: str, more: str = "") -> Path:
        text = ""
        for name in names:
            (tmp_path / f"{name}.url").write_text(desk.url(name) + "\n")
            (tmp_path / f"{name}.url").chmod(0o600)
            text += f'[notify.{name}]\nurl = {{ file = "{tmp_path}/{name}.url" }}\n'
        path = tmp_path / "config.toml"
        path.write_text(text + more)
        return path

    return made


HOOK = """#!{python}
import json, sys
given = json.load(sys.stdin)
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1], given["target"], given.get("step"), given.get("end")]) + "\\n")
"""


@pytest.fixture
def hooks(tmp_path: Path) -> Callable[[], list[list[Any]]]:
    """A program for all hooks; gives what it was called with."""
    log = tmp_path / "hooks.log"
    log.touch()
    program = tmp_path / "hook"
    program.write_text(HOOK.format(python=sys.executable, log=str(log)))
    program.chmod(0o755)
    return lambda: [json.loads(line) for line in log.read_text().splitlines()]


def hook_text(tmp_path: Path) -> str:
    events = ("before-disruption", "after-recovery", "gave-up")
    return "".join(f'[hooks.{e}]\ncommand = ["{tmp_path}/hook", "{{event}}"]\n' for e in events)


def configured(app: SimulatedApp, path: Path) -> SimulatedApp:
    import tomllib

    found, problems = parse_config(tomllib.loads(path.read_text()))
    assert isinstance(found, Config) and problems == ()
    app.config = replace(app.config, notify=found.notify, hooks=found.hooks)
    return app


# --- notify test


def test_a_test_message_goes_to_all_or_to_who_is_named(cli: Cli, config: Callable[..., Path], desk: Pager) -> None:
    path = str(config("oncall", "team"))
    ran = cli("--config", path, "notify", "test")
    assert (ran.code, ran.out) == (0, "oncall: accepted\nteam: accepted\n")
    assert desk.titles("oncall") == ["TEST gpu-recover: you would be told here"] and len(desk.got["team"]) == 1
    assert cli("notify", "test", "team", "--config", path).code == 0 and len(desk.got["oncall"]) == 1


def test_one_that_is_not_reached_ends_with_1_and_says_why_without_its_url(
    cli: Cli, config: Callable[..., Path], desk: Pager
) -> None:
    desk.answers["oncall"] = 401
    ran = cli("--config", str(config("oncall", "team")), "notify", "test", "--json")
    assert ran.code == 1 and PASSWORD not in ran.out + ran.err
    assert [json.loads(line) for line in ran.out.splitlines()] == [
        {"to": "oncall", "ok": False, "why": "refused with HTTP 401", "warnings": []},
        {"to": "team", "ok": True, "why": None, "warnings": []},
    ]


def test_without_apprise_it_ends_with_1_and_the_command_that_installs_it(
    cli: Cli, config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify.importlib.util, "find_spec", lambda name: None)
    ran = cli("--config", str(config("oncall")), "notify", "test")
    assert ran.code == 1 and "NOT told: apprise is not installed: pip install 'gpu-recover[notify]'" in ran.out


def test_a_wrong_name_and_no_destination_are_usage_errors(cli: Cli, config: Callable[..., Path]) -> None:
    wrong = cli("--config", str(config("oncall")), "notify", "test", "oncal")
    assert wrong.code == 2 and "did you mean oncall?" in wrong.err
    none = cli("--config", str(config()), "notify", "test")
    assert none.code == 2 and "[notify.NAME]" in none.err


def test_nothing_else_is_run_by_a_test_message(
    cli: Cli, config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], tmp_path: Path
) -> None:
    more = hook_text(tmp_path) + f'[hooks.state-change]\ncommand = ["{tmp_path}/hook", "x"]\n'
    assert cli("--config", str(config("oncall", more=more)), "notify", "test", "-q").code == 0
    assert hooks() == [] and not (tmp_path / "state").exists()


# --- runs


def test_a_run_drains_tells_and_gives_back_and_the_report_says_so(
    cli: Cli, config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], machines: Callable[..., SimulatedApp],
    tmp_path: Path, desk: Pager,
) -> None:  # fmt: skip
    app = configured(machines(**{"node-174": "dead-rank"}), config("team", more=hook_text(tmp_path)))
    ran = cli("node-174", "--approve", "vm", "-v", app=app)
    assert ran.code == 0
    assert [h[:2] for h in hooks()] == [["before-disruption", "node-174"], ["after-recovery", "node-174"]]
    assert "hook before-disruption: running " in ran.err and "hook after-recovery done" in ran.err
    assert "Hooks\n  hook before-disruption done" in ran.out
    assert desk.titles("team") == ["RECOVERED node-174"]
    assert "Tried: stop-service (by " in desk.got["team"][0]["message"]
    (folder,) = app.state.runs("node-174")
    kinds = [e.event for e in read_entries(folder / "journal.jsonl") if isinstance(e, (Hooking, Hooked))]
    assert kinds == ["before-disruption"] * 2 + ["after-recovery"] * 2
    followed = cli("follow", "node-174")
    assert followed.code == 0 and "hook after-recovery done" in followed.err
    listed = cli("history").out.splitlines()
    assert "hooks" in listed[0] and "before-disruption, after-recovery" in listed[1]
    told = json.loads(cli("history", "--json").out)["hooks"]
    assert [(h["event"], h["ok"]) for h in told] == [("before-disruption", True), ("after-recovery", True)]
    assert all(h["at"] > 0 and h["seconds"] >= 0 for h in told)
    ticket = cli("report", "latest", "--format", "markdown").out
    assert "## Hooks\n" in ticket and "| before-disruption | " in ticket and "| after-recovery | " in ticket


def test_a_run_that_gives_up_says_so_to_hook_and_people_and_a_dead_pager_changes_no_exit_code(
    cli: Cli, config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], machines: Callable[..., SimulatedApp],
    tmp_path: Path, desk: Pager,
) -> None:  # fmt: skip
    desk.answers["pager"] = 500
    app = configured(machines(**{"node-174": "vram-held-until-power-cycle"}),
                     config("team", "pager", more=hook_text(tmp_path)))  # fmt: skip
    ran = cli("node-174", "--yes", "--json", "-q", app=app)
    assert ran.code == 11 and hooks()[-1] == ["gave-up", "node-174", None, "blocked"]
    assert desk.titles("team") == ["NOT RECOVERED node-174"]
    assert "gpu-recover: notify.pager: could not be told (refused with HTTP 500)" in ran.err
    assert [h["event"] for h in json.loads(ran.out)["hooks"]] == ["before-disruption", "gave-up"]
    shown = cli("notify", "list", app=app)
    assert "pager: hears of" in shown.out and "not reached for" in shown.out and "refused with HTTP 500" in shown.out
    assert "not delivered yet: 1" in shown.out and PASSWORD not in shown.out


def test_a_hook_that_fails_blocks_the_run_and_says_how_to_lift_it(
    cli: Cli, config: Callable[..., Path], machines: Callable[..., SimulatedApp], tmp_path: Path
) -> None:
    more = '[hooks.before-disruption]\ncommand = ["sh", "-c", "echo node is busy >&2; exit 1"]\n'
    app = configured(machines(**{"node-174": "dead-rank"}), config(more=more))
    ran = cli("node-174", "--approve", "vm", "-q", app=app)
    assert ran.code == 11 and "refused (hook): sh ended with 1: node is busy" in ran.out
    assert "Next: mend sh, or set required = false in [hooks.before-disruption]" in ran.out
    (folder,) = app.state.runs("node-174")
    assert not [e for e in read_entries(folder / "journal.jsonl") if isinstance(e, (Began, Acting))]


@pytest.mark.parametrize(
    "words", [("plan", "node-174"), ("node-174", "--dry-run"), ("rehearse", "--fault", "dead-rank")]
)
def test_what_changes_nothing_runs_no_hook_and_tells_nobody(
    cli: Cli, config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], machines: Callable[..., SimulatedApp],
    tmp_path: Path, desk: Pager, words: tuple[str, ...],
) -> None:  # fmt: skip
    app = configured(machines(**{"node-174": "dead-rank"}), config("team", more=hook_text(tmp_path)))
    assert cli(*words, app=app).code in (0, 1)
    assert hooks() == [] and desk.got == {}


@contextlib.contextmanager
def in_its_hook(
    config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A run in a process of its own, whose before-disruption hook hangs; what it says goes to the file `said`."""
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\n{tmp_path}/hook "$1"\nexec sleep 600\n')
    slow.chmod(0o755)
    text = hook_text(tmp_path).replace("/hook", "/slow", 1)
    path = config(more=text + '[targets.node-174]\naddress = "192.0.2.1"\n')
    code = (
        "import sys, os; from pathlib import Path; from tests.cli.simulated import SimulatedApp; "
        "from tests.cli.test_notify import configured; from recover.edge.simulated import FAULTS; "
        "from recover.cli.main import run; "
        f"made = SimulatedApp(Path({str(tmp_path / 'state')!r}), {{'node-174': FAULTS['dead-rank']}}, 1000.0); "
        f"app = configured(made, Path({str(path)!r})); sys.exit(run(['node-174', '--approve', 'vm'], app))"
    )
    with open(tmp_path / "said", "wb") as said:
        child = subprocess.Popen([sys.executable, "-c", code], stdout=said, stderr=said, start_new_session=True)
    try:
        wait_until(lambda: bool(hooks()) or child.poll() is not None)
        assert child.poll() is None, "the hook was never run"
        yield child
    finally:
        child.kill()
        child.wait()


def wait_until(what: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_who_asks_a_run_to_stop_hears_of_the_hook_and_ends_it_by_asking_again(
    config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], tmp_path: Path
) -> None:
    """Seen to fail where the first Ctrl-C already ended it, and where none did."""
    with in_its_hook(config, hooks, tmp_path) as child:
        child.send_signal(signal.SIGINT)
        wait_until(lambda: "Ctrl-C again ends the hook before-disruption (" in (tmp_path / "said").read_text())
        assert child.poll() is None and alive(int((tmp_path / "pid").read_text()))
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    said = (tmp_path / "said").read_text()
    assert "): it has run for " in said and ", and takes at most " in said
    assert "was ended: the run was asked to stop again" in said
    assert hooks() == [
        ["before-disruption", "node-174", "stop-service", None],
        ["gave-up", "node-174", None, "interrupted"],
    ]


def test_after_kill_9_between_drain_and_act_the_next_run_gives_the_target_back(
    config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], machines: Callable[..., SimulatedApp],
    cli: Cli, tmp_path: Path,
) -> None:  # fmt: skip
    """The tool is killed while its before-disruption hook hangs; the target is well when the next run looks."""
    with in_its_hook(config, hooks, tmp_path) as child:
        child.kill()
        child.wait()
    hook = int((tmp_path / "pid").read_text())
    wait_until(lambda: not alive(hook))  # it could drain after somebody else gave back
    assert hooks() == [["before-disruption", "node-174", "stop-service", None]]
    app = configured(machines(**{"node-174": "healthy"}), config("team", more=hook_text(tmp_path)))
    assert left_open(app.state, "node-174")
    assert "open: before-disruption was run on node-174" in cli("notify", "list", app=app).out
    ran = cli("node-174", "--json", app=app)
    assert ran.code == 0 and hooks()[1:] == [["after-recovery", "node-174", None, "healthy"]]
    assert ran.err.count("hook before-disruption was cut: the tool was killed while this hook ran") == 1
    assert [(h["event"], h["ok"]) for h in json.loads(ran.out)["hooks"]] == [
        ("before-disruption", False), ("after-recovery", True),
    ]  # fmt: skip
    assert not left_open(app.state, "node-174")


# --- checks that are repeated


def test_a_check_that_watches_tells_what_lasts_once_and_that_it_is_over(
    cli: Cli, config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], machines: Callable[..., SimulatedApp],
    tmp_path: Path, desk: Pager,
) -> None:  # fmt: skip
    more = f'[hooks.state-change]\ncommand = ["{tmp_path}/hook", "{{state}}"]\n'
    path = config("team", "pager", more=more)
    eager = WatchConfig(Policy(bad=1, of=1, good=1, missed=0, apart_s=0.0))

    def check(**faults: str) -> Any:
        app = configured(machines(**faults), path)
        app.config = replace(app.config, watch=eager)
        return cli("check", "--all", "--watch", "-q", app=app)

    desk.answers["pager"] = 503
    ran = check(**{"node-1": "dead-rank", "node-2": "gpu-lost", "node-3": "idle"})
    assert ran.code == 2 and "notify.pager: could not be told (refused with HTTP 503)" in ran.out + ran.err
    assert desk.titles("team") == ["GPU targets: 2 CRITICAL"] and sorted(h[:2] for h in hooks()) == [
        ["CRITICAL", "node-1"], ["CRITICAL", "node-2"],
    ]  # fmt: skip
    del desk.answers["pager"]
    check(**{"node-1": "dead-rank", "node-2": "gpu-lost", "node-3": "idle"})
    assert desk.titles("pager") == ["GPU targets: 2 CRITICAL"] and len(desk.titles("team")) == 1
    check(**{"node-1": "idle", "node-2": "gpu-lost", "node-3": "idle"})
    assert desk.titles("team")[1:] == desk.titles("pager")[1:] == ["OK node-1: well again"]
    assert hooks()[2:] == [["OK", "node-1", None, None]]
    assert PASSWORD not in "".join(
        p.read_text(errors="replace") for p in (tmp_path / "state").rglob("*") if p.is_file()
    )


# --- the breaker


def test_who_heard_that_the_breaker_opened_hears_once_that_a_person_closed_it(
    cli: Cli, config: Callable[..., Path], machines: Callable[..., SimulatedApp], desk: Pager
) -> None:
    app = configured(machines(**{"node-174": "idle"}), config("team"))
    book = FileLedger(app.state)
    book.change(lambda ledger: (replace(ledger, breakers=(Breaker(1.0, "node-174", "exhausted: no rung"),)), None))
    app.herald().announce(Notice(time.time(), Event.BREAKER, "node-174", "exhausted: no rung"))
    assert cli("breaker", "close", "--why", "driver updated", app=app).code == 0
    assert cli("breaker", "close", app=app).out == "the breaker was closed already\n"
    assert desk.titles("team") == [
        "BREAKER OPEN at node-174: nothing acts by itself", "BREAKER CLOSED: recoveries may begin by themselves again",
    ]  # fmt: skip
    assert "closed it: driver updated" in desk.got["team"][-1]["message"]
    logged = [json.loads(line)["title"] for line in (app.state.root / "notify/told.jsonl").read_text().splitlines()]
    assert logged == desk.titles("team")


def test_without_a_configuration_the_breaker_is_closed_all_the_same(cli: Cli, tmp_path: Path) -> None:
    book = FileLedger(StateFolder(tmp_path / "state"))
    book.change(lambda ledger: (replace(ledger, breakers=(Breaker(1.0, "node-174", "exhausted"),)), None))
    ran = cli("breaker", "close")
    assert ran.code == 0 and ran.out.startswith("closed:") and "nobody is told that it is closed: " in ran.err
    assert cli("breaker").code == 0


# --- doctor


def test_doctor_says_what_would_not_be_heard_and_sends_and_runs_nothing(
    cli: Cli, config: Callable[..., Path], hooks: Callable[[], list[list[Any]]], tmp_path: Path, desk: Pager
) -> None:
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    more = hook_text(tmp_path).replace("/hook", "/plain", 1)
    more += f'[notify.typo]\nurl = {{ file = "{tmp_path}/none" }}\n'
    ran = cli("--config", str(config("oncall", more=more)), "doctor", "--json", "-q")
    found = {(p["about"], p["check"]): p for p in json.loads(ran.out)["checks"]}
    assert ran.code == 1 and hooks() == [] and desk.got == {} and PASSWORD not in ran.out + ran.err
    assert found["notify oncall", "message"]["status"] == "ok"
    assert "cannot be read" in found["notify typo", "message"]["says"]
    before = found["hook before-disruption", "program"]
    assert "may not be executed" in before["says"] and before["costs"] == "every step is declined"
    assert found["hook gave-up", "program"]["status"] == "ok"
