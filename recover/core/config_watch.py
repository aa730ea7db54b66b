"""What the configuration says about watching: k of n, the fleet's limits, and when nothing is done by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from recover.core.config_table import Table
from recover.core.fleet import FleetLimits
from recover.core.watch import Policy
from recover.core.windows import Hours, Window, hours

PLAYBOOK = "watch"


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """`quiet`: hours in which nothing is done by itself to any target. `playbook`: what may be done at other times."""

    policy: Policy = field(default_factory=Policy)
    playbook: str = PLAYBOOK
    quiet: tuple[Window, ...] = ()


def watch(table: Table) -> WatchConfig:
    """[watch]."""
    base = Policy()
    policy = Policy(
        bad=table.integer("bad", 1, 100) or base.bad,
        of=table.integer("of", 1, 100) or base.of,
        good=table.integer("good", 1, 100) or base.good,
        missed=_or(table.integer("missed", 0, 100), base.missed),
        apart_s=_or(table.duration("apart", 0.0, 3600.0), base.apart_s),
        forget_s=table.duration("forget", 60.0, 30 * 86_400.0) or base.forget_s,
        flaps=table.integer("flaps", 2, 100) or base.flaps,
        flaps_within_s=table.duration("flaps_within", 60.0, 30 * 86_400.0) or base.flaps_within_s,
    )
    for key, value in (("bad", policy.bad), ("good", policy.good), ("missed", policy.missed)):
        if value > policy.of or (key == "missed" and value == policy.of):
            says = f"{key} = {value} does not fit of = {policy.of} looks"
            table.wrong(key if table.has(key) else "of", says)
    zone = _zone(table)
    quiet = _hours(table, "quiet", zone)
    windows = (Window(hours=quiet, zone=zone or "UTC", why="quiet hours"),) if quiet else ()
    return WatchConfig(policy, table.text("playbook") or PLAYBOOK, windows)


def fleet(table: Table) -> FleetLimits:
    """[fleet]."""
    base = FleetLimits()
    return FleetLimits(
        max_nodes=_or(table.integer("max_nodes", 0, 10_000), base.max_nodes),
        max_percent=_or(table.integer("max_percent", 0, 100), base.max_percent),
        at_least=_or(table.integer("at_least", 0, 10_000), base.at_least),
        window_s=table.duration("window", 60.0, 7 * 86_400.0) or base.window_s,
        sick_percent=_or(table.integer("sick_percent", 0, 100), base.sick_percent),
    )


def maintenance(table: Table) -> Window:
    """One [[maintenance]]: either from and to, or hours that come again."""
    zone = _zone(table)
    begins, ends = _moment(table, "from", zone), _moment(table, "to", zone)
    weekly = _hours(table, "hours", zone)
    once = table.has("from") or table.has("to")
    if once == table.has("hours"):
        table.problems.append(f"{table.path}: expected either from and to, or hours")
    elif once and table.has("from") != table.has("to"):
        table.wrong("from" if table.has("to") else "to", "missing: a window that never ends would end all of this")
    elif begins is not None and ends is not None and begins >= ends:
        table.wrong("to", "lies before from")
    return Window(
        targets=table.texts("targets"),
        begins=begins or 0.0,
        ends=ends or 0.0,
        hours=weekly,
        zone=zone or "UTC",
        why=table.text("why"),
    )


def none_unknown(at: Table, windows: tuple[Window, ...], targets: Mapping[str, Any]) -> None:
    """A pattern that fits no target of the configuration is a typing error, and would protect nobody."""
    for number, window in enumerate(windows):
        for i, pattern in enumerate(window.targets):
            alone = Window(targets=(pattern,), begins=0.0, ends=1.0)
            if not any(alone.covers(name, 0.5) for name in targets):
                at.problems.append(f"maintenance[{number}].targets[{i}]: no target is called {pattern!r}")


def _zone(table: Table) -> str:
    name = table.text("zone")
    if name:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            table.wrong("zone", f'no time zone {name!r} is known here: like "Europe/Berlin" or "UTC"')
            return ""
    return name


def _hours(table: Table, key: str, zone: str) -> tuple[Hours, ...]:
    found: list[Hours] = []

    def check(text: str) -> str:
        parsed = hours(text)
        if isinstance(parsed, str):
            return parsed
        found.append(parsed)
        return ""

    table.texts(key, check)
    if found and not table.has("zone"):
        table.wrong("zone", 'missing: by which clock? like "Europe/Berlin" or "UTC"')
    return tuple(found)


def _moment(table: Table, key: str, zone: str) -> float | None:
    """A TOML date-time; one without an offset is by the clock of `zone`. A doubtful one is taken as the wider."""
    value = table.get(key)
    if value is None:
        return None
    if not isinstance(value, datetime):
        table.wrong(key, "expected a date and time like 2026-12-01T22:00:00 or 2026-12-01T22:00:00+01:00")
        return None
    if value.tzinfo is not None:
        return value.timestamp()
    if not table.has("zone"):
        table.wrong(key, "has no offset, and zone is missing: by which clock?")
        return None
    moments = [value.replace(tzinfo=ZoneInfo(zone or "UTC"), fold=fold).timestamp() for fold in (0, 1)]
    return min(moments) if key == "from" else max(moments)


def _or(value: float | int | None, default: Any) -> Any:
    return default if value is None else value
