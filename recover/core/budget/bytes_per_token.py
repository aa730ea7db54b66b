"""Bytes that one token's keys and values take on one rank, from a model's config.json; what it can't say is an error.

Sources: sglang `mem_cache/memory_pool_host.py:316,719` (0.5.9), `pool_host/{mha,mla,dsa}.py` (0.5.23),
`configs/model_config.py get_num_kv_heads`. MLA is not divided by ranks: every rank keeps the same whole rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from recover.core.budget.model import ModelConfig, Problem
from recover.core.clean import clean

_WIDTHS = {
    **dict.fromkeys(("float32", "float", "fp32"), 4),
    **dict.fromkeys(("bfloat16", "bf16", "float16", "half", "fp16"), 2),
    **dict.fromkeys(("fp8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2"), 1),
}
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
_LARGE = 1 << 24


@dataclass(frozen=True, slots=True)
class PerToken:
    """`main`: the pool that the size speaks of. `indexer`: a DSA model's second row. `layers`: of this rank's stage."""

    kind: str  # "MLA", "MHA", "GQA", "DSA"
    main: int
    indexer: int
    layers: int
    formula: str
    state_layers: bool = False  # Mamba or linear attention beside full attention
    windows: bool = False  # sliding-window layers beside full attention
    nextn: int = 0  # built-in draft layers
    refused: str = ""  # the engine takes no size for this model
    context: int = 0  # the longest request, 0 where the config does not say it
    unpacked: int = 0  # the main row where the attention backend does not pack it: smaller, so that more tokens fit

    @property
    def replicated(self) -> bool:
        return self.kind in {"MLA", "DSA"}


def read_config(text: str, name: str) -> ModelConfig:
    """A config.json. Raises Problem with the place."""
    shown = clean(name, 120)
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        end = " (is it cut off?)" if cut else ""
        raise Problem(f"{shown}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}{end}") from None
    except (ValueError, RecursionError):
        raise Problem(f"{shown}: not usable as JSON") from None
    if not isinstance(fields, dict):
        raise Problem(f"{shown}: holds no object")
    return ModelConfig(name, fields)


def per_token(
    config: ModelConfig,
    *,
    ranks: int,
    stages: int = 1,
    store: str = "auto",
    split_v: bool = True,
    packed: bool = True,
) -> PerToken:
    """Raises Problem for a config that does not say it. `ranks`: those that attention heads are divided among."""
    fields = _text_fields(config.fields)
    reader = _Reader(config, fields)
    layers_all, state_layers = _attention_layers(reader)
    layers = -(-layers_all // stages)
    width = _width(reader, store)
    stage = f" of {layers_all}" if stages > 1 else ""
    extra = {
        "layers": layers,
        "state_layers": state_layers,
        "windows": _windows(fields),
        "nextn": reader.optional("num_nextn_predict_layers"),
        "refused": _refused(fields),
        "context": reader.optional("max_position_embeddings"),
    }
    if "kv_lora_rank" in fields and fields["kv_lora_rank"] is not None:
        return _latent(reader, layers, width, stage, extra, packed and store.startswith("fp8"))
    return _heads(reader, layers, width, stage, extra, ranks, split_v)


@dataclass(frozen=True, slots=True)
class _Reader:
    config: ModelConfig
    fields: Mapping[str, Any]

    def number(self, *names: str) -> int:
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _LARGE:
                raise Problem(f"{clean(self.config.name, 120)}: {name} is {clean(repr(value), 60)}, not a whole number")
            return value
        raise Problem(f"{clean(self.config.name, 120)}: has no {' or '.join(names)}")

    def optional(self, name: str) -> int:
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGE else 0


def _text_fields(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's own fields: multimodal models nest them."""
    for name in _NESTED:
        inner = fields.get(name)
        if isinstance(inner, dict):
            deeper = _text_fields(inner)
            if any(key in deeper for key in ("num_hidden_layers", "n_layer", "kv_lora_rank")):
                around = {k: v for k, v in fields.items() if k in {"torch_dtype", "dtype"}}
                return {**around, **deeper}
    return fields


def _width(reader: _Reader, store: str) -> int:
    said = store
    if store == "auto":
        said = str(reader.fields.get("dtype") or reader.fields.get("torch_dtype") or "bfloat16")
    width = _WIDTHS.get(said.removeprefix("torch."))
    if width is None:
        raise Problem(f"{clean(reader.config.name, 120)}: the store type {clean(said, 40)!r} is not known here")
    return width


