"""How many processes of a launch hold memory on one host: the number that a size per rank is multiplied by.

Sources: sglang `server_args.py` (plain DP multiplies the replicas, attention-DP lies inside the TP group),
`runtime_context.py:173` (0.5.23); vllm `config/parallel.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recover.core.budget.model import Launch, Problem
from recover.core.budget.sizes import count


@dataclass(frozen=True, slots=True)
class Counts:
    """`on_host`: rank processes on this host; `engine`: those of one replica here; `replicas`: replicas that have one.

    `heads`: the ranks among which attention heads are divided. `checked`: what the engine's own check divides by.
    """

    tp: int
    pp: int
    on_host: int
    engine: int
    replicas: int
    heads: int
    checked: int
    formula: str


def counts(launch: Launch) -> Counts:
    """Raises Problem for counts that make no sense."""
    one, copies = _of_one(launch), launch.copies
    if copies == 1:
        return one
    words = f"{one.formula} of each of {copies} servers"
    return replace(one, on_host=one.on_host * copies, replicas=one.replicas * copies, formula=words)


def _of_one(launch: Launch) -> Counts:
    match launch.engine:
        case "sglang":
            return _sglang(launch)
        case "vllm":
            return _vllm(launch)
        case "trtllm":
            return _trtllm(launch)
        case _:
            return Counts(1, 1, 1, 1, 1, 1, 1, "one process")


def _trtllm(launch: Launch) -> Counts:
    """Without --gpus_per_node all ranks may be here."""
    tp, pp = _number(launch, "tp-size"), _number(launch, "pp-size")
    here = min(tp * pp, _number(launch, "gpus-per-node", tp * pp))
    words = f"tp {tp} x pp {pp} = {tp * pp} ranks" + (f", {here} on each node" if here < tp * pp else "")
    return Counts(tp, pp, here, here, 1, tp, here, words)


def _number(launch: Launch, name: str, default: int = 1) -> int:
    option = launch.option(name)
    if option is None:
        return default
    return count(option.value or "", option.said)


def _divided(total: int, nodes: int, words: str) -> int:
    if total % nodes:
        raise Problem(f"{words} can't be divided among {nodes} nodes")
    return total // nodes


def _sglang(launch: Launch) -> Counts:
    tp, pp, nodes = (_number(launch, name) for name in ("tp-size", "pp-size", "nnodes"))
    dp, inner = _number(launch, "dp-size"), _number(launch, "attn-dp-size")
    if launch.has("enable-dp-attention"):
        inner, dp = max(inner, dp), 1
    context = _number(launch, "attn-cp-size")
    if tp % (inner * context):
        raise Problem(f"tp {tp} can't be divided by attention-DP {inner} x context {context}")
    one = _divided(tp * pp, nodes, f"tp {tp} x pp {pp}")
    words = f"tp {tp}"
    words += f" x pp {pp}" if pp > 1 else ""
    words += f" x dp {dp} replicas" if dp > 1 else ""
    words += f" / {nodes} nodes" if nodes > 1 else ""
    words += f" (attention-DP {inner} lies inside)" if inner > 1 else ""
    return Counts(tp, pp, one * dp, one, dp, tp // inner // context, one, f"{words} = {one * dp} ranks on this host")


def _vllm(launch: Launch) -> Counts:
    tp, pp = _number(launch, "tensor-parallel-size"), _number(launch, "pipeline-parallel-size")
    nodes = _number(launch, "nnodes")
    dp = _number(launch, "data-parallel-size")
    local = _number(launch, "data-parallel-size-local", dp)
    if local > dp:
        raise Problem(f"{local} local replicas are more than data-parallel-size {dp}")
    if launch.has("data-parallel-rank") and not launch.has("data-parallel-size-local"):
        local = 1  # one replica per process, started from outside
    one = _divided(tp * pp, nodes, f"tp {tp} x pp {pp}") if nodes > 1 else tp * pp
    words = f"tp {tp}"
    words += f" x pp {pp}" if pp > 1 else ""
    words += f" x dp {local} replicas" if local > 1 else ""
    words += f" / {nodes} nodes" if nodes > 1 else ""
    return Counts(tp, pp, one * local, one, local, tp, one, f"{words} = {one * local} ranks on this host")
