"""What may be done with nobody there: what the playbook lists, and nothing beside it.

`objection` and `consent` are held to whole runs of a machine with any fault; each property was seen to fail on a bug
planted for it: PLANTED plants each again.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from recover.attendant import Attendant, Attended, Jobs, RunEnd, WatchGate, one_by_one
from recover.core.diagnose import assess
from recover.core.fleet import FleetLimits, Picture, granted, released
from recover.core.guards import Context, refusal
from recover.core.past import Past
from recover.core.playbook import parse
from recover.core.report.check.verdict import Checked, checked
from recover.core.report.result import exit_code
from recover.core.signals.names import NAMES
from recover.core.unattended import REASONS, Candidate, Rules, consent, objection
from recover.core.watch import Policy, judged, step
from recover.core.windows import Hours, Window
from recover.edge.playbooks import read_playbook
from recover.edge.simulated import FAULTS, Fault, SimulatedClock, SimulatedMachine, simulate
from recover.model.act import Act, Blast, Hit, Line, ResetGpu
from recover.model.ladder import Playbook, Unattended
from recover.model.notice import Notice
from recover.model.record import Began, Saw, Try
from recover.model.snapshot import Channel
from recover.model.verdict import Diagnosis, Finding, Scope, State
from recover.model.watch import Controller, Ledger, Permit, Standing, Status, Transition
from recover.ports import Gate, GateAnswer, Lost
from recover.steps.common import MAY_DIE
from recover.steps.table import ALL_STEPS
from tests.core.test_hazards import anything, sick
from tests.core.world import FULL, Played, play

CORE = Path(__file__).resolve().parents[2] / "recover/core"
BOOK: dict[str, Any] = {
    "name": "alone",
    "rung": [{"step": "end-workers"}],
    "unattended": {"signals": ["dead-group"], "scopes": ["process"]},
}


def test_every_finding_that_a_signal_gives_has_its_name_in_the_table() -> None:
    found: set[str] = set()
    for path in (*(CORE / "signals").glob("*.py"), CORE / "ranks.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Finding", "_finding", "on_gpu"):
                found |= {c.value for c in ast.walk(node.args[0]) if isinstance(c, ast.Constant) and c.value}
    assert len(found) > 30 and found <= NAMES | {"xid"}
    assert NAMES - found <= {"reset-required", "recovery-action"}  # a word chosen by what the driver asks for


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"signals": ["dead-grup"]}, "did you mean 'dead-group'"),
        ({"signals": []}, "unattended.signals: must be a list of at least one word"),
        ({"signals": "dead-group"}, "unattended.signals: must be a list"),
        ({"scopes": ["galaxy"]}, "unattended.scopes[0]"),
        ({"runs_per_day": -1}, "unattended.runs_per_day"),
        ({"signal": 1}, "unattended.signal: unknown key"),
    ],
)
def test_a_wrong_list_is_refused(change: dict[str, Any], says: str) -> None:
    problems = parse({**BOOK, "unattended": {**BOOK["unattended"], **change}})
    assert isinstance(problems, tuple) and any(says in p for p in problems), problems


@pytest.mark.parametrize(
    ("rung", "says"),
    [
        ({"step": "end-workers", "evict": True}, "rung[1].evict"),
        ({"step": "end-workers", "drain": True}, "rung[1].drain"),
        ({"step": "power-cycle-vm"}, "power-cycle-vm (scope vm) is a rung"),
    ],
)
def test_a_ladder_that_needs_a_person_is_refused(rung: dict[str, Any], says: str) -> None:
    problems = parse({**BOOK, "rung": [rung]})
    assert isinstance(problems, tuple) and any(says in p for p in problems), problems


def test_a_scope_above_the_limit_is_refused() -> None:
    problems = parse(
        {**BOOK, "limits": {"max_scope": "process"}, "unattended": {**BOOK["unattended"], "scopes": ["vm"]}}
    )
    assert isinstance(problems, tuple) and any("above limits.max_scope" in p for p in problems)


def test_only_one_shipped_playbook_is_climbed_by_itself_and_it_restarts_no_guest() -> None:
    from recover.edge.playbooks import shipped_playbooks

    assert [p.name for p in shipped_playbooks() if p.unattended is not None] == ["watch"]
    book = read_playbook("watch")
    assert isinstance(book, Playbook) and book.unattended is not None
    assert book.unattended.scopes == (Scope.PROCESS,) and book.limits.disruptions_per_day == 0


# -- before a run


UNATTENDED = Unattended(("dead-group", "hung-group", "leftover-memory"), (Scope.PROCESS,), 2)
RULES = Rules(UNATTENDED, Policy(), FleetLimits(max_nodes=9, max_percent=100))
PICTURE = Picture(4, dict.fromkeys("bcde", Status.OK))
AT = 1_000_000.0


def seen(fault: str) -> Checked:
    machine = SimulatedMachine(FAULTS[fault], SimulatedClock())
    return checked("node-174", *assess(machine.look(), Past(), read_playbook("hung-server").limits), 1.0)


def stood(one: Checked, looks: int = 3) -> Standing:
    standing = Standing(one.target)
    for n in range(looks):
        standing, _ = step(standing, judged(one, AT - 60.0 * (looks - n)), Policy())
    return standing


def candidate(fault: str = "dead-rank", looks: int = 3, **changes: Any) -> Candidate:
    one = seen(fault)
    return replace(Candidate(one, stood(one, looks), AT), **changes)


def rule(one: Candidate, rules: Rules = RULES, picture: Picture = PICTURE) -> str:
    found = objection(one, rules, picture)
    return found.rule if found is not None else ""


def test_a_dead_server_that_lasts_may_be_acted_on() -> None:
    assert rule(candidate()) == ""


@pytest.mark.parametrize("fault", ["idle", "healthy", "loading", "vram-held", "mute", "route-down", "old-xid"])
def test_what_is_not_critical_now_is_left_alone_whatever_was_before(fault: str) -> None:
    assert rule(candidate(standing=stood(seen("dead-rank")), checked=seen(fault))) == "not-critical"


@pytest.mark.parametrize("fault", ["gpu-lost", "nvml-hang", "row-remap-failed", "vm-stopped", "driver-fails"])
def test_what_the_playbook_does_not_list_is_left_to_a_person(fault: str) -> None:
    assert rule(candidate(fault)) in ("unlisted", "not-critical")


def test_each_reason_speaks() -> None:
    always = Window(hours=(Hours(frozenset(range(7)), 0, 1440),))
    one = candidate()
    snapshot = one.checked.snapshot
    assert snapshot is not None
    mine = replace(one.checked, snapshot=replace(snapshot, target=replace(snapshot.target, do_not_recover=True)))
    tagged = replace(snapshot, hypervisor=replace(snapshot.hypervisor, tags=("do-not-recover",)))  # type: ignore[type-var]
    other = replace(one.standing, recent=tuple(replace(r, signals=("gpu-lost",)) for r in one.standing.recent))
    found = [
        rule(candidate("idle")),
        rule(replace(one, trouble=("the file is damaged",))),
        rule(replace(one, checked=mine)),
        rule(replace(one, checked=replace(one.checked, snapshot=tagged))),
        rule(one, replace(RULES, windows=(always,))),
        rule(candidate(looks=2)),
        rule(replace(one, standing=replace(one.standing, flapping=True))),
        rule(one, replace(RULES, unattended=replace(UNATTENDED, signals=("hung-group",)))),
        rule(replace(one, standing=other)),
        rule(replace(one, at_work="kim works there")),
        rule(one, picture=Picture(4, dict.fromkeys("abcd", Status.CRITICAL))),
    ]
    names = [name for name, _ in REASONS]
    assert list(dict.fromkeys(found)) == names, "each of REASONS is here, in its order"


def test_what_its_owner_keeps_out_is_refused_to_everybody() -> None:
    snapshot = seen("dead-rank").snapshot
    assert snapshot is not None
    kept = replace(snapshot, target=replace(snapshot.target, do_not_recover=True))
    said = [refusal(s, ALL_STEPS["end-workers"], Context(evict=True)) for s in (snapshot, kept)]
    assert said[0] is None and said[1] is not None and said[1].guard == "tag"
    assert "[targets." in said[1].lift


# -- within a run


def attempt(scope: Scope = Scope.PROCESS, words: tuple[str, ...] = ()) -> Try:
    line = Line((Act(ResetGpu((("GPU-1", "0000:01:00.0"),), 1.0)),), words=words)
    return Try(0, "end-workers", line, 1, scope, "why")


def diagnosis(*signals: str, guest: bool = True) -> Diagnosis:
    found = tuple(Finding(s, s, Scope.PROCESS) for s in signals)
    return Diagnosis(State.FAULTY, found, channels=frozenset({Channel.GUEST}) if guest else frozenset())


DEAD = Hit("group", "sglang 1@2", "ended (dead)")


@pytest.mark.parametrize(
    ("said", "hits", "signals", "scope", "words"),
    [
        ("yes", (DEAD,), ("dead-group",), Scope.PROCESS, ()),
        ("yes", (DEAD, Hit("service", "x", "stopped")), ("dead-group", "leftover-memory"), Scope.PROCESS, ()),
        ("no", (DEAD,), ("dead-group",), Scope.GPU, ()),
        ("no", (DEAD,), ("dead-group", "gpu-lost"), Scope.PROCESS, ()),
        ("no", (DEAD,), (), Scope.PROCESS, ()),
        ("no", (DEAD, Hit("group", "vllm 2@3", "ended (live)")), ("dead-group",), Scope.PROCESS, ()),
        ("no", (Hit("group", "vllm 2@3", "ended (healthy)"),), ("dead-group",), Scope.PROCESS, ()),
        ("no", (Hit("group", "vllm 2@3", "ended (starting)"),), ("dead-group",), Scope.PROCESS, ()),
        ("no", (DEAD, Hit("session", "tmux (pid 7)", "ended")), ("dead-group",), Scope.PROCESS, ()),
        ("no", (DEAD, Hit("neighbour", "vm 8", "shares a GPU")), ("dead-group",), Scope.PROCESS, ()),
        ("no", (DEAD,), ("dead-group",), Scope.PROCESS, (f"RTX 5090: {MAY_DIE}",)),
    ],
)
def test_the_gate(
    said: str, hits: tuple[Hit, ...], signals: tuple[str, ...], scope: Scope, words: tuple[str, ...]
) -> None:
    answer = consent(attempt(scope, words), Blast(scope, hits, 1.0), diagnosis(*signals), UNATTENDED)
    assert (answer.said, answer.by) == (said, "watch") and bool(answer.why) is (said == "no")


def test_a_guest_that_cannot_be_seen_is_not_restarted_even_where_its_scope_is_listed() -> None:
    wide = Unattended(("guest-mute",), (Scope.VM,), 2)
    blind = consent(attempt(Scope.VM), Blast(Scope.VM, (), 1.0), diagnosis("guest-mute", guest=False), wide)
    sighted = consent(attempt(Scope.VM), Blast(Scope.VM, (), 1.0), diagnosis("guest-mute"), wide)
    assert (blind.said, sighted.said) == ("no", "yes")


@pytest.mark.parametrize(("signals", "said"), [
    (("vm-internal-error",), "yes"), (("vm-halted",), "yes"), (("vm-halted", "guest-mute"), "yes"),
    (("guest-mute",), "no"), (("vm-halted", "gpu-lost"), "no"), ((), "no"),
])  # fmt: skip
def test_only_where_qemu_has_stopped_it_for_good_nobody_can_be_at_work(signals: tuple[str, ...], said: str) -> None:
    """Then it need not be seen who works there; all else holds: what is listed, and who else is hit."""
    wide = Unattended(("guest-mute", "vm-halted", "vm-internal-error"), (Scope.VM,), 2)
    seen = diagnosis(*signals, guest=False)
    guest, near = Hit("guest", "node-174 (174)", "stopped"), Hit("neighbour", "vm 8", "shares a GPU")
    assert consent(attempt(Scope.VM), Blast(Scope.VM, (guest,), 1.0), seen, wide).said == said
    assert consent(attempt(Scope.VM), Blast(Scope.VM, (guest, near), 1.0), seen, wide).said == "no"


def test_what_comes_up_during_a_run_ends_it() -> None:
    gate = WatchGate(RULES, lambda: "the breaker was opened meanwhile")
    answer = gate.ask(attempt(), Blast(Scope.PROCESS, (DEAD,), 1.0), diagnosis("dead-group"))
    assert answer.said == "no" and "breaker" in answer.why


# -- whole runs


@dataclass
class Memory:
    """The ledger of one process."""

    ledger: Ledger = field(default_factory=Ledger)

    def change(self, do: Callable[[Ledger], tuple[Ledger, Any]]) -> Any:
        self.ledger, answer = do(self.ledger)
        return answer

    def read(self) -> Ledger | Lost:
        return self.ledger


class Alone:
    def me(self) -> Controller:
        return Controller("here", "boot", 1, 1)

    def lives(self, controller: Controller) -> bool | None:
        return True


@dataclass
class Heard:
    notices: list[Notice] = field(default_factory=list)

    def tell(self, *changes: Transition) -> tuple[str, ...]:
        return ()

    def announce(self, *notices: Notice) -> tuple[str, ...]:
        self.notices += notices
        return ()


@dataclass
class Night:
    """One machine with a fault, three looks, and what was done about it with nobody there."""

    rules: Rules = RULES
    played: Played | None = None
    answers: tuple[Attended, ...] = ()
    ledger: Memory = field(default_factory=Memory)
    heard: Heard = field(default_factory=Heard)

    def spend(self, fault: Fault, book: Playbook, gate_of: Callable[[Gate], Gate] = lambda gate: gate) -> Night:
        clock = SimulatedClock()
        machine = simulate(fault, clock)
        past, standing = Past(), Standing("node-174")
        for _ in range(3):
            one = checked("node-174", *assess(machine.look(), past, book.limits), 1.0)
            standing, _ = step(standing, judged(one, clock.now()), self.rules.policy)
            clock.sleep(60.0)

        def run(name: str, gate: Gate) -> RunEnd:
            context = Context(run="test-run")
            self.played = play(fault, playbook=book, context=context, machine=machine, gate=gate_of(gate))  # type: ignore[arg-type]
            assert self.played.closed is not None
            tried = any(isinstance(e, Began) for e in self.played.entries)
            end = self.played.closed.end
            return RunEnd(end.kind.value, tried, end.why, "run", exit_code(self.played.closed))

        who = Attendant(self.ledger, Alone(), clock, self.rules, 4, lambda name: "", run, self.heard)
        one_seen = Candidate(one, standing, clock.now())
        self.answers = who.attend([one_seen], PICTURE)
        return self


def within_the_lists(night: Night, book: Playbook) -> None:
    """Nothing is tried for a finding or at a scope that isn't listed, and nobody healthy is touched."""
    assert book.unattended is not None
    if night.played is None:
        return
    assert not night.played.machine.touched_healthy
    listed, last = set(book.unattended.signals), None
    for entry in night.played.entries:
        if isinstance(entry, Saw):
            last = entry
        if isinstance(entry, Began):
            assert entry.scope in book.unattended.scopes, f"{entry.step} at scope {entry.scope.word}"
            assert last is not None
            assert {f.signal for f in last.diagnosis.findings} <= listed, "something unlisted was found there"


