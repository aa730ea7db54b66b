"""What past runs add up to: how often, what cured, how long it took; figures of too few runs are left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from recover.core.hooks import HookRun, hear, prompted
from recover.core.report.result import exit_code
from recover.model.record import (
    Began,
    Closed,
    Consented,
    Declined,
    Ended,
    EndKind,
    Entry,
    Hooked,
    Hooking,
    Opened,
    Saw,
)

P50_FROM = 5  # so many recoveries, before a middle one is called typical
P95_FROM = 20  # with fewer the 95th percentile is the slowest one by another name
EVERY_FROM = 3  # so many faults, before they are said to have a rhythm
CUT, GOES_ON, UNREADABLE = "cut", "goes on", "unreadable"


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A look, of which looking back needs only whether it found something wrong."""

    at: float
    sick: bool


@dataclass(frozen=True, slots=True)
class HookTold:
    """A hook of the run. `ok` None: its end is not known, since it was cut or goes on; `seconds` then too."""

    event: str
    at: float
    ok: bool | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Told:
    """One run of one target, as its journal tells it. Times are seconds since the epoch; None: nothing to tell.

    `fault_at`: the first look with a finding. `lost_s`: from there to the end, or to the last entry where there is no
    end; of a journal that was closed and gone on with, the sum. `cured_by`: the last try before `recovered`, empty
    where that came without one. `waited_s`: at the prompt. `broken`: why the journal can't be read.
    """

    target: str
    run: str
    began: float
    ended: float | None
    end: str
    code: int | None
    tried: tuple[str, ...]
    who: str
    goes_on: bool
    broken: str = ""
    fault_at: float | None = None
    lost_s: float | None = None
    recovered_s: float | None = None
    cured_by: str | None = None
    waited_s: float = 0.0
    tries: tuple[tuple[str, bool], ...] = ()
    hooks: tuple[HookTold, ...] = ()


def unreadable(target: str, run: str, began: float, why: str) -> Told:
    return Told(target, run, began, None, UNREADABLE, None, (), "", False, why)


@dataclass(slots=True)
class _Teller:
    """What one journal has told so far. A run that was closed is over: what follows it is a climb of its own."""

    first: Opened | None = None
    opened: Opened | None = None
    closed: Closed | None = None
    fault_at: float | None = None
    last_at: float = 0.0
    lost_s: float | None = None
    asked: list[Entry] = field(default_factory=list)  # consents, refusals and hooks
    tries: list[tuple[str, bool]] = field(default_factory=list)
    hooks: list[HookRun] = field(default_factory=list)

    def hear(self, entry: Entry | Glimpse) -> None:
        if isinstance(entry, Opened):
            self._open(entry)
        self.last_at = entry.at
        match entry:
            case Saw():
                self._look(entry.at, bool(entry.diagnosis.findings))
            case Glimpse():
                self._look(entry.at, entry.sick)
            case Consented() | Declined():
                self.asked.append(entry)
            case Hooking() | Hooked():
                self.asked.append(entry)
                hear(self.hooks, entry)
            case Began():
                self.tries.append((entry.step, False))
            case Ended() if self.tries:
                self.tries[-1] = (self.tries[-1][0], entry.outcome.ok)
            case Closed():
                self.closed = entry
            case _:
                pass

    def _open(self, entry: Opened) -> None:
        self.first = self.first or entry
        self.opened = entry
        if self.closed is not None:
            self.lost_s = self.lost()
            self.closed, self.fault_at, self.tries = None, None, []

    def _look(self, at: float, sick: bool) -> None:
        if sick and self.fault_at is None:
            self.fault_at = at

    def lost(self) -> float | None:
        if self.fault_at is None:
            return self.lost_s
        until = self.closed.at if self.closed is not None else self.last_at
        return (self.lost_s or 0.0) + max(0.0, until - self.fault_at)


def tell(entries: Iterable[Entry | Glimpse], *, alive: bool) -> Told | None:
    """One run out of its journal; None where nothing was opened in it. `alive`: somebody works on it now."""
    teller = _Teller()
    for entry in entries:
        teller.hear(entry)
    if teller.first is None or teller.opened is None:
        return None
    closed, fault_at = teller.closed, teller.fault_at
    code = exit_code(closed) if closed is not None else None
    recovered = closed is not None and closed.end.kind is EndKind.RECOVERED
    whole = closed is not None and recovered and code == 0 and fault_at is not None
    return Told(
        target=teller.opened.target,
        run=teller.opened.run,
        began=teller.first.at,
        ended=closed.at if closed is not None else None,
        end=closed.end.kind.value if closed is not None else GOES_ON if alive else CUT,
        code=code,
        tried=tuple(dict.fromkeys(step for step, _ in teller.tries)),
        who=f"{teller.opened.who}@{teller.opened.host}",
        goes_on=alive,
        fault_at=fault_at,
        lost_s=teller.lost(),
        recovered_s=max(0.0, closed.at - fault_at) if whole and closed is not None and fault_at is not None else None,
        cured_by=(teller.tries[-1][0] if teller.tries else "") if recovered else None,
        waited_s=prompted(teller.asked),
        tries=tuple(teller.tries),
        hooks=tuple(_hook(run) for run in teller.hooks),
    )


