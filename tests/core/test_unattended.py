"""What may be done with nobody there: what the playbook lists, and nothing beside it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from recover.core.playbook import parse
from recover.core.signals.names import NAMES
from recover.edge.playbooks import read_playbook
from recover.model.ladder import Playbook
from recover.model.verdict import Scope

CORE = Path(__file__).resolve().parents[2] / "recover/core"
BOOK: dict[str, Any] = {
    "name": "alone",
    "rung": [{"step": "end-workers"}],
    "unattended": {"signals": ["dead-group"], "scopes": ["process"]},
}


def test_every_finding_that_a_signal_gives_has_its_name_in_the_table() -> None:
    found: set[str] = set()
    for path in (*(CORE / "signals").glob("*.py"), CORE / "ranks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Finding", "_finding", "on_gpu"):
                found |= {c.value for c in ast.walk(node.args[0]) if isinstance(c, ast.Constant) and c.value}
    assert len(found) > 30 and found <= NAMES | {"xid"}
    assert NAMES - found <= {"reset-required", "recovery-action"}  # a word chosen by what the driver asks for


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"signals": ["dead-grup"]}, "did you mean 'dead-group'"),
        ({"signals": []}, "unattended.signals: must be a list of at least one word"),
        ({"signals": "dead-group"}, "unattended.signals: must be a list"),
        ({"scopes": ["galaxy"]}, "unattended.scopes[0]"),
        ({"runs_per_day": -1}, "unattended.runs_per_day"),
        ({"signal": 1}, "unattended.signal: unknown key"),
    ],
)
def test_a_wrong_list_is_refused(change: dict[str, Any], says: str) -> None:
    problems = parse({**BOOK, "unattended": {**BOOK["unattended"], **change}})
    assert isinstance(problems, tuple) and any(says in p for p in problems), problems


@pytest.mark.parametrize(
    ("rung", "says"),
    [
        ({"step": "end-workers", "evict": True}, "rung[1].evict"),
        ({"step": "end-workers", "drain": True}, "rung[1].drain"),
        ({"step": "power-cycle-vm"}, "power-cycle-vm (scope vm) is a rung"),
    ],
)
def test_a_ladder_that_needs_a_person_is_refused(rung: dict[str, Any], says: str) -> None:
    problems = parse({**BOOK, "rung": [rung]})
    assert isinstance(problems, tuple) and any(says in p for p in problems), problems


def test_a_scope_above_the_limit_is_refused() -> None:
    problems = parse(
        {**BOOK, "limits": {"max_scope": "process"}, "unattended": {**BOOK["unattended"], "scopes": ["vm"]}}
    )
    assert isinstance(problems, tuple) and any("above limits.max_scope" in p for p in problems)


def test_only_one_shipped_playbook_is_climbed_by_itself_and_it_restarts_no_guest() -> None:
    from recover.edge.playbooks import shipped_playbooks

    assert [p.name for p in shipped_playbooks() if p.unattended is not None] == ["watch"]
    book = read_playbook("watch")
    assert isinstance(book, Playbook) and book.unattended is not None
    assert book.unattended.scopes == (Scope.PROCESS,) and book.limits.disruptions_per_day == 0
