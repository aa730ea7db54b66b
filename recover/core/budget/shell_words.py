"""One word of a shell text: quotes, escapes, expansions. What a shell would have to compute is marked, never made up.

Source: bash(1) "QUOTING", "EXPANSION". What is not known is a hole in the word, so that a script in quotes
(`bash -c "..."`) and a command in a variable can still be read around it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from recover.core.budget.model import Problem
from recover.core.budget.shell_holes import as_written, hole, loose, plain, why_unclear
from recover.core.budget.shell_holes import words as split_words
from recover.core.budget.shell_math import arithmetic
from recover.core.budget.shell_scope import Scope

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXPANSION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[1-9][0-9]*|[@*])(\[[@*]\])?(?:(:?[-=+?])(.*))?", re.DOTALL)


@dataclass(slots=True)
class Piece:
    """A word while it is read. `fields`: the words that it becomes; an unquoted expansion may make several."""

    fields: list[str] = field(default_factory=lambda: [""])
    quoted: bool = False
    plain: bool = True  # its text stands in the source as it is, but for quotes around all of it

    @property
    def unclear(self) -> str:
        return why_unclear(self.fields)

    @property
    def text(self) -> str:
        """As one word, with what is not known as it is written."""
        return as_written(" ".join(self.fields))

    @property
    def words(self) -> list[str]:
        """What becomes of it: an expansion to nothing is no word, unless it is quoted."""
        return self.fields if self.quoted else [field for field in self.fields if field]

    def put(self, text: str) -> None:
        self.fields[-1] += text

    def split(self, parts: list[str]) -> None:
        """Several words in its place."""
        self.put(parts[0])
        self.fields += parts[1:]


class Words:
    """Reads the words of a text, which may be a part of a larger one that begins at `base`."""

    def __init__(self, text: str, scope: Scope, whole: str | None = None, base: int = 0) -> None:
        self.text = plain(text)
        self.at = 0
        self.scope = scope
        self._whole, self._base = (text, 0) if whole is None else (whole, base)
        self._counted = 0, 1  # a place and its line

    def place(self, at: int) -> str:
        text, at = self._whole, self._base + at
        return f"line {text.count(chr(10), 0, at) + 1}, column {at - (text.rfind(chr(10), 0, at) + 1) + 1}"

    def at_line(self) -> int:
        here, (place, line) = self._base + self.at, self._counted
        if here < place:
            place, line = 0, 1
        self._counted = here, line + self._whole.count("\n", place, here)
        return self._counted[1]

    def piece(self) -> Piece:
        """One word from here."""
        piece = Piece()
        began = self.at
        while self.at < len(self.text) and self.text[self.at] not in " \t\r\n;|&()<>":
            self._part(piece, quoted=False)
        if self.at == began:
            self.at += 1  # a lone character that begins no word here
        return piece

    def body(self) -> Piece:
        """All of the text as a here-document whose mark is not quoted: expansions, but no quotes."""
        piece = Piece()
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in {"$", "`", "\\"}:
                piece.put(self.text[self.at + 1])
                self.at += 2
            else:
                self._character(piece, quoted=True)
        return piece

    def _default(self, quoted: bool) -> Piece:
        """All of the text as the word after `:-` or `:+`."""
        piece = Piece()
        while self.at < len(self.text):
            if self.text[self.at] in " \t\n" and not quoted:
                piece.split(["", ""] if piece.fields[-1] else [""])
                self.at += 1
            else:
                self._part(piece, quoted=quoted)
        return piece

    def _part(self, piece: Piece, *, quoted: bool) -> None:
        """What stands next in a word: a quoted text, an escape, an expansion or a character."""
        char = self.text[self.at]
        if char == "'" and not quoted:
            self._single(piece)
        elif char == '"':
            self._double(piece)
        elif char == "\\":
            self._escape(piece)
        else:
            self._character(piece, quoted=quoted)

    def _character(self, piece: Piece, *, quoted: bool) -> None:
        """The next character, or the expansion that begins with it."""
        if self.text[self.at] in "$`":
            self._expand(piece, quoted=quoted)
        else:
            piece.put(self.text[self.at])
            self.at += 1

    def _escape(self, piece: Piece) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        piece.plain = False
        if following != "\n":
            piece.put(following)
            piece.quoted = True
        self.at += 2

    def _single(self, piece: Piece) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Problem(f"{self.place(self.at)}: the quote that opens here is not closed")
        piece.put(self.text[self.at + 1 : end])
        piece.quoted = True
        self.at = end + 1

    def _double(self, piece: Piece) -> None:
        opening = self.at
        self.at += 1
        piece.quoted = True
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in set('$`"\\\n'):
                piece.plain = False
                piece.put(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            else:
                self._character(piece, quoted=True)
        raise Problem(f"{self.place(opening)}: the quote that opens here is not closed")

    # --- expansions -----------------------------------------------------------------------------------------------

    def _expand(self, piece: Piece, *, quoted: bool) -> None:
        text, start = self.text, self.at
        piece.plain = False
        if text[start] == "`":
            self.at = self._computed(start, "`", start + 1)
            piece.put(hole(text[start : self.at], "it is computed when it runs", many=not quoted))
        elif text.startswith("$(", start):
            self.at = self._computed(start, ")", start + 2)
            self._parenthesised(piece, text[start : self.at], quoted)
        elif text.startswith("${", start):
            end = self._closing(start)
            self.at = end + 1
            self._braced(piece, start + 2, text[start + 2 : end], quoted)
        elif (found := _NAME.match(text, start + 1)) is not None:
            self.at = found.end()
            self._variable(piece, found[0], found[0], quoted)
        elif text[start + 1 : start + 2] in set("@*123456789"):
            self.at += 2
            self._variable(piece, text[start + 1], text[start + 1], quoted)
        elif text[start + 1 : start + 2] in set("#?$!0-"):
            self.at += 2
            why = f"{text[start : start + 2]} is given when it runs"
            piece.put(hole(text[start : self.at], why, many=not quoted))
        else:
            piece.put("$")
            self.at += 1

    def _computed(self, start: int, closing: str, at: int) -> int:
        """The place after a command or an arithmetic expression, which a shell would run."""
        depth, text = 1, self.text
        while at < len(text):
            char = text[at]
            if char == "\\":
                at += 1
            elif char == closing and (depth := depth - 1) == 0:
                return at + 1
            elif char == "(" and closing == ")":
                depth += 1
            at += 1
        raise Problem(f"{self.place(start)}: the substitution that opens here is not closed")

    def _parenthesised(self, piece: Piece, raw: str, quoted: bool) -> None:
        if raw.startswith("$((") and raw.endswith("))"):
            value = arithmetic(raw[3:-2], self.scope.number)
            if value is not None:
                piece.put(str(value))
                return
        piece.put(hole(raw, "it is computed when it runs", many=not quoted))

    def _closing(self, start: int) -> int:
        """Where the `${` from `start` ends, over those inside it."""
        text, at, depth = self.text, start + 2, 1
        while at < len(text):
            if text[at] == "\\":
                at += 2
            elif text.startswith("$(", at):
                at = self._computed(at, ")", at + 2)
            elif text.startswith("${", at):
                at, depth = at + 2, depth + 1
            elif text[at] == "}" and (depth := depth - 1) == 0:
                return at
            else:
                at += 1
        raise Problem(f"{self.place(start)}: the ${{ that opens here is not closed")

    def _braced(self, piece: Piece, begins: int, inner: str, quoted: bool) -> None:
        found = _EXPANSION.fullmatch(inner)
        if found is None:
            piece.put(hole(f"${{{inner}}}", f"${{{inner[:60]}}} is computed when it runs", many=not quoted))
            return
        name, whole, how, rest = found[1], bool(found[2]), found[3] or "", found[4] or ""
        values, why = self.scope.known(name)
        empty = values is not None and how.startswith(":") and not any(values)
        if how.endswith("+") and values is not None:
            if not empty:
                self._take(piece, self._rest(rest, begins + found.start(4), quoted), quoted)
            return
        if how.endswith(("-", "=")) and not why and (values is None or empty):
            self._assume(piece, name, how, rest, begins + found.start(4), quoted)
            return
        self._variable(piece, name, f"{{{inner}}}", quoted, whole=whole)

    def _rest(self, text: str, begins: int, quoted: bool) -> Piece:
        return Words(text, self.scope, self._whole, self._base + begins)._default(quoted)

    def _assume(self, piece: Piece, name: str, how: str, rest: str, begins: int, quoted: bool) -> None:
        default = self._rest(rest, begins, quoted)
        word = "given" if name.isdigit() else "set"
        self.scope.assumed.append(f"${name} is not {word}: its default {rest.strip(chr(34) + chr(39))!r} is taken")
        if how.endswith("=") and not default.unclear:
            self.scope.set(name, [" ".join(default.fields)], self.at_line())
        self._take(piece, default, quoted)

    def _take(self, piece: Piece, inner: Piece, quoted: bool) -> None:
        piece.split(inner.fields if not quoted else [" ".join(inner.fields)])
        piece.quoted = piece.quoted or (inner.quoted and not quoted)

    def _variable(self, piece: Piece, name: str, said: str, quoted: bool, *, whole: bool = False) -> None:
        values, why = self.scope.known(name)
        if values is None:
            given = name.isdigit() or name in "@*"
            why = why or (f"${name} is given when it runs" if given else f"${name} is not set here")
            piece.put(hole(f"${said}", why, many=not quoted or whole or name == "@"))
            return
        parts = (values if whole or name in "@*" else values[:1]) or [""]
        if not quoted:
            parts = [word for value in parts for word in split_words(loose(value))] or [""]
        piece.split(parts)