def _hook(run: HookRun) -> HookTold:
    known = run.outcome if run.outcome is not None and run.outcome.clear else None
    return HookTold(run.event, run.began, known.ok if known else None, known.seconds if known else None)


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of `n` recoveries, seconds. Percentiles are times that were measured (nearest rank), never between two."""

    n: int
    fastest: float | None = None
    slowest: float | None = None
    p50: float | None = None
    p95: float | None = None


def spread(times: Iterable[float]) -> Spread:
    ordered = sorted(times)
    n = len(ordered)
    if not n:
        return Spread(0)
    p50 = ordered[math.ceil(0.5 * n) - 1] if n >= P50_FROM else None
    p95 = ordered[math.ceil(0.95 * n) - 1] if n >= P95_FROM else None
    return Spread(n, ordered[0], ordered[-1], p50, p95)


@dataclass(frozen=True, slots=True)
class RungFigures:
    """`done`: tries that ended well; `cured`: recoveries whose last try it was."""

    step: str
    tried: int
    done: int
    cured: int


@dataclass(frozen=True, slots=True)
class Figures:
    """What a set of runs adds up to. `ends`: (how it ended, so many), the most frequent first; seconds.

    `faults`: runs that saw something wrong. `every_s`: the span that was asked for, divided by them; None where they
    are too few. `lost_s` is lost within runs: what lies between two of them nobody measured. `open_ended`: so many of
    the faults still stood when their run ended, so that more was lost than is known.
    """

    name: str
    runs: int
    faults: int
    every_s: float | None
    ends: tuple[tuple[str, int], ...]
    service_not_back: int
    recovered: int
    rungs: tuple[RungFigures, ...]
    without_try: int
    times: Spread
    lost_s: float
    open_ended: int
    waited_s: float
    first: float | None
    last: float | None


_CURED = frozenset({EndKind.RECOVERED.value, EndKind.HEALTHY.value})


def figures(name: str, runs: Sequence[Told], since: float, until: float) -> Figures:
    """`since`, `until`: the span that was looked back on."""
    began = [r.began for r in runs if r.began]
    faulty = [r for r in runs if r.fault_at is not None]
    ends = Counter(r.end for r in runs)
    cured = [r for r in runs if r.end == EndKind.RECOVERED.value]
    every = (until - since) / len(faulty) if len(faulty) >= EVERY_FROM and until > since else None
    return Figures(
        name=name,
        runs=len(runs),
        faults=len(faulty),
        every_s=every,
        ends=tuple(sorted(ends.items(), key=lambda item: (-item[1], item[0]))),
        service_not_back=sum(r.code not in (0, None) for r in cured),
        recovered=len(cured),
        rungs=_rungs(runs),
        without_try=sum(r.cured_by == "" for r in cured),
        times=spread(r.recovered_s for r in runs if r.recovered_s is not None),
        lost_s=sum(r.lost_s or 0.0 for r in runs),
        open_ended=sum(r.end not in _CURED or r.code not in (0, None) for r in faulty),
        waited_s=sum(r.waited_s for r in runs),
        first=min(began, default=None),
        last=max(began, default=None),
    )


def _rungs(runs: Sequence[Told]) -> tuple[RungFigures, ...]:
    tried = Counter(step for r in runs for step, _ in r.tries)
    done = Counter(step for r in runs for step, ok in r.tries if ok)
    cured = Counter(r.cured_by for r in runs if r.cured_by)
    return tuple(
        RungFigures(step, tried[step], done[step], cured[step])
        for step in sorted(tried, key=lambda s: (-cured[s], -tried[s], s))
    )


@dataclass(frozen=True, slots=True)
class Lookback:
    """A span looked back on: the fleet, each target, and the runs whose journals can't be read, by (run, why)."""

    since: float | None
    until: float | None
    fleet: Figures
    targets: tuple[Figures, ...]
    broken: tuple[tuple[str, str], ...]


def look_back(runs: Iterable[Told], since: float | None, until: float | None, now: float) -> Lookback:
    """`since` None: from the first run on. `until` None: to `now`."""
    told = sorted(runs, key=lambda r: (r.began, r.run))
    begin = since if since is not None else next((r.began for r in told if r.began), now)
    end = until if until is not None else now
    by_target: dict[str, list[Told]] = {}
    for run in told:
        by_target.setdefault(run.target, []).append(run)
    return Lookback(
        since=since,
        until=until,
        fleet=figures("", told, begin, end),
        targets=tuple(figures(name, by_target[name], begin, end) for name in sorted(by_target)),
        broken=tuple((r.run, r.broken) for r in told if r.broken),
    )
