"""An option is what the engine's own parser would take it for; what that can't be told of is named, never guessed.

SGLang and vLLM use argparse: an exact spelling wins, else a unique prefix. vLLM also takes underscores for dashes and
dotted paths into its JSON options. Tables: `options_sglang`, `options_vllm`, `options_other`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from recover.core.budget import options_other, options_sglang, options_vllm
from recover.core.budget.model import Option, Unresolved
from recover.core.budget.version import Version, numbers
from recover.core.clean import clean

_NEGATIVE = re.compile(r"-\d+$|-\d*\.\d+$")  # argparse takes these for values
# A variable whose name says that it holds a model, and nothing more.
_MODEL = re.compile(r"\$\{?\w*(?:model|ckpt|checkpoint)(?:_?(?:path|name|id|dir|tag|repo))?\}?", re.IGNORECASE)
_TYPESET = re.compile("^[\u2010-\u2015\u2212]|[\u2018-\u201f\u00a0]")  # what word processors make of -, quotes, blanks
_WHOLE = frozenset({"sglang", "vllm"})  # engines whose tables hold every option
_POSITIONAL = frozenset({"vllm", "trtllm", "sglang"})  # the model may stand without an option
_ABBREVIATES = frozenset({"sglang", "vllm", "lmcache"})

# Settings that change the host memory asked for: an unclear spelling that may be one of them can't be passed over.
SIZING = {
    "sglang": (
        *("hicache-size", "hicache-ratio", "hicache-host-memory-fraction", "hicache-host-memory-mode"),
        *("enable-hierarchical-cache", "tp-size", "pp-size", "dp-size", "attn-dp-size", "nnodes", "cpu-offload-gb"),
        *("enable-dp-attention", "config", "offload-group-size", "enable-lmcache", "enable-hisparse"),
        *("hicache-storage-backend", "disaggregation-mode", "speculative-algorithm", "attn-cp-size"),
    ),
    "vllm": (
        *("swap-space", "cpu-offload-gb", "kv-offloading-size", "kv-offloading-backend", "kv-transfer-config"),
        *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "data-parallel-size-local"),
        *("nnodes", "mm-processor-cache-gb", "offload-group-size", "config"),
    ),
    "trtllm": ("tp-size", "pp-size", "extra-llm-api-options"),
    "llama.cpp": ("model", "mlock", "cache-ram", "no-mmap", "load-mode"),
    "lmcache": ("l1-size-gb", "config"),
}


@dataclass(frozen=True, slots=True)
class Spelling:
    word: str  # "--tensor-parallel-size"
    name: str  # "tp-size"
    values: str  # "0", "1", "?", "+", "*", "b"
    since: tuple[int, int, int] | None
    before: tuple[int, int, int] | None

    def possible(self, version: Version | None) -> bool:
        if version is None:
            return True
        return (self.since is None or version.release >= self.since) and (
            self.before is None or version.release < self.before
        )


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command and where its text stands, if it stands anywhere as it is."""

    text: str
    span: tuple[int, int] | None = None
    unclear: str = ""  # why its text is not known: a variable that isn't set here
    many: bool = False  # what is not known may become several words: `$ARGS`, "$@"
    partial: str = ""  # its text with what is not known left as it is written


@functools.cache
def table(engine: str) -> dict[str, Spelling]:
    rows = {
        "sglang": options_sglang.ROWS,
        "vllm": options_vllm.ROWS,
        "trtllm": options_other.TRTLLM,
        "llama.cpp": options_other.LLAMA,
        "lmcache": options_other.LMCACHE,
    }[engine]
    found: dict[str, Spelling] = {}
    for line in rows.strip().splitlines():
        word, name, values, since, before = line.split()
        canonical = word.lstrip("-").replace("_", "-") if name == "=" else name
        lowest = None if since == "-" else numbers(since)
        highest = None if before == "-" else numbers(before)
        found[word] = Spelling(word, canonical, values, lowest, highest)
        if values == "b" and word.startswith("--"):
            found[f"--no-{word[2:]}"] = Spelling(f"--no-{word[2:]}", f"no-{canonical}", "0", lowest, highest)
    return found


@dataclass(slots=True)
class Read:
    options: list[Option]
    positional: list[str]
    unresolved: list[Unresolved]


def read_options(engine: str, version: Version | None, words: list[Word], source: str = "command line") -> Read:
    """All options of the engine's own words, in their order. Total: any words give a result."""
    found = Read([], [], [])
    at, named = 0, False
    while at < len(words):
        word = words[at]
        at += 1
        if word.unclear:
            first = engine in _POSITIONAL and not found.positional and not named
            model = first and (not word.many or _MODEL.fullmatch(word.text) is not None)
            named = named or model
            found.unresolved.append(Unresolved(clean(word.text, 80), word.unclear, matters=not model))
        elif _TYPESET.search(word.text.partition("=")[0]):
            why = "its dash or its quotes are not those of the keyboard: the engine takes it for no option"
            found.unresolved.append(Unresolved(clean(word.text, 80), why, matters=True))
        elif word.text == "--":
            found.positional += [w.text for w in words[at:]]
            break
        elif not _looks_optional(word.text):
            if (found.positional or named) and engine in _WHOLE:
                found.unresolved.append(Unresolved(clean(word.text, 80), "it belongs to no option", matters=False))
            else:
                found.positional.append(word.text)
        else:
            at = _one(engine, version, words, at, found, source)
    return found


