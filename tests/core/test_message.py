"""Pager messages: never longer than a pager shows, clean, without secrets, with what, since, tried and next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.clean import clean
from recover.core.report.message import BODY, TITLE, Story, ended, message, story, trial
from recover.core.told import News, Owed
from recover.model.act import Outcome
from recover.model.notice import Event, Notice, Present, Told
from recover.model.record import Began, Closed, End, Ended, EndKind, Entry, Opened, Saw, Vitals
from recover.model.verdict import Diagnosis, Finding, Scope, State
from recover.model.watch import Judged, Status

AT = 1_795_922_263.0  # 2026-11-29 03:17:43 UTC
DEAD = "sglang server 4001@101000 is dead: 1 of 8 ranks are defunct (pid 4005)"


def owed(
    status: Status, news: News, *signals: str, target: str = "node-174", says: str = DEAD, since: float = AT
) -> Owed:
    was = Told("oncall", target, Status.CRITICAL, ("dead-group",), AT - 900, AT - 1300)
    at = Present(target, since, Judged(since, status, signals, says), since, news is News.FLAPPING)
    return Owed(news, at, None if news is News.BEGAN else was)


def test_a_fault_says_what_where_since_when_what_was_tried_and_what_is_next() -> None:
    known = Story("end-workers, reset-gpu; exhausted", "gpu-recover node-174 --approve vm")
    made = message([owed(Status.CRITICAL, News.BEGAN, "dead-group")], [], AT + 360, {"node-174": known})
    assert made.title == "CRITICAL node-174: dead-group" and made.kind == "failure"
    assert made.body == (
        f"{DEAD}. Since 03:17 UTC (6:00 min). Tried: end-workers, reset-gpu; exhausted. "
        "Next: gpu-recover node-174 --approve vm"
    )


def test_without_a_run_the_next_thing_is_to_look() -> None:
    bad = message([owed(Status.CRITICAL, News.BEGAN, "dead-group")], [], AT + 60)
    assert bad.body.endswith("Tried: nothing. Next: gpu-recover plan node-174")
    blind = message([owed(Status.UNKNOWN, News.BEGAN, says="no answer")], [], AT + 60)
    assert blind.title == "UNKNOWN node-174: see below" and blind.body.endswith("Next: gpu-recover doctor node-174")
    assert blind.kind == "warning"


def test_well_again_says_for_how_long_it_was_not() -> None:
    made = message([owed(Status.OK, News.RESOLVED, says="")], [], AT + 5, {"node-174": Story("end-workers; recovered")})
    assert made.title == "OK node-174: well again" and made.kind == "success"
    assert made.body == (
        "Was CRITICAL (dead-group) since 02:56 UTC, for 21:40 min. Tried: end-workers; recovered. Next: nothing to do"
    )


def test_a_reminder_counts_from_the_beginning_and_an_old_one_names_its_day() -> None:
    made = message([owed(Status.CRITICAL, News.REMINDER, "dead-group")], [], AT + 90000)
    assert made.title == "STILL CRITICAL node-174: dead-group" and "Since 29 Nov 02:56 UTC (25:21:40 h)" in made.body


def test_a_fleet_becomes_one_message_with_counts_and_first_names() -> None:
    bad = [owed(Status.CRITICAL, News.BEGAN, "gpu-lost", target=f"node-{n}") for n in range(101, 142)]
    made = message([*bad, owed(Status.OK, News.RESOLVED, target="node-17")], [], AT)
    assert made.title == "GPU targets: 41 CRITICAL, 1 OK" and made.kind == "failure"
    assert "CRITICAL: node-101, node-102, node-103, node-104, node-105 and 36 others" in made.body
    assert "OK: node-17" in made.body and "Faults: gpu-lost" in made.body and "Since 03:17 UTC" in made.body
    assert made.body.endswith("Next: gpu-recover check --all")


def test_all_well_again_is_good_news() -> None:
    made = message([owed(Status.OK, News.RESOLVED, target=f"n{i}") for i in range(3)], [], AT)
    assert (made.title, made.kind) == ("GPU targets: 3 OK", "success") and made.body.endswith("Next: nothing to do")


def test_ends_of_runs_and_states_share_one_message() -> None:
    notices = [Notice(AT, Event.GAVE_UP, "a", "x"), Notice(AT, Event.RECOVERED, "b", "y")]
    made = message([owed(Status.CRITICAL, News.BEGAN, "gpu-lost", target="c")], notices, AT)
    assert made.title == "GPU targets: 1 GAVE UP, 1 RECOVERED, 1 CRITICAL" and made.kind == "failure"


def test_the_test_message_says_that_it_is_one() -> None:
    made = trial("oncall", "ops1", AT)
    assert made.title.startswith("TEST ") and "nothing is wrong" in made.body and made.kind == "info"


texts = st.text(max_size=400)
statuses = st.sampled_from(Status)


@given(
    st.lists(
        st.builds(owed, statuses, st.sampled_from(News), texts, target=texts.filter(str.strip), says=texts), max_size=40
    ),
    st.lists(
        st.builds(
            Notice,
            st.just(AT),
            st.sampled_from([Event.GAVE_UP, Event.RECOVERED, Event.BREAKER]),
            texts,
            texts,
            texts,
            texts,
            over=st.booleans(),
        ),
        max_size=3,
    ),
    st.builds(Story, texts, texts),
)
def test_no_message_is_longer_than_a_pager_shows_or_holds_a_control(
    states: list[Owed], notices: list[Notice], known: Story
) -> None:
    if not states and not notices:
        return
    made = message(states, notices, AT + 5, {o.present.target: known for o in states})
    assert 0 < len(made.title) <= TITLE and 0 < len(made.body) <= BODY
    assert clean(made.title) == made.title and clean(made.body) == made.body
    assert made.kind in ("success", "warning", "failure", "info")


@given(st.text(min_size=250, max_size=4000))
def test_however_long_the_fault_what_is_next_stands_in_the_message(says: str) -> None:
    known = Story(
        "end-workers, release-leftovers, reset-gpu, reboot-guest; exhausted", "gpu-recover node-174 --approve vm"
    )
    made = message([owed(Status.CRITICAL, News.BEGAN, "dead-group", says=says)], [], AT, {"node-174": known})
    assert made.body.endswith("Next: gpu-recover node-174 --approve vm") and "Since 03:17 UTC" in made.body
    assert "Tried: end-workers, release-leftovers" in made.body


def test_a_secret_in_what_a_machine_said_goes_no_further() -> None:
    says = "python -m vllm --api-key hunter2abc is dead, hf_abcdefghijklmnopqrst"
    made = message([owed(Status.CRITICAL, News.BEGAN, "dead-group", says=says)], [], AT)
    assert "hunter2" not in made.body and "hf_abc" not in made.body


# --- runs

OPENED = Opened(AT, "r1", "node-174", "hung-server", "d", "kim", "ops1", 1, 0.0)
SAW = Saw(AT, None, Vitals(), Diagnosis(State.FAULTY, (Finding("dead-group", DEAD, Scope.PROCESS),)))


def run(kind: EndKind, *steps: str, service: str | None = None) -> list[Entry]:
    entries: list[Entry] = [OPENED, SAW]
    for index, step in enumerate(steps):
        entries += [Began(AT, index, step, 1, Scope.PROCESS), Ended(AT, index, step, 1, Outcome(True))]
    return [*entries, Closed(AT + 100, End(kind, "the reason", "gpu-recover x"), service)]


def test_a_run_that_recovered_is_told_with_what_it_was_and_who_did_it() -> None:
    notice = ended(run(EndKind.RECOVERED, "end-workers", "reset-gpu"))
    assert notice is not None and notice.event is Event.RECOVERED
    made = message([], [notice], AT + 100)
    assert made.title == "RECOVERED node-174" and made.kind == "success"
    assert "It was: sglang server" in made.body and "Tried: end-workers, reset-gpu (by kim@ops1)" in made.body


def test_a_recovery_whose_service_is_not_back_says_so() -> None:
    notice = ended(run(EndKind.RECOVERED, "end-workers", service="sglang.service is failed"))
    assert notice is not None and notice.event is Event.GAVE_UP, "who hears only of what is not well hears of it"
    made = message([], [notice], AT + 100)
    assert made.title == "SERVICE NOT BACK node-174" and made.kind == "failure"
    assert made.body.startswith("Its service is not back: sglang.service is failed. The rest is well: the reason")
    assert made.body.endswith("Next: gpu-recover x")
    silent = replace(run(EndKind.RECOVERED, service="x")[-1], end=End(EndKind.RECOVERED, "why"))  # type: ignore[type-var]
    told = ended([OPENED, SAW, silent])
    assert told is not None and told.next == "gpu-recover plan node-174"


@pytest.mark.parametrize("kind", EndKind)
def test_which_ends_are_told(kind: EndKind) -> None:
    notice = ended(run(kind))
    told = notice.event if notice is not None else None
    well = {EndKind.HEALTHY, EndKind.PLANNED, EndKind.HELD, EndKind.INTERRUPTED}
    assert told is (None if kind in well else Event.RECOVERED if kind is EndKind.RECOVERED else Event.GAVE_UP)


def test_a_run_that_was_interrupted_in_the_middle_is_told() -> None:
    notice = ended(run(EndKind.INTERRUPTED, "end-workers"))
    assert notice is not None and notice.event is Event.GAVE_UP and notice.next == "gpu-recover x"


def test_a_run_without_an_end_is_not_told() -> None:
    assert ended(run(EndKind.RECOVERED)[:-1]) is None and ended([]) is None


def test_the_story_of_a_run_that_goes_on_or_was_cut_names_what_to_type() -> None:
    entries = run(EndKind.EXHAUSTED, "end-workers")
    assert story(entries, goes_on=False) == Story("end-workers; exhausted", "gpu-recover x")
    assert story(entries[:-1], goes_on=True) == Story("end-workers; a run goes on", "gpu-recover follow node-174")
    assert story(entries[:-1], goes_on=False) == Story("end-workers; the run was cut", "gpu-recover node-174")


def test_a_breaker_that_opened_says_what_closes_it() -> None:
    notice = Notice(
        AT, Event.BREAKER, "node-174", "the recovery failed for no known reason", next="gpu-recover breaker"
    )
    made = message([], [notice], AT)
    assert made.title == "BREAKER OPEN at node-174: nothing acts by itself" and "Next: gpu-recover breaker" in made.body


def test_a_breaker_that_was_closed_is_good_news_alone_and_among_others() -> None:
    notice = Notice(AT, Event.BREAKER, "node-174", "kim closed it: driver updated", over=True)
    made = message([], [notice], AT)
    assert made.title.startswith("BREAKER CLOSED") and len(made.title) <= TITLE and made.kind == "success"
    assert made.body == "kim closed it: driver updated. At 03:17 UTC. Next: nothing to do"
    well = Notice(AT, Event.RECOVERED, "node-175", "healthy")
    made = message([], [notice, well], AT)
    assert made.title == "GPU targets: 1 BREAKER CLOSED, 1 RECOVERED" and made.kind == "success"
    assert message([], [replace(notice, over=False), well], AT).kind == "failure"
