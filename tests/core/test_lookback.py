"""Looking back: per run what its journal says, added up without inventing; unknown and too few are said as that.

Seen to fail on: the time to recover counted from the run's start, a percentile between two measured times, the first
try taken for the cure, a recovery without its service counted as one, a cut run's loss left out.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.lookback import Glimpse, Told, figures, look_back, spread, tell
from recover.core.moments import moment, run_moment
from recover.core.report.lookback import data, headline, lines, tables, times, tone
from recover.model.act import Outcome
from recover.model.record import Began, Closed, Consented, End, Ended, EndKind, Entry, Opened
from recover.model.verdict import Scope

OPENED = Opened(100.0, "r1", "node-174", "hung-server", "d", "kim", "desk", 1, 0.0)
DAY = 86400.0


def tried(at: float, step: str, ok: bool = True) -> tuple[Entry, ...]:
    return Began(at, 1, step, 1, Scope.PROCESS), Ended(at + 5, 1, step, 1, Outcome(ok))


def closed(at: float, kind: EndKind = EndKind.RECOVERED, service: str | None = None) -> Closed:
    return Closed(at, End(kind, "so"), service)


def told(*entries: Entry | Glimpse, alive: bool = False) -> Told:
    found = tell(entries, alive=alive)
    assert found is not None
    return found


WHOLE = (
    *(OPENED, Glimpse(101, False), Glimpse(110, True)),
    *(*tried(120, "end-workers", False), Glimpse(130, True)),
    *(Consented(140, "reset-gpu", "kim", 7.0), *tried(141, "reset-gpu"), Glimpse(150, False), closed(170)),
)


def test_a_run_that_recovered() -> None:
    run = told(*WHOLE)
    assert (run.end, run.code, run.began, run.ended, run.who) == ("recovered", 0, 100.0, 170.0, "kim@desk")
    assert (run.fault_at, run.lost_s, run.recovered_s, run.waited_s) == (110.0, 60.0, 60.0, 7.0)
    assert run.cured_by == "reset-gpu" and run.tried == ("end-workers", "reset-gpu")
    assert run.tries == (("end-workers", False), ("reset-gpu", True))


def test_without_its_service_it_is_no_time_to_recover() -> None:
    run = told(*WHOLE[:-1], closed(170, service="it does not answer"))
    assert (run.code, run.recovered_s, run.cured_by, run.lost_s) == (15, None, "reset-gpu", 60.0)


def test_what_was_paid_without_a_try_was_cured_by_no_rung() -> None:
    assert told(OPENED, Glimpse(101, True), closed(120)).cured_by == ""
    assert told(OPENED, Glimpse(101, True), closed(120, EndKind.BLOCKED)).cured_by is None


def test_a_run_without_a_fault_lost_nothing_that_is_known() -> None:
    run = told(OPENED, Glimpse(101, False), closed(120, EndKind.HEALTHY))
    assert (run.fault_at, run.lost_s, run.recovered_s) == (None, None, None)


def test_cut_and_going_on_are_told_apart_and_lose_until_the_last_entry() -> None:
    cut = told(*WHOLE[:6])
    assert (cut.end, cut.code, cut.ended, cut.lost_s) == ("cut", None, None, 20.0)
    assert told(*WHOLE[:6], alive=True).end == "goes on"


def test_a_crash_does_not_end_a_climb_and_a_close_does() -> None:
    resumed = replace(OPENED, at=400.0, resumed=True)
    crashed = told(*WHOLE[:6], resumed, Glimpse(401, True), *tried(410, "power-cycle-vm"), closed(500))
    assert (crashed.began, crashed.recovered_s, crashed.cured_by) == (100.0, 390.0, "power-cycle-vm")
    assert crashed.tried == ("end-workers", "power-cycle-vm")
    owed = told(*WHOLE[:6], closed(200, EndKind.NEEDS_HUMAN), replace(resumed, at=9000.0), Glimpse(9001, True),
                closed(9011))  # fmt: skip
    assert (owed.lost_s, owed.recovered_s, owed.tried, owed.cured_by) == (90.0 + 10.0, 10.0, (), "")


def test_nothing_opened_is_no_run() -> None:
    assert tell((), alive=False) is None
    assert tell((Glimpse(1.0, True),), alive=False) is None


@given(st.lists(st.floats(0, 1e6), max_size=60))
def test_percentiles_are_measured_times_and_only_of_enough(measured: list[float]) -> None:
    found = spread(measured)
    assert found.n == len(measured)
    assert (found.p50 is None, found.p95 is None) == (found.n < 5, found.n < 20)
    for share, value in ((0.5, found.p50), (0.95, found.p95)):
        if value is not None:
            assert value in measured
            assert sum(m <= value for m in measured) >= share * found.n
            assert sum(m < value for m in measured) < share * found.n


def test_few_recoveries_are_said_to_be_few() -> None:
    assert times(spread(())) == "none with its service back"
    assert times(spread((60.0,))) == "1:00 min (1 recovery: too few for a p50, which takes 5)"
    assert times(spread((1.0, 2.0, 3.0))).startswith("1 s to 3 s (3 recoveries: too few for a p50")
    assert "p50 3 s, all 1 s to 5 s (5 recoveries: too few for a p95" in times(spread((5.0, 1.0, 2.0, 3.0, 4.0)))
    assert times(spread([float(n) for n in range(1, 21)])) == "p50 10 s, p95 19 s, all 1 s to 20 s (20 recoveries)"


def fleet() -> list[Told]:
    other = replace(OPENED, target="node-175", run="r2")
    return [
        told(*WHOLE),
        told(other, Glimpse(101, True), *tried(102, "end-workers"), closed(130)),
        told(replace(other, run="r3"), Glimpse(101, True), closed(111, EndKind.BLOCKED)),
        told(replace(other, run="r4"), closed(111, EndKind.HEALTHY)),
        Told("node-175", "r5", 0.0, None, "unreadable", None, (), "", False, "journal.jsonl:3: no"),
    ]


def test_the_fleet_and_each_target_add_up() -> None:
    back = look_back(fleet(), 0.0, 3 * DAY, 4 * DAY)
    whole = back.fleet
    assert (whole.runs, whole.faults, whole.recovered, whole.every_s) == (5, 3, 2, DAY)
    assert dict(whole.ends) == {"recovered": 2, "blocked": 1, "healthy": 1, "unreadable": 1}
    assert (whole.lost_s, whole.open_ended, whole.times.n, whole.waited_s) == (60.0 + 29.0 + 10.0, 1, 2, 7.0)
    assert [(r.step, r.tried, r.done, r.cured) for r in whole.rungs] == [
        ("end-workers", 2, 1, 1),
        ("reset-gpu", 1, 1, 1),
    ]
    assert [f.name for f in back.targets] == ["node-174", "node-175"]
    assert sum(f.runs for f in back.targets) == whole.runs and back.targets[0].every_s is None
    assert back.broken == (("r5", "journal.jsonl:3: no"),)


def test_the_words_say_what_is_not_known() -> None:
    back = look_back(fleet(), None, None, 4 * DAY)
    said = "\n".join(lines(back))
    assert headline(back).startswith("5 runs on 2 targets, 1970-01-01 to 1970-01-01")
    assert "at least 1:39 min" in said and "1 fault outlasted the run" in said and "too few for a p50" in said
    cures, per_target = tables(back)
    assert cures.rows[0][0][0] == "end-workers" and len(per_target.rows) == 2
    assert all(len(row) == len(table.heading) for table in (cures, per_target) for row in table.rows)
    assert (tone("recovered"), tone("recovered", 15), tone("cut"), tone("blocked")) == ("good", "warn", "bad", "warn")


def test_the_data_is_null_where_nothing_is_known() -> None:
    found = data(look_back(fleet(), None, None, 4 * DAY))
    assert found["schema"] == 1 and found["since"] is None
    assert found["fleet"]["time_to_recover_s"] == {"n": 2, "fastest": 29.0, "slowest": 60.0, "p50": None, "p95": None}
    assert found["targets"][0]["fault_every_s"] is None and found["unreadable"][0]["run"] == "r5"
    assert data(look_back((), None, None, 1.0))["fleet"]["runs"] == 0


def test_figures_of_nothing() -> None:
    empty = figures("x", (), 0.0, 0.0)
    assert (empty.runs, empty.first, empty.times.n, empty.every_s) == (0, None, 0, None)


@pytest.mark.parametrize(
    ("text", "at"),
    [("90m", 1e9 - 5400), ("24h", 1e9 - DAY), ("7d", 1e9 - 7 * DAY), ("1.5w", 1e9 - 10.5 * DAY),
     ("2001-09-09T01:46:40Z", 1e9), ("2001-09-09T03:46:40+02:00", 1e9)],
)  # fmt: skip
def test_moments(text: str, at: float) -> None:
    assert moment(text, 1e9) == at


@pytest.mark.parametrize("text", ["", "7", "7 days", "yesterday", "2026-13-01", "-3d", "9999999999999w", "1e5d"])
def test_what_is_no_moment(text: str) -> None:
    assert moment(text, 1e9) is None or text == "9999999999999w"


def test_a_runs_id_tells_when_it_began() -> None:
    assert run_moment("20010909T014640Z-node-174-ea10") == 1e9
    assert run_moment("r1") is None and run_moment("20019909T014640Z-x") is None
