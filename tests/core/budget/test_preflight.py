"""The incident's launch on the incident's guest, as preflight says it; what is unknown stays so; the log is summed."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.budget.launch import parse
from recover.core.budget.learned import measured
from recover.core.budget.model import GB, GIB, Check, Fit, Pages, Pinning, Problem, Scope, Shm, Unit
from recover.core.budget.preflight import (
    as_json,
    command_text,
    explain_exhaustion,
    headline,
    lines,
    preflight,
    tally,
)
from recover.core.budget.preflight_follow import Course, Tally
from recover.core.budget.preflight_report import gathered, records, wanted
from recover.core.budget.solve import judge
from recover.core.budget.table import semantics as semantics_of
from recover.core.budget.version import version
from recover.core.read.agent import parse_lines
from recover.model.reading import Known, Unknown, Why
from tests.core.budget.wheels import sources

KIMI = {
    "model_type": "kimi_k25",
    "text_config": {
        "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64,
        "num_key_value_heads": 64, "hidden_size": 7168, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
HOST = "sglang/srt/mem_cache/memory_pool_host.py"
SET = "int(host_size * 1e9 // self.size_per_token)"


def rows(version="0.5.9", available=445 * GIB, files=None, **more):
    """The agent's records of the incident's guest: 8 GPUs, 449 GiB, an editable install."""
    files = sources("sglang", version) if files is None else files
    found = {
        "budget-memory": {"total": 449 * GIB, "available": available},
        "budget-cgroup": {"levels": []},
        "budget-numa": {"nodes": [{"node": 0, "total": 449 * GIB, "free": available}]},
        "budget-shm": {"total": 224 * GIB, "free": 224 * GIB},
        "budget-hugepages": {"sizes": []},
        "budget-numactl": {"path": ""},
        "budget-others": {"servers": []},
        "budget-model": {"model": "/models/Kimi-K2.5", "folder": "/models/Kimi-K2.5", "config": json.dumps(KIMI)},
        "budget-engine": {"engine": "sglang", "version": version, "origin": "/opt/sglang/python/sglang",
                          "install": "editable", "commit": "0123456789abcdef", "asked": "/opt/venv/bin/python"},
        "budget-gpus": {"gpus": [{"index": i, "total": 96 * GIB, "free": 95 * GIB, "numa": 0} for i in range(8)]},
        "end": {},
    }  # fmt: skip
    found.update({kind.replace("_", "-"): value for kind, value in more.items()})
    listed = [{"k": kind, **value} for kind, value in found.items() if value is not None]
    return listed + [{"k": "budget-source", "path": path, "text": text} for path, text in files.items()]


def report(listed):
    return parse_lines(b"\n".join(json.dumps(row).encode() for row in listed))


def asked(size, *more):
    words = ["python", "-m", "sglang.launch_server", "--model-path", "/models/Kimi-K2.5", "--tp", "8"]
    return " ".join([*words, "--enable-hierarchical-cache", "--hicache-size", str(size), *more])


def judged(size=300, listed=None, *more):
    (result,) = preflight(asked(size, *more), gathered(report(listed if listed is not None else rows())))
    return result


def test_the_incident_is_refused_with_both_figures_the_proof_and_a_command():
    result = judged(300)
    said = lines(result)
    assert said[0] == "does-not-fit: 300 GB x 8 ranks = 2400 GB of 478 GB available"
    assert result.exit_code == 1 and result.verdict.fit is Fit.NOT
    assert f"proved: GB (1e9) per rank, {HOST}:159" in said
    assert any("editable at 0123456789ab" in line for line in said)
    (safe,) = result.verdict.safe
    assert (safe.flag, safe.value) == ("hicache-size", 51)
    assert result.verdict.corrected == asked(51)
    assert result.verdict.corrected in "\n".join(said)


def test_48_fits_with_the_tokens_that_it_buys():
    result = judged(48)
    assert (result.verdict.fit, result.exit_code) == (Fit.FITS, 0)
    assert headline(result) == "fits: 48 GB x 8 ranks = 384 GB of 478 GB available"
    assert result.verdict.corrected == ""
    assert "683061" in "\n".join(lines(result))
    assert judged(52).verdict.fit is Fit.TIGHT and judged(52).exit_code == 0


def test_json_says_the_same():
    value = json.loads(json.dumps(as_json(judged(300))))
    assert (value["fit"], value["exit_code"], value["corrected"]) == ("does-not-fit", 1, asked(51))
    assert value["schema"] == 1 and value["proofs"][0]["proved"] and value["proofs"][0]["at"] == f"{HOST}:159"
    assert value["totals"]["low"] >= 2400 * GB and value["available"] == 445 * GIB


def test_the_installed_release_decides_not_the_newest():
    result = judged(40, rows("0.5.4", available=440 * GIB))
    (meaning,) = result.verdict.semantics
    assert (meaning.pages, meaning.pinning, meaning.check) == (Pages.DOWN, Pinning.POWER_OF_TWO, Check.EACH)
    assert headline(result).startswith("does-not-fit: 40 GB x 8 ranks = 320 GB (550 GB as it is allocated) of ")
    assert judged(40, rows("0.5.5")).verdict.fit is Fit.FITS


def test_the_split_check_of_later_releases_is_said_beside_the_fit():
    result = judged(48, rows("0.5.19"))
    assert result.verdict.fit is Fit.TIGHT
    (safe,) = result.verdict.safe
    assert (safe.value, safe.fits) == (31, 51)
    assert any("may refuse" in line for line in lines(result))


def test_source_that_divides_by_the_ranks_makes_300_a_total():
    files = sources("sglang", "0.5.9")
    files[HOST] = files[HOST].replace(SET, SET[:-1] + " // get_tensor_model_parallel_world_size())")
    result = judged(300, rows(files=files))
    assert result.proofs[0].proved
    assert result.verdict.total_low < 310 * GB and result.verdict.fit is Fit.FITS


def test_source_that_is_not_understood_counts_as_the_worst_row_whatever_its_version():
    files = sources("sglang", "0.5.9")
    files[HOST] = files[HOST].replace(SET, SET[:-1] + " * self.secret_factor)")
    result = judged(48, rows(files=files))
    (meaning,) = result.verdict.semantics
    assert meaning.pinning is Pinning.POWER_OF_TWO and meaning.check is Check.UNKNOWN
    assert any(line.startswith("not proved: --hicache-size of sglang 0.5.9") for line in lines(result))
    assert result.verdict.fit is Fit.NOT  # 64 GiB x 8 of 445 GiB


def test_a_total_that_is_no_longer_proved_to_be_one_is_no_permission():
    files = sources("vllm", "0.13.0")
    found = {"engine": "vllm", "version": "0.13.0", "origin": "/x/vllm", "install": "installed", "asked": "/x/python"}
    command = "vllm serve /models/Kimi-K2.5 -tp 8 --kv-offloading-size 100 --kv-offloading-backend native"

    def fit(files):
        (result,) = preflight(command, gathered(report(rows(files=files, budget_engine=found))))
        return result.verdict

    proved = fit(files)
    assert proved.fit is Fit.FITS, proved.reasons
    files["vllm/config/vllm.py"] = files["vllm/config/vllm.py"].replace(" / num_kv_ranks", "")
    doubted = fit(files)
    assert doubted.fit is Fit.CANNOT_TELL
    assert "were it per rank" in doubted.reasons[0]


def test_a_total_that_the_source_takes_for_each_rank_is_counted_for_each():
    (launch,) = parse("vllm serve /models/Kimi-K2.5 -tp 8 --kv-offloading-size 100 --kv-offloading-backend native")
    row = semantics_of("vllm", version("0.33.0"), "kv-offloading-size")
    assert row is not None
    facts = replace(of("0.5.9").facts, available=Known(445 * GIB), shm=Known(Shm(800 * GIB, 800 * GIB)))
    total = judge(launch, facts, None, semantics=(row,))
    rank = judge(launch, facts, None, semantics=(replace(row, scope=Scope.RANK, proved_by="spec.py:123"),))
    gb = judge(launch, facts, None, semantics=(replace(row, unit=Unit.GB, proved_by="spec.py:123"),))
    assert [pool(v) for v in (total, rank, gb)] == [100 * GIB, 800 * GIB, 100 * GB]
    assert rank.fit is Fit.NOT


def pool(verdict):
    return next(d.total_low for d in verdict.demands if d.flag == "kv-offloading-size")


def test_an_engine_that_is_not_found_is_said_and_the_worst_assumed():
    listed = rows(files={}, budget_engine=None)
    listed.insert(0, {"k": "gap", "what": "budget-engine", "why": "absent", "detail": "python: not found"})
    said = lines(judged(48, listed))
    assert "could not be read: engine: absent: python: not found" in said
    assert any("which sglang would start is not known" in line for line in said)


def test_what_could_not_be_read_is_unknown_and_never_permission():
    found = gathered(report(rows(files={}, budget_memory=None, budget_cgroup=None, budget_gpus=None, end=None)))
    assert isinstance(found.facts.available, Unknown) and found.facts.available.why is Why.TIMEOUT
    assert isinstance(found.facts.cgroup_room, Unknown) and found.facts.gpus == ()
    (result,) = preflight(asked(48), found)
    assert (result.verdict.fit, result.exit_code) == (Fit.CANNOT_TELL, 1)
    assert any("broke off" in line for line in lines(result))


def test_limits_of_cgroup_numa_and_neighbours_count():
    level = {"levels": [{"path": "/a", "limit": 300 * GIB, "room": 300 * GIB}, {"path": "/", "room": 100 * GIB}]}
    assert gathered(report(rows(budget_cgroup=level))).facts.cgroup_room == Known(100 * GIB)
    assert judged(48, rows(budget_cgroup=level)).verdict.fit is Fit.NOT
    nodes = {"nodes": [{"node": n, "total": 224 * GIB, "free": 222 * GIB} for n in (0, 1)]}
    bound = rows("0.5.19", budget_numa=nodes, budget_numactl={"path": "/usr/bin/numactl"})
    said = "\n".join(judged(31, bound).verdict.reasons)
    assert "NUMA node 0" in said and judged(31, bound).verdict.fit is Fit.NOT
    assert judged(31, rows("0.5.19", budget_numa=nodes)).verdict.fit is Fit.FITS


def test_a_running_server_of_the_same_model_measures_loading_and_the_device_pool():
    server = {"pid": 77, "argv": asked(10).split(), "env": [], "anon": 30 * GIB,
              "says": {"version": "0.5.19", "max_total_num_tokens": 231120}}  # fmt: skip
    result = judged(31, rows("0.5.19", budget_others={"servers": [server]}))
    assert result.verdict.loading == 30 * GIB
    assert any("loading was measured" in note for note in result.notes)
    assert any("231120 tokens" in note for note in result.notes)
    private = {**server, "says": {"version": "0.5.9"}}
    assert judged(31, rows("0.5.9", budget_others={"servers": [private]})).verdict.loading == 40 * GIB


def test_what_loading_took_when_a_server_ran_counts_when_it_does_not():
    server = {"pid": 77, "argv": asked(10).split(), "env": [], "anon": 30 * GIB, "says": {"version": "0.5.19"}}
    (learned,) = measured(gathered(report(rows("0.5.19", budget_others={"servers": [server]}))), "2026-11-30")
    assert learned.amount == 30 * GIB
    private = gathered(report(rows("0.5.9", budget_others={"servers": [{**server, "says": {}}]})))
    assert measured(private, "2026-11-30") == ()  # its pools are private memory too: the two can't be told apart
    (later,) = preflight(asked(31), replace(of("0.5.19"), ran=(learned,)))
    assert later.verdict.loading == 30 * GIB and any("measured on 2026-11-30" in note for note in later.notes)
    (other,) = preflight(asked(31), replace(of("0.5.19"), ran=(replace(learned, model="/m/other"),)))
    assert other.verdict.loading == 40 * GIB


def test_nothing_of_the_machine_reaches_a_terminal_as_it_came():
    listed = rows(files={}, budget_engine={"engine": "sglang", "version": "\x1b[31m0.5.9", "origin": "/x\n\x07y",
                                           "install": "checkout", "asked": "p\x1b]0;t\x07"})  # fmt: skip
    for line in lines(judged(48, listed)):
        assert line.isprintable()


def test_two_services_of_one_compose_file_are_judged_beside_each_other():
    text = """
