"""The figures that people have worked out by hand, each of them to the byte where it has one."""

from __future__ import annotations

import pytest

from recover.core.budget.bytes_per_token import per_token
from recover.core.budget.model import GB, GIB, Fit, Place, Shm
from recover.core.budget.solve import judge
from recover.core.budget.words import verdict_lines
from recover.model.reading import Known
from tests.core.budget.builders import GLM, KIMI, LLAMA, QWEN, machine, sglang, vllm


@pytest.mark.parametrize(
    ("size", "tokens", "total_gb", "total_gib"),
    [(300, 4_269_126, 2400, 2235.2), (48, 683_061, 384, 357.6), (47, 668_830, 376, 350.2), (29, 412_683, 232, 216.1)],
)
def test_the_incident(size: int, tokens: int, total_gb: int, total_gib: float) -> None:
    launch = sglang(f"--tp 8 --hicache-size {size}")
    found = judge(launch, machine(), KIMI)
    assert found.bytes_per_token == 70_272
    assert found.demands[0].low == tokens * 70_272
    assert found.total_low // GB == total_gb
    assert round(found.total_low / GIB, 1) == total_gib
    assert found.fit is (Fit.NOT if size == 300 else Fit.FITS)


def test_the_incident_in_words() -> None:
    launch = sglang("--tp 8 --hicache-size 300")
    text = "\n".join(verdict_lines(judge(launch, machine(), KIMI)))
    assert "2400 GB (2235 GiB) of host memory asked, of 477.8 GB (445.0 GiB) available" in text
    assert "(445.0 GiB available - 40.0 GiB loading - 25.0 GiB margin) / 8 ranks = 47.5 GiB = 51.0 GB per rank" in text
    assert "300000000000 / 70272 = 4269125 tokens, one page of 1 more: 4269126" in text
    assert "--tp 8 --hicache-size 51" in text


def test_the_largest_is_51_where_48_mixed_the_units() -> None:
    (safe,) = judge(sglang("--tp 8 --hicache-size 300"), machine(), KIMI).safe
    assert (safe.value, safe.fits) == (51, 51)
    assert safe.total <= (445 - 40 - 25) * GIB < safe.total + 8 * GB


