"""Llama: rotary positions, root-mean-square norms, gated layers (Touvron et al. 2023)."""

from __future__ import annotations

from typing import Any

from firth.errors import InputError
from firth.models.config import ModelConfig
from firth.models.formats.family import Family

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

FIELDS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "context": "max_position_embeddings",
    "activation": "hidden_act",
    "norm_eps": "rms_norm_eps",
    "attention_dropout": "attention_dropout",
    "spread": "initializer_range",
    "padding_id": "pad_token_id",
    "begin_id": "bos_token_id",
    "end_id": "eos_token_id",
    "tied": "tie_word_embeddings",
}

FIXED = {
    "architecture": "decoder",
    "positions": "rotary",
    "embedding_norm": False,
    "norm": "rms",
    "norm_place": "pre",
    "norm_bias": False,
    "gated": True,
    "bias": False,
    "dropout": 0.0,
    "initialisation": "normal",
}

DEFAULTS = {
    "hidden_act": "silu",
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def rotary(theirs: dict[str, Any]) -> dict[str, Any]:
    """The base of the angles, as older and newer files write it."""
    found = theirs.get("rope_parameters") or theirs.get("rope_scaling") or {}
    kind = found.get("rope_type", found.get("type", "default"))
    if kind != "default":
        raise InputError(f"Rotary positions of the kind {kind!r} are not known, only 'default'.")
    return {"theta": found.get("rope_theta", theirs.get("rope_theta", 10_000.0))}


def grouped(theirs: dict[str, Any]) -> dict[str, Any]:
    """Grouped queries and the width of a head."""
    heads = theirs["num_attention_heads"]
    return {
        "kv_heads": theirs.get("num_key_value_heads") or heads,
        "head_width": theirs.get("head_dim") or theirs["hidden_size"] // heads,
    }


def write(config: ModelConfig) -> dict[str, Any]:
    """What `rotary` and `grouped` read."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": config.theta},
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
    }


LLAMA = Family(
    name="llama",
    classes={"LlamaForCausalLM": ("language",), "LlamaModel": ()},
    prefix="model.",
    names=NAMES,
    head_names={"heads.language.weight": "lm_head.weight"},
    fixed=FIXED,
    fields=FIELDS,
    defaults=DEFAULTS,
    required={"attention_bias": False, "mlp_bias": False},
    ignored=r"rotary_emb\.inv_freq$",
    read=lambda theirs: rotary(theirs) | grouped(theirs),
    write=write,
)
