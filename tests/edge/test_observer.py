"""Looks from all sides, boots and names: small adapters, with fakes in place of the machines behind them."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recover.core.read.pve import GuestRow
from recover.edge.boot import BootWatch
from recover.edge.clock import SignalInterrupts, SystemClock
from recover.edge.evidence import EvidenceFolder, Found
from recover.edge.inventory import Unresolved, resolve
from recover.edge.observer import CombinedObserver
from recover.model.act import AwaitBoot, PlaceMarker, ResetGpu
from recover.model.contact import Failure
from recover.model.gpu import Condition
from recover.model.guest import Guest, Mute
from recover.model.hypervisor import GuestKind, NoHypervisor
from recover.model.reading import Known
from recover.model.snapshot import Snapshot, Target
from tests.core import builders as b


def guest() -> Guest:
    found = b.healthy_snapshot().guest
    assert isinstance(found, Guest)
    return found


def with_gpu_condition(condition: Condition) -> Guest:
    base = guest()
    assert isinstance(base.gpus, Known)
    first, *rest = base.gpus.value
    return replace(base, gpus=Known((replace(first, condition=condition), *rest)))


class Eye:
    def __init__(self, *answers: Guest | Mute) -> None:
        self.answers, self.skipped = list(answers), []  # type: ignore[var-annotated]

    def look(self, skip_gpus: Iterable[str] = (), *, deadline: float) -> Guest | Mute:
        self.skipped.append(frozenset(skip_gpus))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


TARGET = Target("node-174", "192.0.2.1", cluster="pve", vmid=174)


def test_a_gpu_that_hung_is_not_asked_again_before_something_was_done_about_it() -> None:
    hung = with_gpu_condition(Condition.HANGS)
    assert isinstance(hung.gpus, Known)
    bus = hung.gpus.value[0].bus_id
    eye = Eye(hung, with_gpu_condition(Condition.NOT_ASKED), guest())
    observer = CombinedObserver(TARGET, SystemClock(), eye, None, None)
    observer.look()
    assert observer.look().unasked_gpus == {bus}
    observer.acted(PlaceMarker("r", "kim", "here", "x", 60))
    observer.look()
    observer.acted(ResetGpu((("GPU-0", bus),)))
    observer.look()
    assert eye.skipped == [frozenset(), {bus}, {bus}, frozenset()]


def test_a_gpu_that_hung_while_the_guest_booted_is_asked_once_more_when_that_is_over() -> None:
    def at(uptime_s: float, condition: Condition) -> Guest:
        seen = with_gpu_condition(condition)
        return replace(seen, mark=replace(seen.mark, uptime_s=uptime_s))

    waits = Condition.NOT_ASKED
    eye = Eye(at(100, Condition.HANGS), at(300, waits), at(610, waits), at(640, Condition.HANGS), at(670, waits))
    observer = CombinedObserver(TARGET, SystemClock(), eye, None, None)
    for _ in range(5):
        observer.look()
    assert [bool(skipped) for skipped in eye.skipped] == [False, True, True, False, True]


def test_both_sides_are_looked_at_at_the_same_time() -> None:
    """Each side waits for the other: one after the other would never end."""
    both = threading.Barrier(2, timeout=30)

    class Waiting:
        def look(self, skip_gpus: Iterable[str] = (), *, deadline: float) -> Guest | Mute:
            both.wait()
            return guest()

    def hypervisor() -> NoHypervisor:
        both.wait()
        return NoHypervisor("unreachable", "x")

    snapshot = CombinedObserver(TARGET, SystemClock(), Waiting(), hypervisor, None).look()
    assert isinstance(snapshot.hypervisor, NoHypervisor)


def test_without_a_cluster_it_is_said_that_none_is_configured() -> None:
    snapshot = CombinedObserver(TARGET, SystemClock(), Eye(guest()), None, None).look()
    assert snapshot.hypervisor == NoHypervisor("not-configured", "no cluster is configured for node-174")


class Ticking:
    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 1.0
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


def watch(*answers: Guest | Mute) -> BootWatch:
    time_ = Ticking()
    eye = Eye(*answers)
    return BootWatch(lambda seconds: eye.look(deadline=seconds), lambda: None, clock=time_.now, sleep=time_.sleep)


MUTE = Mute(Failure.REFUSED, "connection refused")


def rebooted() -> Guest:
    base = guest()
    return replace(base, identity=replace(base.identity, boot_id="another-boot"))


def test_a_boot_is_proved_by_another_boot_id_and_all_gpus() -> None:
    old = guest()
    few = replace(rebooted(), gpus=Known(()))
    gpus = len(old.gpus.value) if isinstance(old.gpus, Known) else 0
    outcome = watch(MUTE, old, few, rebooted())(AwaitBoot(old.identity.boot_id, gpus, 600))
    assert outcome.ok
    assert "another-boot" in outcome.detail


@pytest.mark.parametrize(
    ("answer", "said"),
    [(MUTE, "refused"), (guest(), "still the old boot"), (replace(rebooted(), gpus=Known(())), "0 of 8 GPUs")],
)
def test_what_is_missing_at_the_deadline_is_said(answer: Guest | Mute, said: str) -> None:
    outcome = watch(answer)(AwaitBoot(guest().identity.boot_id, 8, 120))
    assert not outcome.ok
    assert said in outcome.detail


ROWS = (
    GuestRow(174, "node-174", "pve1", GuestKind.VM, "running"),
    GuestRow(175, "node-175", "pve1", GuestKind.VM, "running"),
    GuestRow(200, "twin", "pve1", GuestKind.VM, "running"),
    GuestRow(201, "twin", "pve2", GuestKind.VM, "running"),
)
KNOWN = {"big": Target("big", "192.0.2.9", cluster="pve", vmid=174)}


def find(word: str) -> Target | Unresolved:
    return resolve(word, KNOWN, ["pve"], lambda cluster: ROWS)


@pytest.mark.parametrize("word", ["big", "174", "192.0.2.9", "node-174"])
def test_all_names_of_a_guest_mean_one_target(word: str) -> None:
    assert find(word) == KNOWN["big"]


def test_a_guest_that_is_not_configured_is_found_on_its_cluster() -> None:
    assert find("node-175") == Target("node-175", "", GuestKind.VM, "pve", 175)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("twin", "several guests"),
        ("pve1", "is a Proxmox node"),
        ("node-17", "did you mean node-17"),
        ("nothing-like-it", "no target"),
    ],
)
def test_what_is_no_target_is_refused_and_explained(word: str, says: str) -> None:
    found = find(word)
    assert isinstance(found, Unresolved)
    assert says in str(found)


TWO = {"a": ROWS[:1], "b": (GuestRow(174, "node-174", "pve9", GuestKind.VM, "running"), GuestRow(9, "only-b", "pve9",
       GuestKind.CONTAINER, "running"))}  # fmt: skip


def among(word: str, **down: str) -> Target | Unresolved:
    return resolve(word, {}, ["a", "b"], lambda cluster: down.get(cluster) or TWO[cluster])


def test_the_same_number_in_two_clusters_is_said_with_its_cluster() -> None:
    found = among("174")
    assert isinstance(found, Unresolved) and "a/174 (node-174) on pve1" in str(found) and "b/174" in str(found)
    one, other = among("a/174"), among("b/node-174")
    assert isinstance(one, Target) and isinstance(other, Target)
    assert (one.cluster, one.vmid, one.name) == ("a", 174, "a/node-174") and other.name == "b/node-174"
    assert among("only-b") == Target("only-b", "", GuestKind.CONTAINER, "b", 9)
    assert among("b/9") == Target("only-b", "", GuestKind.CONTAINER, "b", 9), "no other has that name"


def test_a_word_is_not_unique_while_a_cluster_cannot_be_asked() -> None:
    found = among("only-b", a="connection refused")
    assert isinstance(found, Unresolved) and "a: connection refused" in str(found) and "b/9" in str(found)
    assert isinstance(among("b/9", a="connection refused"), Target)
    configured = {"mine": Target("mine", "192.0.2.9", cluster="b", vmid=9)}
    same = resolve("only-b", configured, ["a", "b"], lambda c: "refused" if c == "a" else TWO[c])
    assert same == configured["mine"], "what is configured is meant"


NAMES = st.sampled_from(["a", "b", "big", "9", "174", "", "web red", "-x", "pve1"])
INVENTORY = st.dictionaries(
    st.sampled_from(["one", "two"]),
    st.dictionaries(st.sampled_from([7, 9, 174]), st.tuples(NAMES, st.sampled_from(["pve1", "pve2"])), max_size=3),
    min_size=1,
)


@given(INVENTORY, st.sampled_from(["big", "a"]), st.sampled_from([("one", 9), ("two", 174)]))
def test_a_targets_name_means_that_guest_and_no_other(
    inventory: dict[str, dict[int, tuple[str, str]]], mine: str, configured: tuple[str, int]
) -> None:
    """Journal, lock and baseline lie under it. Caught, planted: the guest's own name, which two nodes may have."""
    known = {mine: Target(mine, "192.0.2.9", cluster=configured[0], vmid=configured[1])}
    rows = {c: tuple(GuestRow(v, n, node, GuestKind.VM, "running") for v, (n, node) in guests.items())
            for c, guests in inventory.items()}  # fmt: skip
    called: dict[str, tuple[str, int | None]] = {}
    for cluster, guests in rows.items():
        for row in guests:
            for word in (row.name, str(row.vmid), f"{cluster}/{row.vmid}", f"{cluster}/{row.name}"):
                found = resolve(word, known, list(rows), lambda c: rows[c])
                if isinstance(found, Unresolved):
                    continue
                assert called.setdefault(found.name, (found.cluster, found.vmid)) == (found.cluster, found.vmid)
                again = resolve(found.name, known, list(rows), lambda c: rows[c])
                assert isinstance(again, Target) and (again.cluster, again.vmid) == (found.cluster, found.vmid)
                assert found.name == mine or " " not in found.name


