"""The doctor's points for a person and for a program: grouped by what they are about, failures with cost and fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recover.core.doctor import Point, Status, exit_code
from recover.core.report.words import count

Paint = Callable[[str, Status], str]
_WORDS = {Status.OK: "ok", Status.WARN: "warning", Status.FAIL: "FAILED", Status.SKIP: "not asked"}
_WIDTH = max(len(word) for word in _WORDS.values())


def plain(text: str, status: Status) -> str:
    return text


def summary(points: Sequence[Point]) -> str:
    tally = {status: sum(p.status is status for p in points) for status in Status}
    parts = [f"{tally[Status.OK]} ok"]
    parts += [count(tally[Status.WARN], "warning")] if tally[Status.WARN] else []
    parts += [f"{tally[Status.SKIP]} not asked"] if tally[Status.SKIP] else []
    if tally[Status.FAIL]:
        return f"doctor: {tally[Status.FAIL]} of {len(points)} checks failed ({', '.join(parts)})"
    return f"doctor: nothing failed ({', '.join(parts)})"


def table(points: Sequence[Point], paint: Paint = plain) -> str:
    width = max((len(p.check) for p in points), default=0)
    lines, about = [summary(points)], ""
    for point in points:
        if point.about != about:
            lines.append(point.about)
            about = point.about
        word = paint(_WORDS[point.status].ljust(_WIDTH), point.status)
        lines.append(f"  {word}  {point.check.ljust(width)}  {point.says}")
        if point.status is not Status.OK:
            indent = " " * (width + _WIDTH + 6)
            lines += [f"{indent}costs: {point.costs}"] if point.costs else []
            lines += [f"{indent}fix: {point.fix}"] if point.fix else []
    return "\n".join(lines)


def recipes_text(recipes: Mapping[str, Sequence[str]]) -> str:
    """Ready to paste: what is no command is a comment."""
    lines: list[str] = []
    for title, commands in recipes.items():
        lines += [
            "",
            f"# {title}: all that is needed, as root on any node; what exists already may be left out",
            *commands,
        ]
    return "\n".join(lines)


def data(points: Sequence[Point], recipes: Mapping[str, Sequence[str]], seconds: float) -> dict[str, Any]:
    return {
        "schema": 1,
        "exit_code": exit_code(points),
        "seconds": round(seconds, 1),
        "checks": [
            {"about": p.about, "check": p.check, "status": str(p.status), "says": p.says, "costs": p.costs or None,
             "fix": p.fix or None}
            for p in points
        ],
        "recipes": {title: list(commands) for title, commands in recipes.items()},
    }  # fmt: skip
