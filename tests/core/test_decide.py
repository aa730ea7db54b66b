"""The order of the rules is the contract: each test has two rules that both could speak, and the earlier one wins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from recover.core.aftercare import Finish, Prove, aftercare
from recover.core.decide import decide
from recover.core.fold import fold
from recover.core.history import History
from recover.model.act import (
    Act,
    AskServer,
    Blast,
    Line,
    Outcome,
    Pass,
    Refuse,
    SetPersistence,
    StartService,
    StartVm,
    StopService,
    StopVm,
    SyncDisks,
    VmRef,
)
from recover.model.ladder import After, Limits, Playbook, Ready, Rung, RungOption
from recover.model.process import ProcessId
from recover.model.record import (
    Acted,
    Acting,
    Began,
    Closed,
    Declined,
    End,
    Ended,
    EndKind,
    Entry,
    Interrupted,
    Opened,
    Restore,
    Saw,
    Serving,
    Stop,
    Try,
    Vitals,
    Wait,
)
from recover.model.verdict import Diagnosis, Finding, Scope, State, Symptom

VM = VmRef("pve", 174, "")
PLAYBOOK = Playbook(
    "p",
    "",
    Limits(patience_s=60, confirm=2, disruptions_per_day=1),
    (Rung("end-workers", attempts=2, settle_s=10), Rung("reset-gpu", settle_s=0), Rung("power-cycle-vm", settle_s=0)),
)
DEAD = Finding("dead-group", "a rank is defunct", Scope.PROCESS, "g1")
VRAM = Finding("gpu-memory-held", "80 GiB held", Scope.GPU, "GPU-0")
VRAM_VM = replace(VRAM, cure=Scope.VM)
HOPELESS = Finding("row-remap-failed", "the row remap failed", None, None)
LINE = Line((Act(SyncDisks()),), 60.0)
SCOPES = (Scope.PROCESS, Scope.GPU, Scope.VM)


def opened(**kw: object) -> Opened:
    base = Opened(0.0, "r", "node-174", "p", "", "kim", "here", 1, 3600.0)
    return replace(base, **kw)  # type: ignore[arg-type]


def ready(*signals: str) -> Ready:
    return Ready(LINE, Blast(Scope.PROCESS, (), 1.0), signals or ("dead-group",))


def options(*offers: Ready | Pass | Refuse) -> tuple[RungOption, ...]:
    return tuple(
        RungOption(i, rung.step, scope, scope, offer)
        for i, (rung, scope, offer) in enumerate(zip(PLAYBOOK.rungs, SCOPES, offers, strict=True))
    )


ALL_READY = options(ready(), ready(), ready())


def saw(at: float, *findings: Finding, state: State | None = None, **kw: object) -> Saw:
    known = state or (State.FAULTY if findings else State.HEALTHY)
    ripening = kw.pop("ripening", ())
    gaps = kw.pop("gaps", ())
    diagnosis = Diagnosis(known, tuple(findings), tuple(ripening), tuple(ripening), tuple(gaps))  # type: ignore[arg-type]
    return replace(Saw(at, None, Vitals(), diagnosis, ALL_READY), **kw)  # type: ignore[arg-type]


def after(*entries: Entry, now: float = 100.0, playbook: Playbook = PLAYBOOK) -> object:
    return decide(playbook, fold([opened(), *entries]), now)


def end_of(decision: object) -> EndKind:
    assert isinstance(decision, Stop), decision
    return decision.end.kind


STOPPED = (Acting(50.0, 0, StopVm(VM)), Acted(60.0, 0, Outcome(True)))


def test_nothing_is_decided_on_a_look_older_than_the_last_act() -> None:
    assert after() == Wait(0.0, "looking")
    assert after(saw(40.0, DEAD), *STOPPED) == Wait(0.0, "looking")


def test_0_our_own_task_outranks_the_debt() -> None:
    decision = after(*STOPPED, saw(90.0, busy="UPID:x", payable=frozenset({"vm:pve/174"})))
    assert isinstance(decision, Wait)
    late = after(*STOPPED, saw(90.0, busy="UPID:x"), now=9999.0)
    assert end_of(late) is EndKind.NEEDS_HUMAN
    assert isinstance(late, Stop)
    assert late.end.next.startswith("qm start 174")


def test_1_a_debt_outranks_interrupt_decline_deadline_and_health() -> None:
    entries = (
        *STOPPED,
        Interrupted(70.0, "SIGINT"),
        Declined(71.0, "kim", "no"),
        saw(90.0, payable=frozenset({"vm:pve/174"})),
    )
    decision = after(*entries, now=99999.0)
    assert isinstance(decision, Restore)
    assert isinstance(decision.duty.do, StartVm)


def test_1_newest_debt_first() -> None:
    persistence = (Acting(20.0, 0, SetPersistence("GPU-0", "b", on=False)), Acted(21.0, 0, Outcome(True)))
    stop = (Acting(50.0, 1, StopVm(VM)), Acted(60.0, 1, Outcome(True)))
    decision = after(*persistence, *stop, saw(90.0, payable=frozenset({"vm:pve/174", "persistence:GPU-0"})))
    assert isinstance(decision, Restore)
    assert decision.duty.key == "vm:pve/174"


def test_1_a_start_is_tried_three_times_then_a_person_is_told() -> None:
    entries: list[Entry] = [*STOPPED]
    for n in range(3):
        at = 100.0 * (n + 1)
        entries += [saw(at, payable=frozenset({"vm:pve/174"})), Acting(at + 1, n + 1, StartVm(VM, 300), "vm:pve/174"),
                    Acted(at + 2, n + 1, Outcome(False, "start failed: got timeout", changed=False))]  # fmt: skip
    entries.append(saw(900.0, payable=frozenset({"vm:pve/174"})))
    decision = after(*entries, now=1000.0)
    assert end_of(decision) is EndKind.NEEDS_HUMAN
    assert isinstance(decision, Stop)
    assert "got timeout" in decision.end.why


def test_1_a_start_that_cannot_be_paid_now_is_waited_for_until_the_deadline() -> None:
    assert isinstance(after(*STOPPED, saw(90.0)), Wait)
    assert end_of(after(*STOPPED, saw(90.0), now=9999.0)) is EndKind.NEEDS_HUMAN


def test_1_a_debt_in_a_mute_guest_is_carried() -> None:
    off = (Acting(20.0, 0, SetPersistence("GPU-0", "b", on=False)), Acted(21.0, 0, Outcome(True)))
    decision = after(*off, saw(90.0, state=State.UNCERTAIN))
    assert isinstance(decision, Wait)
    assert "cannot tell" in decision.why


def test_an_act_that_changed_nothing_opens_no_debt() -> None:
    entries = (Acting(50.0, 0, StopVm(VM)), Acted(60.0, 0, Outcome(True, "already stopped", changed=False)))
    assert fold([opened(), *entries]).duties == ()
    unclear = (Acting(50.0, 0, StopVm(VM)), Acted(60.0, 0, Outcome(False, "596", changed=False, clear=False)))
    assert len(fold([opened(), *unclear]).duties) == 1


def test_2_interrupted_outranks_healthy() -> None:
    assert end_of(after(saw(10.0), saw(20.0), Interrupted(30.0, "SIGINT"))) is EndKind.INTERRUPTED


def test_3_healthy_counts_to_confirm_even_past_the_deadline() -> None:
    assert isinstance(after(saw(10.0)), Wait)
    assert end_of(after(saw(10.0), saw(20.0), now=99999.0)) is EndKind.HEALTHY


def test_3_a_sick_look_starts_the_count_again() -> None:
    assert isinstance(after(saw(10.0), saw(15.0, DEAD), saw(20.0)), Wait)


def test_3_recovered_needs_a_try() -> None:
    tried = (
        saw(5.0, DEAD),
        Began(6.0, 0, "end-workers", 1, Scope.PROCESS),
        Ended(9.0, 0, "end-workers", 1, Outcome(True)),
    )
    assert end_of(after(*tried, saw(10.0), saw(20.0))) is EndKind.RECOVERED


def test_4_declined_outranks_the_deadline() -> None:
    decision = after(Declined(5.0, "kim", "not now", "reset-gpu", lift="--approve gpu"), saw(10.0, VRAM), now=99999.0)
    assert end_of(decision) is EndKind.BLOCKED
    assert isinstance(decision, Stop)
    assert decision.end.next == "--approve gpu"


def test_4_skip_goes_higher() -> None:
    decision = after(Declined(5.0, "kim", "", "end-workers", skip=True), saw(10.0, DEAD))
    assert isinstance(decision, Try)
    assert decision.step == "reset-gpu"


def test_5_deadline_outranks_waiting() -> None:
    assert end_of(after(saw(10.0, DEAD), now=3601.0)) is EndKind.OUT_OF_TIME


def test_5_time_at_the_prompt_does_not_count() -> None:
    decision = after(Declined(5.0, "kim", "", "end-workers", skip=True, waited_s=1000.0), saw(10.0, DEAD), now=3700.0)
    assert isinstance(decision, Try)


def test_6_settle_before_the_next_rung() -> None:
    tried = (
        saw(5.0, DEAD),
        Began(6.0, 0, "end-workers", 1, Scope.PROCESS),
        Ended(95.0, 0, "end-workers", 1, Outcome(True)),
    )
    decision = after(*tried, saw(96.0, VRAM), now=100.0)
    assert isinstance(decision, Wait)
    assert "settle" in decision.why


def test_7_nothing_is_tried_while_a_symptom_ripens() -> None:
    slow = Symptom("vram:GPU-0", 80000, 64, 60.0, VRAM)
    assert isinstance(after(saw(90.0, DEAD, ripening=(slow,))), Wait)


def test_8_hopeless_ends_dead_groups_first_then_asks_a_person() -> None:
    decision = after(saw(90.0, HOPELESS, DEAD))
    assert isinstance(decision, Try)
    assert decision.step == "end-workers"
    tried = []
    for n in (1, 2):
        tried += [Began(6.0, 0, "end-workers", n, Scope.PROCESS), Ended(9.0, 0, "end-workers", n, Outcome(True))]
    assert end_of(after(*tried, saw(90.0, HOPELESS, DEAD))) is EndKind.NEEDS_HUMAN
    assert end_of(after(saw(90.0, HOPELESS))) is EndKind.NEEDS_HUMAN


def test_9_unsure_waits_for_patience_and_then_cannot_tell() -> None:
    first = saw(50.0, state=State.UNCERTAIN, gaps=("GPUs: denied",))
    assert isinstance(after(first, now=100.0), Wait)
    decision = after(first, now=111.0)
    assert end_of(decision) is EndKind.CANNOT_TELL
    assert isinstance(decision, Stop)
    assert "GPUs: denied" in decision.end.why


def test_9_patience_begins_with_the_first_unsure_look_in_a_row() -> None:
    looks = (saw(10.0, state=State.UNCERTAIN), saw(20.0), saw(80.0, state=State.UNCERTAIN))
    assert isinstance(after(*looks, now=100.0), Wait)


def test_10_the_lowest_rung_that_reaches_a_finding_is_tried() -> None:
    assert getattr(after(saw(90.0, DEAD)), "step", "") == "end-workers"
    assert getattr(after(saw(90.0, VRAM)), "step", "") == "reset-gpu"
    assert getattr(after(saw(90.0, VRAM_VM)), "step", "") == "power-cycle-vm"
    assert getattr(after(saw(90.0, VRAM_VM, DEAD)), "step", "") == "end-workers"


def test_10_a_rung_too_low_for_a_finding_is_not_tried() -> None:
    at_least = replace(VRAM, cure=Scope.GPU, at_least=Scope.VM)
    assert getattr(after(saw(90.0, at_least)), "step", "") == "power-cycle-vm"


def test_10_height_never_falls() -> None:
    tried = (Began(6.0, 1, "reset-gpu", 1, Scope.GPU), Ended(9.0, 1, "reset-gpu", 1, Outcome(True)))
    assert getattr(after(*tried, saw(90.0, DEAD)), "step", "") == "power-cycle-vm"


def test_10_pass_goes_higher_and_refuse_stops() -> None:
    passing = options(Pass("no group"), ready(), ready())
    assert getattr(after(saw(90.0, DEAD, options=passing)), "step", "") == "reset-gpu"
    refusing = options(Pass("no group"), Refuse("lock", "backup", "wait for the backup"), ready())
    decision = after(saw(90.0, DEAD, options=refusing))
    assert end_of(decision) is EndKind.BLOCKED
    assert isinstance(decision, Stop)
    assert decision.end.next == "wait for the backup"
    assert decision.end.passed_over == ("end-workers: no group",)
    held = options(Refuse("held", "run r2", ""), ready(), ready())
    assert end_of(after(saw(90.0, DEAD, options=held))) is EndKind.HELD


def test_10_a_refusal_of_a_rung_that_could_not_help_stops_nothing() -> None:
    refusing = options(Refuse("owned-elsewhere", "x", "y"), ready(), ready())
    assert getattr(after(saw(90.0, VRAM, options=refusing)), "step", "") == "reset-gpu"


def test_10_over_max_scope_and_over_the_days_disruptions_are_blocked() -> None:
    low = replace(PLAYBOOK, limits=replace(PLAYBOOK.limits, max_scope=Scope.GPU))
    assert end_of(after(saw(90.0, VRAM_VM), playbook=low)) is EndKind.BLOCKED
    spent = decide(PLAYBOOK, fold([opened(disruptions_today=1), saw(90.0, VRAM_VM)]), 100.0)
    assert end_of(spent) is EndKind.BLOCKED


def test_10_a_rung_begins_only_if_its_worst_case_fits() -> None:
    assert end_of(after(saw(90.0, DEAD), now=3580.0)) is EndKind.OUT_OF_TIME


def test_10_exhausted_lists_why_each_rung_was_passed_over() -> None:
    none = options(Pass("no group"), Pass("not supported"), Pass("no API"))
    decision = after(saw(90.0, DEAD, options=none))
    assert end_of(decision) is EndKind.EXHAUSTED
    assert isinstance(decision, Stop)
    assert decision.end.passed_over == ("end-workers: no group", "reset-gpu: not supported", "power-cycle-vm: no API")


@pytest.mark.parametrize(
    ("given", "step"), [({"start_at": "reset-gpu"}, "reset-gpu"), ({"only": "power-cycle-vm"}, "power-cycle-vm")]
)
def test_start_at_and_only(given: dict[str, str], step: str) -> None:
    decision = decide(PLAYBOOK, fold([opened(**given), saw(90.0, DEAD)]), 100.0)
    assert getattr(decision, "step", "") == step


def test_a_cut_attempt_counts_and_consent_does_not_outlive_its_run() -> None:
    history = fold([opened(), saw(5.0, DEAD), Began(6.0, 0, "end-workers", 1, Scope.PROCESS),
                    Declined(7.0, "kim", "no"), opened(at=500.0, resumed=True)])  # fmt: skip
    assert history.used(0) == 1
    assert history.running is None
    assert history.declined is None
    assert history.stale


# aftercare

STOP_SERVICE = (Acting(50.0, 0, StopService("systemd", "sglang.service")), Acted(60.0, 0, Outcome(True)))
RECOVERED = End(EndKind.RECOVERED, "")
SERVICE = "service:systemd/sglang.service"
PAYABLE = frozenset({SERVICE})


def care(
    *entries: Entry, end: End = RECOVERED, now: float = 100.0, playbook: Playbook = PLAYBOOK, **kw: object
) -> object:
    return aftercare(playbook, fold([opened(**kw), *entries]), end, now)


def test_services_that_we_stopped_start_only_after_a_proved_recovery() -> None:
    assert isinstance(care(*STOP_SERVICE, saw(90.0, payable=PAYABLE)), Restore)
    failed = care(*STOP_SERVICE, saw(90.0, payable=PAYABLE), end=End(EndKind.EXHAUSTED, ""))
    assert failed == Finish(None, (SERVICE,))


def test_no_restart_and_a_playbook_that_starts_nothing() -> None:
    assert care(*STOP_SERVICE, saw(90.0, payable=PAYABLE), restart_services=False) == Finish(None, ())
    nothing = replace(PLAYBOOK, after=After(start="nothing"))
    assert care(*STOP_SERVICE, saw(90.0, payable=PAYABLE), playbook=nothing) == Finish(None, ())


def test_a_later_run_that_finds_the_node_well_starts_what_was_stopped() -> None:
    assert isinstance(care(*STOP_SERVICE, saw(90.0, payable=PAYABLE), end=End(EndKind.HEALTHY, "")), Restore)


def test_only_what_was_carried_is_owed_after_a_run_closed() -> None:
    closing = Closed(99.0, RECOVERED, None, ())
    assert fold([opened(), *STOP_SERVICE, closing]).duties == ()
    assert len(fold([opened(), *STOP_SERVICE, replace(closing, carried=(SERVICE,))]).duties) == 1


START = (Acting(91.0, 1, StartService("systemd", "sglang.service"), SERVICE), Acted(92.0, 1, Outcome(True)))


def vitals(health: str, url: str = "") -> Vitals:
    return Vitals(groups=(("g", health, "sglang"),), serving=(Serving("g", SERVICE, url, WHO if url else ()),))


def test_the_server_must_be_seen_healthy() -> None:
    begun = (*STOP_SERVICE, saw(90.0, payable=PAYABLE), *START)
    assert isinstance(care(*begun, saw(95.0, vitals=vitals("starting"))), Wait)
    assert care(*begun, saw(95.0, vitals=vitals("healthy"))) == Finish("healthy", ())
    assert care(*begun, saw(95.0, vitals=vitals("dead"))) == Finish("sglang is dead", ())
    late = care(*begun, saw(95.0, vitals=vitals("live")), now=2000.0)
    assert isinstance(late, Finish)
    assert "not proved healthy" in str(late.service)


def test_another_servers_health_is_not_that_of_what_was_started() -> None:
    """Seen to fail: when any healthy group was enough, a healthy bystander made a server well that never came."""
    begun = (*STOP_SERVICE, saw(90.0, payable=PAYABLE), *START)
    other = Vitals(
        groups=(("b", "healthy", "vllm"),), serving=(Serving("b", "service:docker/other", "http://127.0.0.1:1/"),)
    )
    assert isinstance(care(*begun, saw(95.0, vitals=other)), Wait)
    late = care(*begun, saw(95.0, vitals=other), now=2000.0)
    assert isinstance(late, Finish) and f"{SERVICE}: not proved healthy" in str(late.service)
    both = replace(
        other, groups=(*other.groups, *vitals("starting").groups), serving=(*other.serving, *vitals("").serving)
    )
    assert isinstance(care(*begun, saw(95.0, vitals=both)), Wait)
    dead = replace(both, groups=(("b", "dead", "vllm"), ("g", "starting", "sglang")))
    assert isinstance(care(*begun, saw(95.0, vitals=dead)), Wait), "nor is its end theirs"
    well = vitals("healthy", URL)
    both = replace(other, groups=(*other.groups, *well.groups), serving=(*other.serving, *well.serving))
    assert care(*begun, saw(95.0, vitals=both)) == Prove(AskServer((URL,), who=(WHO,))), "only ours is asked"


TRIED = (
    Began(40.0, 0, "power-cycle-vm", 1, Scope.VM),
    *STOP_SERVICE,
    Ended(61.0, 0, "power-cycle-vm", 1, Outcome(True)),
)
BACK = {"settled": ((SERVICE, "sglang.service is active again"),)}


def test_what_a_boot_started_again_is_awaited_as_well() -> None:
    """Seen to fail: with its duty void it was nobody's, and a server that never came was not missed."""
    begun = (*TRIED, saw(90.0, vitals=vitals("starting"), **BACK))
    assert isinstance(care(*begun, saw(95.0, vitals=vitals("starting"))), Wait)
    assert care(*begun, saw(95.0, vitals=vitals("healthy"))) == Finish("healthy", ())
    late = care(*begun, saw(95.0, vitals=vitals("live")), now=2000.0)
    assert isinstance(late, Finish) and "not proved healthy" in str(late.service)
    assert care(*begun, saw(95.0, vitals=vitals("live")), restart_services=False) == Finish(None, ())
    exhausted = care(*begun, saw(95.0, vitals=vitals("live")), end=End(EndKind.EXHAUSTED, ""))
    assert exhausted == Finish(None, ())


