"""Kernel lines that mean something here, besides Xids; what is not in this table is only evidence.

Texts: mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, and nv.c / nv-pci.c of
open-gpu-kernel-modules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from recover.core.xids import bus_of
from recover.model.memory import KernelLine

_OOM = re.compile(r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+)[^(]*\((?P<comm>[^)]*)\)")
_OOM_TASK = re.compile(r"oom-kill:.*?\btask=(?P<comm>[^,]*),pid=(?P<pid>\d+)")
_INIT_FAILED = re.compile(r"NVRM:.*?(?P<bdf>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}).*RmInitAdapter failed")
_NEEDS_RESET = re.compile(
    r"The GPU likely needs to be reset|NV_ERR_GPU_IN_FULLCHIP_RESET|RC watchdog: GPU is probably locked"
)
_REGION = re.compile(r"This PCI I/O region assigned to your NVIDIA device is invalid")
_LOCKUP = re.compile(r"soft lockup|rcu.*(?:detected stalls|self-detected stall)|hard LOCKUP", re.IGNORECASE)
_NVIDIA = re.compile(r"nvidia|\buvm_|\[nv_", re.IGNORECASE)
NEAR = 40  # lines of a trace that follow its head


@dataclass(frozen=True, slots=True)
class OomKill:
    usec: int
    pid: int
    comm: str


def oom_kills(lines: Iterable[KernelLine]) -> tuple[OomKill, ...]:
    """Processes that the kernel killed for want of memory; one line a kill, whichever form was logged."""
    found: dict[int, OomKill] = {}
    for line in lines:
        match = _OOM.search(line.text) or _OOM_TASK.search(line.text)
        if match:
            found.setdefault(int(match["pid"]), OomKill(line.usec, int(match["pid"]), match["comm"]))
    return tuple(found.values())


def init_failures(lines: Iterable[KernelLine]) -> dict[str, str]:
    """Bus id -> the line that says the driver could not bring the adapter up."""
    return {bus_of(m["bdf"]): line.text for line in lines if (m := _INIT_FAILED.search(line.text))}


def reset_hints(lines: Iterable[KernelLine]) -> tuple[str, ...]:
    return tuple(line.text for line in lines if _NEEDS_RESET.search(line.text))


def invalid_regions(lines: Iterable[KernelLine]) -> tuple[str, ...]:
    return tuple(line.text for line in lines if _REGION.search(line.text))


def driver_lockups(lines: Iterable[KernelLine]) -> tuple[str, ...]:
    """Lockups and RCU stalls whose trace stands in the NVIDIA driver."""
    told = list(lines)
    return tuple(
        line.text
        for i, line in enumerate(told)
        if _LOCKUP.search(line.text) and any(_NVIDIA.search(after.text) for after in told[i : i + NEAR])
    )
