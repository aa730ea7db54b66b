"""Who answers for a group and who would start it again: what another server says proves nothing about it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recover.core.health import answer_of, port_of
from recover.core.look import Look
from recover.model.process import Group
from recover.model.record import Serving, Vitals
from recover.model.snapshot import Snapshot
from recover.steps.services import key_of
from recover.steps.undo import service_key


def with_answer(look: Look, group: Group) -> Group:
    """The group with its health question, where that was answered with 200, and who of it listens there."""
    answer = answer_of(look, group)
    if answer is None or answer.outcome != "answered" or answer.status != 200:
        return group
    there = tuple(p.process.id for p in look.parts[group.key] if port_of(answer) in p.process.listens)
    return replace(group, url=answer.url, listeners=there)


def serving(snapshot: Snapshot) -> tuple[Serving, ...]:
    """Each group that a manager would start again, or that answered."""
    groups = (g for g in snapshot.groups if not g.protected)
    made = (Serving(g.key, _service(snapshot, g), g.url, g.listeners) for g in groups)
    return tuple(one for one in made if one.service or one.url)


def _service(snapshot: Snapshot, group: Group) -> str:
    key = key_of(snapshot, group)
    return service_key(*key) if key is not None else ""


def of_services(vitals: Vitals, keys: Iterable[str]) -> dict[str, list[tuple[Serving, str, str]]]:
    """service key -> its groups as (serving, health, title)."""
    health = {key: (state, title) for key, state, title in vitals.groups}
    found: dict[str, list[tuple[Serving, str, str]]] = {key: [] for key in keys}
    for one in vitals.serving:
        if one.service in found and one.group in health:
            found[one.service].append((one, *health[one.group]))
    return found


def failed_units(vitals: Vitals, keys: Iterable[str]) -> list[str]:
    """Those of `keys` whose own manager says that they failed."""
    named = tuple(keys)
    return [
        name
        for manager, name, state in vitals.services
        if state == "failed" and any(k.startswith(f"service:{manager}/") and k.endswith(f"/{name}") for k in named)
    ]
