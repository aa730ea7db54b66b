"""Plays a scenario folder against the simulated machine and writes down what a run does, second by second.

A folder has README.md (what happened and what must happen, in prose), scenario.toml (which fault, which limits, where
the tool is killed) and expected.journal (the run, in short lines). `python -m tests.scenarios.play NAME…` writes
expected.journal anew: read the difference before you commit it.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from recover.core.options import Context
from recover.edge.simulated import FAULTS, SimulatedClock, simulate
from recover.model.act import Action, OnHost
from recover.model.ladder import Rung
from recover.model.record import (
    Acted,
    Acting,
    Began,
    Closed,
    Consented,
    Decided,
    Declined,
    Ended,
    Entry,
    Interrupted,
    Kept,
    Opened,
    Restore,
    Saw,
    Stop,
    Try,
    Wait,
)
from recover.model.verdict import Scope
from tests.core.world import CONTAINER, FULL, HOST, PLAYBOOK, Asked, CutJournal, Killed, Played, YesGate, play

HERE = Path(__file__).parent


class KilledAt(CutJournal):
    """Killed right after the act called `action` was written down, before it is done."""

    def __init__(self, action: str, lines: list[Entry]) -> None:
        super().__init__(lines=lines)
        self.action = action

    def append(self, entry: Entry) -> None:
        super().append(entry)
        if isinstance(entry, Acting) and type(entry.action).__name__ == self.action:
            raise Killed


def folders() -> list[str]:
    return sorted(p.parent.name for p in HERE.glob("*/scenario.toml"))


def run(name: str) -> list[Played]:
    """The runs of a scenario: one, or two where the first is killed."""
    data = tomllib.loads((HERE / name / "scenario.toml").read_text())
    fault = replace(FAULTS[data["fault"]], **data.get("change", {}))
    limits = {k: Scope.of(v) if k == "max_scope" else v for k, v in data.get("limits", {}).items()}
    chosen = FULL if data.get("every_rung") else HOST if data.get("node_rungs") else PLAYBOOK
    chosen = CONTAINER if fault.container else chosen
    playbook = replace(chosen, limits=replace(chosen.limits, **limits))
    if "params" in data:
        playbook = replace(playbook, rungs=tuple(_given(rung, data["params"]) for rung in playbook.rungs))
    machine = simulate(fault, SimulatedClock(), baseline=data.get("baseline", True))
    common: dict[str, Any] = {
        "playbook": playbook,
        "machine": machine,
        "context": Context(run="test-run", approved=Scope.HOST_DEVICE, **data.get("flags", {})),
        "disruptions_today": data.get("disruptions_today", 0),
    }
    gate = YesGate(upto=Scope.of(data.get("consent", "host-device")))
    if "killed_before" not in data:
        journal = CutJournal()
        interrupts = Asked(after=data["interrupted_after"]) if "interrupted_after" in data else Asked()
        return [play(fault, journal=journal, gate=gate, interrupts=interrupts, **common)]
    first = play(fault, journal=KilledAt(data["killed_before"], []), gate=gate, **common)
    machine.clock.sleep(20.0)
    second = play(fault, journal=CutJournal(lines=first.journal.lines), gate=gate, **common)
    return [second]


def _given(rung: Rung, params: dict[str, dict[str, Any]]) -> Rung:
    return replace(rung, params=tuple(params.get(rung.step, {}).items()))


def log(name: str) -> str:
    lines = [f"# {name}: what the run does. Seconds since it began."]
    for played in run(name):
        lines += _lines(played.entries)
        lines.append(f"      machine cured={played.machine.cured} touched-healthy={played.machine.touched_healthy}")
    return "\n".join(lines) + "\n"


def _lines(entries: Iterable[Entry]) -> list[str]:
    found: list[str] = []
    began: float | None = None
    acts: dict[int, Action] = {}
    last: dict[type, str] = {}  # what was said since the last act: a look or a wait that says the same is left out
    for entry in entries:
        began = entry.at if began is None else began
        text = _say(entry, acts)
        idle = isinstance(entry, Saw) or (isinstance(entry, Decided) and isinstance(entry.decision, Wait))
        if not idle and text:
            last = {}
        if text and last.get(type(entry)) != text:
            found.append(f"{entry.at - began:5.0f} {text}")
        last[type(entry)] = text or last.get(type(entry), "")
    return found


def _say(entry: Entry, acts: dict[int, Action]) -> str:
    match entry:
        case Opened():
            return "resumed" if entry.resumed else "opened"
        case Saw():
            return _saw(entry)
        case Decided(decision=Wait(_, why)):
            return f"  wait    {why}" if why != "looking" else ""
        case Decided(decision=Try() as attempt):
            return f"  try     {attempt.step} #{attempt.attempt}"
        case Decided(decision=Restore(duty, n)):
            return f"  restore {duty.key} #{n}"
        case Decided(decision=Stop(end)):
            return f"  stop    {end.kind.value}: {end.why}" + (f" | next: {end.next}" if end.next else "")
        case Acting():
            acts[entry.n] = entry.action
            return ""
        case Acted(_, n, outcome):
            flags = "".join(
                f" {word}" for word, on in (("FAILED", not outcome.ok), ("UNCLEAR", not outcome.clear)) if on
            )
            return f"  act     {_act(acts[n])}: {outcome.detail or 'ok'}{flags}"
        case Declined():
            return f"  declined by {entry.by}: {entry.step}{' (skip)' if entry.skip else ''}"
        case Interrupted():
            return f"  interrupted by {entry.by}"
        case Closed():
            return f"closed {entry.end.kind.value} service={entry.service} carried={list(entry.carried)}"
        case Began() | Ended() | Consented() | Kept():
            return ""


def _saw(saw: Saw) -> str:
    found = Counter((f.signal, f.cure.word if f.cure is not None else "nobody") for f in saw.diagnosis.findings)
    words = [f"{signal}({cure})" + (f"×{n}" if n > 1 else "") for (signal, cure), n in found.items()]
    slow = Counter(s.key.split(":")[0] for s in saw.diagnosis.ripening)
    words += [f"ripening {key}" + (f"×{n}" if n > 1 else "") for key, n in slow.items()]
    used = sum(g.used_mib or 0 for g in saw.vitals.gpus)
    words += [saw.vitals.server.split(":")[0]] if saw.vitals.server else []
    reached = f"vram {used} MiB" if saw.vitals.reached else f"mute, vm {saw.vitals.vm_status}"
    return f"  saw     {saw.diagnosis.state.value}: {', '.join(words) or 'nothing'} [{reached}]"


def _act(action: Action) -> str:
    if isinstance(action, OnHost):
        return f"on the node {_act(action.do)}"
    name = type(action).__name__
    extra = getattr(action, "signal", "") or getattr(action, "name", "")
    if name == "SetPersistence":
        extra = "on" if action.on else "off"  # type: ignore[union-attr]
    return f"{name} {extra}".strip()


def main(names: list[str]) -> None:
    for name in names or folders():
        (HERE / name / "expected.journal").write_text(log(name))
        print(f"recorded {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
