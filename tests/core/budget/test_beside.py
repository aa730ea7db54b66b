"""Servers of one text share the machine: together they get no more than there is of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.budget.model import GB, GIB, Facts, Fit, ModelConfig, Shm
from recover.core.budget.preflight import Preflight, preflight
from recover.core.budget.preflight_report import Gathered
from recover.model.reading import Known
from tests.core.budget.builders import LLAMA

SERVER = "docker run -d --ipc=host lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --enable-hierarchical-cache"
PASSES = (Fit.FITS, Fit.TIGHT)


def found(available: int, loading: int = 1, **more: object) -> Gathered:
    facts = Facts(Known(available), loading=loading * GIB, margin=0, shm=Known(Shm(900 * GIB, 900 * GIB)))
    return Gathered(facts, **more)  # type: ignore[arg-type]


def pair(first: str, second: str, room: int = 260 * GIB, **more: object) -> tuple[Preflight, ...]:
    return preflight(f"{SERVER} {first}\n{SERVER} {second}\n", found(room, **more))


def test_each_of_two_fits_alone_and_both_do_not() -> None:
    (alone,) = preflight(f"{SERVER} --model-path m --tp 4 --hicache-size 40", found(260 * GIB))
    assert alone.verdict.fit is Fit.FITS
    both = pair("--model-path m --tp 4 --hicache-size 40", "--model-path m --tp 4 --hicache-size 40")
    assert [r.verdict.fit for r in both] == [Fit.NOT, Fit.NOT]
    # 279.2 GB - 161.1 GB of the other's = 118.1 GB: 29 each beside 1 GiB of loading, 26 for certain by the own check
    assert [(r.verdict.safe[0].fits, r.verdict.safe[0].value) for r in both] == [(29, 26), (29, 26)]
    assert all("161.1 GB" in note for r in both for note in r.notes if "left to the other" in note)


def test_beside_one_of_which_nothing_is_known_nothing_is_permitted() -> None:
    unclear = "--model-path m --tp 4 --disaggregation-decode-enable-offload-kvcache"
    sized, _ = pair("--model-path m --hicache-size 1", unclear)
    assert sized.verdict.fit is Fit.CANNOT_TELL
    large, _ = pair("--model-path m --tp 8 --hicache-size 300", unclear)
    assert large.verdict.fit is Fit.NOT  # what is too much already is not made better by it


def test_what_was_read_for_one_server_is_not_held_to_be_so_of_another() -> None:
    first, second = pair("--model-path m --hicache-size 1", "--model-path other --hicache-size 1", config=LLAMA)
    assert first.verdict.bytes_per_token and second.verdict.bytes_per_token is None
    assert second.gaps == ("its model were not read: judge this server by itself for that",)
    same = pair("--model-path m --hicache-size 1", "--model-path m --hicache-size 1", config=LLAMA)
    assert all(r.verdict.bytes_per_token for r in same)


def test_a_version_is_of_its_engine_only() -> None:
    text = f"{SERVER} --hicache-size 1\nvllm serve m --kv-offloading-size 4\n"
    assert [str(r.launch.version) for r in preflight(text, found(260 * GIB))] == ["0.5.9", "None"]


def fits(text: str) -> list[bool]:
    return [r.verdict.fit in PASSES for r in preflight(text, found(260 * GIB))]


def test_only_what_runs_at_the_same_time_shares_it() -> None:
    one = f"{SERVER} --model-path m --tp 4 --hicache-size 40".replace(" -d ", " ")
    assert fits(f"{one} &\n{one}\n") == [False, False]
    assert fits(f"{one}\n{one}\n") == [True, True]  # the second starts when the first has ended
    assert fits(f"if x; then\n{one} &\nelif y; then\n{one} &\nelse\n{one} &\nfi\n") == [True, True, True]
    assert fits(f"case $1 in\na) {one} & ;;\nb) {one} & ;;\nesac\n") == [True, True]
    assert fits(f"if x; then\n{one} &\n{one} &\nfi\n") == [False, False]
    assert fits(f"if x; then\n{one} &\nfi\nif y; then\n{one} &\nfi\n") == [False, False]
    assert fits(f"f() {{ {one}; }}\ng() {{ {one}; }}\nf &\ng\n") == [False, False]


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(1, 120), min_size=2, max_size=4), room=st.integers(20, 400))
def test_all_of_them_pass_only_where_all_of_them_fit(sizes: list[int], room: int) -> None:
    """Seen to fail with each judged alone, and with the loading of the others left out."""
    text = "\n".join(f"{SERVER} --model-path m --hicache-size {size}" for size in sizes)
    results = preflight(text, found(room * GB, 15, config=ModelConfig("m", LLAMA.fields)))
    taken = sum(r.verdict.total_low + r.verdict.loading for r in results)
    if all(r.verdict.fit in PASSES for r in results):
        assert taken <= room * GB
    elif taken <= (room - 30 - 15 * len(sizes)) * GB:
        raise AssertionError([r.verdict.reasons for r in results])
