"""From a word to a target: every name is resolved before anything is looked at; an ambiguous one is never guessed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from recover.core.read.pve import GuestRow
from recover.model.snapshot import Target


@dataclass(frozen=True, slots=True)
class Unresolved:
    """Why a word is no target, with what may have been meant."""

    word: str
    why: str
    suggestions: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f" (did you mean {', '.join(self.suggestions)}?)" if self.suggestions else ""
        return f"{self.word}: {self.why}{hint}"


Guests = Callable[[str], tuple[GuestRow, ...] | str]  # all guests of a cluster, or why they can't be listed


def resolve(word: str, targets: Mapping[str, Target], clusters: Iterable[str], guests: Guests) -> Target | Unresolved:
    """The target called `word`: a configured name, address or vmid; else a guest that a cluster knows."""
    if word in targets:
        return targets[word]
    same = [t for t in targets.values() if t.address == word or (word.isdecimal() and t.vmid == int(word))]
    if len(same) == 1:
        return same[0]
    if same:
        return Unresolved(word, "stands for several targets", tuple(sorted(t.name for t in same)))
    return _from_clusters(word, targets, tuple(clusters), guests)


def _from_clusters(
    word: str, targets: Mapping[str, Target], clusters: tuple[str, ...], guests: Guests
) -> Target | Unresolved:
    found: list[tuple[str, GuestRow]] = []
    known: set[str] = set(targets)
    unseen: list[str] = []
    for cluster in clusters:
        rows = guests(cluster)
        if isinstance(rows, str):
            unseen.append(f"{cluster}: {rows}")
            continue
        known |= {row.name for row in rows if row.name}
        on_node = tuple(sorted(f"{row.vmid} ({row.name})" for row in rows if row.node == word))
        if on_node:
            return Unresolved(word, "is a Proxmox node, and nodes are never recovered; its guests", on_node)
        found += [(cluster, row) for row in rows if row.name == word or str(row.vmid) == word]
    if len(found) > 1:
        return Unresolved(word, "several guests are called so", tuple(f"{c}/{r.vmid} on {r.node}" for c, r in found))
    if found:
        cluster, row = found[0]
        return _known(targets, cluster, row) or Target(row.name or str(row.vmid), "", row.kind, cluster, row.vmid)
    why = "no target of the configuration and no guest of a cluster is called so"
    if unseen:
        why += "; could not be asked: " + "; ".join(unseen)
    return Unresolved(word, why, tuple(difflib.get_close_matches(word, sorted(known), 3, 0.6)))


def _known(targets: Mapping[str, Target], cluster: str, row: GuestRow) -> Target | None:
    """A guest found by its Proxmox name may be configured under another: then the configuration holds."""
    return next((t for t in targets.values() if t.cluster == cluster and t.vmid == row.vmid), None)
