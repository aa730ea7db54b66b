"""What an engine reads from files besides its command line: --config YAML, LMCache's and TensorRT-LLM's settings.

The command line wins over a --config file (sglang `config_argument_merger`, vllm `FlexibleArgumentParser`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recover.core.budget.compose import load_yaml
from recover.core.budget.model import Option, Problem, Unresolved
from recover.core.budget.options import Word, read_options
from recover.core.budget.version import Version
from recover.core.clean import clean

Result = tuple[list[Option], list[Unresolved]]


def from_files(
    engine: str,
    version: Version | None,
    options: Sequence[Option],
    env: Mapping[str, str],
    files: Mapping[str, str],
    missing: list[str],
) -> Result:
    """The options with those of the files that they and the environment name; `missing` gains what wasn't given."""
    found: list[Option] = [*_variables(engine, env)]
    unresolved: list[Unresolved] = []
    named = {o.name: o.value for o in options}
    if engine in {"sglang", "vllm"} and named.get("config"):
        _into(_config(engine, version, str(named["config"]), files, missing), found, unresolved)
    extra = named.get("extra-llm-api-options")
    if engine == "trtllm" and extra:
        _into(_flat(extra, "", files, missing), found, unresolved)
    lmcache = env.get("LMCACHE_CONFIG_FILE") or named.get("lmcache-config-file")
    if engine in {"sglang", "vllm"} and lmcache:
        _into(_flat(lmcache, "lmcache.", files, missing), found, unresolved)
    return [*found, *options], unresolved


def _variables(engine: str, env: Mapping[str, str]) -> Iterator[Option]:
    """llama.cpp takes every option from the environment as well; the command line wins (`common/arg.cpp`)."""
    if engine != "llama.cpp":
        return
    for name in ("cache-ram", "model", "load-mode"):
        variable = f"LLAMA_ARG_{name.replace('-', '_').upper()}"
        if variable in env:
            yield Option(name, env[variable], variable, "environment")
    for name in ("mlock", "no-mmap"):
        variable = f"LLAMA_ARG_{name.replace('-', '_').upper()}"
        if env.get(variable, "").lower() in {"1", "true", "on", "enabled"}:
            yield Option(name, None, variable, "environment")


def _into(result: Result, found: list[Option], unresolved: list[Unresolved]) -> None:
    found += result[0]
    unresolved += result[1]


def _config(engine: str, version: Version | None, name: str, files: Mapping[str, str], missing: list[str]) -> Result:
    document, problems = _document(name, files, missing)
    words: list[Word] = []
    for key, value in document.items():
        said = f"--{str(key).lstrip('-')}"
        if engine == "vllm":  # its parser takes either; SGLang's takes a key as it is written
            said = said.replace("_", "-")
        if value is True:
            words.append(Word(said))
        elif isinstance(value, list):
            words += [Word(said), *(Word(str(v)) for v in value)]
        elif value is not False and value is not None:
            words.append(Word(f"{said}={_text(value)}"))
    read = read_options(engine, version, words, source=name)
    return read.options, [*problems, *read.unresolved]


def _text(value: Any) -> str:
    try:
        return json.dumps(value) if isinstance(value, dict) else str(value)
    except (TypeError, ValueError):
        return str(value)


def _flat(name: str, prefix: str, files: Mapping[str, str], missing: list[str]) -> Result:
    """Nested settings as dotted names: kv_cache_config.host_cache_size."""
    document, problems = _document(name, files, missing)
    return [Option(f"{prefix}{key}", value, key, name) for key, value in _leaves(document, "", 0)], problems


def _leaves(table: Mapping[Any, Any], prefix: str, depth: int) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{key}".replace("_", "-")
        if isinstance(value, dict) and depth < 8:
            yield from _leaves(value, f"{name}.", depth + 1)
        elif isinstance(value, list):
            yield name, f"{len(value)} values"
        elif value is not None:
            yield name, str(value).lower() if isinstance(value, bool) else str(value)


def _document(name: str, files: Mapping[str, str], missing: list[str]) -> tuple[dict[Any, Any], list[Unresolved]]:
    if name not in files:
        missing.append(name)
        return {}, []
    try:
        document = load_yaml(files[name], clean(name, 120))
    except Problem as error:
        return {}, [Unresolved(clean(name, 120), p, matters=True) for p in error.problems]
    if document is None:
        return {}, []
    if not isinstance(document, dict):
        return {}, [Unresolved(clean(name, 120), "it holds no table of settings", matters=True)]
    return document, []
