"""`check --watch`, `--recover` and `breaker` over machines that are not there: what is written and what is done."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.cli.main import run as main
from recover.core.config_watch import WatchConfig
from recover.core.fleet import FleetLimits
from recover.core.watch import Policy
from recover.core.windows import Hours, Window
from recover.edge.simulated import FAULTS, SimulatedMachine
from recover.edge.store.journal import read_entries
from recover.edge.store.ledger import FileLedger
from recover.edge.store.lock import Holder, TargetLock, noted
from recover.model.ladder import Playbook
from recover.model.record import Began, Closed, EndKind, Entry, Opened
from recover.model.snapshot import Target
from recover.model.verdict import Scope
from recover.model.watch import Ledger
from recover.wiring import Flags, Wired
from tests.cli.conftest import Cli, Ran
from tests.cli.simulated import SimulatedApp

EAGER = WatchConfig(Policy(bad=1, of=1, good=1, missed=0, apart_s=0.0))
ANY = FleetLimits(max_nodes=9, max_percent=100, sick_percent=100)


class Lasting(SimulatedApp):
    """Its machines go on from one command to the next."""

    def wire(self, target: Target, playbook: Playbook, flags: Flags, *, acts: bool = True) -> Wired:
        kept: SimulatedMachine | None = self.machines.get(target.name)
        wired = super().wire(target, playbook, flags, acts=acts)
        if kept is None:
            return wired
        self.machines[target.name] = kept
        clock: Any = kept.clock
        return replace(wired, observer=kept, actuator=lambda: kept, clock=clock)

    def acts(self, name: str) -> list[str]:
        return [type(act).__name__ for act in self.machines[name].acts] if name in self.machines else []


Made = Callable[..., Lasting]


@pytest.fixture
def fleet(tmp_path: Path) -> Made:
    def made(limits: FleetLimits = ANY, watch: WatchConfig = EAGER, **faults: str) -> Lasting:
        app = Lasting(tmp_path / "state", {n: FAULTS[f] for n, f in faults.items()}, speed=1000.0)
        app.config = replace(app.config, watch=watch, fleet=limits)
        return app

    return made


def told(ran: Ran) -> dict[str, dict[str, Any]]:
    return {t["target"]: t for t in json.loads(ran.out)["targets"]}


def check(cli: Cli, app: Lasting, *words: str) -> dict[str, dict[str, Any]]:
    ran = cli("check", "--all", "--every", "0.1", "-q", "--format", "json", *words, app=app)
    assert ran.out, ran.err
    return told(ran)


def test_watch_keeps_how_it_stands_over_many_calls(cli: Cli, fleet: Made, tmp_path: Path) -> None:
    app = fleet(watch=WatchConfig(Policy(apart_s=0.0)), node="incident")
    states = [check(cli, app, "--watch")["node"]["standing"]["state"] for _ in range(3)]
    assert states == [None, None, "CRITICAL"]
    lasts = cli("check", "node", "--watch", "-q", "--format", "prometheus", app=app).out
    assert '\ngpu_recover_hard_state{target="node"} 2\n' in lasts and "gpu_recover_hard_state_since_" in lasts
    assert "hard_state" not in cli("check", "node", "-q", "--format", "prometheus", app=app).out
    assert sorted(p.name for p in (tmp_path / "state/watch").glob("node.*")) == ["node.json", "node.jsonl", "node.lock"]
    ran = cli("check", "node", "-q", app=fleet(node="idle", watch=WatchConfig(Policy(apart_s=0.0))))
    assert "soft" not in ran.out  # without --watch nothing of it is shown
    ran = cli("check", "node", "--watch", "-q", app=fleet(node="idle", watch=WatchConfig(Policy(apart_s=0.0))))
    assert "node: soft OK, in 1 of the last 5 looks; CRITICAL for" in ran.out


@pytest.mark.parametrize(
    "rubbish", [b"", b"{", b"null", b'{"standing": null, "untold": []}', b'{"standing": {"$": "Permit"}}']
)
def test_a_damaged_standing_is_named_and_never_counts_as_well(
    cli: Cli, fleet: Made, tmp_path: Path, rubbish: bytes
) -> None:
    app = fleet(node="idle", watch=WatchConfig(Policy(apart_s=0.0)))
    for _ in range(3):
        check(cli, app, "--watch")
    (tmp_path / "state/watch/node.json").write_bytes(rubbish)
    ran = cli("check", "node", "--watch", "-q", "--format", "json", app=app)
    assert ran.code == 0 and "node.json" in ran.err and "damaged" in ran.err
    standing = told(ran)["node"]["standing"]
    assert standing["state"] is None and standing["trouble"]
    assert (tmp_path / "state/watch/node.json.damaged").read_bytes() == rubbish
    assert check(cli, app, "--watch")["node"]["standing"]["state"] == "OK"


def test_recover_acts_and_looks_again(cli: Cli, fleet: Made) -> None:
    app = fleet(node="dead-rank", other="idle")
    ran = cli("check", "--all", "--recover", "-q", "--format", "json", "--every", "0.1", app=app)
    seen = told(ran)
    assert seen["node"]["acted"]["rule"] == "acted", seen["node"]["acted"]
    assert seen["node"]["acted"]["end"] == "recovered" and seen["node"]["status"] == "OK" and ran.code == 0
    assert seen["other"]["acted"]["acted"] is False and seen["other"]["acted"]["rule"] == "not-critical"
    assert "StopService" in app.acts("node") and app.acts("other") == []
    assert cli("history", "--json").out.count('"watch (') >= 1


def nothing_done(app: Lasting, seen: dict[str, dict[str, Any]], rule: str, name: str = "node") -> str:
    assert seen[name]["acted"]["rule"] == rule, seen[name]["acted"]
    assert seen[name]["acted"]["acted"] is False and app.acts(name) == []
    return str(seen[name]["acted"]["why"])


def test_a_dry_run_says_what_would_be_done_and_writes_nothing(cli: Cli, fleet: Made, tmp_path: Path) -> None:
    app = fleet(node="dead-rank", lost="gpu-lost", well="idle")
    before = check(cli, app, "--recover", "--dry-run")
    assert "would try stop-service" in nothing_done(app, before, "would-act")
    assert "gpu-lost" in nothing_done(app, before, "unlisted", "lost")
    assert before["node"]["status"] == "CRITICAL" and before["node"]["acted"]["dry_run"] is True
    assert not (tmp_path / "state").exists()
    ran = cli("check", "--all", "-q", "--recover", "--dry-run", app=app)
    assert ran.code == 2 and "node: would try stop-service" in ran.out and "lost: not acted on (unlisted)" in ran.out


def test_a_dry_run_with_watch_beside_it_keeps_how_targets_stand_and_nothing_else(
    cli: Cli, fleet: Made, tmp_path: Path
) -> None:
    app = fleet(watch=WatchConfig(Policy(apart_s=0.0)), node="dead-rank")
    rules = [check(cli, app, "--watch", "--recover", "--dry-run")["node"]["acted"]["rule"] for _ in range(3)]
    assert rules == ["soft", "soft", "would-act"] and app.acts("node") == []
    assert {p.name for p in (tmp_path / "state").rglob("*") if p.is_file()} == {"node.json", "node.jsonl", "node.lock"}


def test_a_dry_run_needs_recover(cli: Cli, fleet: Made) -> None:
    ran = cli("check", "--all", "--dry-run", app=fleet(node="idle"))
    assert ran.code == 3 and "--recover" in ran.err


def test_a_look_that_does_not_last_is_left_alone(cli: Cli, fleet: Made) -> None:
    app = fleet(watch=WatchConfig(Policy(apart_s=0.0)), node="dead-rank")
    why = nothing_done(app, check(cli, app, "--recover"), "soft")
    assert why == "CRITICAL in 1 of the last 4 looks that count, and 3 are needed"
    nothing_done(app, check(cli, app, "--recover"), "soft")
    assert check(cli, app, "--recover")["node"]["acted"]["rule"] == "acted"


def test_a_small_fleet_is_counted_and_told(cli: Cli, fleet: Made) -> None:
    limits = FleetLimits(max_nodes=5, max_percent=20, sick_percent=100)
    app = fleet(limits, a="dead-rank", b="idle", c="idle")
    assert "20 % of 3 are 0" in nothing_done(app, check(cli, app, "--recover"), "limit", "a")
    app = fleet(replace(limits, at_least=1), a="dead-rank", b="idle", c="idle")
    assert check(cli, app, "--recover")["a"]["acted"]["rule"] == "acted"


def test_no_more_nodes_than_allowed_and_no_node_twice_in_a_window(cli: Cli, fleet: Made) -> None:
    app = fleet(replace(ANY, max_nodes=1), a="dead-rank", b="dead-rank", c="idle")
    first = check(cli, app, "--recover")
    assert sorted(first[n]["acted"]["rule"] for n in "ab") == ["acted", "limit"]
    second = check(cli, app, "--recover")
    assert sorted(second[n]["acted"]["rule"] for n in "ab") == ["limit", "not-critical"]


def test_a_fleet_that_is_sick_as_one_is_left_alone(cli: Cli, fleet: Made) -> None:
    app = fleet(replace(ANY, sick_percent=30), a="dead-rank", b="dead-rank", c="idle", d="idle")
    assert "most likely it is not the nodes" in nothing_done(app, check(cli, app, "--recover"), "sick-fleet", "a")


def test_one_node_of_a_fleet_that_was_not_seen_is_left_alone(cli: Cli, fleet: Made) -> None:
    app = fleet(a="dead-rank", b="idle", c="idle")
    ran = cli("check", "a", "--recover", "-q", "--format", "json", app=app)
    assert "only 1 of 3 targets" in nothing_done(app, told(ran), "sick-fleet", "a")
    check(cli, app, "--watch")  # now the others were seen
    ran = cli("check", "a", "--recover", "-q", "--format", "json", app=app)
    assert told(ran)["a"]["acted"]["rule"] == "acted"


ALWAYS = Window(hours=(Hours(frozenset(range(7)), 0, 1440),), why="kernel updates")


def test_nothing_in_a_window_or_in_quiet_hours_or_where_the_owner_said_no(cli: Cli, fleet: Made) -> None:
    app = fleet(node="dead-rank")
    app.config = replace(app.config, maintenance=(ALWAYS,))
    assert nothing_done(app, check(cli, app, "--recover"), "maintenance") == "kernel updates"
    app.config = replace(app.config, maintenance=(), watch=replace(EAGER, quiet=(replace(ALWAYS, why="quiet hours"),)))
    assert nothing_done(app, check(cli, app, "--recover"), "maintenance") == "quiet hours"
    app.config = replace(app.config, maintenance=(replace(ALWAYS, targets=("other-*",)),), watch=EAGER)
    assert check(cli, app, "--recover")["node"]["acted"]["rule"] == "acted"


def test_the_breaker_opens_on_what_nothing_explains_and_a_person_closes_it(cli: Cli, fleet: Made) -> None:
    app = fleet(a="orphaned", b="idle")
    app.faults["a"] = replace(FAULTS["orphaned"], vram=80123, vram_cure=Scope.VM)
    ran = cli("check", "--all", "--recover", "-q", "--format", "json", "--every", "0.1", app=app)
    first = told(ran)["a"]["acted"]
    assert first["rule"] == "acted" and "this opens the breaker" in first["why"], first
    assert ran.code == 1  # what it holds now does not last yet
    shown = cli("breaker")
    assert shown.code == 1 and shown.out.startswith("OPEN since") and "a: " in shown.out
    app.machines.clear()
    app.faults["b"] = FAULTS["dead-rank"]
    assert "breaker is open" in nothing_done(app, check(cli, app, "--recover"), "breaker", "b")
    closed = cli("breaker", "close", "--why", "driver\x1b[31m updated")
    assert closed.code == 0 and closed.out.startswith("closed: it was open since")
    data = json.loads(cli("breaker", "show", "--json").out)
    assert data["state"] == "closed" and data["breakers"][0]["closed_why"] == "driver updated"
    assert data["breakers"][0]["closed_by"] and cli("breaker").code == 0
    assert check(cli, app, "--recover")["b"]["acted"]["rule"] == "acted"


@pytest.mark.parametrize("rubbish", [b"", b"{", b"[]", b'{"$": "Ledger", "permits": [1]}'])
def test_a_damaged_ledger_stops_everything_and_is_named(cli: Cli, fleet: Made, tmp_path: Path, rubbish: bytes) -> None:
    app = fleet(node="dead-rank")
    path = tmp_path / "state/watch/ledger.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(rubbish)
    assert "ledger.json is damaged" in nothing_done(app, check(cli, app, "--recover"), "ledger")
    assert path.read_bytes() == rubbish
    shown = cli("breaker", "show", "--json")
    assert shown.code == 3 and json.loads(shown.out)["state"] is None and "move the file away" in shown.err
    assert cli("breaker", "close").code == 3


def test_where_a_person_worked_a_while_ago_nothing_is_done(cli: Cli, fleet: Made) -> None:
    app = fleet(node="dead-rank")
    assert cli("node", "--only", "end-workers", "-q", app=app).code == 11  # nobody consented
    assert "worked on it within 30 min" in nothing_done(app, check(cli, app, "--recover"), "at-work")


def test_a_playbook_without_lists_is_refused_before_anything_is_looked_at(cli: Cli, fleet: Made) -> None:
    app = fleet(watch=replace(EAGER, playbook="hung-server"), node="dead-rank")
    ran = cli("check", "--all", "--recover", app=app)
    assert ran.code == 3 and "[unattended]" in ran.err and app.machines == {}


def test_an_unattended_run_yields_to_a_person_and_to_nobody_else(cli: Cli, fleet: Made, tmp_path: Path) -> None:
    """Two real processes: the unattended run is in the middle of its work when a person comes."""
    app = fleet(node="slow-release", other="idle")
    app.speed = 20.0
    child = os.fork()
    if child == 0:
        try:
            os._exit(main(("check", "--all", "--recover", "-q"), app))
        except BaseException:
            os._exit(99)
    folder = tmp_path / "state/targets/node"
    until(lambda: noted(folder) is not None and any(isinstance(e, Began) for e in entries(folder)))
    held = cli("node", "--yes", "-q", app=fleet(node="slow-release"))
    assert held.code == 20 and "by watch (" in held.out and "gpu-recover node --take-over" in held.out
    mine = fleet(node="slow-release")
    taken = cli("node", "--yes", "--take-over", app=mine)
    assert taken.code == 0 and "asked to stop after the act that is under way" in taken.err, taken.err
    os.waitpid(child, 0)
    theirs, ours = [list(read_entries(f / "journal.jsonl")) for f in sorted((folder / "runs").iterdir())]
    ended = theirs[-1]
    assert isinstance(ended, Closed) and ended.end.kind is EndKind.INTERRUPTED and "who takes over" in ended.end.why
    begun = ours[0]
    assert isinstance(begun, Opened) and not begun.unattended and not begun.resumed
    ledger = FileLedger(mine.state).read()
    assert isinstance(ledger, Ledger) and [p.end for p in ledger.permits] == ["interrupted"] and not ledger.breakers


def entries(folder: Path) -> list[Entry]:
    return [e for f in (folder / "runs").glob("*/journal.jsonl") for e in read_entries(f)]


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_as_many_as_the_limits_allow_are_worked_on_at_the_same_time_and_a_signal_is_for_all(
    fleet: Made, tmp_path: Path
) -> None:
    """A real process; none of the three could end before the others have begun."""
    app = fleet(replace(ANY, max_nodes=2), a="slow-release", b="slow-release", c="slow-release", d="idle")
    app.speed = 5.0
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:
        try:
            sys.stderr = said.open("w")
            os._exit(main(("check", "--all", "--recover"), app))
        except BaseException:
            os._exit(99)
    folders = [app.state.target(name) for name in "abc"]

    def at_work() -> list[bool]:
        return [noted(f) is not None and any(isinstance(e, Began) for e in entries(f)) for f in folders]

    until(lambda: sum(at_work()) == 2)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    ends = [e.end.kind for f in folders for e in entries(f) if isinstance(e, Closed)]
    assert ends == [EndKind.INTERRUPTED] * 2 and not any(noted(f) for f in folders)
    shown = said.read_text()
    assert sum(f"{name}: end-workers begins" in shown for name in "abc") == 2
    assert shown.count("SIGTERM heard") == 1
    ledger = FileLedger(app.state).read()
    assert isinstance(ledger, Ledger) and not ledger.breakers and all(p.ended for p in ledger.permits)


def test_a_persons_run_is_never_taken_over(cli: Cli, fleet: Made, tmp_path: Path) -> None:
    lock = TargetLock(tmp_path / "state/targets/node")
    assert lock.take(Holder("run-1", "kim", socket.gethostname(), os.getpid(), time.time())) is None
    try:
        ran = cli("node", "--take-over", "--yes", "-q", app=fleet(node="dead-rank"))
    finally:
        lock.release()
    assert ran.code == 20 and "by kim" in ran.out and "--take-over" not in ran.out
    assert not (tmp_path / "state/targets/node/runs").exists()


def test_what_a_killed_run_leaves_opens_the_breaker_at_the_next_check(cli: Cli, fleet: Made) -> None:
    app = fleet(node="orphaned", other="idle")
    app.faults["node"] = replace(FAULTS["orphaned"], release_s=3600.0)
    app.speed = 5.0
    child = os.fork()
    if child == 0:
        os._exit(main(("check", "--all", "--recover", "-q"), app))
    until(lambda: any(isinstance(e, Began) for e in entries(app.state.target("node"))))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert cli("breaker").code == 1  # seen although nobody has written it down yet
    again = fleet(node="idle", other="dead-rank")
    assert "the process is gone" in nothing_done(again, check(cli, again, "--recover"), "breaker", "other")
    assert cli("breaker", "close").code == 0 and cli("breaker").code == 0
    assert check(cli, again, "--recover")["other"]["acted"]["rule"] == "acted"


def test_a_state_folder_that_cannot_be_written_blinds_nobody_and_nothing_is_done(
    cli: Cli, fleet: Made, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state/watch").write_text("a file is here")
    app = fleet(node="dead-rank")
    ran = cli("check", "node", "--watch", "-q", "--format", "json", app=app)
    assert ran.code == 2 and "can't be kept" in ran.err and told(ran)["node"]["standing"]["trouble"]
    nothing_done(app, check(cli, app, "--recover"), "standing")


def test_what_does_not_move_ripens_from_one_check_to_the_next(cli: Cli, fleet: Made) -> None:
    """On a clock a thousand times faster; without a memory each look is the first."""
    app = fleet(node="vram-held")
    assert check(cli, app)["node"]["status"] == check(cli, app)["node"]["status"] == "WARNING"
    assert check(cli, app, "--watch")["node"]["status"] == "WARNING"
    time.sleep(0.1)
    seen = check(cli, app, "--watch")["node"]
    assert seen["status"] == "CRITICAL" and seen["findings"][0]["signal"] == "gpu-memory-held"


def test_each_form_has_its_own_place_for_what_was_done(cli: Cli, fleet: Made) -> None:
    for form in ("nagios", "prometheus"):
        ran = cli("check", "lost", "--recover", "--dry-run", "-q", "--format", form, app=fleet(lost="gpu-lost"))
        assert "not acted on (unlisted)" in ran.err and "not acted on" not in ran.out
    assert ran.out.endswith("\ngpu_recover_breaker_open 0\n")
    assert "breaker" not in cli("check", "lost", "-q", "--format", "prometheus", app=fleet(lost="gpu-lost")).out
