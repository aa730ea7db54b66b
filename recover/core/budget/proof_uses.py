"""Every place that computes with a size is judged; one that isn't understood is a doubt, never skipped.

Places that only test, log or raise don't count: they change nothing about what is allocated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from recover.core.budget.model import GB, GIB, Unit
from recover.core.budget.proof_ast import Flow, Quote, Unclear, World, arithmetic, changed
from recover.core.budget.proof_trial import BASE, COUNTS, KNOWN, ROUNDERS, Leaf, Trial, called, mentions, touches

_UNITS = {1.0: Unit.BYTES, float(GB): Unit.GB, float(GIB): Unit.GIB, float(1 << 20): Unit.MIB}
_RANKS = 8
_HUGE = 1e24  # shows also what is only added
_LOOKERS = (
    "isinstance",
    "getattr",
    "hasattr",
    "str",
    "repr",
    "bool",
    "len",
    "type",
    "print",
    "append",
    "field",
    "register_memory",
)
_TALK = re.compile(r"^(?:self\.)?(?:_?logger|log|logging|warnings|print|rank0_log)\b")


@dataclass(frozen=True, slots=True)
class Use:
    """One computation with the size. `unit` None: it stays in the flag's own unit. `ranks`: -1 divides by them."""

    at: Quote
    flow: Flow
    node: ast.AST
    unit: Unit | None = None
    ranks: int = 0
    doubt: str = ""
    counted: bool = False  # it depends on a count of pages or slots

    @property
    def line(self) -> int:
        return self.at.line


def uses(
    world: World, size: re.Pattern[str], counts: frozenset[str] = COUNTS, pick: int | None = None
) -> tuple[Use, ...]:
    """All of them, in the order of the files."""
    return tuple(
        judge(world, flow, node, Trial(world, size, counts=counts, pick=pick))
        for flow in world.flows
        for node in _computations(world, flow, size)
    )


def _computations(world: World, flow: Flow, size: re.Pattern[str]) -> Iterator[ast.expr | ast.AugAssign]:
    for node in flow.nodes:
        if not _picks(node) and (
            not isinstance(node, ast.BinOp | ast.AugAssign) or not arithmetic(node) or _joins(node)
        ):
            continue
        assert isinstance(node, ast.expr | ast.AugAssign)
        if any(_part_of_one(parent) for parent in _steps(world, node)) or _only_said(world, node):
            continue
        whole = changed(node) if isinstance(node, ast.AugAssign) else node
        if mentions(whole, flow, node.lineno, size):
            yield node


def _picks(node: ast.AST) -> bool:
    """Choosing the larger, the smaller or the other is computing as well."""
    if isinstance(node, ast.BoolOp):
        return not any(isinstance(value, ast.Compare | ast.UnaryOp) for value in node.values)  # no test
    return isinstance(node, ast.Call) and called(node) in ("min", "max")


def _joins(node: ast.BinOp | ast.AugAssign) -> bool:
    """Lists and texts are joined with + as well."""
    sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.value,)
    return any(
        isinstance(s, ast.List | ast.Tuple | ast.ListComp | ast.JoinedStr)
        or (isinstance(s, ast.Constant) and isinstance(s.value, str))
        for s in sides
    )


def _steps(world: World, node: ast.AST) -> Iterator[ast.AST]:
    """The expressions around it, out to the statement."""
    for parent in world.above(node):
        if isinstance(parent, ast.stmt) and not isinstance(parent, ast.AugAssign):
            return
        yield parent


def _part_of_one(parent: ast.AST) -> bool:
    return _picks(parent) or (isinstance(parent, ast.BinOp | ast.AugAssign) and arithmetic(parent))


def _only_said(world: World, node: ast.AST) -> bool:
    inner = node
    for parent in world.above(node):
        if isinstance(parent, ast.JoinedStr | ast.Raise | ast.Assert | ast.Compare):
            return True
        if isinstance(parent, ast.If | ast.While | ast.IfExp) and parent.test is inner:
            return True
        if isinstance(parent, ast.Call) and _TALK.match(ast.unparse(parent.func)):
            return True
        if isinstance(parent, ast.stmt):
            return False
        inner = parent
    return False


def judge(world: World, flow: Flow, node: ast.expr | ast.AugAssign, start: Trial) -> Use:
    """Try the computation at several values."""
    at = world.quote(flow, node)
    whole: ast.expr = changed(node) if isinstance(node, ast.AugAssign) else node

    def trial(leaf: Leaf | None = None, by: float = 1.0) -> tuple[float, dict[str, Leaf]]:
        values = {**BASE, **({leaf: BASE[leaf] * by} if leaf is not None else {})}
        tried = replace(start, values=values, met={}, steps=0)
        return tried.of(whole, flow, node.lineno), tried.met

    def trial_other(name: str) -> float:
        return replace(start, other={name: _HUGE}, met={}, steps=0).of(whole, flow, node.lineno)

    try:
        base, met = trial()
        grown = trial(Leaf.SIZE, 2)[0]
        ranked = trial(Leaf.RANKS, _RANKS)[0]
        weighed = trial(Leaf.BYTES, 2)[0]
        counted = trial(Leaf.PAGE, 2)[0]
        others = [name for name in _others(met) if not _near(trial_other(name), base)]
    except Unclear as error:
        return Use(at, flow, node, doubt=f"{at} computes with the size in a way that is not understood ({error})")
    if base <= 0 or not _near(grown / base, 2):
        return Use(at, flow, node, doubt=f"{at} does not grow with the size")
    if others:
        return Use(at, flow, node, doubt=f"{at} depends on {', '.join(others[:3])}")
    unit, doubt = _unit(base, weighed, at, shared=Leaf.BYTES in met.values())
    if unit is not None:
        doubt = doubt or _handed_over(world, node, at)
    return Use(at, flow, node, unit, _direction(ranked / base), doubt, counted=not _near(counted, base))


