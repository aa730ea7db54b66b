"""What each engine's sizes mean, release by release, as rows; a release that no row speaks of takes the worst one.

A row holds from the first release in which it was read to the last. Between two releases that were read the worse of
both is taken; before the first, after the last and for an unknown version the worst row of all, and it is said.
Files are paths inside the released packages (PyPI wheels); "issue" and "PR" are threads of the engine's repository.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from recover.core.budget.model import Check, Pages, Pinning, Scope, Semantics, Unit
from recover.core.budget.version import Version, numbers

NEWEST = {"sglang": "0.5.23", "vllm": "0.33.0", "lmcache": "0.5.6"}


@dataclass(frozen=True, slots=True)
class Row:
    """`rank`: how bad it is; of two rows the one with the higher rank asks for more or promises less."""

    engine: str
    key: str
    first: str
    last: str
    value: object
    rank: int
    source: str


def _rows(engine: str, key: str, *rows: tuple[str, str, object, int, str]) -> tuple[Row, ...]:
    return tuple(Row(engine, key, *row) for row in rows)


_HOST_040 = "sglang/srt/mem_cache/memory_pool.py"
_HOST_059 = "sglang/srt/mem_cache/memory_pool_host.py"
_HOST_0523 = "sglang/srt/mem_cache/pool_host/base.py"
_PYTORCH = "pytorch aten/src/ATen/core/CachingHostAllocator.h"

ROWS: tuple[Row, ...] = (
    *_rows(
        "sglang",
        "pages",
        ("0.4.4", "0.5.5", Pages.DOWN, 0, f"{_HOST_059} (0.5.5)"),
        ("0.5.6", "0.5.23", Pages.UP, 1, f"{_HOST_059}:136-190 (0.5.9), {_HOST_0523}:176-281 (0.5.23)"),
    ),
    *_rows(
        "sglang",
        "pinning",
        ("0.4.4", "0.4.4", Pinning.EXACT, 0, f"{_HOST_040}: torch.empty, not pinned"),
        (
            *("0.4.5", "0.5.4", Pinning.POWER_OF_TWO, 1),
            f"{_HOST_059}: pin_memory=True; {_PYTORCH} PowerOf2Ceil; sglang issue 14282",
        ),
        ("0.5.5", "0.5.23", Pinning.EXACT, 0, f"{_HOST_059}: own buffer and cudaHostRegister"),
    ),
    *_rows(
        "sglang",
        "check",
        ("0.4.4", "0.5.18", Check.EACH, 0, f"{_HOST_059}:136-190 (0.5.9): available less 10 GiB, each rank alone"),
        ("0.5.19", "0.5.20", Check.SPLIT, 1, "sglang PR 35540: divided by ranks_per_host()"),
        ("0.5.21", "0.5.23", Check.SPLIT_CGROUP, 2, f"{_HOST_0523} and sglang PR 40135: cgroup limits as well"),
    ),
    *_rows(
        "sglang",
        "lower-bound",
        ("0.4.4", "0.5.14", True, 1, f"{_HOST_059}: assert self.size > device_pool.size"),
        ("0.5.15", "0.5.23", False, 0, f"{_HOST_0523}: a warning only"),
    ),
    *_rows(
        "sglang",
        "default-ratio",
        ("0.4.4", "0.4.4", 3.0, 1, f"{_HOST_040}: fixed"),
        ("0.4.5", "0.5.23", 2.0, 0, "sglang/srt/server_args.py hicache_ratio; 0.5.23 arg_groups/hicache_hook.py"),
    ),
    *_rows(
        "sglang",
        "auto-size",
        ("0.4.4", "0.5.20", False, 1, "no such option"),
        ("0.5.21", "0.5.23", True, 0, "sglang/srt/mem_cache/hicache_auto_size.py: 0.8 x 0.95 of available less 10 GiB"),
    ),
    *_rows(
        "sglang",
        "indexer",
        ("0.4.4", "0.5.8", "none", 0, f"{_HOST_059}: no pool of its own"),
        ("0.5.9", "0.5.10", "inside", 1, f"{_HOST_059} NSATokenToKVPoolHost"),
        ("0.5.12", "0.5.23", "apart", 2, "sglang/srt/mem_cache/pool_host/dsa.py; sglang PR 29263"),
    ),
    *_rows(
        "sglang",
        "state-pool",
        ("0.4.4", "0.5.9", "none", 0, f"{_HOST_059}: hybrid Mamba models are not supported"),
        ("0.5.10", "0.5.16", "same-again", 2, "sglang issue 29034: both pools get the whole size"),
        ("0.5.17", "0.5.23", "split", 1, "sglang/srt/mem_cache/pool_host: _split_hicache_size"),
    ),
    *_rows(
        "sglang",
        "draft-pool",
        ("0.4.4", "0.5.10", False, 0, "no such pool"),
        ("0.5.12", "0.5.23", True, 1, "sglang/srt/managers/scheduler.py _maybe_register_hicache_draft"),
    ),
    *_rows(
        "sglang",
        "decode-offload",
        ("0.4.4", "0.5.2", False, 0, "no such option"),
        ("0.5.4", "0.5.23", True, 1, "sglang/srt/disaggregation/decode_kvcache_offload_manager.py"),
    ),
    *_rows(
        "sglang",
        "retraction-pool",
        ("0.4.4", "0.5.17", False, 0, "no such pool"),
        ("0.5.18", "0.5.23", True, 1, "kv_cache_builder.py resolve_decode_retraction_backup"),
    ),
    *_rows(
        "sglang",
        "numa-bind",
        ("0.4.4", "0.5.17", False, 0, "no hard binding"),
        ("0.5.18", "0.5.23", True, 1, "SGLANG_AUTO_NUMA_BIND: ranks start under numactl --membind"),
    ),
    *_rows(
        "sglang",
        "hugepages",
        ("0.4.4", "0.5.12", False, 1, "no such variable"),
        ("0.5.13", "0.5.23", True, 0, "SGLANG_HUGEPAGE_SIZE"),
    ),
    *_rows(
        "sglang",
        "v-head-dim",
        ("0.4.4", "0.5.12", False, 0, f"{_HOST_059}:316 (0.5.9): 2 x head_dim"),
        ("0.5.14", "0.5.23", True, 0, "sglang/srt/mem_cache/pool_host/mha.py:290 (0.5.23)"),
    ),
    *_rows(
        "vllm",
        "swap",
        ("0.9.2", "0.9.2", "allocates", 2, "vllm/config.py:1502 (0.9.2)"),
        ("0.11.0", "0.16.0", "checks", 1, "vllm/config/cache.py: over 70 % of the memory ends the start"),
        ("0.20.0", "0.33.0", "none", 0, "the option is gone"),
    ),
    *_rows(
        "vllm",
        "kv-offload",
        ("0.9.2", "0.11.0", "none", 0, "no such option"),
        ("0.13.0", "0.26.0", "pinned", 2, "vllm/v1/kv_offload/cpu: torch.zeros(pin_memory=True) per rank and tensor"),
        ("0.33.0", "0.33.0", "shm", 1, "vllm/v1/kv_offload/cpu/shared_offload_region.py: one region in /dev/shm"),
    ),
    *_rows(
        "vllm",
        "kv-offload-lmcache",
        ("0.13.0", "0.20.0", "divided", 1, "vllm/config/vllm.py _post_init_kv_transfer_config"),
        ("0.26.0", "0.33.0", "elsewhere", 0, "the size is not passed on; an LMCache server holds the memory"),
    ),
    *_rows(
        "lmcache",
        "local-cpu",
        ("0.5.6", "0.5.6", Pinning.EXACT, 0, "lmcache/v1/storage_backend/local_cpu_backend.py"),
        ("0.1.0", "0.3.0", Pinning.POWER_OF_TWO, 1, "LMCache issue 1147"),
    ),
)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What holds for one key. `assumed` says why it is not read in that very release; empty: it is."""

    value: object
    source: str
    assumed: str = ""


