"""Foreign source is parsed, never run: its functions with their assignments in order, and what could not be read.

A file that can't be parsed is named: whatever depends on it is not proved.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, ast.Pow)
_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*$")


class Unclear(Exception):
    """An expression that can't be evaluated from its source: `str` says which part."""


@dataclass(frozen=True, slots=True)
class Quote:
    """One place in a source: what a person opens to check."""

    path: str
    line: int
    code: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True, slots=True)
class Assigned:
    line: int
    target: str
    value: ast.expr
    empty: bool = False  # a constant for the case that there is nothing: the `else` of a choice


@dataclass(slots=True)
class Flow:
    """One function (or a module's top level): its own statements in order, without those of nested functions."""

    path: str
    name: str
    owner: str  # the class it belongs to, "" for none
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
    nodes: tuple[ast.AST, ...] = ()
    assigned: tuple[Assigned, ...] = ()
    params: tuple[str, ...] = ()

    def before(self, target: str, line: int) -> Assigned | None:
        """The last assignment to it above a line, read straight down; that of an empty case only if it is the only."""
        last = None
        for one in reversed(self.assigned):
            if one.target == target and one.line < line:
                if not one.empty:
                    return one
                last = last or one
        return last


@dataclass(slots=True)
class World:
    """All sources of one engine, with what evaluation needs of them."""

    flows: list[Flow] = field(default_factory=list)
    constants: dict[str, float] = field(default_factory=dict)
    functions: dict[str, Flow] = field(default_factory=dict)  # top level ones by name
    lines: dict[str, list[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def quote(self, flow: Flow, node: ast.AST) -> Quote:
        line = getattr(node, "lineno", 1)
        rows = self.lines[flow.path]
        return Quote(flow.path, line, rows[line - 1].strip() if line <= len(rows) else "")

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node


def read(sources: Mapping[str, str]) -> World:
    """Parse what can be parsed; the rest is named in `unread`."""
    world = World()
    for path in sorted(sources):
        try:
            tree = _parsed(sources[path])
            _take(world, path, tree, sources[path])
        except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError) as error:
            place = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
            world.unread.append(f"{path}{place} can't be parsed ({type(error).__name__})")
    return world


def _parsed(text: str) -> ast.Module:
    """Once more where another thread was in the parser, too: CPython 3.11 counts the depth of both in one place.

    The traceback module parses what it prints, so any thread may (github.com/python/cpython issue 106905).
    """
    for _ in range(20):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


def _take(world: World, path: str, tree: ast.Module, text: str) -> None:
    world.lines[path] = text.splitlines()
    for parent in ast.walk(tree):
        for child in ast.iter_child_nodes(parent):
            world.parents[child] = parent
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            flow = _flow(world, path, node)
            world.flows.append(flow)
            if isinstance(node, ast.Module):
                _constants(world, flow)
            elif isinstance(world.parents.get(node), ast.Module):
                world.functions.setdefault(flow.name, flow)


def _flow(world: World, path: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Module) -> Flow:
    parent = world.parents.get(node)
    owner = parent.name if isinstance(parent, ast.ClassDef) else ""
    nodes = tuple(_own(node))
    found = sorted((_weighed(world, n, a) for n in nodes for a in _assigned(n)), key=lambda a: a.line)
    params: tuple[str, ...] = ()
    if not isinstance(node, ast.Module):
        given = node.args
        params = tuple(a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    return Flow(path, getattr(node, "name", ""), owner, node, nodes, tuple(found), params)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Everything inside, down to (not into) nested functions; of a module also not into its classes' methods."""
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for name, value in ast.iter_fields(node):
        if name in ("decorator_list", "annotation") or (function and name in ("args", "returns")):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield child
                yield from _own(child)


def _weighed(world: World, node: ast.AST, found: Assigned) -> Assigned:
    choice = world.parents.get(node)
    otherwise = isinstance(choice, ast.If) and node in choice.orelse and isinstance(found.value, ast.Constant)
    return replace(found, empty=True) if otherwise else found


def _assigned(node: ast.AST) -> Iterator[Assigned]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=False):
                    yield Assigned(node.lineno, ast.unparse(one), value)
            else:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from (Assigned(node.lineno, ast.unparse(name), node.value) for name in names)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield Assigned(node.lineno, ast.unparse(node.target), node.value)
    elif isinstance(node, ast.AugAssign):
        yield Assigned(node.lineno, ast.unparse(node.target), changed(node))
    elif isinstance(node, ast.NamedExpr):
        yield Assigned(node.lineno, node.target.id, node.value)


def changed(node: ast.AugAssign) -> ast.BinOp:
    """`x /= y` as `x / y`."""
    target = ast.parse(ast.unparse(node.target), mode="eval").body
    for part in ast.walk(target):
        ast.copy_location(part, node)
    return ast.copy_location(ast.BinOp(target, node.op, node.value), node)


def _constants(world: World, flow: Flow) -> None:
    for found in flow.assigned:
        if not _CONSTANT.match(found.target):
            continue  # a class's field with a default is no constant
        try:
            world.constants.setdefault(found.target, _constant(found.value))
        except Unclear:
            continue


def _constant(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return apply(op, _constant(left), _constant(right))
        case _:
            raise Unclear(ast.unparse(node)[:80])


def apply(op: ast.operator, left: float, right: float) -> float:
    try:
        match op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case ast.Mod():
                return left % right
            case ast.LShift() if 0 <= right <= 64:
                return left * float(1 << int(right))
            case ast.RShift() if 0 <= right <= 64:
                return left // float(1 << int(right))
            case ast.Pow() if abs(left) <= 1e6 and abs(right) <= 32:
                return float(left**right)
    except (ArithmeticError, TypeError, ValueError):
        pass
    raise Unclear(type(op).__name__)


def arithmetic(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ARITHMETIC)
