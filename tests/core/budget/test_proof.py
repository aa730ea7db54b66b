"""What a sizing flag means, proved on the sources of real releases; a planted change flips the verdict."""

from __future__ import annotations

import gc
import re
import sys
import threading

import pytest

from recover.core.budget.model import Check, Pages, Pinning, Scope, Semantics, Unit
from recover.core.budget.proof import proof_lines, prove, semantics
from recover.core.budget.proof_ast import read
from tests.core.budget.wheels import newest, sources

EACH, SPLIT, CGROUP = Check.EACH, Check.SPLIT, Check.SPLIT_CGROUP
POW2, EXACT = Pinning.POWER_OF_TWO, Pinning.EXACT
HOST = "sglang/srt/mem_cache/memory_pool_host.py"
BASE = "sglang/srt/mem_cache/pool_host/base.py"
SET = "int(host_size * 1e9 // self.size_per_token)"

RELEASES = {
    "0.4.6": ("sglang/srt/mem_cache/memory_pool.py:738", Pages.DOWN, POW2, EACH),
    "0.5.2": (f"{HOST}:76", Pages.DOWN, POW2, EACH),
    "0.5.4": (f"{HOST}:63", Pages.DOWN, POW2, EACH),
    "0.5.5": (f"{HOST}:63", Pages.DOWN, EXACT, EACH),
    "0.5.9": (f"{HOST}:159", Pages.UP, EXACT, EACH),
    "0.5.12": (f"{HOST}:178", Pages.UP, EXACT, EACH),
    "0.5.14": (f"{BASE}:61", Pages.UP, EXACT, EACH),
    "0.5.19": (f"{BASE}:153", Pages.UP, EXACT, SPLIT),
    "0.5.21": (f"{BASE}:202", Pages.UP, EXACT, CGROUP),
}
WORST = Semantics("sglang", "hicache-size", Unit.GB, Scope.RANK, Pages.UP, POW2, Check.UNKNOWN, assumed="worst")


def proof_of(files, version="0", engine="sglang"):
    (proof,) = prove(engine, version, files)
    return proof


def planted(files, path, old, new):
    assert files[path].count(old) >= 1, f"{path} has no {old!r}"
    return {**files, path: files[path].replace(old, new)}


@pytest.mark.parametrize("version", RELEASES)
def test_a_real_release_is_proved(version):
    proof = proof_of(sources("sglang", version), version)
    at, pages, pinning, check = RELEASES[version]
    assert proof.proved, proof.doubts
    assert (proof.unit, proof.scope, str(proof.at)) == (Unit.GB, Scope.RANK, at)
    assert (proof.pages, proof.pinning, proof.check) == (pages, pinning, check)
    first, code, *rest = proof_lines(proof)
    assert first == f"proved: GB (1e9) per rank, {at}"
    assert "1e9" in code
    assert all(re.search(r"\.py:\d+$", line) for line in rest)


def test_the_newest_release_is_proved_or_doubted_but_never_read_as_a_total():
    version = newest("sglang")
    proof = proof_of(sources("sglang", version), version)
    assert proof.proved, (version, proof.doubts)
    assert (proof.unit, proof.scope) == (Unit.GB, Scope.RANK)


def test_quotes_are_the_lines_of_the_files():
    files = sources("sglang", "0.5.9")
    proof = proof_of(files)
    for shown in proof.shown:
        assert shown.at.code == files[shown.at.path].splitlines()[shown.at.line - 1].strip()
    assert {"below the device pool: the start ends", "handed to the pool as it is"} <= {s.says for s in proof.shown}


@pytest.mark.parametrize(
    "new",
    [
        "int(host_size * 1e9 // self.size_per_token // get_tensor_model_parallel_world_size())",
        "int(host_size * 1e9 / self.tp_size // self.size_per_token)",
        "int(host_size / ranks_per_host() * 1e9 // self.size_per_token)",
        "int((host_size * 1e9) // (self.size_per_token * tp_world_size))",
    ],
)
def test_a_planted_division_by_ranks_makes_it_a_total(new):
    proof = proof_of(planted(sources("sglang", "0.5.9"), HOST, SET, new))
    assert proof.proved and proof.scope is Scope.ENGINE
    assert proof_lines(proof)[0].startswith("proved: GB (1e9) per engine replica, summed over its ranks, ")


