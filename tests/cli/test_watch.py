"""`check --watch`, `--recover` and `breaker` over machines that are not there: what is written, and what is done when."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from recover.core.config_watch import WatchConfig
from recover.core.fleet import FleetLimits
from recover.core.watch import Policy
from recover.edge.simulated import FAULTS, SimulatedMachine
from recover.model.ladder import Playbook
from recover.model.snapshot import Target
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
    assert sorted(p.name for p in (tmp_path / "state/watch").glob("node.*")) == ["node.json", "node.jsonl", "node.lock"]
    ran = cli("check", "node", "-q", app=fleet(node="idle", watch=WatchConfig(Policy(apart_s=0.0))))
    assert "soft" not in ran.out  # without --watch nothing of it is shown
    ran = cli("check", "node", "--watch", "-q", app=fleet(node="idle", watch=WatchConfig(Policy(apart_s=0.0))))
    assert "node: soft OK, in 1 of the last 4 looks; CRITICAL for" in ran.out


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
