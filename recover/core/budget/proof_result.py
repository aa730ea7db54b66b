"""A proof quotes the place of everything that it says; what could not be shown is a doubt, and doubts forbid "proved".

Where there is a doubt, the worst row of the table is assumed, whatever the version says: the source is not the one
that the table was read from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recover.core.budget.model import Check, Pages, Pinning, Scope, Semantics, Unit
from recover.core.budget.proof_ast import Quote

WORST = "the worst row of the table is assumed"


@dataclass(frozen=True, slots=True)
class Shown:
    """One aspect with the place that shows it."""

    says: str
    at: Quote

    def __str__(self) -> str:
        return f"{self.says}, {self.at}"


@dataclass(frozen=True, slots=True)
class Proof:
    """What the installed source says about one sizing flag. None: it says nothing about that."""

    engine: str
    version: str
    flag: str
    unit: Unit | None = None
    scope: Scope | None = None
    pages: Pages | None = None
    pinning: Pinning | None = None
    check: Check | None = None
    at: Quote | None = None  # where the number becomes bytes
    shown: tuple[Shown, ...] = ()  # everything else that was found, in the order of the computation
    doubts: tuple[str, ...] = ()

    @property
    def proved(self) -> bool:
        return self.unit is not None and self.scope is not None and self.at is not None and not self.doubts

    @property
    def meaning(self) -> str:
        unit = {Unit.GB: "GB (1e9)", Unit.GIB: "GiB (2**30)"}.get(self.unit, str(self.unit)) if self.unit else "?"
        return f"{unit} {self.scope or '?'}"


def semantics(proof: Proof, known: Semantics | None, worst: Semantics) -> Semantics:
    """The proof's word over the table's: `known` is the version's row (for what the source leaves open), `worst` what
    is assumed where nothing is proved."""
    if not proof.proved or proof.unit is None or proof.scope is None:
        return replace(worst, assumed=f"not proved: {why_not(proof)}", proved_by="")
    row = known or worst
    return replace(
        row,
        unit=proof.unit,
        scope=proof.scope,
        pages=proof.pages or row.pages,
        pinning=proof.pinning or row.pinning,
        check=proof.check or row.check,
        proved_by=str(proof.at),
        assumed="",
    )


def why_not(proof: Proof) -> str:
    if proof.doubts:
        return "; ".join(proof.doubts[:3]) + (f"; and {len(proof.doubts) - 3} more" if len(proof.doubts) > 3 else "")
    return f"where --{proof.flag} becomes bytes was not found in the source"


def proof_lines(proof: Proof) -> tuple[str, ...]:
    """For a person: the verdict first, then each aspect with file and line."""
    which = f"{proof.engine} {proof.version}".strip()
    if not proof.proved:
        return (f"not proved: --{proof.flag} of {which}: {why_not(proof)}; {WORST}",)
    first = f"proved: {proof.meaning}, {proof.at}"
    code = f"    {proof.at.code}" if proof.at is not None else ""
    return (first, code, *(f"  {shown}" for shown in proof.shown))