def _attention_layers(reader: _Reader) -> tuple[int, bool]:
    """How many layers keep keys and values, and whether others keep a state instead."""
    fields = reader.fields
    blocks = fields.get("block_configs")
    if isinstance(blocks, list) and blocks:  # Nemotron NAS: some layers have no attention at all
        return sum(1 for b in blocks if not _skips(b)) or 1, False
    total = reader.number("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    kinds = fields.get("layer_types") or fields.get("layers_block_type")
    if isinstance(kinds, list) and kinds:
        full = sum(1 for k in kinds if "attention" in str(k) and not str(k).startswith("linear"))
        return max(1, full), full < len(kinds)
    if (named := _listed(fields, total)) is not None:
        return max(1, named), named < total
    every = reader.optional("full_attention_interval")
    if every > 1:
        return max(1, total // every), True
    linear = fields.get("linear_attn_config")
    if isinstance(linear, dict):
        full_layers = linear.get("full_attn_layers")
        return (len(full_layers) if isinstance(full_layers, list) and full_layers else total), True
    if "LongcatFlash" in str(fields.get("architectures")):
        return total * 2, False  # two attentions in each: sglang `configs/model_config.py` num_attention_layers
    return total, any(key.startswith(("mamba_", "ssm_", "linear_num_")) for key in fields)


def _listed(fields: Mapping[str, Any], total: int) -> int | None:
    """The layers with attention among those of another kind, as each family of models writes them."""
    pattern = fields.get("hybrid_override_pattern")  # Nemotron-H: "M-M*-"
    if isinstance(pattern, str) and pattern:
        return pattern.count("*")
    kinds = fields.get("attn_type_list")  # MiniMax: 1 is attention, 0 is linear
    if isinstance(kinds, list) and kinds:
        return sum(1 for kind in kinds if kind == 1)
    indices = fields.get("attn_layer_indices")  # Bamba
    if isinstance(indices, list) and indices:
        return len(indices)
    period, offset = fields.get("attn_layer_period"), fields.get("attn_layer_offset")  # Jamba
    if isinstance(period, int) and isinstance(offset, int) and 0 <= offset < period:
        return len(range(offset, total, period))
    return None


def _skips(block: Any) -> bool:
    attention = block.get("attention") if isinstance(block, dict) else None
    return isinstance(attention, dict) and bool(attention.get("no_op") or attention.get("replace_with_linear"))


def _windows(fields: Mapping[str, Any]) -> bool:
    """Whether some layers keep only a window while others keep all."""
    kinds = fields.get("layer_types")
    if isinstance(kinds, list):
        names = {str(k) for k in kinds}
        return "sliding_attention" in names and len(names) > 1
    if isinstance(fields.get("hybrid_layer_pattern"), list):
        return True
    return bool(fields.get("sliding_window_pattern")) and bool(fields.get("sliding_window"))


def _refused(fields: Mapping[str, Any]) -> str:
    if str(fields.get("model_type", "")).startswith("deepseek_v4"):
        return "SGLang refuses --hicache-size for DeepSeek-V4: it takes --hicache-ratio only"
    return ""


def _latent(reader: _Reader, layers: int, width: int, stage: str, extra: dict[str, Any], packed: bool) -> PerToken:
    lora, rope = reader.number("kv_lora_rank"), reader.number("qk_rope_head_dim")
    index = reader.optional("index_head_dim")
    if not index:
        row = f"({lora} + {rope}) x {width} bytes x {layers} layers{stage}"
        return PerToken("MLA", (lora + rope) * width * layers, 0, formula=row, **extra)
    one = plain = (lora + rope) * width
    row = f"({lora} + {rope}) x {width} bytes"
    if packed:  # scales of each 128 values as float32, the rope part in 16 bits
        one = lora + lora // 128 * 4 + rope * 2
        row = f"({lora} + {lora // 128 * 4} scales + {rope} x 2) bytes"
    indexer = int((index + Fraction(index, 128) * 4) * layers)
    words = f"{row} x {layers} layers{stage}; the indexer ({index} + {index} / 128 x 4) bytes x {layers} layers"
    return PerToken("DSA", one * layers, indexer, formula=words, unpacked=plain * layers, **extra)


def _heads(
    reader: _Reader, layers: int, width: int, stage: str, extra: dict[str, Any], ranks: int, split_v: bool
) -> PerToken:
    queries = reader.number("num_attention_heads", "n_head", "n_heads")
    heads = _kv_heads(reader, queries)
    dim = reader.optional("head_dim") or reader.optional("kv_channels") or reader.optional("attention_head_dim")
    dim = dim or reader.number("hidden_size", "n_embd", "d_model") // queries
    if dim < 1:
        raise Problem(f"{clean(reader.config.name, 120)}: hidden_size is smaller than num_attention_heads")
    v_dim = (reader.optional("v_head_dim") or dim) if split_v else dim
    own = max(1, heads // ranks)
    kind = "MHA" if heads == queries else "GQA"
    copies = f", each head on {ranks // heads} ranks" if heads < ranks else ""
    row = f"({dim} + {v_dim}) x {own} KV heads{copies} x {layers} layers{stage} x {width} bytes"
    return PerToken(kind, (dim + v_dim) * own * layers * width, 0, formula=row, **extra)


def _kv_heads(reader: _Reader, queries: int) -> int:
    """Raises Problem where they differ from layer to layer."""
    fields = reader.fields
    blocks, listed = fields.get("block_configs"), fields.get("num_key_value_heads_per_layer")
    if isinstance(blocks, list) and blocks:
        inner_of = [b.get("attention") for b in blocks if isinstance(b, dict) and not _skips(b)]
        groups = [inner.get("n_heads_in_group") if isinstance(inner, dict) else None for inner in inner_of]
        listed = [queries // g if isinstance(g, int) and g > 0 else None for g in groups]
    if isinstance(listed, list) and listed:
        one = listed[0]
        if any(other != one for other in listed) or isinstance(one, bool) or not isinstance(one, int):
            raise Problem(f"{clean(reader.config.name, 120)}: the KV heads differ from layer to layer")
        if not 0 < one < _LARGE:
            raise Problem(f"{clean(reader.config.name, 120)}: {one} KV heads are none")
        return one
    inner = fields.get("attn_config")  # DBRX, MPT
    if isinstance(inner, dict) and isinstance(inner.get("kv_n_heads"), int) and 0 < inner["kv_n_heads"] < _LARGE:
        return int(inner["kv_n_heads"])
    if fields.get("multi_query_attention") is True and reader.optional("multi_query_group_num"):  # ChatGLM
        return reader.optional("multi_query_group_num")
    if fields.get("multi_query") is True and "num_kv_heads" not in fields:  # Falcon 7B
        return 1
    return reader.optional("num_key_value_heads") or reader.optional("num_kv_heads") or queries
