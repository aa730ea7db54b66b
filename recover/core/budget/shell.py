"""Words of a shell text with their places; what a shell would have to compute is marked, never made up.

Known: quotes, escapes, continuations, comments, simple and array assignments, `$NAME`, `${NAME}`, `${NAME:-default}`,
`"${NAME[@]}"`, here-documents, redirections, separators. Marked as unclear: command substitution, arithmetic,
positional parameters, other expansions, and variables that were set inside a branch or a loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from recover.core.budget.model import Problem
from recover.core.budget.options import Word
from recover.core.budget.shell_scope import Scope

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_EXPANSION = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?:(:?[-=])([^{}$`]*))?")
_OPENING = frozenset({"if", "for", "while", "until", "case", "select", "{"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
_SEPARATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "\n", "(", ")")


@dataclass(slots=True)
class Command:
    """One simple command: its words, its own assignments, and the line on which it starts."""

    words: list[Word]
    env: list[tuple[str, str]]
    line: int
    assumed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Piece:
    """A word while it is read. `fields`: the words that it becomes; an unquoted expansion may make several."""

    start: int
    fields: list[str] = field(default_factory=lambda: [""])
    quoted: bool = False
    plain: bool = True  # its text stands in the source as it is, but for quotes around all of it
    unclear: str = ""
    raw_start: int = 0


class Lexer:
    """Reads one text. `commands` are all simple commands in their order."""

    def __init__(
        self, text: str, env: Mapping[str, str], files: Mapping[str, str] | None = None, scope: Scope | None = None
    ) -> None:
        self.text = text
        self.files = files or {}
        self.at = 0
        self.scope = scope or Scope(env)
        self.commands: list[Command] = []
        self._heredocs: list[str] = []
        self._chained = False
        self._words: list[Word] = []
        self._env: list[tuple[str, str]] = []
        self._line = 1

    def place(self, at: int) -> str:
        line = self.text.count("\n", 0, at) + 1
        return f"line {line}, column {at - (self.text.rfind(chr(10), 0, at) + 1) + 1}"

    def read(self) -> list[Command]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if self._skip_blank(char):
                continue
            if not self._words and not self._env:
                self._line = self.text.count("\n", 0, self.at) + 1
            separator = next((s for s in _SEPARATORS if self.text.startswith(s, self.at)), None)
            if separator is not None:
                self._end(separator)
            elif not self._redirection():
                self._word()
        self._end("\n")
        return self.commands

    def _skip_blank(self, char: str) -> bool:
        text = self.text
        if char in " \t\r":
            self.at += 1
        elif text.startswith("\\\n", self.at) or text.startswith("\\\r\n", self.at):
            self.at = text.index("\n", self.at) + 1
        elif char == "#":
            end = text.find("\n", self.at)
            self.at = len(text) if end < 0 else end
        else:
            return False
        return True

    def _end(self, separator: str) -> None:
        self.at = min(len(self.text), self.at + len(separator))
        if self._words:
            first = self._words[0].text
            if first in _CLOSING:
                self.scope.depth = max(0, self.scope.depth - 1)
            self._changed()
            if first in {"source", "."} and len(self._words) > 1:
                self._source(self._words[1].text)
            env = [*self.scope.exported.items(), *self._env]
            self.commands.append(Command(self._words, env, self._line, list(dict.fromkeys(self.scope.assumed))))
        elif self._env:
            for name, value in self._env:
                self.scope.set(name, [value], self._at_line(), certain=not self._chained)
        self._words, self._env = [], []
        self._chained = separator in {"&&", "||"}  # what follows may not run
        if separator == "(":
            self.scope.depth += 1
        elif separator == ")":
            self.scope.depth = max(0, self.scope.depth - 1)
        if separator == "\n":
            self._skip_heredocs()

    def _source(self, name: str) -> None:
        """What another file sets, if its text was given."""
        text = self.files.get(name) or self.files.get(name.removeprefix("./"))
        if text is None:
            return  # its variables stay unset, and are named where they are used
        Lexer(text, {}, {}, self.scope).read()

    def _skip_heredocs(self) -> None:
        for mark in self._heredocs:
            found = re.compile(rf"^\t*{re.escape(mark)}$", re.MULTILINE).search(self.text, self.at)
            self.at = len(self.text) if found is None else found.end()
        self._heredocs = []

    def _redirection(self) -> bool:
        found = re.compile(r"(?:\d{0,3}|&)(<<<|<<-?|[<>]&|>>|>\||[<>])[ \t]*").match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&()":
            piece = self._piece()
            if found[1].startswith("<<") and found[1] != "<<<":
                self._heredocs.append("".join(piece.fields))
        return True

    def _word(self) -> None:
        start = self.at
        assign = _ASSIGN.match(self.text, self.at)
        if assign is not None and not self._words:
            self._assignment(assign)
            return
        piece = self._piece()
        if not self._words and not piece.quoted and len(piece.fields) == 1:
            self._keyword(piece.fields[0])
        if self._words and self._words[0].text in _DECLARING:
            self._declare(piece, exports=self._words[0].text == "export")
        if not self._words and piece.fields[0] in {"then", "do", "else", "elif", "!", "time", "if", "while", "until"}:
            return  # what follows is the command
        self._add(piece, start)

    def _keyword(self, word: str) -> None:
        if word in _OPENING:
            self.scope.depth += 1

    def _declare(self, piece: _Piece, *, exports: bool) -> None:
        for word in piece.fields:
            name, equals, value = word.partition("=")
            if not _NAME.fullmatch(name):
                continue
            if equals and piece.unclear:
                self.scope.unset(name, piece.unclear)
            elif equals:
                self.scope.set(name, [value], self._at_line(), certain=not self._chained)
            if exports:
                self.scope.export(name)

    def _changed(self) -> None:
        """Variables that a command sets in a way that can't be foreseen."""
        first, *rest = (w.text for w in self._words)
        if first in {"read", "unset", "mapfile", "readarray", "getopts"}:
            for name in rest:
                self.scope.unset(name, f"{first} sets it")
        elif first == "for" and rest:
            self.scope.unset(rest[0], "a loop sets it")

    def _at_line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _add(self, piece: _Piece, start: int) -> None:
        end = self.at
        raw = self.text[start:end]
        if piece.unclear:
            many = not raw.startswith('"') or re.search(r"\$[@*]|\[[@*]\]", raw) is not None
            self._words.append(Word(raw.replace("\n", " "), None, piece.unclear, many))
            return
        fields = piece.fields if piece.quoted else [f for f in piece.fields if f]
        for value in fields:
            span = None
            if piece.plain and len(fields) == 1:
                lead = 1 if raw[:1] in "'\"" and len(raw) == len(value) + 2 else 0
                span = (start + lead, start + lead + len(value)) if raw[lead : lead + len(value)] == value else None
            self._words.append(Word(value, span))

    def _assignment(self, found: re.Match[str]) -> None:
        self.at = found.end()
        name, adds = found[1], bool(found[2])
        if self.text.startswith("(", self.at):
            self.scope.set(name, self._array(), self._at_line(), adds, certain=not self._chained)
            return
        at_end = self.at >= len(self.text) or self.text[self.at] in " \t\r\n;|&()"
        piece = _Piece(self.at) if at_end else self._piece()
        if piece.unclear:
            self.scope.unset(name, piece.unclear)
            return
        value = " ".join(piece.fields)
        if adds:
            value = " ".join(self.scope.values.get(name, [""])) + value
        self._env.append((name, value))

    def _array(self) -> list[str]:
        opening = self.at
        self.at += 1
        words: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return words
            if char == "\n" or self._skip_blank(char):
                self.at += char == "\n"
                continue
            piece = self._piece()
            words += [f"\0{piece.unclear}"] if piece.unclear else piece.fields
        raise Problem(f"{self.place(opening)}: the array that opens here is not closed")

    def _piece(self) -> _Piece:
        """One word from here."""
        piece = _Piece(self.at)
        began = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\n;|&()<>" and not (char in "()" and piece.unclear):
                break
            if char == "'":
                self._single(piece)
            elif char == '"':
                self._double(piece)
            elif char == "\\":
                self._escape(piece)
            elif char in "$`":
                self._expand(piece, quoted=False)
            else:
                piece.fields[-1] += char
                self.at += 1
        if self.at == began:
            self.at += 1  # a lone character that begins no word here
        return piece

    def _escape(self, piece: _Piece) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        piece.plain = False
        if following != "\n":
            piece.fields[-1] += following
            piece.quoted = True
        self.at += 2

    def _single(self, piece: _Piece) -> None:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Problem(f"{self.place(self.at)}: the quote that opens here is not closed")
        piece.fields[-1] += self.text[self.at + 1 : end]
        piece.quoted = True
        self.at = end + 1

    def _double(self, piece: _Piece) -> None:
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
                piece.fields[-1] += self.text[self.at + 1].replace("\n", "")
                self.at += 2
            elif char in "$`":
                self._expand(piece, quoted=True)
            else:
                piece.fields[-1] += char
                self.at += 1
        raise Problem(f"{self.place(opening)}: the quote that opens here is not closed")

    def _expand(self, piece: _Piece, *, quoted: bool) -> None:
        text, start = self.text, self.at
        piece.plain = False
        if text[start] == "`":
            self._compute(piece, "`", start + 1)
        elif text.startswith("$(", start):
            self._compute(piece, ")", start + 2)
        elif text.startswith("${", start):
            end = text.find("}", start)
            if end < 0:
                raise Problem(f"{self.place(start)}: the ${{ that opens here is not closed")
            self.at = end + 1
            self._braced(piece, text[start + 2 : end], quoted)
        else:
            found = _NAME.match(text, start + 1)
            if found is not None:
                self.at = found.end()
                self._variable(piece, found[0], quoted, None)
            elif text[start + 1 : start + 2] in set("@*#?$!0123456789-"):
                self.at += 2
                piece.unclear = f"{text[start : start + 2]} is given when it runs"
            else:
                piece.fields[-1] += "$"
                self.at += 1

    def _compute(self, piece: _Piece, closing: str, at: int) -> None:
        """Over a command or an arithmetic expression, which a shell would run."""
        depth, start = 1, self.at
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif char == closing and (depth := depth - 1) == 0:
                self.at = at + 1
                piece.unclear = "it is computed when it runs"
                return
            elif char == "(" and closing == ")":
                depth += 1
            at += 1
        raise Problem(f"{self.place(start)}: the substitution that opens here is not closed")

    def _braced(self, piece: _Piece, inner: str, quoted: bool) -> None:
        found = _EXPANSION.fullmatch(inner)
        if found is None:
            piece.unclear = f"${{{inner[:60]}}} is computed when it runs"
            return
        default = found[4] if found[3] else None
        if found[3] and found[3].endswith("=") and found[1] not in self.scope.values:
            self.scope.assumed.append(f"${found[1]} is not set: {found[4]!r} is taken")
            self.scope.set(found[1], [found[4].strip("'\"")], self._at_line())
        self._variable(piece, found[1], quoted, default, whole=bool(found[2]))

    def _variable(self, piece: _Piece, name: str, quoted: bool, default: str | None, *, whole: bool = False) -> None:
        parts, unclear = self.scope.look(name, default, quoted=quoted, whole=whole)
        if unclear:
            piece.unclear = unclear
            return
        piece.fields[-1] += parts[0]
        piece.fields += parts[1:]
