"""Laws of the budget over machines, launches and words that nobody has thought of."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.budget.bytes_per_token import per_token, read_config
from recover.core.budget.launch import from_argv, parse
from recover.core.budget.model import GB, GIB, Facts, Fit, Launch, ModelConfig, Problem, Shm
from recover.core.budget.options import Word, read_options
from recover.core.budget.rewrite import with_value
from recover.core.budget.sizes import size
from recover.core.budget.solve import judge
from recover.core.budget.table import NEWEST, ROWS, ruling
from recover.core.budget.version import Version, version
from recover.core.budget.words import as_json, verdict_lines
from recover.core.clean import clean
from recover.model.reading import Known
from tests.core.budget.builders import GLM, KIMI, LLAMA, QWEN, machine, sglang, vllm

RELEASES = st.sampled_from(
    (
        *(None, "0.4.4", "0.4.6", "0.5.3", "0.5.4", "0.5.5", "0.5.9", "0.5.10", "0.5.11", "0.5.13", "0.5.18"),
        *("0.5.19", "0.5.21", "0.5.23", "0.5.24", "1.0.0"),
    )
)
MODELS = st.sampled_from([KIMI, LLAMA, QWEN, GLM])
RANKS = st.sampled_from([1, 2, 4, 8, 16])


@st.composite
def machines(draw: st.DrawFn) -> Facts:
    available = draw(st.integers(1, 4096))
    return machine(
        available,
        draw(st.integers(0, 80)),
        draw(st.integers(0, 60)),
        cgroup_room=Known(draw(st.one_of(st.none(), st.integers(0, available * GIB)))),
        shm=Known(Shm(available * GIB // 2, draw(st.integers(0, available * GIB // 2)))),
    )


@settings(max_examples=120, deadline=None)
@given(machines(), MODELS, RANKS, RELEASES, st.integers(1, 2000), st.sampled_from([1, 16, 64]))
def test_what_is_recommended_passes_its_own_check(
    facts: Facts, model: ModelConfig, ranks: int, release: str | None, asked: int, page: int
) -> None:
    launch = sglang(f"--tp {ranks} --hicache-size {asked} --page-size {page}", release)
    found = judge(launch, facts, model)
    for safe in found.safe:
        if safe.value is not None:
            again = judge(with_value(launch, safe.flag, str(safe.value)), facts, model)
            assert again.fit is Fit.FITS
            assert all(c.passes for c in again.checks)
            assert safe.fits is not None
            assert safe.fits >= safe.value
            more = judge(with_value(launch, safe.flag, str(safe.value + 1)), facts, model)
            assert more.fit is not Fit.FITS
    if found.corrected:
        (corrected,) = parse(found.corrected, version=launch.version)
        assert judge(corrected, facts, model).fit is Fit.FITS


@settings(max_examples=60, deadline=None)
@given(machines(), RANKS, st.sampled_from(["0.9.2", "0.13.0", "0.26.0", "0.33.0", None]), st.integers(1, 900))
def test_so_does_what_is_recommended_for_vllm(facts: Facts, ranks: int, release: str | None, asked: int) -> None:
    launch = vllm(f"-tp {ranks} --kv-offloading-size {asked} --cpu-offload-gb 1", release)
    found = judge(launch, facts)
    if found.corrected:
        (corrected,) = parse(found.corrected, version=launch.version)
        assert judge(corrected, facts).fit is Fit.FITS


@settings(max_examples=80, deadline=None)
@given(machines(), MODELS, RANKS, RELEASES, st.integers(0, 200))
def test_more_memory_never_means_less(
    facts: Facts, model: ModelConfig, ranks: int, release: str | None, more: int
) -> None:
    launch = sglang(f"--tp {ranks} --hicache-size 10", release)
    assert isinstance(facts.available, Known)
    larger = replace(facts, available=Known(facts.available.value + more * GIB))
    assert _best(launch, facts, model) <= _best(launch, larger, model)


@settings(max_examples=80, deadline=None)
@given(machines(), RANKS, RELEASES)
def test_more_ranks_never_mean_more_each(facts: Facts, ranks: int, release: str | None) -> None:
    few, many = (sglang(f"--tp {n} --hicache-size 10", release) for n in (ranks, ranks * 2))
    assert _best(few, facts, KIMI) >= _best(many, facts, KIMI)
    totals = [judge(launch, facts, KIMI).total_low for launch in (few, many)]
    assert totals[1] == 2 * totals[0]


def _best(launch: Launch, facts: Facts, model: ModelConfig) -> int:
    return max((s.value or 0 for s in judge(launch, facts, model).safe), default=0)


@given(st.integers(1, 10**15 // 1024), st.sampled_from(["B", "kB", "KiB", "MB", "MiB", "GB", "GiB"]))
def test_units_come_back(number: int, unit: str) -> None:
    factor = {"B": 1, "kB": 1000, "KiB": 1024, "MB": 10**6, "MiB": 1 << 20, "GB": GB, "GiB": GIB}[unit]
    if number * factor <= 1 << 50:
        assert size(f"{number}{unit}", "x") == number * factor
        assert size(f" {number} {unit.lower()} ", "x") == number * factor


@given(st.text(max_size=40))
def test_a_size_is_a_size_or_a_problem(text: str) -> None:
    try:
        assert size(text, "--x") > 0
    except Problem as problem:
        assert str(problem).startswith("--x: ")


WORDS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        (
            *("python", "-m", "sglang.launch_server", "vllm", "serve", "docker", "run", "-e", "--tp", "--tp=8"),
            *("--hicache-size", "--hicache", "8", "-1", "--", "-", "=", "--config", "c.yaml", "$X", "'", '"', "`"),
            *("\\", "--kv-transfer-config", "{}", "bash", "-c", "numactl", "--membind", "-tp", "--page-size", "nan"),
        )
    ),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(WORDS, max_size=14), st.sampled_from(["sglang serve", "vllm serve", "trtllm-serve", "llama-server", ""])
)
def test_any_words_are_read(words: list[str], head: str) -> None:
    argv = [*head.split(), *words]
    launch = from_argv(argv, files={"c.yaml": "tp-size: 8"})
    if launch is not None:
        verdict = judge(launch, machine())
        json.dumps(as_json(verdict))
        assert all(line.strip() == clean(line) for line in verdict_lines(verdict))
    else:
        assert not head


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, max_size=14))
def test_any_text_is_read_or_a_problem(words: list[str]) -> None:
    for text in (" ".join(words), "\n".join(words), f"[Service]\nExecStart={' '.join(words)}"):
        try:
            for launch in parse(text):
                spans = [(o.span, o.value) for o in launch.options if o.span is not None and launch.text]
                assert all(launch.text[span[0] : span[1]] == value for span, value in spans)
        except Problem as problem:
            assert problem.problems


@settings(max_examples=100)
@given(st.sampled_from(["sglang", "vllm"]), st.lists(st.text(max_size=10), max_size=10))
def test_every_word_of_an_engine_ends_somewhere(engine: str, words: list[str]) -> None:
    read = read_options(engine, None, [Word(w) for w in words])
    assert len(read.options) + len(read.positional) + len(read.unresolved) <= len(words)


@settings(max_examples=200)
@given(
    st.one_of(st.text(max_size=60), st.dictionaries(st.sampled_from(sorted(GLM.fields)), st.integers()).map(json.dumps))
)
def test_any_config_is_read_or_a_problem(text: str) -> None:
    try:
        assert per_token(read_config(text, "config.json"), ranks=8).main > 0
    except Problem as problem:
        assert str(problem).startswith("config.json")


@given(st.sampled_from(["sglang", "vllm"]), st.tuples(*[st.integers(0, 40)] * 3), st.booleans())
def test_every_release_has_an_answer_and_says_when_it_was_not_read(
    engine: str, release: tuple[int, int, int], between: bool
) -> None:
    text = ".".join(map(str, release))
    for key in {r.key for r in ROWS if r.engine == engine}:
        found = ruling(engine, Version(release, text, between), key)
        newest = version(NEWEST[engine])
        assert newest is not None
        if release > newest.release:
            assert found.assumed
