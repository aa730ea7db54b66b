"""What to do next, from the journal alone: rules in the order that must hold, and the first that speaks decides."""

from __future__ import annotations

from collections.abc import Callable

from recover.core.advice import lifted, next_command
from recover.core.duties import OpenDuty
from recover.core.fold import ENDS_GROUPS
from recover.core.history import History
from recover.core.options import DRAIN
from recover.core.sentences import some
from recover.model.act import Due, Pass, Refuse, StartVm
from recover.model.ladder import Playbook, Ready, RungOption
from recover.model.record import Decision, End, EndKind, Restore, Saw, Stop, Try, Wait
from recover.model.verdict import Finding, Scope, State

DUTY_TRIES = 3
DUTY_PAUSE_S = 10.0
HELD = "held"  # the guard that says that another run works on the target

Rule = Callable[[Playbook, History, Saw, float], Decision | None]


def decide(playbook: Playbook, history: History, now: float) -> Decision:
    """The next decision. A look older than the last act is never decided on."""
    if history.last is None or history.stale:
        return Wait(0.0, "looking")
    for rule in RULES:
        decision = rule(playbook, history, history.last, now)
        if decision is not None:
            return decision
    raise AssertionError("the last rule always decides")


def _stop(history: History, kind: EndKind, why: str, passed: tuple[str, ...] = (), command: str = "") -> Stop:
    return Stop(End(kind, why, command or next_command(history, kind), passed))


