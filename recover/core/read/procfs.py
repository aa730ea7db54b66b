"""The text files of /proc and of the driver's own folder under it, as readings; a missing figure is never zero."""

from __future__ import annotations

import re

from recover.model.memory import Ram
from recover.model.reading import Known, Reading, Unknown, Why

_FIELD = re.compile(r"^([\w()]+):\s+(\d+)(?: kB)?\s*$", re.M)
_BUS = re.compile(r"^(?:PCI:)?(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(?:\.([0-7]))?$")
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)|^(\d+\.\d+(?:\.\d+)?)$", re.M)


def bus_id(text: str) -> str:
    """Any spelling of a PCI address in the one that we use: "00000000:01:00.0". What is none stays as it is."""
    match = _BUS.match(text.strip())
    if match is None:
        return text.strip().lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):08x}:{bus}:{device}.{function or '0'}".lower()


def meminfo(text: str) -> dict[str, int]:
    """KiB by name (page counts for HugePages_*)."""
    return {name: int(value) for name, value in _FIELD.findall(text) if len(value) < 19}


def ram(text: str, process_anon_kib: int, other_cache_kib: int = 0) -> Reading[Ram]:
    """Total and available must be there; without them there is no reading of memory at all."""
    kib = meminfo(text)
    if "MemTotal" not in kib or "MemAvailable" not in kib:
        return Unknown(Why.GARBLED, "meminfo without MemTotal or MemAvailable")

    def mib(name: str) -> int:
        return kib.get(name, 0) // 1024

    return Known(
        Ram(
            total_mib=mib("MemTotal"),
            available_mib=mib("MemAvailable"),
            free_mib=mib("MemFree"),
            buffers_mib=mib("Buffers"),
            cached_mib=mib("Cached"),
            shmem_mib=mib("Shmem"),
            anon_mib=mib("AnonPages"),
            slab_mib=mib("Slab") + max(0, mib("KReclaimable") - mib("SReclaimable")),
            page_tables_mib=mib("PageTables") + mib("SecPageTables"),
            kernel_stack_mib=mib("KernelStack"),
            vmalloc_mib=mib("VmallocUsed"),
            percpu_mib=mib("Percpu"),
            swap_cached_mib=mib("SwapCached"),
            hugepages_total=kib.get("HugePages_Total", 0),
            hugepages_free=kib.get("HugePages_Free", 0),
            hugepage_kib=kib.get("Hugepagesize", 2048) or 2048,
            process_anon_mib=process_anon_kib // 1024,
            cache_mib=mib("Zswap") + other_cache_kib // 1024,
        )
    )


def module_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version (closed, open, "for x86_64" forms) or /sys/module/nvidia/version."""
    match = _MODULE.search(text)
    return (match.group(1) or match.group(2)) if match else ""
