"""The patrol over looks that do as they are told: its turns, its patience, and what it leaves behind."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from recover.edge.fleet import Failed, Late
from recover.edge.patrol import Patrol, Post, share


def until(true: Callable[[], bool]) -> None:
    ends = time.monotonic() + 60
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.005)


class Nodes:
    """Targets whose looks take until they are let go; what they were asked, and how many were at once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()  # "" counts all of them
        self.closed: Counter[str] = Counter()
        self.held: dict[str, threading.Event] = {}
        self.bugs: set[str] = set()
        self.heard: list[tuple[str, object]] = []

    def post(self, name: str) -> Post[str]:
        return Post(name, lambda seconds: self._look(name), lambda: self._close(name))

    def hold(self, *names: str) -> None:
        self.held.update({name: threading.Event() for name in names})

    def _look(self, name: str) -> str:
        with self.lock:
            self.asked[name] += 1
            for key in (name, ""):
                self.now[key] += 1
                self.most[key] = max(self.most[key], self.now[key])
        try:
            if name in self.held:
                self.held[name].wait(60)
            if name in self.bugs:
                raise ZeroDivisionError
            return f"{name} is well"
        finally:
            with self.lock:
                self.now[name] -= 1
                self.now[""] -= 1

    def _close(self, name: str) -> None:
        self.closed[name] += 1
        if name in self.held:
            self.held[name].set()

    def told(self, name: str) -> list[object]:
        return [answer for who, answer in list(self.heard) if who == name]


@contextmanager
def walking(nodes: Nodes, *names: str, period: float = 0.05, limit: float = 60.0, width: int = 8,
            patience: float = 60.0) -> Iterator[Patrol[str]]:  # fmt: skip
    patrol: Patrol[str] = Patrol(
        period, limit, width, lambda name, answer: nodes.heard.append((name, answer)), patience, 0.0
    )
    patrol.post([nodes.post(name) for name in names])
    thread = threading.Thread(target=patrol.run, daemon=True)
    thread.start()
    try:
        yield patrol
    finally:
        assert patrol.stop(30.0) == 0
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_each_is_looked_at_again_and_again(nodes: Nodes) -> None:
    with walking(nodes, "a", "b", "c") as patrol:
        until(lambda: all(nodes.asked[name] > 3 for name in "abc"))
        seen = patrol.figures()
    assert seen.targets == 3 and seen.looks >= 12 and seen.alive and seen.last_period_s is not None
    assert set(nodes.heard) == {(name, f"{name} is well") for name in "abc"}
    assert nodes.closed == Counter("abc") and not patrol.figures().alive


def test_one_that_hangs_is_late_once_and_delays_no_other(nodes: Nodes) -> None:
    nodes.hold("hung", "hung2")
    with walking(nodes, "hung", "hung2", "a", width=1, limit=0.1, patience=0.05) as patrol:
        until(lambda: nodes.asked["a"] > 5 and len(nodes.told("hung")) == 1 and len(nodes.told("hung2")) == 1)
        seen = patrol.figures()
        assert isinstance(nodes.told("hung")[0], Late) and seen.hanging == 2 and seen.missed > 0
        assert nodes.asked["hung"] == 1  # one that has not come back is not asked again
        nodes.held["hung"].set()
        until(lambda: nodes.asked["hung"] > 1 and "hung is well" in nodes.told("hung"))
    assert nodes.told("hung2") == [nodes.told("hung2")[0]]


def test_one_that_takes_long_gives_its_place_to_others(nodes: Nodes) -> None:
    nodes.hold("long")
    with walking(nodes, "long", "a", width=1, patience=0.05):
        until(lambda: nodes.asked["long"] == 1 and nodes.asked["a"] > 5)
        assert nodes.told("long") == []
        nodes.held["long"].set()
        until(lambda: nodes.told("long") != [])