def lists(signals: tuple[str, ...], scopes: tuple[Scope, ...], book: Playbook = FULL) -> Playbook:
    return replace(book, unattended=Unattended(signals, scopes, 2))


books = st.builds(
    lists,
    st.sampled_from(
        [("dead-group",), ("dead-group", "gpu-memory-held"), ("dead-group", "gpu-memory-held", "ram-unowned")]
    ),
    st.sampled_from([(Scope.PROCESS,), (Scope.PROCESS, Scope.GPU), (Scope.PROCESS, Scope.GPU, Scope.GUEST, Scope.VM)]),
)


def holds(
    gate_of: Callable[[Gate], Gate],
    examples: int,
    faults: st.SearchStrategy[Fault] = anything,
    phases: tuple[Phase, ...] = tuple(Phase),
) -> None:
    @settings(
        max_examples=examples, deadline=None, derandomize=True, phases=phases, suppress_health_check=list(HealthCheck)
    )
    @given(faults, books)
    def check(fault: Fault, book: Playbook) -> None:
        assert book.unattended is not None
        night = Night(replace(RULES, unattended=book.unattended)).spend(fault, book, gate_of)
        within_the_lists(night, book)

    check()


def test_any_fault_any_lists() -> None:
    holds(lambda gate: gate, 30)


