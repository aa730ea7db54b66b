"""What is not known inside a word keeps its place in it: a hole, with the text that is written there and the reason.

A hole is `\\x01`, a flag, the text, `\\x02`, the reason, `\\x03`. The flag says whether it may become several words.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_HOLE = re.compile("\x01([ms])([^\x01-\x03]*)\x02([^\x01-\x03]*)\x03")
_MARKS = re.compile("[\x01-\x03]")
_WORD = re.compile("(?:\x01[^\x03]*\x03|[^ \\t\\n\\r\x01])+")


def hole(text: str, why: str, *, many: bool) -> str:
    return f"\x01{'m' if many else 's'}{plain(text)}\x02{plain(why)}\x03"


def plain(text: str) -> str:
    """Text from outside, so that it holds no marks of ours. As long as before."""
    return _MARKS.sub(" ", text)


def why_unclear(texts: str | Iterable[str]) -> str:
    """The first reason; empty: all of it is known."""
    for text in [texts] if isinstance(texts, str) else texts:
        if (found := _HOLE.search(text)) is not None:
            return found[3] or "not known"
    return ""


def as_written(text: str) -> str:
    return _HOLE.sub(lambda m: m[2], text)


def may_be_many(text: str) -> bool:
    return any(m[1] == "m" for m in _HOLE.finditer(text))


def loose(text: str) -> str:
    """The same where a shell splits it into words."""
    return _HOLE.sub(lambda m: hole(m[2], m[3], many=True), text)


def words(text: str) -> list[str]:
    """Split at blanks, but never inside a hole."""
    return _WORD.findall(text)


def words_of_quoted(text: str) -> list[str]:
    """Split as a shell does, but without its expansions. Raises ValueError for a quote that is not closed."""
    kept: list[str] = []

    def fold(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\x01{len(kept) - 1}\x03"

    folded = _HOLE.sub(fold, text.replace("\\\r\n", " ").replace("\\\n", " "))
    return [re.sub("\x01(\\d+)\x03", lambda m: kept[int(m[1])], word) for word in shlex.split(folded)]