def _others(met: dict[str, Leaf]) -> list[str]:
    return sorted(name for name, kind in met.items() if kind is Leaf.OTHER)


def _unit(base: float, weighed: float, at: Quote, *, shared: bool) -> tuple[Unit | None, str]:
    """Tokens come out where bytes per token divide: then the factor before them is the unit."""
    factor = base / BASE[Leaf.SIZE]
    if _near(weighed * 2, base):
        factor *= BASE[Leaf.BYTES]
    elif not _near(weighed, base):
        return None, f"{at} weighs bytes in a way that is not understood"
    elif _near(factor, 1) or (0 < factor < 1 and shared):
        return None, ""  # passed on, or one pool's share of it
    unit = next((unit for value, unit in _UNITS.items() if _near(factor, value)), None)
    return unit, "" if unit is not None else f"{at} multiplies the size by {factor:g}, which is no unit"


def _handed_over(world: World, node: ast.AST, at: Quote) -> str:
    """A result that goes through another function counts only if that function hands it on as it is."""
    inner = node
    for parent in world.above(node):
        if isinstance(parent, ast.Call):
            name = called(parent)
            known = world.functions.get(name)
            place = next((i for i, arg in enumerate(parent.args) if arg is inner), None)
            if name not in ROUNDERS and name not in KNOWN:
                if known is None or place is None or place >= len(known.params):
                    return f"{at} hands the result to {name}(), which is not in the source that was read"
                if touches(known, known.params[place]):
                    return f"{at} hands the result to {name}(), which computes with it"
        elif not isinstance(parent, ast.UnaryOp | ast.IfExp | ast.keyword | ast.NamedExpr):
            return ""
        inner = parent
    return ""


def _direction(ratio: float) -> int:
    return 0 if _near(ratio, 1) else -1 if ratio < 1 else 1


def _near(value: float, other: float) -> bool:
    return abs(value - other) <= 1e-4 * max(abs(value), abs(other))


def strange_settings(world: World, name: str) -> tuple[str, ...]:
    """Places that give the flag's attribute a value that does not come from itself."""
    found = []
    pattern = re.compile(rf"(?:^|\.){name}$")
    for flow in world.flows:
        for node in flow.nodes:
            value = _set_value(node, name, pattern)
            if value is not None and not _harmless(value, flow, pattern):
                found.append(f"{world.quote(flow, node)} sets {name} from elsewhere")
    return tuple(found)


def _set_value(node: ast.AST, name: str, pattern: re.Pattern[str]) -> ast.expr | None:
    if isinstance(node, ast.keyword) and node.arg == name:
        return node.value
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Attribute) and pattern.search(ast.unparse(target)):
                return node.value
            if isinstance(target, ast.Subscript) and ast.unparse(target.slice) == repr(name):
                return node.value
    return None


def _harmless(value: ast.expr, flow: Flow, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, ast.Constant) or mentions(value, flow, value.lineno, pattern)


def handed(world: World, size: re.Pattern[str]) -> tuple[str, ...]:
    """Calls that take the size under another name: what they do with it must be in the source, and be nothing."""
    inits = {flow.owner: flow for flow in world.flows if flow.name == "__init__" and flow.owner}
    methods = {flow.name: flow for flow in world.flows if flow.owner and flow.name != "__init__"}
    found = []
    for flow in world.flows:
        for node in flow.nodes:
            if isinstance(node, ast.Call) and not _TALK.match(ast.unparse(node.func)):
                found += [f"{world.quote(flow, node)} {why}" for why in _taken(world, {**methods, **inits}, node, size)]
    return tuple(found)


def _taken(world: World, others: dict[str, Flow], node: ast.Call, size: re.Pattern[str]) -> Iterator[str]:
    name = called(node)
    if name in ROUNDERS or name in KNOWN or name in _LOOKERS or not name or name.endswith("_cls"):
        return
    if isinstance(world.parents.get(node), ast.Expr):
        return  # nothing comes back
    inner = world.functions.get(name) or others.get(name)
    params = [p for p in inner.params if p != "self"] if inner is not None else []
    given = [(params[at] if at < len(params) else "", value) for at, value in enumerate(node.args)]
    given += [(k.arg or "", k.value) for k in node.keywords]
    for param, value in given:
        if not isinstance(value, ast.Name | ast.Attribute) or not size.search(ast.unparse(value)):
            continue
        if size.search(param):
            continue  # what is done under that name is judged by itself
        if inner is None or not param:
            if not name[:1].isupper():
                yield f"hands the size to {name}(), which is not in the source that was read"
        elif touches(inner, param):
            yield f"hands the size to {name}(), which computes with it as {param}"
