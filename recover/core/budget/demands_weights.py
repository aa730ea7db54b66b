"""Weights and other things beside the KV cache that an engine keeps in host memory; what has no formula is named.

Sources: sglang `utils/offloader.py`, `arg_groups/fields/exec_.py`; vllm `config/offload.py`, vllm issue 56410.
"""

from __future__ import annotations

from collections.abc import Iterator

from recover.core.budget.arithmetic import Case, option_count
from recover.core.budget.model import Demand, Semantics
from recover.core.budget.sizes import both
from recover.model.reading import Known

# Options that take host memory of an amount that no formula here gives.
_UNMEASURED = {
    "enable-hisparse": "its pool is a ratio of the device pool",
    "hisparse-config": "its pool is a ratio of the device pool",
    "offload-group-size": "whole layers are kept in host memory",
    "kt-weight-path": "experts are kept in host memory",
    "ple-offload-embedding": "embeddings are kept in host memory",
    "enable-paged-experts": "experts are kept in host memory",
    "enable-elastic-expert-backup": "experts are kept in host memory",
    "enable-flexkv": "FlexKV has its own host pool",
}


def sglang(case: Case) -> Iterator[Demand]:
    amount = option_count(case.launch, "cpu-offload-gb")
    if amount:
        meaning = case.meaning("cpu-offload-gb")
        yield offloaded(case, amount * (meaning.unit.bytes or 1), meaning)
    yield from _copies(case)
    for name, why in _UNMEASURED.items():
        if case.launch.has(name):
            yield _unmeasured(name, why)
    if case.launch.value("hicache-storage-backend") == "mooncake":
        yield _unmeasured("hicache-storage-backend", "mooncake has a memory segment of its own")


def offloaded(case: Case, low: int, meaning: Semantics) -> Demand:
    """Weights in pinned memory: each tensor is rounded up to a power of two, which at most doubles it."""
    ranks = case.counts.on_host
    lines = (
        f"{both(low)} per rank x {ranks} ranks ({case.counts.formula}) = {both(low * ranks)}",
        f"each tensor is pinned rounded up to a power of two: up to {both(2 * low * ranks)}; 1.9 times was measured",
    )
    what = "weights kept in host memory"
    return Demand("cpu-offload-gb", what, low, 2 * low, ranks, "rank", lines, source=meaning.source)


def _copies(case: Case) -> Iterator[Demand]:
    """The model in host memory while the GPU is released."""
    for name in ("enable-weights-cpu-backup", "enable-draft-weights-cpu-backup"):
        if not case.launch.has(name):
            continue
        if name == "enable-weights-cpu-backup" and isinstance(case.facts.weights, Known):
            total = case.facts.weights.value * case.counts.replicas
            lines = (f"the whole model, {both(total)}, when its memory on the GPU is released",)
            yield Demand(name, "a copy of the weights", total, total, 1, "host", lines)
        else:
            yield _unmeasured(name, "a copy of the weights, whose size was not read")


def _unmeasured(name: str, why: str) -> Demand:
    return Demand(name, why, 0, None, 1, "server", (f"--{name}: {why}",), needs=f"how much --{name} takes")
