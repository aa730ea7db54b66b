"""GPU memory and RAM over a run's time, as its looks saw them: what was not seen is None, and stays a gap."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from recover.core.report.result import Looks, looks
from recover.core.report.timeline import outcome_words
from recover.model.record import Acted, Acting, Began, Decided, Ended, Entry, Opened, Saw, Stop

PAUSE_S = 120.0  # nobody worked on it for so long: the time is folded, or it would flatten all the rest


@dataclass(frozen=True, slots=True)
class Point:
    """`after_act`: something was done between the look before and this one, so that nobody saw the way."""

    at: float
    mib: int | None
    after_act: bool = False


@dataclass(frozen=True, slots=True)
class Curve:
    """`top`: the total, or where that is unknown the most that was seen. `before`, `after`: as the report has them."""

    label: str
    where: str
    points: tuple[Point, ...]
    top: int | None
    baseline: int | None = None
    before: int | None = None  # at the last look before the first try
    after: int | None = None  # at the verdict

    @property
    def known(self) -> tuple[int, ...]:
        return tuple(p.mib for p in self.points if p.mib is not None)


@dataclass(frozen=True, slots=True)
class Band:
    """The time in which try `number` ran. `ended` None: it has not ended, or its end is not known."""

    number: int
    step: str
    began: float
    ended: float | None
    said: str = "has not ended"
    tone: str = "warn"


@dataclass(frozen=True, slots=True)
class Curves:
    began: float
    ended: float
    gpus: tuple[Curve, ...] = ()
    ram: Curve | None = None
    bands: tuple[Band, ...] = ()
    pauses: tuple[tuple[float, float], ...] = ()
    looks: int = 0
    unseen: int = 0  # looks that did not reach the guest
    verdict_at: float | None = None  # the look on which the end was decided


@dataclass(slots=True)
class _Plotter:
    began: float | None = None
    last: float = 0.0
    looks: list[tuple[Saw, bool]] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    acted: bool = False
    verdict_at: float | None = None

    def hear(self, entry: Entry) -> None:
        if isinstance(entry, Opened):
            self._opened(entry)
        elif isinstance(entry, Saw):
            self.looks.append((entry, self.acted))
            self.acted = False
        elif isinstance(entry, Began):
            self.bands.append(Band(len(self.bands) + 1, entry.step, entry.at, None))
            self.acted = True
        elif isinstance(entry, Ended) and self.bands:
            said, tone = outcome_words(entry.outcome)
            last = self.bands[-1]
            self.bands[-1] = Band(last.number, last.step, last.began, entry.at, said, tone)
        elif isinstance(entry, (Acting, Acted)):
            self.acted = True
        elif isinstance(entry, Decided) and isinstance(entry.decision, Stop) and self.looks:
            self.verdict_at = self.looks[-1][0].at
        self.last = max(self.last, entry.at)

    def _opened(self, entry: Opened) -> None:
        self.verdict_at = None
        if self.began is None:
            self.began = entry.at
            return
        if entry.at - self.last > PAUSE_S:
            self.pauses.append((self.last, entry.at))
        if self.bands and self.bands[-1].ended is None:
            last = self.bands[-1]
            self.bands[-1] = Band(last.number, last.step, last.began, self.last, "cut", "bad")
        self.acted = True


def curves(entries: Iterable[Entry], gpu_baseline: Mapping[str, int] | None = None) -> Curves | None:
    """None where nothing was looked at. `gpu_baseline`: MiB per UUID or address, where one was saved before the run."""
    entries = tuple(entries)
    plotter, seen = _Plotter(), looks(entries)
    for entry in entries:
        plotter.hear(entry)
    if plotter.began is None or not plotter.looks:
        return None
    return Curves(
        began=plotter.began,
        ended=max(plotter.last, plotter.began + 1.0),
        gpus=_gpus(plotter.looks, seen, gpu_baseline or {}),
        ram=_ram(plotter.looks, seen),
        bands=tuple(plotter.bands),
        pauses=tuple(plotter.pauses),
        looks=len(plotter.looks),
        unseen=sum(not saw.vitals.reached for saw, _ in plotter.looks),
        verdict_at=plotter.verdict_at,
    )


def _gpus(found: Sequence[tuple[Saw, bool]], seen: Looks, baseline: Mapping[str, int]) -> tuple[Curve, ...]:
    """One per GPU that any look knew of; by UUID, else by address, as the figures of the report are matched."""
    names: dict[str, tuple[int, str, str]] = {}
    totals: dict[str, int] = {}
    for saw, _ in found:
        for gpu in saw.vitals.gpus:
            key = gpu.uuid or gpu.bus_id
            names[key] = (gpu.index, gpu.bus_id, gpu.uuid)
            totals[key] = max(totals.get(key, 0), gpu.total_mib or 0)
    drawn = []
    for key, (index, bus_id, uuid) in sorted(names.items(), key=lambda item: (item[1][0], item[0])):
        points = tuple(Point(saw.at, used(saw, key), acted) for saw, acted in found)
        top = totals[key] or max((p.mib for p in points if p.mib is not None), default=None)
        base = baseline.get(uuid, baseline.get(bus_id))
        before, after = used(seen.before, key), used(seen.verdict, key)
        drawn.append(Curve(f"GPU {index}", bus_id or uuid, points, top, base, before, after))
    return tuple(drawn)


def used(saw: Saw | None, key: str) -> int | None:
    """GPU memory in use by one look, MiB; None where it did not see that."""
    gpus = saw.vitals.gpus if saw is not None else ()
    return next((g.used_mib for g in gpus if (g.uuid or g.bus_id) == key), None)


def _ram(found: Sequence[tuple[Saw, bool]], seen: Looks) -> Curve | None:
    points = tuple(Point(saw.at, saw.vitals.ram_available_mib, acted) for saw, acted in found)
    known = [p.mib for p in points if p.mib is not None]
    if not known:
        return None
    totals = [s.vitals.ram_total_mib for s, _ in found if s.vitals.ram_total_mib is not None]
    bases = [s.vitals.ram_baseline_mib for s, _ in found if s.vitals.ram_baseline_mib is not None]
    before, after = (s.vitals.ram_available_mib if s is not None else None for s in (seen.before, seen.verdict))
    return Curve("RAM available", "", points, max([*totals, *known]), bases[-1] if bases else None, before, after)
