"""The engine's own arithmetic, in whole bytes: tokens of a size, page rounding, pinning, and its check at start."""

from __future__ import annotations

from dataclasses import dataclass

from recover.core.budget.bytes_per_token import PerToken
from recover.core.budget.model import GIB, Check, Facts, Launch, OwnCheck, Pages, Pinning, Problem, Semantics
from recover.core.budget.ranks import Counts
from recover.core.budget.sizes import both, count
from recover.core.budget.table import Ruling, ruling, semantics
from recover.model.reading import Known

RESERVE = 10 * GIB  # what SGLang's check leaves to the system: `mem_cache/memory_pool_host.py`
AUTO_SHARE = 76, 100  # hicache_auto_size.py: 0.8 x 0.95


@dataclass(frozen=True, slots=True)
class Case:
    """All that a demand is worked out from. `plain`: a person says that the model has no pools beside the main one."""

    launch: Launch
    facts: Facts
    counts: Counts
    model: PerToken | None = None
    draft: PerToken | None = None
    proofs: tuple[Semantics, ...] = ()
    plain: bool = False

    def meaning(self, flag: str, engine: str = "") -> Semantics:
        """A proof from the installed source outranks the table."""
        of = engine or self.launch.engine
        proof = next((s for s in self.proofs if s.engine == of and s.flag == flag and s.proved_by), None)
        return proof or semantics(of, self.launch.version if of == self.launch.engine else None, flag)

    def rule(self, key: str) -> Ruling:
        return ruling(self.launch.engine, self.launch.version, key)

    @property
    def page(self) -> int:
        option = self.launch.option("page-size")
        return count(option.value or "", option.said, most=1 << 20) if option is not None else 1


def tokens(amount: int, per_token: int, page: int, pages: Pages) -> int:
    """How many tokens the pool of `amount` bytes gets."""
    return paged(amount // per_token, page, pages)


def paged(number: int, page: int, pages: Pages) -> int:
    match pages:
        case Pages.DOWN:
            return number - number % page
        case Pages.UP:
            return (number // page + 1) * page
        case Pages.NONE:
            return number


def pinned(amount: int, pinning: Pinning) -> int:
    """What the allocator takes for one tensor of `amount` bytes."""
    if pinning is Pinning.EXACT or amount <= 0:
        return amount
    return 1 << (amount - 1).bit_length()


def page_words(number: int, page: int, pages: Pages) -> str:
    """The rounding, written out."""
    rounded = paged(number, page, pages)
    match pages:
        case Pages.UP:
            return f"{number} tokens, one page of {page} more: {rounded}"
        case Pages.DOWN if rounded != number:
            return f"{number} tokens, down to whole pages of {page}: {rounded}"
        case _:
            return f"{rounded} tokens"


def seen_by_check(kind: Check, facts: Facts, launch: Launch) -> int | None:
    """The available memory as the engine's check reads it."""
    if not isinstance(facts.available, Known):
        return None
    rooms = [facts.available.value]
    if kind in {Check.SPLIT_CGROUP, Check.UNKNOWN}:
        if isinstance(facts.cgroup_room, Known) and facts.cgroup_room.value is not None:
            rooms.append(facts.cgroup_room.value)
        if launch.memory_limit is not None:
            rooms.append(launch.memory_limit)
    return min(rooms)


def own_check(kind: Check, asked: int, case: Case, least: int | None = None) -> OwnCheck | None:
    """The engine's check for `asked` bytes per rank, or for `least` to `asked`.

    A rank that comes after k peers sees what they have pinned. Each alone: g <= A - k g - 10 GiB, so that all R pass
    for certain if R g <= A - 10 GiB. Split: g <= (A - k g - 10 GiB) / R, so that the last, with k = R - 1, passes if
    (2 R - 1) g <= A - 10 GiB (sglang issue 38156: peers are charged twice).
    """
    seen = seen_by_check(kind, case.facts, case.launch)
    if kind is Check.NONE or seen is None:
        return None
    room = max(0, seen - RESERVE)
    ranks, shares = case.counts.on_host, case.counts.checked
    head = f"the engine's check leaves 10 GiB: {both(seen)} - 10 GiB = {both(room)}"
    if kind is Check.EACH:
        each = f"each rank alone against that; all {ranks} pass for certain up to {both(room // ranks)} each"
        return OwnCheck(kind, room // ranks, room, asked, (head, each), least)
    certain, share = room // (shares + ranks - 1), room // shares
    last = f"the last of {ranks} sees {ranks - 1} peers pinned: passes for certain up to {both(certain)}"
    last += f" ({shares + ranks - 1} g <= {both(room)})"
    if kind is Check.UNKNOWN:
        return OwnCheck(kind, certain, room, asked, (head, "whether it is split by ranks is not known", last), least)
    return OwnCheck(
        kind, certain, share, asked, (head, f"/ {shares} ranks = {both(share)} each at the most", last), least
    )


def option_count(launch: Launch, name: str) -> int | None:
    """A setting that the engine reads as an int. Raises Problem."""
    option = launch.option(name)
    if option is None:
        return None
    if option.value is None:
        raise Problem(f"{option.said}: has no value")
    return count(option.value, option.said, least=0, most=10**17)
