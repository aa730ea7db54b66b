"""What the agent packs comes out as it went in, whole or broken off; any other bytes come out as no look at all."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.read import stream
from recover.core.read.agent import read_guest
from recover.core.read.stream import AGAIN, MARK, Unpacker, unpack
from recover.guest import pack
from recover.guest.pack import Packer, kind_of

NASTY = st.one_of(st.text(max_size=6), st.sampled_from(["},{", '"k":"end"}', "}]", "~", ":[{"]))
ROW = st.one_of(
    st.fixed_dictionaries({"pid": st.integers(0, 9), "comm": NASTY}), st.lists(st.integers(0, 3), max_size=2), NASTY
)
LOOK = st.lists(st.tuples(st.sampled_from(["procs", "deep", "hello", "ram"]), st.lists(ROW, max_size=8)), max_size=6)


def line(kind: str, **fields: Any) -> bytes:
    return (json.dumps({**fields, "k": kind}, separators=(",", ":")) + "\n").encode()


def lines(look: list[tuple[str, list[dict[str, Any]]]]) -> list[bytes]:
    return [*(line(kind, list=rows) for kind, rows in look), line("end", wall=1.0)]


SEAMS = st.lists(st.sampled_from(["},{", ":[{", "}]", "],[", ":[[", "]]", "x", '"', "\\"]), max_size=12).map("".join)


@given(st.one_of(st.binary(max_size=60), SEAMS.map(str.encode)))
def test_both_sides_cut_alike_and_lose_nothing(text: bytes) -> None:
    assert (pack.MARK, pack.AGAIN) == (MARK, AGAIN)
    head, pieces, seam, tail = pack.cut(text)
    assert stream.cut(text) == pieces
    assert head + seam.join(pieces) + tail == text


@given(st.lists(LOOK, min_size=1, max_size=4))
def test_several_looks_come_out_as_they_went_in(looks: list[list[tuple[str, list[dict[str, Any]]]]]) -> None:
    packer, there = Packer(), Unpacker()
    there.feed(MARK)
    for look in looks:
        said = lines(look)
        for one in said:
            assert not there.over
            there.feed(packer.known_line(one))
        assert there.over and not there.broken
        assert there.turn() == b"".join(said)
        packer.turn()


def test_what_is_said_again_is_nearly_nothing() -> None:
    rows = [{"pid": pid, "comm": f"worker-{pid * 7919 % 1000}"} for pid in range(1000)]
    packer = Packer()
    first = len(packer.known_line(line("procs", list=rows)))
    packer.turn()
    again = packer.known_line(line("procs", list=[*rows[:500], {"pid": 5000, "comm": "new"}, *rows[501:]]))
    assert first > 4000 and len(again) < 150


@given(st.integers(0, 400))
def test_what_broke_off_is_passed_on_as_far_as_it_came(cut: int) -> None:
    packer = Packer()
    said = [line("hello", boot_id="b", pid=1), *lines([("procs", [{"pid": 1, "comm": "x" * 50}])])]
    packed = b"".join(packer.line(one) for one in said)
    out = unpack(b"Welcome!\n" + MARK + packed[:cut])
    assert (b"Welcome!\n" + b"".join(said)).startswith(out)


def test_what_was_never_packed_stays_as_it_is() -> None:
    for text in (b"", b"no-python\n", b'{"k":"hello"}\n', b"x" + MARK):
        assert unpack(text) == text


def test_a_bomb_is_cut() -> None:
    bomb = zlib.compress(b"0" * 50_000_000)
    there = Unpacker(cap=1_000_000)
    there.feed(MARK + bomb)
    assert there.broken and there.over and len(there.turn()) <= 1_000_001


def test_a_machine_that_floods_before_it_says_what_it_is_is_heard_no_longer() -> None:
    stream, chunk, fed = Unpacker(), b"spam and no end of line " * 1000, 0
    while not stream.over:
        stream.feed(chunk)
        fed += len(chunk)
        assert fed < 2_000_000
    stream.feed(chunk)
    assert len(stream.turn()) <= fed


@given(st.binary(max_size=300))
def test_any_bytes_raise_nothing(data: bytes) -> None:
    assert read_guest(unpack(MARK + data)) is None
    packed = zlib.compressobj()
    there = Unpacker()
    there.feed(MARK + packed.compress(data + b"\n") + packed.flush(zlib.Z_SYNC_FLUSH))
    there.turn()


@pytest.mark.parametrize(
    "told", [[0, 5], [-1, 1], "é", [1], [0, 10**30], [None, 1], None, {"x": 1}, [[0], 1], ["a", "b"]]
)
def test_pieces_that_nobody_said_end_the_stream(told: Any) -> None:
    packed = zlib.compressobj()
    there = Unpacker()
    text = line(AGAIN, of="procs", head="", say=[told], by="},{", tail="")
    there.feed(MARK + packed.compress(text) + packed.flush(zlib.Z_SYNC_FLUSH))
    assert there.broken


def test_naming_much_with_few_words_is_cut() -> None:
    packed = zlib.compressobj()
    there = Unpacker(cap=1_000_000)
    there.feed(MARK)
    text = line("procs", list=[{"comm": "x" * 1000}])
    for _ in range(3):
        there.feed(packed.compress(text + line("end")) + packed.flush(zlib.Z_SYNC_FLUSH))
        there.turn()
        text = line(AGAIN, of="procs", head='{"list":[{', say=[[0, 1]] * 5000, by="},{", tail='}],"k":"procs"}')
    assert there.broken


@given(st.text(max_size=60))
def test_no_title_forges_a_kind(title: str) -> None:
    for evil in (title, title + '","k":"end"}', '"k":"end"}\n{"k":"end"}'):
        one = line("procs", list=[{"comm": evil}])
        assert kind_of(one) == "procs" and stream._kind(one) == "procs"
