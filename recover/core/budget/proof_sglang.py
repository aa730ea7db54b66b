"""What SGLang's source does with `hicache_size`: unit, ranks, pages, its own check and how the memory is pinned.

The pool's constructor is found by what it computes, not by its file: that moved twice between 0.4.6 and 0.5.23.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from recover.core.budget.model import Check, Pages, Pinning, Scope
from recover.core.budget.proof_ast import Flow, Quote, Unclear, World, read
from recover.core.budget.proof_result import Proof, Shown
from recover.core.budget.proof_trial import BASE, Leaf, Trial, called, kind_of
from recover.core.budget.proof_uses import Use, handed, strange_settings, uses

_SIZE = re.compile(r"(?:^|[._])(?:hicache_size|host_size)$")
_FLAG = re.compile(r"(?:^|\.)hicache_size$")
_POOL = "HostKVCache"
_DEVICE_POOL = re.compile(r"device_pool\.size|device_capacity_tokens")
_POOL_FILES = re.compile(r"/mem_cache/(?:memory_pool(?:_host)?\.py|pool_host/|host_memory\.py)")
_AVAILABLE = 1e15
_END = 1 << 30
_GIB = 1 << 30


def prove(version: str, sources: Mapping[str, str], missing: Sequence[str] = ()) -> Proof:
    """Everything that the sources say about `--hicache-size`."""
    world = read(sources)
    found = uses(world, _SIZE)
    doubts = [*(f"{path} was not read" for path in missing), *world.unread, *(u.doubt for u in found if u.doubt)]
    doubts += (*strange_settings(world, "hicache_size"), *handed(world, _SIZE))
    start = Proof("sglang", version, "hicache-size")
    sizing = [use for use in found if use.unit is not None]
    if not sizing:
        return replace(start, doubts=tuple(doubts))
    main = next((u for u in sizing if u.flow.owner == _POOL), sizing[0])
    rounding = _Rounding(world, main)
    doubts += rounding.doubts
    scope, why = _scope(main, found, rounding)
    units = sorted({str(u.unit) for u in sizing})
    doubts += [why] if why else []
    doubts += [f"{main.at} depends on a count of pages"] if main.counted else []
    doubts += [f"its pools count in {' and '.join(units)}"] if len(units) > 1 else []
    check, checked = _check(world, main)
    pinning, pinned = _pinning(world)
    per_token, strange = _per_token(world)
    rounded = [Shown(str(rounding.pages), rounding.at)] if rounding.pages and rounding.at else []
    shown = (
        *_handed_on(world),
        *rounded,
        *checked,
        *_floor(world, main),
        *pinned,
        *per_token,
        *_kept_once(world),
        *_further(sizing, main),
    )
    return replace(
        start, unit=main.unit, scope=scope, pages=rounding.pages, pinning=pinning, check=check, at=main.at,
        shown=shown, doubts=tuple(dict.fromkeys((*doubts, *strange))),
    )  # fmt: skip


# --- ranks --------------------------------------------------------------------------------------------------------


def _scope(main: Use, found: Sequence[Use], rounding: _Rounding) -> tuple[Scope | None, str]:
    """Per rank where nothing divides by the ranks; a total where every pool does, or all that feeds them."""
    more = [u for u in found if u.ranks > 0]
    if more:
        return None, f"{more[0].at} multiplies by the ranks"
    parts = [u for u in found if u.ranks < 0]
    if not parts and not rounding.divides:
        return Scope.RANK, ""
    pools = [u for u in found if u.unit is not None]
    whole = rounding.divides and len(pools) == 1
    before_all = any(u.unit is None and _sets_the_flag(u) for u in parts)
    if whole or before_all or all(u.ranks < 0 for u in pools):
        return Scope.ENGINE, ""
    at = parts[0].at if parts else rounding.at
    kept = next((u.at for u in pools if u.ranks == 0), main.at)
    return None, f"{at} divides by the ranks, {kept} does not"


def _sets_the_flag(use: Use) -> bool:
    """`args.hicache_size //= ranks` comes before everything that reads it."""
    return any(
        a.line == use.line and "." in a.target and _FLAG.search(a.target) for a in use.flow.assigned
    )  # fmt: skip


# --- pages --------------------------------------------------------------------------------------------------------


class _Rounding:
    """What becomes of the token count after it was set: tried with numbers, at 64 tokens a page."""

    def __init__(self, world: World, main: Use) -> None:
        self.pages: Pages | None = None
        self.at: Quote | None = None
        self.divides = False
        self.doubts: list[str] = []
        target, upto = _setting(world, main)
        if not target:
            return
        last = main.flow.before(target, _END)
        assert last is not None
        self.at = world.quote(main.flow, last.value)
        try:
            cases = [self._tokens(world, main.flow, target, upto, tokens, 1) for tokens in (1000, 1024)]
            spread = self._tokens(world, main.flow, target, upto, 1024, 8)
        except Unclear as error:
            self.doubts.append(f"{self.at} rounds the token count in a way that is not understood ({error})")
            return
        self.divides = spread < cases[1] / 4
        known = {(960, 1024): Pages.DOWN, (1024, 1088): Pages.UP, (1000, 1024): Pages.NONE}
        self.pages = known.get((int(cases[0]), int(cases[1])))
        if self.pages is None:
            self.doubts.append(f"{self.at} makes {cases[0]:g} tokens of 1000 and {cases[1]:g} of 1024 at 64 a page")

    @staticmethod
    def _tokens(world: World, flow: Flow, target: str, upto: int, tokens: int, ranks: int) -> float:
        values = {**BASE, Leaf.PAGE: 64, Leaf.RANKS: ranks}
        trial = Trial(world, _SIZE, values, fixed=(target, upto, tokens))
        return trial.of(ast.parse(target, mode="eval").body, flow, _END)


def _setting(world: World, main: Use) -> tuple[str, int]:
    """What the computed token count is stored in, and the last line of the choice that stores it."""
    inside = {id(main.node)} | {id(node) for node in world.above(main.node)}
    setting = next((a for a in main.flow.assigned if id(a.value) in inside), None)
    if setting is None:
        return "", 0
    choice = next((n for n in world.above(main.node) if isinstance(n, ast.If)), None)
    return setting.target, (choice.end_lineno or setting.line) if choice is not None else setting.line


# --- the engine's own check ---------------------------------------------------------------------------------------


def _check(world: World, main: Use) -> tuple[Check | None, list[Shown]]:
    """The test that raises when the request is larger than what the memory available allows."""
    for flow in world.flows:
        if flow.path != main.flow.path or flow.owner != main.flow.owner:
            continue
        for node in flow.nodes:
            if isinstance(node, ast.If) and any(isinstance(part, ast.Raise) for part in node.body):
                found = _limit(world, flow, node)
                if found is not None:
                    return found
    return None, []


def _limit(world: World, flow: Flow, node: ast.If) -> tuple[Check, list[Shown]] | None:
    if not isinstance(node.test, ast.Compare):
        return None
    for side in (node.test.left, *node.test.comparators):
        try:
            alone, met = _room(world, flow, side, node.lineno, 1)
            shared, _ = _room(world, flow, side, node.lineno, 8)
        except Unclear:
            continue
        if Leaf.AVAILABLE not in met.values():
            continue
        split = shared < alone / 4
        cgroup = Leaf.CGROUP in met.values()
        check = (Check.SPLIT_CGROUP if cgroup else Check.SPLIT) if split else Check.EACH
        reserve = (_AVAILABLE - alone) / _GIB
        if abs(reserve - 10) > 0.01:  # the table's words name 10 GiB
            check = Check.UNKNOWN
        says = f"its own check: {check}" if check is not Check.UNKNOWN else f"its own check keeps {reserve:g} GiB back"
        return check, [Shown(says, world.quote(flow, node))]
    return None


def _room(world: World, flow: Flow, side: ast.expr, line: int, ranks: int) -> tuple[float, dict[str, Leaf]]:
    trial = Trial(world, _SIZE, {**BASE, Leaf.AVAILABLE: _AVAILABLE, Leaf.RANKS: ranks, Leaf.OTHER: 1e30})
    return trial.of(side, flow, line), trial.met


def _floor(world: World, main: Use) -> Iterator[Shown]:
    """The lower bound: fatal as an assert, else only said."""
    for flow in world.flows:
        if flow.path == main.flow.path and flow.owner == main.flow.owner:
            for node in flow.nodes:
                if isinstance(node, ast.Assert | ast.If) and _compares(node.test):
                    fatal = isinstance(node, ast.Assert)
                    says = "below the device pool: " + ("the start ends" if fatal else "a warning")
                    yield Shown(says, world.quote(flow, node.test))
                    return


def _compares(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return isinstance(test, ast.Compare) and "self.size" in text and _DEVICE_POOL.search(text) is not None


# --- the rest -----------------------------------------------------------------------------------------------------


def _pinning(world: World) -> tuple[Pinning | None, list[Shown]]:
    """`cudaHostRegister` pins what is there; torch's own pinned allocator rounds each tensor up to a power of two."""
    rounded: Shown | None = None
    for flow in world.flows:
        for node in flow.nodes:
            if not isinstance(node, ast.Call) or not _POOL_FILES.search(flow.path):
                continue
            name = called(node)
            if name == "cudaHostRegister":
                return Pinning.EXACT, [Shown(f"pinned {Pinning.EXACT}", world.quote(flow, node))]
            pins = next((k.value for k in node.keywords if k.arg == "pin_memory"), None)
            if name in ("empty", "zeros") and pins is not None and rounded is None and "KVPoolHost" in flow.owner:
                rounded = Shown(f"pinned {Pinning.POWER_OF_TWO} (torch's pinned allocator)", world.quote(flow, node))
    return (Pinning.POWER_OF_TWO, [rounded]) if rounded is not None else (None, [])


