"""Models, machines and launches of the worked examples."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from recover.core.budget.launch import from_argv
from recover.core.budget.model import GIB, Facts, Launch, ModelConfig
from recover.core.budget.version import version
from recover.model.reading import Known

KIMI = ModelConfig(
    "Kimi-K2.5",
    {
        "model_type": "kimi_k25",
        "vision_config": {"hidden_size": 1152},
        "text_config": {
            "model_type": "kimi_k2",
            "num_hidden_layers": 61,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "hidden_size": 7168,
            "torch_dtype": "bfloat16",
        },
    },
)
LLAMA = ModelConfig(
    "Llama-3.1-8B",
    {
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "hidden_size": 4096,
        "torch_dtype": "bfloat16",
    },
)
QWEN = ModelConfig(
    "Qwen3-235B",
    {
        "num_hidden_layers": 94,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "hidden_size": 4096,
        "torch_dtype": "bfloat16",
    },
)
GLM = ModelConfig(
    "GLM-5",
    {
        "num_hidden_layers": 78,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "num_attention_heads": 64,
        "hidden_size": 6144,
        "dtype": "bfloat16",
    },
)


def machine(available: int = 445, loading: int | None = 40, margin: int | None = 25, **more: Any) -> Facts:
    """In GiB."""
    return replace(
        Facts(
            Known(available * GIB),
            loading=None if loading is None else loading * GIB,
            margin=None if margin is None else margin * GIB,
        ),
        **more,
    )


def sglang(words: str, release: str | None = "0.5.9", **env: str) -> Launch:
    argv = ["python", "-m", "sglang.launch_server", "--enable-hierarchical-cache", *words.split()]
    found = from_argv(argv, env=env, version=version(release) if release else None)
    assert found is not None
    return found


def vllm(words: str, release: str | None = "0.26.0", **env: str) -> Launch:
    found = from_argv(["vllm", "serve", "m", *words.split()], env=env, version=version(release) if release else None)
    assert found is not None
    return found
