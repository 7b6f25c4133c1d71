"""Llama-like families: decoders with rotary positions, RMS norms and gated feed-forward layers.

Llama (Touvron et al. 2023), Mistral (Jiang et al. 2023), Qwen 2 and 3 (Yang et al. 2024 and 2025).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.formats.huggingface.family import ModelFamily, config_fields, token_ids
from firth.formats.huggingface.label_heads import decoder_heads
from firth.formats.huggingface.rope import (
    FULL,
    SLIDING,
    layer_types,
    read_rope,
    sliding_layers,
    write_rope,
)
from firth.models.transformer_config import TransformerConfig

NAMES = {
    "tokens": "embed_tokens",
    "decoder.blocks.*.attention_norm.before": "layers.*.input_layernorm",
    "decoder.blocks.*.attention.qkv": "layers.*.self_attn.{q_proj,k_proj,v_proj}",
    "decoder.blocks.*.attention.output": "layers.*.self_attn.o_proj",
    "decoder.blocks.*.feed_forward_norm.before": "layers.*.post_attention_layernorm",
    "decoder.blocks.*.feed_forward.up": "layers.*.mlp.{gate_proj,up_proj}",
    "decoder.blocks.*.feed_forward.down": "layers.*.mlp.down_proj",
    "decoder.final_norm": "norm",
}

QK_NORMS = {
    "decoder.blocks.*.attention.query_norm": "layers.*.self_attn.q_norm",
    "decoder.blocks.*.attention.key_norm": "layers.*.self_attn.k_norm",
}

FIELDS = config_fields(
    "vocab_size hidden_size num_layers=num_hidden_layers num_heads=num_attention_heads "
    "ffn_size=intermediate_size max_positions=max_position_embeddings activation=hidden_act "
    "norm_eps=rms_norm_eps attention_dropout init_std=initializer_range "
    "pad_token_id bos_token_id eos_token_id tie_embeddings=tie_word_embeddings"
)

FIXED = {
    "architecture": "decoder",
    "position_embedding": "rotary",
    "embedding_norm": False,
    "norm": "rms",
    "norm_position": "pre",
    "norm_bias": False,
    "gated": True,
    "bias": False,
    "dropout": 0.0,
    "initialization": "normal",
}

DEFAULTS = {
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    **token_ids(pad=None, bos=1, eos=2),
}


def read_grouped_query(theirs: dict[str, Any]) -> dict[str, Any]:
    """Read the number of key-value heads and the head size."""
    heads = theirs["num_attention_heads"]
    return {
        "num_kv_heads": theirs.get("num_key_value_heads") or heads,
        "head_dim": theirs.get("head_dim") or theirs["hidden_size"] // heads,
    }


def write_grouped_query(config: TransformerConfig) -> dict[str, Any]:
    """Return the config fields of key-value heads and the head size."""
    return {"num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    return read_rope(theirs) | read_grouped_query(theirs)


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {"rope_parameters": write_rope(config), **write_grouped_query(config)}


LLAMA = ModelFamily(
    name="llama",
    classes={"LlamaForCausalLM": ("language",), "LlamaModel": ()},
    prefix="model.",
    names=NAMES,
    head_names={"heads.language.weight": "lm_head.weight"},
    task_heads=decoder_heads("Llama"),
    fixed=FIXED,
    fields=FIELDS,
    defaults=DEFAULTS,
    required={"attention_bias": False, "mlp_bias": False},
    ignored=r"rotary_emb\.inv_freq$",  # stored in older files
    read=_read,
    write=_write,
    takes_prefix=True,
)


# Their window includes the token itself, ours does not.
def _read_mistral(theirs: dict[str, Any]) -> dict[str, Any]:
    window, layers = theirs["sliding_window"], range(theirs["num_hidden_layers"])
    seen = {"window": window - 1, "windowed_layers": tuple(layers)} if window else {}
    return _read(theirs) | seen


def _write_mistral(config: TransformerConfig) -> dict[str, Any]:
    return {
        **_write(config),
        "sliding_window": config.window + 1 if config.windowed_layers else None,
    }


MISTRAL = replace(
    LLAMA,
    name="mistral",
    classes={"MistralForCausalLM": ("language",), "MistralModel": ()},
    task_heads=decoder_heads("Mistral"),
    defaults={**DEFAULTS, "sliding_window": 4096},
    required={},
    read=_read_mistral,
    write=_write_mistral,
)


def _read_qwen(theirs: dict[str, Any]) -> dict[str, Any]:
    wide, layers = theirs["max_window_layers"], range(theirs["num_hidden_layers"])
    windowed = sliding_layers(theirs, [FULL if i < wide else SLIDING for i in layers])
    if not theirs["use_sliding_window"] or not windowed:
        return _read(theirs)
    return {**_read(theirs), "window": theirs["sliding_window"] - 1, "windowed_layers": windowed}


def _write_qwen(config: TransformerConfig) -> dict[str, Any]:
    return {
        **_write(config),
        "use_sliding_window": bool(config.windowed_layers),
        "sliding_window": config.window + 1 if config.windowed_layers else None,
        "layer_types": layer_types(config),
    }


QWEN_DEFAULTS = {
    **DEFAULTS,
    **token_ids(bos=None, eos=None),
    "max_window_layers": 28,
    "sliding_window": 4096,
    "use_sliding_window": False,
}

QWEN2 = replace(
    LLAMA,
    name="qwen2",
    classes={"Qwen2ForCausalLM": ("language",), "Qwen2Model": ()},
    task_heads=decoder_heads("Qwen2"),
    fixed={**FIXED, "qkv_bias": True},
    defaults=QWEN_DEFAULTS,
    required={},
    read=_read_qwen,
    write=_write_qwen,
)

QWEN3 = replace(
    QWEN2,
    name="qwen3",
    classes={"Qwen3ForCausalLM": ("language",), "Qwen3Model": ()},
    names={**NAMES, **QK_NORMS},
    task_heads=decoder_heads("Qwen3"),
    fixed={**FIXED, "qk_norm": True},
    defaults={**QWEN_DEFAULTS, "head_dim": 128},
    required={"attention_bias": False},
)
