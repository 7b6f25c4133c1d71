"""ModernBERT and its decoder: rotary, gated, without biases (Warner et al. 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from firth.models.config import ModelConfig
from firth.models.formats.family import Family
from firth.models.formats.labels import TaskHead, plain
from firth.models.formats.rotary import (
    FULL,
    SLIDING,
    layer_types,
    sliding,
    two_bases,
    write_two_bases,
)

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
    "head_activation": "classifier_activation",
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
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
    "global_attn_every_n_layers": 3,
    "local_attention": 128,
    "mlp_dropout": 0.0,
    "attention_dropout": 0.0,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def _read(theirs: dict[str, Any], inclusive: int) -> dict[str, Any]:
    every = theirs["global_attn_every_n_layers"]
    usual = [SLIDING if i % every else FULL for i in range(theirs["num_hidden_layers"])]
    windowed = sliding(theirs, usual)
    bases = two_bases(theirs, ("global_rope_theta", 160_000.0), ("local_rope_theta", 10_000.0))
    return {
        "theta": bases["theta"],
        "local_theta": bases["local_theta"] if windowed else bases["theta"],
        "window": theirs["local_attention"] // 2 - 1 + inclusive if windowed else 0,
        "windowed": windowed,
    }


def _write(config: ModelConfig, inclusive: int) -> dict[str, Any]:
    return {
        "attention_bias": config.bias,
        "embedding_dropout": config.dropout,
        "local_attention": 2 * (config.window + 1 - inclusive) if config.windowed else 128,
        "layer_types": layer_types(config),
        "rope_parameters": write_two_bases(config),
        "cls_token_id": config.begin_id,
        "sep_token_id": config.end_id,
    }


def _write_decoder(config: ModelConfig) -> dict[str, Any]:
    """Their decoder must have ids for these roles, also where nothing has the role."""
    roles = {
        "pad_token_id": config.padding_id,
        "bos_token_id": config.begin_id,
        "eos_token_id": config.end_id,
    }
    needed = {name: 0 for name, id in roles.items() if id is None}
    return {**_write(config, inclusive=0), **needed}


POOLING = {"cls": "first", "mean": "mean"}


def _read_encoder(theirs: dict[str, Any]) -> dict[str, Any]:
    return {**_read(theirs, inclusive=1), "pooling": POOLING[theirs["classifier_pooling"]]}


def _write_encoder(config: ModelConfig) -> dict[str, Any]:
    pooling = "mean" if config.pooling == "mean" else "cls"
    return {**_write(config, inclusive=1), "classifier_pooling": pooling}


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


def _task_heads(cls: str, heads: tuple[str, ...], **shape: Any) -> dict[str, TaskHead]:
    """Every head has a layer and a norm of its own, as the language model's has."""
    names = {"layers.0": "head.dense", "norm": "head.norm", "output": "classifier"}
    shape = {"label_layers": 1, "label_activation": "gelu", "label_norm": True, **shape}
    return {
        head: replace(row, names=names, pooler=False, shape=shape)
        for head, row in plain(cls).items()
        if head in heads
    }


# The encoder's window counts both ends, the decoder's does not.
MODERNBERT = Family(
    name="modernbert",
    classes={"ModernBertForMaskedLM": ("language",), "ModernBertModel": ()},
    prefix="model.",
    names=_names("encoder", "Wqkv"),
    head_names=_head("head"),
    task_heads=_task_heads("ModernBert", ("classify", "choose", "tag", "span")),
    fixed={**FIXED, "architecture": "encoder"},
    fields=FIELDS,
    defaults=DEFAULTS,
    required={"decoder_bias": True},
    read=_read_encoder,
    write=_write_encoder,
)

MODERNBERT_DECODER = Family(
    name="modernbert-decoder",
    classes={"ModernBertDecoderForCausalLM": ("language",), "ModernBertDecoderModel": ()},
    prefix="model.",
    names=_names("decoder", "{q_proj,k_proj,v_proj}"),
    head_names=_head("lm_head"),
    task_heads=_task_heads("ModernBertDecoder", ("classify",), pooling="last", label_bias=False),
    fixed={**FIXED, "architecture": "decoder"},
    fields=FIELDS,
    defaults=DEFAULTS,
    required={"decoder_bias": True},
    read=lambda theirs: _read(theirs, inclusive=0),
    write=_write_decoder,
    takes_prefix=True,
)
