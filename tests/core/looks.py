"""Several looks in a row, as the engine takes them: the anchors of one are what the next one knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from recover.core.diagnose import assess
from recover.core.past import Past, advance
from recover.model.ladder import Limits
from recover.model.snapshot import Snapshot
from recover.model.verdict import Diagnosis, Finding

LIMITS = Limits()


def once(snapshot: Snapshot, past: Past | None = None, limits: Limits = LIMITS) -> Diagnosis:
    return assess(snapshot, past or Past(), limits)[1]


def follow(
    snapshots: Iterable[Snapshot], every_s: float = 30.0, past: Past | None = None, limits: Limits = LIMITS
) -> list[Diagnosis]:
    """Assess each snapshot `every_s` after the one before."""
    past = past or Past()
    found = []
    at = 1_000_000.0
    for snapshot in snapshots:
        diagnosis = assess(replace(snapshot, at=at), past, limits)[1]
        past = replace(past, anchors=advance(past.anchors, diagnosis.symptoms, at))
        found.append(diagnosis)
        at += every_s
    return found


def stuck(snapshot: Snapshot, looks: int = 4, every_s: float = 30.0, past: Past | None = None) -> Diagnosis:
    """What the last of several equal looks means."""
    return follow([snapshot] * looks, every_s, past)[-1]


def signals(diagnosis: Diagnosis) -> list[str]:
    return [finding.signal for finding in diagnosis.findings]


def finding(diagnosis: Diagnosis, signal: str) -> Finding:
    found = [f for f in diagnosis.findings if f.signal == signal]
    assert len(found) == 1, (signal, diagnosis.findings, diagnosis.gaps)
    return found[0]
