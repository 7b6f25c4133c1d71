"""Gemma 3, the text model: norms before and after every sub-layer (Gemma team 2025)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.formats.huggingface.family import token_ids
from firth.formats.huggingface.label_heads import decoder_heads
from firth.formats.huggingface.llama import (
    DEFAULTS,
    FIELDS,
    FIXED,
    LLAMA,
    NAMES,
    QK_NORMS,
    read_grouped_query,
    write_grouped_query,
)
from firth.formats.huggingface.rope import (
    FULL,
    SLIDING,
    layer_types,
    read_two_ropes,
    sliding_layers,
    write_two_ropes,
)
from firth.models.transformer_config import TransformerConfig

NORMS = {
    "decoder.blocks.*.attention_norm.after": "layers.*.post_attention_layernorm",
    "decoder.blocks.*.feed_forward_norm.before": "layers.*.pre_feedforward_layernorm",
    "decoder.blocks.*.feed_forward_norm.after": "layers.*.post_feedforward_layernorm",
}


def _read(theirs: dict[str, Any]) -> dict[str, Any]:
    shape, every = read_grouped_query(theirs), theirs["sliding_window_pattern"]
    usual = [SLIDING if (i + 1) % every else FULL for i in range(theirs["num_hidden_layers"])]
    windowed = sliding_layers(theirs, usual)
    full, local = ("rope_theta", 1_000_000.0), ("rope_local_base_freq", 10_000.0)
    under_root = theirs["query_pre_attn_scalar"]
    return {
        **shape,
        **read_two_ropes(theirs, full, local, bool(windowed)),
        "window": theirs["sliding_window"] - 1 if windowed else 0,
        "windowed_layers": windowed,
        "attention_scale": 0.0 if under_root == shape["head_dim"] else float(under_root**-0.5),
    }


def _write(config: TransformerConfig) -> dict[str, Any]:
    return {
        **write_grouped_query(config),
        "layer_types": layer_types(config),
        "query_pre_attn_scalar": round(config.scale**-2),
        "rope_parameters": write_two_ropes(config),
        "sliding_window": config.window + 1,
    }


GEMMA3 = replace(
    LLAMA,
    name="gemma3_text",
    classes={"Gemma3ForCausalLM": ("language",), "Gemma3TextModel": ()},
    names={**NAMES, **QK_NORMS, **NORMS},
    task_heads=decoder_heads("Gemma3Text"),
    fixed={
        **FIXED,
        "norm": "rms-plus-one",
        "norm_position": "both",
        "qk_norm": True,
        "embedding_scale": True,
    },
    fields=FIELDS | {"activation": "hidden_activation"},
    defaults={
        **DEFAULTS,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        **token_ids(pad=0, bos=2, eos=1),
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
    },
    required={
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    read=_read,
    write=_write,
)
