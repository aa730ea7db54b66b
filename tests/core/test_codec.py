"""What is written to the journal comes back the same, and what cannot come back is said with its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.codec import Garbled, decode, encode
from recover.model.act import Act, Line, Outcome, Pass, Refuse, Signal, StopVm, VmRef
from recover.model.contact import Failure
from recover.model.guest import Mark
from recover.model.process import ProcessId
from recover.model.reading import Known, Unknown, Why
from recover.model.record import (
    Acted,
    Acting,
    Began,
    Closed,
    Decided,
    End,
    EndKind,
    Entry,
    Hooked,
    Hooking,
    Saw,
    Stop,
    Vitals,
)
from recover.model.verdict import Diagnosis, Finding, Scope, State

texts = st.text(max_size=20)
findings = st.builds(Finding, texts, texts, st.sampled_from([None, *Scope]), st.none() | texts, st.tuples(texts))
entries = st.one_of(
    st.builds(
        Saw,
        at=st.floats(0, 2e9),
        mark=st.none() | st.builds(Mark, texts, st.floats(0, 1e9)),
        vitals=st.just(Vitals()),
        diagnosis=st.builds(
            Diagnosis,
            st.sampled_from(State),
            st.tuples(findings),
            channels=st.frozensets(st.sampled_from(["guest", "x"])),
        ),
    ),
    st.builds(
        Acting, st.floats(0, 2e9), st.integers(0), st.builds(StopVm, st.builds(VmRef, texts, st.integers(), texts))
    ),
    st.builds(
        Acting,
        st.floats(0, 2e9),
        st.integers(0),
        st.builds(Signal, texts, st.tuples(st.builds(ProcessId, texts, st.integers(), st.integers())), st.just("TERM")),
    ),
    st.builds(Acted, st.floats(0, 2e9), st.integers(0), st.builds(Outcome, st.booleans(), texts, log=st.tuples(texts))),
    st.builds(
        Began, st.floats(0, 2e9), st.integers(0), texts, st.integers(1), st.sampled_from(Scope), st.tuples(findings)
    ),
    st.builds(Decided, st.floats(0, 2e9), st.builds(Stop, st.builds(End, st.sampled_from(EndKind), texts))),
    st.builds(Hooking, st.floats(0, 2e9), texts, texts, texts),
    st.builds(Hooked, st.floats(0, 2e9), texts, st.builds(Outcome, st.booleans(), texts)),
    st.builds(Closed, st.floats(0, 2e9), st.builds(End, st.sampled_from(EndKind), texts), st.none() | texts),
)


@given(entries)
def test_an_entry_comes_back_the_same(entry: Entry) -> None:
    assert decode(json.loads(json.dumps(encode(entry)))) == entry


@pytest.mark.parametrize(
    "value",
    [
        Known(5),
        Known(("a", None)),
        Unknown(Why.DENIED, "no"),
        Failure.BANNER_SILENCE,
        Line((Act(StopVm(VmRef("c", 1, "")), must=False),), 3.0, ("words",)),
        Pass("x"),
        Refuse("lock", "locked", "wait"),
        frozenset({"b", "a"}),
    ],
)
def test_model_values_come_back(value: object) -> None:
    assert decode(json.loads(json.dumps(encode(value)))) == value


def test_a_newer_field_is_dropped_and_a_missing_one_takes_its_default() -> None:
    assert decode({"$": "Pass", "why": "x", "since": 3}) == Pass("x")


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        ({"$": "Nothing"}, "unknown type 'Nothing'"),
        ({"why": "x"}, "no type tag"),
        ({"$": "Scope", "is": "MOON"}, "Scope has no"),
        ({"$": "Refuse"}, "Refuse"),
        ({"$": "Line", "acts": [{"$": "Act", "do": {"x": 1}}]}, r"acts\[0\].do"),
    ],
)
def test_garbage_is_refused_with_its_place(raw: object, place: str) -> None:
    with pytest.raises(Garbled, match=place):
        decode(raw)


def test_what_is_not_model_data_is_a_bug() -> None:
    with pytest.raises(TypeError, match="object"):
        encode(object())
