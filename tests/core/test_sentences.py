"""Eight sentences of a kind become one; what differs stays apart, and nothing is lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.sentences import grouped, some, spans


def held(n: int, what: str = "holds 3.1 GiB") -> str:
    return f"GPU {n} (00000000:0{n + 1}:00.0) {what}"


def test_those_of_several_gpus_are_said_once() -> None:
    said = grouped([held(0), "RAM is gone", held(1), held(2, "is lost"), held(3)])
    assert said == ("GPUs 0-1 and 3: each holds 3.1 GiB", "RAM is gone", held(2, "is lost"))


@pytest.mark.parametrize(
    ("numbers", "words"), [([4], "4"), ([0, 1, 2, 3], "0-3"), ([0, 2], "0 and 2"), ([0, 1, 3, 5, 6], "0-1, 3 and 5-6")]
)
def test_spans(numbers: list[int], words: str) -> None:
    assert spans(numbers) == words


def test_how_many_more() -> None:
    assert some(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"


@given(st.lists(st.tuples(st.integers(0, 7), st.sampled_from(["a", "b"])), max_size=12))
def test_no_gpu_is_lost(pairs: list[tuple[int, str]]) -> None:
    said = " ".join(grouped([held(n, what) for n, what in pairs]))
    for n, _ in pairs:
        covered = {int(x) for x in re.findall(r"\b\d\b", said)}
        ranges = [(int(a), int(b)) for a, b in re.findall(r"\b(\d)-(\d)\b", said)]
        assert n in covered or any(a <= n <= b for a, b in ranges)
