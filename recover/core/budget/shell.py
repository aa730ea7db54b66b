"""Commands of a shell text with the places of their words; what a shell would have to compute is marked, never made up.

Known: quotes, escapes, continuations, comments, simple and array assignments, `$NAME`, `${NAME}`, `${NAME:-default}`,
`${NAME:+word}`, `"${NAME[@]}"`, sums of known numbers, here-documents, redirections, separators, loops, functions.
Marked as unclear: command substitution, positional parameters, other expansions, and variables that were set inside a
branch or a loop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from recover.core.budget.model import Problem
from recover.core.budget.options import Word
from recover.core.budget.shell_holes import as_written, may_be_many, why_unclear
from recover.core.budget.shell_scope import ENDS, OPENING, Block, Scope
from recover.core.budget.shell_words import Piece, Words

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGN = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_REDIRECTION = re.compile(r"(\d{0,3}|&)(<<<|<<-?|[<>]&|>>|>\||[<>])[ \t]*")
_ARRAY_OF = re.compile(r'"\$(?:@|\{(?:@|[A-Za-z_]\w*\[@\])\})"')
_FUNCTION = re.compile(r"(?:\bfunction[ \t]+([\w:.-]+)[ \t]*(?:\(\s*\))?|(?:^|[\s;])([\w:.-]+)[ \t]*\(\s*\))\s*$")
_LEADING = frozenset({"then", "do", "else", "elif", "!", "time", "if", "while", "until"})  # what follows is the command
_DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})
_SEPARATORS = ("&&", "||", ";;", "|&", ";", "|", "&", "\n", "(", ")")


@dataclass(slots=True)
class Io:
    """What a command is given on stdin in the text itself, and the file that its output makes."""

    reads: str = ""
    writes: str = ""
    appends: bool = False


@dataclass(slots=True)
class Command:
    """One simple command: its words, its own assignments, the line on which it starts, and the blocks around it."""

    words: list[Word]
    env: list[tuple[str, str]]
    line: int
    assumed: list[str] = field(default_factory=list)
    io: Io = field(default_factory=Io)
    blocks: tuple[Block, ...] = ()
    arms: tuple[tuple[int, int], ...] = ()  # alternatives that it stands in: which block, and which of its arms
    background: bool = False


class Lexer(Words):
    """Reads one text. `commands` are all simple commands in their order."""

    def __init__(
        self,
        text: str,
        env: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        scope: Scope | None = None,
        args: Sequence[str] | None = None,
    ) -> None:
        super().__init__(text, scope or Scope(env, args))
        self.files: Mapping[str, str] = {} if files is None else files
        self.commands: list[Command] = []
        self._heredocs: list[tuple[str, bool, Io]] = []
        self._chained = False
        self._pipeline = 0  # where the pipeline that is read begins among the commands
        self._words: list[Word] = []
        self._env: list[tuple[str, str]] = []
        self._io = Io()
        self._line = 1

    def read(self) -> list[Command]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if self._skip_blank(char):
                continue
            if not self._words and not self._env:
                self._line = self.at_line()
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

    # --- commands -------------------------------------------------------------------------------------------------

    def _end(self, separator: str) -> None:
        self.at = min(len(self.text), self.at + len(separator))
        if separator == "(" and len(self._words) == 1 and re.match(r"\s*\)", self.text[self.at :]):
            pass  # a function's name: it is called elsewhere
        elif self._words:
            self._command()
        elif self._env:
            for name, value in self._env:
                self.scope.set(name, [value], self.at_line(), certain=not self._chained)
        self._words, self._env, self._io = [], [], Io()
        self._chained = separator in {"&&", "||"}  # what follows may not run
        if separator == "&":
            for command in self.commands[self._pipeline :]:
                command.background = True
        if separator not in {"|", "|&"}:
            self._pipeline = len(self.commands)
        if separator == ";;":
            self.scope.turn("case")
        if separator == "(":
            self.scope.open("(", len(self.commands))
        elif separator == ")":
            self._close(separator)
        if separator == "\n":
            self._read_heredocs()

    def _command(self) -> None:
        first = self._words[0].text
        closed = self._close(first) if first in ENDS else None
        self._changed()
        if first in {"source", "."} and len(self._words) > 1:
            self._source(self._words[1].text)
        env = [*self.scope.environment(), *self._env]
        assumed = list(dict.fromkeys(self.scope.assumed))
        blocks = tuple(self.scope.blocks)
        arms = tuple((id(block), block.arm) for block in blocks if block.kind in {"if", "case"})
        self.commands.append(Command(self._words, env, self._line, assumed, self._io, blocks, arms))
        if closed is not None and closed.kind == "{":
            self._pipeline = closed.begins

    def _close(self, word: str) -> Block | None:
        """`( … ) &` puts all that stands in it into the background; the commands of a loop still run in their turn."""
        closed = self.scope.close(word)
        if closed is not None and closed.kind == "(":
            self._pipeline = closed.begins
        return closed

    def _changed(self) -> None:
        """Variables that a command sets in a way that can't be foreseen."""
        first, *rest = (w.text for w in self._words)
        if first in {"read", "unset", "mapfile", "readarray", "getopts"}:
            for name in rest:
                self.scope.unset(name, f"{first} sets it")
        elif first == "set" and rest:
            if re.fullmatch(r"-[a-z]*a[a-z]*", rest[0]) or rest[:2] == ["-o", "allexport"]:
                self.scope.exports_all = True
            elif re.fullmatch(r"\+[a-z]*a[a-z]*", rest[0]) or rest[:2] == ["+o", "allexport"]:
                self.scope.exports_all = False
        elif first == "for" and rest:
            self.scope.unset(rest[0], "a loop sets it")
            over = self._words[3:] if rest[1:2] == ["in"] else None
            clear = over is not None and not any(word.unclear for word in over)
            self.scope.repeats([word.text for word in over] if over is not None and clear else None)

    def _source(self, name: str) -> None:
        """What another file sets, if its text was given."""
        text = self.files.get(name) or self.files.get(name.removeprefix("./"))
        if text is None:
            return  # its variables stay unset, and are named where they are used
        try:
            Lexer(text, {}, {}, self.scope).read()
        except Problem as error:
            raise Problem(*(f"{name}: {problem}" for problem in error.problems)) from None

    # --- redirections ---------------------------------------------------------------------------------------------

    def _redirection(self) -> bool:
        found = _REDIRECTION.match(self.text, self.at)
        if found is None:
            return False
        self.at = found.end()
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&()":
            piece = self.piece()
            said = as_written("".join(piece.fields))
            if found[2] == "<<<":
                self._io.reads = piece.text
            elif found[2].startswith("<<"):
                self._heredocs.append((said, piece.quoted, self._io))
            elif found[1] in {"", "1", "&"} and found[2] in {">", ">>", ">|"} and not piece.unclear:
                self._io.writes, self._io.appends = said, found[2] == ">>"
        return True

    def _read_heredocs(self) -> None:
        for mark, quoted, io in self._heredocs:
            found = re.compile(rf"^\t*{re.escape(mark)}[ \t\r]*$", re.MULTILINE).search(self.text, self.at)
            start, end = self.at, len(self.text) if found is None else found.start()
            self.at = len(self.text) if found is None else found.end()
            io.reads = self.text[start:end] if quoted else self._filled(start, end)
        self._heredocs = []

    def _filled(self, start: int, end: int) -> str:
        """A here-document with what is known of its variables."""
        text, noted = self.text[start:end], list(self.scope.assumed)
        try:
            return Words(text, self.scope, self.text, start).body().text
        except Problem:
            return text  # a document need not be one that a shell can read
        finally:
            self.scope.assumed[:] = noted

    # --- words ----------------------------------------------------------------------------------------------------

    def _word(self) -> None:
        start = self.at
        assign = _ASSIGN.match(self.text, self.at)
        if assign is not None and not self._words:
            self._assignment(assign)
            return
        piece = self.piece()
        named = bool(self._words) and self._words[0].text == "function" and piece.fields == ["{"]
        if (not self._words or named) and not piece.quoted and len(piece.fields) == 1:
            self._keyword(piece.fields[0], start)
        if named:
            self._words = []
            return
        if self._words and self._words[0].text in _DECLARING:
            self._declare(piece, exports=self._words[0].text == "export")
        if not self._words and piece.fields[0] in _LEADING:
            if piece.fields[0] in {"else", "elif"}:
                self.scope.turn("if")
            return
        self._add(piece, start)

    def _keyword(self, word: str, start: int) -> None:
        if word in OPENING:
            found = _FUNCTION.search(self.text, max(0, start - 200), start) if word == "{" else None
            self.scope.open(word, len(self.commands), (found[1] or found[2]) if found is not None else "")

    def _declare(self, piece: Piece, *, exports: bool) -> None:
        for word in piece.fields:
            name, equals, value = word.partition("=")
            if not _NAME.fullmatch(name):
                continue
            if equals:
                self.scope.set(name, [value], self.at_line(), certain=not self._chained)
            if exports:
                self.scope.export(name)

    def _add(self, piece: Piece, start: int) -> None:
        raw = self.text[start : self.at]
        fields = piece.words
        if fields == [""] and _ARRAY_OF.fullmatch(raw):
            return  # an empty array is no word
        for value in fields:
            if why := why_unclear(value):
                shown = raw if len(fields) == 1 else as_written(value)
                self._words.append(Word(shown.replace("\n", " "), None, why, may_be_many(value), as_written(value)))
                continue
            span = None
            if piece.plain and len(fields) == 1:
                lead = 1 if raw[:1] in "'\"" and len(raw) == len(value) + 2 else 0
                span = (start + lead, start + lead + len(value)) if raw[lead : lead + len(value)] == value else None
            self._words.append(Word(value, span))

    def _assignment(self, found: re.Match[str]) -> None:
        self.at = found.end()
        name, adds = found[1], bool(found[2])
        certain = not self._chained
        if self.text.startswith("(", self.at):
            put = self.scope.add if adds else self.scope.set
            put(name, self._array(), self.at_line(), certain=certain)
            return
        at_end = self.at >= len(self.text) or self.text[self.at] in " \t\r\n;|&()"
        value = " ".join((Piece() if at_end else self.piece()).fields)
        if adds:
            self.scope.add(name, [value], self.at_line(), certain=certain, array=False)
        else:
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
            words += self.piece().words
        raise Problem(f"{self.place(opening)}: the array that opens here is not closed")
