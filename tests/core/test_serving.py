"""Whose answer it was and who would start it again: what one server says is kept for that one."""

from __future__ import annotations

from dataclasses import replace

from recover.core.diagnose import assess, vitals
from recover.core.past import Past
from recover.model.record import Serving
from recover.model.snapshot import Snapshot
from tests.core import builders as b
from tests.core.looks import LIMITS

CGROUP = "/system.slice/sglang.service"
URL = f"http://127.0.0.1:{b.PORT}/health"


def served(snapshot: Snapshot) -> tuple[Serving, ...]:
    return vitals(*assess(snapshot, Past(), LIMITS)).serving


def test_a_units_server_with_its_answer_and_its_listener() -> None:
    processes = tuple(replace(p, cgroup=CGROUP) for p in b.sglang_group())
    (one,) = served(b.serving_snapshot(processes=processes))
    assert (one.service, one.url) == ("service:systemd/sglang.service", URL)
    assert [m.pid for m in one.listeners] == [p.pid for p in processes if b.PORT in p.listens] != []


def test_an_answer_that_is_no_200_is_none() -> None:
    for answer in (b.answer(503), b.answer(None, outcome="timeout")):
        assert [one.url for one in served(b.serving_snapshot(servers=(answer,)))] in ([], [""])


def test_a_port_that_is_forwarded_to_it_has_no_listener_of_its_own() -> None:
    forwarded = replace(b.answer(port=8080), pid=5000)
    (one,) = served(b.serving_snapshot(servers=(forwarded,)))
    assert (one.url, one.listeners) == ("http://127.0.0.1:8080/health", ())