services:
  a: {image: "lmsysorg/sglang:v0.5.9", command: "python3 -m sglang.launch_server --model x --tp 4 --hicache-size 30"}
  b: {image: "lmsysorg/sglang:v0.5.9", command: "python3 -m sglang.launch_server --model x --tp 4 --hicache-size 30"}
"""
    results = preflight(text, gathered(report(rows(files={}, budget_engine=None, budget_model=None))))
    assert len(results) == 2
    assert all("not proved" in "\n".join(lines(r)) for r in results)
    assert str(results[0].launch.version) == "0.5.9"
    asked_of = wanted(results[0].launch)  # the image's engine is read where the image lies
    assert (asked_of["engine"], asked_of["image"]) == ("sglang", "lmsysorg/sglang:v0.5.9")


def test_what_is_asked_of_the_agent():
    (launch,) = parse("/opt/v/bin/python -m sglang.launch_server --model-path org/m --config /etc/s.yaml --tp 8")
    request = wanted(launch, ["/src"])
    assert (request["interpreter"], request["model"], request["paths"]) == ("/opt/v/bin/python", "org/m", ["/src"])
    assert request["texts"] == ["/etc/s.yaml"]
    text = {"k": "budget-text", "name": "/etc/s.yaml", "text": "hicache-size: 300\nenable-hierarchical-cache: true\n"}
    command = "/opt/v/bin/python -m sglang.launch_server --model-path /models/Kimi-K2.5 --config /etc/s.yaml --tp 8"
    (result,) = preflight(command, gathered(report([*rows(), text])))
    assert headline(result).startswith("does-not-fit: 300 GB x 8 ranks = 2400 GB")


def test_facts_survive_being_kept():
    first = report(rows())
    again = report([dict(row) for row in records(first)])
    assert gathered(again) == gathered(first)


def test_a_crash_is_explained_by_its_launch():
    said = explain_exhaustion(asked(300).split(), 449 * GIB, 440 * GIB, gathered(report(rows())))
    assert said is not None
    assert said[0].endswith("300 GB x 8 ranks = 2400 GB of 472 GB available")
    assert any(line.startswith("start it as: python -m sglang.launch_server") for line in said)
    unproved = explain_exhaustion(asked(300).split(), 449 * GIB, None)
    assert unproved is not None and "2400 GB" in unproved[0] and any("not proved" in line for line in unproved)
    assert explain_exhaustion(asked(10).split(), 449 * GIB, 440 * GIB, gathered(report(rows()))) is None
    assert explain_exhaustion(["sleep", "5"], 449 * GIB, None) is None
    assert explain_exhaustion(asked(300).split(), None, None) is None
    assert explain_exhaustion([], 1, 1) is None


def test_the_words_after_the_dashes():
    assert command_text(["a b", "c"]) == "'a b' c"
    assert command_text(["vllm serve x"]) == "vllm serve x"
    with pytest.raises(Problem):
        preflight("python -m 'broken", gathered(report(rows(files={}))))
    with pytest.raises(Problem):
        preflight("ls -l", gathered(report(rows(files={}))))


@cache
def of(version):
    return gathered(report(rows(version)))


OLD = "[2026-11-30 10:00:00 TP{}] Allocating {:.2f} GB host memory for hierarchical KV cache."
NEW = "[2026-11-30 10:00:00 PP0 TP{}] Allocating {} hierarchical KV host pool: 9 tokens, {:.2f} GB host memory."


HEAD = "[2026-06-30 10:00:00 DP0 TP0 EP0] Allocating "
REAL = {
    "Mamba states": "10.00 GB host memory for hierarchical Mamba cache (layout=page_first).",
    "an indexer": "10.00 GB host memory for DSA indexer (layout=page_first).",
    "DeepSeek-V4's": "10.00 GB host memory for V4 paged pool 'c4' (layers=3, pages=9, item_bytes=7).",
    "packed layers": "kv hierarchical KV host pool: 9 tokens, 10.00 GB host memory, packed MTP KV layers: draft=1.",
    "a second of the same name": "10.00 GB host memory for hierarchical KV cache.",
}


@pytest.mark.parametrize("name", REAL)
def test_every_pool_of_a_rank_counts(name):
    """Two pools of 40 and 10 GB on each of 8 ranks are 400 GB, told at the first rank's second line."""
    count = Tally(399 * GB, 8)
    assert count.line(f"{HEAD}40.00 GB host memory for hierarchical KV cache.")[0] is Course.GOES_ON
    course, said = count.line(HEAD + REAL[name])
    assert course is Course.TOO_MUCH and "400.0 GB" in said, said
    assert Tally(400 * GB, 8).line(HEAD + REAL[name])[0] is Course.GOES_ON