def test_a_run_that_did_nothing_does_not_wait_for_what_somebody_started_long_ago() -> None:
    closing = Closed(99.0, RECOVERED, None, (SERVICE,))
    again = (*TRIED, closing, opened(at=500.0), saw(510.0, vitals=vitals("live"), **BACK))
    assert care(*again, end=End(EndKind.HEALTHY, ""), now=511.0) == Finish(None, ())


def test_each_service_that_was_started_must_be_well() -> None:
    second = "service:docker/box"
    stop = (Acting(61.0, 2, StopService("docker", "box")), Acted(62.0, 2, Outcome(True)))
    start = (Acting(93.0, 3, StartService("docker", "box"), second), Acted(94.0, 3, Outcome(True)))
    begun = (*STOP_SERVICE, *stop, saw(90.0, payable=PAYABLE | {second}), *START, *start)
    one = vitals("healthy")
    assert isinstance(care(*begun, saw(95.0, vitals=one)), Wait)
    two = replace(one, groups=(*one.groups, ("h", "healthy", "vllm")), serving=(*one.serving, Serving("h", second)))
    assert care(*begun, saw(95.0, vitals=two)) == Finish("healthy", ())
    failed = replace(one, services=(("docker", "box", "failed"), ("systemd", "other.service", "failed")))
    assert care(*begun, saw(95.0, vitals=failed)) == Finish("box is failed", ())


