"""What earlier looks of the same journal tell the next one: progress of symptoms, what we ended, and when we acted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from recover.model.guest import Mark
from recover.model.verdict import Symptom

_NONE: Mapping[str, Anchor] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Anchor:
    """The level of a symptom at its last progress, and when that was (the engine's clock, seconds)."""

    level: int
    since: float


@dataclass(frozen=True, slots=True)
class OwnActs:
    """A span of the guest's own time in which our acts ran: the events in it are ours. `until` None: still running.

    `reset`: bus ids of GPUs that these acts reset; what their Xids said before is settled.
    """

    boot_id: str
    since_uptime_s: float
    until_uptime_s: float | None = None
    reset: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Reboot:
    """We asked this boot of the guest to end by itself, at `at` by the engine's clock."""

    boot_id: str
    at: float
    deadline_s: float
    sure: bool = False  # the guest's init took it; False: we were cut off, or its answer was


@dataclass(frozen=True, slots=True)
class Past:
    """`ended`: (group key, launch fingerprint) of groups that a try of this journal was to end.

    `first`: the guest's time at the first look that reached it. `cured_boot`: boot ids that ended by our own act.
    """

    anchors: Mapping[str, Anchor] = field(default_factory=lambda: _NONE)
    ended: frozenset[tuple[str, str]] = frozenset()
    own_acts: tuple[OwnActs, ...] = ()
    first: Mark | None = None
    owed_vm: bool = False  # we stopped the VM: that it is stopped is not news
    tries: int = 0
    reboot: Reboot | None = None  # asked for, and its new boot not seen yet
    gpus: tuple[tuple[str, str], ...] = ()  # (uuid, bus id) of each GPU of the first look


def advance(anchors: Mapping[str, Anchor], symptoms: Iterable[Symptom], at: float) -> dict[str, Anchor]:
    """The anchors after a look: progress (a fall of at least `quantum`) restarts a symptom's time.

    A rise moves the level up without restarting the time, so that a level that swings must fall below its own height.
    Symptoms that are gone lose their anchor: if they come back, their time starts anew.
    """
    after: dict[str, Anchor] = {}
    for symptom in symptoms:
        before = anchors.get(symptom.key)
        if before is None or symptom.level <= before.level - symptom.quantum:
            after[symptom.key] = Anchor(symptom.level, at)
        else:
            after[symptom.key] = Anchor(max(before.level, symptom.level), before.since)
    return after


def ripe(anchors: Mapping[str, Anchor], symptom: Symptom, at: float) -> bool:
    """Whether `symptom`, seen at `at` with `anchors` from the looks before, has made no progress for `ripens_s`."""
    before = anchors.get(symptom.key)
    if before is None or symptom.level <= before.level - symptom.quantum:
        return symptom.ripens_s <= 0
    return at - before.since >= symptom.ripens_s
