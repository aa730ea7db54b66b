"""What vLLM's source does with `kv_offloading_size`: bytes for all ranks of one engine, or for each.

The size becomes either a share per rank at once (0.13), or a total that the offloading spec divides by the bytes that
a block has on all workers (later). Both are looked for; where neither shows, nothing is proved.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from recover.core.budget.model import Scope
from recover.core.budget.proof_ast import World, read
from recover.core.budget.proof_result import Proof, Shown
from recover.core.budget.proof_trial import COUNTS
from recover.core.budget.proof_uses import Use, handed, strange_settings, uses

_FLAG = re.compile(r"(?:^|\.)kv_offloading_size$")
_COUNTS = COUNTS | {
    "blocks",
    "chunks",
    "factor",
    "tensors",
}  # a worker's bytes per block are these times a block's bytes
_TOTAL = re.compile(r"(?:^|\.)cpu_bytes_to_use$")


def prove(version: str, sources: Mapping[str, str], missing: Sequence[str] = ()) -> tuple[Proof, ...]:
    """About `--kv-offloading-size`; nothing where the release has no such flag."""
    world = read(sources)
    found = uses(world, _FLAG)
    if not found and not world.unread and not missing:
        return ()
    doubts = [*(f"{path} was not read" for path in missing), *world.unread, *(u.doubt for u in found if u.doubt)]
    doubts += (*strange_settings(world, "kv_offloading_size"), *handed(world, _FLAG))
    start = Proof("vllm", version, "kv-offloading-size", doubts=tuple(doubts))
    main = next((use for use in found if use.unit is not None), None)
    if main is None:
        return (start,)
    scope, shown, why = _scope(world, main)
    shares = [use for use in found if use.unit is None and use.ranks < 0]
    shown += [Shown("the lmcache backend gets its share per rank", use.at) for use in shares]
    return (replace(start, unit=main.unit, scope=scope, at=main.at, shown=tuple(shown), doubts=(*doubts, *why)),)


def _scope(world: World, main: Use) -> tuple[Scope | None, list[Shown], tuple[str, ...]]:
    if main.ranks > 0:
        return None, [], (f"{main.at} multiplies by the ranks",)
    if main.ranks < 0:
        return Scope.ENGINE, [Shown("divided by the ranks", main.at)], ()
    takers = [u for u in uses(world, _TOTAL, _COUNTS, pick=1) if not _only_a_share(u)]
    doubts = tuple(u.doubt for u in takers if u.doubt)
    dividing = [u for u in takers if u.ranks < 0 and not u.doubt]
    whole = [u for u in takers if u.ranks == 0 and not u.doubt]
    if doubts or not takers:
        return None, [], doubts or ("who takes the bytes was not found in the source",)
    if whole and dividing:
        return None, [], (f"{dividing[0].at} divides by the ranks, {whole[0].at} does not",)
    if whole:
        return Scope.RANK, [Shown("taken by each rank as it is", whole[0].at)], ()
    return Scope.ENGINE, [Shown("spread over the bytes of all ranks", use.at) for use in dividing], ()


def _only_a_share(use: Use) -> bool:
    """Computations on the way that leave bytes as bytes (a test's default, a rounding)."""
    return use.unit is None and use.ranks == 0 and not use.doubt
