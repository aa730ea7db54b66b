"""A launch is judged on one machine before it starts: what is asked, what there is, what would fit, ready to paste.

The source that is installed there outranks the table; source that is not understood counts as the worst row, whatever
version it bears.
"""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from recover.core.budget import beside, words
from recover.core.budget.launch import from_argv, parse
from recover.core.budget.learned import learned
from recover.core.budget.model import (
    GB,
    Demand,
    Facts,
    Fit,
    Launch,
    ModelConfig,
    Pinning,
    Problem,
    Scope,
    Semantics,
    Unit,
    Verdict,
)
from recover.core.budget.preflight_follow import Tally
from recover.core.budget.preflight_report import Gathered, Installed
from recover.core.budget.proof import Proof, proof_lines, semantics
from recover.core.budget.ranks import counts
from recover.core.budget.rewrite import with_value
from recover.core.budget.sizes import both, decimal
from recover.core.budget.solve import judge
from recover.core.budget.table import semantics as row_of
from recover.core.budget.version import Version
from recover.core.clean import clean
from recover.core.redact import redact_text
from recover.core.sentences import START_AS
from recover.model.reading import Known


@dataclass(frozen=True, slots=True)
class Preflight:
    """The answer for one server of a launch text."""

    launch: Launch
    verdict: Verdict
    installed: Installed | None = None
    proofs: tuple[Proof, ...] = ()
    gaps: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 lets a start go on: also a tight one. What can't be told is no permission."""
        return 0 if self.verdict.fit in (Fit.FITS, Fit.TIGHT) else 1


def preflight(
    text: str, found: Gathered, env: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None
) -> tuple[Preflight, ...]:
    """Every server that the text starts, each judged beside the others. `files`: texts that lie here.

    Raises Problem for text that is no launch.
    """
    version, engine = (found.installed.version, found.installed.engine) if found.installed is not None else (None, "")
    texts = ChainMap(dict(found.files), {} if files is None else files)  # type: ignore[arg-type]  # only read
    launches = parse(text, files=texts, env=env, version=version, engine=engine)
    asked = [(launch, beside.own(found, launch, launches[0])) for launch in launches]
    if len(asked) == 1:
        return (one(*asked[0]),)
    alone = [(launch, one(launch, own, sought=False).verdict) for launch, own in asked]
    results = []
    for at, (launch, own) in enumerate(asked):
        others = [alone[i] for i in beside.neighbours(launches, at)]
        if not others:
            results.append(one(launch, own))
            continue
        rest = beside.rest(replace(own.facts, others=(*own.facts.others, *(o for o, _ in others))), others)
        result = one(launch, replace(own, facts=rest.facts))
        verdict = beside.doubted(result.verdict, rest)
        results.append(replace(result, verdict=verdict, notes=(*result.notes, beside.note(rest))))
    return tuple(results)


def one(launch: Launch, found: Gathered, *, plain: bool = False, sought: bool = True) -> Preflight:
    """The judgement of one launch. `plain`: without a config, the model is taken to have no further pools. `sought`:
    with the largest values that fit."""
    installed = found.installed if found.installed is not None and found.installed.engine == launch.engine else None
    proofs = found.proofs if installed is not None else ()
    doubted = [proof for proof in proofs if not proof.proved]
    version = None if doubted else _version(launch, installed)
    launch = replace(launch, version=version)
    meanings = tuple(_meaning(proof, version) for proof in proofs)
    facts, seen = learned(launch, found)
    plain = plain and found.config is None
    verdict = judge(launch, facts, found.config, semantics=meanings, plain=plain, sought=sought)
    verdict = _were_it_per_rank(launch, facts, found.config, proofs, verdict)
    notes = (*_notes(launch, installed, proofs), *seen)
    return Preflight(launch, verdict, installed, proofs, found.gaps, notes)


def _were_it_per_rank(
    launch: Launch, facts: Facts, config: ModelConfig | None, proofs: Sequence[Proof], verdict: Verdict
) -> Verdict:
    """vLLM's total is one because its source divides. Source that does not, or is not understood, may take as much
    for each rank: what fits only as a total is then no permission."""
    flag = "kv-offloading-size"
    option = launch.option(flag)
    strange = any(p.flag == flag and not (p.proved and p.scope is Scope.ENGINE and p.unit is Unit.GIB) for p in proofs)
    if not strange or option is None or verdict.fit not in (Fit.FITS, Fit.TIGHT):
        return verdict
    numbers = counts(launch)
    whole = decimal(option.value or "", option.said) * numbers.tp * numbers.pp
    other = judge(with_value(launch, flag, str(whole)), facts, config)
    if other.fit is not Fit.NOT:
        return verdict
    why = f"the source is not known to divide --{flag}: were it per rank, {both(other.total_low)} would be asked"
    return replace(verdict, fit=Fit.CANNOT_TELL, reasons=(why, *verdict.reasons))


def _version(launch: Launch, installed: Installed | None) -> Version | None:
    return installed.version if installed is not None else launch.version


def _meaning(proof: Proof, version: Version | None) -> Semantics:
    return semantics(proof, row_of(proof.engine, version, proof.flag), row_of(proof.engine, None, proof.flag))


def _notes(launch: Launch, installed: Installed | None, proofs: Sequence[Proof]) -> list[str]:
    if installed is not None:
        return [] if proofs else [f"the source of {installed.engine} was not read; the table's row is used"]
    if launch.version is not None:
        return [f"not proved: the source of {launch.engine} {launch.version} was not read; the table's row is used"]
    return [f"not proved: which {launch.engine} would start is not known; the worst row of the table is assumed"]


