"""History is a fold over the journal's entries, one at a time; the same fold resumes, replays and audits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from recover.core.duties import OpenDuty, after_reset, freed_by_boot, resets
from recover.core.history import Attempt, History
from recover.core.past import OwnActs, Reboot, advance
from recover.model import record
from recover.model.act import (
    AskServer,
    ClearMarker,
    Due,
    OnHost,
    Outcome,
    PlaceMarker,
    RebootGuest,
    ResetGpu,
)
from recover.model.guest import Mark
from recover.model.ladder import Ready
from recover.model.verdict import Scope, State
from recover.steps.undo import duty as duty_of
from recover.steps.undo import settles

LOOKS_S = 300.0  # beside a rung's own worst case: settling, ripening, looks, another try
CUT = Outcome(ok=False, detail="the tool ended before the step did", clear=False)
ENDS_GROUPS = frozenset({"dead-group", "hung-group"})
_SAYS_ONLY = (PlaceMarker, ClearMarker, AskServer)  # they change nothing that a look judges: none is stale by them
_SICK = frozenset({"dead", "hung"})


def fold(entries: Iterable[record.Entry], start: History | None = None) -> History:
    history = start if start is not None else History()
    for entry in entries:
        history = after(history, entry)
    return history


def after(history: History, entry: record.Entry) -> History:
    """The history with one more entry."""
    match entry:
        case record.Opened():
            return _opened(history, entry)
        case record.Saw():
            return _saw(history, entry)
        case record.Decided():
            return history
        case record.Consented():
            return replace(history, prompt_s=history.prompt_s + entry.waited_s)
        case record.Declined():
            return _declined(history, entry)
        case record.Interrupted():
            return replace(history, interrupted=entry)
        case record.Kept():
            return replace(history, evidence=entry.evidence)
        case record.Began():
            return _began(history, entry)
        case record.Acting():
            return _acting(history, entry)
        case record.Acted():
            return _acted(history, entry)
        case record.Ended():
            return _ended(history, entry.index, entry.outcome, entry.at)
        case record.Hooking() | record.Hooked():  # core.hooks reads them: what hooks did decides nothing within the run
            return history
        case record.Closed():
            left = tuple(d for d in history.duties if d.duty.key in entry.carried)
            return replace(history, closed=entry, duties=left)
        case _:
            assert_never(entry)


def _opened(history: History, entry: record.Opened) -> History:
    """A crash is an attempt that ended unclear. Nobody's consent, refusal or patience outlives its run; debts do.

    A run that was closed is over: a later one in its journal inherits what is owed, and begins its own climb.
    """
    if history.closed is not None:
        history = replace(
            history,
            attempts=(),
            ended=frozenset(),
            own_acts=(),
            started=(),
            back=(),
            evidence="",
            first=None,
            host_booted_at=None,
            reboot=None,
        )
    if any(resets(a.action) for a in history.acting):
        history = replace(history, duties=after_reset(history.duties, CUT, _boot(history)))
    running = history.running
    if running is not None:
        history = _ended(history, running.index, CUT, entry.at)
    return replace(
        history,
        opened=entry,
        stale=True,
        streak=0,
        anchors={},
        skipped=frozenset(),
        acting=(),
        declined=None,
        interrupted=None,
        unsure_since=None,
        prompt_s=0.0,
        disruptions=0,
        worst_case_s=0.0,
        closed=None,
        duties=tuple(replace(d, tries=0, tried_at=None, final=False) for d in history.duties),
        tried_since_open=False,
        asked=(),
        paid=0,
    )


def _saw(history: History, entry: record.Saw) -> History:
    state = entry.diagnosis.state
    settled = dict(entry.settled)
    mark = entry.mark
    unsure = None
    if state is State.UNCERTAIN and not entry.diagnosis.ripening:  # patience is for not knowing, not for slowness
        unsure = history.unsure_since if history.unsure_since is not None else entry.at
    return replace(
        history,
        first=history.first if history.first is not None else entry,
        host_booted_at=history.host_booted_at if history.host_booted_at is not None else entry.vitals.host_booted_at,
        last=entry,
        stale=False,
        streak=history.streak + 1 if state is State.HEALTHY else 0,
        anchors=advance(history.anchors, entry.diagnosis.symptoms, entry.at),
        duties=freed_by_boot(tuple(d for d in history.duties if d.duty.key not in settled), mark),
        voided=history.voided
        + tuple((k, w) for k, w in settled.items() if any(d.duty.key == k for d in history.duties)),
        back=history.back + _back(history, entry),
        unsure_since=unsure,
        derived_deadline_s=_derived(history, entry),
        worst_case_s=max(history.worst_case_s, _worst_case(entry)),
        own_acts=history.own_acts if mark is None else _closed_spans(history.own_acts, mark),
        reboot=history.reboot if mark is None or _same_boot(history.reboot, mark) else None,
    )


def _back(history: History, saw: record.Saw) -> tuple[tuple[str, float], ...]:
    """Services of a run that tried something: whoever started them, it is still to be seen that they are well."""
    ours = {d.duty.key for d in history.duties if d.duty.due is Due.AT_RECOVERY} if history.tried_since_open else set()
    return tuple((key, saw.at) for key, _ in saw.settled if key in ours)


def _derived(history: History, saw: record.Saw) -> float:
    """Time for the whole ladder from the look that first offered it: what had to be waited for before is not spent."""
    worst = _worst_case(saw)
    if worst <= history.worst_case_s or history.opened is None:
        return history.derived_deadline_s
    return max(history.derived_deadline_s, saw.at - history.opened.at - history.prompt_s + worst)


def _boot(history: History) -> str:
    return history.last.mark.boot_id if history.last is not None and history.last.mark is not None else ""


def _same_boot(reboot: Reboot | None, mark: Mark) -> bool:
    return reboot is not None and reboot.boot_id == mark.boot_id


def _worst_case(saw: record.Saw) -> float:
    """Seconds that the whole ladder can need from here, with time for a second try and for the looks between."""
    return sum(option.offer.line.worst_case_s + LOOKS_S for option in saw.options if isinstance(option.offer, Ready))


def _closed_spans(spans: tuple[OwnActs, ...], mark: Mark) -> tuple[OwnActs, ...]:
    return tuple(
        replace(s, until_uptime_s=mark.uptime_s) if s.until_uptime_s is None and s.boot_id == mark.boot_id else s
        for s in spans
    )


def _declined(history: History, entry: record.Declined) -> History:
    history = replace(history, prompt_s=history.prompt_s + entry.waited_s)
    if entry.skip:
        return replace(history, skipped=history.skipped | {entry.step})
    return replace(history, declined=entry)


def _began(history: History, entry: record.Began) -> History:
    attempt = Attempt(entry.index, entry.step, entry.attempt, entry.scope, entry.at, entry.findings)
    ended = history.ended | _groups_to_end(history.last, entry)
    return replace(
        history,
        attempts=(*history.attempts, attempt),
        disruptions=history.disruptions + (entry.scope >= Scope.GUEST),
        ended=ended,
        tried_since_open=True,
    )


def _groups_to_end(saw: record.Saw | None, entry: record.Began) -> frozenset[tuple[str, str]]:
    """The launches that this try ends: if one fails again under a new key, it is a crash loop and not our fault."""
    if saw is None:
        return frozenset()
    keys = {f.where for f in entry.findings if f.signal in ENDS_GROUPS}
    if entry.scope >= Scope.GUEST:
        keys |= {key for key, health, _ in saw.vitals.groups if health in _SICK}
    return frozenset((key, launch) for key, launch in saw.vitals.launches if key in keys)


def _acting(history: History, entry: record.Acting) -> History:
    owed = duty_of(entry.action)
    duties = history.duties
    if entry.restores:
        duties = tuple(
            replace(d, tries=d.tries + 1, tried_at=entry.at) if d.duty.key == entry.restores else d for d in duties
        )
    elif owed is not None and all(d.duty.key != owed.key for d in duties):
        duties = (*duties, OpenDuty(owed, entry.at, entry.n))
    return replace(
        history,
        acting=(*history.acting, entry),
        acts=entry.n + 1,
        duties=duties,
        stale=history.stale or not isinstance(entry.action, _SAYS_ONLY),
        streak=history.streak if isinstance(entry.action, _SAYS_ONLY) else 0,
        own_acts=_span_opened(history, entry),
        reboot=_reboot_asked(history, entry),
    )


def _reboot_asked(history: History, entry: record.Acting) -> Reboot | None:
    """From the moment that it is begun: a kill right after it must not make the silence that follows a mystery."""
    if not isinstance(entry.action, RebootGuest):
        return history.reboot
    return Reboot(entry.action.boot_id, entry.at, entry.action.deadline_s)


def _span_opened(history: History, entry: record.Acting) -> tuple[OwnActs, ...]:
    saw = history.last
    spans = history.own_acts
    if saw is not None and saw.mark is not None and all(s.until_uptime_s is not None for s in spans):
        since = saw.mark.uptime_s + max(0.0, entry.at - saw.at)
        spans = (*spans, OwnActs(saw.mark.boot_id, since))
    action = entry.action.do if isinstance(entry.action, OnHost) else entry.action
    if not isinstance(action, ResetGpu):
        return spans
    buses = frozenset(bus for _, bus in action.gpus)
    return tuple(replace(s, reset=s.reset | buses) if s.until_uptime_s is None else s for s in spans)


def _reboot_answered(reboot: Reboot | None, outcome: Outcome) -> Reboot | None:
    if reboot is None or (outcome.clear and not (outcome.ok and outcome.changed)):
        return None
    return replace(reboot, sure=outcome.ok)


def _acted(history: History, entry: record.Acted) -> History:
    done = next((a for a in history.acting if a.n == entry.n), None)
    if done is None:
        return history
    settled = settles(done.action) if entry.outcome.ok else None
    nothing_changed = entry.outcome.clear and not entry.outcome.changed
    paid = tuple(d for d in history.duties if d.duty.key == settled and d.duty.due is Due.AT_RECOVERY)
    tried = tuple(d for d in history.duties if d.duty.key == done.restores and d.duty.due is Due.AT_RECOVERY)
    restored = entry.outcome.ok and any(
        d.duty.key == done.restores and d.duty.due is Due.AT_ONCE and d.duty.key == settled for d in history.duties
    )
    duties = tuple(
        replace(d, last=entry.outcome.detail, final=entry.outcome.final)
        if d.duty.key == done.restores or (entry.outcome.final and d.duty.key == settles(done.action))
        else d
        for d in history.duties
        if (settled is None or d.duty.key != settled) and not (nothing_changed and d.n == entry.n)
    )
    return replace(
        history,
        acting=tuple(a for a in history.acting if a.n != entry.n),
        duties=after_reset(duties, entry.outcome, _boot(history)) if resets(done.action) else duties,
        started=history.started + tuple((d.duty.key, entry.at, entry.outcome) for d in (paid or tried)),
        stale=history.stale or (isinstance(done.action, AskServer) and not entry.outcome.ok),
        asked=history.asked + (((entry.at, entry.outcome),) if isinstance(done.action, AskServer) else ()),
        paid=history.paid + restored,
        reboot=_reboot_answered(history.reboot, entry.outcome)
        if isinstance(done.action, RebootGuest)
        else history.reboot,
    )


def _ended(history: History, index: int, outcome: Outcome, at: float) -> History:
    attempts = tuple(
        replace(a, outcome=outcome, ended_at=at) if a.index == index and a.outcome is None else a
        for a in history.attempts
    )
    return replace(history, attempts=attempts)
