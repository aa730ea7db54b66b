"""The host memory that SGLang takes, one demand per thing: HiCache and its side pools, offloaded weights, decode pools.

Formulas: `mem_cache/memory_pool_host.py:136-190` (0.5.9), `mem_cache/pool_host/base.py:176-281` (0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from recover.core.budget import demands_weights
from recover.core.budget.arithmetic import (
    AUTO_SHARE,
    RESERVE,
    Case,
    option_count,
    own_check,
    page_words,
    paged,
    seen_by_check,
)
from recover.core.budget.arithmetic import pinned as taken
from recover.core.budget.model import GB, Check, Demand, OwnCheck, Pages, Pinning, Place, Problem, Scope, Semantics
from recover.core.budget.sizes import both, decimal
from recover.model.reading import Known

Result = tuple[Demand, OwnCheck | None]


def demands(case: Case) -> Iterator[Result]:
    if size := _size(case):
        yield _sized(case, size)
    elif (ratio := _ratio(case)) is not None:
        yield _by_ratio(case, "hicache-ratio", "the HiCache pool", *ratio)
    if _retraction(case):
        yield _by_ratio(case, "", "the decode retraction pool", Decimal("0.2"), "the default of a decode server")
    for demand in demands_weights.sglang(case):
        yield demand, None


def hicache_on(case: Case) -> bool:
    """Whether a host pool is made at all."""
    launch = case.launch
    return launch.has("enable-hierarchical-cache") or (
        launch.has("disaggregation-decode-enable-offload-kvcache") and case.rule("decode-offload").value is True
    )


def _size(case: Case) -> int:
    return option_count(case.launch, "hicache-size") or 0


def _ratio(case: Case) -> tuple[Decimal, str] | None:
    """The ratio in force and where it comes from; None: no pool."""
    if not hicache_on(case):
        return None
    option = case.launch.option("hicache-ratio")
    if option is not None:
        return decimal(option.value or "", option.said), f"{option.said} {option.value}"
    if case.launch.value("hicache-host-memory-mode") == "buffer_only":
        return Decimal("1.2"), "the default of buffer_only"
    rule = case.rule("default-ratio")
    return Decimal(str(rule.value)), "the default where neither a size nor a ratio is given"


def _retraction(case: Case) -> bool:
    """A decode server of 0.5.18 and later keeps a pool for retracted requests without any HiCache flag."""
    launch = case.launch
    if launch.value("disaggregation-mode") != "decode" or case.rule("retraction-pool").value is not True:
        return False
    said = launch.value("disaggregation-decode-retraction-backup")
    if said is not None:
        return said == "host_pool"
    return not (case.model is not None and case.model.replicated) and not hicache_on(case)


# --- a size -------------------------------------------------------------------------------------------------------


def _sized(case: Case, size: int) -> Result:
    meaning = case.meaning("hicache-size")
    unit = meaning.unit.bytes or GB
    if case.model is not None and case.model.refused:
        raise Problem(f"--hicache-size {size}: {case.model.refused}")
    amount, lines = size * unit, [f"--hicache-size {size} = {both(size * unit)} {meaning.scope}"]
    if meaning.scope is not Scope.RANK:
        amount //= case.counts.tp * case.counts.pp
        lines.append(f"/ {case.counts.tp * case.counts.pp} ranks = {both(amount)} per rank")
    low, high, asked, least = _pools(case, meaning, amount, lines)
    rank = f"x {case.counts.on_host} ranks ({case.counts.formula}) = {both(low * case.counts.on_host)}"
    lines.append(rank if high is not None else f"at least {rank}")
    needs = "" if high is not None else "the model's config.json, for the pools beside the main one"
    demand = Demand(
        *("hicache-size", "the HiCache pool", low, high, case.counts.on_host, "rank", tuple(lines)),
        place=_place(case),
        source=meaning.proved_by or meaning.source,
        needs=needs,
    )
    return demand, own_check(meaning.check, asked, case, least)


def _pools(case: Case, meaning: Semantics, amount: int, lines: list[str]) -> tuple[int, int | None, int, int]:
    """Bytes taken per rank, at least and at most, and what the check is asked for, at most and at least.

    Side pools came after pinning to a power of two had gone, so that only the main one is rounded.
    """
    model = case.model
    if model is None:
        low = taken(amount, meaning.pinning)
        _pin_words(meaning.pinning, amount, low, lines)
        return low, low if _alone(case) else None, amount, amount
    inside = model.indexer and case.rule("indexer").value != "apart"
    row = model.main + (model.indexer if inside else 0)
    number = amount // row
    count = paged(number, case.page, meaning.pages)
    lines.append(f"{model.kind}: {model.formula}: {row} bytes per token and rank")
    lines.append(f"{amount} / {row} = {page_words(number, case.page, meaning.pages)}")
    main = count * row
    low = taken(main, meaning.pinning)
    _pin_words(meaning.pinning, main, low, lines)
    apart = most_apart = 0
    if model.indexer and not inside:
        apart = count * model.indexer
        lines.append(f"the indexer's own pool: {count} x {model.indexer} = {both(apart)} more")
        most_apart = paged(amount // model.unpacked, case.page, meaning.pages) * model.indexer
        if most_apart > apart:
            lines.append(f"up to {both(most_apart)} where the attention backend does not pack the rows")
    least, most = _states(case, amount, lines)
    draft = _draft(case, count, lines)
    sides = apart + least + draft[0]
    if draft[1] is None:
        return low + sides, None, main + sides, main
    most_sides = max(apart, most_apart) + most + draft[1]
    return low + sides, low + most_sides, main + most_sides, main


def _pin_words(pinning: Pinning, amount: int, low: int, lines: list[str]) -> None:
    if pinning is Pinning.POWER_OF_TWO:
        lines.append(f"pinned memory is rounded up to a power of two: {both(amount)} takes {both(low)}")
    else:
        lines.append(f"{both(low)} per rank")


def _alone(case: Case) -> bool:
    """Whether the main pool is all that a size makes, whatever the model is."""
    if case.plain:
        return True
    sides = (case.rule("indexer").value == "apart", case.rule("state-pool").value == "same-again", _drafts(case))
    return not any(sides)


def _states(case: Case, amount: int, lines: list[str]) -> tuple[int, int]:
    """The state pool of Mamba and linear-attention models, and of sliding windows: at least, at most."""
    model = case.model
    if model is None or not (model.state_layers or model.windows):
        return 0, 0
    rule = case.rule("state-pool").value
    if rule == "same-again":
        what = "the state pool" if model.state_layers else "the sliding-window pool"
        sure = model.state_layers
        lines.append(f"{what} gets {'' if sure else 'up to '}the same size again: {both(amount)} more")
        return (amount if sure else 0), amount
    return 0, 0


def _drafts(case: Case) -> bool:
    said = (case.launch.value("speculative-algorithm") or "").upper()
    return bool(said) and said != "NGRAM" and case.rule("draft-pool").value is True


def _draft(case: Case, count: int, lines: list[str]) -> tuple[int, int | None]:
    """The draft model's pool holds as many tokens as the target's."""
    if not _drafts(case):
        return 0, 0
    if case.draft is not None:
        row = case.draft.main + case.draft.indexer
        lines.append(f"the draft model's pool: {count} x {row} = {both(count * row)} more")
        return count * row, count * row
    model = case.model
    if model is not None and model.nextn and not case.launch.has("speculative-draft-model-path"):
        row = -(-(model.main + model.indexer) // model.layers) * model.nextn
        lines.append(f"the built-in draft layers: up to {count} x {row} = {both(count * row)} more")
        return 0, count * row
    lines.append("the draft model's pool comes on top: its config.json was not given")
    return 0, None


def _place(case: Case) -> Place:
    if case.launch.variable("SGLANG_HUGEPAGE_SIZE") and case.rule("hugepages").value is True:
        return Place.HUGE
    return Place.SHM if case.launch.value("hicache-storage-backend") == "shm" else Place.RAM


# --- a ratio ------------------------------------------------------------------------------------------------------


def _by_ratio(case: Case, flag: str, what: str, ratio: Decimal, why: str) -> Result:
    meaning = case.meaning("hicache-ratio")
    lines = [f"ratio {ratio} ({why}) of the device KV pool of each rank"]
    ranks = case.counts.on_host
    low, high = _device(case, meaning.pages, ratio, lines)
    auto = _auto(case) if flag else None
    if auto is not None:
        lines.append(auto[1])
        high = auto[0] if high is None else min(high, auto[0])
        low = min(low, auto[0])
    if not flag and (request := _request(case, meaning.pages, lines)):
        low, high = max(low, request) if low else low, None if high is None else max(high, request)
    low = taken(low, meaning.pinning)
    if high is not None:
        high = taken(high, meaning.pinning)
        lines.append(f"at most {both(high)} per rank, x {ranks} ranks ({case.counts.formula}) = {both(high * ranks)}")
    demand = Demand(
        *(flag, what, low, high, ranks, "rank", tuple(lines)),
        place=_place(case),
        source=meaning.proved_by or meaning.source,
        needs="" if high == low else "the size of the device KV pool: max_total_num_tokens of a server that ran",
    )
    check = own_check(meaning.check, high if high is not None else low, case, low) if auto is None else None
    return demand, check


def _request(case: Case, pages: Pages, lines: list[str]) -> int:
    """The retraction pool holds one request of the greatest length, however small its ratio; 0: it is not known."""
    model = case.model
    if model is None:
        return 0
    longest = option_count(case.launch, "context-length") or model.context
    if isinstance(case.facts.device_tokens, Known):
        longest = min(longest, case.facts.device_tokens.value)
    amount = paged(longest, case.page, pages) * (model.main + model.indexer) if longest else 0
    if amount:
        lines.append(f"and at least one request of {longest} tokens: {both(amount)} per rank")
    return amount


def _device(case: Case, pages: Pages, ratio: Decimal, lines: list[str]) -> tuple[int, int | None]:
    """Bytes of the host pool, at least and at most."""
    facts, model = case.facts, case.model
    if isinstance(facts.device_tokens, Known) and model is not None:
        row = model.main + model.indexer
        count = paged(int(facts.device_tokens.value * ratio), case.page, pages)
        lines.append(f"{facts.device_tokens.value} tokens on the device x {ratio}: {count} tokens")
        lines.append(f"{model.kind}: {model.formula}; {count} x {row} = {both(count * row)} per rank")
        exact = not (model.state_layers or model.windows or _drafts(case))
        return count * row, count * row if exact else _gpu_bound(case, ratio, lines)
    return 0, _gpu_bound(case, ratio, lines)


def _gpu_bound(case: Case, ratio: Decimal, lines: list[str]) -> int | None:
    """The device pool can't be larger than the GPU memory that the weights leave."""
    if not case.facts.gpus:
        lines.append("how large the device pool gets is not known: no GPU was read")
        return None
    total = max(g.total for g in case.facts.gpus)
    share = Decimal(1)
    option = case.launch.option("mem-fraction-static")
    if option is not None:
        share = min(Decimal(1), decimal(option.value or "", option.said))
    pool = int(total * share)
    words = f"the device pool is at most {both(total)}" + (f" x {share}" if share < 1 else "")
    if isinstance(case.facts.weights, Known):
        part = case.facts.weights.value // (case.counts.tp * case.counts.pp)
        pool = max(0, pool - part)
        words += f" - {both(part)} of weights"
    lines.append(f"{words} = {both(pool)}")
    return int(pool * ratio)


def _auto(case: Case) -> tuple[int, str] | None:
    """Auto-sizing (0.5.21 and later) bounds the pools, only where neither a size nor a ratio is given."""
    if case.rule("auto-size").value is not True or case.launch.has("hicache-ratio"):
        return None
    seen = seen_by_check(Check.SPLIT_CGROUP, case.facts, case.launch)
    if seen is None:
        return None
    room, ranks = max(0, seen - RESERVE), case.counts.checked
    option = case.launch.option("hicache-host-memory-fraction")
    if option is None:
        share = room * AUTO_SHARE[0] // AUTO_SHARE[1] // ranks
        return share, f"auto-sizing: ({both(seen)} - 10 GiB) x 0.8 x 0.95 / {ranks} ranks = {both(share)}"
    fraction = decimal(option.value or "", option.said)
    share = int(room * fraction * Decimal("0.95")) // ranks
    return share, f"auto-sizing: ({both(seen)} - 10 GiB) x {fraction} x 0.95 / {ranks} ranks = {both(share)}"