def own_task_runs(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """0. Nothing is done beside our own task: PVE serialises by a lock that a second task would only trip over."""
    if not saw.busy:
        return None
    if now > history.deadline_at:
        return _stop(history, EndKind.NEEDS_HUMAN, f"our task {saw.busy} still runs past the deadline")
    return Wait(playbook.limits.confirm_every_s, f"our task still runs: {saw.busy}")


def pay_at_once(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """1. What we changed is put back before anything else: no deadline, limit, gate or signal outranks it."""
    for owed in history.due(Due.AT_ONCE):
        if owed.held is not None:  # a fabric manager is not started onto GPUs whose reset failed
            continue
        is_start = isinstance(owed.duty.do, StartVm)
        if owed.tries >= DUTY_TRIES or owed.final:
            if is_start:
                tries = ", and another try would end the same way" if owed.final else f" in {owed.tries} tries"
                why = f"the VM that we stopped could not be started{tries}: {owed.last}"
                return _stop(history, EndKind.NEEDS_HUMAN, why)
            continue
        if owed.duty.key in saw.payable:
            return _pay(owed, now)
        if is_start:
            if now > history.deadline_at:
                why = "the VM that we stopped cannot be started now: the Proxmox API is out of reach"
                return _stop(history, EndKind.NEEDS_HUMAN, why)
            return Wait(playbook.limits.confirm_every_s, "waiting to start the VM that we stopped")
    return None


def _pay(owed: OpenDuty, now: float) -> Decision:
    if owed.tried_at is not None and now - owed.tried_at < DUTY_PAUSE_S:
        return Wait(DUTY_PAUSE_S - (now - owed.tried_at), f"before the next try to restore {owed.duty.key}")
    return Restore(owed.duty, owed.tries + 1)


def interrupted(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """2. A person or a signal asked us to stop."""
    if history.interrupted is None:
        return None
    return _stop(history, EndKind.INTERRUPTED, f"interrupted by {history.interrupted.by}")


def healthy(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """3. Recovered is healthy `confirm` times in a row, after at least one try."""
    if saw.diagnosis.state is not State.HEALTHY or _drains(playbook, history, saw):
        return None
    need = playbook.limits.confirm
    if history.streak < need:
        return Wait(playbook.limits.confirm_every_s, f"healthy {history.streak} of {need} looks in a row")
    if history.attempts:
        tried = history.attempts[-1].step
        return _stop(history, EndKind.RECOVERED, f"healthy {need} times in a row after {tried}")
    if history.paid:
        return _stop(history, EndKind.RECOVERED, f"healthy {need} times in a row after what was owed was put back")
    return _stop(history, EndKind.HEALTHY, f"healthy {need} times in a row; nothing was done")


def declined(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """4. Who was asked said no."""
    if history.declined is None:
        return None
    said = history.declined
    if said.held:
        return _stop(history, EndKind.HELD, said.why)
    why = f"{said.by} did not consent to {said.step or 'the next step'}" + (f": {said.why}" if said.why else "")
    return _stop(history, EndKind.BLOCKED, why, command=said.lift)


def out_of_time(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """5. The deadline is total."""
    if now <= history.deadline_at:
        return None
    return _stop(history, EndKind.OUT_OF_TIME, "the deadline has passed: " + _says(saw))


def settling(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """6. A rung's effect takes a moment to show."""
    if not history.attempts or not history.tried_since_open:
        return None
    last = history.attempts[-1]
    if last.ended_at is None or last.index >= len(playbook.rungs):
        return None
    left = last.ended_at + playbook.rungs[last.index].settle_s - now
    if left <= 0:
        return None
    return Wait(min(left, playbook.limits.confirm_every_s), f"letting {last.step} settle")


def ripening(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """7. Slow is not stuck: nothing is tried while a symptom may still go away by itself."""
    if not saw.diagnosis.ripening:
        return None
    slow = saw.diagnosis.ripening[0]
    return Wait(playbook.limits.confirm_every_s, f"waiting for progress: {slow.finding.says}")


def hopeless(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """8. What no step can cure is a person's; dead or hung groups are ended first all the same."""
    diagnosis = saw.diagnosis
    whole = next((f for f in diagnosis.incurable if f.where is None), None)
    if not diagnosis.findings or (diagnosis.curable and whole is None):
        return None
    chosen = _lowest_process_rung(playbook, history, saw, now)
    if chosen is not None:
        return chosen
    worst = whole or diagnosis.incurable[0]
    return _stop(history, EndKind.NEEDS_HUMAN, worst.says)


def _lowest_process_rung(playbook: Playbook, history: History, saw: Saw, now: float) -> Try | None:
    sick = tuple(f for f in saw.diagnosis.findings if f.signal in ENDS_GROUPS)
    if not sick:
        return None
    for option in saw.options:
        ready = option.offer
        if option.scope is not Scope.PROCESS or not isinstance(ready, Ready):
            continue
        fits = now + ready.line.worst_case_s <= history.deadline_at
        helps = bool(set(ready.reaches) & {f.signal for f in sick})
        if fits and helps and _open(playbook, history, option) is None:
            return _try(history, option, ready, sick)
    return None


def unsure(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """9. Unknown is never a reason to act: wait for patience, then say so; also when the guest is mute."""
    if saw.diagnosis.curable or (saw.diagnosis.state is State.HEALTHY and _drains(playbook, history, saw)):
        return None
    since = history.unsure_since if history.unsure_since is not None else saw.at
    left = since + playbook.limits.patience_s - now
    if left > 0:
        return Wait(min(left, playbook.limits.confirm_every_s), "cannot tell yet: " + _says(saw))
    return _stop(history, EndKind.CANNOT_TELL, _says(saw))


def climb(playbook: Playbook, history: History, saw: Saw, now: float) -> Decision | None:
    """10. From the highest rung tried so far, up; the first rung that can help is tried, or stops us, or is passed."""
    passed: list[str] = [f"{a.step}: tried, {_after_try(a.outcome)}" for a in history.attempts]
    lowest = _lowest_index(playbook, history)
    for option in saw.options:
        reason = _over(playbook, history, saw, option, lowest)
        if reason is not None:
            if reason:
                passed.append(f"{option.step}: {reason}")
            continue
        match option.offer:
            case Pass(why):
                passed.append(f"{option.step}: {why}")
            case Refuse(guard, why, lift):
                kind = EndKind.HELD if guard == HELD else EndKind.BLOCKED
                command = lifted(history, option.scope, lift)
                return _stop(history, kind, f"{option.step} is refused ({guard}): {why}", tuple(passed), command)
            case Ready() as ready:
                return _limits(playbook, history, saw, option, ready, tuple(passed), now)
    return _stop(history, EndKind.EXHAUSTED, "no rung is left that can help: " + _says(saw), tuple(passed))


def _lowest_index(playbook: Playbook, history: History) -> int:
    start = history.opened.start_at if history.opened is not None else ""
    at = next((i for i, rung in enumerate(playbook.rungs) if rung.step == start), 0) if start else 0
    return max(at, history.height)


def _over(playbook: Playbook, history: History, saw: Saw, option: RungOption, lowest: int) -> str | None:
    """Why this rung is stepped over; "" without a word (below where we are), None if it is to be considered."""
    only = history.opened.only if history.opened is not None else ""
    if option.index < lowest:
        return "" if history.used(option.index) else "lower than the climb has come"
    if only and option.step != only:
        return f"only {only} was asked for"
    closed = _open(playbook, history, option)
    if closed is not None:
        return "" if history.used(option.index) else closed
    if isinstance(option.offer, Pass):
        return None
    if not _drains_by(option) and not any(_reaches(option, f) for f in saw.diagnosis.curable):
        return "cannot cure what was found"
    return None


def _drains(playbook: Playbook, history: History, saw: Saw) -> bool:
    """Whether a rung that is to empty the machine is still to be tried: a serving machine is not drained."""
    return any(_drains_by(o) and _open(playbook, history, o) is None for o in saw.options)


def _drains_by(option: RungOption) -> bool:
    return isinstance(option.offer, Ready) and DRAIN in option.offer.reaches


def _open(playbook: Playbook, history: History, option: RungOption) -> str | None:
    """Why no attempt is left on this rung, or None."""
    if option.step in history.skipped:
        return "skipped at the prompt"
    if option.index >= len(playbook.rungs) or history.used(option.index) >= playbook.rungs[option.index].attempts:
        return "attempts used up"
    return None


def _reaches(option: RungOption, finding: Finding) -> bool:
    if finding.cure is None or finding.cure > option.reach:
        return False
    return finding.at_least is None or finding.at_least <= option.reach


def _limits(
    playbook: Playbook, history: History, saw: Saw, option: RungOption, ready: Ready, passed: tuple[str, ...], at: float
) -> Decision:
    limits = playbook.limits
    if option.scope > limits.max_scope:
        why = f"{option.step} (scope {option.scope.word}) is next, and the limit is {limits.max_scope.word}"
        lift = f"gpu-recover {history.target} --max-scope {option.scope.word} --approve {option.scope.word}"
        return _stop(history, EndKind.BLOCKED, why, passed, lift)
    today = history.disruptions + (history.opened.disruptions_today if history.opened is not None else 0)
    if option.scope >= Scope.GUEST and today >= limits.disruptions_per_day:
        why = f"{option.step} is next, and {today} of {limits.disruptions_per_day} disruptions a day are spent"
        limit = "the playbook's limits.disruptions_per_day is the limit"
        lift = f"gpu-recover history {history.target}    # what they were; {limit}"
        return _stop(history, EndKind.BLOCKED, why, passed, lift)
    if at + ready.line.worst_case_s > history.deadline_at:
        why = f"{option.step} may take {ready.line.worst_case_s / 60:.0f} min and does not fit before the deadline"
        return _stop(history, EndKind.OUT_OF_TIME, why, passed)
    return _try(history, option, ready, tuple(f for f in saw.diagnosis.curable if _reaches(option, f)))


def _try(history: History, option: RungOption, ready: Ready, findings: tuple[Finding, ...]) -> Try:
    why = some(f.says for f in findings) or "nothing is wrong; this playbook brings a target to idle"
    return Try(option.index, option.step, ready.line, history.used(option.index) + 1, option.scope, why)


def _after_try(outcome: object) -> str:
    detail = getattr(outcome, "detail", "")
    return f"and it did not help ({detail})" if detail else "and it did not help"


def _says(saw: Saw) -> str:
    """What is wrong, or what could not be seen, in one line."""
    findings = saw.diagnosis.findings
    if findings:
        return some(f.says for f in findings)
    return some(saw.diagnosis.gaps) or "nothing that is known is wrong, and not all is known"


RULES: tuple[Rule, ...] = (
    own_task_runs,
    pay_at_once,
    interrupted,
    healthy,
    declined,
    out_of_time,
    settling,
    ripening,
    hopeless,
    unsure,
    climb,
)
