"""What an expression does with its inputs is found by evaluating it at chosen values, never by how it is written.

A name is followed back through the assignments of its function; what remains are leaves, told apart by the words in
them (a size, ranks, bytes, pages). The expression is evaluated, then again with the ranks at 8 instead of 1, and so
on: that the result falls to an eighth is what "divided by the ranks" means.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from recover.core.budget.proof_ast import Flow, Unclear, World, apply

_DEPTH = 24
_STEPS = 20_000  # names that double from line to line would never end
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_RANKS = frozenset(
    {"tp", "pp", "dp", "ep", "cp", "rank", "ranks", "world", "nproc", "nprocs", "gpus", "worker", "workers", "nnodes"}
    | {"shard", "shards", "tensor", "pipeline", "parallel", "replicas"}
)
_BYTES = frozenset({"bytes", "nbytes", "itemsize", "byte"})
COUNTS = frozenset({"page", "slots"})
_POOLS = frozenset({"pool", "pools", "chunk", "block"})
ROUNDERS: Mapping[str, Callable[[float], float]] = {
    "int": math.floor, "float": float, "floor": math.floor, "ceil": math.ceil, "round": round, "abs": abs,
}  # fmt: skip
KNOWN = ("min", "max", "round_up")


class Leaf(Enum):
    """What an input is, by its name: the value that it gets when an expression is tried."""

    SIZE = "size"
    RANKS = "ranks"
    BYTES = "bytes"
    PAGE = "page"  # counts that a size is only spread over
    CGROUP = "cgroup"
    AVAILABLE = "available"
    OTHER = "other"


BASE: Mapping[Leaf, float] = {
    Leaf.SIZE: 1_000_000, Leaf.RANKS: 1, Leaf.BYTES: 1000, Leaf.PAGE: 1, Leaf.CGROUP: 1e30, Leaf.AVAILABLE: 1e18,
    Leaf.OTHER: 1,
}  # fmt: skip


def words(text: str) -> frozenset[str]:
    return frozenset(w.lower() for w in _WORDS.findall(text))


def kind_of(text: str, counts: frozenset[str] = COUNTS) -> Leaf:
    """What a leaf is, by the words of its name. Bytes come first: `kv_bytes_per_block` counts bytes, not blocks."""
    said = words(text)
    if "cgroup" in said:
        return Leaf.CGROUP
    if text.endswith(".available"):
        return Leaf.AVAILABLE
    if said & _BYTES or {"per", "token"} <= said:
        return Leaf.BYTES
    if said & _RANKS and "lora" not in said:
        return Leaf.RANKS
    if said & counts or (text.endswith(".size") and said & _POOLS):
        return Leaf.PAGE  # a count of tokens or slots
    return Leaf.BYTES if said & _POOLS and said & {"size", "sizes"} else Leaf.OTHER


@dataclass(slots=True)
class Trial:
    """One evaluation at one set of values; it remembers which leaves it met."""

    world: World
    size: re.Pattern[str]  # what the names of the size look like
    values: Mapping[Leaf, float] = field(default_factory=lambda: BASE)
    other: Mapping[str, float] = field(default_factory=dict)
    fixed: tuple[str, int, float] | None = None  # a target, the last line of its setting, its value from there
    counts: frozenset[str] = COUNTS  # words of counts that a size is only spread over
    pick: int | None = None  # which branch of a choice between unequal values is taken; None: none is
    met: dict[str, Leaf] = field(default_factory=dict)
    steps: int = 0

    def of(self, node: ast.expr, flow: Flow, line: int, depth: int = 0) -> float:
        """The value of an expression as it stands at a line of a function. Raises Unclear."""
        self.steps += 1
        if depth > _DEPTH or self.steps > _STEPS:
            raise Unclear("too deep")
        match node:
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                return value
            case ast.BinOp(left=left, op=op, right=right):
                return apply(op, self.of(left, flow, line, depth + 1), self.of(right, flow, line, depth + 1))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.of(operand, flow, line, depth + 1)
            case ast.NamedExpr(value=value):
                return self.of(value, flow, line, depth + 1)
            case ast.IfExp(body=body, orelse=orelse):
                return self._either((body, orelse), flow, line, depth)
            case ast.BoolOp(values=values):
                return self._all_alike(values, flow, line, depth)
            case ast.Call():
                return self._call(node, flow, line, depth)
            case ast.Name() | ast.Attribute() | ast.Subscript():
                return self._name(node, flow, line, depth)
            case _:
                raise Unclear(ast.unparse(node)[:80])

    def _either(self, branches: tuple[ast.expr, ...], flow: Flow, line: int, depth: int) -> float:
        """A choice is what its branches with the size in them give, if they agree."""
        sized = tuple(b for b in branches if mentions(b, flow, line, self.size))
        found = [self.of(branch, flow, line, depth + 1) for branch in sized or branches]
        if len(set(found)) == 1:
            return found[0]
        if self.pick is None or sized:
            raise Unclear("a choice between different sizes")
        return found[self.pick]

    def _all_alike(self, values: list[ast.expr], flow: Flow, line: int, depth: int) -> float:
        """`a or b` is any of them."""
        found = {self.of(value, flow, line, depth + 1) for value in values if not isinstance(value, ast.Constant)}
        if len(found) != 1:
            raise Unclear("a choice between different sizes")
        return found.pop()

    def _name(self, node: ast.expr, flow: Flow, line: int, depth: int) -> float:
        text = ast.unparse(node)
        set_at = flow.before(text, line)
        if is_size(node, self.size) and (set_at is None or mentions(set_at.value, flow, set_at.line, self.size)):
            self.met[text] = Leaf.SIZE  # what set it is judged as a computation of its own
            return self.values[Leaf.SIZE]
        if self.fixed is not None and text == self.fixed[0] and (set_at is None or set_at.line <= self.fixed[1]):
            return self.fixed[2]
        if set_at is not None and self._opaque(set_at.value) and kind_of(text, self.counts) is not Leaf.OTHER:
            return self._leaf(text)  # what a foreign call gives is best told by the name that it is given
        if set_at is not None:
            try:
                return self.of(set_at.value, flow, set_at.line, depth + 1)
            except Unclear:
                if is_size(node, self.size):
                    raise
                return self._leaf(text)
        constant = self.world.constants.get(text)
        return constant if constant is not None else self._leaf(text)

    def _opaque(self, value: ast.expr) -> bool:
        if not isinstance(value, ast.Call) or is_size(value, self.size):
            return False
        name = called(value)
        return name not in ROUNDERS and name not in KNOWN and name not in self.world.functions

    def _leaf(self, text: str) -> float:
        kind = kind_of(text, self.counts)
        self.met[text] = kind
        return self.other.get(text, self.values[kind])

    def _call(self, node: ast.Call, flow: Flow, line: int, depth: int) -> float:
        name = called(node)
        args = [a for a in node.args if not isinstance(a, ast.Starred)]
        if is_size(node, self.size):
            self.met[ast.unparse(node)] = Leaf.SIZE
            return self.values[Leaf.SIZE]
        if name in ROUNDERS and len(args) == 1:
            return float(ROUNDERS[name](self.of(args[0], flow, line, depth + 1)))
        if name in ("min", "max") and len(args) > 1:
            given = [self.of(a, flow, line, depth + 1) for a in args]
            return min(given) if name == "min" else max(given)
        if name == "round_up" and len(args) == 2:
            return self.of(args[0], flow, line, depth + 1)
        inner = self.world.functions.get(name)
        sized = [a for a in args if mentions(a, flow, line, self.size)]
        if inner is None:
            if sized:
                raise Unclear(f"{ast.unparse(node)[:80]} is not in the source that was read")
            return self._leaf(ast.unparse(node))
        if sized:
            if touches(inner, inner.params[args.index(sized[0])] if args.index(sized[0]) < len(inner.params) else ""):
                raise Unclear(f"{name}() computes with the size")
            return self.of(sized[0], flow, line, depth + 1)
        if kind_of(name) in (Leaf.RANKS, Leaf.CGROUP):
            return self._leaf(name + "()")
        return self._inline(inner, depth)

    def _inline(self, inner: Flow, depth: int) -> float:
        """What a helper gives back: its last `return` that depends on the memory available, else its last at all."""
        returns = [n for n in inner.nodes if isinstance(n, ast.Return) and n.value is not None]
        best: float | None = None
        for node in returns:
            assert node.value is not None
            before = Leaf.AVAILABLE in self.met.values()
            try:
                value = self.of(node.value, inner, node.lineno, depth + 1)
            except Unclear:
                continue
            if best is None or Leaf.AVAILABLE in self.met.values() or not before:
                best = value
        if best is None:
            raise Unclear(f"{inner.name}() gives nothing that can be evaluated")
        return best


def called(node: ast.Call) -> str:
    """The last part of a called function's name."""
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def mentions(
    node: ast.AST, flow: Flow, line: int, size: re.Pattern[str], seen: set[tuple[str, int]] | None = None
) -> bool:
    """Whether the size is in an expression, directly or through local names."""
    seen = set() if seen is None else seen
    for part in _reach(node):
        if is_size(part, size):
            return True
        if isinstance(part, ast.Name):
            set_at = flow.before(part.id, line)
            if set_at is None or (part.id, set_at.line) in seen:
                continue
            seen.add((part.id, set_at.line))
            if mentions(set_at.value, flow, set_at.line, size, seen):
                return True
    return False