def test_an_earlier_start_in_the_same_log_does_not_count():
    count = Tally(400 * GB, 8)
    for _ in range(3):
        assert count.line("[x] server_args=ServerArgs(model_path='m')") is None
        for rank in range(8):
            assert count.line(OLD.format(rank, 48.0))[0] is Course.GOES_ON
    assert (count.said, count.total) == (8, 384 * GB)


def test_what_the_engine_refuses_is_told():
    text = "ValueError: Not enough host memory available. Requesting 300.00 GB but only have 58.40 GB free."
    course, said = Tally(9000 * GB, 8).line(text)
    assert course is Course.TOO_MUCH and said.endswith("only have 58.40 GB free.")


def test_a_log_is_stopped_at_the_first_line_that_dooms_it():
    count = tally(judged(300))
    assert count is not None and count.ranks == 8
    course, said = count.line(OLD.format(3, 300.0))
    assert course is Course.TOO_MUCH and "2400" in said and "TP3" in said
    assert count.line("nothing of note") is None


def test_a_log_that_fits_goes_on_until_the_server_is_up():
    count = tally(judged(48))
    for rank in range(8):
        course, said = count.line(OLD.format(rank, 48.0))
        assert course is Course.GOES_ON, said
    assert count.total == 384 * GB
    assert count.line("The server is fired up and ready to roll!")[0] is Course.READY


