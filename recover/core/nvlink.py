"""GPUs that NVLink can join without an NVSwitch: whether it does is not to be seen from outside the guests.

Direct links have no PCI device of their own, and a device that is bound to vfio answers no driver of the node. So only
the model tells that there may be one. Device ids: pci.ids; which cards take bridges: NVIDIA's data sheets of each. On
boards of four (A100, H100) and on the older SXM ones the links go from GPU to GPU.
"""

from __future__ import annotations

from collections.abc import Iterable

MAY_BE_JOINED = {
    "10de:15f9": "P100 SXM2", "10de:15f0": "Quadro GP100",
    "10de:1db1": "V100 SXM2", "10de:1db5": "V100 SXM2", "10de:1db2": "V100 DGXS", "10de:1db7": "V100 DGXS",
    "10de:1dba": "Quadro GV100",
    "10de:1e02": "TITAN RTX", "10de:1e04": "RTX 2080 Ti", "10de:1e07": "RTX 2080 Ti", "10de:1e82": "RTX 2080",
    "10de:1e87": "RTX 2080", "10de:1e30": "Quadro RTX 6000/8000", "10de:1e78": "Quadro RTX 6000/8000",
    "10de:20b0": "A100 SXM4", "10de:20b2": "A100 SXM4", "10de:20b3": "A100 SXM4", "10de:20b1": "A100 PCIe",
    "10de:20f1": "A100 PCIe", "10de:20b5": "A100 PCIe", "10de:20b7": "A30", "10de:20f5": "A800 PCIe",
    "10de:20f6": "A800 PCIe",
    "10de:2203": "RTX 3090 Ti", "10de:2204": "RTX 3090", "10de:2230": "RTX A6000", "10de:2231": "RTX A5000",
    "10de:2232": "RTX A4500", "10de:2233": "RTX A5500", "10de:2235": "A40",
    "10de:2321": "H100 NVL", "10de:2322": "H800 PCIe", "10de:2330": "H100 SXM5", "10de:2331": "H100 PCIe",
    "10de:233b": "H200 NVL",
}  # fmt: skip


def may_be_joined(ours: Iterable[str], theirs: Iterable[str]) -> tuple[str, ...]:
    """The models of which both have one, by device ids."""
    names = {MAY_BE_JOINED[ids] for ids in ours if ids in MAY_BE_JOINED}
    return tuple(sorted(names & {MAY_BE_JOINED[ids] for ids in theirs if ids in MAY_BE_JOINED}))
