"""What no look may ever mean, over generated looks.

Each property was seen to fail with its bug planted:

- unknown is not health: gaps without effect on the state;
- unknown is no fault: an unknown GPU process list, or process table, taken for an empty one (`_undecidable` without
  that case); a table that broke off taken for whole; ports that nobody could see taken for none; NVML's "no
  permission" taken for a failing driver; a GPU whose used memory is unknown passed over without a gap;
- slow is not stuck: `ripe` without its comparison of levels;
- stuck is not slow: `advance` that keeps the first level for ever;
- old Xids: no limit before the first look, own acts not left out, lines before the driver's load not left out;
- a denied channel: REFUSED counted among the silent failures, an unknown agent taken for a silent one, a missing
  hypervisor as a gap that matters;
- a healthy server: a timeout taken for a hang at once, counters not looked at, or only where /health answers;
- order: members in the order of the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.diagnose import assess
from recover.core.groups import form
from recover.core.past import OwnActs, Past, advance
from recover.core.xid_table import XIDS
from recover.model.contact import Failure
from recover.model.gpu import Condition, Driver
from recover.model.guest import Guest, Mark, Mute
from recover.model.hypervisor import AgentState, Hypervisor, NoHypervisor
from recover.model.ladder import Limits
from recover.model.memory import KernelLine
from recover.model.process import Process
from recover.model.reading import Known, Unknown, Why
from recover.model.snapshot import Snapshot
from recover.model.verdict import State
from tests.core import builders as b
from tests.core.looks import follow, once, signals, stuck
from tests.core.test_signals_hypervisor import NEVER

FEW = settings(max_examples=60, deadline=None)
WHY = st.sampled_from(Why).map(lambda why: Unknown(why, "said so"))
ESSENTIAL = ("ram", "driver", "gpus", "processes")
SPARE = ("kernel", "leftovers", "services", "pci_gpus", "marker")
GPU_ESSENTIAL = ("used_mib",)
GPU_SPARE = [
    "uuid",
    "minor",
    "name",
    "total_mib",
    "reserved_mib",
    "processes",
    "utilisation_pct",
    "recovery_action",
    "persistence",
    "link_width",
    "mig",
    "remap_pending",
    "remap_failed",
    "ecc_uncorrected",
    "virtualisation",
]
BASES = st.sampled_from([b.healthy_snapshot(), b.serving_snapshot(), b.healthy_snapshot(baseline=None)])


def blinded(draw: st.DrawFn, thing: Any, names: tuple[str, ...] | list[str]) -> Any:
    chosen = draw(st.sets(st.sampled_from(list(names))))
    return replace(thing, **{name: draw(WHY) for name in sorted(chosen)})


@st.composite
def blind(draw: st.DrawFn) -> tuple[Snapshot, bool]:
    """A healthy look of which some readings are missing, and whether one of them is essential."""
    base = draw(BASES)
    guest: Guest = blinded(draw, base.guest, (*ESSENTIAL, *SPARE))
    if isinstance(guest.gpus, Known):
        cards = list(guest.gpus.value)
        i = draw(st.integers(0, 7))
        cards[i] = blinded(draw, cards[i], [*GPU_ESSENTIAL, *GPU_SPARE])
        guest = replace(guest, gpus=Known(tuple(cards)))
    guest = replace(guest, complete=draw(st.booleans()), root=draw(st.booleans()))
    if isinstance(guest.processes, Known) and not (guest.complete and guest.root):
        guest = partly(draw, guest, guest.processes.value)
    api = ["qmpstatus", "config", "pending", "ha_state", "quorate", "tasks", "agent", "storages", "neighbours"]
    hypervisor: Hypervisor = blinded(draw, base.hypervisor, api)
    missing = any(isinstance(getattr(guest, name), Unknown) for name in ESSENTIAL) or not guest.complete
    if isinstance(guest.gpus, Known):
        missing = missing or any(isinstance(g.used_mib, Unknown) for g in guest.gpus.value)
    return replace(base, guest=guest, hypervisor=hypervisor), missing


def partly(draw: st.DrawFn, guest: Guest, table: tuple[Process, ...]) -> Guest:
    """A table that broke off lacks rows; without root nobody's ports and open files are seen, and no port is asked."""
    if not guest.complete:
        kept = draw(st.sets(st.sampled_from(table)))
        table = tuple(p for p in table if p in kept)
    if not guest.root:
        table = tuple(replace(p, listens=frozenset(), holds=frozenset()) for p in table)
        guest = replace(guest, servers=())
    return replace(guest, processes=Known(table))


