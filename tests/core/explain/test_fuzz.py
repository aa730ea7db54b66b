# ruff: noqa: E501
"""Any bytes in: no exception, nothing invented, every finding on a line that is there, and nothing for a terminal to act on."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from recover.core.clean import clean
from recover.core.explain import explain, lines, memory, process_table, processes
from recover.core.explain.message_table import MESSAGES
from recover.core.read import smi_text
from tests.core.explain import healthy
from tests.core.explain.test_raw import RIGHT, text_of

_SICK = [line for name in sorted(RIGHT) for line in text_of(name)]
_WELL = [
    *healthy.log(60, 1),
    *healthy.dmesg(40, 2),
    *healthy.ps_aux(40, 3),
    *healthy.smi_table(4),
    *healthy.smi_query(5),
]
_PIECES = st.one_of(
    st.sampled_from(_SICK),
    st.sampled_from(_WELL),
    st.text(max_size=60),
    st.binary(max_size=40).map(lambda raw: raw.decode("utf-8", "replace")),
)
_QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(st.binary(max_size=600))
@_QUICK
def test_bytes_are_nothing(raw: bytes) -> None:
    assert explain(raw.decode("utf-8", "replace")) == ()


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=()), max_size=400))
@_QUICK
def test_text_is_nothing(text: str) -> None:
    # Hypothesis knows the words of the program under test: a message by itself is one.
    assume(not any(needle in text for message in MESSAGES for needle in message.needles))
    assert [t for t in explain(text) if not t.note] == []


@given(st.lists(_PIECES, max_size=30), st.sampled_from(["\n", "\r\n", "\n\n", " ", "\x1b[0m\n", "|"]))
@_QUICK
def test_pieces_in_any_order(pieces: list[str], glue: str) -> None:
    text = glue.join(pieces)
    for told in explain(text):
        line = text.split("\n")[told.line - 1]
        assert told.text.rstrip("…")[:80] in clean(line, 2000) or "***" in told.text
        for shown in (told.text, told.says, told.fact, told.signal):
            assert clean(shown) == shown
        assert re.fullmatch(r"[a-z0-9-]+", told.signal)


@given(st.lists(st.sampled_from(_WELL), max_size=60))
@_QUICK
def test_healthy_lines_in_any_order_are_nothing(pieces: list[str]) -> None:
    assert explain("\n".join(pieces)) == ()


@given(st.sampled_from(_SICK), st.integers(0, 200), st.integers(0, 200), st.text(max_size=5))
@_QUICK
def test_broken_lines_raise_nothing(line: str, start: int, size: int, junk: str) -> None:
    explain(line[:start] + junk + line[start + size :])


@given(st.lists(_PIECES, max_size=12))
@_QUICK
def test_every_reader_takes_anything(pieces: list[str]) -> None:
    read = lines.read_lines("\n".join(pieces))
    list(process_table.rows(read))
    processes.processes_told(read)
    memory.memory_told(read)
    smi_text.read((line.number, line.text) for line in read)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=" + "a, " * 20000,
        "|" * 50000,
        "| 0 " + "x " * 20000 + "|",
        "1 2 3 " * 20000,
        "PID PPID STAT CMD\n" + "1 " * 30000,
        "a " * 30000 + "fallen off the bus",
        "[" * 30000,
        "> " * 30000,
        "\x1b[" * 20000,
        "GPU recovery action changed from " * 3000,
        "\n".join(["no end"] * 30000),
    ],
    ids=lambda text: text[:20],
)
def test_hostile_lines_take_no_time(text: str) -> None:
    began = time.process_time()
    explain(text)
    assert time.process_time() - began < 5.0


def test_secrets_of_command_lines_are_not_shown() -> None:
    text = "PID PPID STAT CMD\n5 1 R sglang::scheduler_TP0 --api-key hunter2secret\n"
    (told,) = explain(text)
    assert "hunter2secret" not in told.text + told.says


def test_every_message_says_what_and_why() -> None:
    for message in MESSAGES:
        assert message.says and message.fact and message.needles, message
        assert message.says == clean(message.says)
        assert all(needle for needle in message.needles)
