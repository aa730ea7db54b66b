"""What we recommend is judged by the function that judges what people write: no advice that its check would refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from recover.core.budget.judge import Judged, judged, pool_tokens, verdict, worst
from recover.core.budget.model import Facts, Fit, Launch, ModelConfig, Option, Safe, Semantics, Verdict
from recover.core.budget.options import table
from recover.core.budget.rewrite import command_of, with_value

_MOST = 1 << 52  # of any unit: the search ends below it
# Flags whose largest value is looked for, where they or what they replace are in use.
_SOLVED = {
    "sglang": ("hicache-size", "cpu-offload-gb", "max-local-cpu-size"),
    "vllm": ("kv-offloading-size", "cpu-offload-gb", "swap-space", "max-local-cpu-size"),
    "lmcache": ("l1-size-gb",),
    "llama.cpp": ("cache-ram",),
    "trtllm": ("host-cache-size",),
}


@dataclass(frozen=True, slots=True)
class _Asked:
    """All but the launch, so that other launches can be judged in the same way."""

    facts: Facts
    config: ModelConfig | None
    draft: ModelConfig | None
    proofs: tuple[Semantics, ...]
    plain: bool

    def of(self, launch: Launch) -> Judged | Verdict:
        return judged(launch, self.facts, self.config, self.draft, self.proofs, self.plain)


def judge(
    launch: Launch,
    facts: Facts,
    config: ModelConfig | None = None,
    *,
    draft: ModelConfig | None = None,
    semantics: tuple[Semantics, ...] = (),
    plain: bool = False,
    sought: bool = True,
) -> Verdict:
    """What the launch asks of the machine, whether it fits, and, if `sought`, the largest value of each of its sizes
    that does.

    `semantics`: proofs from the installed source. `plain`: without a config, the model is said to have no side pools.
    """
    asked = _Asked(facts, config, draft, semantics, plain)
    core = asked.of(launch)
    if not isinstance(core, Judged):
        return core
    if not sought:
        return verdict(core)
    found_safe = (_safe(core, asked, flag) for flag in _SOLVED[launch.engine] if _in_use(core, flag))
    safe = tuple(s for s in found_safe if s is not None)
    found = verdict(core)
    return replace(found, safe=safe, corrected=_corrected(launch, asked, found, safe))


def _in_use(core: Judged, flag: str) -> bool:
    """Whether a size counts here and the release has its option (SGLang 0.4.4 has no --hicache-size)."""
    engine, release = core.case.launch.engine, core.case.launch.version
    if f"--{flag}" in table(engine) and not table(engine)[f"--{flag}"].possible(release):
        return False
    if flag in {"hicache-size", "max-local-cpu-size", "host-cache-size"}:
        return any(d.flag == flag or (flag == "hicache-size" and d.flag.startswith("hicache-")) for d in core.demands)
    return core.case.launch.has(flag)


def _safe(core: Judged, asked: _Asked, flag: str) -> Safe | None:
    """The largest value of one flag, all others as they are; None for one that takes nothing in this release."""

    def tried(value: int) -> Judged | Verdict:
        return asked.of(with_value(core.case.launch, flag, str(value)))

    def starts(value: int) -> bool:
        found = tried(value)
        return isinstance(found, Judged) and worst([*found.fits, *found.own]) is Fit.FITS

    def fits(value: int) -> bool:
        found = tried(value)
        return (
            isinstance(found, Judged) and worst([*found.fits]) is Fit.FITS and not any(c.refuses for c in found.checks)
        )

    meaning = core.case.meaning(flag, "lmcache" if flag == "max-local-cpu-size" else "")
    value, most = _largest(starts), _largest(fits)
    none = Safe(flag, meaning.unit, meaning.scope, None, most)
    if value is None:
        return replace(none, why=_none(tried(1), most))
    at = tried(value)
    assert isinstance(at, Judged)
    refused = next((why for fit, why in at.small if fit is Fit.NOT), "")
    if refused:
        return replace(none, why=f"the largest that fits is {value}, and {refused}")
    demand = next((d for d in at.demands if d.flag == flag), None)
    if demand is None:
        return None
    share = demand.high if demand.high is not None else demand.low
    why = ""
    if most is not None and most > value:
        why = f"up to {most} fits the host, but above {value} the engine's own check may refuse it at start"
    tokens = pool_tokens(at.case) if flag == "hicache-size" else None
    return replace(none, value=value, per_share=share, total=share * demand.shares, tokens=tokens, why=why)


def _largest(good: Callable[[int], bool]) -> int | None:
    """The largest whole value that is good, where every smaller one is as well; None if 1 isn't."""
    if not good(1):
        return None
    low, high = 1, 2
    while high < _MOST and good(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _none(least: Judged | Verdict, most: int | None) -> str:
    if most is not None:
        return f"up to {most} fits the host, but the engine's own check may refuse it at start"
    if not isinstance(least, Judged):
        return "; ".join(least.reasons)
    found = [*least.fits, *least.own]
    bad = worst(found)
    return "even 1 does not do: " + next(why for fit, why in found if fit is bad)


def _corrected(launch: Launch, asked: _Asked, found: Verdict, safe: tuple[Safe, ...]) -> str:
    """The command with its sizes brought down, one after the other until it fits; empty if there is no such command."""
    if found.fit is Fit.FITS:
        return ""
    changed = launch
    for one in safe:
        now = launch.option(one.flag)
        if one.value is None or (now is not None and _at_most(now, one.value)):
            continue
        changed = with_value(changed, one.flag, str(one.value))
        core = asked.of(changed)
        if isinstance(core, Judged) and worst([*core.fits, *core.own]) is Fit.FITS:
            return command_of(changed)
    return ""


def _at_most(option: Option, value: int) -> bool:
    try:
        return 0 < float(option.value or "nan") <= value
    except ValueError:
        return False