def test_further_pools_are_added_and_old_allocators_round_up():
    count = Tally(500 * GB, 8)
    assert count.line(NEW.format(0, "kv", 48))[0] is Course.GOES_ON
    assert count.line(NEW.format(0, "indexer", 16))[0] is Course.TOO_MUCH
    rounding = Tally(500 * GB, 8, Pinning.POWER_OF_TWO)
    assert rounding.line(OLD.format(0, 40))[0] is Course.TOO_MUCH


def test_vllm_tells_its_share_in_gib_once_per_worker():
    said = "INFO 11-30 12:00:00 SimpleCPUOffloadConnector: role={}, per_rank=37.50 GB, world_size=8, mode=eager"
    count = Tally(290 * GIB, 8)
    assert count.line(said.format("SCHEDULER")) is None
    course, words = count.line(said.format("WORKER"))
    assert course is Course.TOO_MUCH and "300.0 GiB" in words, words


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_log_line_is_taken(text):
    Tally(GB, 8).line(text)
    Tally(GB, 8).line(f"Allocating {text} GB host memory for hierarchical KV cache")


@settings(deadline=None, max_examples=25)
@given(st.integers(50, 2000), st.integers(1, 400), st.sampled_from(["0.5.4", "0.5.9", "0.5.19"]))
def test_the_corrected_command_passes_its_own_preflight(room, size, version):
    base = of(version)
    found = replace(base, facts=replace(base.facts, available=Known(room * GIB), numa=()))
    (result,) = preflight(asked(size), found)
    if result.verdict.corrected:
        (again,) = preflight(result.verdict.corrected, found)
        assert again.verdict.fit is Fit.FITS, again.verdict.reasons
    assert Decimal(result.verdict.total_low) >= Decimal(size) * 8 * GB * Decimal("0.999")