def ruling(engine: str, version: Version | None, key: str) -> Ruling:
    """Raises KeyError for an engine or a key without rows: a bug of ours."""
    rows = sorted((r for r in ROWS if r.engine == engine and r.key == key), key=lambda r: numbers(r.first))
    if not rows:
        raise KeyError((engine, key))
    worst = max(rows, key=lambda r: r.rank)
    if version is None:
        return Ruling(worst.value, worst.source, f"{engine}'s version is not known: the worst row is assumed")
    below = [r for r in rows if numbers(r.first) <= version.release]
    inside = [r for r in below if version.release <= numbers(r.last)]
    if version.between:
        return _between(engine, version, rows, worst)
    if inside:
        return Ruling(inside[-1].value, inside[-1].source)
    above = [r for r in rows if numbers(r.first) > version.release]
    if below and above:
        worse = max((below[-1], above[0]), key=lambda r: r.rank)
        return Ruling(worse.value, worse.source, f"{engine} {version} was not read: the worse of its neighbours")
    return Ruling(worst.value, worst.source, f"{engine} {version} is outside what was read: the worst row is assumed")


def _between(engine: str, version: Version, rows: list[Row], worst: Row) -> Ruling:
    """A source build or pre-release lies somewhere between the release before it and its own."""
    near = [r for r in rows if numbers(r.first) <= version.release]
    if not near or version.release > numbers(rows[-1].last):
        return Ruling(worst.value, worst.source, f"{engine} {version} is outside what was read: the worst row")
    own = near[-1]
    before = near[-2] if len(near) > 1 and numbers(own.first) == version.release else own
    after = next((r for r in rows if numbers(r.first) > version.release), own)
    gap = after if version.release > numbers(own.last) else own
    worse = max((own, before, gap), key=lambda r: r.rank)
    return Ruling(worse.value, worse.source, f"{engine} {version} is a build between releases: the worse is assumed")


# --- the meaning of each sizing flag ------------------------------------------------------------------------------

