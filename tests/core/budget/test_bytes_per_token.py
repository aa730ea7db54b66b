"""Bytes per token of real models' configs, each worked out by hand from the fields that its config.json has.

(K + V) x KV heads on this rank x layers with attention x bytes; MLA: (latent + rope) x layers x bytes on every rank.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recover.core.budget.bytes_per_token import per_token
from recover.core.budget.model import ModelConfig, Problem

MLA = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64}


def of(layers: int, heads: int, kv: int, hidden: int, **more: Any) -> dict[str, Any]:
    found = {"num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv}
    return {**found, "hidden_size": hidden, "torch_dtype": "bfloat16", **more}


def row(fields: dict[str, Any], ranks: int = 1, **more: Any) -> int:
    return per_token(ModelConfig("m", fields), ranks=ranks, **more).main


JAMBA = of(72, 64, 8, 8192, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16)
MINIMAX = of(80, 64, 8, 6144, head_dim=128, attn_type_list=([0] * 7 + [1]) * 10)
NEMOTRON = of(118, 64, 8, 8192, attention_head_dim=128, hybrid_override_pattern="M-M-M-M*-" * 10 + "M-M-")
QWEN_NEXT = of(48, 16, 2, 2048, head_dim=256, full_attention_interval=4, linear_num_key_heads=16)
GPT_OSS = of(36, 64, 8, 2880, head_dim=64, sliding_window=128, layer_types=["sliding_attention", "full_attention"] * 18)
DECI = of(80, 64, 8, 8192, num_key_value_heads=None)
DECI["block_configs"] = [{"attention": {"n_heads_in_group": 8}}] * 49 + [{"attention": {"no_op": True}}] * 31
LINEAR = {**MLA, "num_hidden_layers": 27, "linear_attn_config": {"full_attn_layers": [4, 8, 12, 16, 20, 24, 27]}}
DBRX = {"n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float32"}
LONGCAT = {**MLA, "architectures": ["LongcatFlashForCausalLM"], "num_layers": 28}


@pytest.mark.parametrize(
    ("name", "fields", "ranks", "expected"),
    [
        ("Llama-3.1-405B, 16 ranks for 8 heads", of(126, 128, 8, 16384), 16, 2 * 128 * 1 * 126 * 2),
        ("Llama-2-7B, all heads", of(32, 32, 32, 4096), 1, 2 * 128 * 32 * 32 * 2),
        ("Llama 4", {"text_config": of(48, 40, 8, 5120, head_dim=128)}, 8, 2 * 128 * 48 * 2),
        ("Qwen2.5-72B, a window not in use", of(80, 64, 8, 8192, sliding_window=131072), 4, 2 * 128 * 2 * 80 * 2),
        ("Qwen3-30B-A3B", of(48, 32, 4, 2048, head_dim=128), 2, 2 * 128 * 2 * 48 * 2),
        ("Qwen3-VL", {"text_config": of(36, 32, 8, 4096), "vision_config": {"num_heads": 16}}, 1, 2 * 128 * 8 * 36 * 2),
        ("Qwen3-Omni", {"thinker_config": {"text_config": of(48, 32, 4, 2048, head_dim=128)}}, 1, 2 * 128 * 4 * 48 * 2),
        ("Qwen3-Next, a quarter of the layers", QWEN_NEXT, 4, 2 * 256 * 1 * 12 * 2),
        ("DeepSeek-V3", {**MLA, "num_hidden_layers": 61}, 8, 576 * 61 * 2),
        ("Kimi-Linear", LINEAR, 8, 576 * 14),
        ("LongCat, two attentions a layer", LONGCAT, 8, 576 * 56 * 2),
        ("GLM-4.5", of(92, 96, 8, 5120, head_dim=128), 8, 2 * 128 * 92 * 2),
        ("gpt-oss-120b", GPT_OSS, 2, 2 * 64 * 4 * 36 * 2),
        ("Gemma 3", {"text_config": of(62, 32, 16, 5376, head_dim=128)}, 4, 2 * 128 * 4 * 62 * 2),
        ("Mixtral-8x22B", of(56, 48, 8, 6144), 8, 2 * 128 * 56 * 2),
        ("Nemotron-H", NEMOTRON, 8, 2 * 128 * 10 * 2),
        ("Nemotron-Super-49B, layers without attention", DECI, 8, 2 * 128 * 49 * 2),
        ("MiniMax-Text-01", MINIMAX, 8, 2 * 128 * 10 * 2),
        ("MiniMax-M2", of(62, 48, 8, 3072, head_dim=128, attn_type_list=[1] * 62), 8, 2 * 128 * 62 * 2),
        ("Jamba", JAMBA, 8, 2 * 128 * 9 * 2),
        ("Bamba", of(32, 32, 8, 4096, attn_layer_indices=[9, 18, 27]), 1, 2 * 128 * 8 * 3 * 2),
        ("Granite 4", of(40, 32, 8, 4096, layer_types=["mamba"] * 36 + ["attention"] * 4), 1, 2 * 128 * 8 * 4 * 2),
        ("ChatGLM", {"num_layers": 40, "num_attention_heads": 32, "multi_query_attention": True, "kv_channels": 128,
                     "multi_query_group_num": 2, "hidden_size": 4096}, 2, 2 * 128 * 1 * 40 * 2),
        ("DBRX", DBRX, 8, 2 * 128 * 40 * 2),
        ("Falcon-7B", {"num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True, "hidden_size": 4544},
         1, 2 * 64 * 32 * 2),
        ("GPT-2 in float32", GPT2, 1, 2 * 64 * 12 * 12 * 4),
    ],
)  # fmt: skip
def test_real_models(name: str, fields: dict[str, Any], ranks: int, expected: int) -> None:
    assert row(fields, ranks) == expected, name


def test_stores_stages_and_second_rows() -> None:
    glm = {**MLA, "num_hidden_layers": 78, "index_head_dim": 128}
    assert row({**MLA, "num_hidden_layers": 61}, 8, store="fp8_e4m3") == 576 * 61
    assert row({**MLA, "num_hidden_layers": 61}, 2, stages=4) == 576 * 2 * 16
    assert row(glm, 8, store="fp8_e4m3") == 656 * 78
    assert per_token(ModelConfig("m", glm), ranks=8).indexer == 132 * 78
    wide = of(48, 64, 4, 4096, head_dim=192, v_head_dim=128)
    assert row(wide, 4) == (192 + 128) * 48 * 2
    assert row(wide, 4, split_v=False) == 2 * 192 * 48 * 2


def test_which_layers_keep_a_state_or_a_window() -> None:
    found = {
        name: per_token(ModelConfig("m", f), ranks=1) for name, f in {"j": JAMBA, "m": MINIMAX, "g": GPT_OSS}.items()
    }
    assert [p.state_layers for p in found.values()] == [True, True, False]
    assert [p.windows for p in found.values()] == [False, False, True]
    assert not per_token(ModelConfig("m", DECI), ranks=1).state_layers


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "has no num_hidden_layers"),
        (of(32, 32, 8, 4096, num_hidden_layers="32"), "num_hidden_layers is '32', not a whole number"),
        (of(32, 32, 8, 4096, num_hidden_layers=True), "not a whole number"),
        (of(32, 32, 8, 4096, num_hidden_layers=-1), "not a whole number"),
        (of(32, 32, 8, 16), "hidden_size is smaller"),
        (of(32, 32, 8, 4096, torch_dtype="int3"), "'int3' is not known"),
        (of(2, 32, 8, 4096, num_key_value_heads_per_layer=[8, 4]), "differ from layer to layer"),
        ({**MLA, "num_hidden_layers": 61, "qk_rope_head_dim": None}, "has no qk_rope_head_dim"),
    ],
)
def test_what_a_config_does_not_say_is_an_error(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(Problem, match=says):
        row(fields)


FAMILIES = (of(1, 1, 1, 1), MLA, JAMBA, MINIMAX, NEMOTRON, QWEN_NEXT, GPT_OSS, DECI, LONGCAT, LINEAR)
MORE = ("text_config", "attn_config", "attention", "n_heads_in_group", "v_head_dim", "index_head_dim", "multi_query")
MORE += ("attn_layer_indices", "num_key_value_heads_per_layer", "hybrid_layer_pattern", "multi_query_attention")
NAMES = sorted({name for fields in FAMILIES for name in fields} | set(MORE))
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), ANY), st.integers(1, 64))
def test_any_config_gives_a_row_or_an_error(fields: dict[str, Any], ranks: int) -> None:
    """Seen to fail with `b["attention"]` read of blocks that have none."""
    try:
        found = per_token(ModelConfig("m", {**of(2, 8, 8, 64), **fields}), ranks=ranks)
    except Problem as problem:
        assert problem.problems[0].startswith("m: ")
    else:
        assert found.main > 0
