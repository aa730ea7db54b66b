"""How much RAM an idle guest should have: numbers and their reasons in one place.

8 GiB or 3 %: page tables, slab, page cache that is not reclaimable at once and the driver's own pools differ by that
much between two idle looks of a big guest. 16 GiB or 5 % where no baseline says what is normal.
"""

from __future__ import annotations

from recover.model.memory import Ram
from recover.model.reading import Known
from recover.model.snapshot import Baseline, Snapshot


def tolerance_mib(total_mib: int) -> int:
    return max(8 * 1024, total_mib * 3 // 100)


def blind_tolerance_mib(total_mib: int) -> int:
    return max(16 * 1024, total_mib * 5 // 100)


def unowned(ram: Ram) -> int:
    """Unowned RAM without what the balloon took: that one is the hypervisor's doing."""
    balloon = ram.balloon_mib.value if isinstance(ram.balloon_mib, Known) else 0
    return max(0, ram.unowned_mib - balloon)


def unowned_limit(ram: Ram, baseline: Baseline | None) -> int:
    if baseline is None:
        return blind_tolerance_mib(ram.total_mib)
    return baseline.unowned_mib + tolerance_mib(ram.total_mib)


def ram_expected(snapshot: Snapshot, baseline: Baseline | None) -> int | None:
    """What should be available on the idle guest: the configuration's word, else the baseline's."""
    said = dict(snapshot.target.expect).get("ram_available")
    if said is not None:
        return said
    return baseline.ram_available_mib if baseline is not None else None


def free_enough(missing_mib: int, ram: Ram) -> bool:
    return missing_mib <= tolerance_mib(ram.total_mib)
