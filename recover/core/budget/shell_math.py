"""Arithmetic of a shell text, `$(( ))`, where every number in it is known; anything else has no value here.

Source: bash(1) "ARITHMETIC EVALUATION": whole numbers, C's operators, `**` for powers, division towards zero.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_NAME = re.compile(r"\$?\{?\b([A-Za-z_][A-Za-z0-9_]*)\b\}?")
_LONGEST = 200
_MOST = 1 << 63
_PLAIN: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}


def arithmetic(text: str, known: Callable[[str], str | None]) -> int | None:
    """The value; None where a name is not known or the expression is more than sums and products."""
    names = [m[1] for m in _NAME.finditer(text)]
    values = {name: known(name) for name in names}
    if len(text) > _LONGEST or any(v is None or not re.fullmatch(r"\d{1,18}", v.strip()) for v in values.values()):
        return None
    plain = _NAME.sub(lambda m: str(int(values[m[1]] or "0")), text)
    if re.search(r"(?<![\w.])0\d|[^\d\s()+*/%<>-]", plain):
        return None  # octal, hexadecimal, comparisons, conditions
    try:
        return _value(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int | None:
    match node:
        case ast.Constant(value=int() as number) if number < _MOST:
            return number
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            found = _value(inner)
            return None if found is None else -found
        case ast.BinOp(left=left, op=op, right=right):
            one, two = _value(left), _value(right)
            return None if one is None or two is None else _two(one, op, two)
        case _:
            return None


def _two(one: int, op: ast.operator, two: int) -> int | None:
    if type(op) in _PLAIN:
        found = _PLAIN[type(op)](one, two)
    elif isinstance(op, ast.Div | ast.Mod):
        whole = abs(one) // abs(two) * (1 if (one < 0) == (two < 0) else -1)
        found = whole if isinstance(op, ast.Div) else one - whole * two
    elif isinstance(op, ast.Pow | ast.LShift) and 0 <= two <= 63 and abs(one) <= 1 << 20:
        found = one**two if isinstance(op, ast.Pow) else one << two
    elif isinstance(op, ast.RShift) and 0 <= two <= 63:
        found = one >> two
    else:
        return None
    return found if abs(found) < _MOST else None
