"""From a word to a target: every name is resolved before anything is looked at; an ambiguous one is never guessed."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from recover.model.snapshot import Target

if TYPE_CHECKING:
    from recover.core.read.pve import GuestRow

_WORD = re.compile(r"(?=.*[A-Za-z])[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why a word is no target, with what may have been meant."""

    word: str
    why: str
    suggestions: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f" (did you mean {', '.join(self.suggestions)}?)" if self.suggestions else ""
        return f"{self.word}: {self.why}{hint}"


Guests = Callable[[str], "tuple[GuestRow, ...] | str"]  # all guests of a cluster, or why they can't be listed
Addresses = Callable[[str], Mapping[int, tuple[str, ...]]]  # vmid -> what the GPU guests of a cluster say of themselves


def resolve(
    word: str,
    targets: Mapping[str, Target],
    clusters: Iterable[str],
    guests: Guests,
    addresses: Addresses = lambda _: {},
) -> Target | Unresolved:
    """The target called `word`: a configured name, address or vmid; else a guest that a cluster knows.

    `CLUSTER/NAME` and `CLUSTER/VMID` mean one cluster's. `addresses` is asked only for an address that nobody has.
    """
    if word in targets:
        return targets[word]
    same = [t for t in targets.values() if t.address == word or (word.isdecimal() and t.vmid == int(word))]
    if len(same) == 1:
        return same[0]
    if same:
        return Unresolved(word, "stands for several targets", tuple(sorted(t.name for t in same)))
    every = tuple(clusters)
    cluster, slash, rest = word.partition("/")
    if slash and cluster in every:
        found = _from_clusters(rest, targets, (cluster,), guests, addresses, qualified=True)
        return replace(found, word=word) if isinstance(found, Unresolved) else _qualified(found, every, guests)
    return _from_clusters(word, targets, every, guests, addresses)


def _qualified(target: Target, clusters: tuple[str, ...], guests: Guests) -> Target:
    """Named with its cluster where another has a guest of that name, or may have: each has a journal of its own."""
    for other in clusters:
        rows = guests(other) if other != target.cluster and "/" not in target.name else ()
        if isinstance(rows, str) or any(target.name in (row.name, row.node) for row in rows):
            return replace(target, name=f"{target.cluster}/{target.name}") if not target.address else target
    return target


def _from_clusters(
    word: str, targets: Mapping[str, Target], clusters: tuple[str, ...], guests: Guests, addresses: Addresses,
    *, qualified: bool = False,
) -> Target | Unresolved:  # fmt: skip
    found: list[tuple[str, GuestRow]] = []
    names: list[str] = list(targets)
    nodes: set[str] = set()
    unseen: list[str] = []
    by_address = _is_address(word)
    for cluster in clusters:
        rows = guests(cluster)
        if isinstance(rows, str):
            unseen.append(f"{cluster}: {rows}")
            continue
        names += [row.name for row in rows if row.name]
        nodes |= {row.node for row in rows}
        on_node = tuple(sorted(f"{row.vmid} ({row.name})" for row in rows if row.node == word))
        if on_node:
            return Unresolved(word, "is a Proxmox node, and nodes are never recovered; its guests", on_node)
        has = {vmid for vmid, all_of_it in addresses(cluster).items() if word in all_of_it} if by_address else set()
        found += [(cluster, row) for row in rows if row.name == word or str(row.vmid) == word or row.vmid in has]
    if qualified:  # CLUSTER/9 is the guest 9, also where another one is named so
        found = [one for one in found if str(one[1].vmid) == word] or found
    if len(found) > 1:
        said = "several guests are called so, say which"
        return Unresolved(word, said, tuple(f"{c}/{r.vmid} ({r.name}) on {r.node}" for c, r in found))
    if found:
        cluster, row = found[0]
        configured = _known(targets, cluster, row)
        if configured is None and unseen:
            said = f"is {row.vmid} ({row.name}) of {cluster}, and may be another guest too: {'; '.join(unseen)}"
            return Unresolved(word, said, (f"{cluster}/{row.vmid}",))
        return configured or Target(_called(cluster, row, [*names, *nodes]), "", row.kind, cluster, row.vmid)
    why = "no target of the configuration and no guest of a cluster is called so"
    if by_address:
        why = "no target of the configuration has this address, and no GPU guest that was asked says that it is its own"
    if unseen:
        why += "; could not be asked: " + "; ".join(unseen)
    return Unresolved(word, why, tuple(difflib.get_close_matches(word, sorted(set(names)), 3, 0.6)))


def _called(cluster: str, row: GuestRow, names: Sequence[str]) -> str:
    """Its name where that means nobody else: journal, baseline and lock lie under it, and it is typed again.

    Proxmox allows the same name on two nodes, and a target of the configuration may be called so as well.
    """
    return row.name if _WORD.fullmatch(row.name) and names.count(row.name) == 1 else f"{cluster}/{row.vmid}"


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _known(targets: Mapping[str, Target], cluster: str, row: GuestRow) -> Target | None:
    """A guest found by its Proxmox name may be configured under another: then the configuration holds."""
    return next((t for t in targets.values() if t.cluster == cluster and t.vmid == row.vmid), None)