def test_a_division_through_a_local_name_or_after_the_fact_is_seen_too():
    files = sources("sglang", "0.5.9")
    local = "per = self.size_per_token * self.tp_size\n            self.size = int(host_size * 1e9 // per)"
    assert proof_of(planted(files, HOST, f"self.size = {SET}", local)).scope is Scope.ENGINE
    later = "self.size = self.page_num * self.page_size // self.tp_size"
    assert proof_of(planted(files, HOST, "self.size = self.page_num * self.page_size", later)).scope is Scope.ENGINE


def test_a_division_where_the_flag_is_set_counts_for_all_pools():
    files = sources("sglang", "0.5.9")
    path = "sglang/srt/server_args.py"
    line = "    def __post_init__(self):\n"
    new = f"{line}        self.hicache_size = self.hicache_size // self.tp_size\n"
    assert proof_of(planted(files, path, line, new)).scope is Scope.ENGINE


def test_one_caller_that_divides_proves_nothing():
    files = sources("sglang", "0.5.9")
    path = "sglang/srt/mem_cache/hiradix_cache.py"
    text = files[path].replace("server_args.hicache_size,", "server_args.hicache_size // self.tp_size,", 1)
    proof = proof_of({**files, path: text})
    assert not proof.proved and "divides by the ranks" in proof.doubts[0]


@pytest.mark.parametrize(
    ("helper", "word"),
    [("", "which is not in the source"), ("def share(amount):\n    return amount // TP\n", "which computes with it")],
)
def test_a_size_that_goes_through_another_function_is_followed(helper, word):
    files = sources("sglang", "0.5.9")
    path = "sglang/srt/mem_cache/hiradix_cache.py"
    text = files[path].replace("server_args.hicache_size,", "share(server_args.hicache_size),") + helper
    proof = proof_of({**files, path: text})
    assert not proof.proved and word in proof.doubts[0]


IF = "        if host_size > 0:\n"
POST = "    def __post_init__(self):\n"
ARGS = "sglang/srt/server_args.py"
TREE = "sglang/srt/mem_cache/hiradix_cache.py"
GIVEN = "server_args.hicache_size,"


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (HOST, IF, f"        host_size = host_size / get_tp_world_size()\n{IF}"),
        (HOST, IF, f"        host_size /= self.tp\n{IF}"),
        (HOST, IF, f"        host_size = self.share or host_size\n{IF}"),
        (HOST, IF, f"        host_size = min(host_size, self.cap)\n{IF}"),
        (HOST, IF, f"        host_size = max(host_size, self.cap)\n{IF}"),
        (HOST, IF, f"        host_size = self.fraction(host_size)\n{IF}"),
        (HOST, IF, f"        host_size = read_env('X')\n{IF}"),
        (HOST, SET, f"{SET} // 8"),
        (HOST, SET, f"{SET} // len(self.peers)"),
        (HOST, SET, f"{SET} // dist.size()"),
        (HOST, SET, "divide(int(host_size * 1e9), self.size_per_token)"),
        (HOST, SET, "self.tokens_of(host_size)"),
        (HOST, "self.size // self.page_size + 1", "self.size // self.page_size // self.tp_size + 1"),
        (HOST, "self.size // self.page_size + 1", "self.size // self.page_size + 7"),
        (HOST, "self.get_size_per_token()\n", "self.get_size_per_token() * get_tp_world_size()\n"),
        (TREE, GIVEN, "server_args.hicache_size / get_tp_world_size(),"),
        (TREE, GIVEN, "getattr(server_args, 'hicache_size') // 8,"),
        (TREE, GIVEN, "vars(server_args)['hicache_size'] // self.tp_size,"),
        (ARGS, POST, f"{POST}        self.hicache_size /= self.tp_size * self.pp_size\n"),
        (ARGS, POST, f"{POST}        setattr(self, 'hicache_size', self.hicache_size // self.tp_size)\n"),
        (ARGS, POST, f"{POST}        self.__dict__.update(hicache_size=self.hicache_size // self.tp_size)\n"),
    ],
)
def test_no_change_of_the_meaning_leaves_it_proved_per_rank(path, old, new):
    proof = proof_of(planted(sources("sglang", "0.5.9"), path, old, new))
    assert not (proof.proved and proof.scope is Scope.RANK)


