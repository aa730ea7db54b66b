"""The fault matrix's bench: an act or a whole run against the lab's API, and the invariants that hold on every row."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from recover.core.guards import Context
from recover.core.history import History
from recover.edge.actuator.hypervisor import HypervisorActuator
from recover.edge.evidence import NoEvidence
from recover.edge.proxmox.client import Client
from recover.edge.proxmox.tasks import Tasks
from recover.engine import Run, World
from recover.model.act import Action, Outcome, ResetVm, ShutdownVm, StartVm, StopVm
from recover.model.ladder import Playbook
from recover.model.record import Acted, Acting, Entry, Opened
from tests.edge.actuator.vm_bench import SleptClock
from tests.edge.proxmox.conftest import Lab

SECOND = 0.004  # one second of ours, in real ones
VERB = {StopVm: "stop", ShutdownVm: "shutdown", StartVm: "start", ResetVm: "reset"}
Call = tuple[str, dict[str, Any]]


def call(op: str, **arguments: Any) -> Call:
    return op, arguments


class Journal:
    """Entries with the moment at which they were on disk."""

    def __init__(self) -> None:
        self.kept: list[tuple[float, Entry]] = []

    def append(self, entry: Entry) -> None:
        self.kept.append((time.time(), entry))

    def entries(self) -> Iterator[Entry]:
        return iter([entry for _, entry in self.kept])


class Nobody:
    """The doors that a row does not need."""

    def entry(self, entry: Entry) -> None: ...
    def asking(self, asking: bool) -> None: ...
    def acted(self, action: Action) -> None: ...
    def pending(self) -> str:
        return ""


@dataclass
class Meddled:
    """What happens in the world beside us: `before` our POST of that verb leaves, and `after` its answer came."""

    before: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)
    after: Mapping[str, tuple[Call, ...]] = field(default_factory=dict)


_OTHER_PIN: dict[str, Any] = {"ca_file": None, "fingerprint": "ab" * 32}


class Row(Lab):
    """One row's API, the client that is meddled with, and the journal."""

    meddled = Meddled()
    untrusted = False  # our POSTs meet a certificate that we do not trust
    distrusts = False  # so does every question
    timeout = 10.0
    fast = SleptClock(SECOND)

    def __enter__(self) -> Row:
        super().__enter__()
        self.journal = Journal()
        self.token_secret = self.secret
        return self

    def meddling(self) -> Client:
        server = self

        class Meddling(Client):
            def post(self, where: str, **params: Any) -> Any:
                verb = where.rpartition("/")[2]
                for op, arguments in server.meddled.before.get(verb, ()):
                    server.call(op, **arguments)
                if server.untrusted:
                    return server.client(Client, **_OTHER_PIN).post(where, **params)
                answer = super().post(where, **params)
                for op, arguments in server.meddled.after.get(verb, ()):
                    server.call(op, **arguments)
                return answer

        return self.client(Meddling, timeout=self.timeout, **(_OTHER_PIN if self.distrusts else {}))

    def hands(self, client: Client, await_boot: Any) -> HypervisorActuator:
        clock, sleep = self.fast.passed, self.fast.sleep
        tasks = Tasks(client, sleep=sleep, clock=clock)
        return HypervisorActuator(client, tasks, "pve", clock=clock, sleep=sleep, await_boot=await_boot)

    def act(self, action: Action) -> Outcome:
        """As the engine does it: written down, done, written down."""
        hands = self.hands(self.meddling(), lambda a: Outcome(True))
        nobody: Any = Nobody()
        world = World(nobody, hands, nobody, self.fast, self.journal, NoEvidence(), nobody, nobody)
        outcome = Run(world, Playbook("matrix", ""), Context(), History())._act(action)
        assert outcome.detail.isprintable()
        return outcome

    @property
    def vm(self) -> dict[str, Any] | None:
        """The guest's state; None: it is gone."""
        found: dict[str, Any] | None = self.state()["vms"].get("174")
        return found

    def sent(self) -> list[str]:
        return [note["path"].rpartition("/")[2] for note in self.power()]

    def power(self) -> list[dict[str, Any]]:
        """Every request that may have changed something: a ping of the guest's agent is a POST by its form only."""
        return [r for r in self.requests() if r["method"] != "GET" and not r["path"].endswith("/agent/ping")]

    # the invariants

    def check(self) -> None:
        self.only_power_and_no_skiplock()
        self.no_blind_repetition()
        self.journal_first()
        secret, said = self.token_secret, repr(self.journal.kept)
        assert secret not in said

    def only_power_and_no_skiplock(self) -> None:
        for note in self.requests():
            assert "skiplock" not in note["params"], note
            assert note["method"] in ("GET", "POST"), note
        for note in self.power():
            assert "/status/" in note["path"] and note["params"].get("forceStop", 0) in (0, "0"), note

    def no_blind_repetition(self) -> None:
        """After a POST whose end was unclear the same is sent again only after task list and state were both read."""
        notes = self.requests()
        power = self.power()
        for one, next_one in pairwise(power):
            if not unclear(one):
                continue
            between = [n for n in notes if one["n"] < n["n"] < next_one["n"] and n["status"] == 200]
            listed = [n for n in between if n["path"].endswith("/tasks")]
            looked = [n for n in between if n["path"].endswith("/status/current")]
            assert listed and looked, (one, next_one)

    def journal_first(self) -> None:
        """Each request that changes something came while its own act was begun and not ended in the journal."""
        spans: list[tuple[float, float, Action]] = []
        for at, entry in self.journal.kept:
            if isinstance(entry, Acting):
                spans.append((at, float("inf"), entry.action))
            elif isinstance(entry, Acted):
                began, _, action = spans[-1]
                spans[-1] = (began, at, action)
        for note in self.power():
            verb = note["path"].rpartition("/")[2]
            assert any(VERB.get(type(a)) == verb and b <= note["time"] <= e for b, e, a in spans), (note, spans)

    def opened(self) -> Opened:
        return Opened(self.fast.now(), "m", "node-174", "matrix", "", "kim", "ctl", 1, 1500.0)


def unclear(note: dict[str, Any]) -> bool:
    """Whether we could not know what came of it."""
    status = note["status"]
    return status is None or status >= 502 or note["fault"] in ("page", "cut") or (
        note["fault"] == "http" and 200 <= status < 300
    )  # fmt: skip


@contextmanager
def row(folder: Path, *vms: dict[str, Any], second: float = SECOND, **config: Any) -> Iterator[Row]:
    """PVE's seconds are half as long as ours, so that its own time-outs come first."""
    with Row({"vms": list(vms), "time_scale": second / 2} | config, folder / "pve") as server:
        server.fast = SleptClock(second)
        yield server