def _one(engine: str, version: Version | None, words: list[Word], at: int, found: Read, source: str) -> int:
    """The option before `at`; gives the place after its values."""
    word = words[at - 1]
    said, equals, tail = word.text.partition("=")
    spelling, why = resolve(engine, version, said)
    following = _values(words, at)
    if spelling is None:
        matters = _may_size(engine, said)
        if why:
            found.unresolved.append(Unresolved(clean(said, 80), why, matters))
        return at if equals else at + len(following)
    name = spelling.name + (f".{said.partition('.')[2]}" if "." in said else "")
    if equals:
        span = None if word.span is None else (word.span[0] + len(said) + 1, word.span[1])
        if span is not None and span[1] - span[0] != len(tail):
            span = None  # quotes or escapes inside: the value does not stand there as it is
        found.options.append(Option(name, tail, said, source, span))
        return at
    taken = following[: {"0": 0, "b": 0, "1": 1, "?": 1}.get(spelling.values, len(following))]
    unclear = next((w for w in taken if w.unclear), None)
    if unclear is not None:
        matters = spelling.name in SIZING[engine] or (spelling.values in "+*" and unclear.many)
        found.unresolved.append(Unresolved(f"{clean(said, 80)} {clean(unclear.text, 80)}", unclear.unclear, matters))
        return at + len(taken)
    if spelling.values in "1+" and not taken:
        found.unresolved.append(Unresolved(clean(said, 80), "has no value", spelling.name in SIZING[engine]))
        return at
    value = " ".join(w.text for w in taken) if taken else None
    found.options.append(Option(name, value, said, source, taken[0].span if len(taken) == 1 else None))
    return at + len(taken)


def _values(words: list[Word], at: int) -> list[Word]:
    """The words from `at` that can be values."""
    end = at
    while end < len(words):
        text = words[end].text
        if not words[end].unclear and _looks_optional(text):
            break
        end += 1
    return words[at:end]


def _looks_optional(text: str) -> bool:
    """As argparse sees it: a negative number or a word with a blank in its name is a value."""
    return text.startswith("-") and text != "-" and not _NEGATIVE.match(text) and " " not in text.partition("=")[0]


def resolve(engine: str, version: Version | None, said: str) -> tuple[Spelling | None, str]:
    """The spelling that the engine would take `said` for, or why there is none; no reason: of no concern."""
    rows = table(engine)
    word = said.partition(".")[0] if engine == "vllm" and said.startswith("--") else said
    if engine in {"vllm", "trtllm"}:
        word = _dashed(engine, word)
    exact = rows.get(word)
    if exact is not None and exact.possible(version):
        return exact, ""
    if exact is not None:
        return None, _not_in(engine, version, exact)
    return _by_prefix(engine, version, word)


def _by_prefix(engine: str, version: Version | None, word: str) -> tuple[Spelling | None, str]:
    if engine in _ABBREVIATES and word.startswith("--") and len(word) > 2:
        close = [row for name, row in table(engine).items() if name.startswith(word) and row.possible(version)]
        if len({row.name for row in close}) == 1:
            return close[0], ""
        if close:
            names = ", ".join(sorted(row.word for row in close)[:6])
            return None, f"ambiguous: it may be {names}{' and more' if len(close) > 6 else ''}"
    if engine not in _WHOLE:
        return None, "not an option that is known here" if _may_size(engine, word) else ""
    of = f" {version}" if version is not None else ""
    return None, f"{engine}{of} has no such option in the table"


def _dashed(engine: str, word: str) -> str:
    if engine == "trtllm":
        return "--" + word[2:].replace("-", "_") if word.startswith("--") else word
    return "--" + word[2:].replace("_", "-") if word.startswith("--") else word


def _not_in(engine: str, version: Version | None, row: Spelling) -> str:
    if version is not None and row.since is not None and version.release < row.since:
        return f"{engine} {version} does not have it: first seen in {'.'.join(map(str, row.since))}"
    last = ".".join(map(str, row.before)) if row.before is not None else "a later release"
    return f"{engine} {version} does not have it any more: gone by {last}"


def _may_size(engine: str, said: str) -> bool:
    """Whether a word that can't be resolved may be meant as a sizing setting."""
    word = said.lstrip("-").replace("_", "-").partition(".")[0]
    return bool(word) and any(name.startswith(word) or word.startswith(name) for name in SIZING[engine])
