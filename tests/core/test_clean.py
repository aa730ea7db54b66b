"""Whatever a machine sends, a terminal gets plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.clean import clean, clean_lines


@pytest.mark.parametrize(
    ("dirty", "plain"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jgone\x90q\x9cdone", "gonedone"),
        ("a\tb\r\nc\x00d", "a b c d"),
        ("evil\u202eexe.txt", "evil exe.txt"),
        ("zero\u200bwidth\ufeff", "zero width"),
        ("\x1b", ""),
        ("\x1bP+q544e\x1b\\after", "after"),
        ("käse 世界", "käse 世界"),
    ],
)
def test_controls_go_and_text_stays(dirty, plain):
    assert clean(dirty) == plain


@given(st.text())
def test_nothing_that_a_terminal_acts_on_is_left(text):
    found = clean(text)
    assert not any(ord(ch) < 32 or 127 <= ord(ch) < 160 or 0xD800 <= ord(ch) < 0xE000 for ch in found)
    assert not any(ch in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f" for ch in found)
    assert clean(found) == found


def test_length_is_bounded():
    assert clean("x" * 100, limit=10) == "x" * 9 + "…"


def test_lines_are_cleaned_one_by_one():
    assert clean_lines("a\r\n\x1b[2K\nb\rc") == ("a", "b", "c")
