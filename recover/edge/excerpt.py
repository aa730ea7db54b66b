"""Of several modules only the top-level definitions that a job can reach by name: what stays behind is never missed.

Names are followed as text, not as a parser would: whatever looks like a use counts as one, so that an excerpt holds too
much rather than too little. A definition that is built by name at run time must be named by the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

_NEW = re.compile(r"\n(?=[A-Za-z_@'\"(\[{])(?!(?:else|elif|except|finally)\b)")
_DEFINES = re.compile(r"(?:def|class) (\w+)|(\w+(?: *, *\w+)*) *(?::[^=\n]+)?=(?!=)")
_IMPORT = re.compile(r"^([ ]*)(?:from (\S+) )?import (?:\(([^)]*)\)|(.+))", re.M)
_USE = re.compile(r"\b([A-Za-z_]\w*)\b(?:\.([A-Za-z_]\w*))?")
_STAR = "*"


@dataclass(frozen=True, slots=True)
class Piece:
    """One top-level statement, and the names that it binds; none for what is run for its effect."""

    text: str
    names: frozenset[str]

    @property
    def imports(self) -> bool:
        return self.text.startswith(("import ", "from "))


@dataclass(slots=True)
class _Module:
    pieces: tuple[Piece, ...]
    bound: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> module, name there or empty for itself
    places: dict[str, list[int]] = field(default_factory=dict)  # name -> statements that define it
    effects: list[int] = field(default_factory=list)  # statements that are run for their effect
    kept: set[int] = field(default_factory=set)
    used: set[str] = field(default_factory=set)


@cache
def pieces(source: str) -> tuple[Piece, ...]:
    """The statements of a module; decorators stay with what they decorate."""
    starts = [match.start() for match in _NEW.finditer("\n" + source)]
    texts = [source[at:end] for at, end in zip(starts, [*starts[1:], len(source)], strict=True)]
    found: list[Piece] = []
    above = ""
    for text in texts:
        if text.startswith("@"):
            above += text
            continue
        found.append(Piece(above + text, _names(text)))
        above = ""
    return tuple(found)


def _module(source: str) -> _Module:
    made = _Module(pieces(source))
    for number, piece in enumerate(made.pieces):
        if piece.imports:
            made.bound.update({name: (module, there) for module, name, there in _imported(piece.text)})
            continue
        if not piece.names:
            made.effects.append(number)
        for name in piece.names:
            made.places.setdefault(name, []).append(number)
    return made


def _names(text: str) -> frozenset[str]:
    if text.startswith(("import ", "from ")):
        return frozenset(name for _, name, _ in _imported(text))
    match = _DEFINES.match(text)
    if match is None:
        return frozenset()
    return frozenset({match[1]} if match[1] else (word.strip() for word in match[2].split(",")))


def _imported(text: str) -> Iterable[tuple[str, str, str]]:
    """(module, name that is bound, name there); the name there is empty for `import module`."""
    for match in _IMPORT.finditer(text):
        for item in (match[3] or match[4]).replace("\n", " ").split("#")[0].split(","):
            words = item.split()
            if words:
                bound = words[-1] if len(words) == 3 else words[0].split(".")[0]
                yield (match[2], bound, words[0]) if match[2] else (words[0], bound, "")


class Excerpt:
    """`aliases`: names that stand for a module wherever they occur. `closed`: modules that must not come along."""

    def __init__(self, sources: Mapping[str, str], aliases: Mapping[str, str], closed: Iterable[str] = ()) -> None:
        self._aliases, self._closed = dict(aliases), frozenset(closed)
        self._modules = {name: _module(text) for name, text in sources.items()}
        self._todo: list[tuple[str, str]] = []
        self._asked: set[tuple[str, str]] = set()

    def reach(self, module: str, wanted: Callable[[str], bool]) -> None:
        """Keep the definitions whose names are wanted, what they use, and what the module runs when it is imported."""
        self._begin(module)
        self._todo += [(module, name) for name in self._modules[module].places if wanted(name)]
        while self._todo:
            where, name = self._todo.pop()
            home = self._modules[where]
            for number in home.places.get(name, ()):
                self._keep(where, number)
            if name in home.bound:  # passed on by an import
                home.used.add(name)
                self._enter(*home.bound[name], "")

    def _begin(self, module: str) -> None:
        for number in self._modules[module].effects:
            self._keep(module, number)

    def _keep(self, module: str, number: int) -> None:
        home = self._modules[module]
        if number in home.kept:
            return
        home.kept.add(number)
        text = home.pieces[number].text
        local = {name: (where, there) for where, name, there in _imported(text)}
        for name, attribute in dict.fromkeys(_USE.findall(text)):
            if name not in home.used:
                home.used.add(name)
                self._todo.append((module, name))
            where, there = local.get(name) or home.bound.get(name) or (self._aliases.get(name, ""), "")
            self._enter(where, there, attribute)

    def _enter(self, where: str, there: str, attribute: str) -> None:
        """Something of another module is used: a name of it, or an attribute of the module itself."""
        inner = f"{where}.{there}"
        target, wanted = (inner, attribute) if inner in self._modules else (where, there or attribute)
        if target in self._modules and target not in self._closed:
            self._begin(target)
            if (target, wanted) not in self._asked:
                self._asked.add((target, wanted))
                self._todo.append((target, wanted))

    def texts(self) -> dict[str, str]:
        """What is left of each module that anything was kept of."""
        return {name: self._text(one) for name, one in self._modules.items() if one.kept or one.used}

    def _text(self, one: _Module) -> str:
        said = []
        for number, piece in enumerate(one.pieces):
            if piece.imports:
                said.append(_trimmed(piece.text, one.used))
            elif number in one.kept:
                said.append(piece.text)
        return "".join(said)


def _trimmed(text: str, used: set[str]) -> str:
    """An import of what is used; `*` and what is not ours to judge stay whole."""
    match = _IMPORT.match(text)
    if match is None or _STAR in text:
        return text
    items = [item.strip() for item in (match[3] or match[4]).replace("\n", " ").split("#")[0].split(",")]
    kept = [item for item in items if item and (item.split()[-1].split(".")[0] in used)]
    if not kept:
        return ""
    return f"from {match[2]} import {', '.join(kept)}\n" if match[2] else f"import {', '.join(kept)}\n"