# --- words --------------------------------------------------------------------------------------------------------


def headline(result: Preflight) -> str:
    """Both figures in one line: 300 GB x 8 ranks = 2400 GB of 478 GB available."""
    verdict = result.verdict
    parts = [_product(result, demand) for demand in verdict.demands]
    there = f"{_gb(verdict.available)} available" if verdict.available is not None else "an unknown amount of memory"
    asked = " + ".join(parts) if parts else "nothing that sizes host memory"
    if len(parts) > 1:
        asked += f" = {_gb(verdict.total_low)}"
    if verdict.total_high is None:
        asked += ", or more,"
    elif verdict.total_high != verdict.total_low:
        asked += f", up to {_gb(verdict.total_high)},"
    return f"{verdict.fit}: {asked} of {there}"


def _product(result: Preflight, demand: Demand) -> str:
    named = _named(result, demand)
    low = demand.low if named is None else named
    what = _gb(low)
    if demand.shares > 1:
        share = demand.share if demand.share.endswith("s") else f"{demand.share}s"
        what += f" x {demand.shares} {share} = {_gb(low * demand.shares)}"
    return what if low == demand.low else f"{what} ({_gb(demand.total_low)} as it is allocated)"


def _named(result: Preflight, demand: Demand) -> int | None:
    """What the flag itself names, per share, where it is taken as it is written."""
    meaning = next((m for m in result.verdict.semantics if m.flag == demand.flag), None)
    option = result.launch.option(demand.flag) if demand.flag else None
    if meaning is None or option is None or meaning.unit.bytes is None or meaning.scope is not Scope.RANK:
        return None
    try:
        value = float(option.value or "")
    except ValueError:
        return None
    named = int(value * meaning.unit.bytes) if 0 < value < 1e12 else 0
    return named if named and abs(named - demand.low) > named // 100 else None


def _gb(amount: int) -> str:
    """Short, for one line: whole above a hundred."""
    number = amount / GB
    return f"{number:.0f} GB" if number >= 100 else f"{number:.1f}".removesuffix(".0") + " GB"


def lines(result: Preflight) -> tuple[str, ...]:
    """The whole answer for a person, already cleaned."""
    found = [headline(result), *words.verdict_lines(result.verdict)[1:], ""]
    if result.installed is not None:
        found.append(f"engine: {result.installed}")
    for proof in result.proofs:
        found += proof_lines(proof)
    found += [f"note: {note}" for note in result.notes]
    found += [f"could not be read: {gap}" for gap in result.gaps]
    return tuple(clean(line, 500) if line.strip() == line else "  " + clean(line, 500) for line in found)


def as_json(result: Preflight) -> dict[str, Any]:
    installed = result.installed
    return {
        "schema": 1,
        **words.as_json(result.verdict),
        "exit_code": result.exit_code,
        "headline": clean(headline(result), 500),
        "engine": {
            "name": result.launch.engine,
            "version": str(result.launch.version) if result.launch.version is not None else None,
            "installed": clean(str(installed), 500) if installed is not None else None,
        },
        "proofs": [
            {
                "flag": proof.flag,
                "proved": proof.proved,
                "meaning": proof.meaning if proof.proved else None,
                "at": str(proof.at) if proof.at is not None else None,
                "says": [clean(line, 500) for line in proof_lines(proof)],
            }
            for proof in result.proofs
        ],
        "preflight_notes": [clean(note, 500) for note in result.notes],
        "gaps": [clean(gap, 500) for gap in result.gaps],
    }


# --- after the fact -----------------------------------------------------------------------------------------------


def explain_exhaustion(
    launch_argv: Sequence[str], total: int | None, available: int | None, gathered: Gathered | None = None
) -> tuple[str, ...] | None:
    """For a report on a server that took the host's memory: what its command asked, what fits, the command that does.

    `total` and `available` are bytes; `available` is what an idle guest has (its baseline, or after the recovery), else
    the total bounds it. None where the command can't be told to be the cause.
    """
    room = available if available is not None else total
    if room is None or room <= 0 or not launch_argv:
        return None
    try:
        launch = from_argv(launch_argv)
        if launch is None:
            return None
        facts = Facts(Known(room), Known(total) if total is not None else Facts(Known(room)).total)
        base = replace(gathered, facts=facts) if gathered is not None else Gathered(facts)
        result = one(launch, base, plain=True)
    except Problem:
        return None
    verdict = result.verdict
    if verdict.fit is not Fit.NOT and verdict.total_low <= room:
        return None
    found = [f"the launch asked for more memory than there is: {headline(result)}"]
    for safe in verdict.safe:
        if safe.value is not None:
            found.append(f"the largest --{safe.flag} that fits: {safe.value}, in all {both(safe.total)}")
    if verdict.corrected:
        found.append(f"{START_AS}{redact_text(verdict.corrected)}")
    found += [f"note: {note}" for note in result.notes]
    return tuple(clean(line, 1000) for line in found)


def command_text(words_given: Sequence[str]) -> str:
    """The words after `--` as one text: a person's single quoted string stays what it is."""
    return words_given[0] if len(words_given) == 1 else shlex.join(words_given)


def tally(result: Preflight) -> Tally | None:
    """What the engine's log is held against while it starts; None where the machine's memory is not known."""
    verdict = result.verdict
    if verdict.available is None or verdict.ranks < 1:
        return None
    pinning = next((m.pinning for m in verdict.semantics if m.flag == "hicache-size"), Pinning.EXACT)
    return Tally(max(0, verdict.available - verdict.loading), verdict.ranks, pinning)
