"""One launch against one machine: every reason is kept, and the worst of them is the verdict.

does-not-fit outranks cannot-tell, which outranks tight: what surely fails is not made better by what isn't known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from recover.core.budget import demands_other, demands_sglang
from recover.core.budget.arithmetic import Case, paged
from recover.core.budget.bytes_per_token import PerToken, per_token
from recover.core.budget.limits import limits
from recover.core.budget.model import (
    GIB,
    Demand,
    Facts,
    Fit,
    Launch,
    ModelConfig,
    OwnCheck,
    Problem,
    Scope,
    Semantics,
    Verdict,
)
from recover.core.budget.ranks import Counts, counts
from recover.core.budget.sizes import both, decimal
from recover.core.budget.table import FLAGS, ruling
from recover.model.reading import Known

LOADING_PER_RANK = 5 * GIB  # Python, CUDA context and libraries take 3 to 6 GB per rank; the incident allowed 40 for 8
MARGIN = 25 * GIB
_ORDER = (Fit.FITS, Fit.TIGHT, Fit.CANNOT_TELL, Fit.NOT)


@dataclass(frozen=True, slots=True)
class Judged:
    """One launch, worked out. `big`: how it fits as far as being too big goes; `why` in words."""

    case: Case
    demands: tuple[Demand, ...]
    checks: tuple[OwnCheck, ...]
    loading: int
    margin: int
    fits: tuple[tuple[Fit, str], ...]
    own: tuple[tuple[Fit, str], ...]
    small: tuple[tuple[Fit, str], ...]
    notes: tuple[str, ...]

    @property
    def fit(self) -> Fit:
        return worst([*self.fits, *self.own, *self.small])


def worst(found: list[tuple[Fit, str]]) -> Fit:
    return max((f for f, _ in found), key=_ORDER.index, default=Fit.FITS)


def judged(
    launch: Launch,
    facts: Facts,
    config: ModelConfig | None,
    draft: ModelConfig | None,
    proofs: tuple[Semantics, ...],
    plain: bool,
) -> Judged | Verdict:
    try:
        numbers = counts(launch)
        notes: list[str] = []
        case = Case(
            launch,
            facts,
            numbers,
            _tokens(launch, numbers, config, notes),
            _tokens(launch, numbers, draft, notes, draft=True),
            proofs,
            plain,
        )
        return _core(case, notes)
    except Problem as problem:
        return Verdict(Fit.CANNOT_TELL, problem.problems, unresolved=launch.unresolved)


def _tokens(
    launch: Launch, numbers: Counts, config: ModelConfig | None, notes: list[str], *, draft: bool = False
) -> PerToken | None:
    if config is None or launch.engine not in {"sglang", "vllm"}:
        return None
    store = launch.value("speculative-draft-kv-cache-dtype") if draft else None
    store = store or launch.value("kv-cache-dtype") or "auto"
    split = launch.engine != "sglang" or ruling("sglang", launch.version, "v-head-dim").value is True
    try:
        return per_token(config, ranks=numbers.heads, stages=numbers.pp, store=store, split_v=split)
    except Problem as problem:
        notes.append(f"bytes per token are not known: {problem}")
        return None


def _core(case: Case, notes: list[str]) -> Judged:
    results = list(_demands(case))
    asked = tuple(d for d, _ in results)
    checks = tuple(c for _, c in results if c is not None)
    loading, margin = _kept(case, notes)
    fits = tuple(limit.judge() for limit in limits(case, asked, loading, margin))
    unresolved = tuple((Fit.CANNOT_TELL, f"{u.word}: {u.why}") for u in case.launch.unresolved if u.matters)
    small = (*_lower_bound(case, asked), *_swap_check(case))
    return Judged(
        *(case, asked, checks, loading, margin, fits, tuple(_own(checks)), (*small, *unresolved)),
        (*notes, *_notes(case, asked)),
    )


def _demands(case: Case) -> Iterator[tuple[Demand, OwnCheck | None]]:
    if case.launch.engine == "sglang":
        yield from demands_sglang.demands(case)
    for demand in demands_other.demands(case):
        of_each = demand.shares * case.launch.copies if demand.share == "server" else demand.shares
        yield replace(demand, shares=of_each), None


def _kept(case: Case, notes: list[str]) -> tuple[int, int]:
    facts = case.facts
    loading, margin = facts.loading, facts.margin
    if loading is None:
        loading = LOADING_PER_RANK * case.counts.on_host
        notes.append(f"loading was not measured: {both(LOADING_PER_RANK)} per rank are assumed, {both(loading)} in all")
    if margin is None:
        margin = MARGIN
        notes.append(f"no margin was given: {both(margin)} are kept")
    return loading, margin


def _own(checks: tuple[OwnCheck, ...]) -> Iterator[tuple[Fit, str]]:
    """Whether the engine lets itself start."""
    for check in checks:
        if check.refuses:
            yield Fit.NOT, f"the engine refuses {both(check.asked)} per rank at start: at most {both(check.possible)}"
        elif not check.passes:
            may = f"the engine may refuse {both(check.asked)} per rank at start, by the order in which ranks pin"
            yield Fit.TIGHT, f"{may}: for certain it takes up to {both(check.certain)}"


def _lower_bound(case: Case, asked: tuple[Demand, ...]) -> Iterator[tuple[Fit, str]]:
    """Up to 0.5.14 SGLang ends if the host pool does not hold more tokens than the device pool."""
    demand = next((d for d in asked if d.flag == "hicache-size"), None)
    if demand is None or case.launch.engine != "sglang" or case.rule("lower-bound").value is not True:
        return
    if case.model is None or not isinstance(case.facts.device_tokens, Known):
        return
    there, here = case.facts.device_tokens.value, pool_tokens(case) or 0
    if here <= there:
        why = f"the host pool of {here} tokens is not larger than the device pool of {there}: the engine ends at start"
        yield (Fit.CANNOT_TELL if case.rule("lower-bound").assumed else Fit.NOT), why


def _swap_check(case: Case) -> Iterator[tuple[Fit, str]]:
    """vLLM 0.11 to 0.16 allocates no swap space, but ends at start if it would be more than 70 % of the memory."""
    option = case.launch.option("swap-space")
    total = case.facts.total
    if case.launch.engine != "vllm" or option is None or not isinstance(total, Known):
        return
    asked = int(decimal(option.value or "", option.said) * GIB) * case.counts.on_host
    if case.rule("swap").value == "checks" and asked * 10 > total.value * 7:
        yield Fit.NOT, f"{option.said} {option.value} is over 70 % of the memory: the engine ends at start"


def pool_tokens(case: Case) -> int | None:
    """How many tokens the HiCache pool of each rank holds."""
    size = case.launch.value("hicache-size")
    if case.model is None or size is None or not size.strip().isdigit():
        return None
    meaning = case.meaning("hicache-size")
    amount = int(size) * (meaning.unit.bytes or 1)
    if meaning.scope is not Scope.RANK:
        amount //= case.counts.tp * case.counts.pp
    row = case.model.main + (case.model.indexer if case.rule("indexer").value != "apart" else 0)
    return paged(amount // row, case.page, meaning.pages)


def _notes(case: Case, asked: tuple[Demand, ...]) -> Iterator[str]:
    launch = case.launch
    assumed = [case.meaning(d.flag).assumed for d in asked if (launch.engine, d.flag) in FLAGS]
    yield from dict.fromkeys(a for a in assumed if a)
    if launch.engine == "sglang" and launch.has("hicache-size") and not demands_sglang.hicache_on(case):
        yield "--hicache-size has no effect without --enable-hierarchical-cache; it is judged as if it were on"
    if case.model is None and any(d.flag == "hicache-size" for d in asked):
        yield "without the model's config.json, side pools (indexer, state, draft) and tokens are not worked out"
    if case.model is not None and case.model.replicated and case.counts.heads > 1 and launch.engine == "sglang":
        yield f"{case.model.kind}: every rank keeps the same rows, so that {case.counts.on_host} ranks hold one cache"
    bound = launch.engine == "sglang" and launch.has("hicache-size") and case.rule("lower-bound").value is True
    if bound and not isinstance(case.facts.device_tokens, Known):
        yield "the host pool must hold more tokens than the device pool, or the engine ends at start; not checked"
    if case.facts.others:
        number = len(case.facts.others)
        yield f"{number} other servers run or start beside it: what they hold is not available; what they still load is"
    if launch.has("weight-loader-disable-mmap"):
        yield "--weight-loader-disable-mmap: while loading, each rank holds a file of the weights in memory of its own"
    yield from _machine(case)
    if case.facts.gpus and len(case.facts.gpus) < case.counts.on_host:
        yield f"{case.counts.on_host} ranks and {len(case.facts.gpus)} GPUs: not all of them would start"
    yield from launch.assumed


def _machine(case: Case) -> Iterator[str]:
    """What the hypervisor has for the VM, where the guest sees much less of it: the balloon, or hot-plugged memory."""
    total, vm = case.facts.total, case.facts.vm_memory
    if isinstance(total, Known) and isinstance(vm, Known) and total.value < vm.value - vm.value // 10:
        yield f"the VM is configured with {both(vm.value)}, and its guest sees {both(total.value)} of it"


def verdict(core: Judged) -> Verdict:
    fit = core.fit
    found = [*core.fits, *core.own, *core.small]
    reasons = tuple(why for f, why in sorted(found, key=lambda r: -_ORDER.index(r[0])))
    case = core.case
    used = [case.meaning(d.flag) for d in core.demands if (case.launch.engine, d.flag) in FLAGS]
    available = case.facts.available.value if isinstance(case.facts.available, Known) else None
    return Verdict(
        fit,
        reasons if core.demands else (*reasons, "nothing in this launch sizes host memory"),
        available,
        core.loading,
        core.margin,
        case.counts.on_host,
        core.demands,
        core.checks,
        semantics=tuple(dict.fromkeys(used)),
        bytes_per_token=case.model.main if case.model is not None else None,
        notes=tuple(dict.fromkeys(core.notes)),
        unresolved=case.launch.unresolved,
    )
