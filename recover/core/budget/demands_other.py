"""The host memory that vLLM, LMCache, TensorRT-LLM and llama.cpp take, one demand per thing.

LMCache and TensorRT-LLM sizes are per rank, as SGLang's are: LMCache PR 5127 ("512 on TP=8 asks the host for 4 TB"),
TensorRT-LLM PR 16106. vLLM's --kv-offloading-size is a total over the ranks of one replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from recover.core.budget.arithmetic import Case, option_count, pinned
from recover.core.budget.demands_weights import offloaded
from recover.core.budget.model import GIB, MIB, Demand, Pinning, Place, Problem, Scope
from recover.core.budget.sizes import both, container_size, decimal
from recover.model.reading import Known

_DEFAULT_SWAP = 4  # GiB per GPU, in releases that allocate it
_DEFAULT_LMCACHE = Decimal(5)  # GiB per rank
_DEFAULT_SIMPLE = 8 * GIB
_DEFAULT_PROMPTS = 8192 * MIB  # llama.cpp --cache-ram, PR 16391


def demands(case: Case) -> Iterator[Demand]:
    match case.launch.engine:
        case "vllm":
            yield from _vllm(case)
        case "trtllm":
            yield from _trtllm(case)
        case "llama.cpp":
            yield from _llama(case)
        case "lmcache":
            yield from _lmcache_server(case)
        case "sglang" if case.launch.has("enable-lmcache"):
            yield from lmcache(case)
        case _:
            return


def _amount(case: Case, name: str, factor: int) -> int | None:
    """A setting in units of `factor` bytes that the engine reads as a float. Raises Problem."""
    option = case.launch.option(name)
    if option is None:
        return None
    return _whole(decimal(option.value or "", option.said) * factor, option.said)


def _whole(number: Decimal, said: str) -> int:
    if number > 10**24:
        raise Problem(f"{said}: {number} bytes are more than any machine has")
    return int(number)


# --- vLLM ---------------------------------------------------------------------------------------------------------


def _vllm(case: Case) -> Iterator[Demand]:
    yield from _swap(case)
    offload = _amount(case, "cpu-offload-gb", GIB)
    if offload:
        yield offloaded(case, offload, case.meaning("cpu-offload-gb"))
    if case.launch.has("offload-group-size"):
        yield _unknown("offload-group-size", "layers kept in host memory", "the bytes of a layer")
    yield from _kv_offload(case)
    yield from _connector(case)
    yield from _images(case)


def _swap(case: Case) -> Iterator[Demand]:
    rule = case.rule("swap").value
    said = _amount(case, "swap-space", GIB)
    if rule != "allocates" or said == 0:
        return
    amount = said if said is not None else _DEFAULT_SWAP * GIB
    ranks = case.counts.on_host
    origin = "" if said is not None else " by default"
    lines = (f"{both(amount)} per GPU{origin} x {ranks} ranks ({case.counts.formula}) = {both(amount * ranks)}",)
    surely = amount if case.launch.version is not None else 0  # V1 engines do not allocate it
    yield Demand("swap-space", "swap space", surely, amount, ranks, "rank", lines, source="vllm/config.py (0.9.2)")


def _kv_offload(case: Case) -> Iterator[Demand]:
    meaning = case.meaning("kv-offloading-size")
    amount = _amount(case, "kv-offloading-size", meaning.unit.bytes or GIB)
    if not amount:
        return
    if case.launch.value("kv-offloading-backend") == "lmcache":
        if case.rule("kv-offload-lmcache").value != "divided":
            yield _unknown("kv-offloading-size", "an LMCache server holds the memory", "the LMCache server's size")
            return
        yield _total(case, "kv-offloading-size", "the LMCache pool", amount, Pinning.EXACT, Place.RAM)
        return
    held = case.rule("kv-offload")
    place = Place.SHM if held.value == "shm" else Place.RAM
    if meaning.scope is Scope.RANK:  # what the source there says, unlike any release
        ranks = case.counts.on_host
        lines = (f"{both(amount)} per rank x {ranks} ranks ({case.counts.formula}) = {both(amount * ranks)}",)
        high = 2 * amount if meaning.pinning is Pinning.POWER_OF_TWO else amount
        what = "the KV offload pool"
        yield Demand("kv-offloading-size", what, amount, high, ranks, "rank", lines, place, meaning.source)
        return
    yield _total(case, "kv-offloading-size", "the KV offload pool", amount, meaning.pinning, place)


def _total(case: Case, flag: str, what: str, amount: int, pinning: Pinning, place: Place) -> Demand:
    """A size that the ranks of one replica share."""
    counts = case.counts
    here = amount * counts.engine // (counts.tp * counts.pp)
    lines = [f"{both(amount)} over the {counts.tp * counts.pp} ranks of a replica, not per rank"]
    if here != amount:
        lines.append(f"of which {both(here)} on this host")
    lines.append(f"x {counts.replicas} replicas on this host = {both(here * counts.replicas)}")
    high = here
    if pinning is Pinning.POWER_OF_TWO:
        high = 2 * here
        lines.append(f"each tensor is pinned rounded up to a power of two: up to {both(high * counts.replicas)}")
    return Demand(
        *(flag, what, here, high, counts.replicas, "replica", tuple(lines)),
        place=place,
        source=case.meaning("kv-offloading-size").source,
    )


def _connector(case: Case) -> Iterator[Demand]:
    """--kv-transfer-config, as JSON or as dotted options."""
    settings = _transfer(case)
    if settings is None:
        return
    flag = "kv-transfer-config"
    names = json.dumps(settings)
    extra = settings.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    if "LMCacheMP" in names:
        if not any(other.engine == "lmcache" for other in case.facts.others):
            yield _unknown(flag, "an LMCache server holds the memory", "the LMCache server's size")
    elif "LMCache" in names:
        yield from lmcache(case, _nested(settings, "lmcache.max_local_cpu_size"))
    per_rank, total = _nested(settings, "cpu_bytes_to_use_per_rank"), _nested(settings, "cpu_bytes_to_use")
    if per_rank is not None:
        amount, ranks = _bytes(per_rank, flag), case.counts.on_host
        lines = (f"{both(amount)} per rank x {ranks} ranks ({case.counts.formula}) = {both(amount * ranks)}",)
        yield Demand(flag, "the KV offload pool", amount, 2 * amount, ranks, "rank", lines)
    elif total is not None:
        held = case.rule("kv-offload").value == "shm"
        pinning = Pinning.EXACT if held else Pinning.POWER_OF_TWO
        place = Place.SHM if held else Place.RAM
        yield _total(case, flag, "the KV offload pool", _bytes(total, flag), pinning, place)
    elif _nested(settings, "num_cpu_blocks") is not None:
        yield _unknown(flag, "num_cpu_blocks of KV cache per rank", "the bytes of a block")
    elif "Offloading" in names or "SimpleCPU" in names:
        yield _total(case, flag, "the KV offload pool", _DEFAULT_SIMPLE, Pinning.POWER_OF_TWO, Place.RAM)


def _transfer(case: Case) -> dict[str, Any] | None:
    settings: dict[str, Any] = {}
    found = False
    for option in case.launch.options:
        name, dot, path = option.name.partition(".")
        if name != "kv-transfer-config" or option.value is None:
            continue
        found = True
        if dot:
            settings[path.rpartition(".")[2]] = option.value
            continue
        try:
            read = json.loads(option.value)
        except (ValueError, RecursionError):
            raise Problem(f"{option.said}: not JSON") from None
        if not isinstance(read, dict):
            raise Problem(f"{option.said}: no JSON object")
        settings.update(read)
    return settings if found else None


def _nested(settings: Any, name: str, depth: int = 0) -> Any:
    """The value of a key, however deep connectors are nested in connectors."""
    if depth > 8:
        return None
    if isinstance(settings, dict):
        if name in settings:
            return settings[name]
        settings = list(settings.values())
    if isinstance(settings, list):
        return next((v for s in settings if (v := _nested(s, name, depth + 1)) is not None), None)
    return None


def _bytes(value: Any, flag: str) -> int:
    """Bytes as a number, or as "80m", "2g"."""
    amount = None if isinstance(value, bool) else container_size(str(value).removesuffix(".0"))
    if amount is None:
        raise Problem(f"--{flag}: {str(value)[:40]!r} is no number of bytes")
    return amount


def _images(case: Case) -> Iterator[Demand]:
    amount = _amount(case, "mm-processor-cache-gb", GIB)
    if not amount:
        return
    servers = (option_count(case.launch, "api-server-count") or 1) * case.launch.copies
    processes = servers + case.counts.replicas
    lines = (
        f"{both(amount)} x ({servers} API servers + {case.counts.replicas} replicas) = {both(amount * processes)}",
    )
    yield Demand("mm-processor-cache-gb", "the multimodal cache", 0, amount, processes, "process", lines)


# --- LMCache ------------------------------------------------------------------------------------------------------


def lmcache(case: Case, given: Any = None) -> Iterator[Demand]:
    """LMCache inside an engine: each worker builds its own allocator."""
    launch = case.launch
    if (launch.variable("LMCACHE_LOCAL_CPU") or launch.value("lmcache.local-cpu") or "").lower() == "false":
        return
    said = given if given is not None else launch.variable("LMCACHE_MAX_LOCAL_CPU_SIZE")
    said = said if said is not None else launch.value("lmcache.max-local-cpu-size")
    number = _DEFAULT_LMCACHE if said is None else decimal(str(said), "LMCache max_local_cpu_size")
    amount = _whole(number * GIB, "LMCache max_local_cpu_size")
    meaning = case.meaning("max-local-cpu-size", "lmcache")
    ranks = case.counts.on_host
    first = case.model is not None and case.model.replicated
    origin = " by default" if said is None else ""
    lines = [f"{number} GiB per rank{origin} x {ranks} ranks ({case.counts.formula}) = {both(amount * ranks)}"]
    low, high = amount, pinned(amount, meaning.pinning)
    if high != low:
        lines.append(f"older releases round up to a power of two: {both(high)} per rank")
    if first:
        lines.append("an MLA model is kept by the first rank only, unless save_only_first_rank is off")
    yield Demand(
        *("max-local-cpu-size", "LMCache's pool", 0 if first else low, high, ranks, "rank", tuple(lines)),
        source=meaning.source,
    )


def _lmcache_server(case: Case) -> Iterator[Demand]:
    amount = _amount(case, "l1-size-gb", 10**9)
    meaning = case.meaning("l1-size-gb")
    if amount is None:
        yield _unknown("l1-size-gb", "the server's pool", "--l1-size-gb")
    elif amount:
        lines = (f"{both(amount)} in all: one server process",)
        # "GB" in the server's help; taken as GiB at the most, since its code was not read for the factor.
        high = amount // 10**9 * GIB + GIB if amount % 10**9 else amount // 10**9 * GIB
        yield Demand("l1-size-gb", "the cache server's pool", amount, high, 1, "server", lines, source=meaning.source)


# --- TensorRT-LLM, llama.cpp --------------------------------------------------------------------------------------


def _trtllm(case: Case) -> Iterator[Demand]:
    for name in ("kv-cache-config.host-cache-size", "kv-cache-config.kv-cache-host-memory-bytes"):
        option = case.launch.option(name)
        if option is None:
            continue
        amount, ranks = _whole(decimal(option.value or "", option.said), option.said), case.counts.on_host
        lines = (f"{both(amount)} per rank x {ranks} ranks ({case.counts.formula}) = {both(amount * ranks)}",)
        meaning = case.meaning("host-cache-size")
        yield Demand("host-cache-size", "the host KV pool", amount, amount, ranks, "rank", lines, source=meaning.source)
        return


def _llama(case: Case) -> Iterator[Demand]:
    launch = case.launch
    held = launch.has("mlock") or launch.has("no-mmap") or launch.value("load-mode") in {"mlock", "none"}
    if held:
        sizes = dict(case.facts.files)
        known = sizes.get(launch.model)
        weights = case.facts.weights.value if isinstance(case.facts.weights, Known) else None
        amount = known if known is not None else weights
        if amount is None:
            yield _unknown("mlock", "the model in host memory", "the size of the model file")
        else:
            lines = (f"the model file: {both(amount)}, the part on the GPU included until it is loaded",)
            yield Demand("mlock", "the model in host memory", 0, amount, 1, "server", lines)
    option = launch.option("cache-ram")
    if option is None:
        lines = (f"by default up to {both(_DEFAULT_PROMPTS)}; releases before October 2025 have no such cache",)
        yield Demand("cache-ram", "the prompt cache", 0, _DEFAULT_PROMPTS, 1, "server", lines)
        return
    if (option.value or "").strip() == "-1":
        yield _unknown("cache-ram", "a prompt cache without limit", "a limit")
        return
    cache = _amount(case, "cache-ram", MIB) or 0
    if cache:
        yield Demand("cache-ram", "the prompt cache", cache, cache, 1, "server", (f"{both(cache)} in all",))


def _unknown(flag: str, what: str, needs: str) -> Demand:
    return Demand(flag, what, 0, None, 1, "server", (f"--{flag}: {what}; not known: {needs}",), needs=needs)