class Yes:
    def ask(self, attempt: Try, blast: Blast, diagnosis: Diagnosis) -> GateAnswer:
        return GateAnswer("yes", "nobody")


def _looser(**changes: Any) -> Callable[[Gate], Gate]:
    def gate_of(gate: Gate) -> Gate:
        assert isinstance(gate, WatchGate)
        rules = gate._rules
        return WatchGate(replace(rules, unattended=replace(rules.unattended, **changes)), lambda: "")

    return gate_of


PLANTED: dict[str, Callable[[Gate], Gate]] = {
    "everything is allowed": lambda gate: Yes(),
    "any finding will do": _looser(signals=tuple(NAMES)),
    "any scope will do": _looser(scopes=tuple(Scope)),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_caught(bug: str) -> None:
    with pytest.raises(AssertionError):
        holds(PLANTED[bug], 400, sick, (Phase.generate,))


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_the_shipped_playbook_over_every_fault(name: str) -> None:
    """What it does to each machine that can be rehearsed: nothing, or an end that is well, or the breaker opens."""
    book = read_playbook("watch")
    night = Night().spend(FAULTS[name], book)
    within_the_lists(night, book)
    (answer,) = night.answers
    if night.played is None:
        assert answer.rule != "acted" and night.ledger.ledger.permits == ()
        return
    assert night.played.machine.vm.status == "running" or name.startswith("vm-")
    well = answer.ended is not None and answer.ended.end in ("recovered", "healthy")
    assert well or night.heard.notices or answer.ended.end in ("blocked", "held")  # type: ignore[union-attr]
    assert bool(night.heard.notices) is bool(night.ledger.ledger.breakers)


# -- what comes up in the middle of a run


@dataclass
class Morning:
    """A run of which each line of `asks` is a try; what `happens` comes between the first and the second."""

    happens: Callable[[Attendant, Memory], None]
    answers: list[GateAnswer] = field(default_factory=list)
    book: Memory = field(default_factory=Memory)
    heard: Heard = field(default_factory=Heard)
    clock: SimulatedClock = field(default_factory=lambda: SimulatedClock(1_796_000_000.0))

    def attend(self, rules: Rules = RULES, gate_of: Callable[[Gate], Gate] = lambda gate: gate) -> Attended:
        def run(name: str, gate: Gate) -> RunEnd:
            asked = gate_of(gate)
            for number in range(2):
                self.answers.append(asked.ask(attempt(), Blast(Scope.PROCESS, (DEAD,), 1.0), diagnosis("dead-group")))
                if number == 0:
                    self.happens(who, self.book)
            return RunEnd("blocked", True, "the gate said no", "run")

        who = Attendant(self.book, Alone(), self.clock, rules, 4, lambda name: "", run, self.heard)
        now = self.clock.now()
        (answer,) = who.attend([replace(candidate(), at=now)], PICTURE)
        return answer


def _another_run_fails(who: Attendant, book: Memory) -> None:
    other = Controller("here", "boot", 2, 2)
    book.ledger, permit = granted(book.ledger, "another", other, who.clock.now())
    book.ledger = released(book.ledger, permit, who.clock.now(), "exhausted", tried=True, why="no rung is left")


def _a_window_begins(who: Attendant, book: Memory) -> None:
    who.clock.sleep(3600.0)


def _the_ledger_is_moved_away(who: Attendant, book: Memory) -> None:
    book.ledger = Ledger()


LATER = Window(begins=1_796_003_000.0, ends=1_796_009_000.0, why="kernel updates")
SURPRISES: tuple[tuple[Callable[[Attendant, Memory], None], str], ...] = (
    (_another_run_fails, "breaker was opened meanwhile"),
    (_a_window_begins, "kernel updates"),
    (_the_ledger_is_moved_away, "permit is not in the ledger"),
)


@pytest.mark.parametrize(("happens", "says"), SURPRISES, ids=lambda v: getattr(v, "__name__", ""))
def test_what_comes_up_between_two_tries_forbids_the_second(
    happens: Callable[[Attendant, Memory], None], says: str
) -> None:
    morning = Morning(happens)
    answer = morning.attend(replace(RULES, windows=(LATER,)))
    assert [a.said for a in morning.answers] == ["yes", "no"] and says in morning.answers[1].why
    assert answer.ended is not None and answer.rule == "acted"


@pytest.mark.parametrize(("happens", "says"), SURPRISES, ids=lambda v: getattr(v, "__name__", ""))
def test_planted_a_gate_that_asks_only_once_is_caught(happens: Callable[[Attendant, Memory], None], says: str) -> None:
    morning = Morning(happens)
    morning.attend(replace(RULES, windows=(LATER,)), _looser())
    assert [a.said for a in morning.answers] == ["yes", "yes"], "and so the test above fails"


def test_a_look_that_is_too_old_is_left_to_the_next_check() -> None:
    clock = SimulatedClock()
    who = Attendant(Memory(), Alone(), clock, RULES, 4, lambda name: "", lambda n, g: pytest.fail("it ran"), Heard())  # type: ignore[arg-type,return-value]
    (answer,) = who.attend([replace(candidate(), at=clock.now() - 200.0)], PICTURE)
    assert answer.rule == "stale"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_whatever_ends_a_run_its_permit_is_given_back(error: BaseException) -> None:
    def run(name: str, gate: Gate) -> RunEnd:
        raise error

    book, heard, clock = Memory(), Heard(), SimulatedClock()
    who = Attendant(book, Alone(), clock, RULES, 4, lambda name: "", run, heard)
    with pytest.raises(type(error)):
        who.attend([replace(candidate(), at=clock.now())], PICTURE)
    (permit,) = book.ledger.permits
    assert permit.ended and permit.end == ("interrupted" if isinstance(error, KeyboardInterrupt) else "bug")
    assert bool(heard.notices) is (permit.end == "bug")


def three(clock: SimulatedClock) -> list[Candidate]:
    """a, b and c, of which c is sick for longest."""
    found = []
    for number, name in enumerate("abc"):
        one = replace(candidate(), at=clock.now())
        standing = replace(one.standing, target=name, since=AT - number)
        found.append(replace(one, checked=replace(one.checked, target=name), standing=standing))
    return found


@pytest.mark.parametrize(
    ("end", "order", "rules"),
    [
        ("recovered", ["c", "b", "a"], ["acted", "acted", "acted"]),
        ("interrupted", ["c"], ["interrupted", "interrupted", "acted"]),
        ("exhausted", ["c"], ["breaker", "breaker", "acted"]),
    ],
)
def test_the_one_that_is_sick_for_longest_comes_first(end: str, order: list[str], rules: list[str]) -> None:
    begun: list[str] = []

    def run(name: str, gate: Gate) -> RunEnd:
        begun.append(name)
        return RunEnd(end, True, "says", "run")

    clock = SimulatedClock()
    who = Attendant(Memory(), Alone(), clock, RULES, 9, lambda name: "", run, Heard())
    answers = who.attend(three(clock), Picture(9, dict.fromkeys("abcdefghi", Status.OK)))
    assert [a.target for a in answers] == ["a", "b", "c"] and begun == order
    assert [a.rule for a in answers] == rules


a_candidate = cache(candidate)  # it takes a while to make one


@dataclass
class Crowd:
    """Sick targets, each with how its run ends; a wave's runs begin and end in an order that nobody chose."""

    ends: dict[str, str]  # the last part of a name is how long its target is sick
    max_nodes: int
    rng: Any
    book: Memory = field(default_factory=Memory)
    begun: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    waves: list[tuple[set[str], set[str]]] = field(default_factory=list)  # who may begin; who had a place then
    answers: tuple[Attended, ...] = ()

    def attend(self) -> Crowd:
        clock = SimulatedClock(1_796_000_000.0)
        rules = replace(RULES, fleet=FleetLimits(max_nodes=self.max_nodes, max_percent=100, sick_percent=100))
        size = len(self.ends)

        def run(name: str, gate: Gate) -> RunEnd:
            self.begun.append(name)
            self.ended.append(name)
            end = self.ends[name]
            return RunEnd(end, end != "healthy", "says", "run")

        def together(jobs: Jobs) -> None:
            places = {p.target for p in self.book.ledger.permits if not p.ended or p.tried}
            self.waves.append(({job.args[0].target for job in jobs}, places))  # type: ignore[attr-defined]
            one_by_one(self.rng.sample(list(jobs), len(jobs)))

        who = Attendant(self.book, Alone(), clock, rules, size, lambda name: "", run, Heard(), together)
        one = replace(a_candidate(), at=clock.now())
        seen = [
            replace(one, checked=replace(one.checked, target=n), standing=replace(one.standing, target=n, since=AT - i))
            for i, n in enumerate(self.ends)
        ]
        self.answers = who.attend(seen, Picture(size, dict.fromkeys(self.ends, Status.OK)))
        return self


def several_hold(crowd: Crowd) -> None:
    assert all(len(places) <= crowd.max_nodes for _, places in crowd.waves), crowd.waves
    assert all(may <= places for may, places in crowd.waves), "begun before it was counted"
    assert len(set(crowd.begun)) == len(crowd.begun), "a target twice"
    final = [name for name in crowd.ended if crowd.ends[name] in ("exhausted", "interrupted")]
    assert not final or crowd.ended.index(final[0]) == len(crowd.ended) - 1, "begun after one that ends it for all"
    permits = crowd.book.ledger.permits
    assert all(p.ended for p in permits) and sorted(p.target for p in permits) == sorted(crowd.begun)
    acted = {a.target for a in crowd.answers if a.rule == "acted"}
    assert acted == set(crowd.begun) and [a.target for a in crowd.answers] == list(crowd.ends)
    assert len(crowd.begun) == len(crowd.ends) or {a.rule for a in crowd.answers} & {"limit", "breaker", "interrupted"}


ENDINGS = st.sampled_from(["recovered", "healthy", "exhausted", "interrupted"])
CROWDS = st.builds(
    lambda ends, nodes, rng: Crowd({f"node-{i}": end for i, end in enumerate(ends)}, nodes, rng),
    st.lists(ENDINGS, min_size=1, max_size=6), st.integers(1, 6), st.randoms(use_true_random=False),
)  # fmt: skip


@settings(deadline=None)
@given(CROWDS)
def test_several_at_once_are_counted_first_and_one_that_fails_stops_who_has_not_begun(crowd: Crowd) -> None:
    several_hold(crowd.attend())


def _not_asked_again(self: Attendant, permit: Permit) -> None:
    return None


def _permits_stay(self: Attendant, permit: Permit) -> None:
    return None


SEVERAL_PLANTED: dict[str, tuple[str, Callable[..., Any]]] = {
    "a run that has not begun does not ask what came up": ("_come_up", _not_asked_again),
    "a permit of which no use was made stays": ("_withdraw", _permits_stay),
}


@pytest.mark.parametrize("bug", SEVERAL_PLANTED)
def test_planted_bug_among_several_is_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attendant, *SEVERAL_PLANTED[bug])

    @settings(max_examples=200, database=None, phases=[Phase.generate], deadline=None)
    @given(CROWDS)
    def check(crowd: Crowd) -> None:
        several_hold(crowd.attend())

    with pytest.raises(AssertionError):
        check()
