"""A playbook is data: it becomes a Playbook, or all of its problems at once, each with its path; never half of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from recover.core.config_table import nearest
from recover.core.duration import duration
from recover.model.ladder import After, Limits, Param, Playbook, Rung, Step, Unattended, Value
from recover.model.verdict import Scope
from recover.steps.table import ALL_STEPS

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_TOP = ("name", "about", "limits", "rung", "after", "unattended")
_STARTS = ("what-we-stopped", "nothing")

# key -> (field of Limits, least, most): durations in seconds, or counts
_DURATIONS = {
    "patience": ("patience_s", 0.0, 86_400.0),
    "confirm_every": ("confirm_every_s", 0.05, 600.0),
    "deadline": ("deadline_s", 1.0, 7 * 86_400.0),
    "ripens": ("ripens_s", 1.0, 3600.0),
    "hung_after": ("hung_after_s", 1.0, 86_400.0),
    "loading_stalls": ("loading_stalls_s", 1.0, 86_400.0),
}
_COUNTS = {"confirm": ("confirm", 1, 20), "disruptions_per_day": ("disruptions_per_day", 0, 100)}


def parse(
    data: Mapping[str, Any], source: str = "", steps: Mapping[str, Step] = ALL_STEPS
) -> Playbook | tuple[str, ...]:
    """A Playbook with its digest, or every problem as "path: what is wrong". Rungs are counted from 1."""
    problems: list[str] = []
    _unknown(data, _TOP, "", problems)
    name = _text(data, "name", "", problems, required=True)
    if name and not _NAME.fullmatch(name):
        problems.append(f"name: {name!r} must be small letters, digits and dashes")
    about = _text(data, "about", "", problems)
    limits = _limits(_table(data, "limits", problems), problems)
    rungs = _ladder(data.get("rung"), steps, problems)
    after = _after(_table(data, "after", problems), problems)
    unattended = None
    if "unattended" in data:
        unattended = _unattended(_table(data, "unattended", problems), limits, rungs, steps, problems)
    if problems:
        return tuple(problems)
    playbook = Playbook(name, about, limits, rungs, after, unattended, source)
    return replace(playbook, digest=digest(playbook))


def digest(playbook: Playbook) -> str:
    """Equal for playbooks that do the same, whatever their text looks like and says about itself."""
    content = {
        "name": playbook.name,
        "limits": asdict(playbook.limits),
        "rungs": [{**asdict(r), "params": sorted(r.params)} for r in playbook.rungs],
        "after": asdict(playbook.after),
        **({"unattended": asdict(playbook.unattended)} if playbook.unattended is not None else {}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _limits(table: Mapping[str, Any], problems: list[str]) -> Limits:
    _unknown(table, ("max_scope", *_DURATIONS, *_COUNTS), "limits.", problems)
    given: dict[str, Any] = {}
    if "max_scope" in table:
        given["max_scope"] = _scope(table["max_scope"], "limits.max_scope", problems)
    for key, (field, least, most) in _DURATIONS.items():
        if key in table:
            given[field] = _duration(table[key], f"limits.{key}", problems, least, most)
    for key, (field, low, high) in _COUNTS.items():
        if key in table:
            given[field] = _count(table[key], f"limits.{key}", problems, low, high)
    return Limits(**given)


def _scope(value: Any, path: str, problems: list[str]) -> Scope:
    try:
        return Scope.of(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        problems.append(f"{path}: {error}")
        return Scope.PROCESS


def _after(table: Mapping[str, Any], problems: list[str]) -> After:
    _unknown(table, ("start", "healthy_within"), "after.", problems)
    given: dict[str, Any] = {}
    if "start" in table:
        given["start"] = table["start"]
        if table["start"] not in _STARTS:
            problems.append(f"after.start: {table['start']!r} must be one of {', '.join(_STARTS)}")
    if "healthy_within" in table:
        given["healthy_within_s"] = _duration(table["healthy_within"], "after.healthy_within", problems, 1, 86_400)
    return After(**given)


def _unattended(
    table: Mapping[str, Any], limits: Limits, rungs: tuple[Rung, ...], steps: Mapping[str, Step], problems: list[str]
) -> Unattended:
    """Both lists must be given: what may be done with nobody there is never a default."""
    _unknown(table, ("signals", "scopes", "runs_per_day"), "unattended.", problems)
    signals, words = (_words(table, key, problems) for key in ("signals", "scopes"))
    from recover.core.signals.names import NAMES  # not above: it loads all signals, and most playbooks name none

    for i, signal in enumerate(signals):
        if signal not in NAMES:
            close = nearest(signal, tuple(NAMES))
            says = f"did you mean {close!r}?" if close else f"known: {', '.join(sorted(NAMES))}"
            problems.append(f"unattended.signals[{i}]: there is no finding {signal!r}: {says}")
    scopes = tuple(_scope(word, f"unattended.scopes[{i}]", problems) for i, word in enumerate(words))
    for i, scope in enumerate(scopes):
        if scope > limits.max_scope:
            problems.append(f"unattended.scopes[{i}]: {scope.word} is above limits.max_scope, {limits.max_scope.word}")
    for i, rung in enumerate(rungs, 1):
        ends = [name for name, value in rung.params if name in ("evict", "drain", "apply_pending") and value is True]
        if ends:
            problems.append(f"rung[{i}].{ends[0]}: with [unattended] nobody is there to say who may be hit")
    for step in dict.fromkeys(r.step for r in rungs):
        if step in steps and scopes and steps[step].scope > max(scopes):
            what = f"{step} (scope {steps[step].scope.word}) is a rung, and unattended.scopes does not list its scope"
            problems.append(f"unattended.scopes: {what}: leave the rung out, or list it")
    runs = _count(table["runs_per_day"], "unattended.runs_per_day", problems, 0, 100) if "runs_per_day" in table else 2
    return Unattended(signals, scopes, runs)


def _words(table: Mapping[str, Any], key: str, problems: list[str]) -> tuple[str, ...]:
    value = table.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        problems.append(f"unattended.{key}: must be a list of at least one word")
        return ()
    return tuple(value)


def _ladder(value: Any, steps: Mapping[str, Step], problems: list[str]) -> tuple[Rung, ...]:
    if not isinstance(value, list) or not value:
        problems.append("rung: the ladder is empty: at least one [[rung]] is needed")
        return ()
    rungs = [_rung(one, f"rung[{i}]", steps, problems) for i, one in enumerate(value, 1)]
    height = None
    for i, rung in enumerate(rungs, 1):
        step = steps.get(rung.step)
        if step is None:
            continue
        if height is not None and step.scope < height.scope:
            what = f"{step.name} ({step.scope.word}) may not come after {height.name} ({height.scope.word})"
            problems.append(f"rung[{i}].step: {what}: rungs go from the least scope to the greatest")
        else:
            height = step
    return tuple(rungs)


def _rung(table: Any, path: str, steps: Mapping[str, Step], problems: list[str]) -> Rung:
    if not isinstance(table, Mapping):
        problems.append(f"{path}: must be a table")
        return Rung("")
    name = _text(table, "step", f"{path}.", problems, required=True)
    step = steps.get(name)
    if name and step is None:
        problems.append(f"{path}.step: there is no step {name!r}: choose from {', '.join(steps)}")
    given: dict[str, Any] = {}
    if "attempts" in table:
        given["attempts"] = _count(table["attempts"], f"{path}.attempts", problems, 1, 10)
    if "settle" in table:
        given["settle_s"] = _duration(table["settle"], f"{path}.settle", problems, 0, 3600)
    rest = {k: v for k, v in table.items() if k not in ("step", "attempts", "settle")}
    params = _params(rest, step, path, problems) if step is not None else ()
    return Rung(step=name, params=params, **given)


def _params(table: Mapping[str, Any], step: Step, path: str, problems: list[str]) -> tuple[tuple[str, Value], ...]:
    known = {p.name: p for p in step.params}
    found: list[tuple[str, Value]] = []
    for key, value in table.items():
        if key not in known:
            choices = ", ".join(("step", "attempts", "settle", *known))
            problems.append(f"{path}.{key}: {step.name} has no such parameter: choose from {choices}")
        else:
            found.append((key, _param(value, known[key], f"{path}.{key}", problems)))
    return tuple(found)


def _param(value: Any, param: Param, path: str, problems: list[str]) -> Value:
    least = param.least if param.least is not None else float("-inf")
    most = param.most if param.most is not None else float("inf")
    if param.unit == "s":
        return _duration(value, path, problems, least, most)
    wanted = type(param.default)
    if type(value) is not wanted and not (wanted is float and type(value) is int):
        problems.append(f"{path}: must be {_TYPES[wanted]}, not {value!r}")
        return param.default
    if isinstance(value, (int, float)) and not least <= value <= most:
        problems.append(f"{path}: {value} must lie between {least:g} and {most:g}")
    return wanted(value)


_TYPES: Mapping[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _duration(value: Any, path: str, problems: list[str], least: float, most: float) -> float:
    seconds = duration(value)
    if seconds is None:
        problems.append(f'{path}: {value!r} is no duration: write it like "30s", "2m" or "1h"')
        return least
    if not least <= seconds <= most:
        problems.append(f"{path}: {value} must lie between {least:g}s and {most:g}s")
    return seconds


def _count(value: Any, path: str, problems: list[str], least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        problems.append(f"{path}: must be a whole number from {least} to {most}, not {value!r}")
        return least
    return value


def _text(table: Mapping[str, Any], key: str, path: str, problems: list[str], required: bool = False) -> str:
    value: object = table.get(key, "")
    if not isinstance(value, str):
        problems.append(f"{path}{key}: must be a text, not {value!r}")
        return ""
    if required and not value:
        problems.append(f"{path}{key}: is missing")
    return value


def _table(data: Mapping[str, Any], key: str, problems: list[str]) -> Mapping[str, Any]:
    value = data.get(key, {})
    if isinstance(value, Mapping):
        return value
    problems.append(f"{key}: must be a table")
    return {}


def _unknown(table: Mapping[str, Any], known: tuple[str, ...], path: str, problems: list[str]) -> None:
    problems += [f"{path}{k}: unknown key: choose from {', '.join(known)}" for k in table if k not in known]