def test_one_copy_of_mla_pools_is_said_once_it_is_used():
    files = sources("sglang", "0.5.21")
    once = "MLA pools may be kept once for all ranks: per rank is then too much"
    assert once not in [s.says for s in proof_of(files).shown]
    call = "def build():\n    return maybe_create_mla_host_dedup_context(1)\n"
    assert once in [s.says for s in proof_of({**files, "sglang/srt/mem_cache/x.py": call}).shown]


def test_two_pools_that_disagree_prove_nothing():
    files = planted(sources("sglang", "0.5.21"), BASE, SET, SET[:-1] + " // get_parallel().tp_size)")
    proof = proof_of(files)
    assert not proof.proved and proof.scope is None
    assert f"{BASE}:202 divides by the ranks" in proof.doubts[0]


@pytest.mark.parametrize(
    ("new", "word"),
    [
        ("int(host_size * 1e9 // self.size_per_token * tp_size)", "multiplies by the ranks"),
        ("int(host_size * 1000 * 1024**2 // self.size_per_token)", "no unit"),
        ("int(host_size * 1e9 // self.size_per_token * self.boost)", "depends on self.boost"),
        ("int(host_size * 1e9 // self.size_per_token * self.page_boost)", "depends on a count of pages"),
        ("int(host_size * 1e9 // self.size_per_token * self.blocks_factor)", "depends on self.blocks_factor"),
        ("compute_size(host_size * 1e9, self.size_per_token)", "hands the result to compute_size()"),
        ("int((host_size * 1e9 + self.slack) // self.size_per_token)", "self.slack"),
    ],
)
def test_what_is_not_understood_is_doubted(new, word):
    proof = proof_of(planted(sources("sglang", "0.5.9"), HOST, SET, new))
    assert not proof.proved
    said = proof_lines(proof)[0]
    assert said.startswith("not proved: --hicache-size of sglang 0") and "worst row" in said
    assert word in said


def test_a_changed_unit_is_read_as_such():
    files = planted(sources("sglang", "0.5.9"), HOST, SET, "int(host_size * (1 << 30) // self.size_per_token)")
    assert proof_lines(proof_of(files))[0] == f"proved: GiB (2**30) per rank, {HOST}:159"


def test_a_size_set_from_elsewhere_is_doubted():
    files = sources("sglang", "0.5.9")
    line = "    def __post_init__(self):\n"
    new = f"{line}        self.hicache_size = guess_host_memory()\n"
    proof = proof_of(planted(files, "sglang/srt/server_args.py", line, new))
    assert not proof.proved and "sets hicache_size from elsewhere" in proof.doubts[0]


def test_unreadable_source_and_no_source_prove_nothing():
    files = sources("sglang", "0.5.9")
    assert "can't be parsed" in proof_of({**files, HOST: files[HOST] + "\ndef ("}).doubts[0]
    assert not proof_of({}).proved
    (proof,) = prove("sglang", "0.5.9", files, missing=("sglang/srt/x.py",))
    assert proof.doubts[0] == "sglang/srt/x.py was not read"
    deep = "x = " + "(" * 5000 + "hicache_size" + ")" * 5000
    assert not proof_of({**files, "sglang/srt/deep.py": deep}).proved
    assert prove("llama.cpp", "b9000", files) == ()


