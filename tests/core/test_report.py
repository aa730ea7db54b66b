"""Reports come from the journal alone: the JSON has exactly its keys, unknown is null, figures are the verdict's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from recover.core.report.lines import action_words, line
from recover.core.report.plan import exit_code as plan_code
from recover.core.report.plan import plan_json, plan_text, planned
from recover.core.report.result import EXIT_CODES, exit_code, held, result
from recover.core.report.text import text
from recover.core.report.words import brief, size, span
from recover.model.act import AwaitGone, Outcome, Signal, StartService, StartVm, StopVm, VmRef
from recover.model.process import ProcessId
from recover.model.record import (
    Acted,
    Acting,
    Began,
    Closed,
    Decided,
    End,
    Ended,
    EndKind,
    Entry,
    GpuVital,
    Kept,
    Opened,
    Saw,
    Stop,
    Vitals,
    Wait,
)
from recover.model.verdict import Diagnosis, Finding, Scope, State

KEYS = {
    "schema", "target", "run", "end", "exit_code", "why", "findings_before", "findings_after", "tries", "gpus", "ram",
    "service", "duties", "gaps", "next", "journal", "evidence",
}  # fmt: skip
DEAD = Finding("dead-group", "it is dead", Scope.PROCESS, "1@2")
OPENED = Opened(100.0, "r1", "node-174", "hung-server", "d", "kim", "desk", 1, 0.0)


def saw(at: float, used: int | None, available: int | None, *findings: Finding, base: int | None = 400) -> Saw:
    vitals = Vitals(
        gpus=(GpuVital(0, "GPU-a", "00000000:01:00.0", used, 1000, "answers" if used is not None else "hangs"),),
        ram_total_mib=500, ram_available_mib=available, ram_baseline_mib=base, baseline_is_default=base is None,
    )  # fmt: skip
    return Saw(at, None, vitals, Diagnosis(State.FAULTY if findings else State.HEALTHY, findings))


def recovered(service: str | None = None, then: Saw | None = None) -> tuple[Entry, ...]:
    end = End(EndKind.RECOVERED, "healthy 2 times in a row")
    return (
        OPENED,
        saw(101, 900, 50, DEAD),
        Began(102, 1, "end-workers", 1, Scope.PROCESS, (DEAD,)),
        Ended(110, 1, "end-workers", 1, Outcome(True, "gone", seconds=8.0)),
        saw(111, 0, 410),
        Decided(112, Stop(end)),
        *((then,) if then is not None else ()),
        Closed(120, end, service),
    )


def test_the_keys_and_figures_of_schema_1() -> None:
    found = result(recovered(), "j.jsonl")
    assert set(found) == KEYS and found["schema"] == 1
    assert (found["end"], found["exit_code"], found["journal"], found["next"]) == ("recovered", 0, "j.jsonl", None)
    assert found["findings_before"] == [
        {"signal": "dead-group", "says": "it is dead", "cure": "process", "where": "1@2"}
    ]
    assert found["findings_after"] == []
    assert found["tries"] == [
        {"step": "end-workers", "attempt": 1, "scope": "process", "ok": True, "detail": "gone", "seconds": 8.0}
    ]
    assert found["gpus"] == [
        {"index": 0, "uuid": "GPU-a", "bus_id": "00000000:01:00.0", "used_mib_before": 900, "used_mib_after": 0}
    ]
    assert found["ram"] == {
        "total_mib": 500, "available_mib_before": 50, "available_mib_after": 410, "baseline_mib": 400
    }  # fmt: skip
    json.dumps(found)


def test_the_figures_after_are_those_before_the_service_ran_again() -> None:
    entries = recovered("healthy", saw(118, 880, 60))
    assert result(entries, "")["gpus"][0]["used_mib_after"] == 0
    assert "Now, with the service started: 1 GPU, 880 MiB used" in text(entries)


def test_unknown_is_null_in_json_and_a_question_mark_in_words() -> None:
    end = End(EndKind.CANNOT_TELL, "?")
    entries = (OPENED, saw(101, None, None, base=None), Decided(102, Stop(end)), Closed(103, end))
    found = result(entries, "")
    assert found["gpus"][0]["used_mib_after"] is None and found["ram"]["available_mib_after"] is None
    assert found["ram"]["baseline_mib"] is None
    assert "defaults, no baseline saved" in text(entries) and " ?" in text(entries) and " 0 MiB" not in text(entries)


@pytest.mark.parametrize(
    ("service", "code"), [(None, 0), ("healthy", 0), ("sglang.service is failed", 15), ("not awaited", 15)]
)
def test_recovered_without_its_service_is_15(service: str | None, code: int) -> None:
    entries = recovered(service)
    assert result(entries, "")["exit_code"] == code
    assert ("BUT THE SERVICE IS NOT BACK" in text(entries).splitlines()[0]) == (code == 15)
    following = result(entries, "")["next"]
    assert (following is not None) == (code == 15) == ("\nNext: " in text(entries))


@pytest.mark.parametrize(
    ("manager", "name", "said"),
    [
        ("systemd", "sglang.service", "on node-174: journalctl -n 200 -u sglang.service    # why it does not serve"),
        ("docker", "a b", "on node-174: docker logs --tail 200 'a b'    # why it does not serve"),
        ("unheard-of", "x", "gpu-recover plan node-174"),
    ],
)
@pytest.mark.parametrize("tried", [True, False])
def test_of_a_service_that_is_not_back_its_log_is_next(manager: str, name: str, said: str, tried: bool) -> None:
    """Planted and seen to fail: a name that is not quoted; what is still owed is left out."""
    *before, closed = recovered("it is failed")
    assert isinstance(closed, Closed)
    if tried:
        before.append(Acting(closed.at, 9, StartService(manager, name)))
    else:
        closed = replace(closed, carried=(f"service:{manager}/{name}",))
    assert result((*before, closed), "")["next"] == said


def test_every_end_has_its_exit_code() -> None:
    assert {k: EXIT_CODES[k] for k in EndKind} == EXIT_CODES
    codes = {k.value: exit_code(Closed(0.0, End(k, ""))) for k in EndKind}
    assert codes == {
        "healthy": 0, "recovered": 0, "planned": 1, "exhausted": 10, "blocked": 11, "needs-human": 12,
        "out-of-time": 13, "cannot-tell": 14, "held": 20, "interrupted": 130,
    }  # fmt: skip


def test_a_run_that_was_cut_has_no_end_and_keeps_its_debts() -> None:
    owed = Acting(103, 0, StopVm(VmRef("pve", 174, "u")))
    entries = (OPENED, saw(101, 900, 50, DEAD), Began(102, 3, "power-cycle-vm", 1, Scope.VM), owed)
    found = result(entries, "j")
    assert found["end"] is None and found["exit_code"] is None and len(found["duties"]) == 1
    assert found["tries"][0]["ok"] is False
    assert text(entries).startswith("node-174: this run has not ended") and "Still owed (1 duty)" in text(entries)


def test_a_carried_duty_is_told() -> None:
    end = End(EndKind.NEEDS_HUMAN, "could not start", "qm start 174")
    entries = (OPENED, saw(101, 900, 50, DEAD), Decided(102, Stop(end)), Closed(103, end, None, ("vm:pve/174",)))
    assert result(entries, "")["duties"] == ["vm:pve/174"]
    assert "vm:pve/174" in text(entries) and "Next: qm start 174" in text(entries)


def test_held_has_the_same_keys() -> None:
    assert set(held("node-174", "by kim", "gpu-recover follow node-174")) == KEYS


def test_nothing_from_a_machine_reaches_the_terminal_raw() -> None:
    evil = Finding("dead-group", "title \x1b[2J\x1b]0;owned\x07 \u202egnp", Scope.PROCESS, "\x1b[31m")
    end = End(EndKind.EXHAUSTED, "why \x1b[0m\r", "next\x07", ("a: \x1b[1m",))
    entries = (
        OPENED,
        saw(101, 900, 50, evil),
        Began(102, 1, "end-workers", 1, Scope.PROCESS, (evil,)),
        Acted(103, 0, Outcome(False, "\x1b[31mred", log=("\x1b",))),
        Ended(104, 1, "end-workers", 1, Outcome(False, "\x1b[31mred")),
        saw(105, 900, 50, evil),
        Decided(106, Stop(end)),
        Closed(107, end, "\x9b31m"),
    )
    shown = text(entries) + "".join(line(e) for e in entries) + json.dumps(result(entries, ""), ensure_ascii=False)
    assert all(c.isprintable() or c == "\n" for c in shown), ascii(shown)


def test_the_plan_of_a_run_that_waited_says_for_what() -> None:
    end = End(EndKind.BLOCKED, "refused", "lift it")
    waited = (OPENED, saw(101, 900, 50, DEAD), Decided(101, Wait(60, "progress")), saw(161, 900, 50, DEAD))
    stop = planned((*waited, Decided(161, Stop(end))))
    assert plan_code(stop) == 11 and "would do nothing and end blocked" in plan_text(stop)
    assert plan_json(stop)["exit_code"] == 11 and plan_json(stop)["step"] is None
    assert plan_json(stop)["next"] == "lift it" and "  next: lift it" in plan_text(stop)
    healthy = planned((OPENED, saw(101, 0, 410), Decided(102, Stop(End(EndKind.HEALTHY, "")))))
    assert plan_code(healthy) == 0 and "nothing to do" in plan_text(healthy) and plan_json(healthy)["next"] is None


def test_words() -> None:
    assert [span(s) for s in (0, 59.4, 61, 3725)] == ["0 s", "59 s", "1:01 min", "1:02:05 h"]
    assert [size(m) for m in (None, 0, 900, 10240)] == ["?", "0 MiB", "900 MiB", "10.0 GiB"]
    assert brief("off; off; off; reset; on") == "off (3 times); reset; on"


def test_every_entry_has_a_line_without_line_breaks() -> None:
    start = Acting(1, 0, StartVm(VmRef("pve", 174, ""), 300))
    for entry in (*recovered(), start, Acted(2, 0, Outcome(True)), replace(OPENED, resumed=True)):
        assert "\n" not in line(entry)
    assert "goes on after a crash" in line(replace(OPENED, resumed=True))


LAUNCH = "python3 -m sglang.launch_server --tp 8 --api-key '***'"


def by_hand_run(*acts: Any, after: tuple[tuple[str, str], ...] = (), scope: Scope = Scope.PROCESS) -> tuple[Entry, ...]:
    sick = replace(saw(101, 900, 50, DEAD), vitals=replace(saw(101, 900, 50).vitals, by_hand=(("g1", LAUNCH),)))
    well = replace(saw(118, 0, 60), vitals=replace(saw(118, 0, 60).vitals, by_hand=after))
    end = End(EndKind.RECOVERED, "well")
    began = Began(102, 1, "end-workers", 1, scope)
    acting = tuple(Acting(103 + i, i, act) for i, act in enumerate(acts))
    return (OPENED, sick, began, *acting, well, Decided(119, Stop(end)), Closed(120, end))


def test_a_server_that_was_started_by_hand_is_named_by_its_command() -> None:
    ended = by_hand_run(Signal("g1", (), "KILL"))
    assert result(ended, "")["by_hand"] == [LAUNCH]
    assert f"Not started again: no manager owns it, somebody started it as\n  {LAUNCH}" in text(ended)
    restarted = by_hand_run(scope=Scope.GUEST)
    assert result(restarted, "")["by_hand"] == [LAUNCH], "a restart of the guest ends it too"
    for entries in (
        by_hand_run(Signal("g2", (), "KILL")),
        by_hand_run(Signal("g1", (), "KILL"), after=(("g9", LAUNCH),)),
    ):
        assert "by_hand" not in result(entries, ""), "another group, or it runs again"


def test_where_its_launch_did_not_fit_the_one_that_does_stands_beside_it() -> None:
    opened, sick, *rest = by_hand_run(Signal("g1", (), "KILL"))
    kept = Kept(
        101.5, "e", (), ("the launch asked for more memory than there is", "start it as: python3 --hicache-size 51")
    )
    told = text((opened, sick, kept, *rest))
    assert "it did not fit; corrected: python3 --hicache-size 51" in told


def test_one_is_not_many() -> None:
    who = ProcessId("boot", 7, 1)
    assert action_words(Signal("g", (who,), "TERM")) == "SIGTERM to 1 process of group g"
    assert action_words(Signal("g", (who, who), "TERM")) == "SIGTERM to 2 processes of group g"
    assert action_words(AwaitGone("g", (who,), 5.0)) == "wait up to 5 s until 1 process is gone"
    assert action_words(AwaitGone("g", (who, who), 5.0)) == "wait up to 5 s until 2 processes are gone"