_FLAGS: dict[tuple[str, str], Semantics] = {
    (s.engine, s.flag): s
    for s in (
        Semantics("sglang", "hicache-size", Unit.GB, Scope.RANK, source=f"{_HOST_059}:159 (0.5.9)"),
        Semantics("sglang", "hicache-ratio", Unit.RATIO, Scope.RANK, source=f"{_HOST_059}:159 (0.5.9)"),
        Semantics(
            *("sglang", "hicache-host-memory-fraction", Unit.FRACTION, Scope.SERVER),
            source="sglang/srt/mem_cache/hicache_auto_size.py (0.5.21)",
        ),
        Semantics(
            *("sglang", "cpu-offload-gb", Unit.GIB, Scope.RANK),
            pinning=Pinning.POWER_OF_TWO,
            source="sglang/srt/utils/offloader.py",
        ),
        Semantics("vllm", "swap-space", Unit.GIB, Scope.RANK, source="vllm/config/cache.py"),
        Semantics(
            *("vllm", "cpu-offload-gb", Unit.GIB, Scope.RANK),
            pinning=Pinning.POWER_OF_TWO,
            source="vllm/config/offload.py UVAOffloadConfig; vllm issue 56410: about 1.9 times",
        ),
        Semantics("vllm", "kv-offloading-size", Unit.GIB, Scope.ENGINE, source="vllm/config/cache.py (0.13.0)"),
        Semantics("vllm", "kv-transfer-config", Unit.BYTES, Scope.ENGINE, source="vllm/v1/kv_offload/cpu/spec.py"),
        Semantics("vllm", "mm-processor-cache-gb", Unit.GIB, Scope.PROCESS, source="vllm/config/multimodal.py"),
        Semantics(
            *("lmcache", "max-local-cpu-size", Unit.GIB, Scope.RANK),
            source="lmcache/v1/storage_backend/local_cpu_backend.py (0.5.6); LMCache PR 5127",
        ),
        Semantics("lmcache", "l1-size-gb", Unit.GB, Scope.SERVER, source="lmcache/v1/distributed/config.py:805"),
        Semantics("trtllm", "host-cache-size", Unit.BYTES, Scope.RANK, source="KvCacheConfig; TensorRT-LLM PR 16106"),
        Semantics("llama.cpp", "cache-ram", Unit.MIB, Scope.SERVER, source="llama.cpp PR 16391"),
        Semantics("llama.cpp", "mlock", Unit.BYTES, Scope.SERVER, source="llama.cpp --mlock: the whole file"),
    )
}
FLAGS = tuple(_FLAGS)

# Where `int(host_size * 1e9 // self.size_per_token)` stands, release by release.
_WHERE = (
    ("0.4.6", f"{_HOST_040}:738"),
    ("0.4.10", f"{_HOST_059}:56"),
    ("0.5.2", f"{_HOST_059}:76"),
    ("0.5.4", f"{_HOST_059}:63"),
    ("0.5.8", f"{_HOST_059}:152"),
    ("0.5.9", f"{_HOST_059}:159"),
    ("0.5.10", f"{_HOST_059}:174"),
    ("0.5.12", f"{_HOST_059}:178"),
    ("0.5.14", f"{_HOST_0523}:61"),
    ("0.5.17", f"{_HOST_0523}:121"),
    ("0.5.19", f"{_HOST_0523}:153"),
    ("0.5.21", f"{_HOST_0523}:202"),
    ("0.5.23", f"{_HOST_0523}:223"),
)


def _where(version: Version | None, otherwise: str) -> str:
    """The place in the newest release read that is not newer than this one, and which release that is."""
    known = [(r, place) for r, place in _WHERE if version is not None and numbers(r) <= version.release]
    return f"{known[-1][1]} ({known[-1][0]})" if known else otherwise


def semantics(engine: str, version: Version | None, flag: str) -> Semantics:
    """What the flag means in that release, by the table."""
    found = _FLAGS[engine, flag]
    if engine == "sglang" and flag.startswith("hicache"):
        pages, pinning, check = (ruling(engine, version, key) for key in ("pages", "pinning", "check"))
        assert isinstance(pages.value, Pages)
        assert isinstance(pinning.value, Pinning)
        assert isinstance(check.value, Check)
        return replace(
            found,
            pages=pages.value,
            pinning=pinning.value,
            check=Check.UNKNOWN if check.assumed else check.value,
            source=_where(version, found.source),
            assumed=pages.assumed or pinning.assumed or check.assumed,
        )
    if engine == "vllm" and flag in {"kv-offloading-size", "kv-transfer-config"}:
        held = ruling(engine, version, "kv-offload")
        pinned = Pinning.EXACT if held.value == "shm" else Pinning.POWER_OF_TWO
        return replace(found, pinning=pinned, assumed=held.assumed)
    if flag == "max-local-cpu-size":
        held = ruling(engine, version, "local-cpu")
        assert isinstance(held.value, Pinning)
        return replace(found, pinning=held.value, assumed=held.assumed)
    return found
