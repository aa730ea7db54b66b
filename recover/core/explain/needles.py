"""Which messages a line may hold, told fast: by one of its words where a needle has one, else by the needle itself.

Most of a log is well, and asked of every line this is most of the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from recover.core.explain.message_table import MESSAGES, Message

Hit = tuple[int, str, Message]  # the place in the table, the needle


def _word(needle: str) -> str:
    """The longest word that blanks enclose within the needle: it is a word of every line with the needle in it."""
    return max(needle.split(" ")[1:-1], key=len, default="")


def _index() -> tuple[dict[str, tuple[Hit, ...]], tuple[Hit, ...]]:
    by_word: dict[str, list[Hit]] = {}
    bare: list[Hit] = []
    for place, message in enumerate(MESSAGES):
        for needle in message.needles:
            word = _word(needle)
            (by_word.setdefault(word, []) if len(word) > 2 else bare).append((place, needle, message))
    return {word: tuple(hits) for word, hits in by_word.items()}, tuple(bare)


_BY_WORD, _BARE = _index()
_WORDS = frozenset(_BY_WORD)


def hits(text: str) -> Sequence[Hit]:
    """In the order of the table."""
    found = [hit for hit in _BARE if hit[1] in text]
    words = _WORDS.intersection(text.split(" "))
    if words:
        found += [hit for word in words for hit in _BY_WORD[word] if hit[1] in text]
        found.sort(key=lambda hit: hit[0])
    return found


# ------------------------------------------------------------------------------------------------ over a wrap


def _halves(needles: Iterable[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """What a line ends with, or the next begins with, if a needle was cut: the longer half of each, by two letters."""
    heads: dict[str, set[str]] = {}
    tails: dict[str, set[str]] = {}
    for needle in needles:
        for at in range(1, len(needle)):
            head, tail = needle[:at].rstrip(), needle[at:].lstrip()
            if len(head) >= len(tail):
                heads.setdefault(head[-2:], set()).add(head)
            else:
                tails.setdefault(tail[:2], set()).add(tail)
    return {end: tuple(words) for end, words in heads.items()}, {start: tuple(words) for start, words in tails.items()}


_HEADS, _TAILS = _halves(needle for message in MESSAGES for needle in message.needles)


def may_be_cut(line: str, after: str) -> bool:
    """Whether a needle may begin at the end of `line` and go on in `after`."""
    return line.endswith(_HEADS.get(line[-2:], ())) or after.startswith(_TAILS.get(after[:2], ()))