def test_other_threads_in_the_parser_leave_no_file_unread():
    """Seen to fail with plain `ast.parse`: CPython 3.11 raises SystemError in a tenth of these."""
    text = "\n".join(f"def f{i}(a, b):\n    return a + b * ({i} + 1)" for i in range(200))
    unread: list[str] = []

    class Garbage:
        def __del__(self) -> None:
            """Python runs in the middle of a parse: there the threads take turns."""

    def parse() -> None:
        for _ in range(15):
            mine: list[object] = [Garbage()]
            mine.append(mine)
            unread.extend(read({"a.py": text}).unread)

    threads = [threading.Thread(target=parse) for _ in range(4)]
    switch, collect = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    finally:
        sys.setswitchinterval(switch)
        gc.set_threshold(*collect)
    assert unread == []


@pytest.mark.timeout(200)
def test_source_made_to_cost_time_is_given_up():
    doubling = "def f(x0, host_size):\n" + "".join(f"    x{i + 1} = x{i} + x{i}\n" for i in range(60))
    assert not proof_of({"sglang/srt/a.py": doubling + "    return host_size * x60\n"}).proved
    chain = "def f(host_size):\n    return " + " + ".join(["host_size"] * 20_000) + "\n"
    assert not proof_of({**sources("sglang", "0.5.9"), "sglang/srt/a.py": chain}).proved
    many = "def f(host_size):\n" + "".join(
        f"    y{i} = " + " + ".join(f"y{j}" for j in range(max(0, i - 40), i)) + " + 1\n" for i in range(1, 200)
    )
    assert not proof_of(
        {**sources("sglang", "0.5.9"), "sglang/srt/a.py": many + "    return host_size * y199\n"}
    ).proved


def test_a_proof_outranks_the_row_and_a_doubt_takes_the_worst():
    files = sources("sglang", "0.5.9")
    row = Semantics("sglang", "hicache-size", Unit.GB, Scope.RANK, Pages.DOWN, POW2, CGROUP, source="table")
    known = semantics(proof_of(files), row, WORST)
    assert (known.pages, known.pinning, known.check) == (Pages.UP, EXACT, EACH)
    assert known.proved_by == f"{HOST}:159" and not known.assumed
    doubted = semantics(proof_of(planted(files, HOST, SET, f"{SET} * self.boost")), row, WORST)
    assert (doubted.pages, doubted.pinning, doubted.check) == (WORST.pages, WORST.pinning, WORST.check)
    assert doubted.assumed.startswith("not proved: ") and not doubted.proved_by


@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.13.0", 495),
        ("0.20.0", 699),
        ("0.33.0", 1174),
    ],
)
def test_vllm_counts_gib_over_all_ranks_of_an_engine(version, line):
    proof = proof_of(sources("vllm", version), version, "vllm")
    assert proof.proved, proof.doubts
    assert (
        proof_lines(proof)[0]
        == f"proved: GiB (2**30) per engine replica, summed over its ranks, vllm/config/vllm.py:{line}"
    )


def test_vllm_without_its_division_is_per_rank():
    files = sources("vllm", "0.13.0")
    path = "vllm/config/vllm.py"
    old = "kv_offloading_size * (1 << 30) / num_kv_ranks"
    flipped = proof_of(planted(files, path, old, "kv_offloading_size * (1 << 30)"), engine="vllm")
    assert flipped.scope is not Scope.ENGINE
    files = sources("vllm", "0.33.0")
    path = "vllm/v1/kv_offload/cpu/spec.py"
    copies = "num_copies = 1 if self.replicated_layout else world_size"
    flipped = proof_of(planted(files, path, copies, "num_copies = 1"), engine="vllm")
    assert flipped.scope is not Scope.ENGINE


def test_a_release_without_the_flag_gives_no_proof():
    assert prove("vllm", "0.11.0", {"vllm/config/cache.py": "class CacheConfig:\n    swap_space: float = 4\n"}) == ()