def is_size(node: ast.AST, size: re.Pattern[str]) -> bool:
    """The size by its name, also as a text: `args["size"]`, `config.get("size")`, `getattr(args, "size")`."""
    match node:
        case ast.Name(id=name):
            return size.search(name) is not None
        case ast.Attribute():
            return size.search(ast.unparse(node)) is not None
        case ast.Subscript(slice=ast.Constant(value=str() as key)):
            return size.search(key) is not None
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str() as key), *_]):
            return size.search(key) is not None
        case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str() as key), *_]):
            return size.search(key) is not None
    return False


def _reach(whole: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression whose value can become part of its value: not tests, not a called function's name."""
    left = [whole]  # no recursion: a sum of a hundred terms is a hundred deep
    while left:
        node = left.pop()
        yield node
        if isinstance(node, ast.Compare | ast.Attribute):
            continue  # an attribute of something that was made with the size is no size
        below: list[ast.AST] = []
        for name, value in ast.iter_fields(node):
            if (name == "test" and isinstance(node, ast.IfExp)) or (name == "func" and isinstance(node, ast.Call)):
                continue
            below += [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]
        left += reversed(below)


def touches(flow: Flow, name: str) -> bool:
    """Whether a function computes with one of its own names."""
    return any(
        isinstance(part, ast.Name) and part.id == name
        for node in flow.nodes
        if isinstance(node, ast.BinOp | ast.AugAssign)
        for part in ast.walk(node)
    )
