"""The variables of a shell text: a value is known only if it was set for certain, outside of branches and loops."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recover.core.budget.shell_holes import as_written, hole, why_unclear

_LOOPS = frozenset({"for", "while", "until", "select"})
ENDS = {"fi": frozenset({"if"}), "done": _LOOPS, "esac": frozenset({"case"}), "}": frozenset({"{"})}
OPENING = frozenset().union(*ENDS.values())
_BRACES = re.compile(r"\{(-?\d{1,6})\.\.(-?\d{1,6})\}")


@dataclass(slots=True)
class Block:
    """A branch, loop, function or subshell around the place that is read. `times`: how often a loop runs, if known.

    `begins`: how many commands had been read before it. `function`: its name, of a function's body. `arm`: which of
    its alternatives is read, of which only one runs.
    """

    kind: str
    begins: int
    times: int | None = None
    function: str = ""
    arm: int = 0

    @property
    def loop(self) -> bool:
        return self.kind in _LOOPS


class Scope:
    """What is set so far. `args`: the positional parameters, None where they are given when it runs."""

    def __init__(self, env: Mapping[str, str], args: Sequence[str] | None = None) -> None:
        self.values: dict[str, list[str]] = {name: [value] for name, value in env.items()}
        self.exported: dict[str, None] = {}
        self.branched: dict[str, int] = {}
        self.assumed: list[str] = []
        self.blocks: list[Block] = []
        self.args = args
        self.exports_all = False  # set -a

    def turn(self, kind: str) -> None:
        """The next alternative of the innermost `if` or `case`."""
        found = next((block for block in reversed(self.blocks) if block.kind == kind), None)
        if found is not None:
            found.arm += 1

    def open(self, kind: str, begins: int, function: str = "") -> None:
        self.blocks.append(Block(kind, begins, function=function))

    def close(self, word: str) -> Block | None:
        """What ends with this word; a word that ends nothing here (`a)` in a case) changes nothing."""
        kinds = ENDS.get(word, frozenset({"("}))
        while self.blocks and any(block.kind in kinds for block in self.blocks):
            found = self.blocks.pop()
            if found.kind in kinds:
                return found
        return None

    def repeats(self, words: Sequence[str] | None) -> None:
        """The loop that has just begun runs once for each of these words; None: they are not known."""
        if self.blocks and self.blocks[-1].loop and words is not None:
            self.blocks[-1].times = sum(_times(word) for word in words)

    def set(self, name: str, value: list[str], line: int, *, certain: bool = True) -> None:
        if self.blocks or not certain:
            self.branched[name] = line
        else:
            self.branched.pop(name, None)
        self.values[name] = value
        if self.exports_all:
            self.export(name)

    def add(self, name: str, value: list[str], line: int, *, certain: bool = True, array: bool = True) -> None:
        """`+=`. What may be added or not is a hole at the end of what is known."""
        if self.blocks or not certain:
            why = f"it is added to ${name} in a branch or a loop (line {line})"
            value = [hole(as_written(v), why, many=True) for v in value]
        before = self.values.get(name, [])
        self.values[name] = [*before, *value] if array else [" ".join(before) + " ".join(value)]

    def unset(self, name: str, why: str) -> None:
        self.values[name] = [hole(f"${name}", f"${name}: {why}", many=True)]

    def export(self, name: str) -> None:
        self.exported[name] = None

    def environment(self) -> list[tuple[str, str]]:
        """What the commands are given. A value that is not known is a hole."""
        found = []
        for name in self.exported:
            values, why = self.known(name)
            if values is not None:
                found.append((name, values[0] if values else ""))
            elif why:
                found.append((name, hole(f"${name}", why, many=False)))
        return found

    def known(self, name: str) -> tuple[list[str] | None, str]:
        """The values of a variable or an array, or why they are not known; no reason: nothing sets it here."""
        if name in self.branched:
            return None, f"${name} is set in a branch or a loop (line {self.branched[name]})"
        return self._positional(name) if name[:1] in "@*" or name.isdigit() else self.values.get(name), ""

    def number(self, name: str) -> str | None:
        values = self.known(name)[0]
        return values[0] if values is not None and len(values) == 1 and not why_unclear(values) else None

    def _positional(self, name: str) -> list[str] | None:
        if self.args is None or any(block.function for block in self.blocks):
            return None
        if not name.isdigit():
            return list(self.args)
        return [self.args[int(name) - 1]] if 0 < int(name) <= len(self.args) else None


def _times(word: str) -> int:
    found = _BRACES.fullmatch(word)
    return abs(int(found[2]) - int(found[1])) + 1 if found is not None else 1
