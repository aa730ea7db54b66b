"""A scenario is data: `scenarios/NAME/scenario.toml` over `scenarios/defaults.toml`; unknown keys are refused."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent / "scenarios"
KEYS = {
    "title",
    "about",
    "guest",
    "unit",
    "bystander",
    "leak",
    "gone",
    "gpu",
    "kmsg",
    "event",
    "pve",
    "config",
    "playbook",
    "run",
    "shm",
    "driver",
    "gpus",
}
EVENT_KEYS = {
    "when",
    "after_s",
    "do",
    "gpu",
    "set",
    "fault",
    "vm",
    "task",
    "group",
    "signal",
    "text",
    "ram_gib",
    "vram_mib",
    "gpus",
}


class ScenarioError(Exception):
    """The data of a scenario is wrong; the text names every problem."""


def names() -> list[str]:
    return sorted(path.parent.name for path in HERE.glob("*/scenario.toml"))


def _toml(path: Path) -> dict[str, Any]:
    with path.open("rb") as handle:
        return tomllib.load(handle)


def merged(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    """Tables are merged, everything else (lists too) is replaced."""
    out = copy.deepcopy(base)
    for key, value in top.items():
        if isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = merged(out[key], value)
        else:
            out[key] = copy.deepcopy(value)
    return out


def load(name: str) -> dict[str, Any]:
    path = HERE / name / "scenario.toml"
    if not path.exists():
        raise ScenarioError(f"no scenario {name!r}; there are: {', '.join(names())}")
    own = _toml(path)
    problems = [f"{path}: unknown key {key!r}" for key in own if key not in KEYS]
    problems += [
        f"{path}: event: unknown key {key!r}"
        for event in own.get("event", [])
        for key in event
        if key not in EVENT_KEYS
    ]
    if problems:
        raise ScenarioError("\n".join(problems))
    data = merged(_toml(HERE / "defaults.toml"), own)
    engine = data.pop("engine", {})
    for unit in data.get("unit", []):
        if "engine" in unit:
            unit["engine"] = merged(engine, unit["engine"])
    return {**data, "name": name}


def expected(name: str) -> dict[str, Any]:
    return _toml(HERE / name / "expected.toml")
