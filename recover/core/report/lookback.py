"""Past runs added up, as tables of words and as JSON: the same figures for a person and for a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from recover.core.clean import clean
from recover.core.lookback import CUT, P50_FROM, P95_FROM, UNREADABLE, Figures, Lookback, Spread
from recover.core.report.words import UNKNOWN, count, span
from recover.model.record import EndKind

DAY_S = 86400.0
NONE = "-"
Paint = Callable[[str, str], str]  # (text, tone) -> text; the tones are good, warn, bad and plain
_TONES = {
    EndKind.RECOVERED.value: "good", EndKind.HEALTHY.value: "good", EndKind.EXHAUSTED.value: "bad",
    EndKind.NEEDS_HUMAN.value: "bad", EndKind.OUT_OF_TIME.value: "bad", CUT: "bad", UNREADABLE: "bad",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Table:
    """`rows` without their heading; each cell is (text, tone). `right`: columns of figures."""

    title: str
    heading: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]
    right: frozenset[int] = frozenset()
    whole: frozenset[int] = frozenset()  # columns that are copied, and never folded


def tone(end: str, code: int | None = None) -> str:
    """How an end is coloured: good, warn or bad. A recovery without its service is not good."""
    return "warn" if code == 15 else _TONES.get(end, "warn")


def headline(back: Lookback) -> str:
    """What was looked back on: how many runs, where, and from when to when."""
    whole = back.fleet
    first, last = (day(whole.first), day(whole.last)) if whole.first and whole.last else (UNKNOWN, UNKNOWN)
    since = day(back.since) if back.since is not None else first
    until = day(back.until) if back.until is not None else last
    return f"{count(whole.runs, 'run')} on {count(len(back.targets), 'target')}, {since} to {until}"


def lines(back: Lookback) -> list[str]:
    """The fleet in a few lines, each with what keeps its figure from being more."""
    whole = back.fleet
    found = [f"  ended     {', '.join(f'{end} {n}' for end, n in whole.ends)}"]
    if whole.service_not_back:
        found.append(f"            of the recovered, {whole.service_not_back} without the service being back")
    found.append(
        f"  fault     seen in {count(whole.faults, 'run')}"
        + (f", one every {long(whole.every_s)}" if whole.every_s else "")
    )
    at_least = "at least " if whole.open_ended else ""
    lost = f"  lost      {at_least}{span(whole.lost_s)} from the first sight of a fault to the end of the run"
    found.append(lost + (f"; {span(whole.waited_s)} of it at a prompt" if whole.waited_s >= 1 else ""))
    if whole.open_ended:
        found.append(f"            {count(whole.open_ended, 'fault')} outlasted the run: what followed is not known")
    found.append(f"  recovery  {times(whole.times)}")
    return found


def times(found: Spread) -> str:
    """p50 and p95 with n; of few recoveries what was measured, and that it is few."""
    if found.n == 0 or found.fastest is None or found.slowest is None:
        return "none with its service back"
    recoveries = count(found.n, "recovery").replace("recoverys", "recoveries")
    between = f"{span(found.fastest)} to {span(found.slowest)}" if found.n > 1 else span(found.fastest)
    if found.p50 is None:
        return f"{between} ({recoveries}: too few for a p50, which takes {P50_FROM})"
    if found.p95 is None:
        return f"p50 {span(found.p50)}, all {between} ({recoveries}: too few for a p95, which takes {P95_FROM})"
    return f"p50 {span(found.p50)}, p95 {span(found.p95)}, all {between} ({recoveries})"


def tables(back: Lookback) -> list[Table]:
    """Which rung cured, and the figures of each target."""
    found = [_cures(back.fleet)] if back.fleet.rungs else []
    return [*found, _per_target(back.targets)] if back.targets else found


def _cures(whole: Figures) -> Table:
    rows = [
        (
            (r.step, "plain"),
            (str(r.cured), "good" if r.cured else "plain"),
            (str(r.tried), "plain"),
            (str(r.done), "plain"),
        )
        for r in whole.rungs
    ]
    if whole.without_try:
        rows.append(
            (
                ("(no rung: what was owed was paid)", "plain"),
                (str(whole.without_try), "good"),
                (NONE, "plain"),
                (NONE, "plain"),
            )
        )
    return Table("Which rung cured", ("rung", "cured", "tried", "went well"), tuple(rows), frozenset({1, 2, 3}))


def _per_target(targets: Sequence[Figures]) -> Table:
    """One line each; which ends and rungs stood behind it is told by the figures of that target alone."""
    heading = ("target", "runs", "faults", "every", "recovered", "not", "cured most by", "p50", "p95", "n", "lost")
    return Table(
        "Per target (p50, p95: time to recover, of n)",
        heading,
        tuple(_target(f) for f in targets),
        frozenset({1, 2, 3, 4, 5, 7, 8, 9, 10}),
    )


def _target(found: Figures) -> tuple[tuple[str, str], ...]:
    ends = dict(found.ends)
    healthy = ends.get(EndKind.HEALTHY.value, 0)
    neither = found.runs - found.recovered - healthy
    most = found.rungs[0] if found.rungs and found.rungs[0].cured else None
    worst = "bad" if any(tone(end) == "bad" for end in ends) else "warn"
    whole = f"{found.recovered - found.service_not_back} of " if found.service_not_back else ""  # service back
    return (
        (clean(found.name), "plain"),
        (str(found.runs), "plain"),
        (str(found.faults), "plain"),
        (long(found.every_s), "plain"),
        (f"{whole}{found.recovered}", "warn" if whole else "good" if found.recovered else "plain"),
        (str(neither), worst if neither else "plain"),
        (f"{most.step} {most.cured}" if most is not None else NONE, "plain"),
        (span(found.times.p50) if found.times.p50 is not None else NONE, "plain"),
        (span(found.times.p95) if found.times.p95 is not None else NONE, "plain"),
        (str(found.times.n), "plain"),
        (("≥ " if found.open_ended else "") + span(found.lost_s) if found.faults else NONE, "plain"),
    )


def long(seconds: float | None) -> str:
    """A span of days for a person: "18 h", "4.2 days"."""
    if seconds is None:
        return NONE
    if seconds < 2 * DAY_S:
        return f"{seconds / 3600:.0f} h" if seconds >= 7200 else span(seconds)
    return f"{seconds / DAY_S:.1f} days"


def day(at: float) -> str:
    """The day by the local zone."""
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d")


def data(back: Lookback) -> dict[str, Any]:
    """As JSON: seconds, and null for what is not known or has too few runs to be said."""
    return {
        "schema": 1,
        "since": back.since,
        "until": back.until,
        "fleet": _data(back.fleet),
        "targets": [_data(f) for f in back.targets],
        "unreadable": [{"run": clean(run), "why": clean(why)} for run, why in back.broken],
    }


def _data(found: Figures) -> dict[str, Any]:
    return {
        "target": clean(found.name) or None,
        "runs": found.runs,
        "faults": found.faults,
        "fault_every_s": _round(found.every_s),
        "ends": dict(found.ends),
        "service_not_back": found.service_not_back,
        "rungs": [asdict(r) for r in found.rungs],
        "recovered_without_a_try": found.without_try,
        "time_to_recover_s": {key: _round(value) for key, value in asdict(found.times).items()},
        "lost_s": _round(found.lost_s),
        "faults_that_outlasted_their_run": found.open_ended,
        "at_the_prompt_s": _round(found.waited_s),
        "first_run": found.first,
        "last_run": found.last,
    }


def _round(value: float | None) -> float | None:
    return value if value is None or isinstance(value, int) else round(value, 1)
