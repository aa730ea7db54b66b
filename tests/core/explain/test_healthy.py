# ruff: noqa: E501
"""The other text in the world is not sick, and one sick line among thousands of it is found all the same."""

from __future__ import annotations

import random

import pytest

from recover.core.explain import explain
from tests.core.explain import healthy
from tests.core.explain.test_raw import RIGHT, text_of

WELL = {
    "journal": healthy.log(6000, 1),
    "dmesg": healthy.dmesg(4000, 2),
    "ps aux": healthy.ps_aux(5000, 3),
    "ps -ef with two servers": healthy.ps_ef(4),
    "nvidia-smi": healthy.smi_table(5),
    "nvidia-smi of a server": healthy.smi_table(6, serving=True),
    "nvidia-smi -q": healthy.smi_query(7),
    "all": [
        *healthy.log(1000, 8),
        "root@node-174:~# nvidia-smi",
        *healthy.smi_table(9),
        "root@node-174:~# ps -ef",
        *healthy.ps_ef(10),
        "root@node-174:~# ps aux",
        *healthy.ps_aux(1000, 11),
        "root@node-174:~# nvidia-smi -q",
        *healthy.smi_query(12),
        "root@node-174:~# dmesg",
        *healthy.dmesg(1000, 13),
    ],
}


@pytest.mark.parametrize("name", sorted(WELL))
def test_nothing_is_wrong(name: str) -> None:
    assert explain("\n".join(WELL[name])) == ()


@pytest.mark.parametrize("name", sorted(name for name in RIGHT if RIGHT[name]))
@pytest.mark.parametrize("seed", range(3))
def test_it_is_found_among_all_that(name: str, seed: int) -> None:
    rng = random.Random(seed)
    around = healthy.log(200, seed) if seed != 1 else [*healthy.smi_query(seed), *healthy.log(50, seed)]
    at = rng.randrange(len(around))
    lines = text_of(name)
    text = "\n".join([*around[:at], "", *lines, "", *around[at:]])
    assert [(t.signal, t.cure.word if t.cure else None, t.line - at - 1) for t in explain(text) if not t.note] == RIGHT[
        name
    ]


@pytest.mark.parametrize("seed", range(40))
def test_several_kinds_in_any_order(seed: int) -> None:
    """Reports of different machines in one text: each keeps its findings, unless they name the same device or guest."""
    rng = random.Random(seed)
    names = rng.sample(["dmesg_xid79_595_open", "smi_gpu_is_lost", "ps_sglang_reparented_to_init", "pve_task_lock_timeout",
                        "systemd_processes_still_around_after_sigkill", "smi_mig_pending_disabled_star", "meminfo_128g_host",
                        "dmesg_xid119_550_6s", "proc_stack_uvm_spin_loop", "free_h_before_after_driver_leak"], 4)  # fmt: skip
    text: list[str] = []
    right = []
    for name in names:
        right += [(signal, cure, line + len(text)) for signal, cure, line in RIGHT[name]]
        text += [*text_of(name), *rng.choice(([], [""], healthy.log(5, seed), healthy.smi_table(seed)))]
    told = [(t.signal, t.cure.word if t.cure else None, t.line) for t in explain("\n".join(text)) if not t.note]
    assert sorted(told) == sorted(right)
