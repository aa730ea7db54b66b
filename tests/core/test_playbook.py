"""A playbook is whole, or every problem is told at once with its path."""

from __future__ import annotations

import copy

import pytest

from recover.core.duration import duration
from recover.core.playbook import parse
from recover.model.ladder import Playbook
from recover.model.verdict import Scope

GOOD = {
    "name": "mine",
    "about": "for a test",
    "limits": {"max_scope": "vm", "patience": "2m", "confirm": 3, "deadline": "1h", "ripens": "90s"},
    "rung": [
        {"step": "end-workers", "attempts": 2, "settle": "5s", "term_deadline": "1.5m"},
        {"step": "power-cycle-vm", "shutdown_first": "0s", "apply_pending": True},
    ],
    "after": {"start": "nothing", "healthy_within": "10m"},
}


def changed(path, value):
    data = copy.deepcopy(GOOD)
    *way, last = path
    inner = data
    for key in way:
        inner = inner[key]
    inner[last] = value
    return data


def problems(data):
    found = parse(data)
    assert isinstance(found, tuple), found
    return found


def test_what_it_says_is_what_it_is():
    book = parse(GOOD, "mine.toml")
    assert isinstance(book, Playbook)
    assert (book.limits.max_scope, book.limits.patience_s, book.limits.confirm) == (Scope.VM, 120.0, 3)
    assert (book.limits.deadline_s, book.limits.ripens_s, book.limits.hung_after_s) == (3600.0, 90.0, 120.0)
    first, second = book.rungs
    assert (first.attempts, first.settle_s, first.params) == (2, 5.0, (("term_deadline", 90.0),))
    assert second.params == (("shutdown_first", 0.0), ("apply_pending", True))
    assert (book.after.start, book.after.healthy_within_s, book.source) == ("nothing", 600.0, "mine.toml")


def test_the_least_that_it_must_say():
    assert isinstance(parse({"name": "x", "rung": [{"step": "reset-gpu"}]}), Playbook)


def test_equal_content_has_an_equal_digest_and_other_content_another():
    book = parse(GOOD)
    assert parse(changed(["about"], "other words"), "elsewhere.toml").digest == book.digest
    assert parse(changed(["rung", 0, "settle"], "5.0s")).digest == book.digest
    for path, value in ((["rung", 0, "attempts"], 3), (["limits", "patience"], "3m"), (["after", "start"], "nothing")):
        assert (parse(changed(path, value)).digest == book.digest) == (path[0] == "after")


@pytest.mark.parametrize(
    ("path", "value", "begins"),
    [
        (["nam"], "x", "nam: unknown key"),
        (["name"], "", "name: is missing"),
        (["name"], "My Book", "name: 'My Book' must be"),
        (["name"], 7, "name: must be a text"),
        (["limits"], 7, "limits: must be a table"),
        (["limits", "max_scop"], "vm", "limits.max_scop: unknown key"),
        (["limits", "max_scope"], "world", "limits.max_scope: 'world' is no scope"),
        (["limits", "patience"], 120, "limits.patience: 120 is no duration"),
        (["limits", "patience"], "2 min", "limits.patience: '2 min' is no duration"),
        (["limits", "ripens"], "0.5s", "limits.ripens: 0.5s must lie between 1s"),
        (["limits", "confirm"], 0, "limits.confirm: must be a whole number from 1"),
        (["limits", "confirm"], True, "limits.confirm: must be a whole number"),
        (["limits", "disruptions_per_day"], "3", "limits.disruptions_per_day: must be a whole number"),
        (["rung"], [], "rung: the ladder is empty"),
        (["rung"], {"step": "reset-gpu"}, "rung: the ladder is empty"),
        (["rung", 0], "end-workers", "rung[1]: must be a table"),
        (["rung", 0, "step"], "reboot-world", "rung[1].step: there is no step 'reboot-world'"),
        (["rung", 0], {"attempts": 1}, "rung[1].step: is missing"),
        (["rung", 1, "settle"], "soon", "rung[2].settle: 'soon' is no duration"),
        (["rung", 1, "attempts"], 99, "rung[2].attempts: must be a whole number from 1 to 10"),
        (["rung", 1, "term_deadline"], "1s", "rung[2].term_deadline: power-cycle-vm has no such parameter"),
        (["rung", 1, "apply_pending"], "yes", "rung[2].apply_pending: must be true or false"),
        (["rung", 1, "stop_deadline"], "60s", "rung[2].stop_deadline: 60s must lie between 180s"),
        (["after", "start"], "everything", "after.start: 'everything' must be one of"),
        (["after", "healthy_within"], 5, "after.healthy_within: 5 is no duration"),
    ],
)
def test_each_problem_with_its_path(path, value, begins):
    found = problems(changed(path, value))
    assert [p for p in found if p.startswith(begins)], found


def test_rungs_go_up():
    data = changed(["rung"], [{"step": "reset-gpu"}, {"step": "end-workers"}, {"step": "power-cycle-vm"}])
    (found,) = problems(data)
    assert found.startswith("rung[2].step: end-workers (process) may not come after reset-gpu (gpu)")


def test_all_problems_at_once():
    data = changed(["rung", 0, "step"], "nothing")
    data["limits"]["patience"] = 3
    data["extra"] = 1
    assert len(problems(data)) == 3


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5h", 5400.0),
        ("0s", 0.0),
        ("30", None),
        ("-1s", None),
        (3, None),
    ],
)
def test_durations(text, seconds):
    assert duration(text) == seconds
