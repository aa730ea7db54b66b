"""What is still owed after the last step: services that we stopped, the wait for them, our marker; then the end."""

from __future__ import annotations

from dataclasses import dataclass

from recover.core.decide import DUTY_PAUSE_S, DUTY_TRIES
from recover.core.duties import OpenDuty
from recover.core.history import History
from recover.core.serving import failed_units, of_services
from recover.model.act import AskServer, Due
from recover.model.ladder import Playbook
from recover.model.record import End, EndKind, Restore, Serving, Wait

HEALTHY = "healthy"
REFUSED = "refused: "  # a start that was not tried, and would be refused again


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing more to do. `service`: None if nothing was to start, "healthy", else what is wrong with it."""

    service: str | None
    carried: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prove:
    """One real request to what was started again: its health question alone proves nothing."""

    action: AskServer


AfterDecision = Restore | Wait | Prove | Finish
_ASKS = 2


def aftercare(playbook: Playbook, history: History, end: End, now: float) -> AfterDecision:
    """The next piece of aftercare. The recovery's verdict does not change any more."""
    if history.last is None or history.stale:
        return Wait(0.0, "looking")
    if end.kind in (EndKind.RECOVERED, EndKind.HEALTHY):
        for owed in (d for d in history.due(Due.AT_ONCE) if d.held is not None):
            decision = _pay(history, owed, now)
            if decision is not None:
                return decision
    wanted = _wanted(playbook, history, end)
    if wanted:
        for owed in history.due(Due.AT_RECOVERY):
            decision = _pay(history, owed, now)
            if decision is not None:
                return decision
    service = _service(playbook, history, now) if wanted else None
    if isinstance(service, Wait | Prove):
        return service
    for owed in history.due(Due.AT_END):
        if owed.duty.key in history.last.payable and owed.tries < DUTY_TRIES:
            return Restore(owed.duty, owed.tries + 1)
    left = history.duties if _starts(playbook, history) else tuple(_not_services(history))
    return Finish(service, tuple(d.duty.key for d in left))


def _wanted(playbook: Playbook, history: History, end: End) -> bool:
    """Services are started again only once the node is proved well, and only if playbook and person want it."""
    return end.kind in (EndKind.RECOVERED, EndKind.HEALTHY) and _starts(playbook, history)


def _starts(playbook: Playbook, history: History) -> bool:
    """Who says that services stay down takes them over: they are not owed any more."""
    asked = history.opened is None or history.opened.restart_services
    return playbook.after.start == "what-we-stopped" and asked


def _not_services(history: History) -> list[OpenDuty]:
    return [d for d in history.duties if d.duty.due is not Due.AT_RECOVERY]


def _pay(history: History, owed: OpenDuty, now: float) -> Restore | Wait | None:
    if owed.tries >= DUTY_TRIES or owed.last.startswith(REFUSED) or history.interrupted is not None:
        return None
    if history.last is None or owed.duty.key not in history.last.payable:
        return None
    if owed.tried_at is not None and now - owed.tried_at < DUTY_PAUSE_S:
        return Wait(DUTY_PAUSE_S - (now - owed.tried_at), f"before the next try to start {owed.duty.key}")
    return Restore(owed.duty, owed.tries + 1)


def _service(playbook: Playbook, history: History, now: float) -> str | Wait | Prove | None:
    """None: nothing was to start. A port that is open or a 200 alone proves nothing: its group must be healthy.

    Of each service that was started, that is: another server's health, which may never have been in doubt, is not its.
    """
    failed = history.due(Due.AT_RECOVERY)
    if failed:
        return f"{failed[0].duty.key} could not be started: {failed[0].last or 'not reachable'}"
    started = [(key, at) for key, at, outcome in history.started if outcome.ok] + _back(history)
    if not started or history.last is None:
        return None
    since = max(at for _, at in started)
    groups = of_services(history.last.vitals, dict.fromkeys(key for key, _ in started))
    waiting = [key for key, found in groups.items() if not any(health == HEALTHY for _, health, _ in found)]
    if not waiting:
        well = [one for found in groups.values() for one, health, _ in found if health == HEALTHY]
        return _proved(history, well, now)
    everyone = [one for found in groups.values() for one in found]
    sick = next((f"{title} is {health}" for _, health, title in everyone if health in ("dead", "hung")), "")
    down = next((f"{name} is failed" for name in failed_units(history.last.vitals, groups)), "")
    if down or sick:
        return down or sick
    if history.interrupted is not None:
        return "not awaited: interrupted"
    if now - since > playbook.after.healthy_within_s:
        return f"{waiting[0]}: not proved healthy within {playbook.after.healthy_within_s:.0f} s"
    return Wait(playbook.limits.confirm_every_s, "waiting for the server to be healthy")


def _back(history: History) -> list[tuple[str, float]]:
    """What a boot started again loads while the climb goes on: it has its time from the end of the last try."""
    tried = max((a.ended_at or 0.0 for a in history.attempts), default=0.0)
    return [(key, max(at, tried)) for key, at in history.back]


def _proved(history: History, well: list[Serving], now: float) -> str | Wait | Prove:
    asked = history.asked
    if asked and not asked[-1][1].ok:
        if len(asked) >= _ASKS or history.interrupted is not None:
            return f"it says that it is well, and serves no request: {asked[-1][1].detail}"
        if now - asked[-1][0] < DUTY_PAUSE_S:
            return Wait(DUTY_PAUSE_S - (now - asked[-1][0]), "before the next real request to the server")
    urls = {one.url: one.listeners for one in well if one.url}
    if (asked and asked[-1][1].ok) or not urls or history.interrupted is not None:
        return HEALTHY
    return Prove(AskServer(tuple(urls), who=tuple(urls.values())))
