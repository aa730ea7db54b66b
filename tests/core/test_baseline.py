"""A baseline comes from an idle look without gaps only, and says when it does not fit any more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.baseline import idle, stale
from recover.core.diagnose import assess
from recover.core.past import Past
from recover.model.contact import Failure
from recover.model.gpu import Condition, Driver
from recover.model.guest import Mark, Mute
from recover.model.ladder import Limits
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Baseline, Snapshot
from tests.core import builders as b


def proposed(snapshot: Snapshot) -> tuple[Baseline | None, tuple[str, ...]]:
    return idle(*assess(replace(snapshot, baseline=None), Past(), Limits()))


def test_an_idle_guest_makes_one_and_fits_it() -> None:
    made, reasons = proposed(b.healthy_snapshot())
    assert reasons == ()
    assert made is not None
    assert (made.ram_available_mib, len(made.gpus), made.gpus[0].link_width) == (b.IDLE_AVAILABLE_MIB, 8, 16)
    assert (made.agent_answered, made.unowned_mib) == (True, 2048)
    assert stale(made, b.healthy_snapshot()) == ()


@pytest.mark.parametrize(
    "snapshot",
    [
        b.serving_snapshot(),
        b.healthy_snapshot(processes=(b.process(7000, "python3 train.py", holds=b.holding(0)),)),
        b.healthy_snapshot(gpus=(b.gpu(0, used_mib=Known(5000)), *b.gpus()[1:])),
        b.healthy_snapshot(gpus=(b.gpu(0, used_mib=Unknown(Why.DENIED)), *b.gpus()[1:])),
        b.healthy_snapshot(gpus=(b.gpu(0, condition=Condition.LOST), *b.gpus()[1:])),
        b.healthy_snapshot(gpus=()),
        b.healthy_snapshot(ram=b.ram(available_mib=200 * 1024)),
        b.healthy_snapshot(ram=b.ram(available_mib=200 * 1024, unowned_mib=250 * 1024)),
        b.healthy_snapshot(ram=Unknown(Why.GARBLED)),
        b.healthy_snapshot(mark=Mark(b.BOOT, 30.0)),
        b.healthy_snapshot(complete=False),
        b.mute_snapshot(Mute(Failure.DNS, "")),
    ],
)
def test_nothing_else_makes_one(snapshot: Snapshot) -> None:
    made, reasons = proposed(snapshot)
    assert made is None
    assert reasons


def test_a_changed_driver_or_memory_or_card_makes_it_stale() -> None:
    driver = Known(Driver(Condition.ANSWERS, version=Known("600.1")))
    assert stale(b.baseline(), b.healthy_snapshot(driver=driver))
    assert stale(b.baseline(ram_total_mib=b.RAM_MIB // 2), b.healthy_snapshot())
    assert stale(b.baseline(), b.healthy_snapshot(gpus=(b.gpu(0, uuid=Known("GPU-new")),)))


def test_fewer_of_the_same_cards_or_a_little_less_memory_do_not() -> None:
    assert stale(b.baseline(), b.healthy_snapshot(gpus=b.gpus(3))) == ()
    assert stale(b.baseline(ram_total_mib=b.RAM_MIB - 100), b.healthy_snapshot()) == ()


def test_what_may_go_away_by_itself_is_not_called_wrong() -> None:
    """Memory that only ripens is no finding yet, so it must not be worded as one."""
    snapshot = b.healthy_snapshot(gpus=(b.gpu(0, used_mib=Known(5000)), *b.gpus()[1:]))
    _, diagnosis = assess(replace(snapshot, baseline=None), Past(), Limits())
    assert diagnosis.ripening and not diagnosis.findings
    _, reasons = proposed(snapshot)
    ripe = {s.finding.says for s in diagnosis.ripening}
    assert not ripe & set(reasons)
    assert {f"may go away by itself, look again in a minute: {says}" for says in ripe} <= set(reasons)