def test_an_address_is_looked_for_among_the_guests() -> None:
    asked: list[str] = []

    def addresses(cluster: str) -> dict[int, tuple[str, ...]]:
        asked.append(cluster)
        return {9: ("10.1.2.3",)} if cluster == "b" else {174: ("10.1.2.4", "10.1.2.5")}

    def find_in_both(word: str) -> Target | Unresolved:
        return resolve(word, {}, ["a", "b"], lambda cluster: TWO[cluster], addresses)

    assert find_in_both("10.1.2.3") == Target("only-b", "", GuestKind.CONTAINER, "b", 9)
    nobody = find_in_both("10.9.9.9")
    assert isinstance(nobody, Unresolved) and "no GPU guest that was asked" in str(nobody)
    asked.clear()
    assert isinstance(find_in_both("only-b"), Target) and not asked, "a name needs no such question"


def test_a_cluster_that_cannot_be_asked_is_named() -> None:
    found = resolve("x", KNOWN, ["pve"], lambda cluster: "connection refused")
    assert "pve: connection refused" in str(found)


def test_a_sleep_ends_when_an_abort_is_asked_for(tmp_path: Path) -> None:
    interrupts = SignalInterrupts(tmp_path / "abort")
    clock = SystemClock(lambda: bool(interrupts.pending()))
    threading.Timer(0.2, lambda: (tmp_path / "abort").write_text(json.dumps({"who": "kim"}))).start()
    clock.sleep(120.0)
    assert interrupts.pending() == "abort by kim"


def test_a_signal_is_noted_and_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    interrupts = SignalInterrupts()
    interrupts.install()
    signal.raise_signal(signal.SIGTERM)
    assert interrupts.pending() == "SIGTERM"
    interrupts.uninstall()
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_clock_never_goes_back() -> None:
    clock = SystemClock()
    first = clock.now()
    assert clock.now() >= first
    assert abs(first - time.time()) < 3600


def test_evidence_that_cannot_be_had_is_named_and_stops_nothing(tmp_path: Path) -> None:
    def broken(snapshot: Snapshot, seconds: float) -> Found:
        raise ConnectionError("gone")

    def processes(snapshot: Snapshot, seconds: float) -> Found:
        return [("../ps.txt", b"x")], ["py-spy is not installed"]

    folder = EvidenceFolder(tmp_path / "e", [("logs", broken), ("ps", processes)])
    saved = folder.keep(b.healthy_snapshot())
    assert saved.missing == ("logs: ConnectionError: gone", "py-spy is not installed")
    assert (Path(saved.folder) / "ps.txt").read_bytes() == b"x"
    assert json.loads((Path(saved.folder) / "snapshot.json").read_text())["$"] == "Snapshot"
