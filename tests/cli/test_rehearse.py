"""Every fault that can be rehearsed ends as it should, and says so in one line and one code."""

from __future__ import annotations

import json

import pytest

from recover.edge.simulated import FAULTS
from tests.cli.conftest import Cli

ENDS = {
    "healthy": "healthy", "idle": "healthy", "loading": "healthy", "killed-by-hand": "healthy", "old-xid": "healthy",
    "dead-rank": "recovered", "orphaned": "recovered", "dead-leader": "recovered", "sigterm-ignored": "recovered",
    "slow-release": "recovered", "vram-held": "recovered", "vram-held-until-power-cycle": "recovered",
    "incident": "recovered", "nvml-hang": "recovered", "gpu-lost": "recovered", "unkillable": "recovered",
    "mute": "recovered", "supervised": "recovered", "stop-unclear": "recovered", "start-timeout": "recovered",
    "route-down": "cannot-tell", "wrong-vm": "blocked", "vm-locked": "blocked", "vm-stopped": "needs-human",
    "row-remap-failed": "needs-human", "stop-lies": "exhausted",
}  # fmt: skip
CODES = {"healthy": 0, "recovered": 0, "exhausted": 10, "blocked": 11, "needs-human": 12, "cannot-tell": 14}


@pytest.mark.parametrize("fault", [f for f in FAULTS if f in ENDS])
def test_each_fault_ends_as_it_should(cli: Cli, fault: str) -> None:
    ran = cli("rehearse", "hung-server", "--fault", fault, "--json")
    found = json.loads(ran.out)
    assert (found["end"], ran.code) == (ENDS[fault], CODES[ENDS[fault]]), ran.err
    assert found["exit_code"] == ran.code
    assert bool(found["tries"]) == (ENDS[fault] in ("recovered", "exhausted") or fault == "vm-locked")


def test_a_launch_that_fails_again_is_a_persons(cli: Cli) -> None:
    ran = cli("rehearse", "--fault", "crash-loop", "--json")
    assert ran.code in (12, 15) and json.loads(ran.out)["exit_code"] == ran.code


def test_the_faults_are_listed_where_none_is_named(cli: Cli) -> None:
    ran = cli("rehearse")
    assert ran.code == 0 and all(name in ran.out for name in FAULTS)


def test_an_unknown_fault_is_answered_with_what_was_meant(cli: Cli) -> None:
    ran = cli("rehearse", "--fault", "incdent")
    assert ran.code == 2 and "did you mean incident?" in ran.err and ran.out == ""


def test_the_words_of_the_incident(cli: Cli) -> None:
    ran = cli("rehearse", "--fault", "incident")
    assert ran.out.splitlines()[0].startswith("node-174: RECOVERED")
    assert "119.0 GiB -> 445.0 GiB of 449.0 GiB (baseline 445.0 GiB)" in ran.out
    assert "Service: started again and healthy" in ran.out
    assert "power-cycle-vm begins" in ran.err and "318.0 GiB of RAM are gone" in ran.err
    assert "\x1b" not in ran.out + ran.err
    assert cli("rehearse", "--fault", "incident", "-q").err == ""


def test_playbooks_are_listed_shown_and_checked(cli: Cli) -> None:
    assert "hung-server" in cli("playbooks").out == cli("playbooks", "list").out
    shown = cli("playbooks", "show", "hung-server")
    assert shown.code == 0 and "power-cycle-vm (scope vm" in shown.out and "(default)" in shown.out
    assert cli("playbooks", "check", "hung-server").code == 0
    assert cli("playbooks", "show", "nope").code == 2
