"""A start is hindered only by a launch that is known not to fit, and a refusal is final for the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from recover.core.aftercare import Finish, aftercare
from recover.core.fold import fold
from recover.edge.actuator.starts import CheckedStarts
from recover.model.act import Action, Outcome, StartService, StopService
from recover.model.contact import Broken, Failure, Ran
from recover.model.ladder import Playbook
from recover.model.record import Acted, Acting, End, EndKind, Opened, Saw, Vitals
from recover.model.verdict import Diagnosis, State
from recover.steps.undo import duty

GIB = 1 << 30
TOO_MUCH = ("python", "-m", "sglang.launch_server", "--tp", "8", "--enable-hierarchical-cache", "--hicache-size", "300")
FITS = (*TOO_MUCH[:-1], "8")


@dataclass
class Hand:
    done: list[Action] = field(default_factory=list)

    def perform(self, action: Action) -> Outcome:
        self.done.append(action)
        return Outcome(True, "done")


@dataclass
class Machine:
    """A shell whose agent knows the memory that is available, or that gives no answer."""

    available: int | None = 445 * GIB
    asked: int = 0
    where: str = "there"

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", deadline: float, cap: int = 0) -> Ran | Broken:
        self.asked += 1
        if self.available is None:
            return Broken(Failure.DIED, "gone")
        rows = [{"k": "budget-memory", "available": self.available, "total": 449 * GIB}, {"k": "end"}]
        return Ran(0, "\n".join(json.dumps(r) for r in rows).encode(), b"", 0.1)


def start(launch: tuple[str, ...], machine: Machine, total: int | None = 449 * GIB) -> tuple[Outcome, Hand]:
    hand = Hand()
    checked = CheckedStarts(hand, lambda: machine, lambda: total)  # type: ignore[arg-type]
    return checked.perform(StartService("systemd", "sglang.service", launch=launch)), hand


def test_a_launch_that_cannot_fit_is_not_started_again() -> None:
    outcome, hand = start(TOO_MUCH, Machine())
    assert not outcome.ok
    assert not outcome.changed
    assert hand.done == []
    assert outcome.detail.startswith("refused: sglang.service is not started again")
    assert "2400 GB" in outcome.detail


@pytest.mark.parametrize("launch", [FITS, (), ("python", "train.py")])
def test_what_fits_or_is_no_server_is_started_and_nobody_is_asked(launch: tuple[str, ...]) -> None:
    machine = Machine()
    outcome, hand = start(launch, machine)
    assert outcome.ok
    assert len(hand.done) == 1
    assert machine.asked == 0


def test_a_machine_that_gives_no_answer_hinders_no_start() -> None:
    outcome, _ = start(TOO_MUCH, Machine(available=None))
    assert outcome.ok


def test_without_a_figure_of_the_ram_nothing_is_judged() -> None:
    outcome, _ = start(TOO_MUCH, Machine(), total=None)
    assert outcome.ok


def test_the_launch_goes_with_the_debt_and_a_refusal_is_not_tried_again() -> None:
    stop = StopService("systemd", "sglang.service", launch=TOO_MUCH)
    owed = duty(stop)
    assert owed is not None
    assert owed.do == StartService("systemd", "sglang.service", launch=TOO_MUCH)
    payable = frozenset({owed.key})
    saw = Saw(90.0, None, Vitals(), Diagnosis(State.HEALTHY), payable=payable)
    history = fold(
        [
            Opened(0.0, "r", "node-174", "p", "", "kim", "here", 1, 0.0),
            Acting(50.0, 0, stop),
            Acted(51.0, 0, Outcome(True)),
            saw,
            Acting(91.0, 1, owed.do, owed.key),
            Acted(92.0, 1, Outcome(False, "refused: its launch does not fit", changed=False)),
            Saw(95.0, None, Vitals(), Diagnosis(State.HEALTHY), payable=payable),
        ]
    )
    done = aftercare(Playbook("p", ""), history, End(EndKind.RECOVERED, ""), 200.0)
    assert isinstance(done, Finish)
    assert "does not fit" in str(done.service)
    assert done.carried == (owed.key,)