@settings(FEW, max_examples=250)
@given(blind())
def test_unknown_is_never_health_and_never_by_itself_a_fault(seen: tuple[Snapshot, bool]) -> None:
    snapshot, missing = seen
    looks = follow([snapshot] * 8, every_s=60)
    assert [f for d in looks for f in d.findings] == []
    assert not missing or looks[-1].state is State.UNCERTAIN


@FEW
@given(BASES, st.integers(0, 7), WHY)
def test_held_memory_whose_owner_can_not_be_seen_is_no_fault(base: Snapshot, index: int, why: Unknown) -> None:
    guest = base.guest
    assert isinstance(guest, Guest) and isinstance(guest.gpus, Known)
    cards = tuple(
        replace(g, used_mib=Known(80_000), processes=why) if g.index == index else g for g in guest.gpus.value
    )
    unlisted = replace(base, guest=replace(guest, gpus=Known(cards)))
    assert stuck(unlisted, 6).curable == ()
    unseen = replace(base, guest=replace(guest, gpus=Known(cards), processes=why))
    assert stuck(unseen, 6).curable == ()
    assert stuck(unseen, 6).state is State.UNCERTAIN


@FEW
@given(st.lists(st.tuples(st.integers(64, 4000), st.floats(1, 300)), min_size=1, max_size=40))
def test_a_slow_falling_level_never_ripens(falls: list[tuple[int, float]]) -> None:
    """Each look finds a quantum less, or more than that: GPU memory and RAM that come back in their own time."""
    vram, lost = 96_000, 300_000
    past, at = Past(), 0.0
    for fall, seconds in falls:
        vram, lost, at = max(0, vram - fall), max(0, lost - fall), at + seconds
        snapshot = b.healthy_snapshot(
            gpus=(b.gpu(0, used_mib=Known(vram)), *b.gpus()[1:]),
            ram=b.ram(available_mib=b.IDLE_AVAILABLE_MIB - lost, unowned_mib=2048 + lost),
            at=at,
        )
        diagnosis = assess(snapshot, past, Limits())[1]
        assert diagnosis.findings == ()
        past = replace(past, anchors=advance(past.anchors, diagnosis.symptoms, at))


@FEW
@given(st.lists(st.integers(64, 4000), max_size=10), st.floats(61, 600))
def test_a_level_that_stops_falling_ripens_after_its_time(falls: list[int], rest_s: float) -> None:
    past, at, vram = Past(), 0.0, 96_000
    for fall in [0, *falls, 0, 0]:
        vram -= fall
        snapshot = b.healthy_snapshot(gpus=(b.gpu(0, used_mib=Known(vram)), *b.gpus()[1:]), at=at)
        diagnosis = assess(snapshot, past, Limits())[1]
        past = replace(past, anchors=advance(past.anchors, diagnosis.symptoms, at))
        at += rest_s if fall == 0 else 10.0
    assert signals(diagnosis) == ["gpu-memory-held"]


XID = st.sampled_from(sorted(XIDS)).map(
    lambda code: f"NVRM: Xid (PCI:0000:01:00): {code}, pid=1, name=python3, Fatal something"
)
LOAD = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  595.45.04"


