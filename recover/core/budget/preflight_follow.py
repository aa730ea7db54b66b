"""The engine's own allocation lines, summed while it starts: too much is said before the memory is gone.

Lines of SGLang, once per rank and pool, before anything is pinned: "Allocating X GB host memory for hierarchical KV
cache." (up to 0.5.16), "Allocating kv hierarchical KV host pool: N tokens, X GB host memory" (0.5.17 and later), and
"Allocating X GB host memory for WHAT" of its other pools (Mamba states, the indexer, DeepSeek-V4's). Of vLLM
"SimpleCPUOffloadConnector: role=WORKER, per_rank=X GB" (0.20 and later; it prints GiB, see
vllm/distributed/kv_transfer/kv_connector/v1/simple_cpu_offload_connector.py). vLLM's other pools write no size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum

from recover.core.budget.arithmetic import pinned
from recover.core.budget.model import GB, GIB, Pinning
from recover.core.budget.sizes import both

_OLD = re.compile(r"Allocating ([\d.]{1,20}) GB (?:pinned )?host memory for hierarchical KV cache")
_OTHER = re.compile(r"Allocating (?P<amount>[\d.]{1,20}) GB (?:pinned )?host memory for (?P<pool>[^(.,]{1,60})")
_NEW = re.compile(r"Allocating (\S{1,40}) hierarchical KV host pool: \d{1,15} tokens, ([\d.]{1,20}) GB host memory")
_VLLM = re.compile(r"SimpleCPUOffloadConnector: role=WORKER, per_rank=([\d.]{1,20}) GB")
_READY = re.compile(r"fired up and ready to roll|Uvicorn running on|Application startup complete")
_REFUSED = re.compile(r"Not enough host memory (?:available|for [^.]{1,80})\. +Requesting")
_STARTS = re.compile(r"\bserver_args=|vLLM API server version")  # what was said before it is of an earlier start
_RANK = re.compile(r"(?:DP(\d+)[ _])?(?:PP(\d+)[ _])?TP(\d+)")


class Course(StrEnum):
    """How the start stands."""

    GOES_ON = "goes on"
    TOO_MUCH = "will not fit"
    READY = "is up"


@dataclass(slots=True)
class Tally:
    """`room`: bytes that the pools may take. `ranks`: how many will allocate."""

    room: int
    ranks: int
    pinning: Pinning = Pinning.EXACT
    said: int = 0
    total: int = 0
    _largest: dict[str, int] = field(default_factory=dict)  # of a pool, where no rank is named
    _of_rank: dict[str, int] = field(default_factory=dict)

    def line(self, text: str) -> tuple[Course, str] | None:
        """What one log line adds; None if it says nothing about memory."""
        if _READY.search(text):
            return Course.READY, f"the server is up: {both(self.total)} in {self.said} pools"
        if _REFUSED.search(text):
            return Course.TOO_MUCH, f"the engine refuses it: {text[-300:].strip()}"
        if _STARTS.search(text):
            self.said = self.total = 0
            self._largest, self._of_rank = {}, {}
            return None
        amount, pool = _amount(text)
        if amount is None:
            return None
        self.said += 1
        taken = pinned(amount, self.pinning)
        self.total += taken
        where = _RANK.search(text)
        expected = max(self.total, self._expected(where.group(0) if where else "", pool, taken))
        who = f"{where.group(0)}: " if where else ""
        words = f"{who}{both(taken)} for {pool}; {both(self.total)} so far, {both(expected)} when all {self.ranks} have"
        if expected > self.room:
            return Course.TOO_MUCH, f"{words}: {both(expected - self.room)} more than the {both(self.room)} there are"
        return Course.GOES_ON, f"{words}, of {both(self.room)}"

    def _expected(self, rank: str, pool: str, taken: int) -> int:
        """What all pools come to once each rank has what the fullest one has. Pools of one rank may bear one name."""
        if rank:
            self._of_rank[rank] = self._of_rank.get(rank, 0) + taken
        else:
            self._largest[pool] = max(taken, self._largest.get(pool, 0))
        each = max(self._of_rank.values(), default=0) + sum(self._largest.values())
        return each * self.ranks


def _amount(text: str) -> tuple[int | None, str]:
    for pattern, unit, pool in ((_NEW, GB, ""), (_OLD, GB, "the KV cache"), (_VLLM, GIB, "the KV offload pool")):
        found = pattern.search(text)
        if found is not None:
            return _bytes(found.groups()[-1], unit), pool or found.group(1)
    found = _OTHER.search(text)
    return (None, "") if found is None else (_bytes(found["amount"], GB), found["pool"].strip())


def _bytes(number: str, unit: int) -> int | None:
    try:
        return int(float(number) * unit)
    except (ValueError, OverflowError):
        return None
