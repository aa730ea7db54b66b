"""What else takes host memory, and what else limits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from recover.core.budget.launch import parse
from recover.core.budget.model import (
    GB,
    GIB,
    MIB,
    Fit,
    Gpu,
    HugePages,
    ModelConfig,
    NumaNode,
    Scope,
    Semantics,
    Unit,
    Verdict,
)
from recover.core.budget.solve import judge
from recover.core.budget.version import version
from recover.core.budget.words import meaning_words
from recover.model.reading import Known, Unknown, Why
from tests.core.budget.builders import GLM, KIMI, LLAMA, machine, sglang, vllm

HYBRID = ModelConfig("Qwen3.5", {**LLAMA.fields, "full_attention_interval": 4, "linear_num_key_heads": 16})
EIGHT = tuple(Gpu(i, 96 * GIB, numa=0) for i in range(8))


def total_gb(verdict: Verdict) -> int:
    return round(verdict.total_low / GB)


@pytest.mark.parametrize(
    ("words", "ranks"),
    [
        ("--tp 8", 8),
        ("--tp 4 --pp-size 2", 8),
        ("--tp 4 --dp-size 2", 8),
        ("--tp 8 --dp-size 8 --enable-dp-attention", 8),
        ("--tp 16 --nnodes 2", 8),
        ("--tp 8 --dp 2 --nnodes 2", 8),
    ],
)
def test_ranks_on_a_host(words: str, ranks: int) -> None:
    found = judge(sglang(f"{words} --hicache-size 10"), machine(), LLAMA)
    assert (found.ranks, total_gb(found)) == (ranks, ranks * 10)


@pytest.mark.parametrize(
    "words", ["--tp 0", "--tp -1", "--tp x", "--tp 3 --nnodes 2", "--tp 8 --dp-size 3 --enable-dp-attention"]
)
def test_ranks_that_make_no_sense(words: str) -> None:
    found = judge(sglang(f"{words} --hicache-size 10"), machine(), LLAMA)
    assert found.fit is Fit.CANNOT_TELL
    assert found.safe == ()


@pytest.mark.parametrize("size", ["-5", "nan", "1e3", "300GB", "48.5", "9" * 40])
def test_a_size_that_the_engine_does_not_take_is_no_size(size: str) -> None:
    found = judge(sglang(f"--tp 8 --hicache-size={size}"), machine(), KIMI)
    assert found.fit is Fit.CANNOT_TELL
    assert "--hicache-size" in found.reasons[0]


def test_without_any_size_the_ratio_counts() -> None:
    """2 x the device pool: at most 2 x what the weights leave on each GPU."""
    launch = sglang("--tp 8 --mem-fraction-static 0.9")
    blind = judge(launch, machine(), KIMI)
    assert (blind.fit, blind.total_high) == (Fit.CANNOT_TELL, None)
    wide = judge(launch, machine(gpus=EIGHT), KIMI)
    assert wide.fit is Fit.CANNOT_TELL
    near = judge(launch, machine(gpus=EIGHT, weights=Known(600 * GIB)), KIMI)
    assert near.fit is Fit.FITS
    assert near.total_high == pytest.approx(2 * (96 * 0.9 - 75) * 8 * GIB, rel=1e-6)
    (corrected,) = parse(blind.corrected)
    assert corrected.value("hicache-size") == "51"


def test_auto_sizing_bounds_the_ratio() -> None:
    found = judge(sglang("--tp 8", "0.5.21"), machine(gpus=EIGHT), KIMI)
    assert found.total_high == pytest.approx(435 * GIB * 0.76, rel=1e-6)
    assert found.fit is Fit.FITS
    explicit = judge(sglang("--tp 8 --hicache-ratio 2", "0.5.21"), machine(gpus=EIGHT), KIMI)
    assert explicit.fit is Fit.CANNOT_TELL
    replicas = judge(sglang("--tp 4 --dp-size 2", "0.5.21"), machine(gpus=EIGHT), KIMI)
    assert replicas.total_high == pytest.approx(2 * 435 * GIB * 0.76, rel=1e-6)  # replicas are not counted


def test_state_pools_get_the_size_again_up_to_0_5_16() -> None:
    twice, once = (judge(sglang("--tp 4 --hicache-size 40", r), machine(), HYBRID) for r in ("0.5.10", "0.5.17"))
    assert (total_gb(twice), total_gb(once)) == (320, 160)


def test_a_draft_model_has_as_many_tokens_as_its_target() -> None:
    words = "--tp 8 --hicache-size 20 --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
    known = judge(sglang(words, "0.5.12"), machine(), KIMI, draft=LLAMA)
    assert total_gb(known) == round(160 * (1 + 16_384 / 70_272))
    unknown = judge(sglang(words, "0.5.12"), machine(), KIMI)
    assert (unknown.fit, unknown.safe[0].value) == (Fit.CANNOT_TELL, None)
    before = judge(sglang(words, "0.5.9"), machine(), KIMI)
    assert (before.fit, total_gb(before)) == (Fit.FITS, 160)


def test_without_a_config_side_pools_are_not_taken_for_absent() -> None:
    launch = sglang("--tp 8 --hicache-size 20", "0.5.12")
    assert judge(launch, machine()).fit is Fit.CANNOT_TELL
    assert judge(launch, machine(), plain=True).fit is Fit.FITS
    assert judge(sglang("--tp 8 --hicache-size 20"), machine()).fit is Fit.FITS  # 0.5.9 has none


def test_the_host_pool_must_be_larger_than_the_device_pool_up_to_0_5_14() -> None:
    facts = machine(device_tokens=Known(231_120))
    small, later = (judge(sglang("--tp 8 --hicache-size 10", r), facts, KIMI) for r in ("0.5.14", "0.5.15"))
    assert small.fit is Fit.NOT
    assert "231120" in small.reasons[0]
    assert not [r for r in later.reasons if "231120" in r]
    full = judge(sglang("--tp 8 --hicache-size 10"), machine(150, device_tokens=Known(231_120)), KIMI)
    assert full.safe[0].value is None
    assert "231120" in full.safe[0].why


@pytest.mark.parametrize(
    ("more", "fit"),
    [
        ({"cgroup_room": Known(300 * GIB)}, Fit.NOT),
        ({"cgroup_room": Known(None)}, Fit.FITS),
        ({"available": Unknown(Why.DENIED)}, Fit.CANNOT_TELL),
        ({"total": Known(500 * GIB), "balloon_target": Known(400 * GIB)}, Fit.TIGHT),
        ({"total": Known(500 * GIB), "balloon_target": Known(500 * GIB)}, Fit.FITS),
    ],
)
def test_other_limits(more: dict[str, Any], fit: Fit) -> None:
    facts = replace(machine(), **more)
    assert judge(sglang("--tp 8 --hicache-size 48"), facts, KIMI).fit is fit


def test_ranks_bound_to_a_node_have_only_its_memory() -> None:
    nodes = (NumaNode(0, 256 * GIB, 220 * GIB), NumaNode(1, 256 * GIB, 225 * GIB))
    launch = sglang("--tp 8 --hicache-size 30", "0.5.18")
    one_side = judge(launch, machine(numa=nodes, gpus=EIGHT, numactl=Known(True)), KIMI)
    spread = tuple(replace(g, numa=g.index // 4) for g in EIGHT)
    both_sides = judge(launch, machine(numa=nodes, gpus=spread, numactl=Known(True)), KIMI)
    without = judge(launch, machine(numa=nodes, gpus=EIGHT, numactl=Known(False)), KIMI)
    assert [v.fit for v in (one_side, both_sides, without)] == [Fit.NOT, Fit.FITS, Fit.FITS]
    assert judge(launch, machine(numa=nodes, numactl=Known(True)), KIMI).fit is Fit.CANNOT_TELL
    assert judge(sglang("--tp 8 --hicache-size 30", "0.5.17"), machine(numa=nodes, gpus=EIGHT), KIMI).fit is Fit.FITS


def test_hugepages_are_another_pot() -> None:
    launch = sglang("--tp 8 --hicache-size 20", "0.5.14", SGLANG_HUGEPAGE_SIZE="2MB")
    pages = (HugePages(2 * MIB, 100_000, 90_000),)
    found = judge(launch, machine(80, hugepages=pages), LLAMA)
    assert "free hugepages" in " ".join(found.reasons)
    assert judge(launch, machine(400), LLAMA).fit is Fit.CANNOT_TELL


def test_decode_servers_have_pools_without_any_flag() -> None:
    argv = "python -m sglang.launch_server --tp 8 --disaggregation-mode decode"
    (launch,) = parse(argv, version=version("0.5.18"))
    found = judge(launch, machine(gpus=EIGHT), LLAMA)
    assert found.total_high == pytest.approx(0.2 * 96 * 8 * GIB, rel=1e-6)
    assert judge(launch, machine(gpus=EIGHT), KIMI).demands == ()  # MLA has none
    (older,) = parse(argv, version=version("0.5.17"))
    assert judge(older, machine(gpus=EIGHT), LLAMA).demands == ()
    ran = machine(gpus=EIGHT, device_tokens=Known(100_000))  # one request is more than a fifth of the device pool
    (long,) = parse(f"{argv} --context-length 32768", version=version("0.5.18"))
    assert judge(long, ran, LLAMA).demands[0].low == (32768 + 1) * 2 * 128 * 1 * 32 * 2
    assert judge(launch, ran, LLAMA).demands[0].low == (20_000 + 1) * 2 * 128 * 1 * 32 * 2


def test_a_vm_that_does_not_get_its_memory_is_told() -> None:
    launch = sglang("--tp 8 --hicache-size 48")
    found = judge(launch, machine(total=Known(449 * GIB), vm_memory=Known(600 * GIB)), KIMI)
    assert any("configured with 644.2 GB (600.0 GiB), and its guest sees 482.1 GB" in note for note in found.notes)
    fine = judge(launch, machine(total=Known(449 * GIB), vm_memory=Known(460 * GIB)), KIMI)
    assert not any("configured with" in note for note in fine.notes)


def test_a_launch_that_sizes_nothing_fits() -> None:
    (launch,) = parse("sglang serve --tp 8", version=version("0.5.9"))
    assert judge(launch, machine()).fit is Fit.FITS


def test_offloads_whose_size_is_not_known_are_named() -> None:
    found = judge(sglang("--tp 8 --hicache-size 10 --kt-weight-path /x"), machine(), KIMI)
    assert found.fit is Fit.CANNOT_TELL
    assert any("kt-weight-path" in d.needs for d in found.demands)


def test_trtllm_and_llama_cpp() -> None:
    (trt,) = parse(
        "trtllm-serve m --tp_size 8 --extra_llm_api_options x.yml",
        files={"x.yml": f"kv_cache_config:\n  host_cache_size: {60 * GIB}\n"},
    )
    found = judge(trt, machine())
    assert (found.total_low, found.fit, found.safe[0].value) == (480 * GIB, Fit.NOT, 380 * GIB // 8)
    (llama,) = parse("llama-server -m /m.gguf --mlock -cram 8192")
    held = judge(llama, machine(files=(("/m.gguf", 300 * GIB),)))
    assert (held.fit, held.total_high) == (Fit.FITS, 308 * GIB)
    assert judge(llama, machine()).fit is Fit.CANNOT_TELL


def test_lmcache_inside_sglang_and_as_a_server() -> None:
    inside = judge(
        sglang("--tp 8 --enable-lmcache", "0.5.9", LMCACHE_MAX_LOCAL_CPU_SIZE="20"), machine(gpus=EIGHT), LLAMA
    )
    assert [d.total_low for d in inside.demands if d.flag == "max-local-cpu-size"] == [160 * GIB]
    (server,) = parse("lmcache server --l1-size-gb 300")
    assert judge(server, machine()).safe[0].value == 380


def test_vllm_swap_space_only_where_it_is_allocated() -> None:
    old, newer = (judge(vllm("--swap-space 64 -tp 8", r), machine()) for r in ("0.9.2", "0.11.0"))
    assert (old.total_low, old.fit) == (512 * GIB, Fit.NOT)
    assert newer.demands == ()
    checked = judge(vllm("--swap-space 64 -tp 8", "0.11.0"), machine(total=Known(512 * GIB)))
    assert checked.fit is Fit.NOT


@pytest.mark.parametrize(
    ("config", "total", "host"),
    [
        ('{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":"80g"}}', 80, 1),
        ('{"kv_connector_extra_config":{"cpu_bytes_to_use_per_rank":1073741824}}', 8, 8),
    ],
)
def test_vllm_connectors(config: str, total: int, host: int) -> None:
    found = judge(vllm(f"--kv-transfer-config {config} -tp 8", "0.33.0"), machine())
    assert (found.total_low, found.demands[0].shares) == (total * GIB, host)
    assert judge(vllm("--kv-transfer-config {broken -tp 8"), machine()).fit is Fit.CANNOT_TELL


def test_a_proof_outranks_the_table() -> None:
    launch = sglang("--tp 8 --hicache-size 300")
    proof = Semantics("sglang", "hicache-size", Unit.GB, Scope.SERVER, proved_by="memory_pool_host.py:159")
    found = judge(launch, machine(), KIMI, semantics=(proof,))
    assert found.fit is Fit.FITS
    assert total_gb(found) == 300
    assert meaning_words(found.semantics[0]).startswith("proved: --hicache-size: GB (10^9) per server, memory_pool")


def test_a_size_without_hicache_is_judged_and_said() -> None:
    (launch,) = parse("sglang serve --tp 8 --hicache-size 300", version=version("0.5.9"))
    found = judge(launch, machine(), KIMI)
    assert found.fit is Fit.NOT
    assert any("no effect without --enable-hierarchical-cache" in n for n in found.notes)


def test_the_default_loading_and_margin_are_said() -> None:
    found = judge(sglang("--tp 8 --hicache-size 48"), machine(loading=None, margin=None), KIMI)
    assert (found.loading, found.margin) == (40 * GIB, 25 * GIB)
    assert len([n for n in found.notes if "assumed" in n or "kept" in n]) == 2


def test_packed_rows_of_a_dsa_model_in_the_ratio() -> None:
    found = judge(sglang("--tp 8 --kv-cache-dtype fp8_e4m3"), machine(device_tokens=Known(100_000)), GLM)
    assert found.demands[0].low == (200_000 + 1) * 78 * (656 + 132)