@FEW
@given(
    st.lists(st.tuples(XID, st.floats(0, 1)), min_size=1, max_size=10),
    st.sampled_from(["before the first look", "before the driver's load", "while we acted"]),
)
def test_old_xids_never_yield_findings(lines: list[tuple[str, float]], how: str) -> None:
    cards = tuple(replace(g, recovery_action=Unknown(Why.ABSENT)) for g in b.gpus())
    now = b.UPTIME_S
    since, until = {"before the first look": (0.0, now - 1801.0)}.get(how, (now - 500.0, now - 100.0))
    log = [KernelLine(int((since + (until - since) * part) * 1e6), text) for text, part in lines]
    past = Past(first=Mark(b.BOOT, now))
    if how == "before the driver's load":
        log.append(KernelLine(int((until + 1) * 1e6), LOAD))
    if how == "while we acted":
        past = replace(past, own_acts=(OwnActs(b.BOOT, since, until),))
    snapshot = b.healthy_snapshot(gpus=cards, kernel=Known(tuple(sorted(log, key=lambda line: line.usec))))
    assert once(snapshot, past).findings == ()


@FEW
@given(
    st.sampled_from(NEVER),
    st.sampled_from([Known(AgentState.OFF), Unknown(Why.DENIED), Unknown(Why.TIMEOUT)]),
    st.sampled_from(["not-configured", "no-secret", "unreachable", "tls", "auth", "not-found", "garbled"]),
)
def test_a_denied_or_missing_channel_is_never_a_finding(failure: Failure, agent: Any, why: str) -> None:
    silent = b.hypervisor(agent=Known(AgentState.SILENT))
    for api in (NoHypervisor(why, ""), b.hypervisor(agent=agent), silent):
        diagnosis = stuck(b.mute_snapshot(Mute(failure, ""), hypervisor=api), 20)
        assert (diagnosis.findings, diagnosis.state) == ((), State.UNCERTAIN)
        assert once(b.healthy_snapshot(hypervisor=api)).state is State.HEALTHY
    unheard = b.mute_snapshot(Mute(Failure.CONNECT_TIMEOUT, ""), hypervisor=b.hypervisor(agent=Unknown(Why.DENIED)))
    assert stuck(unheard, 20).findings == ()


OUTCOMES = st.sampled_from([("answered", 200), ("answered", 503), ("timeout", None), ("error", None)])


@FEW
@given(st.lists(st.tuples(OUTCOMES, st.integers(1, 5000), st.integers(1, 50)), min_size=2, max_size=25))
def test_a_server_whose_counters_move_is_never_dead_or_hung(
    looks: list[tuple[tuple[str, int | None], int, int]],
) -> None:
    tokens, seen = 0, []
    for (outcome, status), more, running in looks:
        tokens += more
        answer = b.answer(status, outcome=outcome, tokens=tokens, running=running)
        seen.append(b.serving_snapshot(servers=(answer,)))
    assert [s for d in follow(seen, every_s=60) for s in signals(d)] == []


@FEW
@given(OUTCOMES, st.booleans(), st.integers(0, 20))
def test_no_first_answer_condemns_a_server(how: tuple[str, int | None], counted: bool, running: int) -> None:
    answer = b.answer(how[1], outcome=how[0], tokens=5 if counted else None, running=running if counted else None)
    diagnosis = once(b.serving_snapshot(servers=(answer,)))
    assert diagnosis.findings == ()


ORPHANS = [replace(p, ppid=1) for p in b.sglang_group(6000, tp=3, gpu0=2)[2:]]


@FEW
@given(st.permutations([*b.sglang_group(5000, tp=2), *ORPHANS, *b.system_processes()]))
def test_the_order_of_the_process_table_says_nothing(table: list[Any]) -> None:
    guest = b.guest(processes=Known(tuple(table)))
    usual = b.guest(processes=Known(tuple(sorted(table, key=lambda p: p.pid))))
    assert form(b.healthy_snapshot(guest=guest)) == form(b.healthy_snapshot(guest=usual))


@FEW
@given(st.sampled_from(Condition), st.sampled_from(["4 No permission", "Insufficient Permissions"]))
def test_a_driver_that_may_not_be_asked_is_no_fault(condition: Condition, detail: str) -> None:
    if condition not in (Condition.FAILS, Condition.NOT_ASKED):
        return
    refused = b.healthy_snapshot(driver=Known(Driver(condition, detail, nvml_code=4)))
    assert (stuck(refused, 20).findings, once(refused).state) == ((), State.UNCERTAIN)
