"""What loading took is kept where a preflight finds it again; a damaged file neither hinders one nor is believed."""

from __future__ import annotations

from pathlib import Path

import pytest

from recover.core.budget.preflight_report import Loading
from recover.edge.store.folder import StateFolder
from recover.edge.store.loadings import keep_loadings, load_loadings, place

GIB = 1 << 30
KIMI = Loading("sglang", "/m/Kimi", 30 * GIB, "2026-11-30")


def test_each_machine_has_its_own(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    keep_loadings(place(state, "node-174"), [KIMI])
    assert load_loadings(place(state, "node-174")) == (KIMI,)
    assert load_loadings(place(state, None)) == load_loadings(place(state, "../node-174")) == ()


def test_the_newest_of_a_model_stays(tmp_path: Path) -> None:
    file = tmp_path / "loading.json"
    other, newer = Loading("vllm", "/m/Kimi", 5 * GIB, "2026-12-01"), Loading("sglang", "/m/Kimi", GIB, "2026-12-02")
    keep_loadings(file, [KIMI, other])
    keep_loadings(file, [newer])
    assert load_loadings(file) == (newer, other)


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '[{"engine": 1}]', '[{"engine":"a","model":"b","bytes":-1,"day":"c"}]']
)
def test_a_damaged_file_is_told_and_replaced(tmp_path: Path, text: str) -> None:
    file = tmp_path / "loading.json"
    file.write_text(text)
    with pytest.raises(ValueError):
        load_loadings(file)
    keep_loadings(file, [])
    assert file.read_text() == text  # nothing new: nothing is written
    keep_loadings(file, [KIMI])
    assert load_loadings(file) == (KIMI,)
