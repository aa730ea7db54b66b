"""Curves, timeline and ledger of a run: measured is drawn, unknown is a gap, what was owed is accounted for.

Seen to fail on: an unknown look drawn as 0 or bridged, an act between two looks drawn as watched, a pause not folded,
eight acts of a kind as eight lines, a debt that was let go left out.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.report.curves import Point, curves
from recover.core.report.ledger import alike, ledger
from recover.core.report.plot import NARROW, WIDE, Scale, chart, elapsed, gaps, pieces, turns
from recover.core.report.timeline import timeline
from recover.model.act import Outcome, StartVm, StopService, StopVm, VmRef
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
    Opened,
    Saw,
    Stop,
    Vitals,
    Wait,
)
from recover.model.verdict import Diagnosis, Scope, State
from tests.scenarios.play import run

OPENED = Opened(100.0, "r1", "node-174", "hung-server", "d", "kim", "desk", 1, 0.0)
VM = VmRef("pve", 174, "")


def saw(at: float, used: int | None, available: int | None = 50, reached: bool = True) -> Saw:
    gpus = (GpuVital(0, "GPU-a", "00000000:01:00.0", used, 1000, "answers"),) if reached else ()
    vitals = Vitals(gpus, 500, available if reached else None, 400, reached=reached)
    return Saw(at, None, vitals, Diagnosis(State.UNCERTAIN))


def tried(at: float) -> tuple[Entry, ...]:
    return (
        Began(at, 1, "power-cycle-vm", 1, Scope.VM),
        Acting(at + 1, 0, StopVm(VM)),
        Acted(at + 2, 0, Outcome(True)),
        Acting(at + 3, 1, StartVm(VM, 300)),
        Acted(at + 4, 1, Outcome(True)),
        Ended(at + 5, 1, "power-cycle-vm", 1, Outcome(True)),
    )


LOOKS = (
    OPENED,
    saw(101, 900),
    saw(110, 800),
    saw(120, None),
    saw(130, None, reached=False),
    saw(140, 700),
    saw(150, 0),
)


def test_what_no_look_saw_is_a_gap_and_is_never_zero() -> None:
    drawn = curves(LOOKS)
    assert drawn is not None and (drawn.looks, drawn.unseen) == (6, 1)
    (gpu,) = drawn.gpus
    assert [p.mib for p in gpu.points] == [900, 800, None, None, 700, 0]
    assert [[p.mib for p in piece] for piece in pieces(gpu.points)] == [[900, 800], [700, 0]]
    assert gaps(gpu.points, 150.0) == [(110.0, 140.0)]
    assert drawn.ram is not None and drawn.ram.known == (50,) * 5 and drawn.ram.baseline == 400


@given(st.lists(st.none() | st.integers(0, 1000), min_size=1, max_size=30))
def test_no_line_leads_over_a_look_that_saw_nothing(values: list[int | None]) -> None:
    points = [Point(float(i), v) for i, v in enumerate(values)]
    found = pieces(points)
    assert [p for piece in found for p in piece] == [p for p in points if p.mib is not None]
    for piece in found:
        assert [p.at for p in piece] == [piece[0].at + i for i in range(len(piece))], "only looks next to each other"
    covered = gaps(points, points[-1].at)
    for point in points:
        if point.mib is None:
            assert any(begin <= point.at <= end for begin, end in covered)
        else:
            assert not any(begin < point.at < end for begin, end in covered)


def test_the_drawing_holds_as_many_lines_as_were_measured() -> None:
    drawn = curves(LOOKS)
    assert drawn is not None
    for shape in (WIDE, NARROW):
        svg = str(chart(drawn, shape, "words"))
        row = svg.split("<g>")[1]
        assert row.count('class="gap"') == 1 and ">?<" in row
        paths = re.findall(r'd="([^"]+)" class="line"', row)
        assert len(paths) == 2 and all(path.count("M") == 1 for path in paths), "two stretches, nothing between them"


def test_a_way_that_nobody_watched_is_dotted() -> None:
    drawn = curves((OPENED, saw(101, 900), saw(105, 900), *tried(106), saw(120, 0), saw(125, 0)))
    assert drawn is not None
    assert [p.after_act for p in drawn.gpus[0].points] == [False, False, True, False]
    row = str(chart(drawn, WIDE, "")).split("<g>")[1]
    assert row.count('class="way"') == 1 and row.count('class="line"') == 1
    (band,) = drawn.bands
    assert (band.number, band.step, band.began, band.ended, band.said) == (1, "power-cycle-vm", 106, 111, "done")


def test_a_gpu_that_was_away_keeps_its_row_and_its_total() -> None:
    lost = replace(saw(110, 0), vitals=Vitals((GpuVital(1, "GPU-b", "00000000:02:00.0", 5, 2000, "answers"),), 500, 50))
    drawn = curves((OPENED, saw(101, 900), lost, saw(120, 0)), {"GPU-a": 4, "00000000:02:00.0": 3})
    assert drawn is not None
    assert [(g.label, g.top, g.baseline, [p.mib for p in g.points]) for g in drawn.gpus] == [
        ("GPU 0", 1000, 4, [900, None, 0]),
        ("GPU 1", 2000, 3, [None, 5, None]),
    ]


def test_a_pause_is_folded_and_a_cut_rung_ends_where_the_journal_did() -> None:
    cut = (OPENED, saw(101, 900), Began(110, 1, "reset-gpu", 1, Scope.GPU), Acting(111, 0, StopVm(VM)))
    drawn = curves((*cut, replace(OPENED, at=9000.0, resumed=True), saw(9010, 0)))
    assert drawn is not None and drawn.pauses == ((111.0, 9000.0),)
    assert (drawn.bands[0].ended, drawn.bands[0].said) == (111.0, "cut")
    scale = Scale(drawn, 0.0, 960.0)
    assert scale.x(100) == 0 and round(scale.x(9010)) == 960 and scale.x(9000) - scale.x(111) < 30
    assert [scale.x(t) for t in range(100, 9010, 50)] == sorted(scale.x(t) for t in range(100, 9010, 50))
    going = curves((*cut, saw(120, 5)))
    assert going is not None and going.bands[0].ended is None and "has not ended" in str(chart(going, WIDE, ""))


def test_hours_of_looks_are_drawn_whole_and_small() -> None:
    looks = [saw(101.0 + n, 900 if n % 500 < 250 else n) for n in range(2000)]
    drawn = curves((OPENED, *looks))
    assert drawn is not None
    svg = str(chart(drawn, WIDE, ""))
    assert all(re.fullmatch(r"(?:[MLHVv] ?[-\d. ]+|Z)+", d) for d in re.findall(r' d="([^"]*)"', svg))
    same = [Point(float(n), 900) for n in range(2000)]
    assert turns(same) == [same[0], same[-1]] and turns(same[:1]) == same[:1]
    acted = [*same[:5], replace(same[5], after_act=True), *same[6:]]
    assert turns(acted) == [same[0], same[4], acted[5], same[-1]]


def test_nothing_looked_at_nothing_drawn() -> None:
    assert curves(()) is None and curves((OPENED,)) is None
    blind = curves((OPENED, saw(101, None, None, reached=False)))
    assert blind is not None and blind.gpus == () and blind.ram is None and "<svg" in str(chart(blind, WIDE, ""))


@pytest.mark.parametrize(("seconds", "says"), [(0, "0:00"), (102.9, "1:42"), (3723, "1:02:03"), (-1, "0:00")])
def test_elapsed(seconds: float, says: str) -> None:
    assert elapsed(seconds) == says


# -- the timeline


def test_what_repeats_is_said_once_with_its_number() -> None:
    waits = [x for t in range(4) for x in (saw(101 + t, 900 - t), Decided(101 + t, Wait(5.0, f"waiting for {t} GiB")))]
    (chapter,) = timeline((OPENED, *waits))
    assert [(i.kind, i.times) for i in chapter.items] == [("run", 1), ("look", 4), ("wait", 4)]
    assert chapter.items[1].at == 101 and chapter.items[1].until == 104 and "897" in chapter.items[1].text
    stops = [x for n in range(3) for x in (Acting(200 + n, n, StopService("systemd", f"dcgm-{n}")),
                                           Acted(200 + n, n, Outcome(True, "inactive")))]  # fmt: skip
    assert [(i.kind, i.times) for i in timeline((OPENED, *stops))[0].items][1:] == [("act", 3)]
    failed = [*stops[:2], stops[2], Acted(201, 1, Outcome(False, "it runs"))]
    assert [(i.tone, i.times) for i in timeline((OPENED, *failed))[0].items][1:] == [("plain", 1), ("bad", 1)]


def test_each_rung_crash_and_debt_is_a_chapter() -> None:
    chapters = timeline(run("killed-while-the-vm-is-stopped")[0].entries)
    assert [(c.title.partition(" (")[0], c.number, c.said) for c in chapters] == [
        ("Looking", 0, ""),
        ("reset-gpu", 1, "done"),
        ("power-cycle-vm", 2, "cut: the tool ended before the rung did"),
        ("Gone on with, after a crash", 0, ""),
        ("Put back what is owed", 0, ""),
        ("The end", 0, ""),
    ]
    begun = chapters[2].items[-1]
    assert "may or may not have happened" in begun.text and begun.tone == "warn"
    assert chapters[4].items[1].kind == "back"


# -- the ledger


def test_every_debt_is_told_with_how_it_was_settled() -> None:
    paid = ledger((OPENED, *tried(106)))
    assert [(d.key, d.opened_at, d.settled_at, d.how) for d in paid] == [
        ("vm:pve/174", 107.0, 110.0, "put back within the rung")
    ]
    owed = ledger((OPENED, *tried(106)[:3]))
    assert owed[0].settled_at is None and owed[0].how.startswith("still owed")
    end = Closed(200.0, End(EndKind.NEEDS_HUMAN, "no API"), None, ("vm:pve/174",))
    assert ledger((OPENED, *tried(106)[:3], end))[0].settled_at is None
    assert ledger((OPENED, *tried(106)[:3], replace(end, carried=())))[0].how == "let go at the end of the run"
    undone = (OPENED, Acting(1.0, 0, StopVm(VM)), Acted(2.0, 0, Outcome(True, "already stopped", changed=False)))
    assert ledger(undone)[0].how == "nothing had been changed"
    settled = replace(saw(150, 0), settled=(("vm:pve/174", "somebody started it"),))
    assert ledger((OPENED, *tried(106)[:3], settled))[0].how == "no longer owed: somebody started it"
    again = ledger((OPENED, *tried(106), *(replace(e, at=e.at + 100) for e in tried(106)[:3])))
    assert [d.settled_at is None for d in again] == [False, True]


def test_debts_alike_are_said_once() -> None:
    found = alike(ledger(run("killed-while-the-vm-is-stopped")[0].entries))
    assert [d.what for d in found if "persistence" in d.what] == [
        "persistence on for 00000000:01:00.0 and 7 more like it"
    ]


def test_the_verdict_is_where_the_end_was_decided() -> None:
    entries = (OPENED, saw(101, 0), saw(102, 0), Decided(102.5, Stop(End(EndKind.HEALTHY, "x"))), saw(110, 900))
    drawn = curves(entries)
    assert drawn is not None and drawn.verdict_at == 102 and drawn.gpus[0].after == 0