def test_no_more_at_once_than_there_are_places(nodes: Nodes) -> None:
    names = [f"n{number}" for number in range(20)]
    nodes.hold(*names)
    with walking(nodes, *names, width=3):
        until(lambda: nodes.now[""] == 3)
        for event in nodes.held.values():
            event.set()
        until(lambda: all(nodes.asked[name] > 1 for name in names))
    assert nodes.most[""] == 3 and max(nodes.most[name] for name in names) == 1


def test_a_bug_in_one_is_told_of_that_one(nodes: Nodes) -> None:
    nodes.bugs.add("bug")
    with walking(nodes, "bug", "a"):
        until(lambda: nodes.asked["bug"] > 2 and nodes.asked["a"] > 2 and len(nodes.told("bug")) > 1)
    assert all(isinstance(a, Failed) and isinstance(a.error, ZeroDivisionError) for a in nodes.told("bug"))


def test_a_hearer_that_takes_its_time_delays_its_own_target_alone(nodes: Nodes) -> None:
    slow = threading.Event()

    def hear(name: str, answer: object) -> None:
        nodes.heard.append((name, answer))
        if name == "slow":
            slow.wait(60)

    patrol: Patrol[str] = Patrol(0.05, 60.0, 1, hear, 60.0)
    patrol.post([nodes.post("slow"), nodes.post("a")])
    threading.Thread(target=patrol.run, daemon=True).start()
    until(lambda: nodes.asked["a"] > 5 and nodes.asked["slow"] == 1)
    slow.set()
    until(lambda: nodes.asked["slow"] > 1)
    assert patrol.stop(30.0) == 0


def test_another_set_of_targets_closes_what_it_replaces_and_hears_it_no_more(nodes: Nodes) -> None:
    nodes.hold("stays", "goes")
    with walking(nodes, "stays", "goes") as patrol:
        until(lambda: nodes.now["stays"] == nodes.now["goes"] == 1)
        other = Nodes()
        patrol.post([other.post("stays"), other.post("new")])
        until(lambda: other.asked["stays"] > 1 and other.asked["new"] > 1)
        assert patrol.figures().targets == 2
    # Their answers came because their connections were closed: they say nothing about the targets.
    assert nodes.asked == Counter(("stays", "goes")) and nodes.closed == Counter(("stays", "goes"))
    assert nodes.told("goes") == [] and other.closed == Counter(("stays", "new"))
    assert nodes.most["stays"] == 1


def test_one_that_hung_when_it_left_is_not_looked_at_twice_when_it_comes_back(nodes: Nodes) -> None:
    nodes.hold("a")
    stuck = Post("a", nodes.post("a").look, lambda: None)
    with walking(nodes) as patrol:
        patrol.post([stuck])
        until(lambda: nodes.now["a"] == 1)
        patrol.post([nodes.post("b")])
        patrol.post([nodes.post("b"), stuck])
        until(lambda: nodes.asked["b"] > 3)
        assert nodes.asked["a"] == 1
        nodes.held["a"].set()
        until(lambda: nodes.asked["a"] > 1)
    assert nodes.most["a"] == 1


def test_stopping_closes_what_goes_on_and_says_what_does_not_end(nodes: Nodes) -> None:
    nodes.hold("ends")
    stuck = threading.Event()
    patrol: Patrol[str] = Patrol(0.05, 60.0, 8, lambda name, answer: nodes.heard.append((name, answer)), 60.0)
    deaf = Post("deaf", lambda seconds: str(stuck.wait(60)), lambda: None)
    patrol.post([nodes.post("ends"), deaf])
    threading.Thread(target=patrol.run, daemon=True).start()
    until(lambda: patrol.figures().in_flight == 2)
    assert patrol.stop(1.0) == 1 and nodes.heard == []
    stuck.set()
    until(lambda: patrol.figures().in_flight == 0)


def test_turns_are_spread_over_the_period_and_the_same_after_a_restart() -> None:
    names = [f"node-{number}" for number in range(400)]
    tenths = Counter(int(10 * share(name)) for name in names)
    assert set(tenths) == set(range(10)) and max(tenths.values()) < 60
    assert [round(share(name), 6) for name in names[1:3]] == [0.209337, 0.091705]