def test_four_hundred_thousand_tokens_need_29() -> None:
    tokens = [judge(sglang(f"--tp 8 --hicache-size {g}"), machine(), KIMI).demands[0].low // 70_272 for g in (28, 29)]
    assert tokens[0] < 400_000 <= tokens[1]


@pytest.mark.parametrize(
    ("release", "total", "fit"),
    [
        ("0.5.4", 512 * GIB, Fit.NOT),
        ("0.4.6", 512 * GIB, Fit.NOT),
        ("0.5.5", 683_060 * 70_272 * 8, Fit.FITS),
        ("0.5.6", 683_061 * 70_272 * 8, Fit.FITS),
        ("0.5.18", 683_061 * 70_272 * 8, Fit.FITS),
        ("0.5.19", 683_061 * 70_272 * 8, Fit.TIGHT),
        ("0.5.23", 683_061 * 70_272 * 8, Fit.TIGHT),
        (None, 512 * GIB, Fit.NOT),
        ("0.6.0", 512 * GIB, Fit.NOT),
    ],
)
def test_the_same_flag_on_other_releases(release: str | None, total: int, fit: Fit) -> None:
    found = judge(sglang("--tp 8 --hicache-size 48", release), machine(), KIMI)
    assert (found.total_low, found.fit) == (total, fit)


@pytest.mark.parametrize(("size", "total", "fit"), [(40, 256, Fit.NOT), (30, 128, Fit.FITS)])
def test_power_of_two_pinning_of_sglang_issue_14282(size: int, total: int, fit: Fit) -> None:
    launch = sglang(f"--tp 4 --hicache-size {size}", "0.5.3")
    found = judge(launch, machine(available=250, loading=20, margin=10), LLAMA)
    assert (found.total_low, found.fit) == (total * GIB, fit)


def test_on_0_5_19_both_figures_are_said() -> None:
    found = judge(sglang("--tp 8 --hicache-size 48", "0.5.19"), machine(), KIMI)
    (safe,), (check,) = found.safe, found.checks
    assert (safe.value, safe.fits) == (31, 51)
    assert check.certain == 435 * GIB // 15
    assert check.possible == 435 * GIB // 8
    text = "\n".join(verdict_lines(found))
    assert "up to 51 fits the host, but above 31 the engine's own check may refuse it at start" in text
    assert "15 g <= 467.1 GB (435.0 GiB)" in text


def test_on_0_5_19_the_incident_is_refused_by_the_engine_itself() -> None:
    found = judge(sglang("--tp 8 --hicache-size 300", "0.5.19"), machine(), KIMI)
    assert any("the engine refuses 300.0 GB" in reason for reason in found.reasons)


def test_grouped_heads_and_heads_that_are_copied() -> None:
    sizes = {tp: per_token(LLAMA, ranks=tp).main for tp in (4, 8, 16)}
    assert sizes == {4: 32_768, 8: 16_384, 16: 16_384}
    assert [per_token(QWEN, ranks=tp).main for tp in (4, 8)] == [48_128, 48_128]
    found = judge(sglang("--tp 4 --hicache-size 40"), machine(), LLAMA)
    assert found.demands[0].low // 32_768 == 1_220_704
    assert round(found.total_low / GB) == 160


def test_ratio_mode_by_the_tokens_of_a_server_that_ran() -> None:
    found = judge(sglang("--tp 8"), machine(device_tokens=Known(231_120)), KIMI)
    assert round(found.demands[0].low / GB, 1) == 32.5
    assert found.total_low // GB == 259
    assert found.fit is Fit.FITS


@pytest.mark.parametrize(("words", "total"), [("-tp 8", 300), ("-tp 8 -dp 2", 600), ("-tp 8 -pp 2", 300)])
def test_vllm_means_a_total_over_the_ranks_of_a_replica(words: str, total: int) -> None:
    for release in ("0.13.0", "0.26.0", "0.33.0"):
        found = judge(vllm(f"--kv-offloading-size 300 {words}", release), machine())
        assert found.total_low == total * GIB


def test_vllm_0_33_keeps_it_in_dev_shm() -> None:
    launch = vllm("--kv-offloading-size 300 -tp 8", "0.33.0")
    small = judge(launch, machine(shm=Known(Shm(256 * GIB, 250 * GIB))))
    large = judge(launch, machine(shm=Known(Shm(512 * GIB, 500 * GIB))))
    assert small.demands[0].place is Place.SHM
    assert (small.fit, small.safe[0].value) == (Fit.NOT, 250)
    assert (large.fit, large.total_high) == (Fit.FITS, 300 * GIB)


def test_vllm_weights_in_host_memory() -> None:
    found = judge(vllm("--cpu-offload-gb 40 -tp 8"), machine())
    assert found.total_low == 320 * GIB
    assert found.total_high is not None
    assert 600 * GIB <= found.total_high <= 640 * GIB


def test_lmcache_is_per_rank() -> None:
    launch = vllm('--kv-transfer-config {"kv_connector":"LMCacheConnectorV1"} -tp 8', LMCACHE_MAX_LOCAL_CPU_SIZE="512")
    found = judge(launch, machine())
    assert found.total_low == 4096 * GIB
    assert found.fit is Fit.NOT


def test_the_indexer_comes_on_top_from_0_5_12() -> None:
    """GLM-5.2 TP4, 150 GB: 34.38 GB more per rank (sglang PR 29263)."""
    before, after = (judge(sglang("--tp 4 --hicache-size 150", r), machine(2000), GLM) for r in ("0.5.9", "0.5.12"))
    assert before.demands[0].low // GB == 150
    assert (after.demands[0].low - 150 * GB) / GB == pytest.approx(17.19, abs=0.01)  # bf16 rows are twice as long
    narrow = judge(sglang("--tp 4 --hicache-size 150 --kv-cache-dtype fp8_e4m3", "0.5.12"), machine(2000), GLM)
    high = narrow.demands[0].high
    assert high is not None
    assert round((high - 150 * GB) / GB, 2) == 34.38
