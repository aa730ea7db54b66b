"""The installed source decides what a size means: its computations are tried, quoted by file and line, or doubted.

Nothing is executed and nothing is guessed: where one step is not understood, the whole is "not proved".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recover.core.budget import proof_sglang, proof_vllm
from recover.core.budget.proof_result import Proof, Shown, proof_lines, semantics, why_not

__all__ = ["Proof", "Shown", "proof_lines", "prove", "semantics", "why_not"]


_FLAGS = {"sglang": "hicache-size", "vllm": "kv-offloading-size"}


def prove(engine: str, version: str, sources: Mapping[str, str], missing: Sequence[str] = ()) -> tuple[Proof, ...]:
    """One proof per sizing flag whose meaning the sources can tell: path within the package -> text. `missing` are
    files that mention the size and could not be read. Engines without one give none."""
    flag = _FLAGS.get(engine)
    if flag is None:
        return ()
    try:
        if engine == "sglang":
            return (proof_sglang.prove(version, sources, missing),)
        return proof_vllm.prove(version, sources, missing)
    except RecursionError:
        return (Proof(engine, version, flag, doubts=("the source is nested too deeply to be read",)),)
