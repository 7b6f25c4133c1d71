"""ModernBERT and its decoder: rotary, gated, without biases (Warner et al. 2024)."""

from __future__ import annotations

from typing import Any

from firth.models.config import ModelConfig
from firth.models.formats.family import Family

FIELDS = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "context": "max_position_embeddings",
    "activation": "hidden_activation",
    "norm_eps": "norm_eps",
    "norm_bias": "norm_bias",
    "bias": "mlp_bias",
    "transform_bias": "classifier_bias",
    "dropout": "mlp_dropout",
    "attention_dropout": "attention_dropout",
    "spread": "initializer_range",
    "padding_id": "pad_token_id",
    "begin_id": "bos_token_id",
    "end_id": "eos_token_id",
    "tied": "tie_word_embeddings",
}

FIXED = {
    "positions": "rotary",
    "norm_place": "pre",
    "first_norm": False,
    "gated": True,
    "head_transform": True,
    "head_bias": "trained",
    "initialisation": "scaled-truncated",
}

DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "mlp_dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _read(theirs: dict[str, Any], inclusive: int) -> dict[str, Any]:
    layers = range(theirs["num_hidden_layers"])
    every = theirs.get("global_attn_every_n_layers", 3)
    kinds = theirs.get("layer_types") or [
        "sliding_attention" if i % every else "full_attention" for i in layers
    ]
    rope = theirs.get("rope_parameters") or {}
    windowed = tuple(i for i in layers if kinds[i] == "sliding_attention")
    half = theirs.get("local_attention", 128) // 2

    def theta(kind: str, old: str, usual: float) -> float:
        return float((rope.get(kind) or {}).get("rope_theta", theirs.get(old, usual)))

    whole = theta("full_attention", "global_rope_theta", 160_000.0)
    local = theta("sliding_attention", "local_rope_theta", 10_000.0)
    return {
        "windowed": windowed,
        "window": half - 1 + inclusive if windowed else 0,
        "theta": whole,
        "local_theta": local if windowed else whole,
        "qkv_bias": None,
    }


def _write(config: ModelConfig, inclusive: int) -> dict[str, Any]:
    kinds = ("full_attention", "sliding_attention")
    return {
        "attention_bias": config.bias,
        "embedding_dropout": config.dropout,
        "local_attention": 2 * (config.window + 1 - inclusive) if config.windowed else 128,
        "layer_types": [kinds[i in config.windowed] for i in range(config.layers)],
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta}
            for kind, theta in zip(kinds, (config.theta, config.local_theta), strict=True)
        },
        "decoder_bias": True,
        "classifier_activation": _their_activation(config),
        "cls_token_id": config.begin_id,
        "sep_token_id": config.end_id,
    }


def _their_activation(config: ModelConfig) -> str:
    return {"gelu-tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation)


def _names(side: str, qkv: str) -> dict[str, str]:
    names = {
        "embedding.norm": "embeddings.norm",
        "blocks.*.attention_norm.before": "layers.*.attn_norm",
        "blocks.*.attention.qkv": f"layers.*.attn.{qkv}",
        "blocks.*.attention.output": "layers.*.attn.Wo",
        "blocks.*.feed_forward_norm.before": "layers.*.mlp_norm",
        "blocks.*.feed_forward.up": "layers.*.mlp.Wi",
        "blocks.*.feed_forward.down": "layers.*.mlp.Wo",
        "final_norm": "final_norm",
    }
    ours = {f"{side}.{name}": theirs for name, theirs in names.items()}
    return {"tokens": "embeddings.tok_embeddings", **ours}


def _head(theirs: str) -> dict[str, str]:
    return {
        "heads.language.transform": f"{theirs}.dense",
        "heads.language.norm": f"{theirs}.norm",
        "heads.language.weight": "decoder.weight",
        "heads.language.bias": "decoder.bias",
    }


# The encoder's window counts both ends, the decoder's does not.
MODERNBERT = Family(
    name="modernbert",
    classes={"ModernBertForMaskedLM": ("language",), "ModernBertModel": ()},
    prefix="model.",
    names=_names("encoder", "Wqkv"),
    head_names=_head("head"),
    fixed={**FIXED, "architecture": "encoder"},
    fields=FIELDS,
    defaults=DEFAULTS,
    read=lambda theirs: _read(theirs, inclusive=1),
    write=lambda config: _write(config, inclusive=1),
)

MODERNBERT_DECODER = Family(
    name="modernbert-decoder",
    classes={"ModernBertDecoderForCausalLM": ("language",), "ModernBertDecoderModel": ()},
    prefix="model.",
    names=_names("decoder", "{q_proj,k_proj,v_proj}"),
    head_names=_head("lm_head"),
    fixed={**FIXED, "architecture": "decoder"},
    fields=FIELDS,
    defaults=DEFAULTS,
    read=lambda theirs: _read(theirs, inclusive=0),
    write=lambda config: _write(config, inclusive=0),
)
