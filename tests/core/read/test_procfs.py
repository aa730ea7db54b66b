"""Figures of /proc with their units, and one spelling for PCI addresses."""

from __future__ import annotations

import pytest

from recover.core.read.procfs import bus_id, meminfo, module_version, ram
from recover.model.reading import Known, Unknown

TEXT = """MemTotal:       470810624 kB
MemFree:        10485760 kB
MemAvailable:   12582912 kB
Buffers:            1024 kB
Cached:          2097152 kB
AnonPages:       1048576 kB
Shmem:           1048576 kB
Slab:             524288 kB
HugePages_Total:       4
HugePages_Free:        3
Hugepagesize:    1048576 kB
"""


def test_units_and_pages():
    found = ram(TEXT, 1048576)
    assert isinstance(found, Known)
    assert (found.value.total_mib, found.value.available_mib) == (459776, 12288)
    assert (found.value.hugepages_total, found.value.hugetlb_mib) == (4, 4096)
    assert found.value.unowned_mib == 459776 - 10240 - 1 - 2048 - 1024 - 512 - 4096


def test_what_the_kernel_keeps_beside_its_page_cache_has_an_owner():
    plain, cached = ram(TEXT, 1048576), ram(TEXT + "Zswap: 2097152 kB\n", 1048576, 1048576)
    assert isinstance(plain, Known) and isinstance(cached, Known)
    assert plain.value.unowned_mib - cached.value.unowned_mib == 3072


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB", "MemAvailable: 5 kB", "MemTotal: x kB\nMemAvailable: 5 kB"])
def test_without_totals_there_is_no_reading(text):
    assert isinstance(ram(text, 0), Unknown)


def test_absurd_figures_are_dropped():
    assert meminfo("MemTotal: " + "9" * 40 + " kB") == {}


@pytest.mark.parametrize(
    "text", ["00000000:0B:00.0", "0000:0b:00.0", "0b:00.0", "PCI:0000:0b:00", "0000:0b:00", "0:0B:00.0"]
)
def test_one_spelling_of_an_address(text):
    assert bus_id(text) == "00000000:0b:00.0"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\nGCC version: gcc 11",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  470.82.01  Release Build  (archlinux-builder@)",
        "470.82.01\n",
    ],
)
def test_module_versions(text):
    assert module_version(text) == "470.82.01"