URL = "http://127.0.0.1:30000/health"
WHO = (ProcessId("boot", 4242, 1),)


def test_what_says_that_it_is_healthy_is_sent_one_real_request() -> None:
    well = vitals("healthy", URL)
    begun = [*STOP_SERVICE, saw(90.0, payable=PAYABLE), *START, saw(95.0, vitals=well)]
    assert care(*begun) == Prove(AskServer((URL,), who=(WHO,)))
    ask = Acting(96.0, 2, AskServer((URL,)))
    served = [*begun, ask, Acted(97.0, 2, Outcome(True, "a token came back"))]
    assert care(*served) == Finish("healthy", ()), "asked once, and the look before it still counts"
    failed = [*begun, ask, Acted(97.0, 2, Outcome(False, "HTTP 500"))]
    assert care(*failed) == Wait(0.0, "looking")
    failed += [saw(98.0, vitals=well)]
    assert isinstance(care(*failed), Wait), "once more, a moment later"
    assert care(*failed, now=200.0) == Prove(AskServer((URL,), who=(WHO,)))
    failed += [replace(ask, n=3, at=201.0), Acted(202.0, 3, Outcome(False, "HTTP 500")), saw(203.0, vitals=well)]
    done = care(*failed, now=300.0)
    assert done == Finish("it says that it is well, and serves no request: HTTP 500", ())
    assert care(*begun, Interrupted(95.5, "SIGINT")) == Finish("healthy", ()), "nobody waits for it any more"


def test_a_service_that_does_not_start_is_said_and_carried() -> None:
    entries: list[Entry] = [*STOP_SERVICE]
    for n in range(3):
        at = 90.0 + 100 * n
        entries += [saw(at, payable=PAYABLE), Acting(at + 1, n + 1, StartService("systemd", "sglang.service"), SERVICE),
                    Acted(at + 2, n + 1, Outcome(False, "unit failed"))]  # fmt: skip
    done = care(*entries, saw(400.0, payable=PAYABLE), now=500.0)
    assert done == Finish(f"{SERVICE} could not be started: unit failed", (SERVICE,))


def test_nothing_was_stopped_nothing_is_started() -> None:
    assert care(saw(90.0)) == Finish(None, ())
    assert History().duties == ()
