"""What servers that run, or ran, show of a model: its device pool, and what its processes hold beside their pools."""

from __future__ import annotations

from dataclasses import replace

from recover.core.budget.model import Facts, Launch
from recover.core.budget.preflight_report import Gathered, Loading
from recover.core.budget.rewrite import sizing_options
from recover.core.budget.sizes import both
from recover.core.budget.version import Version
from recover.model.reading import Known


def learned(launch: Launch, found: Gathered) -> tuple[Facts, list[str]]:
    """What a running server of the same model shows: the device pool's tokens, and what its processes hold beside
    their pools. Where pools are private memory (SGLang before 0.5.13) the two can't be told apart."""
    facts, said = found.facts, []
    for other in found.running:
        if other.launch.engine != launch.engine or not launch.model or other.launch.model != launch.model:
            continue
        if other.tokens and not isinstance(facts.device_tokens, Known):
            facts = replace(facts, device_tokens=Known(other.tokens))
            said.append(f"the device pool's {other.tokens} tokens are those of the server with pid {other.pid}")
        if other.anon and facts.loading is None and not private_pools(other.launch, launch.version):
            facts = replace(facts, loading=other.anon)
            said.append(f"loading was measured: {both(other.anon)} of private memory, the server with pid {other.pid}")
    before = [one for one in found.ran if launch.model and (one.engine, one.model) == (launch.engine, launch.model)]
    if before and facts.loading is None:
        facts = replace(facts, loading=before[-1].amount)
        said.append(f"loading was measured on {before[-1].day}: {both(before[-1].amount)}, when a server of it ran")
    return facts, said


def measured(found: Gathered, day: str) -> tuple[Loading, ...]:
    """What the servers that run there teach for a time when they don't."""
    version = found.installed.version if found.installed is not None else None
    return tuple(
        Loading(other.launch.engine, other.launch.model, other.anon, day)
        for other in found.running
        if other.anon and other.launch.model and not private_pools(other.launch, version)
    )


def private_pools(other: Launch, version: Version | None) -> bool:
    known = other.version or version
    return bool(sizing_options(other)) and (known is None or known.release < (0, 5, 13))
