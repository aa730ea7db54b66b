"""The variables of a shell text: a value is known only if it was set for certain, outside of branches and loops."""

from __future__ import annotations

from collections.abc import Mapping

_UNCLEAR = "\0"  # marks a value that a shell would have to compute, with the reason after it


class Scope:
    """What is set so far. `depth`: branches, loops, functions and subshells around the place that is read."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.values: dict[str, list[str]] = {name: [value] for name, value in env.items()}
        self.exported: dict[str, str] = {}
        self.branched: dict[str, int] = {}
        self.assumed: list[str] = []
        self.depth = 0

    def set(self, name: str, value: list[str], line: int, adds: bool = False, *, certain: bool = True) -> None:
        if self.depth > 0 or not certain:
            self.branched[name] = line
        else:
            self.branched.pop(name, None)
        self.values[name] = [*self.values.get(name, []), *value] if adds else value
        if name in self.exported:
            self.export(name)

    def unset(self, name: str, why: str) -> None:
        self.values[name] = [_UNCLEAR + why]
        self.exported.pop(name, None)

    def export(self, name: str) -> None:
        value = self.values.get(name, [])
        if len(value) == 1 and not value[0].startswith(_UNCLEAR):
            self.exported[name] = value[0]

    def look(self, name: str, default: str | None, *, quoted: bool, whole: bool) -> tuple[list[str], str]:
        """The words that an expansion gives, or why they are not known. `whole`: all of an array."""
        if name in self.branched:
            return [], f"${name} is set in a branch or a loop (line {self.branched[name]})"
        values = self.values.get(name)
        if values is None and default is not None:
            self.assumed.append(f"${name} is not set: its default {default!r} is taken")
            values = [default.strip("'\"")]
        if values is None:
            return [], f"${name} is not set here"
        unclear = next((v[1:] for v in values if v.startswith(_UNCLEAR)), None)
        if unclear is not None:
            return [], f"${name}: {unclear}"
        parts = (values if whole else values[:1]) or [""]
        if not quoted:
            parts = [word for value in parts for word in value.split()] or [""]
        return parts, ""