def _per_token(world: World) -> tuple[list[Shown], list[str]]:
    """Bytes per token as each kind of pool has them: heads and layers of this rank, no ranks in sight."""
    shown, strange = [], []
    for flow in world.flows:
        kind = {"MHATokenToKVPoolHost": "MHA/GQA", "MLATokenToKVPoolHost": "MLA"}.get(flow.owner)
        if kind is None or flow.name != "get_size_per_token":
            continue
        for node in flow.nodes:
            if isinstance(node, ast.Return) and node.value is not None:
                at = world.quote(flow, node)
                shown.append(Shown(f"bytes per token, {kind}: {ast.unparse(node.value)[:120]}", at))
                names = [ast.unparse(n) for n in ast.walk(node.value) if isinstance(n, ast.Name | ast.Attribute)]
                strange += [f"{at} has {n} in the bytes per token" for n in names if kind_of(n) is Leaf.RANKS]
    return shown, strange


def _handed_on(world: World) -> Iterator[Shown]:
    """The first place that hands the flag's value to a pool."""
    for flow in world.flows:
        for node in flow.nodes:
            if isinstance(node, ast.Call) and flow.path.endswith(("hiradix_cache.py", "hybrid_pool_assembler.py")):
                given = [*node.args, *(k.value for k in node.keywords)]
                value = next((g for g in given if _FLAG.search(ast.unparse(g)) and isinstance(g, ast.Attribute)), None)
                if value is not None:
                    yield Shown("handed to the pool as it is", world.quote(flow, value))
                    return


def _kept_once(world: World) -> Iterator[Shown]:
    """Since 0.5.20 there is code that keeps one copy of MLA pools for all ranks; up to 0.5.23 nothing calls it."""
    for flow in world.flows:
        for node in flow.nodes:
            if isinstance(node, ast.Call) and called(node) == "maybe_create_mla_host_dedup_context":
                yield Shown(
                    "MLA pools may be kept once for all ranks: per rank is then too much", world.quote(flow, node)
                )


def _further(sizing: Sequence[Use], main: Use) -> Iterator[Shown]:
    for use in sizing:
        if use.flow is not main.flow:
            yield Shown(f"another pool counts alike: {use.flow.owner or use.flow.name}", use.at)
